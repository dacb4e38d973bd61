"""The control room: two workers, the database and the outside world on screen; the only room that imports ipywidgets.

What lives here: buttons and fields, clicks that never block the kernel, and which widget shows what. What does not: what a
button does (`stage`) and what is on screen (`room_view`). Every button calls a method that a cell can call too:
`room.step("A")`, `room.crash("A")`, `room.recover("A")`, `room.run("A*5 A! expire B*")`. A double click makes one move
(Step takes every click that comes when it is ready), and what was ignored or went wrong is said in the room.
"""

from __future__ import annotations

import html
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

import ipywidgets as widgets
from IPython.display import display

from ...engine import Engine
from ...errors import AgentFlowError
from ..laboratory import laboratory
from ..schedule.grammar import LANES, Schedule, Setting
from ..schedule.presets import PRESETS
from . import view as room_view
from .clicks import QUIET_SECONDS, Clicks
from .controller import AXES, Stage
from .messages import in_words
from .recording import LaneView

RETRY_SECONDS = 2.0
FOLLOW = "last worked on"
CHOOSE = "choose one ..."
_PIXEL = "data:image/gif;base64,R0lGODlhAQABAAAAACH5BAEKAAEALAAAAAABAAEAAAICTAEAOw=="


class ControlRoom(Stage):
    """A stage with its buttons; made by control_room(). Options as for Stage."""

    def __init__(
        self, engine: Engine, setting: Setting | Schedule | str | None = None, *,
        quiet_seconds: float = QUIET_SECONDS, **options: Any,
    ) -> None:  # fmt: skip
        super().__init__(engine, setting, **options)
        self._drawing, self._ended = threading.RLock(), threading.Event()
        self._clicks = Clicks(quiet_seconds, self._show_busy, self._done)
        self._ours = threading.local()
        self._busy_lane, self._retrying = "", False
        self._build()
        with suppress(Exception):  # it is said in the room; Reset tries again
            self._open()

    def close(self) -> None:
        """No thread, process, connection or widget of the room is left. Raises LaneError if a step does not return."""
        self._ended.set()
        self._clicks.end()
        try:
            super().close()
        finally:
            self._clicks.join(self.stepper.patience)
            for widget in self._made():
                for part in (widget, widget.layout, getattr(widget, "style", None)):
                    if part is not None:
                        part.close()

    # -- clicks ------------------------------------------------------------------------------------------------------

    def _click(self, key: str, move: Callable[[], Any], lane: str = "") -> None:
        """The move is made as soon as those before it have ended; a click that comes too fast is counted."""
        if not self.closed and not self._clicks.click(key, move, lane):
            self._draw()

    @property
    def busy(self) -> bool:
        """Whether a click's move is under way or waits."""
        return self._clicks.busy

    def _done(self, error: Exception | None) -> None:
        """The end of a move is shown, if the stage has not done so."""
        wrong = error is not None and self.trouble is None  # the stage puts its own errors into words
        if error is not None and wrong:
            self.trouble = in_words(error)
        if self._busy_lane or wrong:
            self._busy_lane = ""
            self._draw()

    def _show_busy(self, lane: str) -> None:
        """A move that takes its time: the lane's line says so, and its buttons rest."""
        with self._drawn():
            if lane and self.busy and not self.closed:
                self._busy_lane = lane
                self._draw_lane(next(one for one in self.frame.lanes if one.name == lane))

    def _retry(self) -> None:
        """As soon as PostgreSQL answers again, that is shown; Reset and close() end the asking."""

        def ask() -> None:
            while self.away and not self._ended.wait(RETRY_SECONDS):
                with suppress(AgentFlowError):
                    self.stepper.engine.database.check()
                    if self.away and not self.busy:
                        self.away, self.trouble, self.remark = False, None, ""
                        self.said = "PostgreSQL answers again. The next move goes on from the rows below."
            self._retrying = False
            self._draw()

        if not self._retrying and not self._ended.is_set():
            self._retrying = True
            threading.Thread(target=ask, name="room-retry", daemon=True).start()

    # -- building ----------------------------------------------------------------------------------------------------

    def _build(self) -> None:
        self._buttons: dict[str, widgets.Button] = {}
        self._lanes: dict[str, tuple[widgets.VBox, widgets.HTML]] = {}
        self._head, self._say, self._picture = _html("af-head"), _html("af-say"), _html("af-tl")
        self._panes, self._twin = _html("af-panes"), _html("af-twin")
        style = f"<style>{room_view.CSS}</style><img alt='' src='{_PIXEL}' onload='{html.escape(room_view.SCRIPT)}'>"
        reset = self._button("Reset", self.reset, "Drop this history, and begin with the room's first setting", 72)
        self.view = widgets.VBox(
            [
                _html("af-style", style), _row([self._head, reset], "af-top"), self._workers(), self._controls(),
                self._schedule(), self._say, self._picture, self._panes, self._twin,
            ]
        )  # fmt: skip
        self.view.add_class("af-room")

    def _made(self) -> list[Any]:
        """Every widget of the room, outermost first."""
        found, todo = [], [self.view]
        while todo:
            one = todo.pop()
            found.append(one)
            todo += getattr(one, "children", ())
        return found

    def _workers(self) -> widgets.Box:
        box = widgets.Box([self._lane(name) for name in LANES])
        box.add_class("af-workers")
        return box

    def _lane(self, name: str) -> widgets.VBox:
        line = _html("af-line")
        verbs: tuple[tuple[str, Callable[[str], Any], str, int], ...] = (
            ("Step", self._go, "Commit the next transaction", 190),
            ("Crash", self.crash, "Kill the worker where it stands", 64),
            ("Pause", self._sleep, "The worker does nothing for a while", 70),
            ("Recover", self.recover, "Let another worker finish what this one left; the moves are printed", 80),
        )
        buttons = [
            self._button(f"{verb} {name}", partial(act, name), tooltip, width, name)
            for verb, act, tooltip, width in verbs
        ]
        buttons[0].add_class("af-step")
        lane = widgets.VBox([line, _row(buttons, "af-buttons")])
        lane.add_class("af-lane").add_class(f"af-lane-{name}")
        self._lanes[name] = lane, line
        return lane

    def _controls(self) -> widgets.HBox:
        self._of = _html("af-of")
        self._entry = widgets.BoundedIntText(
            value=1, min=1, max=1, description="entry", layout=widgets.Layout(width="104px")
        )
        self._entry.add_class("af-entry")
        self._entry.observe(lambda change: self._typed(change.new), "value")
        self._axis = self._dropdown("x axis", AXES, lambda value: self.scale(value), 158)
        left = [
            self._button("Expire lease", self.expire, "The database forgets the lease now", 100),
            self._button("End back-off", self.due, "The time until the next attempt is over", 100),
            self._button("Deliver event", self.deliver, "Somebody outside says yes", 150),
            self._button("Lose reply", self._lose, "The tool acts and its answer is lost", 124),
            self._button("Race", self.race, "All workers go at the same moment", 60),
        ]
        right = [
            self._button("Back", self.back, "The room as of one entry earlier", 58),
            self._entry, self._of,
            self._button("Forward", self.forward, "The room as of one entry later", 74),
            self._button("Fork here", self.fork, "Play to this entry, then go on differently", 82),
            _html("af-sp"), self._axis,
        ]  # fmt: skip
        return _row([*left, _html("af-sp"), *right], "af-controls")

    def _schedule(self) -> widgets.HBox:
        self._line = widgets.Text(description="schedule", placeholder="A*5 A! expire B*", continuous_update=False)
        self._line.add_class("af-schedule")
        copy = self._button("Copy", self.copy, "Put the line into the clipboard", 56)
        copy.add_class("af-copy")
        self._preset = self._dropdown("preset", (CHOOSE, *PRESETS), self._chosen, 230)
        self._kind = self._dropdown("lanes", ("thread", "process"), lambda value: self.on(value), 124)
        self._which = self._dropdown("workflow", (FOLLOW,), self._looked_at, 170)
        run = self._button("Run", lambda: self.run(self._line.value), "Play this line from its beginning", 48)
        run.add_class("af-run")
        # not seen: the page writes the line here when Run is pressed
        wire = widgets.Text(continuous_update=False, layout=widgets.Layout(display="none"))
        wire.add_class("af-wire")
        wire.observe(lambda change: self._wired(change.new.partition(" ")[2]), "value")
        return _row([self._line, copy, run, self._preset, self._which, self._kind, wire], "af-plan")

    def _button(self, key: str, move: Callable[[], Any], tooltip: str, width: int, lane: str = "") -> widgets.Button:
        text = key.removesuffix(f" {lane}") if lane else key
        button = widgets.Button(description=text, tooltip=tooltip, layout=widgets.Layout(width=f"{width}px"))
        # running another line is no double click
        button.on_click(lambda _: self._click(f"Run {self._line.value}" if key == "Run" else key, move, lane))
        self._buttons[key] = button
        return button

    def _dropdown(self, label: str, options: Any, act: Callable[[Any], Any], width: int) -> widgets.Dropdown:
        dropdown = widgets.Dropdown(description=label, options=options, layout=widgets.Layout(width=f"{width}px"))

        def chosen(change: Any) -> None:
            if not getattr(self._ours, "drawing", False):
                self._click(f"choose {change.new}", lambda: act(change.new))

        dropdown.observe(chosen, "value")
        dropdown.add_class(f"af-{label.replace(' ', '-')}")
        return dropdown

    # -- what buttons and fields do beside calling one method ---------------------------------------------------------

    def _go(self, lane: str) -> Any:
        return self.step(lane) if self.stepper.is_alive(lane) else self.start(lane)

    def _sleep(self, lane: str) -> Any:
        return self.resume(lane) if self.stepper.is_paused(lane) else self.pause(lane)

    def _lose(self) -> Any:
        return self.lose(next((lane.name for lane in self.frame.lanes if lane.before_tool), "A"))

    def _typed(self, entry: int) -> None:
        if not getattr(self._ours, "drawing", False) and entry != (self.entry or self.length):
            self._click("Forward to", lambda: self.show(entry))

    def _wired(self, line: str) -> None:
        """Run, with the line that stood in the field: a button's message may overtake that of the field beside it."""
        self._click(f"Run {line}", lambda: self.run(line))

    def _chosen(self, name: str) -> None:
        if name in PRESETS:
            self.preset(name)

    def _looked_at(self, name: str) -> None:
        self.look_at(None if name == FOLLOW else name)

    # -- drawing -----------------------------------------------------------------------------------------------------

    @contextmanager
    def _drawn(self) -> Iterator[None]:
        """One thread draws at a time, and what it puts into fields is no learner's choice."""
        with self._drawing:
            self._ours.drawing = True
            try:
                yield
            finally:
                self._ours.drawing = False

    def _changed(self) -> None:
        if not self.busy:  # a cell's move: a click has done this already
            self._clicks.ignored = 0
        self._clicks.settled()
        self._draw()

    def _draw(self) -> None:
        if self.closed:
            return
        with self._drawn():
            scene = self.scene()
            at = scene.entry or scene.length
            self._picture.value = f'<div class="tl" data-entry="{at}">{scene.picture}</div>'
            for lane in scene.lanes:
                self._draw_lane(lane)
            self._panes.value, self._head.value = room_view.panes(scene), room_view.head(scene)
            self._say.value = room_view.say(scene, self._clicks.ignored)
            self._draw_controls(scene)
            self._draw_schedule(scene)
            for name, (box, _) in self._lanes.items():
                box.layout.display = "" if name in [lane.name for lane in scene.lanes] else "none"
            self._twin.value = room_view.history(scene)  # the last: what it names is on screen
        if self.away:
            self._retry()

    def _draw_lane(self, lane: LaneView) -> None:
        busy = self._busy_lane == lane.name
        rests = self.entry is not None or self.away or busy
        step, crash, pause, recover = (
            self._buttons[f"{verb} {lane.name}"] for verb in ("Step", "Crash", "Pause", "Recover")
        )
        self._lanes[lane.name][1].value = room_view.lane_html(lane, f"running {lane.next} ..." if busy else "")
        told = "nothing to claim" if lane.nothing_to_claim else lane.next
        (self._lanes[lane.name][0].add_class if lane.alive else self._lanes[lane.name][0].remove_class)("af-live")
        step.description = f"Step: {told}" if lane.alive else "New process"
        step.tooltip = f"Commit {lane.next}" if lane.alive else "Start a new process in this lane"
        step.disabled = rests or lane.paused or lane.nothing_to_claim
        pause.description = "Resume" if lane.paused else "Pause"
        crash.disabled = pause.disabled = rests or not lane.alive
        recover.disabled = rests or not lane.left_something

    def _draw_controls(self, scene: room_view.Scene) -> None:
        back, lost = scene.entry is not None, self.away
        rows = list(self.recording.frames[-1].rows.values())
        tool = [lane.name for lane in scene.lanes if lane.before_tool]
        shown = {
            "End back-off": any(row["postponed"] for row in rows),
            "Deliver event": bool(self.awaited()),
            "Lose reply": bool(tool),
        }
        for key, there in shown.items():
            self._buttons[key].layout.display = "" if there else "none"
            self._buttons[key].disabled = back or lost
        self._buttons["Deliver event"].description = f"Deliver {self.awaited() or 'event'}"
        self._buttons["Lose reply"].description = f"Lose reply of {tool[0]}" if tool else "Lose reply"
        leased = any(row["lease_owner"] and not row["expired"] for row in rows)
        self._buttons["Expire lease"].disabled = back or lost or not leased
        claimable = [lane for lane in scene.lanes if lane.alive and not lane.paused and not lane.nothing_to_claim]
        self._buttons["Race"].disabled = back or lost or len(claimable) < 2
        at = scene.entry or scene.length
        self._entry.max, self._entry.value = max(scene.length, 1), max(at, 1)
        self._of.value = f'<span class="m">of {scene.length}</span>'
        self._buttons["Back"].disabled = at <= 1
        self._buttons["Forward"].disabled = self._buttons["Fork here"].disabled = not back

    def _draw_schedule(self, scene: room_view.Scene) -> None:
        if scene.trouble is None or scene.trouble.kind != "BadSchedule":  # a bad line stays, to be mended
            self._line.value = scene.line
        self._preset.value = next((name for name, one in PRESETS.items() if one.line == scene.line), CHOOSE)
        self._kind.value, self._axis.value = self.stepper.kind, self.axis
        options = (FOLLOW, *self.stepper.workflows)
        if self._which.options != options:
            self._which.options = options
        self._which.value = self.chosen if self.chosen in options else FOLLOW
        self._which.layout.display = "" if len(options) > 2 else "none"

    def to_html(self) -> str:
        """The room without its buttons, for a page without a kernel."""
        return room_view.static(self.scene(live=False))

    def __repr__(self) -> str:
        return room_view.text(self.scene(live=False))

    def _ipython_display_(self) -> None:
        """The picture and, below it, the live widget; in JupyterLab the room's style shows one of the two.

        In one output JupyterLab would prefer the widget, and on a page without its kernel show an error instead.
        """
        bundle = dict(self._repr_mimebundle_())
        live = {kind: bundle.pop(kind) for kind in list(bundle) if not kind.startswith("text/")}
        display(bundle, raw=True)  # type: ignore[no-untyped-call]
        if live:
            display({**live, "text/plain": room_view.NO_KERNEL}, raw=True)  # type: ignore[no-untyped-call]

    def _repr_mimebundle_(self, **options: Any) -> Mapping[str, Any]:
        """The live widget, and beside it the same as a static picture and as text."""
        live = {} if self.closed else self.view._repr_mimebundle_(**options) or {}
        return {**live, "text/html": self.to_html(), "text/plain": repr(self)}


def _html(name: str, value: str = "") -> widgets.HTML:
    box = widgets.HTML(value)
    box.add_class(name)
    return box


def _row(children: list[Any], name: str) -> widgets.HBox:
    row = widgets.HBox(children)
    row.add_class("af-row").add_class(name)
    return row


def control_room(
    engine: Engine, setting: Setting | Schedule | str | None = None, *, name: str | None = None, **options: Any
) -> ControlRoom:
    """The control room of this name (by default the engine's schema) is open on an empty laboratory.

    One that was open before is closed. `setting` is a Setting, a preset's name or a schedule line, which is played at
    once. Options: `lanes` ("thread" or "process"), `patience` in seconds, `server`.
    """
    chosen = name or engine.database.schema
    laboratory.let_go("room", chosen)
    room = ControlRoom(engine, setting, **options)
    laboratory.keep("room", chosen, room)
    return room
