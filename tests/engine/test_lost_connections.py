"""Lost answers, for every transaction's name, and what else a database does to its clients."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest

import agentflow
from agentflow import AgentFlowError, Database, Engine, LostLease, Policy, migrate
from agentflow.doctor import examine
from agentflow.errors import AlreadyFinished, DatabaseAway, EventRefused, OutcomeUnknown, TooLarge
from agentflow.server import ADMIN, Server, ensure_running
from agentflow.statements import TRANSACTIONS
from agentflow.worker import Worker
from tests.conftest import rows
from tests.support.helpers import eventually, working
from tests.support.isolation import Session, gapless, rows_of
from tests.support.programs import started
from tests.support.proxy import Loss, Proxy

ROOT = Path(agentflow.__file__).resolve().parent.parent

# -- one trip through all transactions -------------------------------------------------------------------------------


class Trip:
    """A workflow's life that sends every transaction: postponed once, failed and requeued once, parked once; its
    neighbour is cancelled. Calls to PostgreSQL go through `engine`, looks at the tables through `clean`."""

    def __init__(self, engine: Engine, clean: Engine) -> None:
        self.engine, self.clean = engine, clean
        self.ran: list[str] = []
        engine.workflows = {"job": self.job}

    def job(self, run: Any, request: Any) -> Any:
        run.step("one", lambda: self.body("one", fails=1))
        if self.ran.count("broken") == 0:
            self.ran.append("broken")
            raise RuntimeError("a mistake in the workflow, mended by hand")
        run.side_effect("pay", key="pay")
        decision = run.wait_for_event("approval", "go")
        run.step("two", lambda: self.body("two"))
        return decision

    def body(self, name: str, fails: int = 0) -> str:
        self.ran.append(name)
        if self.ran.count(name) <= fails:
            raise TimeoutError(f"{name} timed out")
        return name

    def row(self) -> dict[str, Any]:
        return rows(self.clean, "SELECT * FROM {s}.workflows WHERE id = 'w'")[0]

    def claimed(self, take: Callable[[], Any]) -> Any:
        """What `take` claims: again and again, past a lost claim that holds the row, or is about to."""

        def once() -> Any:
            got = take()
            if got is None and self.row()["lease_owner"] is not None:
                self.engine.expire_lease("w")
            return got

        return eventually(once)

    def work(self, outcome: str) -> None:
        worker = self.engine.worker("A", lease_seconds=600)
        assert self.claimed(worker.run_once) == outcome

    def go(self) -> None:
        engine = self.engine
        engine.create_workflow(None, name="job", workflow_id="w")
        claim = self.claimed(lambda: engine.claim_workflow("A", 600))
        engine.renew_lease(claim)
        engine.release_lease(claim)
        self.work("postponed")
        engine.expire_lease("w")  # the back-off is over
        self.work("failed")
        engine.requeue_workflow("w")
        self.work("waiting")
        engine.deliver_event("w", "go", {"yes": True})
        self.work("completed")
        engine.create_workflow(None, name="job", workflow_id="x")
        engine.cancel_workflow("x")

    def outcome(self) -> dict[str, Any]:
        """Everything that is left in the end, but for the history's repetitions."""
        found = {name: rows_of(self.clean.database, name) for name in "wx"}
        assert all(gapless(one) for one in found.values())
        for one in found.values():
            told = [
                (e["event"], e["subject"])
                for e in one["history"]
                if e["event"] not in ("write_refused", "event_repeated")
            ]
            one["history"] = [e for e, before in zip(told, [None, *told], strict=False) if e != before]
            one["workflows"][0]["entries"] = None
        ledger = rows(self.clean, "SELECT workflow_id, action, idempotency_key, result FROM {w}.tool_ledger")
        return {
            **found,
            "ledger": ledger,
            "ran": self.ran,
            "attempts": rows(self.clean, "SELECT attempts FROM {w}.tool_ledger"),
        }


NTH = {"checkpoint": 2, "wait": 2, "claim": 3, "load": 2, "expire": 1}
CASES = sorted({(name, nth) for name in TRANSACTIONS for nth in (1, NTH.get(name, 1))})
IN_TABLE = {"create": "workflows", "claim": "workflows", "load": "workflows", "tool": "tool_ledger"}


