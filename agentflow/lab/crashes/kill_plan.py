"""Which workers a soak kills, and where: decided by a hash of seed, request, boundary and how often it was killed before.

The same seed and the same number of requests give the same kills, however the workers share the work. Which boundaries a
workflow has, nobody knows in advance: a worker decides at each that it reaches, and at the last it is killed in any case.
"""

from __future__ import annotations

import hashlib
import heapq
import math
from typing import Literal

from ...model import Boundary

PATH = (
    "after claim",
    "before checkpoint classify", "after checkpoint classify",
    "before checkpoint plan", "after checkpoint plan",
    "before intent", "after intent",
    "before tool", "after tool",
    "before acknowledge", "after acknowledge",
    "before complete", "after complete",
)  # fmt: skip
"""The boundaries that every run of the support agent passes at least once, in order.

Before a claim there is no request."""

GAP = ("after tool", "before acknowledge")
"""The acknowledgment gap: the effect exists and the engine does not know."""


def in_gap(boundary: str) -> bool:
    """Whether the boundary, also one that names its action, lies in the acknowledgment gap."""
    return " ".join(boundary.split(" ")[:2]) in GAP


GAP_SHARE = 0.1
_ON_THE_WAY = ("claim", "load", "checkpoint", "intent", "tool", "acknowledge", "wait")  # not what a clock brings about
_ENDS = ("complete", "fail")

KillPlan = dict[int, tuple[Literal["gap", "anywhere"], ...]]
"""For each request that is hit: what its first holder's kill is aimed at, the next one's, and so on."""


def label(boundary: Boundary) -> str:
    """The boundary's name in a plan and in the history: checkpoints are told apart, other transactions come once."""
    return boundary.place if boundary.transaction == "checkpoint" else f"{boundary.edge} {boundary.transaction}"


def plan_kills(seed: int, requests: int, kills: int) -> KillPlan:
    """Exactly `kills` kills, at least a tenth of them aimed at the acknowledgment gap.

    The requests with the smallest hashes are hit first. With more kills than requests, each is hit again, at a later token.
    Raises ValueError if there is nothing to kill.
    """
    if kills and not requests:
        raise ValueError("There are no requests, so no worker can be killed.")
    hit = heapq.nsmallest(min(kills, requests), range(requests), key=lambda request: _hash_of(seed, request))
    gaps, plan = math.ceil(kills * GAP_SHARE), KillPlan()
    for number in range(kills):
        request = hit[number % len(hit)]
        plan[request] = (*plan.get(request, ()), "gap" if number < gaps else "anywhere")
    return plan


def is_fatal(plan: KillPlan, seed: int, request: int, before: int, boundary: Boundary) -> bool:
    """Whether the holder of this request, which was killed so often `before`, is killed at the boundary.

    A kill that found no place (no effect, no gap) happens when the workflow is about to end, the last also right after it.
    """
    aims = plan.get(request, ())[before:]
    if not aims or boundary.outcome not in (None, "committed"):
        return False
    chance = _hash_of(seed, request, before, boundary.place)
    if boundary.transaction in _ENDS:
        return boundary.edge == "after" or len(aims) > 1 or chance < 0.5
    if aims[0] == "gap":
        return label(boundary) == GAP[_hash_of(seed, request, before) < 0.5]
    rare = 2.0 ** -(1 + int(4 * _hash_of(seed, request, before)))  # the rarer, the farther into a long workflow
    first = boundary.transaction == "load" and before == 0  # if another lost its lease, and that is a matter of luck
    return boundary.transaction in _ON_THE_WAY and chance < rare and not first


def _hash_of(*what: object) -> float:
    """A number from 0 to 1, the same for the same."""
    return int.from_bytes(hashlib.sha256(repr(what).encode()).digest()[:8], "big") / 2**64
