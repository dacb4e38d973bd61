// What a kernel cannot do in a page, once for each map that is shown. `this` is the image that carries it.
const map = this.closest('.af-states');
if (map && !map.dataset.ready) {
  map.dataset.ready = 'yes';
  const field = () => map.querySelector('input'), dots = () => map.querySelector('.af-dots');
  let at = [], levels = [], now = 0;
  const read = () => {
    map.querySelectorAll('input,button,summary,[tabindex]').forEach(e => {
      if (e.dataset.lmSuppressShortcuts !== 'true') e.setAttribute('data-lm-suppress-shortcuts', 'true'); });
    map.querySelectorAll('.af-said .widget-html-content').forEach(e => e.setAttribute('role', 'status'));
    if (!dots() || at.length) return;
    at = dots().dataset.at.split(';').map(one => one.split(',').map(Number));
    levels = dots().dataset.levels.split(',').map(Number);
  };
  const nearest = (x, y, fits) => {
    let best = -1, least = Infinity;
    at.forEach(([u, v], n) => {
      const far = Math.hypot(u - x, v - y);
      if (far < least && fits(n)) { best = n; least = far; } });
    return [best, least];
  };
  const ring = (number) => {
    if (!at[number]) return;
    now = number;
    const circle = dots().querySelector('circle.at');
    circle.setAttribute('cx', at[now][0]);
    circle.setAttribute('cy', at[now][1]);
  };
  // The kernel hears of the field; of the same number once more, by the button.
  const choose = (number) => {
    ring(number);
    if (Number(field().value) === number) return map.querySelector('button').click();
    field().value = number;
    field().dispatchEvent(new Event('change', {bubbles: true}));
  };
  map.addEventListener('click', (event) => {
    const svg = event.target.closest && event.target.closest('.af-dots svg');
    if (!svg) return;
    const point = new DOMPoint(event.clientX, event.clientY).matrixTransform(svg.getScreenCTM().inverse());
    const [number, far] = nearest(point.x, point.y, () => true);
    dots().focus({preventScroll: true});
    if (far < 14) choose(number);
  });
  map.addEventListener('change', () => ring(Number(field().value)));
  map.addEventListener('keydown', (event) => {
    if (event.target !== dots()) return;
    const [x, y] = at[now], level = levels[now], inLevel = (n) => n !== now && levels[n] === level;
    const next = {
      ArrowRight: () => nearest(x, y, n => levels[n] === level + 1), ArrowLeft: () => nearest(x, y, n => levels[n] === level - 1),
      ArrowDown: () => nearest(x, y, n => inLevel(n) && (at[n][1] > y || at[n][1] === y && at[n][0] > x)),
      ArrowUp: () => nearest(x, y, n => inLevel(n) && (at[n][1] < y || at[n][1] === y && at[n][0] < x)),
    }[event.key];
    if (!next && event.key !== 'Enter' && event.key !== ' ') return;
    event.preventDefault();
    event.stopPropagation();
    if (next) ring(next()[0]); else choose(now);
  });
  read();
  new MutationObserver(read).observe(map, {childList: true, subtree: true});
}