@pytest.fixture
def undisturbed(engine: Engine) -> dict[str, Any]:
    """The trip's outcome when nothing is lost."""
    if not _UNDISTURBED:
        mine = Engine(engine.database)
        trip = Trip(mine, engine)
        trip.go()
        _UNDISTURBED.update(trip.outcome())
        engine.reset_database()
    return dict(_UNDISTURBED)


_UNDISTURBED: dict[str, Any] = {}


class Holder:
    """Holds the lock that the statement has to wait for, until as many statements wait as are still meant to come."""

    def __init__(self, session: Session, watcher: Session, database: Database, name: str) -> None:
        self.session, self.watcher, self.schema, self.name = session, watcher, database.schema, name
        self.released = False

    def take(self) -> None:
        world = "_world" if self.name == "tool" else ""
        self.session.run("BEGIN")
        if self.name in IN_TABLE:
            self.session.run(f'LOCK TABLE "{self.schema}{world}".{IN_TABLE[self.name]} IN ACCESS EXCLUSIVE MODE')
        else:
            self.session.run(f'SELECT 1 FROM "{self.schema}".workflows FOR UPDATE')

    def stop(self, pid: int) -> None:
        """The statement stands in the queue, before the one that is issued again: a later one might undo what that began."""
        eventually(lambda: self.watcher.run(f"SELECT 1 FROM pg_locks WHERE pid = {pid} AND NOT granted"))

    def waiting(self) -> int:
        query = f"""SELECT count(*) AS n FROM pg_stat_activity
            WHERE wait_event_type = 'Lock' AND query LIKE '%"{self.schema}%'
              AND cardinality(pg_blocking_pids(pid)) > 0"""
        return int(self.watcher.run(query)[0]["n"])

    def release(self, how: Loss, lost: int) -> None:
        """Pending: when both the lost statement and the one issued again wait; withdrawn: when only the latter does."""
        try:
            if how == "withdrawn":
                eventually(lambda: not self.watcher.run(f"SELECT 1 FROM pg_stat_activity WHERE pid = {lost}"))
            eventually(lambda: self.waiting() == (2 if how == "pending" else 1))
        finally:
            self.session.run("COMMIT")
            self.released = True


@pytest.mark.parametrize("how", ["committed", "pending", "withdrawn"])
@pytest.mark.parametrize(("name", "nth"), CASES)
def test_a_lost_answer_loses_nothing_and_doubles_nothing(
    engine: Engine, undisturbed: dict[str, Any], name: str, nth: int, how: Loss
) -> None:
    with ExitStack() as stack:
        proxy = stack.enter_context(Proxy(engine.database))
        holder = Holder(*(stack.enter_context(Session(engine.database)) for _ in range(2)), engine.database, name)
        through = Engine(
            Database(proxy.url, engine.database.schema, patience=20), policy=Policy(first_delay=600, max_delay=600)
        )
        stack.callback(through.close)
        trip = Trip(through, engine)
        if how == "committed":
            proxy.lose(engine.database.sql(name), how, nth)
        else:
            proxy.lose(
                engine.database.sql(name), how, nth,
                before=holder.take, sent=holder.stop, after=lambda pid: holder.release(how, pid),
            )  # fmt: skip
        trip.go()
        assert proxy.lost == 1
        eventually(lambda: how == "committed" or holder.released)  # on the proxy's thread, perhaps just now
    found = trip.outcome()
    assert len(found["ledger"]) == 1
    assert found["attempts"] == [{"attempts": 2 if name == "tool" and how != "withdrawn" else 1}]
    expected = {"tool": {"attempts.attempts"}, "claim": CLAIMED_AGAIN}.get(name, set())
    assert differences(found, undisturbed) <= expected


# The lost claim held the workflow until its lease ended: one token more, a recovery, and their entries.
CLAIMED_AGAIN = {
    "w.workflows.fence_token", "w.workflows.crashes", "w.workflows.recovered", "w.steps.fence_token",
    "w.action_intents.fence_token", "w.history",
}  # fmt: skip


