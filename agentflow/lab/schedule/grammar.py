"""The schedule: one line of text that makes one history.

A line is a setting, as `name=value` tokens, and then moves, all separated by spaces:

    without=fence_token requests=2 A*2 A|| expire B* A> A

The grammar is defined here once: how a line is read, what may follow what, and how it is printed in its shortest form.
Moves that are faults come from the table of faults. Nothing here talks to a database.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from string import Formatter
from typing import Any, Literal
from urllib.parse import quote, unquote

from ...errors import BadSchedule
from ..history.faults import FAULTS, fault

LANES = ("A", "B", "C", "D")
MAX_TIMES = 1_000
MAX_LENGTH = 10_000
MAX_REQUESTS = 9

NAME = r"\w[\w.-]*"
_PATTERNS = {
    "lane": r"(?P<lane>[A-D])",
    "times": r"(?P<times>[0-9]+)",
    "event": r"(?P<event>[^\s=@]+)(?:=(?P<payload>\S+?))?",
    "at": r"(?:@(?P<request>[1-9]))?",
}
_TOKENS: tuple[tuple[str, str, str], ...] = (
    ("{lane}", "go", "A commits its next transaction and stands before the one after"),
    ("{lane}*{times}", "go", "so many transactions"),
    ("{lane}*", "go", "to the end of what it works on"),
    ("{lane}.", "halt", "A commits its next transaction and stands directly after it"),
    ("{lane}+", "start", "a new process in A's lane"),
    ("{lane}~", "renew", "A renews its lease"),
    ("event:{event}{at}", "deliver", "an event arrives, event:NAME=JSON"),
    *((kind.token, kind.name, kind.does) for kind in FAULTS.values() if kind.token),
)
_WRITTEN = {verb: token for token, verb, _ in reversed(_TOKENS)}
LANE_VERBS = frozenset(verb for token, verb, _ in _TOKENS if "{lane}" in token)


def _pattern(token: str) -> str:
    parts = Formatter().parse(token)
    return "".join(re.escape(text) + (_PATTERNS[name] if name else "") for text, name, _, _ in parts)


TOKENS = {_pattern(token): (verb, does) for token, verb, does in _TOKENS}
"""The grammar: how a token looks, as a regular expression, its verb, and what it does (A stands for any lane)."""


EXAMPLES = [
    token.format(lane="A", times="5", event="NAME", at=at)
    for token, verb, _ in _TOKENS
    for at in (["", "@2"] if "{at}" in token and verb != "deliver" else [""])
]
"""A token of each kind, as one would write it: the suggestions for a token that is not a move."""


@dataclass(frozen=True)
class Setting:
    """What a schedule plays on; each field is a `name=value` token unless it has its default.

    `workflow` is a function's name, `without` the guards that the engine lacks, `requests` how many workflows wait,
    `model` "varying" answers each worker differently, `names` "shared" gives all workers one identity, `retry` is
    Policy.unknown_outcome.
    """

    workflow: str = "support_agent"
    without: tuple[str, ...] = ()
    requests: int = 1
    model: Literal["steady", "varying"] = "steady"
    names: Literal["unique", "shared"] = "unique"
    retry: Literal["call_again", "look_up"] = "call_again"

    def __str__(self) -> str:
        tokens = []
        for one in fields(self):
            value = getattr(self, one.name)
            if value != one.default:
                tokens.append(f"{one.name}={','.join(value) if isinstance(value, tuple) else value}")
        return " ".join(tokens)


_CHOICES = {"model": ("steady", "varying"), "names": ("unique", "shared"), "retry": ("call_again", "look_up")}
_VALUES = {
    "workflow": (NAME, "is not a name"),
    "without": (f"{NAME}(,{NAME})*", "is not a list of names"),
    "requests": (f"[1-{MAX_REQUESTS}]", f"is not a number from 1 to {MAX_REQUESTS}"),
    **{name: ("|".join(chosen), f"is not one of {', '.join(chosen)}") for name, chosen in _CHOICES.items()},
}
"""What each value of a setting looks like, and what is wrong with any other."""


@dataclass(frozen=True)
class Move:
    """One thing that a schedule makes happen. `times` None is "to the end"; `request` None is the only one concerned."""

    verb: str
    lane: str = ""
    times: int | None = 1
    request: int | None = None
    event: str = ""
    payload: Any = field(default=True, compare=False)
    payload_text: str = "true"

    def __str__(self) -> str:
        if self.verb == "go" and self.times != 1:
            return f"{self.lane}*{'' if self.times is None else self.times}"
        event = quote(self.event, safe=".:-_~/()") if self.event else ""
        event += "" if self.payload_text == "true" else f"={self.payload_text}"
        at = f"@{self.request}" if self.request else ""
        return _WRITTEN[self.verb].format(lane=self.lane, event=event, at=at)


def deliver(event: str, payload: Any = True, request: int | None = None) -> Move:
    """The move that delivers an event. Raises TypeError or ValueError for a payload that JSON cannot hold."""
    text = json.dumps(payload, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    text = re.sub(r"[\s@]", lambda found: f"\\u{ord(found[0]):04x}", text)
    (event + text).encode()  # a lone surrogate cannot be written down
    return Move("deliver", request=request, event=event, payload=payload, payload_text=text)


@dataclass(frozen=True)
class Schedule:
    """A setting and the moves on it; `str()` is the line in its shortest form."""

    setting: Setting = Setting()
    moves: tuple[Move, ...] = ()

    def __str__(self) -> str:
        tokens = [str(self.setting), *(str(move) for move in _joined(self.moves))]
        return " ".join(token for token in tokens if token)

    @property
    def lanes(self) -> tuple[str, ...]:
        """The lanes that take part, A and B always."""
        last = max((LANES.index(move.lane) for move in self.moves if move.lane), default=0)
        return LANES[: max(2, last + 1)]

    def then(self, *moves: Move) -> Schedule:
        """The same, and these moves."""
        return replace(self, moves=self.moves + moves)


def _joined(moves: Sequence[Move]) -> list[Move]:
    """Neighbouring counted transactions of one lane as one token."""
    short: list[Move] = []
    for move in moves:
        last = short[-1] if short else None
        if last and move.verb == last.verb == "go" and move.lane == last.lane and None not in (move.times, last.times):
            total = (last.times or 0) + (move.times or 0)
            if total <= MAX_TIMES:
                short[-1] = replace(last, times=total)
                continue
        short.append(move)
    return short


def parse(line: str, roll: Roll | None = None) -> Schedule:
    """Reads a line. Raises BadSchedule, which points at the token that is wrong.

    `roll` knows which lanes are dead or paused already; without it all are alive.
    """
    if len(line) > MAX_LENGTH:
        raise BadSchedule(f"This line has {len(line):,} characters; a schedule has at most {MAX_LENGTH:,}.")
    setting, lanes = Setting(), roll or Roll()
    moves: list[Move] = []
    said: set[str] = set()
    for found in re.finditer(r"\S+", line):
        token, at = found.group(), found.start()
        if re.match(r"[a-z]+=", token):
            if moves:
                raise _wrong(line, at, token, "comes after a move; name=value tokens come first")
            name = token.partition("=")[0]
            if name in said:
                raise _wrong(line, at, token, f"sets {name} a second time")
            said.add(name)
            setting = _set(setting, line, at, token)
            continue
        move = _move(line, at, token)
        if why := lanes.refuses(move):
            raise _wrong(line, at, token, why)
        if move.request and move.request > setting.requests:
            raise _wrong(line, at, token, f"is about request-{move.request}, but requests={setting.requests}")
        lanes.note(move)
        moves.append(move)
    return Schedule(setting, tuple(_joined(moves)))


def _wrong(line: str, at: int, token: str, why: str) -> BadSchedule:
    return BadSchedule(f'{line.strip() if len(line) < 200 else "line"} : "{token:.60}" at {at + 1} {why}.')


def _set(setting: Setting, line: str, at: int, token: str) -> Setting:
    name, _, value = token.partition("=")
    if name not in _VALUES:
        raise _wrong(line, at, token, f"is not one of {', '.join(_VALUES)}")
    pattern, complaint = _VALUES[name]
    if not re.fullmatch(pattern, value):
        raise _wrong(line, at, token, complaint)
    if name == "without":
        return replace(setting, without=tuple(sorted(set(value.split(",")))))
    return Setting(**{**vars(setting), name: int(value) if name == "requests" else value})


def _move(line: str, at: int, token: str) -> Move:
    for pattern, (verb, _) in TOKENS.items():
        if found := re.fullmatch(pattern, token):
            return _filled(line, at, token, verb, found)
    if _is_move(re.split("[;,]", token)[0]):
        raise _wrong(line, at, token, "is not a move; moves are separated by spaces")
    if token != token.upper() and _is_move(token.upper()):
        raise _wrong(line, at, token, "is not a move; lanes are written in capitals")
    if re.match(r"[A-D]", token):  # the lane is right, what follows it is not
        raise _wrong(line, at + 1, token[1:], "is not a move")
    raise _wrong(line, at, token, f"is not a move; try {', '.join(EXAMPLES)}")


def _is_move(token: str) -> bool:
    return any(re.fullmatch(pattern, token) for pattern in TOKENS)


def _filled(line: str, at: int, token: str, verb: str, found: re.Match[str]) -> Move:
    got = found.groupdict()
    request = int(got["request"]) if got.get("request") else None
    if verb == "deliver":
        try:
            return deliver(unquote(got["event"]), json.loads(got["payload"] or "true"), request)
        except (ValueError, RecursionError):
            why = 'has a payload that is not JSON (without spaces, such as {"by":"ada"})'
            raise _wrong(line, at, token, why) from None
    digits = (got.get("times") or "1").lstrip("0")[:9]  # as many as are too many; of 5,000 Python makes no number
    times = None if token.endswith("*") else int(digits or 0)
    if times is not None and not 1 <= times <= MAX_TIMES:
        raise _wrong(line, at, token, f"must repeat 1 to {MAX_TIMES:,} times")
    return Move(verb, got.get("lane") or "", times, request)


class Roll:
    """Which lanes are dead or paused after some moves, and so which moves may follow."""

    def __init__(self, moves: Sequence[Move] = ()) -> None:
        self.dead: set[str] = set()
        self.paused: set[str] = set()
        for move in moves:
            self.note(move)

    def refuses(self, move: Move) -> str:
        """Why this move cannot come now, as the end of a sentence that begins with the token; empty if it can."""
        lane, fate = move.lane, fault(move.verb).worker
        if not lane:
            return ""
        if move.verb == "start":
            return "" if lane in self.dead else f"starts a process in lane {lane}, whose worker is alive; kill it first"
        if lane in self.dead:
            return f"moves {lane}, which is dead; {lane}+ starts a new process in its lane"
        if fate == "awake":
            return "" if lane in self.paused else f"resumes {lane}, which is not paused"
        if lane in self.paused and fate != "lost":
            return f"moves {lane}, which is paused; {lane}> lets it go on"
        return ""

    def note(self, move: Move) -> None:
        """Takes note that the move was made."""
        fate = fault(move.verb).worker
        if fate == "lost":
            self.dead.add(move.lane)
        elif move.verb == "start":
            self.dead.discard(move.lane)
        if fate == "asleep":
            self.paused.add(move.lane)
        elif fate:
            self.paused.discard(move.lane)
