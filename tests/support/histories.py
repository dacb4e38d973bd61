"""Histories for tests of pictures: real transactions of the engine on a real PostgreSQL, one line for each move.

`Hand` moves one worker a transaction at a time. Each history with a name takes an engine on an empty laboratory and returns
what `engine.history()` gives afterwards.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from agentflow import Engine, LostLease, ToolCall
from agentflow.errors import ToolRefused
from agentflow.model import ActionIntent, Checkpoint, Claim

Entries = list[dict[str, Any]]
W = "request-1"
ACTION = "resolve-account"
A_DAY = 86_400.0


class Hand:
    """One worker in a lane, moved a transaction at a time; `lease` in seconds."""

    claimed: Claim

    def __init__(self, engine: Engine, lane: str, lease: float = A_DAY) -> None:
        self.engine, self.lane, self.lease = engine, lane, lease
        self.start()

    def start(self) -> Hand:
        """A new process in this lane."""
        self.identity = f"{self.lane}.{uuid.uuid4().hex[:8]}"
        return self

    def claim(self) -> Hand:
        claim = self.engine.claim_workflow(self.identity, self.lease, names=["support_agent"])
        assert claim is not None
        self.claimed = claim
        self.found: list[Checkpoint] = []
        if claim.fence_token > 1:
            self.claimed, self.found, _ = self.engine.load(claim)
        self.detail = json.dumps({"replayed": len(self.found), "replay_ms": 1.0}) if claim.recovered else None
        return self

    def told(self) -> str | None:
        detail, self.detail = self.detail, None
        return detail

    def step(self, *names: str) -> Hand:
        for name in names:
            self.claimed = self.engine.checkpoint(self.claimed, name, {"done": name}, detail=self.told())
        return self

    def intent(self, key: str = ACTION, action: str = "") -> Hand:
        self.engine.create_action_intent(self.claimed, key, action or key, {}, detail=self.told())
        return self

    def tool(self, key: str = ACTION, sent: str | None = "the key", action: str = "") -> Hand:
        """The call; `sent` is the key that arrives, None for a tool that gets none."""
        intent = ActionIntent(W, key, f"{W}:{key}" if sent == "the key" else sent, action or key, {})
        self.engine.call_tool(self.claimed, intent, self.engine.world)
        return self

    def acknowledge(self, key: str = ACTION) -> Hand:
        self.claimed = self.engine.acknowledge_action(self.claimed, {"ok": True}, key, detail=self.told())
        return self

    def complete(self) -> Hand:
        self.engine.complete_workflow(self.claimed, "done", detail=self.told())
        return self

    def act(self, key: str = ACTION) -> Hand:
        return self.intent(key).tool(key).acknowledge(key)

    def wait(self, name: str) -> Hand:
        self.claimed, _, _ = self.engine.wait_for_event(self.claimed, name, name, detail=self.told())
        return self

    def refused(self, move: Callable[[], Any]) -> Hand:
        """The move meets LostLease."""
        try:
            move()
        except LostLease:
            return self
        raise AssertionError("the write was not refused")

    def fault(self, event: str, at: str | None = None) -> Hand:
        self.engine.record_fault(W, event, worker=self.identity, token=self.claimed.fence_token, at=at)
        return self

    def kill(self, at: str) -> Hand:
        return self.fault("worker_killed", at)

    def pause(self, at: str = "before checkpoint classify") -> Hand:
        return self.fault("worker_paused", at)

    def resume(self, at: str = "before checkpoint classify") -> Hand:
        return self.fault("worker_resumed", at)


def begin(engine: Engine, *lanes: str, lease: float = A_DAY) -> list[Hand]:
    """The workflow exists, and a worker for each lane."""
    engine.create_workflow("I forgot my password", workflow_id=W)
    return [Hand(engine, lane, lease) for lane in lanes]


def expire(engine: Engine) -> None:
    engine.expire_lease(W)


def acknowledgment_gap(engine: Engine, lease: float = A_DAY) -> Entries:
    a, b = begin(engine, "A", "B", lease=lease)
    a.claim().step("classify", "plan").intent().tool().kill(f"before acknowledge {ACTION}")
    expire(engine)
    b.claim().tool().acknowledge().complete()
    return engine.history(W)


def gap_so_far(engine: Engine, lease: float = A_DAY) -> Entries:
    a, b = begin(engine, "A", "B", lease=lease)
    a.claim().step("classify", "plan").intent().tool().kill(f"before acknowledge {ACTION}")
    expire(engine)
    b.claim()
    return engine.history(W)


def stale_worker(engine: Engine, lease: float = A_DAY) -> Entries:
    a, b = begin(engine, "A", "B", lease=lease)
    a.claim().pause()
    expire(engine)
    b.claim().step("classify", "plan").act().complete()
    a.resume().refused(lambda: a.step("classify"))
    return engine.history(W)


def duplicate_effect(engine: Engine, lease: float = A_DAY) -> Entries:
    a, b = begin(engine, "A", "B", lease=lease)
    a.claim().step("classify", "plan").intent().tool(sent=None)
    expire(engine)
    b.claim().tool(sent=None)
    return engine.history(W)


def happy_path(engine: Engine) -> Entries:
    (a,) = begin(engine, "A")
    a.claim().step("classify", "plan").act().complete()
    return engine.history(W)


def lost_reply(engine: Engine) -> Entries:
    """The worker lives, and nobody knows: the same worker calls again after a back-off."""
    (a,) = begin(engine, "A")
    a.claim().step("classify").intent().tool().fault("reply_lost", ACTION)
    engine.postpone(a.claimed, ACTION, {"type": "TimeoutError", "message": "no answer", "traceback": ""}, A_DAY)
    expire(engine)
    a.claim().tool().acknowledge().complete()
    return engine.history(W)


def approval(engine: Engine) -> Entries:
    a, b = begin(engine, "A", "B")
    a.claim().step("draft").wait("editor.approved")
    engine.deliver_event(W, "editor.approved", True)
    engine.deliver_event(W, "editor.approved", True)
    b.claim().wait("editor.approved").step("deliver").complete()
    return engine.history(W)


def refused_in_the_middle(engine: Engine) -> Entries:
    """A wakes while B works: its refusal stands among B's writes."""
    a, b = begin(engine, "A", "B")
    a.claim().step("classify").pause("before checkpoint plan")
    expire(engine)
    b.claim().step("plan")
    a.resume("before checkpoint plan").refused(lambda: a.step("plan"))
    b.act().complete()
    return engine.history(W)