def differences(found: Any, right: Any, path: str = "") -> set[str]:
    """The places where two outcomes differ; items of a list share their list's place."""
    if isinstance(found, dict) and isinstance(right, dict) and path.count(".") < 3:
        return set().union(
            *(differences(found.get(k), right.get(k), f"{path}.{k}") for k in found.keys() | right.keys())
        )
    if isinstance(found, list) and len(found) == len(right) and found and isinstance(found[0], dict):
        return set().union(*(differences(a, b, path) for a, b in zip(found, right, strict=True)))
    return set() if found == right else {path.strip(".")}


def test_every_transaction_is_on_the_trip(engine: Engine) -> None:
    sent: set[str] = set()
    Trip(Engine(engine.database, hook=lambda boundary: sent.add(boundary.transaction)), engine).go()
    assert sent == set(TRANSACTIONS)
    assert {name for name, _ in CASES} == set(TRANSACTIONS)


# -- what else a database does to its clients ------------------------------------------------------------------------


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server of our own, to be crashed and stopped."""
    started = ensure_running(tmp_path_factory.mktemp("server"))
    yield started
    started.stop()


@pytest.fixture
def on_server(server: Server) -> Iterator[Engine]:
    """An empty laboratory on our own server."""
    database = Database(server.start().url(), "lab", patience=20)
    migrate(database, laboratory=True)
    engine = Engine(database, workflows={"job": job})
    engine.reset_database()
    yield engine
    engine.close()


def job(run: Any, request: Any) -> Any:
    run.step("one", lambda: "one")
    return run.side_effect("pay", key="pay")


def quick(*engines: Engine) -> list[Worker]:
    """A worker of each engine, with short polls and leases."""
    return [engine.worker(f"worker-{n}", poll_seconds=0.2, lease_seconds=1.0) for n, engine in enumerate(engines)]


def statuses(engine: Engine) -> dict[str, int]:
    with suppress(Exception):  # the server may be away just now
        return {
            r["status"]: r["n"] for r in rows(engine, "SELECT status, count(*) AS n FROM {s}.workflows GROUP BY status")
        }
    return {}


def whole(engine: Engine, workflows: int) -> None:
    """Every workflow is completed, has its one effect, its steps once and a history without gaps."""
    assert statuses(engine) == {"completed": workflows}
    assert rows(engine, "SELECT count(*) AS n, count(DISTINCT idempotency_key) AS keys FROM {w}.tool_ledger") == [
        {"n": workflows, "keys": workflows}
    ]
    assert (
        rows(
            engine,
            """SELECT w.id FROM {s}.workflows AS w
        WHERE entries <> (SELECT count(*) FROM {s}.history WHERE workflow_id = w.id)
        OR entries <> (SELECT max(n) FROM {s}.history WHERE workflow_id = w.id)
        OR checkpoints <> (SELECT count(*) FROM {s}.steps WHERE workflow_id = w.id)""",
        )
        == []
    )


def test_orphans_finish_although_the_server_crashes_in_the_middle_of_their_recovery(
    on_server: Engine, server: Server
) -> None:
    crashed = threading.Event()

    def job(run: Any, request: Any) -> Any:
        run.step("one", lambda: request != "after the crash" or crashed.wait(60))
        return run.side_effect("pay", key="pay")

    on_server.workflows = {"job": job}
    on_server.create_workflows([None] * 59 + ["after the crash"] + [None] * 20, name="job")
    orphans = [on_server.claim_workflow(f"dead-{n}", 0.5) for n in range(60)]
    assert all(orphans)
    with working(*quick(on_server, Engine(on_server.database, workflows={"job": job}))):
        eventually(lambda: statuses(on_server).get("completed", 0) >= 25)
        server.crash()
        crashed.set()
        server.start()
        eventually(lambda: statuses(on_server) == {"completed": 80}, 60)
    whole(on_server, 80)


def test_a_server_that_is_down_is_said_in_bounded_time_and_plain_words_and_workers_wait_for_it(
    on_server: Engine, server: Server
) -> None:
    on_server.create_workflows([None] * 3, name="job")
    server.stop()
    impatient = Database(server.url(), "lab", patience=0.3)
    for refused in (impatient.check, lambda: migrate(impatient), lambda: Engine(impatient).create_workflow("r")):
        with pytest.raises(DatabaseAway, match=r"does not answer .*Nothing was sent; start it"):
            refused()
    with working(*quick(on_server)):
        server.start()
        eventually(lambda: statuses(on_server) == {"completed": 3}, 60)
    impatient.check()
    impatient.close()


@pytest.fixture
def nine(server: Server) -> Iterator[str]:
    """Our own server gives nine connections, the last three to a superuser only; its address for somebody else."""
    _command(server, "ALTER SYSTEM SET max_connections = 9")
    _command(server, "CREATE ROLE ada LOGIN")
    server.stop()
    yield server.start().url().replace("agentflow@", "ada@", 1)
    _command(server, "ALTER SYSTEM RESET max_connections")
    _command(server, "DROP ROLE ada")
    server.stop()


def _command(server: Server, change: str) -> None:
    database = Database(server.start().url(user=ADMIN))
    with database.alchemy.connect() as connection:
        connection.exec_driver_sql(change)
    database.close()


def test_a_server_without_a_connection_left_is_not_said_to_be_down(
    server: Server, nine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: list[Database] = []
    for url, said in ((nine, "slots are reserved for roles"), (server.url(user=ADMIN), "sorry, too many clients")):
        with pytest.raises(
            DatabaseAway, match=rf"has no free connection .*{said}.*; shut down unused notebooks"
        ) as caught:
            _fill(url, taken)
        assert "start" not in str(caught.value)
        monkeypatch.setenv("DATABASE_URL", url)
        (found,) = (one for one in examine("lab") if one.topic == "PostgreSQL")
        assert "has no free connection" in found.says
        assert found.mend.startswith("Shut down unused notebooks") and not found.ok
    for database in taken:
        database.close()


def _fill(url: str, taken: list[Database]) -> None:
    """Takes every connection that this user can get. Raises what the next one raises."""
    for _ in range(10):
        taken.append(Database(url))
        taken[-1].check()


def end_all(database: Database) -> int:
    """All sessions of this database are ended, as by an administrator; how many there were."""
    with Session(database) as session:
        return len(session.run(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE datname = current_database() AND application_name = 'agentflow'"
        ))  # fmt: skip


def test_the_next_call_works_after_all_connections_were_ended_while_idle(own_database: Any) -> None:
    database = own_database()
    migrate(database, laboratory=True)
    engine = Engine(database, workflows={"job": job})
    for number, call in enumerate([
        lambda: engine.create_workflow(None, name="job"), lambda: engine.run_once("w"), database.check,
        engine.reliability_metrics,
    ]):  # fmt: skip
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(lambda _: engine.list_workflows(), range(8)))
        assert end_all(database) > 0, number
        assert call()
    whole(engine, 1) if statuses(engine) == {"completed": 1} else engine.run_until_idle("v")
    whole(engine, 1)
    engine.close()


def test_workers_outlive_a_database_that_turns_read_only(own_database: Any) -> None:
    database = own_database()
    migrate(database, laboratory=True)
    engine = Engine(database, workflows={"job": job})
    name = database.url.database
    with Session(database) as session, working(*quick(engine, Engine(database, workflows={"job": job}))):
        session.run(f"ALTER DATABASE {name} SET default_transaction_read_only = on")
        end_all(database)
        writable = Session(database)
        writable.run("SET default_transaction_read_only = off")
        eager = Engine(own_database())
        eager.database.patience = 0.2
        with pytest.raises(DatabaseAway, match="read-only"):
            eager.create_workflow(None, name="job")
        session.run(f"ALTER DATABASE {name} SET default_transaction_read_only = off")
        eager.create_workflows([None] * 5, name="job")  # on connections that began read-only
        eventually(lambda: statuses(engine) == {"completed": 5}, 60)
    whole(engine, 5)
    engine.close()


def test_a_server_default_of_serializable_changes_nothing(own_database: Any) -> None:
    migrate(own_database(), laboratory=True)
    database = own_database()
    with Session(database) as session:
        session.run(f"ALTER DATABASE {database.url.database} SET default_transaction_isolation = 'serializable'")
    engine = Engine(database, workflows={"job": job})
    engine.create_workflows([None] * 20, name="job")
    engine.run_competing_workers("a", "b", "c")
    whole(engine, 20)
    engine.close()


def test_a_pooler_that_forgets_prepared_statements_is_named(own_database: Any) -> None:
    """PgBouncer's transaction mode, imitated by hand on the pooled connection."""
    database = own_database()
    migrate(database, laboratory=True)
    for _ in range(2):
        database.execute("list", {"p_status": None, "p_prefix": "", "p_limit": 1, "p_offset": 0})
    with Session(database) as session:
        body = "BEGIN EXECUTE 'DEALLOCATE ALL'; END"  # in a function, so that psycopg does not see it
        session.run(f"CREATE FUNCTION public.forget() RETURNS void LANGUAGE plpgsql AS $${body}$$")
    database.with_texts({"forget": "SELECT public.forget()"}).execute("forget", {})
    with pytest.raises(AgentFlowError, match="a pooler in transaction mode is in between"):
        database.execute("list", {"p_status": None, "p_prefix": "", "p_limit": 1, "p_offset": 0})


