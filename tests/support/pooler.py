"""A pooler in transaction mode, in miniature: many clients share a few connections, one transaction at a time.

Each transaction goes to whichever connection is free, so a client's prepared statements are known to some of them, and its
settings too. It reads the protocol's messages just far enough to see where a transaction ends.
"""

from __future__ import annotations

import os
import socket
import struct
import threading
from contextlib import suppress
from typing import BinaryIO

import psycopg

from agentflow import Database
from tests.support.proxy import Relay, cut

_SYNC, _SIMPLE, _END = b"S", b"Q", b"X"
_STATUSES = ("server_version", "client_encoding", "server_encoding", "standard_conforming_strings", "TimeZone")


class Pooler(Relay):
    """Listens on 127.0.0.1; its clients share `size` connections to the database's server."""

    def __init__(self, database: Database, size: int) -> None:
        self._free: list[tuple[socket.socket, BinaryIO]] = []
        self._changed = threading.Condition()
        own = database.url.set(query={**database.url.query, "sslmode": "disable", "gssencmode": "disable"})
        address = own.set(drivername="postgresql").render_as_string(hide_password=False)
        self._kept = [psycopg.connect(address) for _ in range(size)]
        # psycopg has logged in, and is silent from now on.
        servers = [socket.socket(fileno=os.dup(one.fileno())) for one in self._kept]
        for server in servers:
            server.setblocking(True)
            self._free.append((server, server.makefile("rb")))
        told = {name: self._kept[0].info.parameter_status(name) for name in _STATUSES}
        greeting = [(b"R", struct.pack("!i", 0))]
        greeting += [(b"S", f"{name}\0{value}\0".encode()) for name, value in told.items()]
        greeting += [(b"K", struct.pack("!ii", 0, 0)), (b"Z", b"I")]
        self._greeting = b"".join(kind + struct.pack("!i", len(body) + 4) + body for kind, body in greeting)
        super().__init__(database.url)
        self._sockets |= set(servers)

    def _begin(self, client: socket.socket) -> None:
        self._sockets.add(client)
        with suppress(OSError, struct.error):
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            reader = client.makefile("rb")
            reader.read(struct.unpack("!i", reader.read(4))[0] - 4)
            client.sendall(self._greeting)
            last = None
            while asked := _until_asked(reader):
                with self._changed:
                    # never the same one twice: clients that take turns on a busy machine would each keep their own
                    while not (others := [one for one in self._free if one is not last]):
                        self._changed.wait()
                    last = others[0]
                    self._free.remove(last)
                server, answers = last
                try:
                    while True:
                        server.sendall(asked)
                        told = list(_until_ready(answers))
                        client.sendall(b"".join(told))
                        if told[-1][-1:] == b"I":
                            break
                        asked = _until_asked(reader)  # still inside its transaction
                finally:
                    with self._changed:
                        self._free.append(last)
                        self._changed.notify_all()
        cut(client)


def _message(reader: BinaryIO) -> bytes:
    head = reader.read(5)
    return head + reader.read(struct.unpack("!i", head[1:])[0] - 4)


def _until_ready(reader: BinaryIO) -> list[bytes]:
    """The server's messages up to the one that says that it is ready."""
    found = [_message(reader)]
    while found[-1][:1] != b"Z":
        found.append(_message(reader))
    return found


def _until_asked(reader: BinaryIO) -> bytes:
    """The client's messages up to the one after which the server answers; nothing if the client has gone."""
    asked = b""
    while True:
        with suppress(struct.error):
            one = _message(reader)
            if one[:1] != _END:
                asked += one
                if one[:1] not in (_SYNC, _SIMPLE):
                    continue
                return asked
        return b""
