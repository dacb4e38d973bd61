"""The explorer: every schedule of some workers within stated bounds, on the real engine and a real PostgreSQL.

It moves transaction by transaction. That this is enough is shown by the pair matrix (package `isolation`), which also finds the
races inside a statement. Read `search` next.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

from ...database import Database
from ...engine import Engine, find_database
from ...errors import AgentFlowError, Suspend, describe_failure
from ...model import Policy
from ...run import DurableRunner, StepStore
from ..broken.catalogue import engine_class
from ..history.words import brief
from ..laboratory.laboratory import LEASE_SECONDS
from ..laboratory.scratch_schema import new_name, own_schema
from ..notebook.learner_code import own_line
from ..notebook.progress import progress_bar
from ..schedule.grammar import LANES, Move, Schedule, Setting
from ..schedule.lane_set import weakened
from ..schedule.presets import REQUESTS, events_of, inputs_for
from .answer_cache import AnswerCache
from .exchange import DEAD, Exchange
from .own_process import DidNotReturn, OutOfTime, SearchProgress, run_apart
from .replayed_worker import WrongCode, noting_steps
from .report import Exploration, Finding
from .search import Bounds, Fall, Graph, Rules
from .trace import walked
from .transitions import EndedAs, World

StopAt = Literal["harm", "authority", "never"]
ENDING = {"harm": ("harm",), "authority": ("harm", "authority"), "never": ()}
MOST_MOVES = 10
STUCK_SECONDS = 10.0  # how long the explored code may run up to its next transaction
UNDISTURBED_SECONDS = 20.0  # how long the undisturbed run before the search may take, if the time limit is shorter
UNLIKE = "the end of its undisturbed run"
UNDISTURBED = "An undisturbed run (schedule `A*`) goes wrong: "
FIX_IT = "Fix it, and explore again."


class ExplorerError(AgentFlowError):
    """The explored engine, or its workflow, is wrong; the message has the schedule that led there."""


def explore(
    engine: Engine | type[Engine] | None = None, *, without: Iterable[str] = (), workflow: str = "support_agent",
    workflows: int = 1, workers: int = 2, crashes: int = 2, expiries: int = 2, lost_replies: int = 1, renewals: int = 0,
    forgettings: int = 0, payloads: int = 1, lost_commits: int = 0, model: Literal["steady", "varying"] = "steady",
    names: Literal["unique", "shared"] = "unique", retry: Literal["call_again", "look_up"] = "call_again",
    moves: int | None = None, time_limit: float = 600.0, stop_at: StopAt = "harm", progress: bool | None = None,
    schema: str | None = None, expect: Literal["completed", "failed"] = "completed", reduce: bool = True,
) -> Exploration:  # fmt: skip
    """Tries every schedule within the bounds; if it could not, the report names the bound that was hit.

    Nothing is tried, and nothing certified, unless an undisturbed run of each workflow ends as you `expect`.
    `engine` is an engine, a class of engines (also your own), or None for the real one; `without` takes guards from it.
    Everything happens in a schema of its own (`schema`, which must not exist), which is dropped afterwards. `moves` bounds the
    length of a schedule, `time_limit` (seconds) the search. `stop_at` is the kind of finding that ends it: `harm` (a loss of
    authority is noted on the way), `authority` (either), `never`. Raises ExplorerError if the engine's code is wrong,
    BadSchedule for an unknown workflow.

    `reduce` takes a state and those that an exchange of workers makes of it for one, where workers' names are only compared: not
    with an engine class of your own, nor with answers that hold a name (`model="varying"` with unique names). The verdict, the
    findings and the number of schedules are those of the whole space, which `reduce=False` searches.

    The search runs in a forked process, which is killed when the explored code reaches no transaction within ten seconds; so
    what that code changes in memory is not seen here, and what it prints is discarded (play a schedule on a Stepper to see
    it). It may not fork. On a platform without fork, the time is checked between transactions.
    """
    near = engine.database if isinstance(engine, Engine) else find_database()
    kind, guards = _kind_of(engine)
    setting = Setting(workflow, tuple(sorted({*guards, *without})), workflows, model, names, retry)
    bounds = Bounds(crashes, expiries, lost_replies, renewals, forgettings, payloads, lost_commits)
    plan = _Plan(setting, bounds, workers, moves, stop_at, time.monotonic(), time_limit, expect, reduce and workers > 1)
    with (
        own_schema(near.address, schema or new_name("explore")) as database,
        _explored(kind, engine, database, setting) as made,
    ):
        plan = replace(plan, reduce=plan.reduce and Exchange.applies(made, setting))
        inputs = inputs_for(setting, made.workflows)
        found: list[Finding] = []
        reached = SearchProgress.shared(plan.began + max(time_limit, UNDISTURBED_SECONDS))
        with progress_bar(" states", progress) as show:
            try:
                return run_apart(
                    partial(_explored_here, plan, made, inputs, reached), reached, show, found.append, STUCK_SECONDS
                )
            except DidNotReturn as killed:
                if killed.out_of_time and reached.searching:
                    return plan.report(reached, found)
                step = reached.step.decode(errors="ignore")
                raise ExplorerError(f"{reached.where}{killed}{step} {FIX_IT}") from None


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

    def __post_init__(self) -> None:
        there = 1 <= self.workers <= len(LANES) and 1 <= self.setting.requests <= len(REQUESTS)
        if not there or min(vars(self.bounds).values()) < 0 or self.expect not in ("completed", "failed"):
            raise ExplorerError(
                f"An exploration has 1 to {len(LANES)} workers, 1 to {len(REQUESTS)} workflows, no bound below 0, and expects "
                f"them completed or failed. Nothing was explored."
            )

    def report(
        self, reached: SearchProgress, found: Iterable[Finding], graph: Graph | None = None, unlike: str = ""
    ) -> Exploration:
        """The result of an exploration that came so far; without its graph, it was stopped by the time limit.

        Harm comes before a loss of authority, and the shortest first. `unlike`: how the undisturbed run ended instead.
        """
        findings = tuple(sorted(found, key=lambda one: (one.kind != "harm", one.moves)))
        whole = graph if graph and not graph.stopped else None
        uncertified, about = _looked_at(whole) if whole else (unlike, "")
        ends = whole.ends() if whole else None
        return Exploration(
            self.setting, self.bounds, self.workers, len(graph.states) if graph else reached.states, reached.transitions,
            sum(ends.values()) if ends else None, reached.depth, time.monotonic() - self.began, reached.statements,
            reached.rows, findings, graph.stopped if graph else "the time limit", graph, ends,
            graph.rules.world.events if graph else (), uncertified, about, self.reduce,
        )  # fmt: skip


def _explored_here(
    plan: _Plan, engine: Engine, inputs: Sequence[Any], reached: SearchProgress, tell: Callable[[Finding], None]
) -> Exploration:
    """The whole exploration, in this process. Each finding is told at once."""
    budget = engine.policy.crash_budget
    cache = AnswerCache(engine.database, keep_crashes=plan.bounds.expiries + 1 > budget)
    try:
        graph = _prepared(cache, engine, plan, inputs, reached)
        if unlike := _unlike(graph.rules.world, plan.expect):
            graph.stopped = UNLIKE
            return plan.report(reached, (), graph, unlike)
        reached.deadline, reached.searching = plan.began + plan.time_limit, True
        graph.tell = lambda fall: tell(_finding(graph, plan.setting, fall))
        _search(graph, plan.moves, ENDING[plan.stop_at])
        reached.deadline = math.inf
        findings = [_finding(graph, plan.setting, fall, _what_comes) for fall in graph.falls.values()]
        reached.statements, reached.rows = cache.statements, len(cache)  # what follows a finding is asked, too
    finally:
        cache.close()
    return plan.report(reached, findings, graph)


def _kind_of(engine: Engine | type[Engine] | None) -> tuple[type[Engine], tuple[str, ...]]:
    """The engine's class, and the guards that it lacks: those of a class made by engine_class() belong to the setting."""
    kind = type(engine) if isinstance(engine, Engine) else engine or Engine
    guards: tuple[str, ...] = getattr(kind, "without", ())
    return (Engine, guards) if guards and engine_class(guards) is kind else (kind, ())


