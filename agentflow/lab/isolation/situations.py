"""The situations that a workflow can be in, and every transaction that somebody may try in each of them.

The real engine makes each situation by its own transactions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ...engine import Engine
from ...errors import AgentFlowError
from ...model import ActionIntent, Claim
from ...values import idempotency_key
from ..laboratory.laboratory import LEASE_SECONDS

WORKFLOW = "request-1"
_ERROR = {"type": "Boom", "message": "boom", "traceback": ""}
Claims = dict[str, Claim]
Situation = Callable[[Engine], Claims]
STALE = "stale "
_ONE_OF_EACH = ("load", "checkpoint", "complete", "renew")


@dataclass(frozen=True)
class Call:
    """One transaction that somebody tries: `who` is a worker with its claim, or empty for the outside."""

    transaction: str
    who: str
    run: Callable[[Engine], Any]

    @property
    def label(self) -> str:
        """How a person writes it."""
        return f"{self.who} {self.transaction}".strip()


def calls(claims: Claims) -> list[Call]:
    """Every transaction of every worker that believes to have a claim, and everything that may come from outside.

    Of a worker whose claim is known to be worth nothing (its name begins with `stale`), one of each kind: a read, a write
    that counts checkpoints, one that finishes, one that does not count.
    """
    mine = [
        Call(name, who, _with(run, claim))
        for who, claim in claims.items()
        for name, run in _WORKERS.items()
        if name in _ONE_OF_EACH or not who.startswith(STALE)
    ]
    return mine + [Call(name, who, run) for (name, who), run in _OUTSIDE.items()]


def _with(run: Callable[[Engine, Claim], Any], claim: Claim) -> Callable[[Engine], Any]:
    return lambda engine: run(engine, claim)


def _planned(claim: Claim) -> ActionIntent:
    return ActionIntent(claim.workflow_id, "pay", idempotency_key(claim.workflow_id, "pay"), "pay", 5)


_WORKERS: Mapping[str, Callable[[Engine, Claim], Any]] = {
    "load": lambda e, c: e.load(c),
    "checkpoint": lambda e, c: e.checkpoint(c, "next", {"by token": c.fence_token}),
    "intent": lambda e, c: e.create_action_intent(c, "pay", "pay", 5),
    "tool": lambda e, c: e.call_tool(c, _planned(c), e.tool),
    "acknowledge": lambda e, c: e.acknowledge_action(c, {"paid": True}, "pay"),
    "complete": lambda e, c: e.complete_workflow(c, {"by token": c.fence_token}),
    "wait": lambda e, c: e.wait_for_event(c, "approval", "go"),
    "renew": lambda e, c: e.renew_lease(c),
    "release": lambda e, c: e.release_lease(c),
    "postpone": lambda e, c: e.postpone(c, "next", _ERROR, LEASE_SECONDS),
    "fail": lambda e, c: e.fail_workflow(c, _ERROR),
}
_OUTSIDE: Mapping[tuple[str, str], Callable[[Engine], Any]] = {
    ("create", ""): lambda e: e.create_workflows(["I forgot my password"], workflow_ids=[WORKFLOW]),
    ("claim", "C"): lambda e: e.claim_workflow("C", LEASE_SECONDS),
    ("deliver", ""): lambda e: e.deliver_event(WORKFLOW, "go", "yes"),
    ("deliver", "other"): lambda e: e.deliver_event(WORKFLOW, "go", "no"),
    ("cancel", ""): lambda e: e.cancel_workflow(WORKFLOW),
    ("requeue", ""): lambda e: e.requeue_workflow(WORKFLOW),
    ("expire", ""): lambda e: e.expire_lease(WORKFLOW),
}


def _claim(engine: Engine, worker: str) -> Claim:
    claim = engine.claim_workflow(worker, LEASE_SECONDS)
    if claim is None:
        raise AgentFlowError(
            f"Worker {worker} could not claim {WORKFLOW} while a situation was prepared. Look at its row."
        )
    return claim


def _absent(_: Engine) -> Claims:
    return {}


def _ready(engine: Engine) -> Claims:
    engine.create_workflows(["I forgot my password"], workflow_ids=[WORKFLOW])
    return {}


def _claimed(engine: Engine) -> Claims:
    _ready(engine)
    return {"A": _claim(engine, "A")}


def _action_planned(engine: Engine) -> Claims:
    claims = _claimed(engine)
    claims["A"] = engine.checkpoint(claims["A"], "look", "seen")
    engine.create_action_intent(claims["A"], "pay", "pay", 5)
    return claims


def _budget_spent(engine: Engine) -> Claims:
    claims = _claimed(engine)
    for _ in range(engine.policy.crash_budget):
        engine.expire_lease(WORKFLOW)
        claims["A"] = _claim(engine, "A")
    engine.expire_lease(WORKFLOW)
    return _stale(claims)


def _failed(engine: Engine) -> Claims:
    claims = _claimed(engine)
    claims["A"] = engine.checkpoint(claims["A"], "next", error=_ERROR)
    engine.fail_workflow(claims["A"], _ERROR)
    return _stale(claims)


def _stale(claims: Claims) -> Claims:
    return {STALE + who: claim for who, claim in claims.items()}


def _then(before: Situation, act: Callable[[Engine, Claim], Any]) -> Situation:
    """The situation after one more transaction, made with A's claim, which A still believes in."""

    def situation(engine: Engine) -> Claims:
        claims = before(engine)
        act(engine, next(iter(claims.values())))
        return claims

    return situation


