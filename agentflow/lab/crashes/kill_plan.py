"""Which workers a soak kills, and where: decided in advance by a hash of seed, request, boundary and token.

The same seed and the same number of requests give the same kills, however the workers share the work.
"""

from __future__ import annotations

import hashlib
import heapq
import math
from collections.abc import Sequence
from functools import partial

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

_AGAIN = ("after claim", "before load", "after load")  # every successor passes them
GAP_SHARE = 0.1

KillPlan = dict[int, tuple[str, ...]]
"""For each request that is hit: where its first holder is killed, where the next one, and so on."""


def label(boundary: Boundary) -> str:
    """The boundary's name in a plan and in the history: checkpoints are told apart, other transactions come once."""
    return boundary.place if boundary.transaction == "checkpoint" else f"{boundary.edge} {boundary.transaction}"


def plan_kills(seed: int, requests: int, kills: int) -> KillPlan:
    """Exactly `kills` kills, at least a tenth of them in the acknowledgment gap.

    The requests whose best boundary has the smallest hash are hit first. With more kills than requests, each is hit again
    at its next token, where a successor is certain to pass. Raises ValueError if there is nothing to kill.
    """
    if kills and not requests:
        raise ValueError("There are no requests, so no worker can be killed.")
    plan: KillPlan = {}
    left, owed, token = kills, math.ceil(kills * GAP_SHARE), 1
    while left:
        more_to_come = left > requests
        hit = _smallest(seed, requests, token, min(left, requests))
        for request in hit:
            before = plan.get(request, ())
            choices = [b for b in _reachable(before) if not (more_to_come and b == PATH[-1])]
            if owed > 0:
                choices = [b for b in choices if b in GAP] or choices
            chosen = min(choices, key=partial(_hash_of, seed, request, token))
            plan[request], owed = (*before, chosen), owed - (chosen in GAP)
        left, token = left - len(hit), token + 1
    return plan


def _smallest(seed: int, requests: int, token: int, count: int) -> list[int]:
    """The `count` requests with the smallest hashes, in that order; no more than these are kept in memory."""
    return heapq.nsmallest(count, range(requests), key=lambda r: min(_hash_of(seed, r, token, b) for b in PATH))


def _reachable(before: Sequence[str]) -> list[str]:
    """Where the holder of the next token is certain to pass after the last of these kills."""
    if not before:
        return list(PATH)
    begins = max([1, *(PATH.index(b) + b.startswith("after") for b in before if b in PATH)])
    if PATH.index("before tool") < begins < PATH.index("after acknowledge"):
        begins = PATH.index("before tool")  # not acknowledged: the tool is called again
    return [*_AGAIN, *PATH[begins:]]


def _hash_of(seed: int, request: int, token: int, boundary: str) -> int:
    return int.from_bytes(hashlib.sha256(f"{seed}:{request}:{boundary}:{token}".encode()).digest()[:8], "big")