def _prepared(cache: AnswerCache, engine: Engine, plan: _Plan, inputs: Sequence[Any], reached: SearchProgress) -> Graph:
    """The graph before its first expansion. Raises ExplorerError if not even an undisturbed run goes well."""
    try:
        world = World(cache, engine, plan.setting, inputs, reached, lambda: UNDISTURBED)
        with reached.in_code(UNDISTURBED):
            world.events = _events(engine, plan.setting, reached)
        world.expected = world.outcomes(world.finished(world.first))
        promised = _promised(world, engine, inputs)
    except WrongCode as wrong:
        raise ExplorerError(f"{UNDISTURBED}{wrong} {FIX_IT}") from wrong
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
    if row["status"] == "failed":
        error, raised = json.loads(row["error"]), world.player.raised
        why = f"{error['type']}: {error['message'].partition('. Catch StepFailed')[0]}"
        line = own_line(raised) if raised and describe_failure(raised)["message"] in error["message"] else ""
        did += f": {brief(why, 300)}{brief(line, 100)}"
        fix = 'Fix it; or, if it is meant to fail, say expect="failed" (in a terminal: --expect failed)'
    given = f"It was given {brief(row['input'], 80)}" + "".join(
        f", and event {brief(name, 40)!r} brought {json.dumps(payload)}" for name, payload in world.events
    )
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
    real = World(world.cache, plain, world.setting, inputs, world.player.progress, world.player.where)
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
        raise ExplorerError(f"{after(at)}{doubt} {FIX_IT}") from doubt


