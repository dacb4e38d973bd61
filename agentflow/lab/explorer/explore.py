"""The explorer: every schedule of some workers within stated bounds, on the real engine and a real PostgreSQL.

It moves transaction by transaction. That this is enough is shown by the pair matrix (package `isolation`), which also finds the
races inside a statement. Read `search` next.
"""

from __future__ import annotations

import json
import math
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

from ...agents import WORKFLOWS
from ...database import Database
from ...engine import Engine, find_database
from ...errors import AgentFlowError, describe_failure
from ...model import Policy, Tool
from ...run import Workflow
from ...tools import SimulatedTool
from ..broken.catalogue import engine_class
from ..history.words import brief
from ..laboratory.laboratory import LEASE_SECONDS
from ..laboratory.scratch_schema import new_name, own_schema
from ..notebook.learner_code import own_line
from ..notebook.progress import progress_bar
from ..schedule.grammar import LANES, NAME, Schedule, Setting
from ..schedule.lane_set import weakened
from ..schedule.presets import MOST_EVENTS, REQUESTS, event_payloads, events_of, inputs_for, named, never_came
from ..verify.invariants import Invariant
from .another_process import asked_elsewhere
from .answer_cache import AnswerCache
from .exchange import Exchange
from .hidden_effects import made_anew
from .own_code import OwnCode
from .own_invariant import OwnCheck, own_invariants
from .own_process import DidNotReturn, OutOfTime, SearchProgress, WrongCode, run_apart
from .report import Exploration, Finding
from .search import Bounds, Graph, Rules
from .trace import finding, what_comes
from .transitions import World
from .way import EndedAs

StopAt = Literal["harm", "authority", "never"]
ENDING = {"harm": ("harm",), "authority": ("harm", "authority"), "never": ()}
STUCK_SECONDS = 10.0  # how long the explored code may run up to its next transaction
UNDISTURBED_SECONDS = 20.0  # how long the undisturbed run before the search may take, if the time limit is shorter
UNLIKE = "the end of its undisturbed run"
UNDISTURBED = "An undisturbed run (schedule `A*`) goes wrong: "
FIX_IT = "Fix it, and explore again."


class ExplorerError(AgentFlowError):
    """The explored engine, or its workflow, is wrong; the message has the schedule that led there."""


