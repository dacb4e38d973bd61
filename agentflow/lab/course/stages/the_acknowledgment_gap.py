"""04: what the notebook about the acknowledgment gap asks, and how its exercise is judged."""

from __future__ import annotations

import datetime
import marshal
import pickle
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from itertools import product
from types import ModuleType
from typing import Any

from ....engine import Engine
from ....model import ToolCall
from ...notebook.tables import effects_of, shown
from ..checks import CheckFailed
from ..elsewhere import elsewhere
from ..judging import engine_aside, text_of
from ..outline import RIGHT, Outline, Question, exercise_of

WORKFLOWS, ACTIONS = ("request-1", "request-2"), ("resolve-account", "send-receipt")
LATER = {"a second": 1.0, "an hour": 3_607.0, "twelve hours": 43_200.0, "a day": 86_400.0, "months": 1e7, "years": 1e8}
SEPARATORS = (":", "-", "_", "/", "|", ".", ",", " ", "%", "\\", "#", "+", "\t", "1", '"', "::", "--")
PROGRAM = """\
import importlib, marshal, pickle, sys, types
code, defaults, named, modules, told = pickle.loads(sys.stdin.buffer.read())
around = {**named, **{name: importlib.import_module(module) for name, module in modules.items()}}
around["__builtins__"] = __builtins__
answer = types.FunctionType(marshal.loads(code), around, argdefs=defaults)(*told)
sys.stdout.buffer.write(b"answer" + pickle.dumps(answer))
"""


def key_for(make: Callable[[str, str], Any], engine: Engine) -> str:
    """`make(workflow_id, action)` gives the same key for the same action, and another for any other. Raises CheckFailed."""
    carried = _carried(make, WORKFLOWS[0], ACTIONS[0])  # before a call here can leave anything in its cache
    for workflow, action in product(WORKFLOWS, ACTIONS):
        _same_again(make, workflow, action)
    here = _key(make, WORKFLOWS[0], ACTIONS[0])
    last = WORKFLOWS[-1], ACTIONS[-1]  # another process may begin with any of them
    asked = _elsewhere(carried), _key(elsewhere(make), WORKFLOWS[0], ACTIONS[0]), _key(elsewhere(make), *last)
    for known, key in zip((here, here, _key(make, *last)), asked, strict=True):
        if key is not None and key != known:
            raise CheckFailed(
                f"Here the key is {shown(known)}, in another process {shown(key)}. B is another process, and would call under "
                "another key. (What one process remembers, computes when its module is loaded, or is given, such as the seed of "
                "Python's hash(), another does not have.)"
            )
    for when, seconds in LATER.items():
        if (key := _key(elsewhere(make, seconds), WORKFLOWS[0], ACTIONS[0])) != here:
            raise CheckFailed(
                f"Now the key is {shown(here)}, {when} later {shown(key)}: it holds the clock. B asks later, and gets another "
                "key."
            )
    with engine_aside(engine) as own:
        _called_twice_each(make, own)
    pairs = _different(make, f"{here}")
    return (
        f"Solved: four actions, each called twice, and the tool ledger has four effects; {pairs:,} other pairs of names have "
        "as many keys."
    )


def _different(make: Callable[[str, str], Any], here: str) -> int:
    """How many pairs of names were tried, each of which has a key of its own, also when it is asked again. Raises CheckFailed."""
    whose: dict[str, tuple[str, str]] = {}
    pairs = dict.fromkeys(_pairs(here))
    for pair in pairs:
        key = _key(make, *pair)
        if (other := whose.setdefault(key, pair)) != pair:
            raise CheckFailed(
                f"The key of action {pair[1]!r:.60} of workflow {pair[0]!r:.60} is {shown(key)}, and so is that of action "
                f"{other[1]!r:.60} of workflow {other[0]!r:.60}: the tool would do one and take the other for a repeat. Ids and "
                "actions may be any text."
            )
    for pair in reversed(pairs):
        if whose.get(_key(make, *pair)) != pair:
            raise CheckFailed(f"Asked again, action {pair[1]!r:.60} of workflow {pair[0]!r:.60} gets another key.")
    return len(pairs)


