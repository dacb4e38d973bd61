"""One order of what racing workers committed that explains who got which row, and the schedule that says it.

What lives here: `Commit`, putting commits in order, and their moves. What does not: what else a race came to
(`race_result`). A worker reads the clock a moment before it commits, so by time alone neighbours may stand in the wrong
order. Three things hold whatever the clock said: a worker does one thing after another; the entries of a workflow are
numbered; and a claim takes the oldest row that it can get, so a row that it passed over was somebody else's by then.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise
from typing import Literal

from ..history.faults import FAULTS
from ..schedule.grammar import Move, Schedule, Setting

EXPIRED = FAULTS["expire"].event
_DONE = {"workflow_completed", "workflow_failed", "workflow_waiting"}


@dataclass(frozen=True)
class Commit:
    """One entry of a workflow's history: which transaction of which worker was committed, or refused."""

    worker: str | None
    workflow: str
    event: str
    transaction: str
    subject: str | None
    token: int | None
    at: float


def in_order(entries: Sequence[Commit]) -> tuple[Commit, ...]:
    """The entries in an order that explains who got which row. They come workflow by workflow, in the order of the queue."""
    later: list[tuple[int, int]] = []
    found, clashes = _sorted(entries, later)
    while clashes and not set(clashes) <= set(later):
        later += clashes
        try:
            found, clashes = _sorted(entries, later)
        except (
            CycleError
        ):  # the worker that passed over the row is the one that must end its lease: nothing explains it
            break
    return tuple(entries[n] for n in found)


def _sorted(entries: Sequence[Commit], later: Sequence[tuple[int, int]]) -> tuple[list[int], list[tuple[int, int]]]:
    """An order, and each (claim, expiry) in it where the claim should have taken the row whose lease had just ended."""
    order: TopologicalSorter[int] = TopologicalSorter(dict.fromkeys(range(len(entries)), ()))
    for before, after in (*(pair for chain in _chains(entries) for pair in pairwise(chain)), *later):
        order.add(after, before)
    order.prepare()
    queue = {name: n for n, name in enumerate(dict.fromkeys(entry.workflow for entry in entries))}
    free: dict[str, int | None] = dict.fromkeys(queue)  # the rows that a claim could get, and which expiry made it so
    waiting: list[tuple[float, int]] = []
    found: list[int] = []
    clashes: list[tuple[int, int]] = []

    def older(n: int) -> list[str]:
        """What the claim should have taken instead."""
        is_claim = entries[n].event == "workflow_claimed"
        return [name for name in free if is_claim and queue[name] < queue[entries[n].workflow]]

    while order.is_active():
        for n in order.get_ready():
            heapq.heappush(waiting, (entries[n].at, n))
        chosen = next((each for each in sorted(waiting) if not older(each[1])), waiting[0])
        waiting.remove(chosen)
        heapq.heapify(waiting)
        n = chosen[1]
        clashes += [(n, made) for name in older(n) if (made := free[name]) is not None]
        found.append(n)
        order.done(n)
        if entries[n].event in (EXPIRED, "lease_released"):
            free[entries[n].workflow] = n
        elif entries[n].event == "workflow_claimed":
            free.pop(entries[n].workflow, None)
    return found, clashes


def _chains(entries: Sequence[Commit]) -> list[list[int]]:
    """What stays in order: the entries of each workflow, and those of each worker, claim by claim."""
    began = {(e.workflow, e.token): e.at for e in entries if e.event == "workflow_claimed"}
    workflows: dict[str, list[int]] = {}
    workers: dict[str, list[tuple[float, int]]] = {}
    for n, entry in enumerate(entries):
        workflows.setdefault(entry.workflow, []).append(n)
        if entry.worker:
            workers.setdefault(entry.worker, []).append((began[entry.workflow, entry.token], n))
    return [*workflows.values(), *([n for _, n in sorted(chain)] for chain in workers.values())]


def schedule_of(commits: Sequence[Commit], requests: int) -> str:
    """The line that makes these commits, in its shortest form."""
    return str(Schedule(Setting(requests=requests), tuple(_moves(commits, requests))))


def _moves(commits: Sequence[Commit], requests: int) -> Iterator[Move]:
    """A move for each commit; and where time ran out by itself, a move that ends it before somebody notices."""
    ends: dict[str, Literal["expire", "due"]] = {}  # what has to end before the workflow can be claimed again
    holder: dict[str, int | None] = {}
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
        elif commit.event in _DONE or commit.event == "lease_released":
            ends.pop(name, None)