def explore(
    engine: Engine | type[Engine] | None = None, *, without: Iterable[str] = (),
    workflow: str | Workflow = "support_agent", inputs: Sequence[Any] | None = None, tool: Tool | None = None,
    invariants: Sequence[OwnCheck] = (), workflows: int | None = None, workers: int = 2, crashes: int = 2,
    expiries: int = 2, lost_replies: int = 1, renewals: int = 0, forgettings: int = 0, payloads: int = 1,
    lost_commits: int = 0, model: Literal["steady", "varying"] = "steady",
    names: Literal["unique", "shared"] = "unique", retry: Literal["call_again", "look_up"] = "call_again",
    moves: int | None = None, time_limit: float = 600.0,
    stop_at: StopAt = "harm", progress: bool | None = None, schema: str | None = None,
    expect: Literal["completed", "failed"] = "completed", reduce: bool = True, events: Mapping[str, Any] | None = None,
) -> Exploration:  # fmt: skip
    """Tries every schedule within the bounds; if it could not, the report names the bound that was hit.

    Nothing is tried, and nothing certified, unless an undisturbed run of each workflow ends as you `expect`.
    `engine` is an engine, a class of engines (also your own), or None for the real one; `without` takes guards from it.
    `workflow` is a name that the engine knows, or a function; `inputs` has a JSON value for each workflow (without it, the
    presets' requests). `events` has the payload that an event of this name brings; without it, `true`.
    `invariants` are functions of the Rows before and after a transaction; see own_invariant().

    Your code runs for real, and a step's body each time that a worker is brought to where it stood: dozens of times. So
    explore no step that costs money or changes something; the result says how often each ran. A `tool` (the engine's, or
    one that a side effect names) that offers `snapshot()` and `restore(state)` runs for every state that it comes to, and is
    put back at the end. The body of any other runs once for each call, behind a ledger that answers a repeated key as the
    tool would have to; the result then says "explored as if your tool kept its keys". See own_code.

    Everything happens in a schema of its own (`schema`, which must not exist), which is dropped afterwards. `moves` bounds the
    length of a schedule, `time_limit` (seconds) the search. `stop_at` is the kind of finding that ends it: `harm` (a loss of
    authority is noted on the way), `authority` (either), `never`. Raises ExplorerError if the engine's code or yours is wrong,
    BadSchedule for an unknown workflow, UnfaithfulValue for an input that JSON cannot hold.

    `reduce` takes a state and those that an exchange of workers makes of it for one, where workers' names are only compared: not
    with an engine class or `invariants` of your own, nor with answers that hold a name (`model="varying"` with unique names). The
    verdict, the findings and the number of schedules are those of the whole space, which `reduce=False` searches.

    The search runs in a forked process, which is killed when the explored code reaches no transaction within ten seconds; so
    what that code changes in memory is not seen here, and what it prints is discarded (play a schedule on a Stepper to see
    it). It may not fork. On a platform without fork, the time is checked between transactions.
    """
    near = engine.database if isinstance(engine, Engine) else find_database()
    kind, guards = _kind_of(engine)
    functions = dict(engine.workflows if isinstance(engine, Engine) else WORKFLOWS)
    name, functions[name] = named(workflow, functions)
    if not re.fullmatch(NAME, name):
        raise ExplorerError(
            f"workflow={name} has no name that a schedule can hold. Nothing was explored; make it with `def`."
        )
    many = (len(inputs) if isinstance(inputs, list | tuple) else 1) if workflows is None else workflows
    setting = Setting(name, tuple(sorted({*guards, *without})), many, model, names, retry)
    bounds = Bounds(crashes, expiries, lost_replies, renewals, forgettings, payloads, lost_commits)
    try:
        checks = own_invariants(invariants)
    except WrongCode as wrong:
        raise ExplorerError(f"{wrong} Nothing was explored.") from None
    plan = _Plan(
        setting, bounds, workers, moves, stop_at, time.monotonic(), time_limit, expect, reduce and workers > 1 and not invariants,
        checks, functions[name] is not WORKFLOWS.get(name), event_payloads(events),
    )  # fmt: skip
    with (
        own_schema(near.address, schema or new_name("explore")) as database,
        _explored(kind, engine, database, setting, functions, tool) as made,
    ):
        plan = replace(plan, reduce=plan.reduce and Exchange.applies(made, setting))
        given = inputs_for(setting, made.workflows, inputs)
        found: list[Finding] = []
        reached = SearchProgress.shared(plan.began + max(time_limit, UNDISTURBED_SECONDS))
        own = OwnCode(reached, made)
        with progress_bar(" states", progress) as show, _put_back(own, made):
            try:
                work = partial(_explored_here, plan, made, given, own)
                told = run_apart(work, reached, show, found.append, STUCK_SECONDS)
                return _elsewhere(told, functions[name])
            except DidNotReturn as killed:
                if killed.out_of_time and reached.searching:
                    return plan.report(reached, found)
                step = reached.step.decode(errors="ignore")
                raise ExplorerError(_and_fix_it(f"{reached.where}{killed}{step}")) from None