def _pairs(here: str) -> Iterator[tuple[str, str]]:
    """Pairs of names that are easily taken for one another; `here` is a key, which shows what stands between its names."""
    (workflow, *_), (action, *_) = WORKFLOWS, ACTIONS
    around = re.split(f"{re.escape(workflow)}|{re.escape(action)}", here)
    for mark in dict.fromkeys((*SEPARATORS, *(one for one in around if one))):
        texts = ["".join(one) for n in (1, 2, 3) for one in product(("x", mark), repeat=n)]
        yield from product(texts, texts)
    plain = [f"{stem}{n}" for stem in ("r", "R", "request-", "é", "e\u0301") for n in (1, 2, 10, 11, "01", "1 ", " 1")]
    yield from product(plain, plain)
    for length in (20, 40, 100, 200):
        yield from ((f"{'x' * length}{n}", f"{'y' * length}{m}") for n, m in product("12", "12"))
    yield from (("1y", "z" * 20 + "q"), ("y" + "z" * 20, "q"), ("a:b", "c"), ("a", "b:c"))
    yield from (("a%3Ab", "c"), ("a%253Ab", "c"), ("a", "b%3Ac"), ("a/b", "c"), ("a%2Fb", "c"))
    yield from ((f"order-{n}", "pay") for n in range(2_000))


def _called_twice_each(make: Callable[[str, str], Any], engine: Engine) -> None:
    """Each action of each workflow is called, and called again; every one has left one effect. Raises CheckFailed."""
    for workflow, action in product(WORKFLOWS, ACTIONS):
        for _ in range(2):
            engine.world(ToolCall(_key(make, workflow, action), action, None, workflow))
    for workflow, action in product(WORKFLOWS, ACTIONS):
        found = [row for row in effects_of(engine, workflow) if row["action"] == action]
        if not found:
            key = _key(make, workflow, action)
            first = next(one for one in product(WORKFLOWS, ACTIONS) if _key(make, *one) == key)
            raise CheckFailed(
                f"tool_ledger has no row for {action} of {workflow}: its key {shown(key)} is also that of {first[1]} of "
                f"{first[0]}, so the tool took the call for a repeat and did nothing."
            )


def _same_again(make: Callable[[str, str], Any], workflow: str, action: str) -> None:
    """Asked twice, the function gives one key. Raises CheckFailed with what its two keys look like."""
    first, again = _key(make, workflow, action), _key(make, workflow, action)
    if clock := _of_the_clock(first):
        raise CheckFailed(f"The key {shown(first)} holds the clock ({clock}). B asks later, and gets another key.")
    if first == again:
        return
    numbers, shape = [[int(n) for n in re.findall(r"\d+", key)] for key in (first, again)], re.compile(r"\d+")
    if shape.sub("#", first) == shape.sub("#", again) and any(m == n + 1 for n, m in zip(*numbers, strict=True)):
        raise CheckFailed(
            f"The first call gets the key {shown(first)}, the second {shown(again)}: a position. B replays some calls, so "
            "it counts to another number."
        )
    raise CheckFailed(
        f"The first call gets the key {shown(first)}, the retry {shown(again)}: made up anew, so the tool cannot "
        "know that it was asked before."
    )


def _key(make: Callable[[str, str], Any], workflow: str, action: str) -> str:
    """The key that the function gave. Raises CheckFailed for anything that is no text, or an empty one."""
    nothing = "a call without a key has its effect every time."
    key = text_of(lambda: make(workflow, action), f"for {action} of {workflow}", "A key is a text.", nothing)
    if not key:
        raise CheckFailed("Your function returns an empty text. Every action would have the same key.")
    return key


def _of_the_clock(key: str) -> str:
    """The part of the key that is today's date or the time in seconds; empty if there is none."""
    today = datetime.date.today()
    clocks = (f"{today:%Y-%m-%d}", f"{today:%Y%m%d}", str(int(time.time()))[:7])
    return next((one for one in clocks if one in key), "")


