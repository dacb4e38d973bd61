"""The commands of the laboratory: kill workers, play a schedule, try every schedule. Each imports what it runs when it is run."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Annotated, Literal

import typer

from ..agents import DEFAULT_WORKFLOW
from ..errors import BadCapsule, BadName
from .options import (
    COMMAND_PATIENCE,
    Column,
    Events,
    Guards,
    Input,
    Json,
    OwnTool,
    OwnTools,
    RequestsOrNone,
    ShowProgress,
    WorkflowOrNone,
    answer,
    app,
    print_figures,
    print_json,
)


@app.command()
def soak(
    requests: RequestsOrNone = None,
    column: Column = None,
    given: Input = None,
    workflow: WorkflowOrNone = None,
    tool: OwnTools = None,
    event: Events = None,
    schema: Annotated[
        str | None,
        typer.Option("--schema", metavar="NAME", help="A new schema (default: one that is dropped afterwards)."),
    ] = None,
    workers: Annotated[int, typer.Option(help="Worker processes.", min=1, max=64)] = 4,
    kills: Annotated[int | None, typer.Option(help="Workers killed at seeded boundaries (default: 50).", min=0)] = None,
    random_kills: Annotated[int, typer.Option(help="Workers killed at random moments instead.", min=0)] = 0,
    seed: Annotated[int, typer.Option(help="The same seed kills at the same boundaries.")] = 1,
    keep: Annotated[bool, typer.Option("--keep", help="Keep the schema, to look at its rows.")] = False,
    progress: ShowProgress = None,
    as_json: Json = False,
) -> None:
    """Run requests on worker processes, kill workers, report."""
    from ..engine import find_database
    from ..lab.crashes.soak import soak as run
    from . import launch

    if kills and random_kills:
        raise BadName("--kills and --random-kills cannot be combined; choose one of them.")
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # what is cleaned up after Ctrl-C is cleaned up then too
    planned, own = (0 if random_kills else 50) if kills is None else kills, launch.Own(workflow, tool)
    if (inputs := own.inputs(given, requests, column)) is None:
        raise typer.BadParameter("Give the file of requests, or one with --input.", param_hint="--requests")
    report = run(
        find_database("soak").address, inputs, **own.options, schema=schema, workers=workers, kills=planned,
        random_kills=random_kills, seed=seed, keep=keep, progress=progress, events=launch.events(event),
    )  # fmt: skip
    if as_json:
        print_json(report.to_dict())
    else:
        print_figures(report.told())
        if keep:
            typer.echo(f"The rows are kept in schema {report.schema!r}.")
        if report.ok:
            killed = (
                "every kill happened" if report.processes_killed else "no worker was killed, so no recovery was tried"
            )
            typer.echo(f"Nothing is lost, nothing is doubled, and {killed}.")
    for problem in report.problems:
        typer.echo(f"agentflow: {problem}.", err=True)
    raise typer.Exit(not report.ok)


@app.command()
def play(
    line: Annotated[str, typer.Argument(metavar="LINE", help="The schedule, such as 'A*5 A! expire B*'.")],
    schema: Annotated[
        str | None, typer.Option("--schema", metavar="NAME", help="A new schema, dropped afterwards.")
    ] = None,
    workflow: WorkflowOrNone = None,
    given: Input = None,
    requests: RequestsOrNone = None,
    column: Column = None,
    tool: OwnTools = None,
    without: Guards = None,
    lanes: Annotated[
        Literal["thread", "process"], typer.Option("--lanes", help="Threads, or processes that are really killed.")
    ] = "thread",
    svg: Annotated[
        Path | None, typer.Option("--svg", metavar="FILE", dir_okay=False, help="Draw the history here.")
    ] = None,
    capsule: Annotated[
        Path | None, typer.Option("--capsule", metavar="FILE", dir_okay=False, help="Write the run's capsule here.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Play one schedule, print its history, draw it."""
    from ..engine import find_database
    from ..lab.schedule.play import play as run
    from ..lab.schedule.play import read_line
    from . import launch

    signal.signal(signal.SIGTERM, signal.default_int_handler)  # what is cleaned up after Ctrl-C is cleaned up then too
    own = launch.Own(workflow, tool)
    inputs = own.some_inputs(given, requests, column)
    schedule = read_line(line, own.name, without or (), own.workflows, inputs)
    where = find_database("play").address
    played = run(
        where,
        schedule,
        workflows=own.workflows,
        tool=own.tool,
        asked=own.asked,
        inputs=inputs,
        lanes=lanes,
        schema=schema,
    )
    if capsule:
        played.capsule.save(capsule)
    if svg:
        played.capsule.draw(svg)
    if as_json:
        print_json(played.to_dict())
    else:
        typer.echo("\n".join([played.capsule.schedule, *played.capsule.lines(), ""]))
        print_figures(played.figures)
        typer.echo(played.capsule.outcome["sentence"])
    for problem in played.problems:
        typer.echo(f"agentflow: {problem}", err=True)
    raise typer.Exit(bool(played.problems))


@app.command()
def diff(
    one: Annotated[Path, typer.Argument(metavar="A.json", help="A capsule that `agentflow play --capsule` wrote.")],
    other: Annotated[Path, typer.Argument(metavar="B.json", help="Another one.")],
    as_json: Json = False,
) -> None:
    """Compare two saved runs, entry by entry.

    It needs no database, and so no --schema.
    The exit code is 0 if they agree in all but what a clock measured, 1 with the first difference, 2 if one cannot be read.
    """
    from ..lab.schedule.capsule import Capsule, first_divergence

    try:
        left, right = Capsule.load(one), Capsule.load(other)
    except BadCapsule as error:
        typer.echo(f"agentflow: {error}", err=True)
        raise typer.Exit(2) from None
    apart = first_divergence(left, right)
    same = f"Both are the same run, with {len(left.history)} entries and the hash {left.hash:.12}."
    answer(as_json, {"same": apart is None, "difference": apart}, f"They differ: {apart}" if apart else same)
    raise typer.Exit(apart is not None)