@dataclass(frozen=True)
class _Plan:
    """What is to be explored, and within which limits; `began` is a time.monotonic()."""

    setting: Setting
    bounds: Bounds
    workers: int
    moves: int | None
    stop_at: StopAt
    began: float
    time_limit: float
    expect: str
    reduce: bool
    invariants: tuple[Invariant, ...]
    own: bool
    brings: Mapping[str, Any]

    def __post_init__(self) -> None:
        there = 1 <= self.workers <= len(LANES) and 1 <= self.setting.requests <= len(REQUESTS)
        if not there or min(vars(self.bounds).values()) < 0 or self.expect not in ("completed", "failed"):
            raise ExplorerError(
                f"An exploration has 1 to {len(LANES)} workers, 1 to {len(REQUESTS)} workflows, no bound below 0, and expects "
                f"them completed or failed. Nothing was explored."
            )

    def report(
        self, reached: SearchProgress, found: Iterable[Finding], graph: Graph | None = None, doubt: str = ""
    ) -> Exploration:
        """The result of an exploration that came so far; without its graph, it was stopped by the time limit.

        Harm comes before a loss of authority, and the shortest first. `doubt`: why nothing is certified,
        such as how the undisturbed run ended instead.
        """
        findings = tuple(sorted(found, key=lambda one: (one.kind != "harm", one.moves)))
        whole = graph if graph and not graph.stopped else None
        uncertified, about = _looked_at(whole) if whole else ("", "")
        ran = json.loads(reached.bodies or '{"as_if": []}')
        if whole and self.own and ran.get("unseen"):
            names = ", ".join(ran["unseen"])
            about += f" What steps did to {names} was not looked at (not observed): it offers no effects()."
        ends = whole.ends() if whole else None
        return Exploration(
            self.setting, self.bounds, self.workers, len(graph.states) if graph else reached.states, reached.transitions,
            sum(ends.values()) if ends else None, reached.depth, time.monotonic() - self.began, reached.statements,
            reached.rows, findings, graph.stopped if graph else "the time limit", graph, ends,
            graph.rules.world.events if graph else (), uncertified or doubt, about.strip(), self.reduce, ran, self.own,
        )  # fmt: skip


def _elsewhere(found: Exploration, function: Workflow) -> Exploration:
    """The result, also of what other processes ask for, if all is well here and the workflow is one's own."""
    if not found.own or not found.ok or not found.graph:
        return found
    doubt, said = asked_elsewhere(function, tuple(found.graph.rules.world.ways.ended))
    return replace(found, uncertified=doubt, elsewhere=said)


def _explored_here(
    plan: _Plan, engine: Engine, inputs: Sequence[Any], own: OwnCode, tell: Callable[[Finding], None]
) -> Exploration:
    """The whole exploration, in this process. Each finding is told at once."""
    budget, reached = engine.policy.crash_budget, own.progress
    cache = AnswerCache(engine.database, keep_crashes=plan.bounds.expiries + 1 > budget)
    try:
        graph = _prepared(cache, engine, plan, inputs, own)
        if unlike := _unlike(graph.rules.world, plan.expect):
            graph.stopped = UNLIKE
            return plan.report(reached, (), graph, unlike)
        reached.deadline, reached.searching = plan.began + plan.time_limit, True
        graph.tell = lambda fall: tell(finding(graph, plan.setting, fall))
        _search(graph, plan.moves, ENDING[plan.stop_at])
        reached.deadline = math.inf
        findings = [finding(graph, plan.setting, fall, what_comes) for fall in graph.falls.values()]
        reached.statements, reached.rows = cache.statements, len(cache)  # what follows a finding is asked, too
        hidden = "" if findings or graph.stopped else own.hidden() or graph.rules.world.memory.changed()
    finally:
        cache.close()
        own.put_back()
    return plan.report(reached, findings, graph, hidden)


@contextmanager
def _put_back(own: OwnCode, engine: Engine) -> Iterator[None]:
    """Afterwards the engine's tool, if it can be put back, is as it was. Raises ExplorerError if it cannot be used."""
    try:
        if not isinstance(engine.tool, SimulatedTool):
            own.known(engine.tool)
        try:
            yield
        finally:
            own.put_back()
    except WrongCode as wrong:
        raise ExplorerError(_and_fix_it(f"Nothing is certified: {wrong}")) from wrong


def _and_fix_it(wrong: str) -> str:
    """The message as whole sentences, with what to do."""
    wrong = wrong.rstrip()
    return f"{wrong}{'' if wrong[-1:] in ('.', '?', '!') else '.'} {FIX_IT}"


def _kind_of(engine: Engine | type[Engine] | None) -> tuple[type[Engine], tuple[str, ...]]:
    """The engine's class, and the guards that it lacks: those of a class made by engine_class() belong to the setting."""
    kind = type(engine) if isinstance(engine, Engine) else engine or Engine
    guards: tuple[str, ...] = getattr(kind, "without", ())
    return (Engine, guards) if guards and engine_class(guards) is kind else (kind, ())