def test_a_statement_that_was_sent_and_never_answered_is_not_said_to_have_been_left_out(engine: Engine) -> None:
    class Lost(Database):
        asked = 0

        def execute(self, name: str, params: Any) -> Any:
            self.asked += 1
            raise OutcomeUnknown("sent") if self.asked == 1 else DatabaseAway("down")

    lost = Lost(engine.database.url.render_as_string(hide_password=False), engine.database.schema, patience=0.2)
    with pytest.raises(OutcomeUnknown):
        Engine(lost).cancel_workflow("w")
    assert lost.asked > 1


RIVALS = 6


def compete(engine: Engine, rounds: int) -> None:
    """In each round one workflow is cancelled, completed, failed, renewed, delivered to and reaped at once."""
    with ThreadPoolExecutor(RIVALS) as pool:
        for number in range(rounds):
            name = f"r{number}"
            engine.create_workflow(None, name=name, workflow_id=name)
            claim = engine.claim_workflow("A", 600, names=[name])
            assert claim
            gate = threading.Barrier(RIVALS)
            rivals: dict[str, Callable[[], Any]] = {
                "cancel": lambda n=name: engine.cancel_workflow(n),
                "complete": lambda c=claim: engine.complete_workflow(c, "done"),
                "fail": lambda c=claim: engine.fail_workflow(c, {"type": "T", "message": "m"}),
                "renew": lambda c=claim: engine.renew_lease(c),
                "deliver": lambda n=name: engine.deliver_event(n, "go", 1),
                "reap": lambda n=name: (engine.expire_lease(n), engine.claim_workflow("B", 600, names=[n])),
            }  # fmt: skip

            def rival(act: Callable[[], Any], gate: threading.Barrier = gate) -> str:
                gate.wait(20)
                try:
                    act()
                except (LostLease, AlreadyFinished, EventRefused) as refused:
                    return type(refused).__name__
                return "done"

            told = dict(zip(rivals, pool.map(rival, rivals.values()), strict=True))
            if statuses_of(engine, name) == "ready":
                engine.cancel_workflow(name)
                told["cancel"] = "done"
            ended = {"cancel": "cancelled", "complete": "completed", "fail": "failed"}
            winners = [ended[rival] for rival in ended if told[rival] == "done"]
            assert winners == [statuses_of(engine, name)], told
            assert gapless(rows_of(engine.database, name))


