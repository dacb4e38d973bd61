"""The commands that start programs, and that make, empty and read schemas. Each imports what it runs when it is run."""

from __future__ import annotations

import json
import logging
import shlex
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..agents import DEFAULT_WORKFLOW, TAKE_A_TEXT, WORKFLOWS
from ..errors import AgentFlowError, NotALaboratory, SchemaMissing
from ..evidence import REPORT, never_used, unsettled
from ..log import log_event
from ..model import Policy
from ..requests import read_requests
from ..statements import DEFAULT_SCHEMA, Statement, command
from .options import (
    COMMAND_PATIENCE,
    Column,
    Json,
    OwnTool,
    Requests,
    Schema,
    ShowProgress,
    Tools,
    Workflows,
    answer,
    app,
    print_figures,
    print_json,
)

if TYPE_CHECKING:
    from ..database import Database

SUBMIT_BATCH = 500
NOTEBOOKS = "--schema start_here"
_THERE = Statement("there", "Whether the schema exists.", "SELECT to_regnamespace('agentflow') IS NOT NULL AS there")


@app.command()
def lab(
    schema: Schema = DEFAULT_SCHEMA,
    port: Annotated[int, typer.Option(help="The port; the next free one if it is taken.", min=1, max=65535)] = 8888,
    browser: Annotated[bool, typer.Option("--browser/--no-browser", help="Open a browser.")] = True,
) -> None:
    """Start PostgreSQL and JupyterLab on the first notebook."""
    from ..engine import find_database
    from ..migrations import migrate
    from . import launch

    database = find_database(schema, patience=COMMAND_PATIENCE)
    migrate(database, laboratory=True)
    database.close()
    folder = launch.course_folder()
    if folder is None:
        typer.echo(f"{launch.FIRST_NOTEBOOK} was not found here or above; JupyterLab opens on this folder.", err=True)
    stopping = "Ctrl-C stops JupyterLab; `agentflow stop` stops PostgreSQL."
    typer.echo(f"Schema {schema!r} at {database.where} is ready. {stopping}")
    launch.become(launch.jupyterlab(port, browser, folder), schema)


@app.command()
def api(
    schema: Schema = DEFAULT_SCHEMA,
    port: Annotated[
        int | None, typer.Option(help="Default: 8000, or the next free one. 0: any.", min=0, max=65535)
    ] = None,
    host: Annotated[str, typer.Option(help="The address to listen on; others are for containers.")] = "127.0.0.1",
    allowed: Annotated[
        list[str] | None, typer.Option("--allow-host", metavar="NAME", help="A name it answers to as well; repeatable.")
    ] = None,
    workflow: Workflows = None,
    tool: OwnTool = None,
    as_json: Json = False,
) -> None:
    """Serve the API on 127.0.0.1, documented at /docs."""
    from ..api import engine_of_environment, serve
    from ..gate import LOOPBACK, authorization
    from ..server import default_home
    from . import launch

    functions, own = launch.own_workflows(workflow), launch.own_tool(tool)
    file, token = authorization(default_home())
    engine = engine_of_environment(schema, workflows=functions, tool=own)
    listener = launch.listen(host, port)
    if host not in LOOPBACK:
        typer.echo(
            f"Warning: whoever reaches {host} and has the token can use this API; nothing encrypts it.", err=True
        )
    named = "127.0.0.1" if (anywhere := host in {"", "0.0.0.0", "::"}) else host
    address = f"http://{f'[{named}]' if ':' in named else named}:{listener.getsockname()[1]}"
    curl = f"curl -H {shlex.quote(f'@{file}')} {address}/workflows"
    said = f"The API is at {address}. Its documentation, with your token: {address}/docs#token={token}\n{curl}\nCtrl-C stops it."
    typer.echo(json.dumps({"url": address, "token": token, "header": str(file)}) if as_json else said)
    sys.stdout.flush()
    serve(engine, listener, token=token, hosts={*LOOPBACK, *(allowed or ()), *([] if anywhere else [host])})


