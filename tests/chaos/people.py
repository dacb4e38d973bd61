"""Those who ask for workflows, deliver events and cancel, and write down what they were told.

A person asks again until there is an answer, as somebody would whose browser shows an error page. What was answered is in a
record of their own, which the judge compares with the rows.
"""

from __future__ import annotations

import json
import sqlite3
import threading
import time
from collections.abc import Iterable
from pathlib import Path

from agentflow import Database, Engine
from agentflow.errors import AlreadyFinished, DatabaseAway, EventRefused, UnknownWorkflow
from tests.chaos.plan import Wish

TABLE = "CREATE TABLE IF NOT EXISTS told (workflow TEXT, asked TEXT, name TEXT, payload TEXT, answer TEXT)"


class Person(threading.Thread):
    """Makes these wishes when their time has come, from `begin` on (of time.monotonic()), by this way to the database."""

    def __init__(self, url: str, schema: str, wishes: Iterable[Wish], record: Path, begin: float) -> None:
        super().__init__(daemon=True)
        self._engine = Engine(Database(url, schema, patience=3))
        self._wishes, self._record, self._begin = sorted(wishes, key=lambda wish: wish.at), record, begin
        self._gone = threading.Event()
        self.problems: list[str] = []

    def run(self) -> None:
        """Every wish has its answer."""
        record = sqlite3.connect(self._record, timeout=30, isolation_level=None)
        record.execute(TABLE)
        for wish in self._wishes:
            if self._gone.wait(max(0.0, self._begin + wish.at - time.monotonic())):
                break
            try:
                answer = self._ask(wish)
            except Exception as error:  # no answer that a person is promised
                answer = f"{type(error).__name__}: {error}"
                self.problems.append(f"{wish.asks} {wish.workflow}: {answer}")
            told = wish.workflow, wish.asks, wish.name, json.dumps(wish.payload), answer
            record.execute("INSERT INTO told VALUES (?, ?, ?, ?, ?)", told)
        record.close()
        self._engine.close()

    def go(self) -> None:
        """The person asks for nothing more."""
        self._gone.set()

    def _ask(self, wish: Wish) -> str:
        while not self._gone.is_set():
            try:
                if wish.asks == "create":
                    self._engine.create_workflow(wish.payload, name=wish.name, workflow_id=wish.workflow)
                elif wish.asks == "deliver":
                    self._engine.deliver_event(wish.workflow, wish.name, wish.payload)
                else:
                    self._engine.cancel_workflow(wish.workflow)
                return "done"
            except (EventRefused, AlreadyFinished):
                return "refused"
            except (DatabaseAway, UnknownWorkflow):  # the other person may be about to create it
                self._gone.wait(0.1)
        return "never asked"