def statuses_of(engine: Engine, workflow_id: str) -> str:
    return str(rows(engine, "SELECT status FROM {s}.workflows WHERE id = :i", i=workflow_id)[0]["status"])


def test_cancel_complete_fail_event_renewal_and_reaper_at_once_leave_one_winner_who_knows_it(engine: Engine) -> None:
    compete(engine, 60)


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_ten_thousand_rounds_of_rivals_leave_one_winner_each(engine: Engine) -> None:
    for _ in range(100):
        compete(engine, 100)
        engine.reset_database()


FORK = """
import os, sys
from agentflow import Database, Engine
def job(run, request):
    run.step("one", lambda: os.getpid())
    return run.side_effect("pay", key="pay")
engine = Engine(Database(sys.argv[1], sys.argv[2], patience=5), workflows={"job": job})
engine.create_workflows([None] * 12, name="job")
assert engine.run_once("parent")
children = []
for n in range(2):
    child = os.fork()
    if child == 0:
        os._exit(0 if engine.run_until_idle(f"child-{n}") >= 0 else 1)
    children.append(child)
engine.run_until_idle("parent")
assert all(os.waitpid(child, 0)[1] == 0 for child in children)
engine.run_until_idle("parent")
engine.create_workflow(None, name="job")
assert engine.run_once("parent")
"""


