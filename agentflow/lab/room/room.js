// What a kernel cannot do in a page, once for each control room that is shown. `this` is the image that carries it.
const room = this.closest('.af-room');
if (room && !room.dataset.ready) {
  room.dataset.ready = 'yes';
  const q = (selector) => [...room.querySelectorAll(selector)];
  const send = (field, value) => { field.value = value; field.dispatchEvent(new Event('change', {bubbles: true})); };
  const given = (element, name, value) => { if (element.getAttribute(name) !== value) element.setAttribute(name, value); };
  let stood = null;  // the mark that has the focus, to find it again when the picture is drawn anew
  let last = null;  // what has the focus in the room
  const reach = () => {
    if (!room.classList.contains('af-scripted')) room.classList.add('af-scripted');
    // With the focus on a button JupyterLab takes `x` as delete cell; this attribute is the cure.
    q('button,input,select,textarea,summary,pre,[tabindex]').forEach(e => given(e, 'data-lm-suppress-shortcuts', 'true'));
    q('.jupyter-button').forEach(e => {
      given(e, 'tabindex', '0');
      given(e, 'aria-disabled', String(e.classList.contains('af-off'))); });
    q('.af-say .widget-html-content').forEach(e => { given(e, 'role', 'status'); given(e, 'aria-live', 'polite'); });
    q('.af-lane').forEach(e => { given(e, 'role', 'group'); given(e, 'aria-label', 'worker ' + e.className.match(/af-lane-(\w)/)[1]); });
    given(room, 'role', 'region');
    given(room, 'aria-label', 'control room');
    given(room, 'tabindex', '-1');
    given(room, 'data-lm-suppress-shortcuts', 'true');
    const picture = room.querySelector('.af-tl');
    if (picture && !picture.dataset.seen) { picture.dataset.seen = 'yes'; new MutationObserver(redrawn).observe(picture, {childList: true, subtree: true}); new ResizeObserver(redrawn).observe(picture); }
    if (last && document.activeElement === document.body && !room.contains(document.activeElement)) room.focus({preventScroll: true});
  };
  const place = (mark) => Number(mark.querySelector('.hit').getAttribute('x'));  // what is faint stands first in the picture
  const marks = () => q('.af-tl .ev').sort((one, other) => place(one) - place(other));
  const label = (mark) => mark && mark.dataset.n;
  const markAt = (event) => event.target.closest && event.target.closest('.af-tl .ev');
  const rove = (mark) => { marks().forEach(m => m.setAttribute('tabindex', m === mark ? '0' : '-1')); };
  const redrawn = () => {
    const scroller = room.querySelector('.af-tl .tl');
    const mark = marks().find(m => label(m) === (stood ?? (scroller && scroller.dataset.entry)));
    if (stood !== null) {
      if (mark && document.activeElement !== mark && (document.activeElement === document.body || document.activeElement === room || document.activeElement.closest('.af-tl'))) { quiet = true; rove(mark); mark.focus({preventScroll: true}); quiet = false; }
    } else if (mark) {
      // Whole columns, so that no word is cut; the first may stay half seen where the last would not be seen at all.
      const column = (one) => one.querySelector('.hit').getBoundingClientRect(), wide = column(mark).width;
      const start = column(marks()[0]).left + scroller.scrollLeft - scroller.getBoundingClientRect().left;
      const needed = column(mark).right + wide + scroller.scrollLeft - scroller.getBoundingClientRect().right;
      scroller.scrollLeft = needed > 0 ? start + Math.ceil((needed - start) / wide) * wide : 0;
    }
  };
  let quiet = false, later = 0;
  // Focus on a mark shows its entry: the field between Back and Forward is set as if somebody had typed its number.
  room.addEventListener('focusin', (event) => {
    last = event.target;
    const mark = markAt(event);
    if (!mark) { if (event.target !== room) stood = null; return; }
    stood = label(mark);
    rove(mark);
    if (quiet) return;
    clearTimeout(later);
    later = setTimeout(() => {
      const field = room.querySelector('.af-entry input'), n = parseInt(stood, 10);
      if (field && n && field.value !== String(n)) send(field, n);
    }, 120);
  });
  document.addEventListener('focusin', (event) => { if (!room.contains(event.target)) last = null; });
  document.addEventListener('pointerdown', (event) => { if (!room.contains(event.target)) last = null; }, {capture: true});
  // Run carries its line with it: the message of a button may overtake that of the field beside it.
  const wire = (said) => send(room.querySelector('.af-wire input'), Date.now() + ' ' + said);
  const run = (event) => {
    event.preventDefault();
    event.stopPropagation();
    wire('run ' + room.querySelector('.af-schedule input').value);
  };
  // A click that the kernel has not answered after a moment is shown as waiting, until something is drawn.
  let waiting = 0, clock = 0;
  const waits = (more) => {
    waiting = more ? waiting + more : 0;
    clearTimeout(clock);
    const say = room.querySelector('.af-say');
    if (!say) return;  // the page is being left
    if (!waiting) { say.removeAttribute('data-waiting'); return; }
    clock = setTimeout(() => { say.dataset.waiting = `the kernel is busy; waiting: ${waiting} click${waiting > 1 ? 's' : ''}`; }, 400);
  };
  let before = 0;
  room.addEventListener('click', (event) => {
    const button = event.target.closest('.jupyter-button');
    if (!button || button.matches('.af-lecture *')) return;
    const double = event.detail > 1 && event.timeStamp - before < 250;
    before = event.timeStamp;
    if (button.classList.contains('af-off') || (double && button.matches('.af-step'))) { event.preventDefault(); event.stopPropagation(); return; }
    waits(1);
    if (button.matches('.af-run')) run(event);
  }, {capture: true});
  room.addEventListener('keydown', (event) => {
    if (event.key === 'Enter' && event.target.matches('.af-schedule input')) run(event);
  }, {capture: true});
  room.addEventListener('keydown', (event) => {
    const mark = markAt(event);
    if (!mark || lecturing()) return;
    const all = marks(), at = all.indexOf(mark);
    const to = {ArrowRight: at + 1, ArrowDown: at + 1, ArrowLeft: at - 1, ArrowUp: at - 1, Home: 0, End: all.length - 1}[event.key];
    if (to === undefined) return;
    event.preventDefault();
    event.stopPropagation();
    const next = all[Math.max(0, Math.min(all.length - 1, to))];
    next.focus();
    next.scrollIntoView({block: 'nearest', inline: 'nearest'});
  });
  room.addEventListener('click', (event) => {
    const mark = markAt(event);
    if (mark) { mark.focus({preventScroll: true}); return; }
    if (event.target.closest('.af-lecture')) { lecture(!lecturing()); return; }
    if (!event.target.closest('.af-copy')) return;
    const field = room.querySelector('.af-schedule input');
    const select = () => { field.focus(); field.select(); document.execCommand('copy'); };
    if (navigator.clipboard && window.isSecureContext) navigator.clipboard.writeText(field.value).catch(select); else select();
  });
  // The lecture: the room alone on the whole screen, moved by the keys of a clicker.
  const lecturing = () => room.classList.contains('af-lecturing');
  const lecture = (on) => {
    room.classList.toggle('af-lecturing', on);
    if (on) {
      room.requestFullscreen().catch(() => { room.popover = 'manual'; room.showPopover(); });
    } else {
      if (document.fullscreenElement === room) document.exitFullscreen();
      room.removeAttribute('popover');
    }
    stood = null;
    room.focus({preventScroll: true});
    redrawn();
  };
  document.addEventListener('fullscreenchange', () => {
    if (lecturing() && !document.fullscreenElement && !room.popover) lecture(false); else redrawn(); });
  const on = (selector) => q(selector).find(e => !e.classList.contains('af-off'));
  const goOn = () => on('.af-forward') || on(`.af-live.af-lane-${room.querySelector('.tl').dataset.turn || 'A'} .af-step`) || on('.af-live .af-step');
  room.addEventListener('keydown', (event) => {
    if (event.target.matches('input,select') || event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key.toLowerCase() === 'l') { lecture(!lecturing()); event.preventDefault(); return; }
    if (!lecturing()) return;
    const press = {' ': goOn, PageDown: goOn, ArrowRight: goOn, PageUp: () => on('.af-back'), ArrowLeft: () => on('.af-back'), h: () => on('.af-hide-next')}[event.key];
    if (event.key === 'Escape') lecture(false); else if (!press) return;
    event.preventDefault();
    event.stopPropagation();
    const button = press && press();
    if (button) button.click();
  }, {capture: true});
  // Without its kernel no button does anything, so none takes a key or a click; the style says why.
  const parted = () => {
    waits(0);
    const gone = room.classList.contains('jupyter-widgets-disconnected');
    q('.af-top, .af-side, .af-plan, .af-settings').forEach(e => { if (e.hasAttribute('inert') !== gone) e.toggleAttribute('inert', gone); });
    if (gone && last && document.activeElement === document.body) room.focus({preventScroll: true});
  };
  parted();
  new MutationObserver(parted).observe(room, {attributeFilter: ['class']});
  reach();
  new MutationObserver(reach).observe(room, {childList: true, subtree: true, attributeFilter: ['class']});
  wire('ready');
}
