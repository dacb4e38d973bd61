"""What one workflow costs: statements as they leave Python, commits as PostgreSQL counts them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from sqlalchemy import event

from agentflow import Database, Engine
from tests.bench.contestants import REQUEST
from tests.bench.place import Place
from tests.bench.tutorial_engine import TutorialEngine


class _Counting(Database):
    sent = 0

    def execute(self, name: str, params: Mapping[str, Any]) -> list[dict[str, Any]]:
        self.sent += 1
        return super().execute(name, params)


def count_ours(place: Place, schema: str, workflows: int) -> dict[str, float]:
    """Statements and commits for each workflow of our engine."""
    engine = Engine(database := _Counting(place.url, schema))
    engine.world.database = world = _Counting(place.url, schema)
    worker = engine.worker("counted")

    def one() -> None:
        engine.create_workflows([REQUEST])
        worker.run_once()

    commits = _commits(place, workflows, one, engine.close)
    return {"statements": (database.sent + world.sent) / workflows, "commits": commits}


def count_tutorial(place: Place, schema: str, workflows: int) -> dict[str, float]:
    """The same for the tutorial's engine; BEGIN, COMMIT and ROLLBACK are journeys to the server too."""
    engine, seen = TutorialEngine(place.url, schema), {"statements": 0, "control": 0}

    def note(kind: str) -> Callable[..., None]:
        def count(*_: Any) -> None:
            seen[kind] += 1

        return count

    event.listen(engine.alchemy, "before_cursor_execute", note("statements"))
    for name in ("begin", "commit", "rollback"):
        event.listen(engine.alchemy, name, note("control"))

    def one() -> None:
        engine.create_workflow(REQUEST)
        engine.run_once("counted")

    commits = _commits(place, workflows, one, engine.close)
    each = {name: number / workflows for name, number in seen.items()}
    return {"statements": each["statements"], "control": each["control"], "commits": commits}


def _commits(place: Place, workflows: int, one: Callable[[], None], close: Callable[[], None]) -> float:
    before, _ = _committed(place)
    for _ in range(workflows):
        one()
    close()  # a session that ends reports what it did
    after, own = _committed(place)
    return (after - before - own) / workflows


def _committed(place: Place) -> tuple[int, int]:
    """PostgreSQL's own count, once nobody has anything left to report; and how many of them were made by asking."""
    last, same, own = -1, 0, 0
    while same < 3:
        place.sql("SELECT pg_stat_force_next_flush()")
        now = int(place.sql("SELECT xact_commit FROM pg_stat_database WHERE datname = current_database()")[0][0])
        last, same, own = now, same + 1 if now - last <= 2 else 0, own + 2
        time.sleep(0.1)
    return last, own
