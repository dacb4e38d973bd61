"""The pair matrix: every two transactions on one workflow, the first held uncommitted while the second is started.

What lives here: which pairs there are, and what must come of each: the same as of one after the other. This is what entitles
the explorer to move transaction by transaction. What does not: the situations they start from (`situations`), the two
connections (`pairs_stage`), what it looks like (`pairs_view`).
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field, replace

from ...database import Database
from ...engine import Engine, find_database
from ...errors import AgentFlowError
from ...statements import TRANSACTIONS
from ..laboratory.scratch_schema import new_name, own_schema
from . import pairs_view
from .sessions import End, Outcome, Stage
from .situations import SITUATIONS, Call, calls, worth_playing

STAGES = 2  # how many pairs are played side by side, each in a schema of its own
PASSES = ("claim", "load")
"""The transactions that wait for nobody: a claim skips what is locked, a load only reads."""

IN_TURN, OTHER_WAY, ALONE = "first, then second", "second, then first", "second alone"


@dataclass(frozen=True)
class Pair:
    """`second` was started while `first` was uncommitted; then `first` ended with `end`.

    `like` says what it came out like: first then second, second then first (if it did not wait), second alone (after a
    rollback), or the name of a known difference; None is a difference. Then `found` and `expected` are kept.
    """

    situation: str
    first: Call
    second: Call
    end: End
    waited: bool
    like: str | None
    found: Outcome | None = None
    expected: Outcome | None = None

    @property
    def is_known(self) -> bool:
        """Whether it is a difference that does no harm."""
        return self.like in KNOWN

    @property
    def told_the_same(self) -> bool:
        """Whether the second was told what it would have been told in turn."""
        return not (self.found and self.expected) or self.found.second == self.expected.second

    def says(self) -> str:
        """What happened, in a sentence or two."""
        did = f"{self.first.label} was held, {self.second.label} {'waited' if self.waited else 'passed'}"
        then = "was committed" if self.end == "COMMIT" else "was rolled back"
        told = f"{self.situation}: {did}; the first {then}."
        if self.like or not (self.found and self.expected):
            return f"{told} It came out like {self.like}."
        if self.waited and self.second.transaction in PASSES:
            told += f" A {self.second.transaction} may never wait."
        if not self.told_the_same:
            return f"{told} The second was told {self.found.second:.160}; in turn, {self.expected.second:.160}."
        return told + (" The rows are others than in turn." if self.found.rows != self.expected.rows else "")


@dataclass(frozen=True)
class Known:
    """A difference that does no harm, and the reason. `holds` looks at the pair and at the rows without its second."""

    reason: str
    holds: Callable[[Pair, str], bool]


def _skipped(pair: Pair, without_second: str) -> bool:
    return (
        pair.second.transaction == "claim"
        and not pair.waited
        and pair.found is not None
        and (pair.found.second, pair.found.rows) == ("None", without_second)
    )


def _asked_again(pair: Pair, _: str) -> bool:
    """Whether nothing differs but one refusal of the second, recorded just before its success."""
    if not (pair.waited and pair.found and pair.expected) or pair.found.second != pair.expected.second:
        return False
    rows = json.loads(pair.found.rows)
    history = rows["history"] or []
    if len(history) < 2 or history[-2]["event"] not in ("write_refused", "event_refused"):
        return False
    refusal, last = history.pop(-2), history[-1]
    last["n"] -= 1
    rows["workflows"][0]["entries"] -= 1
    return refusal["transaction"] == last["transaction"] and bool(rows == json.loads(pair.expected.rows))


KNOWN: Mapping[str, Known] = {
    "a claim skipped the row": Known(
        "A claim takes no row that somebody holds locked; the worker looks twice, and finds it then.", _skipped
    ),
    "a refusal was asked again": Known(
        "What the second needed came while it waited to record its refusal; the engine asks again, so both are in the history.",
        _asked_again,
    ),
}
"""The differences that are expected, by name, each with the reason why it does no harm."""


@dataclass(frozen=True)
class PairMatrix:
    """What came of every pair. With `differences` empty, two transactions at once do what one after the other does."""

    engine: str
    pairs: tuple[Pair, ...] = field(repr=False)
    seconds: float = field(repr=False)

    @property
    def differences(self) -> list[Pair]:
        """The pairs that came out like neither order, or waited where nobody may; known differences are not among them."""
        return [pair for pair in self.pairs if pair.like is None]

    @property
    def known(self) -> Counter[str]:
        """How often each known difference was met."""
        return Counter(pair.like for pair in self.pairs if pair.like and pair.is_known)

    @staticmethod
    def reason(name: str) -> str:
        """Why the known difference of this name does no harm."""
        return KNOWN[name].reason

    def __str__(self) -> str:
        return pairs_view.text(self)

    def _repr_html_(self) -> str:
        return pairs_view.html(self)


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
    _check("situation", todo, SITUATIONS)
    _check("transaction", wanted, TRANSACTIONS)
    where = database or find_database()
    began = time.perf_counter()
    with ThreadPoolExecutor(STAGES) as threads:
        several = threads.map(lambda _: list(_play(kind, where, todo, wanted)), range(min(STAGES, len(todo))))
        found = [pair for some in several for pair in some]
    order = list(SITUATIONS)
    found.sort(key=lambda pair: order.index(pair.situation))
    return PairMatrix(kind.__name__, tuple(found), time.perf_counter() - began)


def _check(what: str, names: Iterable[str], known: Iterable[str]) -> None:
    for name in names:
        if name not in known:
            raise AgentFlowError(f"there is no {what} {name!r:.80}; there are {', '.join(known)}.")


def _play(kind: type[Engine], where: Database, todo: list[str], wanted: set[str]) -> Iterator[Pair]:
    """The pairs of the situations that this stage took from the list."""
    url = where.url.render_as_string(hide_password=False)
    with own_schema(url, new_name("pairs")) as database, closing(Stage(kind, database)) as stage:
        while todo:
            try:
                situation = todo.pop(0)
            except IndexError:  # the other stage took the last
                return
            several = [call for call in calls(stage.set_up(situation)) if call.transaction in wanted]
            yield from _matrix(stage, situation, several)


def _matrix(stage: Stage, situation: str, several: list[Call]) -> Iterator[Pair]:
    before = stage.in_turn().rows
    alone = {call: stage.in_turn(call) for call in several}
    back = {call: stage.way_back(before, alone[call].rows) for call in several}
    wanted = [(x, y) for x in several for y in several if worth_playing(situation, x, y)]
    serial = {(first, second): stage.in_turn(first, second) for first, second in wanted}
    for first, second in wanted:
        if back[first] or first.transaction not in PASSES:  # a read, or a claim of nothing, ends only in one way
            found, waited = stage.at_once(first, second, "ROLLBACK")
            expected = replace(alone[second], first=found.first)
            pair = Pair(situation, first, second, "ROLLBACK", waited, None, found, expected)
            yield _judged(pair, None, before)
        found, waited = stage.at_once(first, second, "COMMIT")
        if back[first]:
            stage.restore(back[first])
        turned = serial[second, first]
        pair = Pair(situation, first, second, "COMMIT", waited, None, found, serial[first, second])
        yield _judged(pair, Outcome(turned.second, turned.first, turned.rows), alone[first].rows)


def _judged(pair: Pair, turned: Outcome | None, without_second: str) -> Pair:
    """The pair with what it came out like. Who had to wait comes after the first, and some may never wait."""
    if pair.waited and pair.second.transaction in PASSES:
        return pair
    like = None
    if pair.found == pair.expected:
        like = IN_TURN if turned else ALONE
    elif pair.found == turned and not pair.waited:
        like = OTHER_WAY
    if like:
        return replace(pair, like=like, found=None, expected=None)
    return replace(pair, like=next((name for name, known in KNOWN.items() if known.holds(pair, without_second)), None))
