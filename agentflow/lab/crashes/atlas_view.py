"""A crash atlas to click on: the picture, a list of its cells, and the timeline and schedule of the chosen one.

The list is a plain `Dropdown`, so everything works by keyboard; a click or the focus on a cell chooses it in the list
(`atlas.js`). A notebook can do the same with `view.choose("after tool", "all guards")`, and can watch an atlas while it is
played: `view = AtlasView(Atlas())`, then `atlas(engine, watch=view.show)`.
"""

from __future__ import annotations

import html
from importlib.resources import files
from typing import Any

import ipywidgets as widgets

from ..notebook.live_view import HIDES_SAVED, LIVE, show
from ..pictures.saved import saved
from ..pictures.timeline import timeline
from .atlas_picture import draw_atlas
from .atlas_result import AtlasCell, AtlasResult

_SCRIPT = files(__package__).joinpath("atlas.js").read_text(encoding="utf-8")
_PIXEL = "data:image/gif;base64,R0lGODlhAQABAAAAACH5BAEKAAEALAAAAAABAAEAAAICTAEAOw=="
_STYLE = """<style>
.af-atlas{background:var(--jp-layout-color1,#fff);color:var(--jp-ui-font-color1,#1f2328);max-width:1000px}
.af-atlas .widget-html-content,.af-atlas p{font-size:13px;line-height:1.45}
.af-atlas .af-map .cell{cursor:pointer;outline:none}
.af-atlas .af-map .cell .hit{fill:transparent}
.af-atlas .af-map .cell.chosen .hit{stroke:currentColor;stroke-width:2}
.af-atlas .af-map .cell:focus-visible .hit{stroke:currentColor;stroke-width:3}
.af-atlas code{font-family:var(--jp-code-font-family,monospace);font-size:12px}
.af-atlas .af-choice select{color:inherit;background-color:transparent;appearance:auto}
</style>"""


class AtlasView:
    """An atlas in a notebook: a widget, or without a kernel the picture and the chosen cell's timeline."""

    def __init__(self, atlas: AtlasResult, chosen: AtlasCell | None = None) -> None:
        self.atlas = atlas
        cells = list(atlas)
        self.cell = chosen or next((cell for cell in cells if cell.boundary == "after tool"), cells[0])
        self._map, self._detail = widgets.HTML(), widgets.HTML()
        self._list = widgets.Dropdown(
            options=[(f"{cell.boundary}, {cell.guards}", (cell.boundary, cell.guards)) for cell in cells],
            value=(self.cell.boundary, self.cell.guards),
            description="Click on a cell, or choose it here:",
            style={"description_width": "auto"},
            layout=widgets.Layout(width="560px"),
        )
        carrier = widgets.HTML(f"{HIDES_SAVED}{_STYLE}<img alt='' src='{_PIXEL}' onload='{html.escape(_SCRIPT)}'>")
        self.view = widgets.VBox([carrier, self._list, self._map, self._detail])
        for widget, name in ((self.view, "atlas"), (self._map, "map"), (self._list, "choice"), (self._detail, "cell")):
            widget.add_class(f"af-{name}")
        self.view.add_class(LIVE)
        self._list.observe(lambda change: self.choose(*change.new), "value")
        self.show(atlas)

    def show(self, atlas: AtlasResult) -> None:
        """Shows this atlas instead, for example with one cell more; it has the same rows and columns."""
        self.atlas = atlas
        self._map.value = draw_atlas(atlas, live=True).html
        self.choose(*self._list.value)

    def choose(self, boundary: str, guards: str) -> AtlasCell:
        """Shows this cell and returns it. Raises KeyError if there is none."""
        self.cell = self.atlas.cell(boundary, guards)
        self._list.value = (boundary, guards)
        self._detail.value = detail(self.cell)
        return self.cell

    def close(self) -> None:
        """Closes every widget of the view."""
        for widget in (*self.view.children, self.view):
            widget.close()

    def _ipython_display_(self) -> None:
        show(self._repr_mimebundle_())

    def _repr_mimebundle_(self, **options: Any) -> dict[str, Any]:
        bundle = self.view._repr_mimebundle_(**options) or {}
        return {**bundle, "text/html": self.to_html(), "text/plain": repr(self)}

    def to_html(self) -> str:
        """The picture and the chosen cell, for a page without a kernel."""
        return saved(f"{draw_atlas(self.atlas).svg}{detail(self.cell)}")

    def __repr__(self) -> str:
        lines = [f"{number}. {line}" for number, line in enumerate(self.cell.lines(), 1)]
        return "\n".join([self.atlas.grid(), "", f"{self.cell.sentence}.", self.cell.line, *lines])


def detail(cell: AtlasCell) -> str:
    """One cell as HTML: its sentence and figures, its schedule to copy, and its timeline."""
    said = f"<p><b>{html.escape(cell.sentence)}</b>{'. ' + html.escape(cell.figures) + '.' if cell.state == 'done' else ''}</p>"
    if cell.state != "done":
        return said
    if not cell.line:
        lines = "".join(f"<li>{html.escape(line)}</li>" for line in cell.lines())
        return f"{said}<p>NaiveRunner writes no history. This is what the queue saw:</p><ol>{lines}</ol>"
    return f"{said}<p>schedule <code>{html.escape(cell.line)}</code></p>{timeline(cell.history).html}"
