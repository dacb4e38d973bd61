"""A database for each notebook, its health in sentences, and what is closed when a cell is run again."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import Any, Protocol

import psycopg

from ...database import Database
from ...doctor import examine
from ...engine import Engine, open_engine, this_process
from ...errors import AgentFlowError, BadRequestFile, DatabaseAway
from ...migrations import migrate
from ...model import Policy
from ...requests import read_requests
from ...server import Server
from ...statements import DEFAULT_SCHEMA, WORLD_SUFFIX

LEASE_SECONDS = 86_400.0  # long enough never to end on its own: a learner may read for an hour between two clicks
PATIENT = Policy(lease_seconds=LEASE_SECONDS, first_delay=LEASE_SECONDS, max_delay=LEASE_SECONDS)
DATA = "support_requests.csv"


class Closable(Protocol):
    """Anything that holds threads or connections."""

    def close(self) -> None:
        """Ends them."""


_open: dict[tuple[str, str], Closable] = {}


def keep(kind: str, name: str, thing: Closable) -> None:
    """Remembers `thing` as open under this name, and closes what was open under it before."""
    let_go(kind, name)
    _open[kind, name] = thing


def opened(kind: str, name: str) -> Closable | None:
    """What is open under this name, or None."""
    return _open.get((kind, name))


def let_go(kind: str, name: str) -> None:
    """Closes what is open under this name, if anything is."""
    if (old := _open.pop((kind, name), None)) is not None:
        old.close()


def let_go_of_all() -> None:
    """Closes everything that is open; engines last, since the others use them."""
    for kind, name in sorted(_open, key=lambda one: one[0] in ("engine", "record")):
        let_go(kind, name)


class Watch:
    """Hears when another program empties this laboratory, by a connection of its own."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self._connection: psycopg.Connection[Any] | None = None
        self._said: str | None = None
        self.hear()

    def hear(self) -> str | None:
        """Who has emptied it since this process did last, and when, in a sentence; None if nobody was heard.

        What happened while the connection was lost was not observed.
        """
        for _ in range(2):
            with suppress(AgentFlowError, psycopg.Error):
                if self._connection is None or self._connection.closed:
                    listening = f"agentflow hears {self.database.schema}"
                    self._connection = self.database.twin(patience=0, application_name=listening).listen("_emptied")
                    self._connection.add_notify_handler(self._note)
                self._connection.execute("SELECT 1")  # what was committed before this is told before its answer
                break
        return self._said

    def _note(self, heard: psycopg.Notify) -> None:
        when, _, who = heard.payload.partition(" by ")
        told = [repr(part[:200])[1:-1][:200] for part in (when, who)]  # anybody may tell anything, at any length
        self._said = None if who == this_process() else _emptied_by(self.database.schema, *told)

    def close(self) -> None:
        """Stops listening."""
        if self._connection:
            self._connection.close()


def _emptied_by(schema: str, when: str, who: str) -> str:
    return (
        f"Another program ({who}) emptied the laboratory {schema!r} at {when}, and what was in it is gone. Nothing was moved; "
        "run the first cell again, which empties it for that program. Set AGENTFLOW_SCHEMA, and each has a laboratory of its own."
    )


def emptied(engine: Engine) -> str | None:
    """What Watch.hear() says of the engine's laboratory, if fresh_laboratory() opened it here."""
    watch = opened("watch", engine.database.schema)
    here = isinstance(watch, Watch) and watch.database.address == engine.database.address
    return watch.hear() if isinstance(watch, Watch) and here else None


def schema_of(name: str) -> str:
    """The schema of this laboratory: its name, after AGENTFLOW_SCHEMA if that is set, so that a class may share a database."""
    mine = os.environ.get("AGENTFLOW_SCHEMA") or DEFAULT_SCHEMA
    return name if mine == DEFAULT_SCHEMA else f"{mine}_{name}"