def cancelled(engine: Engine) -> Entries:
    (a,) = begin(engine, "A")
    a.claim().step("classify")
    engine.cancel_workflow(W)
    a.refused(lambda: a.step("plan"))
    return engine.history(W)


def three_workers(engine: Engine) -> Entries:
    a, b, c = begin(engine, "A", "B", "C")
    a.claim().step("classify").kill("before checkpoint plan")
    expire(engine)
    b.claim().step("plan").intent().tool().pause(f"before acknowledge {ACTION}")
    expire(engine)
    c.claim().tool()
    b.resume(f"before acknowledge {ACTION}").refused(b.acknowledge)
    c.acknowledge().complete()
    return engine.history(W)


def two_actions(engine: Engine) -> Entries:
    a, b = begin(engine, "A", "B")
    a.claim().step("retrieval").act("mail-before").step("drafting").intent("mail-after").tool("mail-after")
    a.kill("after tool mail-after")
    expire(engine)
    b.claim().tool("mail-after").acknowledge("mail-after").complete()
    return engine.history(W)


def failed_tries(engine: Engine) -> Entries:
    (a,) = begin(engine, "A")
    error = {"type": "TimeoutError", "message": "slow", "traceback": ""}
    a.claim()
    engine.postpone(a.claimed, "classify", error, A_DAY)
    expire(engine)
    a.claim().step("classify")
    engine.fail_workflow(a.claimed, error)
    engine.requeue_workflow(W)
    a.claim()
    engine.release_lease(a.claimed)
    engine.record_fault(W, "database_restarted")
    a.claim().step("plan").complete()
    return engine.history(W)


def tool_refuses(engine: Engine) -> Entries:
    (a,) = begin(engine, "A")
    a.claim().intent()
    engine.world.fault = lambda call: "refuse"
    with suppress(ToolRefused):
        engine.world(ToolCall(f"{W}:{ACTION}", ACTION, None, W))
    engine.world.fault = None
    a.claimed = engine.acknowledge_action(
        a.claimed, None, ACTION, error={"type": "ToolRefused", "message": "no", "traceback": ""}
    )
    engine.fail_workflow(a.claimed, {"type": "StepFailed", "message": "no", "traceback": ""})
    return engine.history(W)


