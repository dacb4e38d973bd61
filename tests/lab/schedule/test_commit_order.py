"""The order of racing commits does not depend on the order in which they are given, nor on a clock that is a little wrong."""

from __future__ import annotations

from itertools import permutations

from agentflow.lab.schedule.commit_order import Commit, sorted_by_commit


def made(worker: str, request: int, event: str, transaction: str, at: float) -> Commit:
    return Commit(worker, f"request-{request}", event, transaction, None, 1, at)


def test_three_movers_have_one_order_however_they_are_given() -> None:
    """A's claim came before B's (it got the older row), B's before C's checkpoint and that before A's claim (by the clock)."""
    a = made("A.1", 1, "workflow_claimed", "claim", 3.0)
    b = made("B.1", 2, "workflow_claimed", "claim", 1.0)
    earlier = made("C.1", 3, "workflow_claimed", "claim", 0.5)
    c = made("C.1", 3, "checkpoint_committed", "checkpoint", 2.0)
    orders = {
        tuple(sorted_by_commit(movers, lambda one: one, [a, b, earlier, c])) for movers in permutations([a, b, c])
    }
    assert len(orders) == 1
    (order,) = orders
    assert order.index(a) < order.index(b)


def test_what_committed_nothing_comes_last() -> None:
    claim = made("A.1", 1, "workflow_claimed", "claim", 1.0)
    found = sorted_by_commit(["idle", "claim"], {"claim": claim}.get, [claim])
    assert found == ["claim", "idle"]
