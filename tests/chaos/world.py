"""The world of a run: a server of its own, a network, workers and people, and the plan that is played to them.

All of it is in a folder of its own and ends with this process, however that ends (`keeper`).
"""

from __future__ import annotations

import heapq
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from random import Random
from typing import Any, Self

import psycopg

from agentflow import Database, migrate
from agentflow.errors import ServerError
from agentflow.home import make
from agentflow.server import ADMIN, DATABASE, Account, Server
from tests.chaos import shim, workflows
from tests.chaos.crew import Berth, Crew
from tests.chaos.faults import FAULTS
from tests.chaos.network import Network
from tests.chaos.people import Person
from tests.chaos.plan import Plan, Strike
from tests.chaos.shop import Shop
from tests.support.programs import started

SCHEMA = "chaos"
SETTINGS = "max_connections = 40\nshared_buffers = 32MB\n"
BACKOFF = 65.0  # seconds: a failed try waits no longer
PATIENCE = 180.0  # seconds until all that people asked for has come to an end


@dataclass(frozen=True)
class OwnServer(Server):
    """The embedded server with few connections, and behind a shim if there is one."""

    shim: shim.Shim | None = None

    def _account(self) -> Account:
        account, told = super()._account(), self.shim.environment if self.shim else ()
        return replace(account, prefix=(*account.prefix, "env", *told))

    def _initialise(self, account: Account) -> None:
        is_new = not (self.data / "PG_VERSION").exists()
        super()._initialise(account)
        if is_new:
            with (self.data / "postgresql.conf").open("a") as file:
                file.write(SETTINGS)


