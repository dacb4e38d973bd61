"""The workers: real processes of `agentflow worker`, each replaced when it has ended, whoever ended it."""

from __future__ import annotations

import os
import signal
import subprocess
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import psutil

from agentflow.agents import WORKFLOWS
from tests.chaos.keeper import birth
from tests.support.helpers import eventually
from tests.support.programs import Program, environment

PATIENCE = 60.0  # seconds for a worker that was told to stop


@dataclass
class Berth:
    """A place for one worker: how it reaches the database, and what was done to the one that is in it."""

    name: str
    url: str
    process: Program | None = None
    log: Path = Path()
    done: set[str] = field(default_factory=set)

    @property
    def is_at_work(self) -> bool:
        """Whether a worker runs here that has begun to work, and nobody has done anything to it."""
        return self._is_untouched and '"worker_started"' in self.log.read_text()

    @property
    def is_beginning(self) -> bool:
        """Whether a worker runs here that has not begun to work yet, and nobody has done anything to it."""
        return self._is_untouched and not self.is_at_work

    @property
    def _is_untouched(self) -> bool:
        return self.process is not None and self.process.poll() is None and not self.done


class Crew:
    """`urls` are the ways to the database, one for each worker; `began` hears of each process."""

    def __init__(
        self, urls: list[str], folder: Path, lease: float, env: Mapping[str, str], began: Callable[[str], None]
    ) -> None:
        self._berths = [Berth(f"worker{n}", url) for n, url in enumerate(urls)]
        self._folder, self._lease, self._env, self._began = folder, lease, env, began
        self.counts: Counter[str] = Counter()
        self.problems: list[str] = []
        self._closing = False

    def look(self) -> None:
        """Every berth has a worker, and what became of those that have ended is counted."""
        for berth in self._berths:
            if berth.process and berth.process.poll() is None:
                continue
            if berth.process:
                self._ended(berth)
            if not self._closing:
                self._start(berth)

    def somebody(self, chance: Random) -> Berth | None:
        """One that is at work, or None if nobody is."""
        found = [berth for berth in self._berths if berth.is_at_work]
        return chance.choice(found) if found else None

    def kill(self, *several: Berth) -> None:
        """These (or all) are killed: no `finally`, no goodbye."""
        for berth in several or self._berths:
            self._signal(berth, "killed", signal.SIGKILL)

    def stop(self, berth: Berth) -> None:
        """It is asked to stop, and has to end with 0."""
        self._signal(berth, "stopped", signal.SIGTERM)

    def pause(self, berth: Berth) -> Callable[[], None]:
        """It stands still, until what is returned is called."""
        process = berth.process
        self._signal(berth, "paused", signal.SIGSTOP)

        def go_on() -> None:
            if process and process.poll() is None:
                os.kill(process.pid, signal.SIGCONT)
            if berth.process is process:
                berth.done.discard("paused")

        return go_on

    def close(self) -> None:
        """All have stopped, as they were asked to."""
        self.look()
        self._closing = True
        for berth in self._berths:
            eventually(lambda berth=berth: not berth.is_beginning, PATIENCE)  # to hear a signal it must have begun
            self._signal(berth, "stopped", signal.SIGTERM)
        for berth in self._berths:
            if berth.process:
                try:
                    berth.process.wait(PATIENCE)
                except subprocess.TimeoutExpired:
                    self.problems.append(f"{berth.name} did not stop within {PATIENCE:g} s")
                    berth.process.kill()
        self.look()

    def _signal(self, berth: Berth, what: str, number: int) -> None:
        if berth.process and berth.process.poll() is None:
            berth.done.add(what)
            self.counts[what] += 1
            os.kill(berth.process.pid, number)

    def _start(self, berth: Berth) -> None:
        self.counts["started"] += 1
        berth.log, berth.done = self._folder / f"{berth.name}.{self.counts['started']}.log", set()
        arguments = f"worker --schema chaos --name {berth.name} --lease {self._lease:g} --poll 0.2".split()
        own = [f"tests.chaos.workflows:{name}" for name in ("order", "slow")]
        arguments += [part for one in (*WORKFLOWS, *own) for part in ("--workflow", one)]
        env = environment(**{**self._env, "DATABASE_URL": berth.url})
        with berth.log.open("w") as log, open(os.devnull) as nothing:
            berth.process = Program(
                arguments, module="tests.chaos.worker", standard=(nothing, log, log), env=env, cwd=self._folder
            )
        with suppress(psutil.NoSuchProcess):  # it has ended, and will be missed by look()
            self._began(birth(berth.process.pid))

    def _ended(self, berth: Berth) -> None:
        assert berth.process
        code, berth.process = berth.process.returncode, None
        right = {-signal.SIGKILL} if "killed" in berth.done else {0} if "stopped" in berth.done else set()
        if code not in right and not ("killed" in berth.done and "stopped" in berth.done and code == 0):
            last = "".join(berth.log.read_text().splitlines()[-1:])
            did = " and ".join(sorted(berth.done)) or "left alone"
            self.problems.append(f"{berth.name} was {did} and ended with {code}; its last line: {last:.300}")
