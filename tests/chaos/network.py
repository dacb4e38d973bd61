"""The network between some of the clients and PostgreSQL: it forwards, until a kind of trouble begins.

A chunk is what one read gives: usually one request with its parameters, or one answer. While a trouble lasts, a chunk that comes
its way suffers from it with the probability that `TROUBLES` gives; what is lost ends the connection, as a lost packet would after
a while.
"""

from __future__ import annotations

import random
import socket
import struct
import threading
import time
from contextlib import suppress
from typing import Literal

from sqlalchemy.engine import URL

from tests.support.proxy import Relay, cut

Trouble = Literal["replies_swallowed", "requests_dropped", "reset", "half_closed", "delayed", "black_hole", "refused"]
TROUBLES: dict[Trouble, float] = {
    "replies_swallowed": 0.03,
    "requests_dropped": 0.03,
    "reset": 0.03,
    "half_closed": 0.03,
    "delayed": 0.3,
    "black_hole": 1.0,
    "refused": 1.0,
}


class Network(Relay):
    """A relay whose troubles begin and end when they are told to; `happened` counts what they did."""

    def __init__(self, upstream: URL, seed: str) -> None:
        self._chance = random.Random(seed)
        self._troubles: list[Trouble] = []
        self.happened: dict[Trouble, int] = dict.fromkeys(TROUBLES, 0)
        super().__init__(upstream)

    def begin(self, trouble: Trouble) -> None:
        """From now on it happens."""
        self._troubles.append(trouble)

    def end(self, trouble: Trouble) -> None:
        """It happens no more, unless it has begun more than once."""
        self._troubles.remove(trouble)

    def _line(self, client: socket.socket, server: socket.socket) -> None:
        if self._strikes("refused"):
            return self._cut(client, server)
        threading.Thread(
            target=self._pass_on, args=(server, client, client, server, "replies_swallowed"), daemon=True
        ).start()
        self._pass_on(client, server, client, server, "requests_dropped")

    def _pass_on(
        self, source: socket.socket, target: socket.socket, client: socket.socket, server: socket.socket, loss: Trouble
    ) -> None:
        with suppress(OSError):
            while chunk := source.recv(65536):
                if self._strikes(loss):
                    break
                if self._strikes("black_hole"):
                    while "black_hole" in self._troubles:
                        time.sleep(0.02)
                    break
                if self._strikes("delayed"):
                    time.sleep(self._chance.uniform(0.02, 0.4))
                target.sendall(chunk)
                if self._strikes("reset"):
                    for one in (client, server):  # no goodbye: what is on its way is thrown away
                        one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                        one.shutdown(socket.SHUT_RD)  # wakes the other thread, and tells the other side nothing
                        one.close()
                    break
                if self._strikes("half_closed"):  # this direction says goodbye, the other one goes on
                    return target.shutdown(socket.SHUT_WR)
        self._cut(client, server)

    def _strikes(self, trouble: Trouble) -> bool:
        if trouble not in self._troubles or self._chance.random() >= TROUBLES[trouble]:
            return False
        self.happened[trouble] += 1
        return True

    def _cut(self, client: socket.socket, server: socket.socket) -> None:
        self._sockets.difference_update((client, server))
        cut(client)
        cut(server)
