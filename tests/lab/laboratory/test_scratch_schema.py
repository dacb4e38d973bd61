"""A schema of one's own is gone afterwards, however the run ends."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from sqlalchemy import text

from agentflow import Database, migrate
from agentflow.lab.laboratory import scratch_schema as own

OF_NAME = "SELECT nspname FROM pg_namespace WHERE nspname LIKE :name"


def test_an_interruption_while_the_tables_are_made_leaves_no_schema(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    name = f"t_{uuid.uuid4().hex[:12]}"
    made: list[str] = []

    def interrupted(database: Database, **options: Any) -> None:
        migrate(database, **options)
        with database.alchemy.connect() as connection:
            made.extend(connection.execute(text(OF_NAME), {"name": f"{name}%"}).scalars())
        raise KeyboardInterrupt

    monkeypatch.setattr(own, "migrate", interrupted)
    with pytest.raises(KeyboardInterrupt), own.own_schema(url, name):
        pass
    assert sorted(made) == [name, f"{name}_world"]
    database = Database(url)
    with database.alchemy.connect() as connection:
        assert connection.execute(text(OF_NAME), {"name": f"{name}%"}).scalars().all() == []
    database.close()
