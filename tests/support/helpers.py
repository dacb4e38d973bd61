"""What several tests need. The one place where tests wait: for a condition, for a bounded time; no test sleeps."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from agentflow import Claim, Database, Engine
from agentflow.worker import Worker

T = TypeVar("T")


def eventually(condition: Callable[[], T], seconds: float = 20.0) -> T:
    """The condition's first true value; AssertionError if it has none within `seconds`."""
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, f"not reached within {seconds:g} s"
        time.sleep(0.005)
    return value


class Unlucky(Engine):
    """A correct engine on which the first worker to claim a workflow loses its lease at once, as on a loaded machine."""

    def claim_workflow(self, worker_id: str, lease_seconds: float | None = None, *, names: Any = None) -> Claim | None:
        claim = super().claim_workflow(worker_id, lease_seconds, names=names)
        if claim and claim.fence_token == 1:
            self.with_hook(None).expire_lease(claim.workflow_id)
        return claim


@contextmanager
def working(*workers: Worker) -> Iterator[None]:
    """The workers run on threads until the block is left."""
    threads = [threading.Thread(target=worker.run_forever) for worker in workers]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        for worker in workers:
            worker.stop()
        for thread in threads:
            thread.join(30)
            assert not thread.is_alive()


def administrator(url: str) -> str:
    """The same database for who may make roles and databases: our own server's superuser, or whom DATABASE_URL names."""
    return url.replace("://agentflow@/", "://postgres@/", 1)


def owner(url: str) -> str:
    """The clause by which an administrator's new database belongs to whom this address names."""
    return "" if administrator(url) == url else " OWNER agentflow"


@contextmanager
def database_of_its_own(url: str, name: str | None = None) -> Iterator[str]:
    """The URL of an empty database on the same server, gone afterwards.

    For tests that use schema names that others use too, such as a notebook's.
    """
    name = name or f"t_{uuid.uuid4().hex[:12]}"
    server = Database(administrator(url))
    with server.session() as session:
        session.execute(f'CREATE DATABASE "{name}"{owner(url)}'.encode())
    try:
        yield Database(url).url.set(database=name).render_as_string(hide_password=False)
    finally:
        with server.session() as session:
            session.execute(f'DROP DATABASE "{name}" WITH (FORCE)'.encode())
