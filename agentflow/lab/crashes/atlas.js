// What a kernel cannot do in a page, once for each atlas that is shown. `this` is the image that carries it.
const atlas = this.closest('.af-atlas');
if (atlas && !atlas.dataset.ready) {
  atlas.dataset.ready = 'yes';
  const cells = () => [...atlas.querySelectorAll('.af-map .cell')];
  const list = () => atlas.querySelector('.af-choice select');
  const named = (cell) => `${cell.dataset.boundary}, ${cell.dataset.guards}`;
  const words = (option) => option.textContent.replace(/\u00a0/g, ' ');  // ipywidgets makes spaces hard
  const listed = () => cells().find(c => named(c) === words(list().options[list().selectedIndex]));
  const reach = () => {
    // With the focus here JupyterLab takes `x` as delete cell; this attribute is the cure.
    atlas.querySelectorAll('select,summary,[tabindex]').forEach(e => {
      if (e.dataset.lmSuppressShortcuts !== 'true') e.setAttribute('data-lm-suppress-shortcuts', 'true'); });
    atlas.querySelectorAll('.af-cell .widget-html-content').forEach(e => { e.setAttribute('role', 'status'); });
    if (list() && !atlas.querySelector('.af-map .chosen')) mark(listed());  // the picture was drawn anew
  };
  const mark = (chosen) => cells().forEach(c => {
    c.setAttribute('tabindex', c === chosen ? '0' : '-1');
    c.classList.toggle('chosen', c === chosen); });
  let later = 0;
  // Choosing in the picture is choosing in the list: the kernel hears of one thing only.
  const choose = (cell) => {
    mark(cell);
    clearTimeout(later);
    later = setTimeout(() => {
      const select = list(), at = [...select.options].findIndex(o => words(o) === named(cell));
      if (at >= 0 && select.selectedIndex !== at) { select.selectedIndex = at; select.dispatchEvent(new Event('change', {bubbles: true})); }
    }, 80);
  };
  atlas.addEventListener('focusin', (event) => {
    const cell = event.target.closest && event.target.closest('.af-map .cell');
    if (cell) choose(cell);
  });
  atlas.addEventListener('click', (event) => {
    const cell = event.target.closest && event.target.closest('.af-map .cell');
    if (cell) cell.focus({preventScroll: true});
  });
  atlas.addEventListener('change', () => mark(listed()));
  atlas.addEventListener('keydown', (event) => {
    const cell = event.target.closest && event.target.closest('.af-map .cell');
    if (!cell) return;
    const rows = new Map();
    cells().forEach(c => rows.set(c.dataset.boundary, [...(rows.get(c.dataset.boundary) || []), c]));
    const grid = [...rows.values()], y = grid.findIndex(r => r.includes(cell)), x = grid[y].indexOf(cell);
    const to = {
      ArrowRight: [y, x + 1], ArrowLeft: [y, x - 1], ArrowDown: [y + 1, x], ArrowUp: [y - 1, x],
      Home: [y, 0], End: [y, grid[y].length - 1], PageUp: [0, x], PageDown: [grid.length - 1, x],
    }[event.key];
    if (!to) return;
    event.preventDefault();
    event.stopPropagation();
    const next = (grid[to[0]] || [])[to[1]];
    if (next) { next.focus(); next.scrollIntoView({block: 'nearest', inline: 'nearest'}); }
  });
  reach();
  new MutationObserver(reach).observe(atlas, {childList: true, subtree: true});
}
