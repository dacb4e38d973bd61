"""The control room as a widget: buttons and fields, clicks that never block the kernel, and the scene on screen.

Each button calls a method of `Controller` that a cell can call too, such as `room.step("A")` or `room.run("A*5 A! expire B*")`;
the room shows what came of it. A double click makes one move, and the room says what it ignored and what went wrong.
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
ROOM_BUTTONS: Mapping[str, str] = {
    "Step": "_go", "Crash": "crash", "Pause": "_sleep", "Recover": "recover", "Reset": "reset", "Expire lease": "expire",
    "End back-off": "due", "Deliver event": "deliver", "Lose reply": "_lose", "Lose answer": "_lose_answer", "Race": "race",
    "Back": "back", "Forward": "forward", "Fork here": "fork", "Hide next": "hide", "Copy": "copy", "Run": "run",
}  # fmt: skip
"""Each button's method; the buttons of a lane call theirs with the lane's name."""
LANE_BUTTONS = ("Step", "Crash", "Pause", "Recover")
LECTURE = '<button class="jupyter-button" title="The room alone on the whole screen (key L)">Lecture</button>'
_PIXEL = "data:image/gif;base64,R0lGODlhAQABAAAAACH5BAEKAAEALAAAAAABAAEAAAICTAEAOw=="


class _Own(threading.local):
    """What belongs to one thread: whether it draws, so that what it puts into fields is not a learner's choice."""

    drawing = False