def _events(engine: Engine, setting: Setting, reached: SearchProgress) -> tuple[tuple[str, Any], ...]:
    """What the workflow waits for, each with the payload that is delivered first: from the presets, or from a dry run."""
    known = events_of(setting.workflow)
    if known is None:
        known = tuple(_awaited(engine, setting, reached))
    return tuple((name, True) for name in known)


def _awaited(engine: Engine, setting: Setting, reached: SearchProgress) -> list[str]:
    found: dict[str, Any] = {}
    value, store = inputs_for(setting, engine.workflows)[0], StepStore()
    function = noting_steps(engine.workflows[setting.workflow], setting.workflow, reached)
    for _ in range(100):
        run = DurableRunner("dry-run", store, found, tool=lambda call: engine.world.answers.get(call.action, {}))
        try:
            function(run, value)
            break
        except Suspend as parked:
            found[parked.waiting_for] = True
        except BaseException:  # what it raises is reported by the undisturbed run
            break
    return list(found)


def _finding(
    graph: Graph, setting: Setting, fall: Fall, comes: Callable[[Graph, int], Iterable[Move]] = lambda *_: ()
) -> Finding:
    """The fall with its schedule and history; `comes` gives the moves after it, which run explored code."""
    moves, one = (*graph.way(fall.state), *filter(None, [fall.move])), fall.invariant
    history, then = tuple(walked(graph.rules, moves).history), () if fall.move else tuple(comes(graph, fall.state))
    return Finding(
        one.name, one.kind, one.sentence, Schedule(setting, moves), brief(str(fall.guilty), 1000), history, then
    )


def _what_comes(graph: Graph, number: int) -> Iterator[Move]:
    """The moves of a worker that tries to finish what cannot be finished, if a lane has one to spare."""
    (rows, at, *_), lanes, world = graph.states[number], graph.rules.lanes, graph.rules.world
    places = dict(zip(lanes, at, strict=True))
    free = [lane for lane, place in places.items() if place != DEAD and not world.player.places[place].answers]
    dead = [lane for lane, place in places.items() if place == DEAD]
    lane = (free + dead or [""])[0]
    if lane in dead:
        yield Move("start", lane)
    for _ in range(MOST_MOVES if lane else 0):
        moves, given = world.given_time(rows)
        then = world.to_its_end(given, world.started(world.identity(lane, given))).rows
        if then == rows:
            return
        yield from [*moves, Move("go", lane, None)]
        rows = then


@contextmanager
def _explored(
    kind: type[Engine], engine: Engine | type[Engine] | None, database: Database, setting: Setting
) -> Iterator[Engine]:
    """An engine of the class on the explorer's schema, whose leases and back-offs end only by a move."""
    given = engine if isinstance(engine, Engine) else None
    policy = replace(
        given.policy if given else Policy(), lease_seconds=LEASE_SECONDS, first_delay=LEASE_SECONDS,
        max_delay=LEASE_SECONDS, unknown_outcome=setting.retry,
    )  # fmt: skip
    options: dict[str, Any] = {"workflows": given.workflows} if given else {}
    if given and given.tool is not given.world:
        raise ExplorerError(
            "This engine has its own tool, but the explorer can restore only what the simulated world holds. Explore an "
            "engine without `tool=`."
        )
    try:
        made = kind(database, policy=policy, **options)
    except TypeError as error:
        raise ExplorerError(
            f"{kind.__name__} cannot be made from a database and options as Engine can: {error}."
        ) from error
    if given:
        made.world.answers = given.world.answers
    try:
        yield weakened(made, setting)
    finally:
        made.close()