def _prepared(cache: AnswerCache, engine: Engine, plan: _Plan, inputs: Sequence[Any], own: OwnCode) -> Graph:
    """The graph before its first expansion. Raises ExplorerError if not even an undisturbed run goes well."""
    try:
        for _ in range(2):  # a tool that only a side effect names is met on the way; its state is in the first rows
            first = own.first()
            world = World(cache, engine, plan.setting, inputs, own, lambda: UNDISTURBED, plan.invariants)
            _await(world, plan.brings)
            if first == own.first():
                break
        world.expect(world.finished(world.first))
        promised = _promised(world, engine, inputs)
    except WrongCode as wrong:
        hint = made_anew(one.name for one in own.tools)
        raise ExplorerError(_and_fix_it(f"{UNDISTURBED}{wrong}{hint}")) from wrong
    except OutOfTime:
        raise ExplorerError(f"{UNDISTURBED}it did not end in time. Is there an endless loop? {FIX_IT}") from None
    for mine, real in zip(world.expected, promised, strict=False):
        if mine == real:
            continue
        ends = [f"failed with {error}" if mine[0] == real[0] else status for status, error in (mine, real)]
        raise ExplorerError(
            f"An undisturbed run (schedule `A*`) leaves its workflow {ends[0]}, while the real Engine leaves it {ends[1]}."
            f'{_raised(world)} See what happens: `Stepper({type(engine).__name__}(...)).play("A*")`; fix it, and explore again.'
        )
    rules = Rules(world, plan.bounds, plan.workers)
    return Graph(rules, Exchange(world, rules.lanes) if plan.reduce else None)


def _unlike(world: World, expect: str) -> str:
    """How a workflow ends undisturbed, if not as expected, and what to do; empty if all do as expected."""
    found = world.cache.rows(world.finished(world.first)).workflows
    row = next((row for row in found if row["status"] != expect), None)
    if row is None:
        return ""
    did = {
        "completed": "completes", "waiting": f"waits for {brief(str(row['waiting_for']), 80)!r} for ever",
        "ready": "is never done, whoever works on it", "cancelled": "is cancelled", "failed": "fails",
    }[row["status"]]  # fmt: skip
    fix = f"Fix it, or explore it with expect={expect!r} left out" if expect == "failed" else FIX_IT[:-1]
    if row["error"]:
        error, raised = json.loads(row["error"]), world.player.raised
        why = f"{error['type']}: {error['message'].partition('. Catch StepFailed')[0]}"
        line = own_line(raised) if raised and describe_failure(raised)["message"] in error["message"] else ""
        did += f": {brief(why.rstrip('. '), 300)}{brief(line, 100)}"
    if row["status"] == "failed":
        fix = 'Fix it; or, if it is meant to fail, say expect="failed" (in a terminal: --expect failed)'
    if row["status"] == "ready" and any(one.first is None for one in world.own.tools):
        fix += "; or give your tool snapshot() and restore(), so that it is really asked again (without them it raises the same)"
    given = f"It was given {brief(row['input'], 80)}" + "".join(
        f", and event {brief(name, 40)!r} brought {json.dumps(payload)}" for name, payload in world.events[:3]
    )
    given += f", and {len(world.events) - 3} more" if world.events[3:] else ""
    given += "; --event NAME=JSON, or explore(events=...), says what one brings" if world.events else ""
    return f"undisturbed (schedule `A*`), {row['id']} {did}. Nothing was explored. {given}. {fix}."


