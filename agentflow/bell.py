"""How an idle worker is woken without asking all the time: by a notification, with a poll as the safety net."""

from __future__ import annotations

import contextlib
import selectors
import socket
from collections.abc import Sequence
from typing import Any

import psycopg

from .database import Database
from .errors import AgentFlowError

# A lock for each name, for which nobody waits: `metrics` reads them, and they are gone when the worker is.
_KNOWN = "SELECT pg_advisory_lock_shared(hashtext(%s), hashtext(name)) FROM unnest(%s::text[]) AS name"


class Bell:
    """Rings when work arrives (a notification) or ring() is called; silence is trusted for one poll.

    While it is connected, others can see that a worker runs that knows the workflows of these names.
    """

    def __init__(self, database: Database, names: Sequence[str] = ()) -> None:
        self.database, self.names = database, names
        self._connection: psycopg.Connection[Any] | None = None
        self._sockets: tuple[socket.socket, ...] = ()  # only while somebody may wait

    def __enter__(self) -> Bell:
        self._sockets = socket.socketpair()
        self._sockets[1].setblocking(False)
        return self

    def __exit__(self, *_: object) -> None:
        for open_one in (*self._sockets, self._connection):
            if open_one:
                with contextlib.suppress(OSError, psycopg.Error):
                    open_one.close()
        self._connection = None

    def ring(self) -> None:
        """Wakes the waiting worker at once."""
        with contextlib.suppress(OSError):
            for writer in self._sockets[1:]:
                writer.send(b"!")

    def connect(self) -> bool:
        """Whether it has connected now: it was not, and could. What goes wrong here is told by the next transaction."""
        if self._connection is None or self._connection.closed:
            with contextlib.suppress(AgentFlowError, psycopg.Error):
                self._connection = self.database.listen()
                self._connection.execute(_KNOWN, (self.database.schema, list(self.names)))
                return True
        return False

    def lose(self) -> None:
        """Gives up a connection that may be dead, so that the next connect() makes a new one."""
        if self._connection:
            self._connection.close()
        self._connection = None

    def wait(self, seconds: float) -> None:
        """Returns when rung, or after `seconds`. After (re)connecting it returns at once: something may have been missed."""
        if self.connect():
            return
        try:
            with selectors.DefaultSelector() as selector:
                for heard in (self._sockets[0], self._connection):
                    if heard:
                        selector.register(heard, selectors.EVENT_READ)
                ready = [key.fileobj for key, _ in selector.select(seconds)]
        except (OSError, ValueError):  # a step has closed what was not its own: begin again
            self.__exit__()
            self.__enter__()
            return
        if self._connection in ready and self._connection:
            try:
                for _ in self._connection.notifies(timeout=0):
                    pass
            except psycopg.Error:
                self.lose()
