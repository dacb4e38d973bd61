"""The kinds of fault: each strikes the world once, and undoes what it did, at once or after a while.

A strike returns None when all is as before, or (seconds, undo) if it goes on beside others. Those of the server come
one after the other. How long each takes is drawn, and follows the length of a lease.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import TYPE_CHECKING

import psycopg

from tests.chaos.keeper import of_server, send
from tests.chaos.network import TROUBLES, Trouble

if TYPE_CHECKING:
    from tests.chaos.world import World

Lasting = tuple[float, Callable[[], object]] | None
Strikes = Callable[["World", Random], Lasting]


@dataclass(frozen=True)
class Fault:
    """One kind: what it strikes ("server", "network", "worker"), and whether the server needs its shim for it."""

    where: str
    strikes: Strikes
    shim: bool = False


FAULTS: dict[str, Fault] = {}


def _kind(where: str, *, shim: bool = False) -> Callable[[Strikes], Strikes]:
    def keep(strikes: Strikes) -> Strikes:
        FAULTS[strikes.__name__] = Fault(where, strikes, shim)
        return strikes

    return keep


# -- the server --------------------------------------------------------------------------------------------------------


@_kind("server")
def restart_immediate(world: World, chance: Random) -> Lasting:
    """The server crashes without a checkpoint, and recovers."""
    world.server.crash()
    world.server.start()
    return None


@_kind("server")
def restart_fast(world: World, chance: Random) -> Lasting:
    """The server is shut down as an administrator does it."""
    world.server.stop()
    world.server.start()
    return None


@_kind("server")
def postmaster_killed(world: World, chance: Random) -> Lasting:
    """The postmaster is killed; its children notice, and another one starts."""
    send(of_server(world.home)[:1], signal.SIGKILL)
    world.server.start()
    return None


@_kind("server")
def backend_killed(world: World, chance: Random) -> Lasting:
    """One session's process is killed, so PostgreSQL ends all others and recovers."""
    os.kill(chance.choice(world.sessions()), signal.SIGKILL)
    world.server.start()
    return None


@_kind("server")
def sessions_terminated(world: World, chance: Random) -> Lasting:
    """An administrator ends every session."""
    world.sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid = ANY(%s)", params=(world.sessions(),))
    return None


@_kind("server")
def server_frozen(world: World, chance: Random) -> Lasting:
    """All of the server's processes stand still for a while."""
    processes = of_server(world.home)
    try:
        send(processes, signal.SIGSTOP)
        world.wait(chance.uniform(0.3, 1.5) * world.lease)
    finally:
        send(processes, signal.SIGCONT)
    return None


@_kind("server")
def read_only(world: World, chance: Random) -> Lasting:
    """Every transaction is read-only, as on a standby."""
    try:
        world.sql("ALTER SYSTEM SET default_transaction_read_only = on", "SELECT pg_reload_conf()")
        world.wait(chance.uniform(0.3, 1.0) * world.lease)
    finally:
        world.sql("ALTER SYSTEM RESET default_transaction_read_only", "SELECT pg_reload_conf()")
    return None


@_kind("server")
def connections_exhausted(world: World, chance: Random) -> Lasting:
    """Somebody takes every connection that is left."""
    taken: list[psycopg.Connection] = []
    try:
        with suppress(psycopg.OperationalError):
            while True:
                taken.append(world.connect())
        world.wait(chance.uniform(0.3, 1.0) * world.lease)
    finally:
        for one in taken:
            one.close()
    return None


@_kind("server")
def table_locked(world: World, chance: Random) -> Lasting:
    """Somebody holds a lock on the table of workflows, longer than a statement waits for it."""
    return _held(world, chance, "LOCK TABLE chaos.workflows IN ACCESS EXCLUSIVE MODE")


@_kind("server")
def rows_locked(world: World, chance: Random) -> Lasting:
    """Somebody holds locks on rows of workflows that are at work."""
    return _held(world, chance, "SELECT FROM chaos.workflows WHERE finished_at IS NULL ORDER BY id LIMIT 50 FOR UPDATE")


def _held(world: World, chance: Random, sql: str) -> Lasting:
    with suppress(psycopg.OperationalError), world.connect() as session, session.transaction():
        session.execute("SET lock_timeout = '5s'")
        session.execute(sql)
        world.wait(chance.uniform(0.3, 2.0) * world.lease)
    return None


@_kind("server", shim=True)
def disk_full(world: World, chance: Random) -> Lasting:
    """No file may become longer; then there is room again."""
    assert world.shim
    try:
        world.shim.disk(full=True)
        world.wait(chance.uniform(0.3, 1.0) * world.lease)
    finally:
        world.shim.disk(full=False)
    world.server.start()
    return None


@_kind("server", shim=True)
def clock_ahead(world: World, chance: Random) -> Lasting:
    """The server's clock jumps ahead, up to an hour, and back."""
    return _jump(world, chance, chance.choice((30, 600, world.HOUR, world.HOUR)))


@_kind("server", shim=True)
def clock_back(world: World, chance: Random) -> Lasting:
    """The server's clock jumps back, up to half a minute, and ahead again."""
    return _jump(world, chance, -chance.randint(1, 30))


def _jump(world: World, chance: Random, seconds: int) -> Lasting:
    assert world.shim
    try:
        world.shim.clock(seconds)
        world.wait(chance.uniform(0.1, 0.5) * world.lease)
    finally:
        world.shim.clock(0)
    return None


# -- the network -------------------------------------------------------------------------------------------------------


def _trouble(trouble: Trouble, world: World, chance: Random) -> Lasting:
    world.network.begin(trouble)
    return chance.uniform(0.5, 1.5) * world.lease, partial(world.network.end, trouble)


FAULTS.update({trouble: Fault("network", partial(_trouble, trouble)) for trouble in TROUBLES})


# -- the workers -------------------------------------------------------------------------------------------------------


@_kind("worker")
def worker_killed(world: World, chance: Random) -> Lasting:
    """One worker is killed."""
    world.crew.kill(world.worker_at_work(chance))
    return None


@_kind("worker")
def all_workers_killed(world: World, chance: Random) -> Lasting:
    """All workers are killed at once."""
    world.worker_at_work(chance)
    world.crew.kill()
    return None


@_kind("worker")
def worker_paused(world: World, chance: Random) -> Lasting:
    """One worker stands still for longer than its lease, and goes on as if nothing had happened."""
    return chance.uniform(1.2, 2.0) * world.lease, world.crew.pause(world.worker_at_work(chance))


@_kind("worker")
def worker_stopped(world: World, chance: Random) -> Lasting:
    """One worker is asked to stop."""
    world.crew.stop(world.worker_at_work(chance))
    return None