@app.command()
def worker(
    schema: Schema = DEFAULT_SCHEMA,
    name: Annotated[str, typer.Option(help="The worker's name; each start adds a unique suffix.")] = "worker",
    lease: Annotated[
        float, typer.Option(help="Seconds until others take over a lost worker's work.", min=0.1, max=86400)
    ] = 30.0,
    poll: Annotated[
        float, typer.Option(help="How often an idle worker asks the database, in seconds.", min=0.05, max=3600)
    ] = 1.0,
    workflow: Workflows = None,
    tool: OwnTool = None,
) -> None:
    """Run workflows until SIGTERM; log one JSON object per line."""
    from ..engine import Engine, find_database
    from ..worker import new_identity
    from . import launch

    functions, own = launch.own_workflows(workflow), launch.own_tool(tool)
    handler = launch.LogLines(sys.stdout)
    handler.setFormatter(logging.Formatter("%(message)s"))
    logging.getLogger("agentflow").addHandler(handler)
    logging.getLogger("agentflow").setLevel(logging.INFO)
    engine = Engine(find_database(schema), workflows=functions, tool=own, policy=Policy(lease_seconds=lease))
    one = engine.worker(new_identity(name), poll_seconds=poll)
    one.stop_on_signals()
    launch.wait_for_tables(engine.database, one.identity)
    log_event("worker_started", worker_id=one.identity, schema=schema, workflows=sorted(functions))
    one.run_forever()
    log_event("worker_stopped", worker_id=one.identity)
    engine.close()


@app.command()
def doctor(schema: Schema = DEFAULT_SCHEMA, tool: Tools = None, as_json: Json = False) -> None:
    """Report what is installed and used, and how to fix problems."""
    from ..doctor import examine
    from . import launch

    findings = []
    for finding in examine(schema, launch.own_tools(tool)):
        findings.append(finding)
        if not as_json:
            typer.echo(f"ok     {finding.says}" if finding.ok else f"WRONG  {finding.says} {finding.mend}")
    wrong = [finding.topic for finding in findings if not finding.ok]
    if as_json:
        print_json({"ok": not wrong, "findings": [vars(finding) for finding in findings]})
    elif not wrong:
        typer.echo("All is well.")
    if wrong:
        typer.echo(f"agentflow: To fix: {', '.join(wrong)}.", err=True)
    raise typer.Exit(bool(wrong))