def _carried(make: Callable[[str, str], Any], workflow: str, action: str) -> bytes | None:
    """The function with what it names and its arguments, as bytes for another process; None if it cannot be sent."""
    try:
        around = {name: make.__globals__[name] for name in make.__code__.co_names if name in make.__globals__}
        modules = {name: one.__name__ for name, one in around.items() if isinstance(one, ModuleType)}
        named = {name: one for name, one in around.items() if name not in modules}
        return pickle.dumps((marshal.dumps(make.__code__), make.__defaults__, named, modules, (workflow, action)))
    except (AttributeError, TypeError, ValueError, pickle.PicklingError):
        return None


def _elsewhere(carried: bytes | None) -> str | None:
    """The key that the function returns in another process; None if it does not return one there."""
    if carried is None:
        return None
    try:
        # an empty environment: PYTHONHASHSEED is left to chance, as for any worker
        done = subprocess.run(
            [sys.executable, "-P", "-c", PROGRAM], input=carried, capture_output=True, timeout=20, env={}
        )
        begun, answer = done.stdout[:6], done.stdout[6:]
        return str(pickle.loads(answer)) if begun == b"answer" else None
    except (ValueError, pickle.PicklingError, subprocess.TimeoutExpired):
        return None


OUTLINE = Outline(
    name="04-the-acknowledgment-gap",
    title="The acknowledgment gap",
    goal="Kill a worker between an effect and the row that tells of it, and close the gap in two ways.",
    minutes=15,
    fast=True,
    questions=(
        Question(
            "after-the-crash",
            "The tool has committed, A is killed, nobody has taken over. Which state does the workflow's row hold?",
            {
                "COMPLETED": "the engine heard of an effect by itself. In fact it hears of it from the worker, and the worker is "
                "gone",
                "ACTION_PENDING": RIGHT,
                "PLANNED": "a crash rolled everything back. In fact the intent was a transaction of its own, and it is committed",
                "FAILED": "somebody noticed a crash. In fact a dead worker writes nothing; its lease only runs out",
            },
            "The row says what A wrote last, the intent. The effect exists, and no row of ours says so.",
        ),
        Question(
            "forgotten-key",
            "The tool has forgotten its keys when B calls again, with the right key. What stands in the tool ledger?",
            {
                "one effect: the key is the same": "a key were enough. In fact it protects only as long as the other side "
                "remembers it",
                "two effects": RIGHT,
                "one effect and an error: an unknown key is refused": "a tool could tell a forgotten key from a new one. In fact "
                "both are keys that it has never seen",
            },
            "To the tool a forgotten key is a new one, so it acted again. How long it remembers is part of the promise, so take "
            "over sooner.",
        ),
        Question(
            "without-an-intent",
            "An engine writes the intent only after the call, with the same key. A dies in the gap. What is worse than before?",
            {
                "the effect is doubled": "the intent protected the effect. In fact the key does, and it is made from names that "
                "B knows too",
                "nothing of ours shows that an action was begun": RIGHT,
                "the plan is computed again": "the intent held the results of steps. In fact those are in their checkpoints",
                "nothing at all": "an action were only its effect. In fact it is a doubt, too, and nobody can ask about what no "
                "row holds",
            },
            "The belief is empty (NULL) beside one effect. An intent would say PENDING there: a doubt that a policy or a person "
            "can see before calling again.",
        ),
    ),
    exercises=(
        exercise_of(
            key_for,
            "B, which calls again, knows what A knew when it began: the workflow's id, and which action it is. Nothing else.",
            "Two actions of one workflow need two keys. So do two workflows with the same action.",
            "Two texts side by side can be read in two ways: order-1 and 1-refund, or order-11 and -refund. So can two with a "
            "colon between, if a colon may stand in a name. json.dumps([workflow_id, action]) can be read in one way only.",
        ),
    ),
)