def _looked_at(graph: Graph) -> tuple[str, str]:
    """Of an exhausted space: why it certifies nothing (empty if it does), and what was certified if it was not the usual."""
    world, reached = graph.rules.world, {state.rows for state in graph.states}
    if not graph.falls and not any(world.outcomes(rows) == world.expected for rows in reached):
        return "within these bounds no workflow comes to its end. Raise them, and explore again.", ""
    rows = [world.cache.rows(number) for number in reached]
    errors = ", ".join(sorted({brief(error, 80) for _, error in world.expected if error}))
    said = [f"As expected, the workflow fails: {errors}."] if errors else []
    if not any(one.effects for one in rows):
        no = "leaves an effect" if any(one.intents for one in rows) else "plans an action"
        said.append(f"The workflow has no side effects: no schedule {no}.")
    return "", " ".join(said)


def _promised(world: World, engine: Engine, inputs: Sequence[Any]) -> tuple[EndedAs, ...]:
    """How an undisturbed run of the same workflows ends with the real engine; () if nothing but guards is missing."""
    if type(engine) is Engine or world.setting.without:
        return ()
    plain = Engine(world.cache.database, workflows=engine.workflows, policy=engine.policy)
    plain.tool = plain.world if engine.tool is engine.world else engine.tool
    real = World(world.cache, plain, world.setting, inputs, world.own, world.player.where)
    real.player.engine.world.answers, real.events = engine.world.answers, world.events
    return real.outcomes(real.finished(real.first))


def _raised(world: World) -> str:
    """The first error that the run recorded, with the learner's line; empty if there was none."""
    error = world.player.raised
    if error is None:
        return ""
    failure = describe_failure(error)
    message = failure["message"].partition("\n")[0].rstrip(".")
    return f" It raised {failure['type']}: {message:.300}{own_line(error)}."


def _search(graph: Graph, moves: int | None, ends: tuple[str, ...]) -> None:
    """Searches. Raises ExplorerError, with the schedule that led there, for code that went wrong."""

    def after(state: int) -> str:
        return f"After the schedule `{Schedule(graph.rules.world.setting, tuple(graph.way(state)))}`: "

    graph.rules.world.player.where = lambda: after(graph.looked_at)
    try:
        graph.search(moves, ends)
        doubt, at = graph.doubt, graph.doubtful
    except WrongCode as wrong:
        doubt, at = wrong, graph.at
    if doubt:
        hint = made_anew(one.name for one in graph.rules.world.own.tools)
        raise ExplorerError(_and_fix_it(f"{after(at)}{doubt}{hint}")) from doubt


def _await(world: World, brings: Mapping[str, Any]) -> None:
    """Finds the events that are waited for, from the presets or as it waits; each brings the payload given, or True."""
    world.events = tuple((name, brings.get(name, True)) for name in events_of(world.setting.workflow) or ())
    for _ in range(MOST_EVENTS):
        waits = {row["waiting_for"] for row in world.cache.rows(world.finished(world.first)).workflows}
        new = waits - {None, *dict(world.events)}
        if not new:
            break
        world.events += tuple((name, brings.get(name, True)) for name in sorted(new))
    if never := never_came(brings, dict(world.events)):
        raise ExplorerError(f"{UNDISTURBED}{never}. {FIX_IT}")


@contextmanager
def _explored(
    kind: type[Engine], engine: Engine | type[Engine] | None, database: Database, setting: Setting,
    functions: Mapping[str, Workflow], tool: Tool | None,
) -> Iterator[Engine]:  # fmt: skip
    """An engine of the class on the explorer's schema, whose leases and back-offs end only by a move."""
    given = engine if isinstance(engine, Engine) else None
    options: dict[str, Any] = {} if functions == WORKFLOWS else {"workflows": functions}
    policy = replace(
        given.policy if given else Policy(), lease_seconds=LEASE_SECONDS, first_delay=LEASE_SECONDS,
        max_delay=LEASE_SECONDS, unknown_outcome=setting.retry,
    )  # fmt: skip
    try:
        made = kind(database, policy=policy, **options)
    except TypeError as error:
        raise ExplorerError(
            f"{kind.__name__} cannot be made from a database and options as Engine can: {error}."
        ) from error
    if given:
        made.world.answers = given.world.answers
    if tool is None and given and given.tool is not given.world:
        tool = given.tool
    made.tool = made.tool if tool is None else tool
    try:
        yield weakened(made, setting)
    finally:
        made.close()