class ControlRoom:
    """A controller's scenes on screen, with buttons; made by control_room(). Options as for Controller.

    `panel` holds the parts by name: each button under its own name (`Step A`, `Reset`), HTML under `head`, `lane A`, `say`,
    `picture`, `panes`, `of` and `more` (what is folded), the fields `entry`, `schedule`, `preset`, `workflow`, `lanes` and
    `x axis`, and each lane's `box A`. `view` is the widget with all of them.
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
        self._retrying = self._scripted = self._entered = False
        self._layout = widgets.Layout()  # one for all, and one style for each kind: a third of the widgets
        self._styles: dict[Any, Any] = {}
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
            for part in (*_all(self.view), self._layout, *self._styles.values()):
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
        if error is not None and (new := self.controller.trouble is None):  # the controller puts its own into words
            self.controller.trouble = trouble_of(error)
        if self._scene.busy or (error is not None and new):
            self._refresh()
        self._keep()
        _classed(self.view, "af-tick", "af-tick" not in self.view._dom_classes)  # the page sees that it was heard

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
        entry = self._made(widgets.BoundedIntText, "entry", value=0, min=0, max=0, description="entry")
        entry.observe(lambda change: self._typed(change.new), "value")
        look = [self._button("Back"), entry, self._html("of"), self._button("Forward"), self._button("Fork here")]
        lecture = self._html("lecture")
        lecture.value = LECTURE
        top = self._box("top af-row", self._html("head"), *look, lecture, self._button("Reset"))
        database = [self._button(name) for name in ("Expire lease", "End back-off", "Lose answer")]
        world = [self._button(name) for name in ("Lose reply", "Deliver event")]
        grounds = [self._box("database af-ground", *database), self._box("world af-ground", *world)]
        side = self._box("side", self._button("Race"), *map(self._lane, LANES), *grounds)
        stage = self._box("stage", side, self._html("picture", "tl"))
        look_up = self._html("folds")
        look_up.value = view.folds()
        carrier = self._html("style")
        carrier.value = style
        parts = [carrier, top, stage, self._html("say"), self._html("panes"), self._plan(), look_up, self._settings()]
        return self._box(f"room {LIVE}", *parts, self._html("more"))

    def _lane(self, name: str) -> widgets.Box:
        buttons = [self._button(verb, name) for verb in LANE_BUTTONS]
        self.panel[f"box {name}"] = self._box(f"lane af-lane-{name}", self._html(f"lane {name}", "line"), *buttons)
        return self.panel[f"box {name}"]

    def _plan(self) -> widgets.Box:
        line = self._made(widgets.Text, "schedule", continuous_update=False)
        line.description, line.placeholder = "schedule", "A*5 A! expire B*"
        # Where the page may run no script, Enter sends this, and then the text if it is a new one.
        line.on_msg(lambda _, told, __: setattr(self, "_entered", told.get("event") == "submit"))
        line.observe(self._changed_line, "value")
        presets = (NO_PRESET, *PRESETS)
        preset = self._dropdown("preset", presets, lambda name: name in PRESETS and self.preset(name))
        return self._box("plan af-row", line, self._button("Run"), self._button("Copy"), preset)

    def _settings(self) -> widgets.Box:
        which = self._dropdown("workflow", (FOLLOW,), lambda name: self.look_at(None if name == FOLLOW else name))
        kind, axis = self._dropdown("lanes", ("thread", "process"), self.on), self._dropdown("x axis", AXES, self.scale)
        # Not seen: the page writes here that its script runs, and the line when Run is pressed, since a button's message may
        # overtake a field's.
        wire = self._made(widgets.Text, "wire", continuous_update=False)
        wire.observe(lambda change: self._heard(*change.new.split(" ", 2)[1:]), "value")
        return self._box("settings af-row", self._button("Hide next"), which, kind, axis, wire)

    def _made(self, kind: Any, name: str, css: str = "", **options: Any) -> Any:
        """A widget that shares its layout, and its style with others of its kind; the style sheet does the rest."""
        widget = kind(layout=self._layout, **options, **({"style": self._styles[kind]} if kind in self._styles else {}))
        self._styles.setdefault(kind, widget.style)
        self.panel[name] = widget.add_class(f"af-{css or name.replace(' ', '-')}")
        return widget

    def _box(self, css: str, *children: Any) -> widgets.Box:
        box = widgets.Box(children, layout=self._layout)
        for name in f"af-{css}".split():
            box.add_class(name)
        return box

    def _html(self, name: str, css: str = "") -> Any:
        return self._made(widgets.HTML, name, css)

    def _button(self, verb: str, lane: str = "") -> widgets.Button:
        name, method = f"{verb} {lane}".strip(), ROOM_BUTTONS[verb]
        # The page's script puts it into the order of the Tab key: without one, a key on it would be the notebook's.
        button = self._made(widgets.Button, name, verb.lower().replace(" ", "-"), description=verb, tabbable=False)

        def clicked(_: Any) -> None:  # also on one that is shown as off: the room then says why not
            if verb == "Run":
                self._run(self.panel["schedule"].value)
            else:
                self._click(name, partial(getattr(self, method), *[lane] * bool(lane)), lane)
            if not self._scripted:
                self.panel["schedule"].focus()  # a field keeps its keys from the notebook

        button.on_click(clicked)
        return button

    def _dropdown(self, label: str, options: Any, act: Callable[[Any], Any]) -> Any:
        dropdown = self._made(widgets.Dropdown, label, description=label, options=options)

        def chosen(change: Any) -> None:
            if not self._own.drawing:
                self._click(f"choose {change.new}", lambda: act(change.new))

        dropdown.observe(chosen, "value")
        return dropdown

    # -- what buttons and fields do beside calling one method ---------------------------------------------------------

    def _go(self, lane: str) -> Any:
        return self.step(lane) if self.controller.stepper.is_alive(lane) else self.start(lane)

    def _sleep(self, lane: str) -> Any:
        return self.resume(lane) if self.controller.stepper.is_paused(lane) else self.pause(lane)

    def _lose(self) -> Any:
        return self.lose(self._scene.first("before_tool") or "A")

    def _lose_answer(self) -> Any:
        return self.move(f"{self._scene.first('before_commit') or 'A'}?")

    def _typed(self, entry: int) -> None:
        if not self._own.drawing and entry != self._scene.at:
            self._click("Forward to", lambda: self.show(entry))

    def _changed_line(self, change: Any) -> None:
        if self._entered and not self._own.drawing:
            self._run(change.new)

    def _heard(self, what: str, line: str = "") -> None:
        """The page's script runs; or it sends the line that is to be played."""
        self._scripted = True
        if what == "run":
            self._run(line)

    def _run(self, line: str) -> None:
        self._entered = False
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
        for name, shown in view.parts(scene).items():  # what is folded last: what it names is on screen
            self.panel[name].value = shown

    def _draw_buttons(self, scene: Scene) -> None:
        lanes = {lane.name: lane for lane in scene.lanes}
        for name in LANES:
            box = self.panel[f"box {name}"]
            _classed(box, "af-gone", name not in lanes)
            _classed(box, "af-live", name in lanes and lanes[name].alive)
        for name, button in scene.buttons.items():
            drawn = self.panel[name]
            drawn.description, drawn.tooltip = button.label, button.tooltip
            _classed(drawn, "af-off", not button.enabled)  # one that is `disabled` would lose the focus

    def _draw_fields(self, scene: Scene) -> None:
        entry, which = self.panel["entry"], self.panel["workflow"]
        entry.max, entry.value = scene.length, scene.at
        if scene.trouble is None:  # what was typed stays, to be mended
            self.panel["schedule"].value = "" if scene.hidden else scene.line
        played = (name for name, one in PRESETS.items() if one.line == scene.line)
        self.panel["preset"].value = NO_PRESET if scene.hidden else next(played, NO_PRESET)
        self.panel["lanes"].value, self.panel["x axis"].value = scene.kind, scene.axis
        if which.options != (options := (FOLLOW, *scene.workflows)):
            which.options = options
        which.value = scene.chosen if scene.chosen in options else FOLLOW
        _classed(which, "af-gone", len(options) < 3)

    def to_html(self) -> str:
        """The room without its buttons, as a notebook keeps it."""
        return saved(still.kept(self._scene))

    def __repr__(self) -> str:
        return view.as_text(self._scene)

    def _ipython_display_(self) -> None:
        """Displays the widget, and what a notebook keeps of the room."""
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


def _classed(widget: Any, name: str, there: bool) -> None:
    """The widget has the class, or has it not."""
    if (name in widget._dom_classes) != there:
        (widget.add_class if there else widget.remove_class)(name)


def _all(widget: Any) -> Iterator[Any]:
    """The widget and all those inside it, outermost first."""
    yield widget
    for child in getattr(widget, "children", ()):
        yield from _all(child)


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
