"""The real API, or a real worker, inside a `with`: `agentflow api` or `agentflow worker` in a process of its own."""

from __future__ import annotations

import io
import json
import os
import runpy
import sys
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any
from urllib.error import HTTPError
from urllib.request import ProxyHandler, Request, build_opener

from ...engine import Engine
from ...errors import AgentFlowError
from ..history.faults import FAULTS
from ..laboratory.processes import connected, kill
from .tables import query

WAIT_FOR_API = 20.0  # seconds, for the process to start and for each answer


@dataclass(frozen=True)
class Api:
    """A running API, asked with two verbs. An answer of 400 or more raises AgentFlowError with the API's sentence."""

    url: str
    token: str = field(repr=False)

    def get(self, path: str) -> Any:
        """The answer: JSON as Python values, a page as text."""
        return self._ask("GET", path, None)

    def post(self, path: str, body: Any = None) -> Any:
        """Sends the body as JSON. Returns the answer."""
        return self._ask("POST", path, None if body is None else json.dumps(body).encode())

    def post_together(self, *paths: str) -> list[Any]:
        """Sends one request to each path at the same moment. Returns the answers in the order of the paths."""
        with ThreadPoolExecutor(max(1, len(paths))) as executor:
            return list(executor.map(self.post, paths))

    def routes(self) -> list[str]:
        """The routes, as the documentation at /docs lists them."""
        paths: dict[str, dict[str, Any]] = self.get("/openapi.json")["paths"]
        return [f"{verb.upper()} {path}" for path, verbs in paths.items() for verb in verbs]

    def _ask(self, verb: str, path: str, body: bytes | None) -> Any:
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {self.token}"}
        request = Request(self.url + path, body, headers, method=verb)
        try:
            with build_opener(ProxyHandler({})).open(request, timeout=WAIT_FOR_API) as answer:  # it is this computer
                text = answer.read().decode()
                return json.loads(text) if answer.headers.get_content_type() == "application/json" else text
        except HTTPError as error:
            raise AgentFlowError(f"{verb} {path} was answered with {error.code}: {error.read().decode()}") from None


@contextmanager
def live_api(engine: Engine) -> Iterator[Api]:
    """Runs the API for this engine's laboratory; ends its process and frees its port afterwards.

    Raises AgentFlowError if it does not start.
    """
    url = engine.database.address
    arguments = ["api", "--schema", engine.database.schema, "--port", "0", "--json"]
    with connected(_command, {**os.environ, "DATABASE_URL": url}, os.getcwd(), arguments, name="api") as (_, channel):
        yield _api(channel)


@contextmanager
def live_worker(engine: Engine, folder: str, *options: str, **environment: str) -> Iterator[BaseProcess]:
    """Runs `agentflow worker` for this engine's laboratory in the folder; its process is killed afterwards.

    What it held then, or when somebody else killed it, has the kill in its history.
    """
    variables = {**os.environ, "DATABASE_URL": engine.database.address, **environment}
    arguments = ["worker", "--schema", engine.database.schema, *options]
    with connected(_command, variables, folder, arguments, name="worker") as (process, channel):
        try:
            yield process
        finally:
            kill([process])
            if process.exitcode == -9:
                _mourn(engine, channel)


def _mourn(engine: Engine, channel: Connection) -> None:
    """Records the kill of a worker, which told its identity when it started, in what it still holds."""
    with suppress(EOFError):
        while (told := json.loads(channel.recv()))["event"] != "worker_started":
            pass
        for held in query(
            engine, "SELECT id, fence_token FROM workflows WHERE lease_owner = :name", name=told["worker_id"]
        ):
            kill = FAULTS["kill"]
            engine.record_fault(
                held["id"], kill.event, worker=told["worker_id"], token=held["fence_token"], signal=kill.signalled[0]
            )


def _api(channel: Connection) -> Api:
    """The API whose address and token are printed. Raises AgentFlowError if they are not."""
    with suppress(EOFError):
        if channel.poll(WAIT_FOR_API):
            told = json.loads(channel.recv())
            return Api(told["url"], told["token"])
    raise AgentFlowError("The API did not start. Run `agentflow api` in a terminal: it says why.")


def _command(environment: Mapping[str, str], folder: str, arguments: list[str], channel: Connection) -> None:
    """Runs `agentflow` with these arguments in this process, and sends what it prints into the channel."""
    os.environ.update(environment)
    os.chdir(folder)
    sys.argv = ["agentflow", *arguments]
    sys.stdout = _Sender(channel)
    runpy.run_module("agentflow", run_name="__main__")


class _Sender(io.TextIOBase):
    """Standard output that is sent into a channel, a line at a time."""

    def __init__(self, channel: Connection) -> None:
        self._channel, self._line = channel, ""

    def write(self, text: str) -> int:
        self._line += text
        if self._line.endswith("\n"):
            self._channel.send(self._line)
            self._line = ""
        return len(text)