def fresh_laboratory(name: str, **options: Any) -> Engine:
    """Opens an engine on the empty laboratory `name` (schema_of(name)); running it again closes the one before.

    A table that a laboratory has lost is made anew. Leases and back-offs last a day (`LEASE_SECONDS`), so only a
    move ends them. Options as for Engine. Raises NotALaboratory if the schema holds workflows that are not a laboratory's,
    and DatabaseAway.
    """
    schema = schema_of(name)
    let_go("room", schema)
    options.setdefault("policy", PATIENT)
    engine = open_engine(schema=schema, **options)
    keep("engine", schema, engine)
    keep("watch", schema, Watch(engine.database))
    migrate(
        engine.database, laboratory=True
    )  # a schema without a purpose, and without a workflow, becomes a laboratory
    try:
        engine.reset_database()
    except DatabaseAway as away:
        raise _naming_the_transaction(engine.database, away) from away.__cause__
    return engine


def _naming_the_transaction(database: Database, away: DatabaseAway) -> DatabaseAway:
    """The error; if an open transaction is the reason, it says whose and how to end it."""
    if not isinstance(away.__cause__, psycopg.errors.LockNotAvailable):
        return away
    names = {"lab": database.schema, "world": f"{database.schema}{WORLD_SUFFIX}"}
    _, rows = database.read_sql(_OPEN_TRANSACTIONS, names)
    who = ", ".join(f"{row['application_name'] or 'a program without a name'} (process {row['pid']})" for row in rows)
    return DatabaseAway(
        f"Schema {database.schema!r} at {database.where} cannot be emptied, because its rows are locked by a transaction that is "
        f"still open{f', of {who}' if who else ''}. Nothing was changed; end it there with ROLLBACK, then run this cell again."
    )


_OPEN_TRANSACTIONS = """
    SELECT DISTINCT a.pid, a.application_name
    FROM pg_locks AS l JOIN pg_stat_activity AS a USING (pid) JOIN pg_class AS c ON c.oid = l.relation
    WHERE c.relnamespace IN (to_regnamespace(:lab), to_regnamespace(:world))
      AND a.state LIKE 'idle in transaction%'
    ORDER BY a.pid"""


@contextmanager
def server_of_its_own(name: str) -> Iterator[tuple[Engine, Server]]:
    """Runs a PostgreSQL with an empty laboratory that nobody else uses, so that `restart` may crash it."""
    with tempfile.TemporaryDirectory(prefix="agentflow-", ignore_cleanup_errors=True) as home, ExitStack() as stack:
        server = Server(Path(home)).start()
        stack.callback(server.stop)
        engine = stack.enter_context(closing(Engine(Database(server.url(), name), policy=PATIENT)))
        migrate(engine.database, laboratory=True)
        yield engine, server


def doctor(engine: Engine) -> list[str]:
    """What this laboratory needs, in a sentence each; `agentflow doctor` on the command line says more.

    Raises AgentFlowError for the first thing that is wrong, with how to fix it.
    """
    for finding in examine(engine.database.schema):
        if not finding.ok:
            raise AgentFlowError(f"{finding.topic}: {finding.says} {finding.mend}")
    return [
        "Python and all packages are installed.",
        "PostgreSQL answers, and a commit is on disk before we hear of it.",
        f"The tables are in the schema {engine.database.schema}, which is a laboratory: it may be emptied.",
    ]


def support_requests(path: Path | None = None) -> list[str]:
    """The requests of data/support_requests.csv, as customers wrote them.

    Without a path the file is looked for in `data/` here, in the folders above, and in AgentFlow's own checkout. Raises
    BadRequestFile.
    """
    return list(read_requests(path or data_file(DATA)))


def data_file(name: str) -> Path:
    """A file of `data/`: here, in the folders above, or in AgentFlow's own checkout. Raises BadRequestFile."""
    here = Path.cwd()
    places = [folder / "data" / name for folder in (here, *here.parents, Path(__file__).parents[3])]
    found = next(filter(Path.is_file, places), None)
    if found is None:
        why = f"is not in {here}, in a folder above it, or beside AgentFlow; "
        why += (
            f"give its path, {name.partition('.')[0]}(Path(...))"
            if name == DATA
            else "measure it as data/README.md says"
        )
        raise BadRequestFile(f"data/{name}", None, why)
    return found
