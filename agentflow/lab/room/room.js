// What a kernel cannot do in a page, once for each control room that is shown. `this` is the image that carries it.
const room = this.closest('.af-room');
if (room && !room.dataset.ready) {
  room.dataset.ready = 'yes';
  const q = (selector) => [...room.querySelectorAll(selector)];
  let stood = null;  // the mark that has the focus, to find it again when the picture is drawn anew
  const reach = () => {
    // With the focus on a button JupyterLab takes `x` as delete cell; this attribute is the cure.
    q('button,input,select,textarea,summary,pre,[tabindex]').forEach(e => {
      if (e.dataset.lmSuppressShortcuts !== 'true') e.setAttribute('data-lm-suppress-shortcuts', 'true'); });
    q('.af-say .widget-html-content').forEach(e => { e.setAttribute('role', 'status'); e.setAttribute('aria-live', 'polite'); });
    q('.af-lane').forEach(e => {
      e.setAttribute('role', 'group');
      e.setAttribute('aria-label', 'worker ' + e.className.match(/af-lane-(\w)/)[1]); });
    room.setAttribute('role', 'region');
    room.setAttribute('aria-label', 'control room');
    const picture = room.querySelector('.af-tl');
    if (picture && !picture.dataset.seen) { picture.dataset.seen = 'yes'; new MutationObserver(redrawn).observe(picture, {childList: true, subtree: true}); redrawn(); }
  };
  const marks = () => q('.af-tl .ev');
  const label = (mark) => mark && mark.dataset.n;
  const rove = (mark) => { marks().forEach(m => m.setAttribute('tabindex', m === mark ? '0' : '-1')); };
  const redrawn = () => {
    const scroller = room.querySelector('.af-tl .tl');
    if (stood !== null) {
      const mark = marks().find(m => label(m) === stood);
      if (mark && document.activeElement !== mark && (document.activeElement === document.body || room.contains(document.activeElement) && document.activeElement.closest('.af-tl'))) { quiet = true; rove(mark); mark.focus({preventScroll: true}); quiet = false; }
    } else if (scroller) {
      const mark = marks().find(m => label(m) === scroller.dataset.entry);
      if (mark) scroller.scrollLeft += mark.getBoundingClientRect().right - scroller.getBoundingClientRect().right + 90;
    }
  };
  let quiet = false, later = 0;
  // Focus on a mark shows its entry: the field between Back and Forward is set as if somebody had typed its number.
  room.addEventListener('focusin', (event) => {
    const mark = event.target.closest && event.target.closest('.af-tl .ev');
    if (!mark) { stood = null; return; }
    stood = label(mark);
    rove(mark);
    if (quiet) return;
    clearTimeout(later);
    later = setTimeout(() => {
      const field = room.querySelector('.af-entry input'), n = parseInt(stood, 10);
      if (field && n && field.value !== String(n)) { field.value = n; field.dispatchEvent(new Event('change', {bubbles: true})); }
    }, 120);
  });
  // Run carries its line with it: the message of a button may overtake that of the field beside it.
  const run = (event) => {
    event.preventDefault();
    event.stopPropagation();
    const wire = room.querySelector('.af-wire input');
    wire.value = Date.now() + ' ' + room.querySelector('.af-schedule input').value;
    wire.dispatchEvent(new Event('change', {bubbles: true}));
  };
  room.addEventListener('keydown', (event) => {
    if (event.key === 'Enter' && event.target.matches('.af-schedule input')) run(event);
  }, {capture: true});
  room.addEventListener('click', (event) => { if (event.target.closest('.af-run')) run(event); }, {capture: true});
  room.addEventListener('keydown', (event) => {
    const mark = event.target.closest && event.target.closest('.af-tl .ev');
    if (!mark) return;
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
    const mark = event.target.closest('.af-tl .ev');
    if (mark) { mark.focus({preventScroll: true}); return; }
    if (!event.target.closest('.af-copy')) return;
    const field = room.querySelector('.af-schedule input');
    const select = () => { field.focus(); field.select(); document.execCommand('copy'); };
    if (navigator.clipboard && window.isSecureContext) navigator.clipboard.writeText(field.value).catch(select); else select();
  });
  // Without its kernel no button does anything, so none takes a key or a click; the style says why.
  const parted = () => {
    const gone = room.classList.contains('jupyter-widgets-disconnected');
    q('.af-top, .af-workers, .af-controls, .af-plan').forEach(e => e.toggleAttribute('inert', gone));
  };
  parted();
  new MutationObserver(parted).observe(room, {attributeFilter: ['class']});
  reach();
  new MutationObserver(reach).observe(room, {childList: true, subtree: true});
}
