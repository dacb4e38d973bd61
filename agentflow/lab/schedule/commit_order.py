"""One order of what racing workers committed that explains who got which row.

A worker reads the clock a moment before it commits, so times alone may put neighbours in the wrong order. Three things
hold whatever the clock said: a worker does one thing after another; the entries of a workflow are numbered; and a claim
takes the oldest row that it can get, so every older row that it passed over was held by another worker at that moment.

The first two are edges of a graph, and every topological order of it respects them. The third depends on the order itself,
so it is checked while the order is built, and what contradicts it becomes an edge for the next try.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise
from typing import Any, TypeVar

from ..history.faults import FAULTS

EXPIRED = FAULTS["expire"].event
T = TypeVar("T")


@dataclass(frozen=True)
class Commit:
    """One entry of a workflow's history: a transaction that a worker committed, or that was refused. `at` in ms."""

    worker: str | None
    workflow: str
    event: str
    transaction: str
    subject: str | None
    token: int | None
    at: float
    detail: Mapping[str, Any] = field(default_factory=dict, compare=False)


def in_order(entries: Sequence[Commit]) -> tuple[Commit, ...]:
    """Sorts the entries into an order that explains who got which row.

    They are given workflow by workflow, the oldest workflow first, each in the order of its own numbers.
    """
    later: list[tuple[int, int]] = []  # extra edges (claim, freeing): the row became free only after that claim
    found, clashes = _sorted(entries, later)
    while clashes and not set(clashes) <= set(later):  # each try adds an edge, so this ends
        later += clashes
        try:
            found, clashes = _sorted(entries, later)
        except CycleError:
            # The worker that passed over the row also freed it earlier: no order explains that, so keep the last one.
            break
    return tuple(entries[n] for n in found)


def sorted_by_commit(items: Sequence[T], commit: Callable[[T], Commit | None], entries: Sequence[Commit]) -> list[T]:
    """Returns the items in the order of their commits among all `entries`; those without a commit come last."""
    places = {entry: n for n, entry in enumerate(in_order(entries))}
    return sorted(items, key=lambda item: places.get(found, len(places)) if (found := commit(item)) else len(places))


def _sorted(entries: Sequence[Commit], later: Sequence[tuple[int, int]]) -> tuple[list[int], list[tuple[int, int]]]:
    """An order, and each (claim, freeing) in it where the claim passed over an older row that had become free before it."""
    order: TopologicalSorter[int] = TopologicalSorter(dict.fromkeys(range(len(entries)), ()))
    for before, after in (*(pair for chain in _chains(entries) for pair in pairwise(chain)), *later):
        order.add(after, before)
    order.prepare()
    queue = {name: n for n, name in enumerate(dict.fromkeys(entry.workflow for entry in entries))}
    # The rows that a claim could get, each with the entry that freed it (None: free from the beginning).
    free: dict[str, int | None] = dict.fromkeys(queue)
    waiting: list[tuple[float, int]] = []  # what may come next, as (time, entry)
    found: list[int] = []
    clashes: list[tuple[int, int]] = []

    def older(n: int) -> list[str]:
        """The free rows that entry `n`, if it is a claim, should have taken instead of its own."""
        is_claim = entries[n].event == "workflow_claimed"
        return [name for name in free if is_claim and queue[name] < queue[entries[n].workflow]]

    while order.is_active():
        waiting += [(entries[n].at, n) for n in order.get_ready()]
        # The earliest entry that contradicts nothing; if each of them is a claim that passes over a free row, the earliest.
        chosen = next((each for each in sorted(waiting) if not older(each[1])), min(waiting))
        waiting.remove(chosen)
        n = chosen[1]
        # A row that was free from the beginning gives no edge: nothing could have come later to explain it.
        clashes += [(n, made) for name in older(n) if (made := free[name]) is not None]
        found.append(n)
        order.done(n)
        if entries[n].event in (EXPIRED, "lease_released"):
            free[entries[n].workflow] = n
        elif entries[n].event == "workflow_claimed":
            free.pop(entries[n].workflow, None)
    return found, clashes


def _chains(entries: Sequence[Commit]) -> list[list[int]]:
    """What stays in order: the entries of each workflow, and those of each worker.

    A worker's entries are sorted by the time of their claim, then by their place in the workflow: the time of an entry
    itself may be a moment early, but a worker claims only when it is done with the workflow before.
    """
    began = {(e.workflow, e.token): e.at for e in entries if e.event == "workflow_claimed"}
    workflows: dict[str, list[int]] = {}
    workers: dict[str, list[tuple[float, int]]] = {}
    for n, entry in enumerate(entries):
        workflows.setdefault(entry.workflow, []).append(n)
        if entry.worker and (entry.workflow, entry.token) in began:
            workers.setdefault(entry.worker, []).append((began[entry.workflow, entry.token], n))
    return [*workflows.values(), *([n for _, n in sorted(chain)] for chain in workers.values())]
