"""What a race came to: its claims, its commits in one order that explains them, and the figures.

What lives here: plain records without a database, and what follows from them (the table, the sentences). What does not:
running (`race`), the order and the schedule (`race_order`), drawing (`race_picture`). Times are milliseconds of the
database's clock since the first claim was asked for, and are measured, like every share; counts of workflows and effects
are not.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from ..notebook.tables import Table, counted
from ..pictures.svg import Picture
from ..schedule.commit_order import Commit, in_order
from ..schedule.grammar import MAX_REQUESTS
from .order import schedule_of

if TYPE_CHECKING:
    import pandas

MEASURED = "measured in this run: another run differs"
SAID = {"skip_locked": "SKIP LOCKED", "plain_lock": "a plain lock"}
_ENDED = {"workflow_completed": "completed", "write_refused": "refused"}


@dataclass(frozen=True)
class Look:
    """One claim statement of a worker: what it got (`workflow` None: nothing), and when it was asked and had it.

    `met` are the workers whose claims of older rows were not committed when this one began. `work_left` says of an empty
    claim that a row looked runnable right afterwards.
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
    """A worker had a workflow from one commit to another (its last one, if it was never done with it); `ended` says how."""

    look: Look
    first: int
    last: int
    until: float
    ended: str


@dataclass(frozen=True)
class Race:
    """What workers on one queue did. A notebook shows it as a picture, and as text where there is none."""

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
        """The claims that waited for a neighbour's commit: with SKIP LOCKED none, whomever they met.

        An empty claim leaves no row, so its waits are not counted.
        """
        return [look for look in self.claims if look.met] if self.claim == "plain_lock" else []

    @property
    def passed_over(self) -> list[Look]:
        """The claims that passed over a row which a neighbour held locked: with a plain lock none."""
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
    def duration(self) -> float:
        """Milliseconds from the first claim asked for to the last entry. Measured."""
        return max((entry.at for entry in self.commits), default=0.0)

    @property
    def waiting(self) -> float:
        """The share of the workers' time, from 0 to 1, in which they waited for a neighbour's commit. Measured."""
        waited = sum(look.got - look.asked for look in self.waited)
        return waited / (self.duration * len(self.workers)) if waited else 0.0

    # -- one order that explains it ----------------------------------------------------------------------------------

    @cached_property
    def commits(self) -> tuple[Commit, ...]:
        """Everything that was written after the requests came, in one order that explains who got which row."""
        return in_order([entry for entry in self.entries if entry.event != "workflow_created"])

    @property
    def schedule(self) -> str:
        """The interleaving that was observed, as one line: played, it gives the same workflows to the same workers.

        An empty claim is no part of it: nothing was committed. A stepper plays up to MAX_REQUESTS requests.
        """
        return schedule_of(self.commits, self.requests)

    @property
    def held(self) -> list[Held]:
        """Which worker had which workflow, from which commit to which."""
        first: dict[tuple[str, int | None], int] = {}
        last: dict[tuple[str, int | None], int] = {}
        for n, commit in enumerate(self.commits):
            if commit.worker:
                first.setdefault((commit.workflow, commit.token), n)
                last[commit.workflow, commit.token] = n
        found = []
        for look in self.claims:
            mine = (str(look.workflow), look.token)
            end = self.commits[last[mine]]
            found.append(Held(look, first[mine], last[mine], end.at, _ENDED.get(end.event, end.event)))
        return found

    # -- to look at --------------------------------------------------------------------------------------------------

    def frame(self) -> pandas.DataFrame:
        """The claims as a table, empty ones too, in the order in which they ended. Times in ms since the first was asked."""
        import pandas

        ended = {(held.look.workflow, held.look.token): held.ended for held in self.held}
        columns = {
            "worker": [look.worker for look in self.looks],
            "workflow": [look.workflow for look in self.looks],
            "token": pandas.array([look.token for look in self.looks], dtype="Int64"),
            "met": [", ".join(look.met) for look in self.looks],
            "waited": [look in self.waited for look in self.looks],
            "work_left": [look.work_left for look in self.looks],
            "asked_ms": [look.asked for look in self.looks],
            "claim_ms": [round(look.got - look.asked, 3) for look in self.looks],
            "ended": ["empty" if not look.workflow else ended[look.workflow, look.token] for look in self.looks],
        }
        return pandas.DataFrame(columns)

    def table(self) -> Table:
        """What each worker did, a row each."""
        rows = []
        for worker in self.workers:
            mine = [look for look in self.claims if look.worker == worker]
            rows.append(
                {
                    "worker": worker,
                    "claimed": len(mine),
                    "waited": sum(look in self.waited for look in mine),
                    "passed over": sum(look in self.passed_over for look in mine),
                    "found nothing": sum(look.worker == worker for look in self.empty),
                    "although work was left": sum(look.worker == worker for look in self.empty_with_work),
                    "refused": sum(entry.worker == worker for entry in self.refused),
                }
            )
        return Table(rows, f"Each worker's claims with {SAID[self.claim]} ({MEASURED})")

    def picture(self, milliseconds: bool = False) -> Picture:
        """The race as a picture: a lane for each worker; from left to right the commits, or milliseconds."""
        from .picture import draw_race

        return draw_race(self, milliseconds)

    def text(self) -> str:
        """The race in sentences: the text twin of its picture."""
        met = f"{counted(len(self.waited), 'claim')} waited for a neighbour's commit, which took"
        share = f"{met} {self.waiting:.1%} of the workers' time."
        if self.claim == "skip_locked":
            share = f"{counted(len(self.passed_over), 'claim')} passed over a row that a neighbour held; none waited."
        who = [
            f"{worker} claimed {', '.join(str(look.workflow) for look in self.claims if look.worker == worker) or 'nothing'}."
            for worker in self.workers
        ]
        long = f" (to read; {MAX_REQUESTS} requests at most can be played)" if self.requests > MAX_REQUESTS else ""
        lines = [
            f"{counted(self.requests, 'request')}, {counted(len(self.workers), 'worker')}, {SAID[self.claim]}: "
            f"{self.completed} completed, {counted(self.effects, 'effect')}, {counted(self.attempts, 'attempt')}.",
            *who,
            f"{share} {counted(len(self.empty_with_work), 'claim')} found nothing although work was left. "
            f"{counted(len(self.refused), 'write')} refused.",
            f"Schedule{long}: {self.schedule}",
            f"Who claimed what, waits and shares: {MEASURED}.",
        ]
        return "\n".join(lines)

    def __repr__(self) -> str:
        return self.text()

    def _repr_html_(self) -> str:
        return self.picture()._repr_html_()


