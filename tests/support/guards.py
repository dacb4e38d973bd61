"""Writes docs/guards.md, the table of guards for people: `python -m tests.support.guards`.

It is made from `agentflow.lab.broken.catalogue` and `tests.support.verdicts`;
`tests/lab/explorer/test_verdicts.py` explores each line, and says when the page is stale.
"""

from __future__ import annotations

from pathlib import Path

from agentflow.lab.broken.catalogue import BROKEN, GUARDS, Broken
from tests.support.verdicts import VERDICTS, Verdict

PAGE = Path(__file__).resolve().parents[2] / "docs" / "guards.md"
TOP = """# Which guard matters

Made by `python -m tests.support.guards` from what the explorer found. A test explores each line again, some
of them in `make test-long` only.

## The broken engines

Each is the real engine with a few lines less. Where there is one, a public report tells of a defect of that kind in other
software. `agentflow explore --without NAME` finds the shortest schedule, if there is one.

| engine without | what it forgets | a public report |
|---|---|---|
"""
BELOW = """
## What every schedule showed

Two workers, at most two crashes, two leases that end and one lost reply, unless the assumption says otherwise. *Harm*: somebody
outside can notice. *Authority*: a worker wrote without the right to, and nobody was harmed. *Redundant*: nothing fell on any
schedule within these bounds, so the other guards stand in for it (of the whole engine: it *holds*). Nothing is said beyond the
bounds and the assumption.

| without | assumption | verdict | shortest schedule | because |
|---|---|---|---|---|
"""


def page() -> str:
    """The whole page."""
    return TOP + "".join(map(_engine, BROKEN.values())) + BELOW + "".join(map(_verdict, VERDICTS))


def _engine(one: Broken) -> str:
    kind = "" if one.name in GUARDS else " (a mistake in a guard's place)"
    repository, _, number = (one.defect or "").partition("#")
    report = f"[{one.defect}](https://github.com/{repository}/issues/{number})" if one.defect else ""
    return f"| `{one.name}`{kind} | {one.forgets} | {report} |\n"


def _verdict(one: Verdict) -> str:
    without = ", ".join(f"`{name}`" for name in one.without) or "nothing"
    assumed = " ".join(f"`{name}={value}`" for name, value in one.options.items())
    moves = f"`{one.moves}`" if one.moves else ""
    said = one.kind if one.without or one.kind != "redundant" else "holds"
    fell = f"{said}: {one.invariant}" if one.invariant else said
    return f"| {without} | {assumed} | {fell} | {moves} | {one.because} |\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
