"""The plans behind the speed: each statement uses its index, whatever the size of the tables was when it was planned."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from agentflow import Database, Engine, migrate
from agentflow.statements import TRANSACTIONS

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
            connection.exec_driver_sql(f"VACUUM ANALYZE {schema}.{table}")
        for table in ("tool_ledger", "tool_attempts"):
            connection.exec_driver_sql(f"VACUUM ANALYZE {schema}_world.{table}")
    return engine


@pytest.fixture
def unknown(schema: Callable[[], Database]) -> Engine:
    """An engine on tables about which PostgreSQL knows nothing yet."""
    migrate(database := schema(), laboratory=True)
    return Engine(database)


def test_transaction_planned_before_anything_is_known_reads_one_row_after_the_other(unknown: Engine) -> None:
    for name in NAMES:
        assert not re.search("Seq Scan|Bitmap", plan(unknown.database, name)), name


def test_claim_takes_the_first_of_the_index_before_anything_is_known(unknown: Engine) -> None:
    assert "Sort" not in plan(unknown.database, "claim")


@pytest.mark.parametrize("name", NAMES)
def test_transaction_planned_on_a_small_table_reads_by_the_index(small: Engine, name: str) -> None:
    assert not re.search("Seq Scan|Bitmap", plan(small.database, name))


def test_claim_reads_the_partial_index_in_its_order(small: Engine) -> None:
    planned = plan(small.database, "claim")
    assert "Index Scan using workflows_runnable" in planned
    assert "Sort" not in planned
