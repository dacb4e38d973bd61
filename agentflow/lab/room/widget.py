"""The control room as a widget: buttons and fields, clicks that never block the kernel, and the scene on screen.

Each button calls a method that a cell can call too: `room.step("A")`, `room.crash("A")`, `room.recover("A")`,
`room.run("A*5 A! expire B*")`. They are the methods of `Controller`; the room shows what came of them. A double click makes
one move (Step takes every click that comes when it is ready), and the room says what it ignored and what went wrong.
"""

from __future__ import annotations

import html
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial, wraps
from typing import Any

import ipywidgets as widgets
from IPython.display import DisplayHandle

from ...engine import Engine
from ..laboratory import laboratory
from ..notebook.live_view import HIDES_SAVED, LIVE, keep, show
from ..pictures.saved import saved
from ..schedule.grammar import LANES, Schedule, Setting
from ..schedule.presets import PRESETS
from . import still, view
from .clicks import QUIET_SECONDS, Clicks
from .controller import Controller, Moves
from .messages import trouble_of
from .scene import AXES, Scene

RETRY_SECONDS = 2.0
FOLLOW = "last worked on"
NO_PRESET = "choose one ..."
ROOM_BUTTONS: Mapping[str, tuple[str, int]] = {
    "Step": ("_go", 190), "Crash": ("crash", 64), "Pause": ("_sleep", 70), "Recover": ("recover", 80),
    "Reset": ("reset", 72), "Expire lease": ("expire", 100), "End back-off": ("due", 100),
    "Deliver event": ("deliver", 150), "Lose reply": ("_lose", 124), "Race": ("race", 60), "Back": ("back", 58),
    "Forward": ("forward", 74), "Fork here": ("fork", 82), "Copy": ("copy", 56), "Run": ("run", 48),
}  # fmt: skip
"""Each button's method and its width in pixels; the buttons of a lane call theirs with the lane's name."""
LANE_BUTTONS = ("Step", "Crash", "Pause", "Recover")
_PIXEL = "data:image/gif;base64,R0lGODlhAQABAAAAACH5BAEKAAEALAAAAAABAAEAAAICTAEAOw=="


class _Own(threading.local):
    """What belongs to one thread: whether it draws, so that what it puts into fields is not a learner's choice."""

    drawing = False


