"""The texts of the statements, and what is said about each of them beside its text."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from agentflow.statements import ALL_STATEMENTS, GUARD, GUARDED, READS, TRANSACTIONS, Statement, show_sql
from agentflow.statements.statement import FENCE

COUNT = "      AND checkpoints = %(p_checkpoints)s\n"
CACHED = 4096  # psycopg remembers how it read a text of at most this many bytes; it reads a longer one for every call


def update_of_the_row(statement: Statement) -> str:
    """The guarded UPDATE, without what it returns."""
    return statement.text.partition("WITH w AS (")[2].partition("RETURNING")[0]


def denied(statement: Statement) -> list[str]:
    """What is said about a statement and is not in its text, or the other way round."""
    update, end = update_of_the_row(statement), statement.text.rpartition("\n)\n")[2]
    facts = {
        "guarded": GUARD in update,
        "counted": GUARD + COUNT in update,
        "advances": "INSERT INTO agentflow.steps" in statement.text,
        "releases": GUARD in update and bool(re.search("lease_owner = (NULL|CASE)", update)),
        "refusals": "refused AS (" in statement.text,
    }
    found = [name for name, fact in facts.items() if bool(getattr(statement, name)) != fact]
    events = set(re.findall(r"'([a-z]+(?:_[a-z]+)+)'", end))
    return found + ["entries"] * (events != {*statement.entries, *statement.refusals})


@pytest.mark.parametrize("name", TRANSACTIONS)
def test_what_is_said_of_a_transaction_is_in_its_text(name: str) -> None:
    statement = TRANSACTIONS[name]
    assert denied(statement) == []
    fenced = statement.decides == (FENCE,)
    assert all(clause in statement.text for clause in statement.decides) or (fenced and not statement.guarded)
    assert set(statement.releases) <= set(statement.entries)
    assert statement.guarded or not (statement.progress or statement.advances)


@pytest.mark.parametrize("name", GUARDED)
def test_a_refusal_asks_for_each_condition_of_its_guard_in_the_same_words(name: str) -> None:
    text = TRANSACTIONS[name].text
    refused = text.partition("refused AS (")[2]
    conditions = re.findall(
        r"^      AND ((?!NOT EXISTS|EXISTS).+)$", update_of_the_row(TRANSACTIONS[name]), re.MULTILINE
    )
    asked = re.findall(r"CASE WHEN \((.+)\) IS NOT TRUE THEN", refused)
    assert sorted(asked) == sorted(conditions)
    assert ("'intent'" in refused) == ("EXISTS" in update_of_the_row(TRANSACTIONS[name]))


def test_a_flag_that_the_text_denies_is_caught() -> None:
    real = TRANSACTIONS["complete"]
    assert denied(replace(real, text=real.text.replace(COUNT, ""))) == ["counted"]
    assert denied(replace(real, text=real.text.replace("AND fence_token = %(p_token)s", ""))) == [
        "guarded",
        "counted",
        "releases",
    ]
    assert denied(replace(real, advances=True, entries=())) == ["advances", "entries"]


def test_load_is_the_one_transaction_that_commits_nothing() -> None:
    assert {name for name, one in ALL_STATEMENTS.items() if not one.commits} == {"load", *READS}


@pytest.mark.parametrize("name", ALL_STATEMENTS)
def test_psycopg_reads_a_text_once_however_long_the_name_of_the_schema(name: str) -> None:
    assert len(ALL_STATEMENTS[name].render("s" * 50).encode()) <= CACHED


@pytest.mark.parametrize("name", ALL_STATEMENTS)
def test_a_text_reads_from_top_to_bottom_and_its_comments_hold_no_bind(name: str) -> None:
    text = ALL_STATEMENTS[name].text
    assert [line for line in text.splitlines() if len(line) > 120 or line != line.rstrip()] == []
    assert "%" not in "".join(re.findall("--.*", text))


def test_the_tricks_are_explained_where_they_stand() -> None:
    for name, trick in [
        ("create", "xmax = 0"), ("create", "DO UPDATE SET id = EXCLUDED.id"), ("claim", "AS MATERIALIZED"),
        ("intent", "::text::jsonb"), ("checkpoint", "SET entries = entries + 1"), ("requeue", "count(*)"),
        ("release", "pg_notify"), ("wait", "SET status = CASE WHEN events"), ("tool", "WHERE remembered DO UPDATE"),
    ]:  # fmt: skip
        lines = show_sql(name).splitlines()
        where = next(n for n, line in enumerate(lines) if trick in line and "--" not in line)
        assert any(line.lstrip().startswith("--") for line in lines[max(0, where - 4) : where + 2]), (name, trick)
