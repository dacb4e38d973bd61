"""One panel of buttons over a stepper; the only room that imports ipywidgets.

What lives here: buttons, and what is on screen. What does not: the moves (`stepper`) and the words (`look`). Every
button calls a method that a cell can call too (`panel.step("A")`, `panel.crash("A")`, `panel.recover("A")`, ...). A
click never blocks the kernel, a double click makes one move (Step takes every click that comes when it is ready), and
what was ignored or went wrong is said in the panel.
"""

from __future__ import annotations

import html
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import ipywidgets as widgets

from ..errors import AgentFlowError, DatabaseAway
from ..front import Engine, is_embedded
from ..model import Boundary
from . import laboratory, look
from .entries import worker_name
from .lane import Move, named
from .stepper import FIRST_CELL, Stepper

REQUEST = "I forgot my password and the reset mail never shows up. Checked spam twice."
T = TypeVar("T")
QUIET_SECONDS = 0.25  # a second click within this time is a double click, except on Step

STYLE = """<style>
.af-panel{border:1px solid var(--jp-border-color2,#d0d7de);padding:8px 12px;max-width:1000px;
 background:var(--jp-layout-color1,#fff);color:var(--jp-ui-font-color1,#1f2328)}
.af-panel .jupyter-button{width:auto;min-width:84px;white-space:nowrap;color:var(--jp-ui-font-color1,#1f2328);
 background:var(--jp-layout-color2,#eee);opacity:1}
.af-panel .jupyter-button:disabled{color:var(--jp-ui-font-color2,#59636e);background:none;
 box-shadow:inset 0 0 0 1px var(--jp-border-color2,#d0d7de)}
.af-panel .jupyter-button:focus-visible{outline:2px solid currentColor;outline-offset:1px}
.af-panel .af-step{width:250px}
.af-panel .af-A .af-step:not(:disabled){box-shadow:inset 0 -3px #0072B2}
.af-panel .af-B .af-step:not(:disabled){box-shadow:inset 0 -3px #D55E00}
.af-panel .af-say{font-size:13px;line-height:1.45;padding:6px 0;border-top:1px solid var(--jp-border-color2,#d0d7de);
 border-bottom:1px solid var(--jp-border-color2,#d0d7de);margin:4px 0;overflow-wrap:anywhere}
.af-panel .af-say b{font-weight:600}
.af-panel .af-trouble{background:var(--jp-ui-font-color1,#1f2328);color:var(--jp-layout-color1,#fff);padding:6px 8px}
</style>"""

# With the focus on a button JupyterLab takes `x` as delete cell. This attribute is the cure; only the page can set it.
_NO_SHORTCUTS = (
    '<img alt="" width="0" height="0" src="data:image/gif;base64,R0lGODlhAQABAAAAACH5BAEKAAEALAAAAAABAAEAAAICTAEAOw==" '
    "onload=\"const r=this.closest('.af-panel');if(r){const f=()=>r.querySelectorAll('button,input,textarea,summary')"
    ".forEach(e=>e.setAttribute('data-lm-suppress-shortcuts','true'));f();"
    'new MutationObserver(f).observe(r,{childList:true,subtree:true});}">'
)


