"""Where the measurements happen: a server of our own in a temporary folder, or DATABASE_URL; schemas of our own."""

from __future__ import annotations

import os
import platform
import shutil
import statistics
import sys
import tempfile
import time
import uuid
from pathlib import Path
from typing import Any

from sqlalchemy import text

from agentflow import Database, migrate
from agentflow.server import Server, ensure_running

_TABLES = ("workflows", "steps", "action_intents", "history", "tool_ledger", "tool_attempts")


class Place:
    """A durable PostgreSQL and what was made in it; close() leaves nothing behind. Raises RuntimeError for others."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="agentflow-bench-"))
        given = os.environ.get("DATABASE_URL")
        self._server = None if given else ensure_running(self.folder / "server")
        self.url = given or (self._server.url() if self._server else "")
        self._prefix, self._schemas = f"bench_{uuid.uuid4().hex[:8]}", list[str]()
        self.admin = Database(self.url, self.name("admin"))
        self.state = self.admin.check()
        if not (self.state["fsync"] and self.state["full_page_writes"] and self.state["synchronous_commit"] == "on"):
            self.close()
            raise RuntimeError("This PostgreSQL does not make commits durable, so its figures would mean nothing.")

    def name(self, what: str) -> str:
        """The name of a schema of this run, which close() drops."""
        self._schemas.append(f"{self._prefix}_{what}")
        return self._schemas[-1]

    def laboratory(self, what: str) -> Database:
        """A migrated schema of its own."""
        database = Database(self.url, self.name(what))
        migrate(database, laboratory=True)
        return database

    def sql(self, statement: str, **binds: Any) -> list[Any]:
        """The rows of one statement, on a connection that is used for nothing else."""
        with self.admin.alchemy.connect() as connection:
            result = connection.execute(text(statement), binds)
            return list(result) if result.returns_rows else []

    def empty(self, database: Database) -> None:
        """The laboratory's six tables are empty and small again."""
        worlds = {"tool_ledger", "tool_attempts"}
        tables = ", ".join(f"{database.schema}{'_world' if name in worlds else ''}.{name}" for name in _TABLES)
        self.sql(f"TRUNCATE {tables}")

    def disk_wait(self, times: int = 100) -> float:
        """The seconds of a commit in which PostgreSQL waits until the disk has it."""
        took: dict[str, list[float]] = {"off": [], "on": []}  # `on` is what stays
        with self.admin.alchemy.connect() as connection:
            for _ in range(times):
                for mode, seconds in took.items():
                    connection.exec_driver_sql(f"SET synchronous_commit = {mode}")
                    began = time.perf_counter()
                    connection.exec_driver_sql("SELECT pg_logical_emit_message(true, 'bench', '')")
                    seconds.append(time.perf_counter() - began)
        return statistics.median(took["on"]) - statistics.median(took["off"])

    def facts(self) -> str:
        """The machine in one line; nothing in it names a person, a path or a host."""
        server = "our own server, " if self._server else "DATABASE_URL, "
        return (
            f"{os.cpu_count()} cores, {platform.system()} {platform.machine()}, Python {sys.version.split()[0]}, "
            f"PostgreSQL {self.state['version'].split()[0]} ({server}fsync, full_page_writes and synchronous_commit on)"
        )

    def close(self) -> None:
        """The schemas are gone, and the server if it was ours."""
        if self._server is None:
            for schema in self._schemas:
                self.sql(f'DROP SCHEMA IF EXISTS "{schema}", "{schema}_world" CASCADE')
        self.admin.close()
        if self._server is not None:
            Server(self._server.home).stop()
        shutil.rmtree(self.folder, ignore_errors=True)