def _lost(before: Situation, act: Callable[[Engine, Claim], Any]) -> Situation:
    """The situation after one more transaction, with which A's claim has ended."""
    return lambda engine: _stale(_then(before, act)(engine))


def _taken_over(by: str) -> Situation:
    return lambda engine: {**_stale(_expired(engine)), by: _claim(engine, by)}


_in_the_gap = _then(_action_planned, lambda e, c: e.call_tool(c, _planned(c), e.tool))
_expired = _then(_in_the_gap, lambda e, _: e.expire_lease(WORKFLOW))
_waiting = _lost(_claimed, lambda e, c: e.wait_for_event(c, "approval", "go"))

SITUATIONS: Mapping[str, Situation] = {
    "absent": _absent,
    "ready": _ready,
    "claimed": _claimed,
    "in the gap": _in_the_gap,
    "lease expired": _expired,
    "taken over": _taken_over("B"),
    "taken over by its name": _taken_over("A"),
    "released": _lost(_action_planned, lambda e, c: e.release_lease(c)),
    "postponed": _lost(_claimed, lambda e, c: e.postpone(c, "next", _ERROR, LEASE_SECONDS)),
    "waiting": _waiting,
    "event came first": _then(_claimed, lambda e, _: e.deliver_event(WORKFLOW, "go", "yes")),
    "woken": _then(_waiting, lambda e, _: e.deliver_event(WORKFLOW, "go", "yes")),
    "budget spent": _budget_spent,
    "completed": _lost(_claimed, lambda e, c: e.complete_workflow(c, "done")),
    "failed": _failed,
    "cancelled": _lost(_claimed, lambda e, _: e.cancel_workflow(WORKFLOW)),
}
"""How each situation of one workflow is made, by name; it returns the claims that its workers still believe in."""


def _is_stale(call: Call) -> bool:
    return call.who.startswith(STALE)


NEWS: Mapping[str, Callable[[Call], bool]] = {
    "taken over": _is_stale,
    "taken over by its name": _is_stale,
    "event came first": lambda call: call.transaction in ("wait", "deliver"),
}
"""The calls that make a situation another one than those before it; pairs without any of them are played there."""


def worth_playing(situation: str, first: Call, second: Call) -> bool:
    """Whether this pair is not one of another situation again."""
    is_new = NEWS.get(situation)
    return is_new is None or is_new(first) or is_new(second)