@dataclass(frozen=True)
class Comparison:
    """The same requests, once with SKIP LOCKED and once with a plain lock."""

    skip_locked: Race
    plain_lock: Race

    def table(self) -> Table:
        """Both side by side, a row for each figure."""
        figures: list[tuple[str, Callable[[Race], object]]] = [
            ("workflows completed", lambda race: race.completed),
            ("business effects", lambda race: race.effects),
            ("claims that met an uncommitted claim", lambda race: sum(bool(look.met) for look in race.claims)),
            ("claims that passed over a locked row", lambda race: len(race.passed_over)),
            ("claims that waited", lambda race: len(race.waited)),
            ("longest wait, in neighbours", lambda race: max((len(look.met) for look in race.waited), default=0)),
            ("share of the workers' time spent waiting", lambda race: f"{race.waiting:.1%}"),
            ("empty claims although work was left", lambda race: len(race.empty_with_work)),
        ]
        rows = [
            {"figure": name, "SKIP LOCKED": of(self.skip_locked), "plain lock": of(self.plain_lock)}
            for name, of in figures
        ]
        return Table(rows, f"The same requests, two claims ({MEASURED}; completed and effects never do)")

    def __repr__(self) -> str:
        return repr(self.table())

    def _repr_html_(self) -> str:
        return self.table()._repr_html_() + self.skip_locked._repr_html_() + self.plain_lock._repr_html_()