def effect_lost(engine: Engine) -> Entries:
    """What an engine does that acknowledges first: the call never happens."""
    a, b = begin(engine, "A", "B")
    a.claim().step("classify").intent().acknowledge().kill(f"before tool {ACTION}")
    expire(engine)
    b.claim().complete()
    return engine.history(W)


def forgotten_key(engine: Engine) -> Entries:
    a, b = begin(engine, "A", "B")
    a.claim().step("classify").intent().tool().kill(f"after tool {ACTION}")
    engine.world.forget_keys()
    expire(engine)
    b.claim().tool().acknowledge().complete()
    return engine.history(W)


def new_keys(engine: Engine) -> Entries:
    a, b = begin(engine, "A", "B")
    a.claim().step("classify").intent().tool(sent=f"{W}:made-up-1").kill(f"before acknowledge {ACTION}")
    expire(engine)
    b.claim().tool(sent=f"{W}:made-up-2").acknowledge().complete()
    return engine.history(W)


def two_actions_repeated(engine: Engine) -> Entries:
    """A tool without keys acts three times for one action, then twice for another."""
    a, b = begin(engine, "A", "B")
    a.claim().intent("mail-before").tool("mail-before", sent=None).kill("before acknowledge mail-before")
    expire(engine)
    b.claim().tool("mail-before", sent=None).kill("before acknowledge mail-before")
    expire(engine)
    a.start().claim().tool("mail-before", sent=None).acknowledge("mail-before")
    a.intent("mail-after").tool("mail-after", sent=None).kill("before acknowledge mail-after")
    expire(engine)
    b.start().claim().tool("mail-after", sent=None).acknowledge("mail-after").complete()
    return engine.history(W)


def renewals(engine: Engine) -> Entries:
    (a,) = begin(engine, "A")
    a.claim().step("classify")
    for _ in range(5):
        engine.renew_lease(a.claimed)
    a.step("plan").complete()
    return engine.history(W)


def crash_budget_spent(engine: Engine) -> Entries:
    """Each worker dies at the same step; the claim after the last one allowed fails the workflow."""
    hands = begin(engine, "A", "B", "C", "A", "B", "C")
    for hand in hands:
        hand.claim().kill("before checkpoint classify")
        expire(engine)
    assert engine.claim_workflow("A.last", A_DAY) is None
    return engine.history(W)


def cancelled_while_waiting(engine: Engine) -> Entries:
    (a,) = begin(engine, "A")
    a.claim().step("draft").wait("approval")
    engine.cancel_workflow(W)
    return engine.history(W)


def shared_name(engine: Engine) -> Entries:
    """Two processes under one name: one lane, in which only the tokens differ."""
    a, b = begin(engine, "W", "W")
    a.identity = b.identity = "W"
    a.claim().step("classify").pause("before checkpoint plan")
    expire(engine)
    b.claim().step("plan").act().complete()
    a.resume("before checkpoint plan").refused(lambda: a.step("plan"))
    return engine.history(W)


def sixty_entries(engine: Engine) -> Entries:
    """Four processes on three lanes, thirty steps, an action in the gap, a refusal."""
    a, b, c = begin(engine, "A", "B", "C")
    names = [f"step-{n}" for n in range(1, 31)]
    a.claim().step(*names[:12]).intent("first").tool("first").kill("before acknowledge first")
    expire(engine)
    b.claim().tool("first").acknowledge("first").step(*names[12:20]).pause("before checkpoint step-21")
    expire(engine)
    c.claim().step(*names[20:28]).intent("second").tool("second")
    b.resume("before checkpoint step-21").refused(lambda: b.step("step-21"))
    c.acknowledge("second")
    for _ in range(4):
        engine.renew_lease(c.claimed)
    c.step(*names[28:]).kill("before complete")
    expire(engine)
    a.start().claim().step("last").complete()
    return engine.history(W)


ALL: dict[str, Callable[[Engine], Entries]] = {
    one.__name__: one
    for one in (
        acknowledgment_gap, gap_so_far, stale_worker, duplicate_effect, happy_path, lost_reply, approval,
        refused_in_the_middle, cancelled, three_workers, two_actions, failed_tries, tool_refuses, effect_lost,
        forgotten_key, new_keys, two_actions_repeated, renewals, shared_name, crash_budget_spent,
        cancelled_while_waiting, sixty_entries,
    )
}  # fmt: skip
