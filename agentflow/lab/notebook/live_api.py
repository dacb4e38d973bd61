"""The API, live for the length of a `with`: `agentflow api` in a process of its own, asked over HTTP from a cell.

What lives here: starting it on a free port of 127.0.0.1, asking it, ending it. What does not: the API (`agentflow.api`).
"""

from __future__ import annotations

import io
import json
import os
import runpy
import sys
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from ...engine import Engine
from ...errors import AgentFlowError
from ..laboratory.processes import kill, start

PATIENCE = 20.0  # seconds, for the process to start and for each answer


@dataclass(frozen=True)
class Api:
    """Where the API answers, and two verbs. What is not found or refused raises AgentFlowError with the API's sentence."""

    url: str

    def get(self, path: str) -> Any:
        """The answer: JSON as Python values, a page as text."""
        return self._ask("GET", path, None)

    def post(self, path: str, body: Any = None) -> Any:
        """The answer to this body, which is sent as JSON."""
        return self._ask("POST", path, None if body is None else json.dumps(body).encode())

    def post_together(self, *paths: str) -> list[Any]:
        """The answers to requests that were sent at the same moment, in the order of the paths."""
        with ThreadPoolExecutor(max(1, len(paths))) as executor:
            return list(executor.map(self.post, paths))

    def routes(self) -> list[str]:
        """What can be asked, as the documentation at /docs lists it."""
        paths: dict[str, dict[str, Any]] = self.get("/openapi.json")["paths"]
        return [f"{verb.upper()} {path}" for path, verbs in paths.items() for verb in verbs]

    def _ask(self, verb: str, path: str, body: bytes | None) -> Any:
        asked = Request(self.url + path, body, {"Content-Type": "application/json"}, method=verb)
        try:
            with urlopen(asked, timeout=PATIENCE) as answer:
                said = answer.read().decode()
                return json.loads(said) if answer.headers.get_content_type() == "application/json" else said
        except HTTPError as error:
            raise AgentFlowError(f"{verb} {path} was answered with {error.code}: {error.read().decode()}") from None


@contextmanager
def live_api(engine: Engine) -> Iterator[Api]:
    """The API answers for this engine's laboratory meanwhile; afterwards its process and its port are gone.

    Raises AgentFlowError if it does not start.
    """
    here, there = Pipe(duplex=False)
    url = engine.database.url.render_as_string(hide_password=False)
    arguments = ["api", "--schema", engine.database.schema, "--port", "0", "--json"]
    process = start(_command, {**os.environ, "DATABASE_URL": url}, arguments, there, name="api")
    there.close()
    try:
        yield Api(_address(here))
    finally:
        kill([process])
        here.close()


def _address(channel: Connection) -> str:
    """Where the API says that it answers. Raises AgentFlowError if it says nothing."""
    try:
        if channel.poll(PATIENCE):
            return str(json.loads(channel.recv())["url"])
    except EOFError:
        pass
    raise AgentFlowError("The API did not start. Run `agentflow api` in a terminal: it says why.")


def _command(environment: Mapping[str, str], arguments: list[str], channel: Connection) -> None:
    """This process is `agentflow` with these arguments, and what it prints goes into the channel."""
    os.environ.update(environment)
    sys.argv = ["agentflow", *arguments]
    sys.stdout = _Told(channel)
    runpy.run_module("agentflow", run_name="__main__")


class _Told(io.TextIOBase):
    """Standard output that is sent, a line at a time."""

    def __init__(self, channel: Connection) -> None:
        self._channel, self._line = channel, ""

    def write(self, text: str) -> int:
        self._line += text
        if self._line.endswith("\n"):
            self._channel.send(self._line)
            self._line = ""
        return len(text)
