"""The table of guards is true: every line is explored again, and the shortest schedule is the one that stands there."""

from __future__ import annotations

import re

import pytest

from agentflow import Engine
from agentflow.lab.broken.catalogue import BROKEN, GUARDS
from agentflow.lab.schedule.grammar import Schedule
from tests.support.guards import PAGE, PROOF, page, proof, score
from tests.support.verdicts import VERDICTS, Verdict, table


def holds(verdict: Verdict, engine: Engine) -> None:
    found = verdict.explored(engine)
    assert found.verdict == verdict.kind, str(found)
    if verdict.kind == "holds":
        assert found.ok and found.schedules
    else:
        told = [one for one in found.findings if one.kind == verdict.kind]
        finding = next(one for one in told if one.invariant == verdict.invariant)
        assert finding is told[0] or verdict.options.get("stop_at") == "never"
        assert str(Schedule(moves=finding.schedule.moves)) == verdict.moves


@pytest.mark.parametrize("verdict", [one for one in VERDICTS if one.kind == "harm"], ids=str)
def test_a_set_that_does_harm_is_caught_by_this_schedule(engine: Engine, verdict: Verdict) -> None:
    holds(verdict, engine)


@pytest.mark.long
@pytest.mark.parametrize("verdict", [one for one in VERDICTS if one.kind != "harm"], ids=str)
def test_a_set_without_harm_is_exhausted_within_its_bounds(engine: Engine, verdict: Verdict) -> None:
    holds(verdict, engine)


# The first, without any assumption, is what test_explore.py explores.
@pytest.mark.parametrize("verdict", [one for one in VERDICTS if one.kind != "harm" and not one.long][1:3], ids=str)
def test_the_real_engine_survives_under_these_assumptions(engine: Engine, verdict: Verdict) -> None:
    holds(verdict, engine)


def test_every_guard_and_every_broken_engine_stands_in_the_table() -> None:
    alone = {verdict.without[0] for verdict in VERDICTS if len(verdict.without) == 1}
    assert alone == set(BROKEN) >= set(GUARDS)
    assert len(alone) >= 12


def test_at_least_seven_broken_engines_do_harm() -> None:
    harmful = {verdict.without for verdict in VERDICTS if verdict.kind == "harm" and len(verdict.without) == 1}
    assert len(harmful) >= 7


def test_no_line_stands_twice() -> None:
    lines = [str(verdict) for verdict in VERDICTS]
    assert len(set(lines)) == len(lines)


def test_the_table_shows_every_line_and_can_show_one_kind() -> None:
    assert len(table()) == len(VERDICTS)
    harmful = table("harm")
    assert {row["verdict"].partition(":")[0] for row in harmful} == {"harm"}
    assert "A*5 expire B*2" in harmful.to_html()


def test_the_page_of_the_docs_shows_the_table_of_today() -> None:
    """If not: python -m tests.support.guards."""
    assert PAGE.read_text(encoding="utf-8") == page()
    assert PROOF.read_text(encoding="utf-8") == proof()


def test_the_score_counts_every_broken_engine_once() -> None:
    said = score()
    assert all(said.count(f"| `{name}` |") == 1 for name in BROKEN)
    told = [int(number) for number in re.findall(r"\b\d+\b", said.partition("|")[0])]
    assert told[0] == len(BROKEN) == sum(told[1:])