class Panel:
    """Two workers, a request, and what the rows say; made by control_panel()."""

    def __init__(self, engine: Engine, *, patience: float = 10.0, quiet_seconds: float = QUIET_SECONDS) -> None:
        self.stepper = Stepper(engine, patience=patience)
        self.engine, self.quiet_seconds = engine, quiet_seconds
        self.said, self.trouble = "Nothing has happened yet. Step a worker.", ""
        self.snapshot = look.Snapshot(None, [], [], [])
        self._busy = threading.Lock()
        self._drawing = threading.Lock()
        self._clicked: dict[str, float] = {}
        self._ignored = 0
        self._closed = False
        self._build()
        self._attempt(lambda: self.said)

    # -- what a button does, and a cell can do too -------------------------------------------------------------------

    def step(self, name: str) -> Move:
        """One more transaction of this worker is committed, and shown. Raises like Stepper.step()."""
        return self._show(lambda: self.stepper.step(name), self._say_move)

    def crash(self, name: str) -> Move:
        """This worker is gone, and that is shown. Raises like Stepper.crash()."""
        at = self.stepper.next_transaction(name)
        return self._show(
            lambda: self.stepper.crash(name),
            lambda _: f"{name} crashed before {at}. It is gone; its lease still keeps others away until you recover.",
        )

    def recover(self, name: str) -> list[Move]:
        """What this worker left is finished by the other one, and that is shown. Raises like Stepper.recover()."""
        left: list[str] = []

        def move() -> list[Move]:
            left.extend(self.stepper.left_by(name))
            return self.stepper.recover(name)

        return self._show(move, lambda moves: self._say_recovery(name, left, moves))

    def submit(self, request: str | None = None) -> str:
        """Another request waits as a workflow, and is shown; its id. Without text, the one in the panel's field."""
        text = self._request.value if request is None else request
        return self._show(lambda: self._submitted(text), lambda made: f"{made} waits. Step a worker, and it claims it.")

    def reset(self) -> None:
        """No worker, no workflow, no effect is left, and that is shown. Raises like Stepper.reset()."""
        self._show(self.stepper.reset, lambda _: "Everything is gone: no workflow, no effect. Make a new request.")

    def close(self) -> None:
        """No thread, no connection and no widget of the panel is left."""
        self._closed = True
        try:
            self.stepper.close()
        finally:
            self.view.close()
            for widget in self._widgets:
                widget.close()

    # -- how a move is made and shown --------------------------------------------------------------------------------

    def _submitted(self, text: str) -> str:
        made = self.stepper.submit(text)
        self.stepper.workflow_id = made
        return made

    def _show(self, move: Callable[[], T], say: Callable[[T], str]) -> T:
        """The move was made and the screen follows. An error is shown, then raised."""
        results: list[T] = []
        if not self._busy.locked():  # a cell's move: a click has done this already
            self._ignored = 0

        def both() -> str:
            results.append(move())
            return say(results[0])

        error = self._attempt(both)
        if error:
            raise error
        return results[0]

    def _attempt(self, move: Callable[[], str]) -> Exception | None:
        """What the move says is on screen, and the rows as they are now; or its error as a sentence."""
        caught: Exception | None = None
        try:
            self.said, self.trouble = move(), ""
        except Exception as error:
            caught, self.trouble = error, _in_words(error)
        try:
            if not isinstance(caught, DatabaseAway):
                self.snapshot = look.snapshot(self.stepper.engine, self.stepper.current())
        except Exception as error:
            caught, self.trouble = caught or error, self.trouble or _in_words(error)
        self._draw()
        return caught

    def _click(self, key: str, move: Callable[[], Any]) -> None:
        """The move is under way in a thread of its own; while one is already, or after half a double click, a word."""
        now = time.monotonic()
        quiet = 0.0 if key.startswith("Step ") else self.quiet_seconds
        double = now - self._clicked.get(key, float("-inf")) < quiet
        if self._closed:
            return
        if double or not self._busy.acquire(blocking=False):
            self._ignored += 1
            self._draw_say()
            return
        self._clicked[key], self._ignored = now, 0

        def run() -> None:
            try:
                move()
            except Exception as error:  # the move has shown its own; this is for what went wrong while drawing
                if not self.trouble:
                    self.trouble = _in_words(error)
                    self._draw()
            finally:
                self._busy.release()

        threading.Thread(target=run, name=f"panel-{key}", daemon=True).start()

    def _say_move(self, move: Move) -> str:
        name, passed = move.lane, move.passed
        if passed is None:
            return f"{name} has raised an error on its way. Next: {move.next}."
        if move.ended == "idle":
            return f"{name} found nothing to claim: {self._why_idle()}"
        if passed.outcome == "unknown" or (passed.outcome == "refused" and move.ended is None):
            return f"{name} does not know whether {named(passed)} was committed, and will ask again. Step it once more."
        if move.ended == "lost":
            return f"{name} tried {named(passed)} with token {passed.token}: refused, another worker has it. It stops."
        if passed.transaction == move.next == "claim":
            lost = "too many workers were lost there in a row"
            return f"{name}'s claim failed {passed.workflow}: {lost}. Make a new request."
        if move.ended:
            return f"{name} committed {named(passed)}: {passed.workflow} is {move.ended}."
        return f"{_said(name, passed)} Next: {move.next}."

    def _say_recovery(self, name: str, left: list[str], moves: list[Move]) -> str:
        worked = {move.passed.workflow: None for move in moves if move.passed and move.passed.workflow}
        ended = "; ".join(self._state_of(workflow_id) for workflow_id in left)
        said = f"{moves[0].lane} went on where {name} had left off: {ended}."
        others = "; ".join(self._state_of(workflow_id) for workflow_id in worked if workflow_id not in left)
        return f"{said} On its way it worked on others: {others}." if others else said

    def _state_of(self, workflow_id: str) -> str:
        row = self.stepper.engine.get_workflow(workflow_id) or {}
        return f"{workflow_id} is {row.get('status', 'gone')}"

    def _why_idle(self) -> str:
        for name in self.stepper.names:
            for left in self.stepper.left_by(name):
                return f"{left} {self._held(left, name)}"
        row = look.snapshot(self.stepper.engine, self.stepper.current()).workflow
        if row is None:
            return "there is no request. Make a new one."
        if row["lease_owner"]:
            return f"{row['id']} is leased to {worker_name(row['lease_owner'])}, who is not here. Press Reset."
        why = f": {row['error']['message'].rstrip('.')}" if row["error"] else ""
        return f"{row['id']} is {row['status']}{why}. Press New request (or Reset) to begin again."

    def _held(self, workflow_id: str, name: str) -> str:
        if not (self.stepper.engine.get_workflow(workflow_id) or {}).get("lease_owner"):
            return f"waits out a back-off after a failed attempt of {name}. Recover {name}, which ends it."
        way_on = f"Step {name}, or recover it." if self.stepper.is_alive(name) else f"Recover {name}."
        return f"is still leased to {name}. {way_on}"

    # -- what is on screen -------------------------------------------------------------------------------------------

    def _build(self) -> None:
        self._steps: dict[str, widgets.Button] = {}
        self._buttons: dict[str, widgets.Button] = {}
        self._say, self._rows = widgets.HTML(), widgets.HTML()
        self._say.add_class("af-say")
        lanes = [self._lane(name) for name in self.stepper.names]
        self._request = widgets.Text(
            value=REQUEST, description="Request", layout=widgets.Layout(width="min(520px, 100%)")
        )
        new = self._button("New request", lambda: self.submit(), "Write the request down as a workflow")
        reset = self._button("Reset", self.reset, "Empty the laboratory: no workflow, no effect")
        none = widgets.Layout(height="0", margin="0", overflow="hidden")
        head = widgets.HTML(STYLE + look.STYLE + _NO_SHORTCUTS, layout=none)
        ask = widgets.HBox([self._request, new, reset], layout=widgets.Layout(flex_flow="row wrap"))
        self.view = widgets.VBox([head, ask, *lanes, self._say, self._rows])
        self.view.add_class("af-panel")
        self._widgets: list[Any] = [*self.view.children, *self._buttons.values(), self._request]

    def _lane(self, name: str) -> widgets.HBox:
        step = self._button(f"Step {name}", lambda: self.step(name), f"Let {name} commit its next transaction")
        step.add_class("af-step")
        self._steps[name] = step
        crash = self._button(f"Crash {name}", lambda: self.crash(name), f"{name} is gone where it stands")
        recover = self._button(f"Recover {name}", lambda: self.recover(name), f"End {name}'s lease; the other finishes")
        lane = widgets.HBox([step, crash, recover], layout=widgets.Layout(flex_flow="row wrap"))
        lane.add_class(f"af-{name}")
        return lane

    def _button(self, text: str, move: Callable[[], Any], tooltip: str) -> widgets.Button:
        button = widgets.Button(description=text, tooltip=tooltip)
        button.on_click(lambda _: self._click(text, move))
        self._buttons[text] = button
        return button

    def _draw(self) -> None:
        if self._closed:
            return
        for name, button in self._steps.items():
            button.description = f"Step {name}: {self.stepper.next_transaction(name)}"
        self._draw_say()
        self._rows.value = f'<div class="af-look">{self.snapshot.to_html()}</div>'

    def _draw_say(self) -> None:
        with self._drawing:  # a click that is ignored speaks from another thread than the move
            self._say.value = self._say_html()

    def _say_html(self) -> str:
        if self.trouble:
            said = f'<div role="alert" class="af-trouble">{html.escape(self.trouble)}</div>'
        else:
            said = f'<div role="status" aria-live="polite"><b>{html.escape(self.said)}</b></div>'
        if not self._ignored:
            return said
        clicks = look.counted(self._ignored, "click was", "clicks were")
        return f'{said}<div role="status">Too fast: {clicks} ignored. Click when the sentence above has changed.</div>'

    def to_html(self) -> str:
        """The panel without its buttons, for a page without a kernel."""
        lanes = "".join(f"<li>{html.escape(self._lane_line(name))}</li>" for name in self.stepper.names)
        return (
            f'{look.STYLE}<div class="af-look"><p><b>{html.escape(self.trouble or self.said)}</b></p><ul>{lanes}</ul>'
            f"{self.snapshot.to_html()}<p>Run this cell to use the controls.</p></div>"
        )

    def _lane_line(self, name: str) -> str:
        return f"worker {name}, next: {self.stepper.next_transaction(name)}" if not self._closed else f"worker {name}"

    def __repr__(self) -> str:
        lanes = [self._lane_line(name) for name in self.stepper.names]
        return "\n".join([self.trouble or self.said, *lanes, "", repr(self.snapshot)])

    def _repr_mimebundle_(self, **options: Any) -> Mapping[str, Any]:
        """The live widget, and beside it the same as a static picture and as text."""
        live = {} if self._closed else self.view._repr_mimebundle_(**options) or {}
        return {**live, "text/html": self.to_html(), "text/plain": repr(self)}


def _said(name: str, passed: Boundary) -> str:
    """What a committed transaction means, in words."""
    if passed.transaction == "claim":
        return f"{name} claimed {passed.workflow} with token {passed.token}."
    if passed.transaction == "tool":
        return f"The tool answered {name}: the effect exists, and only {name} knows."
    return f"{name} committed {named(passed)} with token {passed.token}."


def _in_words(error: Exception) -> str:
    """What happened and what to do next; with its type if nobody expected it."""
    if isinstance(error, DatabaseAway) and is_embedded() and FIRST_CELL not in str(error):
        return f"{error} {FIRST_CELL}"
    if isinstance(error, AgentFlowError):
        return str(error)
    return f"{type(error).__name__}: {error}. The rows below are as the last whole transaction left them; press Reset."


def control_panel(engine: Engine, name: str | None = None, **options: Any) -> Panel:
    """The panel of this name (by default the engine's schema) is open; one that was open before is closed.

    Options as for Panel: `patience` in seconds.
    """
    chosen = name or engine.database.schema
    laboratory.let_go("panel", chosen)
    panel = Panel(engine, **options)
    laboratory.keep("panel", chosen, panel)
    return panel
