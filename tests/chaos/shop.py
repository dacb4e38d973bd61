"""A tool of one's own: a shop with a record of its own, which loses requests and replies, and refuses some charges for good.

It honours idempotency keys. What happens to the nth call under a key follows from the seed, so a lost call is a lost call for
whoever makes it. The record is SQLite, shared by all workers; nothing of it is in PostgreSQL.
"""

from __future__ import annotations

import json
import sqlite3
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

from agentflow.errors import ToolRefused
from agentflow.model import ToolCall

LOSES_REQUESTS, LOSES_REPLIES, REFUSES = 0.04, 0.08, 0.1
TABLES = """
CREATE TABLE IF NOT EXISTS effects (
    number INTEGER PRIMARY KEY, key TEXT NOT NULL UNIQUE, workflow TEXT NOT NULL, action TEXT NOT NULL, arguments TEXT NOT NULL,
    result TEXT NOT NULL, calls INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS calls (
    n INTEGER PRIMARY KEY, key TEXT NOT NULL, workflow TEXT NOT NULL, action TEXT NOT NULL, arguments TEXT NOT NULL,
    did TEXT NOT NULL CHECK (did IN ('effect', 'repeated', 'refused', 'lost', 'other arguments')))"""


class Shop:
    """`record` is the file of its books; two shops with one record are one shop."""

    def __init__(self, record: Path, seed: int) -> None:
        self.record, self.seed = record, seed

    def open(self) -> None:
        """The books are there."""
        with self._books() as books:
            books.executescript(TABLES)

    def __call__(self, call: ToolCall) -> Any:
        """Returns the result of this key's one effect. Raises ToolRefused, or TimeoutError if the caller cannot know."""
        with self._books() as books:
            books.execute("BEGIN IMMEDIATE")
            (nth,) = books.execute("SELECT count(*) FROM calls WHERE key = ?", [call.idempotency_key]).fetchone()
            luck = Random(f"{self.seed} {call.idempotency_key} {nth}").random()
            did, result = ("lost", None) if luck < LOSES_REQUESTS else self._act(books, call)
            what = call.idempotency_key, call.workflow_id, call.action, _text(call.arguments)
            books.execute(
                "INSERT INTO calls (key, workflow, action, arguments, did) VALUES (?, ?, ?, ?, ?)", [*what, did]
            )
            books.execute("COMMIT")
        if luck < LOSES_REQUESTS + LOSES_REPLIES:
            raise TimeoutError(f"{call.action}: no answer from the shop")
        if did == "refused":
            raise ToolRefused("The card was declined.")
        if did == "other arguments":
            raise ValueError("This key was used with other arguments.")
        return result

    def effects(self) -> list[tuple[str, str, str, int]]:
        """Everything that the shop did, for AgentFlow's report and checker."""
        with self._books() as books:
            return books.execute("SELECT key, action, workflow, calls FROM effects ORDER BY number").fetchall()

    def _act(self, books: sqlite3.Connection, call: ToolCall) -> tuple[str, Any]:
        if call.action == "charge" and Random(f"{self.seed} {call.idempotency_key}").random() < REFUSES:
            return "refused", None
        arguments, result = _text(call.arguments), _text({"action": call.action, "receipt": uuid.uuid4().hex})
        (kept, stands, calls) = books.execute(
            "INSERT INTO effects (key, workflow, action, arguments, result, calls) VALUES (?, ?, ?, ?, ?, 1) "
            "ON CONFLICT (key) DO UPDATE SET calls = calls + 1 RETURNING arguments, result, calls",
            [call.idempotency_key, call.workflow_id, call.action, arguments, result],
        ).fetchone()
        did = "other arguments" if kept != arguments else "effect" if calls == 1 else "repeated"
        return did, json.loads(stands)

    @contextmanager
    def _books(self) -> Iterator[sqlite3.Connection]:
        # A worker that is stopped in the middle keeps the books to itself: for others that is a call without an answer.
        books = sqlite3.connect(self.record, timeout=2, isolation_level=None)
        try:
            books.execute("PRAGMA synchronous = OFF")  # processes die here, the machine does not
            yield books
        finally:
            books.close()


def _text(value: Any) -> str:
    return json.dumps(value, sort_keys=True)