@app.command()
def atlas(
    svg: Annotated[
        Path | None, typer.Option("--svg", metavar="FILE", dir_okay=False, help="Draw the atlas here.")
    ] = None,
    schema: Annotated[
        str | None,
        typer.Option("--schema", metavar="NAME", help="How its schemas' names begin; they are dropped afterwards."),
    ] = None,
    workflow: WorkflowOrNone = None,
    given: Input = None,
    requests: RequestsOrNone = None,
    column: Column = None,
    tool: OwnTools = None,
    event: Events = None,
    progress: ShowProgress = None,
    as_json: Json = False,
) -> None:
    """Kill a worker at every boundary of six engines; count effects.

    The exit code is 1 if a cell is not what its engine's missing guard predicts.
    """
    from ..engine import find_database
    from ..lab.crashes.atlas import atlas as run
    from . import launch

    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as for a soak
    own = launch.Own(workflow, tool)
    inputs = own.some_inputs(given, requests, column)
    where = find_database("atlas", patience=COMMAND_PATIENCE).address
    found = run(where, **own.options, inputs=inputs, events=launch.events(event), schema=schema, progress=progress)
    if svg:
        found.picture().save(svg)
    how = f"{found.kills} processes were killed with SIGKILL and recovered by others in {found.seconds:g} s."
    answer(as_json, found.to_dict(), f"{found!r}\n{how}")
    for problem in found.problems:
        typer.echo(f"agentflow: {problem}.", err=True)
    raise typer.Exit(not found.ok)


@app.command()
def explore(
    without: Guards = None,
    crashes: Annotated[int, typer.Option(help="How many workers may be killed.", min=0, max=9)] = 2,
    expiries: Annotated[int, typer.Option(help="How many leases may end.", min=0, max=9)] = 2,
    lost_replies: Annotated[int, typer.Option(help="How many replies of the tool may be lost.", min=0, max=9)] = 1,
    lost_commits: Annotated[
        int, typer.Option(help="How many of PostgreSQL's answers may be lost after the commit.", min=0, max=9)
    ] = 0,
    workflow: WorkflowOrNone = None,
    given: Input = None,
    requests: RequestsOrNone = None,
    column: Column = None,
    tool: OwnTool = None,
    invariant: Annotated[
        list[str] | None,
        typer.Option(
            "--invariant", metavar="MODULE:ATTRIBUTE", help="A function of the rows before and after; repeatable."
        ),
    ] = None,
    event: Events = None,
    number: Annotated[int, typer.Option(help="How many workflows there are.", min=1, max=2)] = 1,
    model: Annotated[
        Literal["steady", "varying"], typer.Option(help="A varying model answers each worker differently.")
    ] = "steady",
    names: Annotated[
        Literal["unique", "shared"], typer.Option(help="Shared: all workers have one identity.")
    ] = "unique",
    expect: Annotated[
        Literal["completed", "failed"], typer.Option(help="How an undisturbed run must end.")
    ] = "completed",
    whole: Annotated[
        bool, typer.Option("--whole", help="Search also the states that an exchange of workers makes.")
    ] = False,
    time_limit: Annotated[float, typer.Option(help="Seconds after which the search ends unfinished.", min=1)] = 600.0,
    svg: Annotated[
        Path | None,
        typer.Option("--svg", metavar="FILE", dir_okay=False, help="Draw the first finding's history here."),
    ] = None,
    schema: Annotated[
        str | None, typer.Option("--schema", metavar="NAME", help="A new schema, dropped afterwards.")
    ] = None,
    progress: ShowProgress = None,
    as_json: Json = False,
) -> None:
    """Try every schedule of two workers within bounds.

    Your own workflow's steps and tool run for real, a step dozens of times; a tool that offers snapshot() and restore(state)
    is put back, any other is called once for each call. The exit code is 1, with the shortest schedule that breaks it, if an
    invariant falls, and if nothing can be certified: an undisturbed run does not end as expected, or a bound ended the search.
    """
    from ..engine import Engine, find_database
    from ..lab.explorer.explore import explore as run
    from ..lab.pictures.timeline import timeline
    from . import launch

    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as for a soak
    launch.own_tool(tool)  # no second one: it meets those that side effects name on the way
    own = launch.Own(workflow, tool)
    inputs, invariants = (
        own.some_inputs(given, requests, column),
        [launch.imported("--invariant", one) for one in invariant or ()],
    )
    found = run(
        Engine(find_database("explore"), workflows=own.workflows, tool=own.tool), without=without or (),
        workflow=own.name or DEFAULT_WORKFLOW, inputs=inputs, invariants=invariants, workflows=number, crashes=crashes,
        expiries=expiries, lost_replies=lost_replies, lost_commits=lost_commits, model=model, names=names, time_limit=time_limit,
        progress=progress, schema=schema, expect=expect, reduce=not whole, events=launch.events(event),
    )  # fmt: skip
    if svg and found.findings:
        timeline(found.findings[0].history, schedule=found.findings[0].line).save(svg)
    answer(as_json, found.to_dict(), str(found))
    if not found.ok:
        typer.echo(f"agentflow: {found.problem}", err=True)
    raise typer.Exit(not found.ok)
