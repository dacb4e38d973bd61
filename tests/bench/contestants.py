"""The two engines that run against each other, in the same loop: submit one workflow, carry one workflow.

Each lives in processes of its own that stay for the whole run, so that a round measures neither start-up nor imports. A
process carries its share in threads. What is measured: the parent's time from the word to the last answer.
"""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any

from agentflow import Database, Engine
from tests.bench.tutorial_engine import TutorialEngine

REQUEST = "My password no longer works and I cannot login, please help me today"
_SPAWN = multiprocessing.get_context("spawn")
Carry = Callable[[str], bool]


class Contestant:
    """`processes` with `threads` each run the engine called `kind` on a schema; run() says how long a share took."""

    def __init__(self, kind: str, url: str, schema: str, processes: int, threads: int) -> None:
        self.workers, self.threads = processes * threads, threads
        self._lanes: list[tuple[Any, Connection]] = []
        for number in range(processes):
            ours, theirs = _SPAWN.Pipe()
            lane = _SPAWN.Process(target=_lane, args=(theirs, kind, url, schema, number, threads), daemon=True)
            lane.start()
            theirs.close()
            self._lanes.append((lane, ours))
        for _, pipe in self._lanes:
            _answer(pipe)

    def run(self, workflows: int) -> tuple[float, float]:
        """So many workflows, a share for each worker, were created and carried; seconds, and CPU seconds of Python."""
        share = max(1, workflows // self.workers)
        began = time.perf_counter()
        for _, pipe in self._lanes:
            pipe.send(share)
        cpu = sum(_answer(pipe) for _, pipe in self._lanes)
        scale = workflows / (share * self.workers)
        return (time.perf_counter() - began) * scale, cpu * scale

    def close(self) -> None:
        """Its processes are gone."""
        for lane, pipe in self._lanes:
            with suppress(OSError):
                pipe.send(None)
            lane.join(10)
            if lane.is_alive():
                lane.kill()


def _answer(pipe: Connection, patience: float = 300.0) -> float:
    if not pipe.poll(patience):
        raise TimeoutError(f"a benchmark process did not answer for {patience:g} s")
    said = pipe.recv()
    if isinstance(said, str):
        raise RuntimeError(f"a benchmark process failed: {said}")
    return float(said)


def _lane(pipe: Connection, kind: str, url: str, schema: str, number: int, threads: int) -> None:
    """A process: says that it is ready, then carries a share for each number that it is sent, until None."""
    try:
        make = KINDS[kind](url, schema)
        workers = [make(f"{kind}-{number}-{thread}") for thread in range(threads)]
        pipe.send(0.0)
        with ThreadPoolExecutor(threads) as pool:
            while (share := pipe.recv()) is not None:
                before = time.process_time()
                for done in [pool.submit(_carry_share, worker, share) for worker in workers]:
                    done.result()
                pipe.send(time.process_time() - before)
    except EOFError:
        return
    except Exception as error:
        pipe.send(repr(error))


def _carry_share(worker: tuple[Callable[[], Any], Callable[[], bool]], share: int) -> None:
    submit, carry = worker
    for _ in range(share):
        submit()
        while not carry():  # somebody else was quicker, or had the row locked
            pass


def _ours(url: str, schema: str) -> Callable[[str], tuple[Callable[[], Any], Callable[[], bool]]]:
    engine = Engine(Database(url, schema))

    def worker(name: str) -> tuple[Callable[[], Any], Callable[[], bool]]:
        one = engine.worker(name)
        return (lambda: engine.create_workflows([REQUEST])), (lambda: one.run_once() == "completed")

    return worker


def _tutorial(url: str, schema: str) -> Callable[[str], tuple[Callable[[], Any], Callable[[], bool]]]:
    engine = TutorialEngine(url, schema)
    return lambda name: ((lambda: engine.create_workflow(REQUEST)), (lambda: engine.run_once(name)))


KINDS = {"ours": _ours, "tutorial": _tutorial}