class ControlRoom:
    """A controller's scenes on screen, with buttons; made by control_room(). Options as for Controller.

    `panel` holds the parts by name: each button under its own name (`Step A`, `Reset`), HTML under `head`, `lane A`, `say`,
    `picture`, `panes`, `of` and `history`, the fields `entry`, `schedule`, `preset`, `workflow`, `lanes` and `x axis`, and
    each lane's `box A`. `view` is the widget with all of them.
    """

    def __init__(
        self, engine: Engine, setting: Setting | Schedule | str | None = None, *,
        quiet_seconds: float = QUIET_SECONDS, **options: Any,
    ) -> None:  # fmt: skip
        self.controller = Controller(engine, setting, **options)
        self.controller.changed = self._changed
        self.panel: dict[str, Any] = {}
        self._drawing, self._ended, self._own = threading.RLock(), threading.Event(), _Own()
        self._clicks = Clicks(quiet_seconds, self._show_busy, self._done)
        self._retrying = False
        self._handles: list[DisplayHandle] = []  # of the outputs that show this room
        self._scene = self.controller.scene()
        self.view = self._build()
        with suppress(Exception):  # the room shows what went wrong; Reset tries again
            self.open()

    def __getattr__(self, name: str) -> Any:
        """The controller's method of this name; the room shows what came of it."""
        if name.startswith("_") or not hasattr(Controller, name):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return self._shown(method) if callable(method := getattr(self.controller, name)) else method

    def _shown(self, method: Callable[..., Any]) -> Callable[..., Any]:
        """The method, whose moves a cell shows with a still of the room."""

        @wraps(method)
        def called(*args: Any, **options: Any) -> Any:
            made = method(*args, **options)
            return Shown(made, self._scene) if isinstance(made, Moves) else made

        return called

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *vars(Controller)]

    def scene(self) -> Scene:
        """What is on screen, as data."""
        return self._scene

    def press(self, name: str) -> None:
        """Clicks the button of this name, such as `Step A`; returns before its move is made, see `busy`.

        A disabled button can be pressed too, as by a page that lags behind.
        """
        self.panel[name].click()

    def close(self) -> None:
        """Ends every thread, process, connection and widget of the room. Raises LaneError if a step does not return."""
        self._ended.set()
        self._clicks.end()
        try:
            self.controller.close()
        finally:
            self._clicks.join(self.controller.stepper.patience)
            for widget in list(_made(self.view)):
                for part in filter(None, (widget, widget.layout, getattr(widget, "style", None))):
                    part.close()

    # -- clicks ------------------------------------------------------------------------------------------------------

    def _click(self, key: str, move: Callable[[], Any], lane: str = "") -> None:
        """Makes the move as soon as those before it have ended; counts a click that comes too fast."""
        if not self.controller.closed and not self._clicks.click(key, move, lane):
            with self._drawn():
                self._draw(replace(self._scene, ignored=self._clicks.ignored))

    @property
    def busy(self) -> bool:
        """Whether a click's move is under way or waits."""
        return self._clicks.busy

    def _done(self, error: Exception | None) -> None:
        """Shows the end of a click's move, if its method has not done so."""
        new = error is not None and self.controller.trouble is None  # the controller puts its own errors into words
        if error is not None and new:
            self.controller.trouble = trouble_of(error)
        if self._scene.busy or new:
            self._refresh()
        self._keep()

    def _show_busy(self, lane: str) -> None:
        """Shows that a move takes its time: in the lane's line, and its buttons rest."""
        with self._drawn():
            if lane and self.busy:
                self._draw(replace(self._scene, busy=lane))

    def _retry(self) -> None:
        """Asks PostgreSQL until it answers again, and shows that; Reset and close() end the asking."""
        controller = self.controller

        def ask() -> None:
            while controller.away and not self._ended.wait(RETRY_SECONDS):
                if controller.away and not self.busy:
                    controller.answers_again()
            self._retrying = False
            self._refresh()

        if not self._retrying and not self._ended.is_set():
            self._retrying = True
            threading.Thread(target=ask, name="room-retry", daemon=True).start()

    # -- building ----------------------------------------------------------------------------------------------------

    def _build(self) -> widgets.VBox:
        style = f"{HIDES_SAVED}<style>{view.CSS}</style><img alt='' src='{_PIXEL}' onload='{html.escape(view.SCRIPT)}'>"
        workers = widgets.Box([self._lane(name) for name in LANES]).add_class("af-workers")
        top = _row([self._html("head"), self._button("Reset")], "af-top")
        parts = [
            _html("af-style", style), top, workers, self._controls(), self._schedule(), self._html("say"),
            self._html("picture", "af-tl"), self._html("panes"), self._html("history", "af-twin"),
        ]  # fmt: skip
        return widgets.VBox(parts).add_class("af-room").add_class(LIVE)

    def _lane(self, name: str) -> widgets.VBox:
        buttons = [self._button(verb, name) for verb in LANE_BUTTONS]
        box = widgets.VBox([self._html(f"lane {name}", "af-line"), _row(buttons, "af-buttons")])
        self.panel[f"box {name}"] = box.add_class("af-lane").add_class(f"af-lane-{name}")
        return box

    def _controls(self) -> widgets.HBox:
        entry = widgets.BoundedIntText(value=1, min=1, max=1, description="entry", layout=widgets.Layout(width="104px"))
        entry.observe(lambda change: self._typed(change.new), "value")
        self.panel["entry"] = entry.add_class("af-entry")
        left = [self._button(name) for name in ("Expire lease", "End back-off", "Deliver event", "Lose reply", "Race")]
        back = [self._button("Back"), entry, self._html("of"), self._button("Forward"), self._button("Fork here")]
        axis = self._dropdown("x axis", AXES, self.scale, 158)
        return _row([*left, _html("af-sp"), *back, _html("af-sp"), axis], "af-controls")

    def _schedule(self) -> widgets.HBox:
        line = widgets.Text(description="schedule", placeholder="A*5 A! expire B*", continuous_update=False)
        self.panel["schedule"] = line.add_class("af-schedule")
        presets = (NO_PRESET, *PRESETS)
        preset = self._dropdown("preset", presets, lambda name: name in PRESETS and self.preset(name), 230)
        kind = self._dropdown("lanes", ("thread", "process"), self.on, 124)
        which = self._dropdown("workflow", (FOLLOW,), lambda name: self.look_at(None if name == FOLLOW else name), 170)
        # Not seen: the page writes the line here when Run is pressed, since a button's message may overtake a field's.
        wire = widgets.Text(continuous_update=False, layout=widgets.Layout(display="none"))
        wire.add_class("af-wire").observe(lambda change: self._run(change.new.partition(" ")[2]), "value")
        return _row([line, self._button("Copy"), self._button("Run"), preset, which, kind, wire], "af-plan")

    def _html(self, name: str, css: str = "") -> widgets.HTML:
        self.panel[name] = _html(css or f"af-{name}")
        return self.panel[name]

    def _button(self, verb: str, lane: str = "") -> widgets.Button:
        name, (method, width) = f"{verb} {lane}".strip(), ROOM_BUTTONS[verb]
        button = widgets.Button(description=verb, layout=widgets.Layout(width=f"{width}px"))

        def clicked(_: Any) -> None:
            if verb == "Run":
                self._run(self.panel["schedule"].value)
            else:
                self._click(name, partial(getattr(self, method), *[lane] * bool(lane)), lane)

        button.on_click(clicked)
        self.panel[name] = button.add_class(f"af-{verb.lower().replace(' ', '-')}")
        return button

    def _dropdown(self, label: str, options: Any, act: Callable[[Any], Any], width: int) -> widgets.Dropdown:
        dropdown = widgets.Dropdown(description=label, options=options, layout=widgets.Layout(width=f"{width}px"))

        def chosen(change: Any) -> None:
            if not self._own.drawing:
                self._click(f"choose {change.new}", lambda: act(change.new))

        dropdown.observe(chosen, "value")
        self.panel[label] = dropdown.add_class(f"af-{label.replace(' ', '-')}")
        return dropdown

    # -- what buttons and fields do beside calling one method ---------------------------------------------------------

    def _go(self, lane: str) -> Any:
        return self.step(lane) if self.controller.stepper.is_alive(lane) else self.start(lane)

    def _sleep(self, lane: str) -> Any:
        return self.resume(lane) if self.controller.stepper.is_paused(lane) else self.pause(lane)

    def _lose(self) -> Any:
        return self.lose(next((lane.name for lane in self._scene.lanes if lane.before_tool), "A"))

    def _typed(self, entry: int) -> None:
        if not self._own.drawing and entry != self._scene.at:
            self._click("Forward to", lambda: self.show(entry))

    def _run(self, line: str) -> None:
        self._click(f"Run {line}", lambda: self.run(line))  # running another line is no double click

    # -- drawing -----------------------------------------------------------------------------------------------------

    @contextmanager
    def _drawn(self) -> Iterator[None]:
        """Lets one thread draw at a time; what it puts into fields does not count as a learner's choice."""
        with self._drawing:
            self._own.drawing = True
            try:
                yield
            finally:
                self._own.drawing = False

    def _changed(self) -> None:
        """Shows what came of a method of the controller."""
        if not self.busy:  # a cell's move: a click has done this already
            self._clicks.ignored = 0
        self._clicks.settled()
        self._refresh()

    def _refresh(self) -> None:
        """Shows the controller's scene."""
        with self._drawn():
            self._draw(replace(self.controller.scene(), ignored=self._clicks.ignored))
        if self.controller.away:
            self._retry()

    def _draw(self, scene: Scene) -> None:
        """Puts the scene on screen, inside _drawn()."""
        if self.controller.closed:
            return
        self._scene = scene
        self._draw_buttons(scene)
        self._draw_fields(scene)
        for name, shown in view.parts(scene).items():  # the history last: what it names is on screen
            self.panel[name].value = shown

    def _draw_buttons(self, scene: Scene) -> None:
        lanes = {lane.name: lane for lane in scene.lanes}
        for name in LANES:
            box = self.panel[f"box {name}"]
            box.layout.display = "" if name in lanes else "none"
            (box.add_class if name in lanes and lanes[name].alive else box.remove_class)("af-live")
        for name, button in scene.buttons.items():
            drawn = self.panel[name]
            drawn.description, drawn.tooltip, drawn.disabled = button.label, button.tooltip, not button.enabled
            drawn.layout.display = "" if button.shown else "none"

    def _draw_fields(self, scene: Scene) -> None:
        entry, which = self.panel["entry"], self.panel["workflow"]
        entry.max, entry.value = max(scene.length, 1), max(scene.at, 1)
        if scene.trouble is None or scene.trouble.kind != "BadSchedule":  # a bad line stays, to be mended
            self.panel["schedule"].value = scene.line
        played = (name for name, one in PRESETS.items() if one.line == scene.line)
        self.panel["preset"].value = next(played, NO_PRESET)
        self.panel["lanes"].value, self.panel["x axis"].value = scene.kind, scene.axis
        options = (FOLLOW, *scene.workflows)
        if which.options != options:
            which.options = options
        which.value = scene.chosen if scene.chosen in options else FOLLOW
        which.layout.display = "" if len(options) > 2 else "none"

    def to_html(self) -> str:
        """The room without its buttons, as a notebook keeps it."""
        return saved(still.kept(self._scene))

    def __repr__(self) -> str:
        return view.as_text(self._scene)

    def _ipython_display_(self) -> None:
        """Displays the widget, and what a notebook keeps of the room, which follows every click."""
        self._handles.append(show(self._repr_mimebundle_()))

    def _repr_mimebundle_(self, **options: Any) -> Mapping[str, Any]:
        """The live widget, and the same as a notebook keeps it and as text."""
        live = {} if self.controller.closed else self.view._repr_mimebundle_(**options) or {}
        return {**live, "text/html": self.to_html(), "text/plain": repr(self)}

    def _keep(self) -> None:
        """Lets the notebook keep what is on screen; what a cell's moves came to stands at that cell."""
        for handle in self._handles:
            keep(handle, {"text/html": self.to_html(), "text/plain": repr(self)})


