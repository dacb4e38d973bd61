"""Faults planted by hand into a copy of what a run has left: judge and checker must name every one, and nothing else."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random

from tests.chaos.world import SCHEMA, World


@dataclass(frozen=True)
class Planted:
    """A fault: in a finished workflow of which kind, where ("tables" or "shop"), by which SQL, of which sort for the judge.

    `{w}` stands for the workflow's id. What no other record contradicts, only the judge can see: `checked` is false.
    """

    name: str
    kind: str
    where: str
    sql: str
    sort: str
    checked: bool = True


_LAST = "(SELECT max(n) FROM chaos.history WHERE workflow_id = '{w}')"
_MORE = "UPDATE chaos.workflows SET entries = entries + 1 WHERE id = '{w}'"

PLANTED = (
    Planted(
        "a missing effect", "support_agent", "tables",
        "DELETE FROM chaos_world.tool_ledger WHERE workflow_id = '{w}'; "
        "DELETE FROM chaos_world.tool_attempts WHERE workflow_id = '{w}'",
        "missing",
    ),
    Planted(
        "a missing effect of a tool of one's own", "order", "shop",
        "DELETE FROM effects WHERE workflow = '{w}' AND action = 'reserve'", "missing",
    ),
    Planted(
        "an effect doubled under another key", "support_agent", "tables",
        "INSERT INTO chaos_world.tool_ledger (idempotency_key, workflow_id, action, arguments, result) "
        "SELECT idempotency_key || '.2', workflow_id, action, arguments, result FROM chaos_world.tool_ledger "
        "WHERE workflow_id = '{w}'",
        "doubled",
    ),
    Planted(
        "an effect of a tool of one's own doubled under another key", "order", "shop",
        "INSERT INTO effects (key, workflow, action, arguments, result, calls) SELECT key || '.2', workflow, action, "
        "arguments, result, 1 FROM effects WHERE workflow = '{w}' AND action = 'reserve'",
        "doubled",
    ),
    Planted(
        "a changed step", "support_agent", "tables",
        "UPDATE chaos.steps SET value = '\"another\"' WHERE workflow_id = '{w}' AND step_id = 'resolve-account'", "results",
    ),
    Planted(
        "a changed step of which nothing else tells", "order", "tables",
        "UPDATE chaos.steps SET value = '{{\"total\": -1, \"number\": \"another\"}}' WHERE workflow_id = '{w}' "
        "AND step_id = 'quote'",
        "story", checked=False,
    ),
    Planted(
        "a lost entry", "research_agent", "tables",
        "DELETE FROM chaos.history WHERE workflow_id = '{w}' AND n = 3", "history",
    ),
    Planted(
        "the last entry lost", "research_agent", "tables",
        f"DELETE FROM chaos.history WHERE workflow_id = '{{w}}' AND n = {_LAST}", "rows",
    ),
    Planted(
        "a foreign worker", "support_agent", "tables",
        "UPDATE chaos.history SET worker = 'stranger.1' WHERE workflow_id = '{w}' AND event = 'workflow_completed'", "history",
    ),
    Planted(
        "a step by a foreign worker", "slow", "tables",
        "UPDATE chaos.steps SET worker = 'stranger.1' WHERE workflow_id = '{w}' AND step_id = 'long'", "rows",
    ),
    Planted(
        "an unfinished row", "research_agent", "tables",
        "UPDATE chaos.workflows SET status = 'ready', state = 'PENDING', result = NULL, completed_at = NULL, finished_at = NULL "
        "WHERE id = '{w}'",
        "lost",
    ),
    Planted(
        "a forged event", "approval_agent", "tables",
        "UPDATE chaos.workflows SET events = jsonb_build_object('approval', '\"forged\"') WHERE id = '{w}'", "events",
    ),
    Planted(
        "an event that nobody sent", "approval_agent", "tables",
        "UPDATE chaos.workflows SET events = events || jsonb_build_object('other', 'true') WHERE id = '{w}'", "events",
    ),
    Planted(
        "a result twice", "research_agent", "tables",
        f"{_MORE}; INSERT INTO chaos.history (workflow_id, n, event, transaction, worker, fence_token) SELECT workflow_id, "
        f"{_LAST} + 1, event, transaction, worker, fence_token FROM chaos.history WHERE workflow_id = '{{w}}' "
        "AND event = 'workflow_completed'",
        "history",
    ),
    Planted(
        "a refused write that left a trace", "support_agent", "tables",
        "INSERT INTO chaos.steps (workflow_id, step_id, position, kind, state, value, fence_token, worker) SELECT id, 'trace', "
        "checkpoints + 1, 'step', 'TRACE', '1', fence_token, 'worker0.stale' FROM chaos.workflows WHERE id = '{w}'",
        "rows",
    ),
)  # fmt: skip


@dataclass(frozen=True)
class Copy:
    """A copy of the tables and of the shop's books, and which fault stands in which workflow there."""

    url: str
    shop: Path
    planted: dict[str, Planted]


@contextmanager
def planted_copy(world: World) -> Iterator[Copy]:
    """The faults stand in a copy; the originals stay as they are. Nobody may work in the world any more."""
    database, shop = "planted", world.folder / "planted.sqlite"
    shutil.copyfile(world.shop.record, shop)
    world.sql(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND datname = 'agentflow'"
    )
    with world.connect("postgres") as session:
        session.execute(f"CREATE DATABASE {database} TEMPLATE agentflow".encode())
    with world.connect(database) as session, closing(sqlite3.connect(shop)) as books:
        asked = f"SELECT id, name FROM {SCHEMA}.workflows WHERE status = 'completed' ORDER BY id".encode()
        finished = [(row["id"], row["name"]) for row in session.execute(asked)]
        Random(f"{world.plan.setting.seed} planted").shuffle(finished)
        planted: dict[str, Planted] = {}
        for fault in PLANTED:
            workflow = next((one for one, name in finished if name == fault.kind and one not in planted), None)
            assert workflow, f"the run has too few workflows of the kind {fault.kind} for {fault.name}"
            planted[workflow] = fault
            sql = fault.sql.format(w=workflow)
            if fault.where == "tables":
                session.execute(sql.encode())
            else:
                books.executescript(sql)
    yield Copy(world.server.url(database), shop, planted)
