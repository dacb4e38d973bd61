"""The independent checker finds each fault planted by hand into the tables of a finished laboratory, and none in a clean one."""

from __future__ import annotations

import ast
import inspect
import uuid
from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest
from sqlalchemy import text

from agentflow import Database, Engine
from agentflow.lab.crashes.soak import soak
from agentflow.lab.verify import action_rules, checker, history_rules, row_rules
from agentflow.lab.verify.checker import RULES, Mistake, check_rows, find_mistakes
from agentflow.lab.verify.row_rules import UNFINISHED
from tests.conftest import drop
from tests.support.planted import PLANTED, Planted, finished_laboratory, plant


@pytest.fixture
def finished(engine: Engine) -> Engine:
    return finished_laboratory(engine)


def test_a_clean_laboratory_has_no_fault(finished: Engine) -> None:
    assert [finished.get_workflow(one)["status"] for one in ("recovered", "refused", "approved", "parked")] == [  # type: ignore[index]
        "completed", "failed", "completed", "waiting",
    ]  # fmt: skip
    assert find_mistakes(finished.database) == []


@pytest.mark.parametrize("planted", PLANTED, ids=[planted.name for planted in PLANTED])
def test_the_checker_finds_each_planted_fault_and_names_its_row(finished: Engine, planted: Planted) -> None:
    plant(finished, planted.sql)
    found = find_mistakes(finished.database)
    named = [one for one in found if (one.rule, one.table) == (planted.rule, planted.table) and planted.row in one.row]
    assert named, found
    assert named[0].stands != named[0].should


def test_every_rule_has_a_planted_fault() -> None:
    assert {planted.rule for planted in PLANTED} == {rule.name for rule in [*RULES, UNFINISHED]}
    assert len({planted.name for planted in PLANTED}) >= 15


def test_a_fault_says_table_row_what_stands_there_and_what_should(finished: Engine) -> None:
    plant(finished, "UPDATE {s}.workflows SET fence_token = 9 WHERE id = 'approved'")
    (fault,) = find_mistakes(finished.database)
    assert fault == Mistake(
        "each claim raises the token by one", "workflows", "approved", "fence_token 9", "fence_token 2"
    )
    assert str(fault).startswith("workflows approved: fence_token 9; should be: fence_token 2")


def test_every_rule_sees_the_same_moment(finished: Engine) -> None:
    """A row that goes wrong while the rules are asked is found by the next check, and by no rule of this one."""
    asked: list[bytes] = []

    def snapshot(work: Any, *settings: str) -> Any:
        def watched(cursor: Any) -> Any:
            def meanwhile(statement: Any, *rest: Any) -> Any:
                asked.append(bytes(statement) if isinstance(statement, bytes) else b"")
                if sum(b" AS mistake " in one for one in asked) == 2:
                    wrong = "UPDATE {s}.steps SET value = '1' WHERE workflow_id = 'recovered' AND kind = 'side_effect'"
                    plant(finished, wrong)
                return cursor.execute(statement, *rest)

            return work(SimpleNamespace(execute=meanwhile))

        return finished.database.snapshot(watched, *settings)

    first = find_mistakes(SimpleNamespace(snapshot=snapshot))
    assert first == []
    assert [(fault.table, fault.row) for fault in find_mistakes(finished.database)] == [
        ("steps", "recovered resolve-account")
    ]


def test_of_each_rule_at_most_so_many_faults_are_told(finished: Engine) -> None:
    plant(finished, "UPDATE {s}.history SET at = at + interval '1 day'")
    many = Counter(fault.rule for fault in find_mistakes(finished.database))
    few = Counter(fault.rule for fault in find_mistakes(finished.database, most=2))
    assert many["entries are numbered without a gap"] == 20
    assert few == {rule: min(number, 2) for rule, number in many.items()}


def test_a_workflow_that_was_requeued_can_end_again_and_then_has_ended(finished: Engine) -> None:
    finished.requeue_workflow("refused")
    finished.run_until_idle("S.1")
    assert find_mistakes(finished.database) == []
    plant(
        finished,
        "UPDATE {s}.workflows SET entries = entries + 1 WHERE id = 'refused'; "
        "INSERT INTO {s}.history (workflow_id, n, event, transaction, worker, fence_token) "
        "SELECT 'refused', max(n) + 1, 'lease_renewed', 'renew', 'S.1', 2 FROM {s}.history WHERE workflow_id = 'refused'",
    )
    assert [(fault.rule, fault.table) for fault in find_mistakes(finished.database)] == [
        ("an end is an end", "history")
    ]


