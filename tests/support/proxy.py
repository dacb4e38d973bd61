"""A relay between a worker and PostgreSQL, and on it a proxy that loses one answer, for the statement and in the way asked for.

`Relay` only forwards; the network of `tests/chaos` is on it, too. How `Proxy` loses an answer:
`committed`: PostgreSQL has committed and answered, the answer is swallowed and the client's connection cut.
`pending`: the statement waits for a lock, the client's connection is cut, PostgreSQL's side stays open, so that the
statement still comes about. `withdrawn`: both sides are cut while it waits, so PostgreSQL gives it up.
It reads the protocol's messages: a statement is known by the text that was prepared under the name that Bind gives.
"""

from __future__ import annotations

import re
import socket
import struct
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

from sqlalchemy.engine import URL

from agentflow import Database

Loss = Literal["committed", "pending", "withdrawn"]
Hooks = tuple[Callable[[], Any], Callable[[int], Any], Callable[[int], Any]]  # before, sent, after


def plain(text: str) -> str:
    """A statement's text without the names and numbers of its parameters."""
    return re.sub(r"\$\d+|%\(\w+\)s", "?", text).replace("%%", "%")


class Relay:
    """Listens on 127.0.0.1; each connection is forwarded to the database's server by whatever `_line` makes of the two ends."""

    def __init__(self, upstream: URL) -> None:
        self.upstream = upstream
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=100)
        self._sockets = {self._listener}
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def url(self) -> str:
        """Where clients connect to."""
        query = {key: value for key, value in self.upstream.query.items() if key not in ("host", "port")}
        port = self._listener.getsockname()[1]
        url: URL = self.upstream.set(
            host="127.0.0.1", port=port, query={**query, "sslmode": "disable", "gssencmode": "disable"}
        )
        return url.render_as_string(hide_password=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for one in tuple(self._sockets):
            cut(one)

    def _line(self, client: socket.socket, server: socket.socket) -> None:
        """One connection begins: both ends, on a thread of its own."""
        raise NotImplementedError

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._begin, args=(client,), daemon=True).start()

    def _begin(self, client: socket.socket) -> None:
        self._sockets.add(client)
        try:
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            server = self._connect()
        except OSError:  # as if there were no proxy
            return cut(client)
        self._sockets.add(server)
        self._line(client, server)

    def _connect(self) -> socket.socket:
        folder, port = self.upstream.query.get("host"), self.upstream.query.get("port") or self.upstream.port or 5432
        if folder:
            server = socket.socket(socket.AF_UNIX)
            server.connect(str(Path(str(folder), f".s.PGSQL.{port}")))
            return server
        server = socket.create_connection((self.upstream.host or "127.0.0.1", int(str(port))))
        server.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return server


class Proxy(Relay):
    """`lost` counts the answers that it lost."""

    def __init__(self, database: Database) -> None:
        self.lost = 0
        self.trouble: list[BaseException] = []
        self._armed: tuple[str, Loss, int, Hooks] | None = None
        self._cut_in = 0
        self._lock = threading.Lock()
        super().__init__(database.url)

    def lose(
        self,
        text: str,
        how: Loss,
        nth: int = 1,
        *,
        before: Callable[[], Any] = lambda: None,
        sent: Callable[[int], Any] = lambda pid: None,
        after: Callable[[int], Any] = lambda pid: None,
    ) -> None:
        """The answer to the nth statement of this text from now on will be lost; `before` runs just before it is
        forwarded, `sent` when it was, `after` when the client has been cut off (or is about to be, if it was committed); both are
        given the process id of PostgreSQL's side."""
        self._armed = (plain(text), how, nth, (before, sent, after))

    def cut_request(self, nth: int) -> None:
        """The nth request from now on, of whichever client, never arrives: both sides of its connection are cut."""
        self._cut_in = nth

    def _cuts(self) -> bool:
        with self._lock:
            self._cut_in -= 1
            self.lost += self._cut_in == 0
            return self._cut_in == 0

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        super().__exit__(kind, error, trace)
        if kind is None and self.trouble:
            raise self.trouble[0]

    def _line(self, client: socket.socket, server: socket.socket) -> None:
        _Line(self, client, server)

    def _due(self, text: str) -> tuple[Loss, Hooks] | None:
        with self._lock:
            if self._armed is None or self._armed[0] != plain(text):
                return None
            wanted, how, nth, hooks = self._armed
            self._armed = (wanted, how, nth - 1, hooks) if nth > 1 else None
            return (how, hooks) if nth == 1 else None


def cut(one: socket.socket) -> None:
    """The socket is closed, whoever reads from it or writes to it."""
    with suppress(OSError):
        one.shutdown(socket.SHUT_RDWR)
    one.close()


class _Line:
    """One client's connection: two threads that pass messages on."""

    def __init__(self, proxy: Proxy, client: socket.socket, server: socket.socket) -> None:
        self.proxy, self.client, self.server = proxy, client, server
        self.texts: dict[bytes, str] = {}
        self.losing: Loss | None = None
        self.then: Callable[[int], Any] = lambda pid: None
        self.pid = 0
        for work in (self._up, self._down):
            threading.Thread(target=self._guarded, args=(work,), daemon=True).start()

    def _guarded(self, work: Callable[[], None]) -> None:
        try:
            work()
        except OSError:
            pass
        except BaseException as error:
            self.proxy.trouble.append(error)
        if self.losing != "pending" or work == self._down:
            cut(self.client)
            cut(self.server)

    def _up(self) -> None:
        reader = self.client.makefile("rb")
        (length,) = struct.unpack("!i", reader.read(4))
        self.server.sendall(struct.pack("!i", length) + reader.read(length - 4))
        due = None
        while head := reader.read(5):
            body = reader.read(struct.unpack("!i", head[1:])[0] - 4)
            if head[:1] in (b"Q", b"S") and self.proxy._cuts():
                return
            if head[:1] == b"P":
                name, text, _ = body.split(b"\0", 2)
                self.texts[name] = text.decode()
            elif head[:1] == b"B" and (due := self.proxy._due(self.texts[body.split(b"\0", 2)[1]])):
                due[1][0]()
                self.losing, self.then = due[0], due[1][2]
            self.server.sendall(head + body)
            if due and head[:1] == b"S" and due[0] != "committed":
                self._lose(*due)
                return

    def _lose(self, how: Loss, hooks: Hooks) -> None:
        _, sent, after = hooks
        sent(self.pid)
        self.proxy.lost += 1
        if how == "withdrawn":
            cut(self.server)
        cut(self.client)
        after(self.pid)

    def _down(self) -> None:
        reader = self.server.makefile("rb")
        while head := reader.read(5):
            body = reader.read(struct.unpack("!i", head[1:])[0] - 4)
            if head[:1] == b"K":
                (self.pid,) = struct.unpack("!i", body[:4])
            if self.losing is None:
                self.client.sendall(head + body)
            elif head[:1] == b"Z":  # PostgreSQL says that it is through: committed, or given up
                if self.losing == "committed":
                    self.proxy.lost += 1
                    self.then(self.pid)
                return
