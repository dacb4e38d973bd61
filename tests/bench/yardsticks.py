"""What our times are divided by: fixed work that a slow machine slows as it slows ours, and that no change of ours slows.

Both sides of a ratio are measured in the same run: by turns, or, where ours takes seconds, the yardstick before and after.
"""

from __future__ import annotations

import multiprocessing
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import psycopg
from psycopg.rows import DictRow

from agentflow import Database
from agentflow.database import _SETTINGS as SESSION
from agentflow.lab.laboratory.processes import PRELOADED

BESIDE = 1.0  # seconds for which a yardstick is repeated before, and again after
STEADY = 1.5  # a yardstick that changed by more than this meanwhile measures nothing
Statements = Sequence[tuple[str, Mapping[str, Any] | None]]


class Ratio(NamedTuple):
    """Our time over the yardstick's, our seconds, and why it cannot be judged, if it cannot."""

    value: float
    seconds: float
    unjudged: str = ""


def timed(work: Callable[[], object]) -> Callable[[], float]:
    """A function that does the work and returns its seconds."""

    def took() -> float:
        began = time.perf_counter()
        work()
        return time.perf_counter() - began

    return took


def by_turns(ours: Callable[[], float], yardstick: Callable[[], float], rounds: int) -> Ratio:
    """Both take turns (A B, then B A); each round gives a ratio, and the median counts. The first round warms up."""
    pairs = []
    for number in range(rounds + 1):
        if number % 2:
            pair = ours(), yardstick()
        else:
            pair = (yardstick(), ours())[::-1]
        if number:
            pairs.append(pair)
    return of_pairs(pairs)


def of_pairs(pairs: Sequence[tuple[float, float]]) -> Ratio:
    """The median of the ratios, and the median of our seconds."""
    return Ratio(statistics.median(a / b for a, b in pairs), statistics.median(a for a, _ in pairs))


def between(yardstick: Callable[[], float], ours: Callable[[], float]) -> Ratio:
    """Ours once, over the yardstick before and after it. A machine that changed its speed meanwhile cannot judge."""
    yardstick()
    before, seconds, after = _repeated(yardstick), ours(), _repeated(yardstick)
    change = max(before, after) / min(before, after)
    steady = "" if change <= STEADY else f"the machine's speed changed {change:.1f} times meanwhile"
    return Ratio(seconds / statistics.mean((before, after)), seconds, steady)


def _repeated(yardstick: Callable[[], float]) -> float:
    took: list[float] = []
    while sum(took) < BESIDE:
        took.append(yardstick())
    return statistics.mean(took)  # the median would not see what a scheduler or a quota takes now and then


# -- pure Python -------------------------------------------------------------------------------------------------------


def pure_python() -> None:
    """Small texts and tuples are made, counted and sorted."""
    counts: dict[tuple[int, str], int] = {}
    for number in range(10_000):
        key = number * 7919 % 997, f"request-{number % 89}"
        counts[key] = counts.get(key, 0) + len(key[1])
    sorted(counts, key=lambda key: (key[1], key[0]))


# -- the same statements, raw ------------------------------------------------------------------------------------------


class Recording(Database):
    """A database, and its copies, that note in `sent` what they send and how many rows came back."""

    sent: list[tuple[str, Mapping[str, Any] | None]]
    rows: list[int]

    def _run(self, name: str, text: str, params: Mapping[str, Any] | None) -> list[DictRow]:
        found = super()._run(name, text, params)
        if text:
            self.sent.append((text, params))
            self.rows.append(len(found))
        return found


class Raw:
    """The statements that `work` sends, to be sent again by psycopg alone. They must begin by emptying their tables."""

    def __init__(self, database: Database, work: Callable[[Database], object]) -> None:
        self._target = database.url.set(drivername="postgresql").render_as_string(hide_password=False)
        recording = Recording(self._target, database.schema)
        recording.sent, recording.rows = [], []
        work(recording)
        recording.close()
        self.statements: Statements = recording.sent
        assert replay(self._target, self.statements) == recording.rows, "raw, the statements do something else"

    def here(self) -> None:
        """They are sent on a new connection."""
        replay(self._target, self.statements)

    def in_a_process(self) -> None:
        """A bare process sends them and ends. It comes from the fork server that the laboratory's processes come from."""
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(PRELOADED)
        process = context.Process(target=replay, args=(self._target, self.statements))
        process.start()
        process.join()
        assert process.exitcode == 0


def at_once(several: Sequence[Callable[[], object]]) -> None:
    """All are done side by side, each in a thread."""
    with ThreadPoolExecutor(len(several)) as threads:
        for done in [threads.submit(one) for one in several]:
            done.result()


def replay(target: str, statements: Statements) -> list[int]:
    """The numbers of rows that came back."""
    with psycopg.connect(target, autocommit=True) as connection:
        for setting in SESSION:
            connection.execute(setting)
        cursor = connection.cursor()
        return [len(cursor.execute(text, params, prepare=True).fetchall()) for text, params in statements]