def test_work_that_still_runs_is_not_finished_and_no_mistake(finished: Engine) -> None:
    finished.create_workflow("login", workflow_id="running")
    claim = finished.claim_workflow("R.1", 60)
    assert claim and claim.workflow_id == "running"
    found = check_rows(finished.database)
    assert (found.mistakes, [one.row for one in found.unfinished]) == ([], ["running"])
    assert "no row contradicts another." in repr(found)
    assert "Not finished: 1 workflow, such as 'running' (status ready, held by R.1)." in repr(found)
    plant(finished, "UPDATE {s}.workflows SET status = 'ready', result = NULL, finished_at = NULL, completed_at = NULL "
          "WHERE id = 'approved'")  # fmt: skip
    assert "approved" in [one.row for one in check_rows(finished.database).mistakes]


def test_the_checker_knows_nothing_of_the_engine() -> None:
    for module in (checker, action_rules, row_rules, history_rules):
        for node in ast.walk(ast.parse(inspect.getsource(module))):
            if isinstance(node, ast.ImportFrom) and node.level:
                assert node.module in ("action_rules", "row_rules", "history_rules")


def test_a_soak_leaves_no_fault(url: str) -> None:
    database = Database(url, f"t_{uuid.uuid4().hex[:12]}")
    try:
        soak(
            url,
            [f"password {n}" for n in range(24)],
            schema=database.schema,
            workers=2,
            kills=8,
            keep=True,
            lease_seconds=0.5,
        )
        assert find_mistakes(database) == []
    finally:
        drop(database)


@pytest.mark.long
@pytest.mark.timeout(900)  # most of it goes into copying the rows
def test_a_million_entries_are_checked_and_the_one_fault_among_them_is_found(finished: Engine) -> None:
    """The finished workflows 35,000 times over, by SQL; docs/benchmarks.md says how long it takes."""
    multiply(finished, 35_000)
    with finished.database.alchemy.connect() as connection:
        schema = finished.database.schema
        entries = connection.execute(text(f'SELECT count(*) FROM "{schema}".history')).scalar_one()
    assert entries > 1_000_000
    assert find_mistakes(finished.database) == []
    plant(finished, "UPDATE {s}.steps SET value = '1' WHERE workflow_id = 'recovered-31234' AND kind = 'side_effect'")
    assert [(fault.table, fault.row) for fault in find_mistakes(finished.database)] == [
        ("steps", "recovered-31234 resolve-account")
    ]


def multiply(engine: Engine, times: int) -> None:
    """Every row of the laboratory stands there so many times more, each copy under ids of its own."""
    tables = {
        "workflows": "id",
        "steps": "",
        "action_intents": "idempotency_key",
        "history": "",
        "tool_ledger": "idempotency_key",
    }
    schema = engine.database.schema
    with engine.database.alchemy.connect() as connection:
        connection.exec_driver_sql("SET statement_timeout = 0")
        for table, key in tables.items():
            owner = f'"{schema}_world"' if table == "tool_ledger" else f'"{schema}"'
            names = connection.execute(
                text(
                    "SELECT attname FROM pg_attribute WHERE attrelid = to_regclass(:name) AND attnum > 0 AND attidentity = ''"
                ),
                {"name": f"{owner}.{table}"},
            ).scalars()
            columns = list(names)
            chosen = ", ".join(_copied(name, key) for name in columns)
            connection.exec_driver_sql(
                f"INSERT INTO {owner}.{table} ({', '.join(columns)}) SELECT {chosen} FROM {owner}.{table} AS t, "
                f"generate_series(1, {times}) AS copy"
            )
        connection.exec_driver_sql(
            f'INSERT INTO "{schema}_world".tool_attempts '
            "(effect_id, attempt, idempotency_key, workflow_id, action, outcome, came_at) "
            f"SELECT l.effect_id, a.attempt, l.idempotency_key, l.workflow_id, a.action, a.outcome, a.came_at "
            f'FROM "{schema}_world".tool_ledger AS l JOIN "{schema}_world".tool_attempts AS a '
            "ON starts_with(l.workflow_id, a.workflow_id || '-')"
        )
        connection.exec_driver_sql("ANALYZE")


def _copied(column: str, key: str) -> str:
    if column in ("workflow_id", "id"):
        return f"t.{column} || '-' || copy"
    if column == "idempotency_key" and key == column:
        return "t.workflow_id || '-' || copy || ':resolve-account'"
    return f"t.{column}"
