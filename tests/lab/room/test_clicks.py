"""Clicks: quick ones, long ones, and ones whose move fails; none blocks the kernel and none is lost in silence."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from agentflow import Engine
from agentflow.lab.laboratory.laboratory import PATIENT
from agentflow.lab.room import clicks
from agentflow.lab.room.controller import Controller
from agentflow.lab.room.widget import ControlRoom
from tests.lab.room.screen import NEVER, button, idle, part, press, said
from tests.support.helpers import eventually


@pytest.mark.parametrize(
    ("key", "method"),
    [("Crash B", "crash"), ("Recover A", "recover"), ("Run", "run"), ("Reset", "reset"), ("Race", "race")],
)
def test_five_quick_clicks_make_one_move(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, key: str, method: str
) -> None:
    engine.policy = PATIENT
    moves: list[str] = []
    real: Callable[..., Any] = getattr(Controller, method)
    monkeypatch.setattr(Controller, method, lambda *told: (moves.append(method), real(*told))[-1])
    room = ControlRoom(engine, "A*2 A||" if method != "race" else "A", quiet_seconds=NEVER)
    try:
        for _ in range(5):
            room.press(key)
        idle(room)
        assert len(moves) == 1
        assert "Too fast: 4 clicks were ignored." in said(room)
        press(room, "Step B")
        assert "Too fast" not in said(room)
    finally:
        room.close()


def test_step_takes_each_click_that_comes_when_the_last_move_has_ended(engine: Engine) -> None:
    engine.policy = PATIENT
    room = ControlRoom(engine, quiet_seconds=NEVER)
    try:
        for _ in range(5):
            press(room, "Step A")
        assert room.scene().line == "A*5"
        assert "ignored" not in said(room)
    finally:
        room.close()


def test_a_button_pressed_again_after_another_one_is_no_double_click(engine: Engine) -> None:
    """A line, a preset and the line again within a quarter of a second: the last one was lost, once in a run of CI."""
    engine.policy = PATIENT
    room = ControlRoom(engine, "A*2", quiet_seconds=NEVER)
    try:
        for key in ("Reset", "Crash A", "Reset"):
            press(room, key)
        assert room.scene().line == ""
        assert "ignored" not in said(room)
    finally:
        room.close()


def test_what_is_shown_can_be_clicked_however_long_its_move_took(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clicks, "BUSY_SECONDS", 0.2)
    engine.policy, real, drawn = PATIENT, Controller.reset, threading.Event()

    def long(controller: Controller) -> None:
        began = time.monotonic()
        eventually(lambda: time.monotonic() - began > 0.2)
        real(controller)

    def on_screen(_: object) -> None:
        """The picture is out, and a click on it comes before the move's own thread goes on."""
        if not drawn.is_set():
            drawn.set()
            room.press("Step A")

    monkeypatch.setattr(Controller, "reset", long)
    room = ControlRoom(engine, "B", quiet_seconds=0)
    try:
        room.panel["more"].observe(on_screen, "value")
        press(room, "Reset")
        assert drawn.is_set() and room.scene().trouble is None
        assert room.scene().line == "A"
        assert "ignored" not in said(room)
    finally:
        room.close()


def slow_workflow(gate: threading.Event, entered: threading.Event) -> Callable[[Any, Any], Any]:
    def slow(run: Any, _: Any) -> Any:
        """The first call waits at the gate."""
        first = not entered.is_set()
        return run.step("slow", lambda: (entered.set(), gate.wait(60) if first else None, "late")[-1])

    return slow


def test_a_click_while_another_move_is_under_way_returns_at_once_and_says_so(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate, entered = threading.Event(), threading.Event()
    monkeypatch.setattr(clicks, "BUSY_SECONDS", 0.01)
    engine.policy, engine.workflows = PATIENT, {"slow": slow_workflow(gate, entered)}
    room = ControlRoom(engine, quiet_seconds=0, patience=60)
    try:
        room.press("Step A")  # returns although the step does not
        assert entered.wait(20)
        eventually(lambda: "running" in part(room, "lane A"))
        assert not button(room, "Step A").enabled and button(room, "Step B").enabled
        room.press("Step B")
        eventually(lambda: "1 click was ignored" in said(room))
        gate.set()
        idle(room)
        eventually(lambda: button(room, "Step A").enabled)
        assert "2. A claims it" in said(room)
        assert button(room, "Step A").label == "Step: checkpoint slow"
    finally:
        gate.set()
        room.close()


def test_a_step_that_does_not_return_is_reported_and_the_other_lane_goes_on(engine: Engine) -> None:
    gate, entered = threading.Event(), threading.Event()
    engine.policy, engine.workflows = PATIENT, {"slow": slow_workflow(gate, entered)}
    room = ControlRoom(engine, "workflow=slow requests=2", quiet_seconds=0, patience=0.3)
    try:
        press(room, "Step A")
        assert "A has not reached its next transaction" in said(room)
        assert "gate.wait(60)" in said(room)
        assert button(room, "Step A").label == "Step: still running"
        assert "worker A" in part(room, "head")  # what the move has written is on screen
        press(room, "Step B")
        assert "B claims" in said(room)
        gate.set()
        press(room, "Step A")
        assert "A claims" in said(room)
    finally:
        gate.set()
        room.close()


def test_an_unexpected_error_in_a_callback_is_shown_with_its_traceback_closed(
    room: ControlRoom, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_: Any) -> None:
        raise ZeroDivisionError("by <b>hand</b>")

    monkeypatch.setattr(room.controller.stepper, "move", broken)
    press(room, "Step A")
    assert "<b>ZeroDivisionError</b> by &lt;b&gt;hand&lt;/b&gt;" in part(room, "say")
    assert "<details><summary>traceback</summary>" in part(room, "say")
    assert "press Reset" in said(room)
    assert button(room, "Step A").enabled
    monkeypatch.undo()
    press(room, "Step A")
    assert "ZeroDivisionError" not in said(room)