class World:
    """As a context it is there, with its workers; play() the plan, then settle(). `made` counts the faults, `problems` says
    in sentences what people and workers should not have met, `late` names what waited for a clock."""

    HOUR = 3600

    def __init__(self, plan: Plan) -> None:
        self.plan, self.lease = plan, plan.setting.lease
        self.made: Counter[str] = Counter()
        self.problems: list[str] = []
        self.late: list[str] = []
        self._people: list[Person] = []
        self._open: list[tuple[float, int, Callable[[], object]]] = []
        self._numbers = count()

    def __enter__(self) -> Self:
        setting = self.plan.setting
        with ExitStack() as stack:
            self.home = Path(tempfile.mkdtemp(prefix="agentflow-chaos-"))
            make(self.home)
            self._keeper = started([str(self.home)], module="tests.chaos.keeper", asks=True)
            stack.callback(self._end)
            self.folder = self.home / "work"
            self.folder.mkdir()
            self.shim = None if shim.why_not() else shim.Shim(self.home)
            self.server = OwnServer(self.home, self.shim)
            self.server.start()
            with closing(Database(self.server.url(), SCHEMA)) as database:
                migrate(database, laboratory=True)
                self.network = stack.enter_context(Network(database.url, f"{setting.seed} network"))
            self.shop, self.told = Shop(self.folder / "shop.sqlite", setting.seed), self.folder / "people.sqlite"
            self.shop.open()
            self.env = {
                workflows.RECORD: str(self.shop.record),
                workflows.SEED: str(setting.seed),
                workflows.SLOW: str(1.3 * self.lease),
            }
            urls = [self.network.url if n % 2 else self.server.url() for n in range(setting.workers)]
            self.crew = Crew(urls, self.folder, self.lease, self.env, self._began)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        for person in self._people:
            person.go()
        self._stack.close()

    def play(self) -> None:
        """Every fault of the plan has struck, and every wish was made."""
        begin = time.monotonic()
        for n, url in enumerate((self.server.url(), self.network.url)):
            mine = [wish for wish in self.plan.wishes if wish.person == n]
            self._people.append(Person(url, SCHEMA, mine, self.told, begin))
            self._people[-1].start()
        for strike in self.plan.strikes:
            self.wait(begin + strike.at - time.monotonic())
            self._strike(strike)
        if not self._until(lambda: not self._open and not any(person.is_alive() for person in self._people)):
            self.problems.append(f"people had no answer for {PATIENCE:g} s")

    def settle(self) -> None:
        """All that people asked for has come to an end, and the workers have stopped.

        What the server's clock put off by an hour is `late`: the hour passes, on the server's clock.
        """
        if self._until(self._only_late):
            self.late = [one["id"] for one in self._unfinished()]
            if self.late and self.shim:
                self.shim.clock(self.HOUR + 60)
                self._until(lambda: not self._unfinished())
        self.crew.close()
        for person in self._people:
            self.problems += person.problems
        self.problems += self.crew.problems

    def wait(self, seconds: float) -> None:
        """So much time passes: workers are replaced, and faults whose time is over are undone."""
        end = time.monotonic() + seconds
        while True:
            self.crew.look()
            while self._open and self._open[0][0] <= time.monotonic():
                heapq.heappop(self._open)[2]()
            left = end - time.monotonic()
            if left <= 0:
                return
            time.sleep(min(0.02, left))

    def worker_at_work(self, chance: Random) -> Berth:
        """A worker to whom nothing has been done yet."""
        found: list[Berth | None] = [None]

        def look() -> bool:
            found[0] = self.crew.somebody(chance)
            return found[0] is not None

        assert self._until(look) and found[0]
        return found[0]

    def connect(self, database: str = DATABASE) -> psycopg.Connection[dict[str, Any]]:
        """A session that may write, whatever the server's settings are."""
        url = self.server.url(database, ADMIN).replace("+psycopg", "")
        return psycopg.connect(
            url, autocommit=True, connect_timeout=5, row_factory=psycopg.rows.dict_row,
            options="-c default_transaction_read_only=off",
        )  # fmt: skip

    def sql(self, *commands: str, params: tuple[Any, ...] = ()) -> list[dict[str, Any]]:
        """The rows of the last of these commands; asked again until the server answers."""
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                with self.connect() as session:
                    answers = [session.execute(command.encode(), params or None) for command in commands]
                    return answers[-1].fetchall()
            except psycopg.OperationalError:
                if time.monotonic() > deadline:
                    raise
                self.wait(0.1)

    def sessions(self) -> list[int]:
        """The processes of all sessions but this one, when there is one."""
        asked = "SELECT pid FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()"
        found: list[int] = []
        assert self._until(lambda: bool(found.extend(row["pid"] for row in self.sql(asked)) or found))
        return found

    @property
    def restarts(self) -> int:
        """How often the server has begun to answer since it was made."""
        return self.server.log.read_text(errors="replace").count("database system is ready to accept connections") - 1

    def _strike(self, strike: Strike) -> None:
        try:
            lasting = FAULTS[strike.kind].strikes(self, strike.chance)
        except (AssertionError, psycopg.Error, ServerError) as error:
            self.problems.append(f"{strike.kind} at {strike.at:.1f} could not be made: {type(error).__name__}: {error}")
            return
        self.made[strike.kind] += 1
        if lasting:
            heapq.heappush(self._open, (time.monotonic() + lasting[0], next(self._numbers), lasting[1]))

    def _until(self, reached: Callable[[], bool]) -> bool:
        """Time passes until that is so, or patience has ended."""
        deadline = time.monotonic() + PATIENCE
        while not reached():
            if time.monotonic() > deadline:
                return False
            self.wait(0.1)
        return True

    def _unfinished(self) -> list[dict[str, Any]]:
        return self.sql(
            f"SELECT id, next_run_at > clock_timestamp() + interval '{BACKOFF:g} s' "
            f"OR coalesce(lease_expires_at > clock_timestamp() + interval '{self.lease + BACKOFF:g} s', false) AS late, entries "
            f"FROM {SCHEMA}.workflows WHERE finished_at IS NULL ORDER BY id"
        )

    def _only_late(self) -> bool:
        """Whether nothing is left, or only what is due in an hour: nobody has worked on it for a while."""
        before = self._unfinished()
        if all(row["late"] for row in before):
            if before:
                self.wait(2 * self.lease)  # a slow step takes more than one
            return self._unfinished() == before
        return False

    def _began(self, birth: str) -> None:
        assert self._keeper.stdin
        self._keeper.stdin.write(birth)
        self._keeper.stdin.flush()

    def _end(self) -> None:
        """The keeper ends what is left."""
        with self._keeper:
            assert self._keeper.stdin
            self._keeper.stdin.close()
            self._keeper.wait(120)
