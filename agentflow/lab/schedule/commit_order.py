"""One order of commits that explains who got which row, although the times in the history are not exact.

A worker reads the clock a moment before it commits, so by time alone neighbours may be in the wrong order. Three things hold
whatever the clock says: a worker does one thing after another; the entries of a workflow are numbered; and a claim takes the
oldest row that it can get, so a row that it passed over was somebody else's by then. The first two are chains, which a
topological sort keeps. The third depends on what is free at that moment, so it is looked at while sorting: of the commits that
could be next, the earliest one is taken that passes over no free row.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise
from typing import TypeVar

EXPIRED = "lease_expired_for_test"
T = TypeVar("T")


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
    """Returns the entries in an order that explains who got which row. They are given workflow by workflow, oldest first."""
    later: list[tuple[int, int]] = []
    found, clashes = _sorted(entries, later)
    while clashes and not set(clashes) <= set(later):
        later += clashes
        try:
            found, clashes = _sorted(entries, later)
        except CycleError:  # the worker that passed over the row would have to end its lease: no order explains that
            break
    return tuple(entries[n] for n in found)


def sorted_by_commit(items: Sequence[T], commit: Callable[[T], Commit | None], entries: Sequence[Commit]) -> list[T]:
    """Returns the items in the order of their commits among all `entries`; those without a commit come last."""
    places = {entry: n for n, entry in enumerate(in_order(entries))}
    return sorted(items, key=lambda item: places.get(found, len(places)) if (found := commit(item)) else len(places))


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
    """The chains that any order keeps: the entries of each workflow, and those of each worker, claim by claim."""
    began = {(e.workflow, e.token): e.at for e in entries if e.event == "workflow_claimed"}
    workflows: dict[str, list[int]] = {}
    workers: dict[str, list[tuple[float, int]]] = {}
    for n, entry in enumerate(entries):
        workflows.setdefault(entry.workflow, []).append(n)
        if entry.worker and (entry.workflow, entry.token) in began:
            workers.setdefault(entry.worker, []).append((began[entry.workflow, entry.token], n))
    return [*workflows.values(), *([n for _, n in sorted(chain)] for chain in workers.values())]
