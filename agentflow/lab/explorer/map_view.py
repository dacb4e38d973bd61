"""A map of every history to click on: a click on a state or a harm gives its shortest schedule and plays it in a control room.

The number field does the same without a pointer or a script (`map.js` has the click and the arrow keys). A cell can, too:
`view.choose(17)`. Of levels that are drawn as bars only the picture is shown.
"""

from __future__ import annotations

import html
from importlib.resources import files
from typing import Any

import ipywidgets as widgets

from ..notebook.live_view import HIDES_SAVED, LIVE, show
from ..pictures.svg import Picture, num
from ..schedule.grammar import Schedule, Setting
from .state_map import StateMap

_SCRIPT = files(__package__).joinpath("map.js").read_text(encoding="utf-8")
_PIXEL = "data:image/gif;base64,R0lGODlhAQABAAAAACH5BAEKAAEALAAAAAABAAEAAAICTAEAOw=="
_STYLE = """<style>
.af-states{background:var(--jp-layout-color1,#fff);color:var(--jp-ui-font-color1,#1f2328);max-width:1000px}
.af-states .af-dots{cursor:crosshair;overflow-x:auto}
.af-states .af-dots:focus-visible{outline:2px solid currentColor;outline-offset:-2px}
.af-states code{font-family:var(--jp-code-font-family,monospace);font-size:12px;user-select:all}
.af-states input{color:inherit;background-color:transparent}
</style>"""
_RING = '<circle class="at" r="9" cx="-99" cy="-99" fill="none" stroke="currentColor" stroke-width="2.5"/></svg>'


class MapView:
    """The map in a notebook: a widget, and without a kernel the picture. `room` is a control room that is open."""

    def __init__(self, places: StateMap, picture: Picture, setting: Setting, room: Any = None) -> None:
        self.places, self.picture, self.setting, self.room = places, picture, setting, room
        self.svg, self.text, self.save = picture.svg, picture.text, picture.save
        self.view: widgets.VBox | None = self._build() if places.singly else None

    def _build(self) -> widgets.VBox:
        last = len(self.places.gap) + len(self.places.shown) - 1
        self._field = widgets.BoundedIntText(
            min=0, max=last, description=f"Click on a state, or give its number, 0 to {last}:", continuous_update=False,
            style={"description_width": "auto"}, layout=widgets.Layout(width="400px"),
        )  # fmt: skip
        self._again = widgets.Button(description="Play it in the room" if self.room else "Show its schedule")
        self._said = widgets.HTML().add_class("af-said")
        self._field.observe(lambda change: self.choose(change.new), "value")
        self._again.on_click(lambda _: self.choose(self._field.value))
        at = ";".join(f"{num(round(x, 1))},{num(round(y, 1))}" for x, y in map(self.places.at, range(last + 1)))
        levels = ",".join(map(str, self.places.depth[: last + 1]))
        name = "Map of the states. Arrow keys go from state to state, Enter chooses one."
        dots = (
            f'<div class="af-dots" tabindex="0" role="group" aria-label="{name}" data-at="{at}" data-levels="{levels}">'
        )
        svg = _RING.join(self.svg.rsplit("</svg>", 1))
        picture = widgets.HTML(f"{dots}{svg}</div>")
        carrier = widgets.HTML(f"{HIDES_SAVED}{_STYLE}<img alt='' src='{_PIXEL}' onload='{html.escape(_SCRIPT)}'>")
        view = widgets.VBox([carrier, widgets.HBox([self._field, self._again]), picture, self._said])
        return view.add_class("af-states").add_class(LIVE)

    def choose(self, number: int) -> str:
        """Shows the shortest schedule to this state, plays it in the room, and returns it. Raises IndexError.

        Numbers after the last state's are harms, the nearest first.
        """
        states, harms = len(self.places.gap), len(self.places.harms)
        if not 0 <= number < states + harms:
            raise IndexError(f"There is no state {number}; this map has {states:,} states and {harms:,} harms.")
        line = str(Schedule(self.setting, tuple(self.places.way(number))))
        what = f"state {number}" if number < states else f"harm {number - states + 1} of {harms}"
        played = self._played(line) if self.room else "With `map(room=room)` it is played in that control room."
        if self.view:
            shown = f"<code>{html.escape(line)}</code>" if line else "at once, without a move"
            self._said.value = f"<p>The shortest way to {what}: {shown}<br>{html.escape(played)}</p>"
        return line

    def _played(self, line: str) -> str:
        """Runs the line as the room's own button does, which never blocks the kernel and says there what went wrong."""
        if self.room.controller.closed:
            return "The control room of this map is closed. Run its cell and this one again."
        self.room.panel["schedule"].value = line
        self.room.press("Run")
        return "It is played in the control room."

    def close(self) -> None:
        """Closes every widget of the view."""
        for widget in (*self.view.children[1].children, *self.view.children, self.view) if self.view else ():
            widget.close()

    def _ipython_display_(self) -> None:
        show(self._repr_mimebundle_())

    def _repr_mimebundle_(self, **options: Any) -> dict[str, Any]:
        bundle = self.view._repr_mimebundle_(**options) or {} if self.view else {}
        return {**bundle, **self.picture._repr_mimebundle_()}

    def __repr__(self) -> str:
        return self.text
