"""What the pair matrix records: each pair of two transactions at once, and which differences are known to do no harm."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ...statements import TRANSACTIONS
from .sessions import End, PairOutcome
from .situations import Call

IN_TURN, OTHER_WAY, ALONE = "first, then second", "second, then first", "second alone"


@dataclass(frozen=True)
class Pair:
    """`second` was started while `first` was uncommitted; then `first` ended with `end`.

    `like` names what it came out like: first then second, second then first (if it did not wait), second alone (after a
    rollback), or the name of a known difference; None is a difference. Then `found` and `expected` are kept.
    """

    situation: str
    first: Call
    second: Call
    end: End
    waited: bool
    like: str | None
    found: PairOutcome | None = None
    expected: PairOutcome | None = None

    @property
    def is_known(self) -> bool:
        """Whether it is a difference that does no harm."""
        return self.like in KNOWN

    @property
    def answers_agree(self) -> bool:
        """Whether the second got the answer that it would have got in turn."""
        return not (self.found and self.expected) or self.found.second == self.expected.second

    def sentence(self) -> str:
        """What happened, in a sentence or two."""
        did = f"{self.first.label} was held, {self.second.label} {'waited' if self.waited else 'passed'}"
        then = "was committed" if self.end == "COMMIT" else "was rolled back"
        so_far = f"{self.situation}: {did}; the first {then}."
        if self.like or not (self.found and self.expected):
            return f"{so_far} It came out like {self.like}."
        if self.waited and not TRANSACTIONS[self.second.transaction].waits:
            so_far += f" A {self.second.transaction} may never wait."
        if not self.answers_agree:
            return f"{so_far} The second got {self.found.second:.160}; in turn, it gets {self.expected.second:.160}."
        return so_far + (" The rows differ from those in turn." if self.found.rows != self.expected.rows else "")


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
