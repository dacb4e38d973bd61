"""The result of a race: its claims, its commits in one order that explains them, the figures and the sentences.

Times are milliseconds of the database's clock since the first claim was asked for. They are measured and differ from run
to run, as does every share; counts of workflows and effects do not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from ..history.words import counted
from ..notebook.tables import Table
from ..schedule.commit_order import Commit, in_order
from ..schedule.grammar import MAX_REQUESTS, Schedule, Setting
from .order import moves_of

DIFFERS = "measured in this run: another run differs"
SAID = {"skip_locked": "SKIP LOCKED", "plain_lock": "a plain lock"}
_ENDED = {"workflow_completed": "completed", "write_refused": "refused"}


@dataclass(frozen=True)
class Look:
    """One claim: what the worker got (`workflow` None: nothing), when it asked, and when the answer came.

    `met` are the workers whose claims of older rows were not committed when this one began. `work_left` means that right
    after an empty claim a row looked runnable.
    """

    worker: str
    workflow: str | None
    token: int | None
    asked: float
    got: float
    met: tuple[str, ...] = ()
    work_left: bool = False


@dataclass(frozen=True)
class Held:
    """A worker held a workflow from its first commit for it to its last one; `ended` is how that ended."""

    look: Look
    first: int
    last: int
    ended: str


@dataclass(frozen=True)
class RaceResult:
    """What workers on one queue did, without its picture."""

    claim: str
    workers: tuple[str, ...]
    requests: int
    looks: tuple[Look, ...]
    entries: tuple[Commit, ...]
    attempts: int
    effects: int

    # -- who did what ------------------------------------------------------------------------------------------------

    @property
    def claims(self) -> list[Look]:
        """The claims that got a workflow."""
        return [look for look in self.looks if look.workflow]

    @property
    def waited(self) -> list[Look]:
        """The claims that waited for a neighbour's commit; with SKIP LOCKED there are none.

        An empty claim leaves no row, so its waits are not counted.
        """
        return [look for look in self.claims if look.met] if self.claim == "plain_lock" else []

    @property
    def passed_over(self) -> list[Look]:
        """The claims that passed over a row which a neighbour held locked; with a plain lock there are none."""
        return [look for look in self.claims if look.met] if self.claim == "skip_locked" else []

    @property
    def empty(self) -> list[Look]:
        """The claims that got nothing; each worker ends with one."""
        return [look for look in self.looks if not look.workflow]

    @property
    def empty_with_work(self) -> list[Look]:
        """The claims that got nothing although a row looked runnable right afterwards."""
        return [look for look in self.empty if look.work_left]

    @property
    def refused(self) -> list[Commit]:
        """The writes that were refused."""
        return [entry for entry in self.entries if entry.event == "write_refused"]

    @property
    def completed(self) -> int:
        """How many workflows were completed."""
        return sum(entry.event == "workflow_completed" for entry in self.entries)

    @property
    def waiting(self) -> float:
        """The share of the workers' time, from 0 to 1, in which they waited for a neighbour's commit. Measured."""
        waited = sum(look.got - look.asked for look in self.waited)
        return waited / (max(commit.at for commit in self.commits) * len(self.workers)) if waited else 0.0

    # -- one order that explains it ----------------------------------------------------------------------------------

    @cached_property
    def commits(self) -> tuple[Commit, ...]:
        """Everything that was written after the requests came, in one order that explains who got which row."""
        return in_order([entry for entry in self.entries if entry.event != "workflow_created"])

    @property
    def schedule(self) -> str:
        """The interleaving that was observed, as one line that gives the same workflows to the same workers when played.

        Empty claims are not part of it, since they commit nothing. A stepper plays up to MAX_REQUESTS requests.
        """
        return str(Schedule(Setting(requests=self.requests), tuple(moves_of(self.commits, self.requests))))

    @property
    def held(self) -> list[Held]:
        """Which worker had which workflow, from which commit to which."""
        found = []
        for look in self.claims:
            mine = (look.worker, look.workflow, look.token)
            places = [n for n, one in enumerate(self.commits) if (one.worker, one.workflow, one.token) == mine]
            end = self.commits[places[-1]].event
            found.append(Held(look, places[0], places[-1], _ENDED.get(end, end)))
        return found

    # -- to look at --------------------------------------------------------------------------------------------------

    def table(self) -> Table:
        """What each worker did, a row each."""
        figures: dict[str, Sequence[Look | Commit]] = {
            "claimed": self.claims, "waited": self.waited, "passed over": self.passed_over, "found nothing": self.empty,
            "although work was left": self.empty_with_work, "refused": self.refused,
        }  # fmt: skip
        rows = [
            {"worker": worker, **{name: sum(one.worker == worker for one in found) for name, found in figures.items()}}
            for worker in self.workers
        ]
        return Table(rows, f"Each worker's claims with {SAID[self.claim]} ({DIFFERS})")

    def text(self) -> str:
        """The race in sentences: the text twin of its picture."""
        if self.claim == "skip_locked":
            share = f"{counted(len(self.passed_over), 'claim')} passed over a row that a neighbour held; none waited."
        else:
            waited = f"{counted(len(self.waited), 'claim')} waited for a neighbour's commit"
            share = f"{waited}, which took {self.waiting:.1%} of the workers' time."
        got = {worker: [str(look.workflow) for look in self.claims if look.worker == worker] for worker in self.workers}
        long = f" (to read; {MAX_REQUESTS} requests at most can be played)" if self.requests > MAX_REQUESTS else ""
        lines = [
            f"{counted(self.requests, 'request')}, {counted(len(self.workers), 'worker')}, {SAID[self.claim]}: "
            f"{self.completed} completed, {counted(self.effects, 'effect')}, {counted(self.attempts, 'attempt')}.",
            *(f"{worker} claimed {', '.join(names) or 'nothing'}." for worker, names in got.items()),
            f"{share} {counted(len(self.empty_with_work), 'claim')} found nothing although work was left. "
            f"{counted(len(self.refused), 'write')} refused.",
            f"Schedule{long}: {self.schedule}",
            f"Who claimed what, waits and shares: {DIFFERS}.",
        ]
        return "\n".join(lines)

    def __repr__(self) -> str:
        return self.text()