def test_forked_children_use_connections_of_their_own_and_leave_the_parents_alone(engine: Engine) -> None:
    told = [engine.database.url.render_as_string(hide_password=False), engine.database.schema]
    with started(told, code=FORK) as parent:
        said = parent.communicate()[1]
    assert parent.returncode == 0, said
    whole(engine, 13)


FORK_WHILE_RENEWING = """
import os, sys, threading
from agentflow import Database, Engine
entered, leave = threading.Event(), threading.Event()
engine = Engine(Database(sys.argv[1], sys.argv[2]), workflows={"job": lambda run, _: run.step("one", os.getpid)})
engine.create_workflow(None, name="job")
def hold():
    with engine._renewals._changed:
        entered.set()
        leave.wait(60)
threading.Thread(target=hold).start()
entered.wait(60)
child = os.fork()
if child == 0:
    os._exit(0 if engine.run_once("child") else 1)
assert os.waitpid(child, 0)[1] == 0
leave.set()
"""


def test_a_child_forked_while_the_parent_renews_is_not_locked_up(engine: Engine) -> None:
    command = [
        sys.executable,
        "-c",
        FORK_WHILE_RENEWING,
        engine.database.url.render_as_string(hide_password=False),
        engine.database.schema,
    ]
    process = subprocess.Popen(
        command, env=os.environ | {"PYTHONPATH": str(ROOT)}, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        said = process.communicate(timeout=30)[1]
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == 0, said


NO_CATCH = """
import signal, sys
from agentflow import Database, Engine
engine = Engine(Database("postgresql://nobody@127.0.0.1:1/nowhere", patience=600))
worker = engine.worker("w")
worker.stop_on_signals()
for event in (engine.database.give_up, worker._stop):
    with event._cond:  # the main thread is inside Event.wait() when the signal comes
        signal.raise_signal(signal.SIGTERM)
worker.run_forever()
assert engine.world.database.give_up.wait(20)  # set by a thread, since the signal may have come inside the lock
"""


def test_a_signal_that_comes_inside_a_wait_does_not_lock_the_worker_up() -> None:
    with started([], code=NO_CATCH) as worker:
        said = worker.communicate(timeout=30)[1]
    assert worker.returncode == 0, said


def test_what_postgresql_can_never_hold_is_named_and_not_tried_again(engine: Engine) -> None:
    """54000 is an OperationalError like a lost connection, and would be refused again for ever."""
    huge = os.urandom(20_000).hex()
    with pytest.raises(TooLarge, match="PostgreSQL cannot store that much in one row"):
        engine.database.execute("create", {"p_ids": [huge], "p_names": ["job"], "p_inputs": ["1"]})
    assert rows(engine, "SELECT count(*) AS n FROM {s}.workflows") == [{"n": 0}]


def test_no_statement_runs_for_ever(engine: Engine) -> None:
    """A statement that takes a minute is cut off; the connection is not lost, and nothing is changed."""
    texts = {
        "show": "SHOW statement_timeout", "set": "SELECT set_config('statement_timeout', '20', false)",
        "slow": "SELECT count(*) FROM generate_series(1, 1000000000)",
    }  # fmt: skip
    database = engine.database.with_texts(texts)
    assert database.execute("show", {}) == [{"statement_timeout": "1min"}]
    database.execute("set", {})
    with pytest.raises(DatabaseAway, match="statement timeout"):
        database.execute("slow", {})
    engine.database.close()


def test_a_table_that_is_changed_under_a_kept_connection_is_read_again(engine: Engine) -> None:
    with Session(engine.database) as session:
        engine.create_workflow("password", workflow_id="w")
        assert engine.get_workflow("w")
        session.run(f'ALTER TABLE "{engine.database.schema}".workflows ADD COLUMN later int')
        assert engine.get_workflow("w")
        session.run(f'ALTER TABLE "{engine.database.schema}".workflows DROP COLUMN later')
        assert engine.get_workflow("w")
