"""The plans and the storage behind the speed: by the index, whatever the tables' size was, and in place."""

from __future__ import annotations

import re

import pytest

from agentflow import Database, Engine
from agentflow.statements import TRANSACTIONS

from .conftest import rows
from .helpers import eventually

# `reset` deletes everything, and is none of these.
NAMES = sorted(TRANSACTIONS)


def plan(database: Database, name: str) -> str:
    """The plan that a session of the door keeps for this transaction."""
    binds: list[str] = []

    def place(found: re.Match[str]) -> str:
        if found[1] not in binds:
            binds.append(found[1])
        return f"${binds.index(found[1]) + 1}"

    text = re.sub(r"%\((\w+)\)s", place, database.sql(name)).replace("%%", "%")
    with database._connect() as connection:
        connection.prepare_threshold = None
        return "\n".join(row[0] for row in connection.execute(f"EXPLAIN (GENERIC_PLAN, COSTS OFF) {text}"))


@pytest.fixture
def small(engine: Engine) -> Engine:
    """An engine whose tables hold one finished workflow, which PostgreSQL knows: the moment when a scan looks cheap."""
    engine.create_workflow("My login fails")
    engine.run_until_idle("a")
    schema = engine.database.schema
    with engine.database.alchemy.connect() as connection:
        for table in ("workflows", "steps", "action_intents", "history"):
            connection.exec_driver_sql(f"ANALYZE {schema}.{table}")
        for table in ("tool_ledger", "tool_attempts"):
            connection.exec_driver_sql(f"ANALYZE {schema}_world.{table}")
    return engine


@pytest.mark.parametrize("name", NAMES)
def test_transaction_planned_on_a_small_table_reads_by_the_index(small: Engine, name: str) -> None:
    assert "Seq Scan" not in plan(small.database, name)


def test_claim_reads_the_partial_index_in_its_order(small: Engine) -> None:
    planned = plan(small.database, "claim")
    assert "Index Scan using workflows_runnable" in planned
    assert "Sort" not in planned


def test_state_changes_of_a_workflow_are_hot_updates(engine: Engine) -> None:
    """Claim, checkpoints, intent and acknowledge are; complete takes the row out of the partial index, and is not.

    A neighbour's old snapshot may keep a page full for a while, so a few of the others may not be either.
    """

    def updates() -> tuple[int, int]:
        query = "SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_all_tables WHERE relid = '{s}.workflows'::regclass"
        with engine.database.alchemy.connect() as connection:
            connection.exec_driver_sql("SELECT pg_stat_clear_snapshot()")
        (found,) = rows(engine, query)
        return found["n_tup_upd"], found["n_tup_hot_upd"]

    engine.database.close()  # a session that ends reports what it did; so what came earlier is counted before
    last = (-1, -1)
    while last != (last := eventually(updates)):
        pass
    before, count = last, 40
    for number in range(count):  # one at a time, as work arrives: each page keeps room for its rows' next versions
        engine.create_workflow(f"login {number}")
        engine.run_until_idle("a")
    engine.database.close()
    eventually(lambda: updates()[0] - before[0] >= 6 * count)
    changed, hot = (after - earlier for after, earlier in zip(updates(), before, strict=True))
    assert changed == 6 * count
    assert 4.5 * count <= hot <= 5 * count
