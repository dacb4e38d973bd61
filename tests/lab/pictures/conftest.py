"""Histories for tests of pictures."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from agentflow import Database, Engine
from tests.support.histories import ALL, Entries


@pytest.fixture(scope="module")
def entries(shared_database: Database) -> Iterator[Callable[[str], Entries]]:
    """The entries of a history by its name, made once."""
    made: dict[str, Entries] = {}
    engine = Engine(shared_database)

    def of(name: str) -> Entries:
        if name not in made:
            engine.reset_database()
            made[name] = ALL[name](engine)
        return made[name]

    yield of
    engine.reset_database()
    engine.world.database.close()
