"""The moves that make the commits of a race."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

from ..schedule.commit_order import EXPIRED, Commit
from ..schedule.grammar import Move

_DONE = {"workflow_completed", "workflow_failed", "workflow_waiting", "lease_released"}


def moves_of(commits: Sequence[Commit], requests: int) -> Iterator[Move]:
    """Yields a move for each commit; where a lease or a back-off ran out by itself, also the move that ends it.

    No entry says so: it becomes visible in the next claim, or in a write refused under the token that the row still has.
    """
    ends: dict[str, Literal["expire", "due"]] = {}  # what has to end before the workflow can be claimed again
    holder: dict[str, int | None] = {}  # the token of its last claim
    for commit in commits:
        name = commit.workflow
        request = int(name.rpartition("-")[2]) if requests > 1 else None
        notices = commit.event == "workflow_claimed" or (
            commit.event == "write_refused" and holder.get(name) == commit.token and ends.get(name) == "expire"
        )
        if notices and name in ends:
            yield Move(ends.pop(name), request=request)
        if commit.event == EXPIRED:
            ends.pop(name, None)
            yield Move("expire", request=request)
        elif commit.event == "lease_renewed":
            yield Move("renew", str(commit.worker))
        elif commit.worker and commit.transaction != "fault":
            yield Move("go", commit.worker)
        if commit.event == "workflow_claimed":
            ends[name], holder[name] = "expire", commit.token
        elif commit.event == "attempt_failed":
            ends[name] = "due"
        elif commit.event in _DONE:
            ends.pop(name, None)
