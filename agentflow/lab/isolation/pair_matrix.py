"""Plays every two transactions on one workflow at once, the first held uncommitted, and compares with one after the other.

The outcome must be that of one order or the other. This is what entitles the explorer to move transaction by transaction.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field, replace
from itertools import chain

from ...database import Database
from ...engine import Engine, find_database
from ...errors import AgentFlowError
from ...statements import TRANSACTIONS
from ..laboratory.scratch_schema import new_name, own_schema
from . import matrix_picture
from .pairs import ALONE, IN_TURN, KNOWN, OTHER_WAY, Pair
from .sessions import PairOutcome, TwoSessions
from .situations import SITUATIONS, Call, calls, worth_playing

AT_ONCE = 2  # how many situations are played side by side, each in a schema of its own


@dataclass(frozen=True)
class PairMatrix:
    """The outcome of every pair. If there are no `differences`, two transactions at once do what one after the other does."""

    engine: str
    pairs: tuple[Pair, ...] = field(repr=False)
    seconds: float = field(repr=False)

    @property
    def differences(self) -> list[Pair]:
        """The pairs that came out like neither order, or waited where nobody may; known differences are not among them."""
        return [pair for pair in self.pairs if pair.like is None]

    def __str__(self) -> str:
        return matrix_picture.text(self.engine, self.pairs)

    def _repr_html_(self) -> str:
        return matrix_picture.html(self.engine, self.pairs)


def pair_matrix(
    kind: type[Engine] = Engine,
    database: Database | None = None,
    situations: Iterable[str] = tuple(SITUATIONS),
    transactions: Iterable[str] = tuple(TRANSACTIONS),
) -> PairMatrix:
    """Every pair of these transactions of this engine, played at once from each of these situations, and compared.

    It works in schemas of its own on the database's server (find_database() without one) and leaves nothing there.
    Raises AgentFlowError for an unknown situation or transaction, DatabaseAway.
    """
    todo, wanted = list(situations), set(transactions)
    _know("situation", todo, SITUATIONS)
    _know("transaction", wanted, TRANSACTIONS)
    where = database or find_database()
    began = time.perf_counter()
    stopped = threading.Event()
    with ThreadPoolExecutor(AT_ONCE) as threads:
        several = threads.map(lambda _: list(_play(kind, where, todo, wanted, stopped)), range(min(AT_ONCE, len(todo))))
        try:
            found = sorted(chain.from_iterable(several), key=lambda pair: list(SITUATIONS).index(pair.situation))
        finally:  # after an interrupt nobody waits for the rest
            stopped.set()
    return PairMatrix(kind.__name__, tuple(found), time.perf_counter() - began)


def _know(what: str, names: Iterable[str], known: Iterable[str]) -> None:
    for name in names:
        if name not in known:
            raise AgentFlowError(f"There is no {what} {name!r:.80}; choose from {', '.join(known)}.")


def _play(
    kind: type[Engine], where: Database, todo: list[str], wanted: set[str], stopped: threading.Event
) -> Iterator[Pair]:
    """The pairs of the situations that these two sessions take from the list."""
    url = where.address
    with own_schema(url, new_name("pairs")) as database, closing(TwoSessions(kind, database, stopped)) as sessions:
        while todo:
            try:
                situation = todo.pop(0)
            except IndexError:  # the other sessions took the last
                return
            several = [call for call in calls(sessions.set_up(situation)) if call.transaction in wanted]
            yield from _matrix(sessions, situation, several)


def _matrix(sessions: TwoSessions, situation: str, several: list[Call]) -> Iterator[Pair]:
    before = sessions.in_turn().rows
    alone = {call: sessions.in_turn(call) for call in several}
    back = {call: sessions.way_back(before, alone[call].rows) for call in several}
    wanted = [(x, y) for x in several for y in several if worth_playing(situation, x, y)]
    serial = {(first, second): sessions.in_turn(first, second) for first, second in wanted}
    for first, second in wanted:
        if back[first] or TRANSACTIONS[first.transaction].waits:  # a read, or a claim of nothing, ends only in one way
            found, waited = sessions.at_once(first, second, "ROLLBACK")
            expected = replace(alone[second], first=found.first)
            yield _judged(Pair(situation, first, second, "ROLLBACK", waited, None, found, expected), None, before)
        found, waited = sessions.at_once(first, second, "COMMIT")
        if back[first]:
            sessions.restore(back[first])
        turned = serial[second, first]
        pair = Pair(situation, first, second, "COMMIT", waited, None, found, serial[first, second])
        yield _judged(pair, PairOutcome(turned.second, turned.first, turned.rows), alone[first].rows)


def _judged(pair: Pair, turned: PairOutcome | None, without_second: str) -> Pair:
    """The pair with what it came out like. A second that waited must come after the first, and some may never wait."""
    if pair.waited and not TRANSACTIONS[pair.second.transaction].waits:
        return pair
    like = None
    if pair.found == pair.expected:
        like = IN_TURN if turned else ALONE
    elif pair.found == turned and not pair.waited:
        like = OTHER_WAY
    if like:
        return replace(pair, like=like, found=None, expected=None)
    return replace(pair, like=next((name for name, known in KNOWN.items() if known.holds(pair, without_second)), None))
