"""What several tests need, in one place."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import create_engine, text

from agentflow import Database


def eventually(condition: Callable[[], Any], seconds: float = 30.0) -> Any:
    """The first true value of the condition. Raises AssertionError when it was false for `seconds`."""
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, f"not within {seconds:g} s: {getattr(condition, '__name__', condition)}"
        time.sleep(0.02)
    return found


@contextmanager
def database_of_its_own(url: str) -> Iterator[str]:
    """The URL of an empty database on the same server, gone afterwards.

    For whoever uses schema names that others use too, such as a notebook's.
    """
    name = f"t_{uuid.uuid4().hex[:12]}"
    server = create_engine(Database(url).url, isolation_level="AUTOCOMMIT")
    with server.connect() as connection:
        connection.execute(text(f'CREATE DATABASE "{name}"'))
    try:
        yield server.url.set(database=name).render_as_string(hide_password=False)
    finally:
        with server.connect() as connection:
            connection.execute(text(f'DROP DATABASE "{name}" WITH (FORCE)'))
        server.dispose()