@app.command(name="migrate")
def migrate_schema(
    schema: Schema = DEFAULT_SCHEMA,
    laboratory: Annotated[
        bool, typer.Option("--laboratory", help="Mark it as a laboratory: `reset` may empty it.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Bring the schema's tables up to date."""
    from ..engine import find_database, is_embedded
    from ..migrations import LOST, is_laboratory, migrate, standing

    database = find_database(schema, patience=COMMAND_PATIENCE)
    before = standing(database)
    if before == "damaged" and not is_laboratory(database):
        raise AgentFlowError(
            f"Schema {schema!r} at {database.where} has lost some of its tables. Nothing was changed. {LOST}"
        )
    migrate(database, laboratory=laboratory or is_embedded())
    marked = is_laboratory(database)
    has = "has" if before == "current" else "now has"
    said = f"Schema {schema!r} at {database.where} {has} current tables; it is {'' if marked else 'not '}a laboratory."
    answer(as_json, {"schema": schema, "server": database.where, "was": before, "laboratory": marked}, said)


@app.command()
def reset(
    schema: Schema = DEFAULT_SCHEMA,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    as_json: Json = False,
) -> None:
    """Delete a laboratory's workflows and effects; answers stay."""
    from ..engine import Engine, find_database
    from ..migrations import is_laboratory

    engine = Engine(find_database(schema, patience=COMMAND_PATIENCE))
    _check_that_it_exists(engine.database)
    if not is_laboratory(engine.database):
        raise NotALaboratory(
            f"Schema {schema!r} at {engine.database.where} is not a laboratory. Nothing was deleted; "
            f"{command('migrate --laboratory', schema)} turns a new schema into one."
        )
    found = engine.reliability_metrics()
    effects = "the simulated tool's" if found["business_effects"] is None else found["business_effects"]
    what = f"{found['workflows_total']} workflows and {effects} business effects"
    if not yes:
        wanted = typer.confirm(f"Delete {what} from schema {schema!r} at {engine.database.where}?", err=True)
        if not wanted:
            raise AgentFlowError("Nothing was deleted.")
    engine.reset_database()
    gone = {name: found[name] for name in ("workflows_total", "business_effects")}
    said = f"{what} were deleted from schema {schema!r}; the tables are empty."
    answer(as_json, {"schema": schema, "deleted": gone}, said)


@app.command()
def grant(
    schema: Schema = DEFAULT_SCHEMA,
    prefix: Annotated[
        str | None, typer.Option(metavar="NAME", help="How the roles' names begin (default: the schema's name).")
    ] = None,
    as_json: Json = False,
) -> None:
    """Make the roles owner, worker and reader of a schema.

    Each has only the rights that its work needs. It takes a user who may make roles; after a migration, say it again.
    """
    from ..database import Database
    from ..engine import find_database, is_embedded
    from ..grants import grant as make
    from ..server import Server, default_home

    database = find_database(schema, patience=COMMAND_PATIENCE)
    if is_embedded():
        ours = Server(default_home())
        database = Database(ours.url(user=ours.administrator()), schema, patience=COMMAND_PATIENCE)
    roles = make(database, prefix or schema)
    said = f"The roles {', '.join(roles)} have the rights that they need in schema {schema!r} at {database.where}."
    answer(as_json, {"schema": schema, "roles": roles}, f"{said} Give one to a login: GRANT {roles[1]} TO ada;")


@app.command()
def free(schema: Schema = DEFAULT_SCHEMA, as_json: Json = False) -> None:
    """Make due what a server's clock that was set back has stranded.

    A workflow that was created or postponed while the clock was ahead is due now; a lease from then lasts as long as leases do.
    """
    from ..engine import find_database
    from ..stuck import free as set_free

    database = find_database(schema, patience=COMMAND_PATIENCE)
    _check_that_it_exists(database)
    freed = set_free(database)
    said = f"{len(freed)} workflows were stranded in schema {schema!r} and are free now{': ' * bool(freed)}{', '.join(freed)}."
    answer(as_json, {"schema": schema, "freed": freed}, said)


@app.command()
def stop(schema: Schema = DEFAULT_SCHEMA, as_json: Json = False) -> None:
    """Stop the embedded server; what is committed stays."""
    from ..server import Server, default_home

    embedded = Server(default_home())
    ran = embedded.is_running()
    embedded.stop()
    said = f"The embedded server in {embedded.home} {'is stopped' if ran else 'was not running'}."
    answer(as_json, {"home": str(embedded.home), "was_running": ran}, said)


@app.command()
def submit(
    requests: Requests,
    schema: Schema = DEFAULT_SCHEMA,
    column: Column = None,
    workflow: Annotated[
        str, typer.Option("--workflow", metavar="NAME", help="Which workflow runs each request.")
    ] = DEFAULT_WORKFLOW,
    progress: ShowProgress = None,
    as_json: Json = False,
) -> None:
    """Create a workflow for each request of a file or of stdin."""
    from ..engine import open_engine

    engine = open_engine(schema=schema, patience=COMMAND_PATIENCE)
    created, shown = 0, sys.stderr.isatty() if progress is None else progress
    try:
        for batch in _batches(read_requests(requests, column, texts=workflow in TAKE_A_TEXT)):
            created += len(engine.create_workflows(batch, name=workflow))
            if shown:
                typer.echo(f"\r{created:,} created", nl=False, err=True)
    except (AgentFlowError, KeyboardInterrupt) as error:
        note = f"The {created:,} requests before it are workflows now." if created else "Nothing was created."
        if isinstance(error, KeyboardInterrupt):
            typer.echo(f"agentflow: interrupted. {note}", err=True)
        error.add_note(note)
        raise
    finally:
        if shown:
            typer.echo(err=True)
    how = "" if workflow in WORKFLOWS else f" --workflow MODULE:{workflow}"
    said = f"{created:,} created in schema {schema!r}; {command(f'worker{how}', schema)} runs them."
    if how:
        said += " If it uses a tool of your own, start the worker with --tool MODULE:ATTRIBUTE too."
    answer(as_json, {"schema": schema, "workflow": workflow, "created": created}, said)


@app.command()
def report(schema: Schema = DEFAULT_SCHEMA, tool: Tools = None, as_json: Json = False) -> None:
    """Write and print the reliability figures.

    They are written to artifacts/reliability-report.json; the exit code is 1 if a business effect is doubled, missing or not
    observed.
    """
    from ..engine import Engine, find_database
    from ..stuck import look_for_stuck
    from . import launch

    database = find_database(schema, patience=COMMAND_PATIENCE)
    _check_that_it_exists(database)
    tools = launch.own_tools(tool)
    figures = Engine(database).write_reliability_report(REPORT, *tools)
    stuck, waits = look_for_stuck(database), unsettled(database)
    if as_json:
        found = None if stuck.found is None else [asdict(one) for one in stuck.found]
        print_json({**figures, "stuck_workflows": found, "unsettled": waits})
    else:
        print_figures(figures)
        typer.echo(f"Written to {REPORT}.")
    unused = never_used(database, tools) if figures["workflows_total"] else ()
    for said in (
        *_remarks(figures, schema),
        *unused,
        *stuck.sentences(),
        *(f"{one['says']} {one['mend']}" for one in waits),
    ):
        typer.echo(said, err=as_json)
    for problem in figures["problems"]:
        typer.echo(f"agentflow: {problem}.", err=True)
    raise typer.Exit(bool(figures["problems"]))


def _remarks(figures: Mapping[str, Any], schema: str) -> Iterator[str]:
    """What is no problem, and should be known."""
    if not figures["workflows_total"]:
        yield f"There are no workflows in schema {schema}; the notebooks have their own schemas, such as {NOTEBOOKS}."
    if gap := figures["unacknowledged_effects"]:
        yield f"Effects that nobody will acknowledge, since their workflows ended in the gap: {gap}."
    if unknown := figures["ready_unknown_to_workers"]:
        yield f"Ready workflows that no running worker knows: {unknown}. Start {command('worker', schema)}."
    if later := figures["ready_due_later"]:
        yield f"Ready workflows that are due later: {later}. A try failed, or the server's clock was set back."


@app.command()
def check(schema: Schema = DEFAULT_SCHEMA, tool: Tools = None, as_json: Json = False) -> None:
    """Check all rows with the independent checker.

    It reads a laboratory in which nobody works any more. The exit code is 1 if a row is wrong.
    """
    from ..engine import find_database
    from ..evidence import ask
    from ..lab.verify.checker import check_rows
    from . import launch

    database = find_database(schema, patience=COMMAND_PATIENCE)
    _check_that_it_exists(database)
    told = ask(database, launch.own_tools(tool))
    found = check_rows(database, told=told.effects, asked=told.asked)
    problems = [*told.problems, *told.strange]
    answer(as_json, {**asdict(found), "problems": problems}, repr(found))
    for problem in problems:
        typer.echo(f"agentflow: {problem}.", err=True)
    raise typer.Exit(bool(found.mistakes or problems))


def _check_that_it_exists(database: Database) -> None:
    """Checks that a schema of this name exists. Raises SchemaMissing, or DatabaseAway."""
    if not database.run(_THERE)[0]["there"]:
        raise SchemaMissing(
            f"Schema {database.schema!r} does not exist at {database.where}. Check the name; the notebooks have their own "
            f"schemas, such as {NOTEBOOKS}. {command('migrate', database.schema)} would create a new, empty one."
        )


def _batches(requests: Iterator[Any]) -> Iterator[list[Any]]:
    while batch := list(islice(requests, SUBMIT_BATCH)):
        yield batch