class Shown(Moves):
    """Moves that a cell made, with a still of what they came to."""

    def __init__(self, moves: Moves, scene: Scene) -> None:
        super().__init__(moves)
        self._html = saved(still.still(scene))

    def _repr_html_(self) -> str:
        return self._html


def _html(name: str, value: str = "") -> widgets.HTML:
    return widgets.HTML(value).add_class(name)


def _row(children: list[Any], name: str) -> widgets.HBox:
    return widgets.HBox(children).add_class("af-row").add_class(name)


def _made(widget: Any) -> Iterator[Any]:
    """The widget and all those inside it, outermost first."""
    yield widget
    for child in getattr(widget, "children", ()):
        yield from _made(child)


def control_room(
    engine: Engine, setting: Setting | Schedule | str | None = None, *, name: str | None = None, **options: Any
) -> ControlRoom:
    """Opens the control room of this name (by default the engine's schema) on an empty laboratory.

    One that was open before is closed. `setting` is a Setting, a preset's name or a schedule line, which is played at
    once. Options: `inputs` (one for each workflow), `lanes` ("thread" or "process"), `patience` in seconds, `server`.
    """
    chosen = name or engine.database.schema
    laboratory.let_go("room", chosen)
    room = ControlRoom(engine, setting, **options)
    laboratory.keep("room", chosen, room)
    return room
