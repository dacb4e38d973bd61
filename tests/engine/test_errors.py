"""Every error says what happened, where, and what to do next; every name that people see is explained and typed."""

from __future__ import annotations

import ast
import importlib
import inspect
import pkgutil
import re
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import pytest

import agentflow
from agentflow import Database, Engine, Policy, StandInModel, errors, migrate
from agentflow.errors import AgentFlowError
from agentflow.model import Claim, ToolCall
from agentflow.run import DurableRunner, StepStore
from tests.support.refusals import refusing
from tests.support.runs import NAME, ROOT, deploy, start, turn, workflow

CONTROL_FLOW = {"LostLease", "Suspend", "Postponed", "Stopping", "CrashInjected"}
CLASSES = {
    name: value
    for name, value in vars(errors).items()
    if inspect.isclass(value) and issubclass(value, BaseException) and value.__module__ == errors.__name__
}


# -- the family


def test_control_flow_passes_except_exception_and_everything_else_has_one_root() -> None:
    for name, value in CLASSES.items():
        if name in CONTROL_FLOW:
            assert not issubclass(value, Exception), name
        else:
            assert issubclass(value, AgentFlowError), name
    assert set(CLASSES) >= CONTROL_FLOW


@pytest.mark.parametrize("name", sorted(CONTROL_FLOW))
def test_workflows_own_except_exception_cannot_swallow_control_flow(name: str) -> None:
    error = CLASSES[name]("w", "s", "r") if name in ("LostLease",) else CLASSES[name].__new__(CLASSES[name])

    def broad() -> str:
        try:
            raise error
        except Exception:
            return "swallowed"

    with pytest.raises(CLASSES[name]):
        broad()


def test_errors_are_also_what_python_calls_them() -> None:
    for name, python in {
        "UnfaithfulValue": TypeError, "BadName": ValueError, "UnknownWorkflow": KeyError, "StepMisuse": TypeError,
    }.items():  # fmt: skip
        assert issubclass(CLASSES[name], python)


# -- each error, provoked: what it says


def claimed(engine: Engine, function: Callable[[Any, Any], Any] = lambda run, _: None) -> Claim:
    start(engine, function, workflow_id="w-1")
    claim = engine.claim_workflow("worker")
    assert claim is not None
    return claim


def stale(engine: Engine) -> Any:
    claim = claimed(engine)
    engine.expire_lease("w-1")
    engine.claim_workflow("successor")
    return engine.checkpoint(claim, "late", 1)


def refused_event(engine: Engine) -> Any:
    start(engine, lambda run, _: None, workflow_id="w-1")
    engine.deliver_event("w-1", "go", 1)
    return engine.deliver_event("w-1", "go", 2)


def late_event(engine: Engine) -> Any:
    start(engine, lambda run, _: None, workflow_id="w-1")
    engine.cancel_workflow("w-1")
    return engine.deliver_event("w-1", "go", 1)


def taken(engine: Engine) -> Any:
    engine.create_workflow(1, name=NAME, workflow_id="w-1")
    return engine.create_workflow(2, name=NAME, workflow_id="w-1")


def finished(engine: Engine) -> Any:
    start(engine, lambda run, _: None, workflow_id="w-1")
    assert turn(engine) == "completed"
    return engine.cancel_workflow("w-1")


def failed_step(engine: Engine) -> Any:
    return raised_inside(engine, lambda run: run.step("train", lambda: 1 / 0), Policy(max_attempts=1))


def raised_inside(engine: Engine, call: Callable[[Any], Any], policy: Policy | None = None) -> Any:
    """What the call raised inside a workflow function."""
    engine.policy = policy or engine.policy
    caught: list[BaseException] = []

    def function(run: Any, _: Any) -> None:
        try:
            call(run)
        except BaseException as error:
            caught.append(error)
            raise

    start(engine, function, workflow_id="w-1")
    turn(engine)
    raise caught[0]


def changed_code(engine: Engine) -> Any:
    claim = claimed(engine)
    engine.checkpoint(claim, "train", 1)
    engine.expire_lease("w-1")
    return raised_again(engine, lambda run: run.step("fit", lambda: 1))


def raised_again(engine: Engine, call: Callable[[Any], Any]) -> Any:
    caught: list[BaseException] = []

    def function(run: Any, _: Any) -> None:
        try:
            call(run)
        except BaseException as error:
            caught.append(error)
            raise

    deploy(engine, function)
    turn(engine)
    raise caught[0]


def twice_by_hand(engine: Engine) -> Any:
    claim = engine.checkpoint(claimed(engine), "train", 1)
    return engine.checkpoint(claim, "train", 2)


def mismatched(engine: Engine) -> Any:
    claim = claimed(engine)
    engine.create_action_intent(claim, "k", "pay", 1)
    return engine.create_action_intent(claim, "k", "pay", 2)


def counted_wrong(engine: Engine) -> Any:
    claim = engine.checkpoint(claimed(engine), "train", 1)
    with engine.database.alchemy.connect() as connection:
        connection.execute(agentflow.steps.delete())
    return engine.load(claim)


def refused_tool(engine: Engine) -> Any:
    engine.world.fault = lambda call: "refuse"
    return engine.world(ToolCall("w-1:k", "pay", None, "w-1"))


def away(engine: Engine) -> Any:
    return Database("postgresql://agentflow@127.0.0.1:1/agentflow", patience=0).execute("purpose", {})


def away_listening(engine: Engine) -> Any:
    return Database("postgresql://agentflow@127.0.0.1:1/agentflow", patience=0).listen()


def killed_connection(engine: Engine) -> Any:
    """The connection is ended while its statement runs."""
    dying = {"purpose": "SELECT pg_terminate_backend(pg_backend_pid()) AS purpose"}
    database = engine.database.twin(patience=0).with_texts(dying)
    try:
        return database.read("purpose", {})
    finally:
        database.close()


def not_migrated(engine: Engine) -> Any:
    database = Database(engine.database.url.render_as_string(hide_password=False), "never_migrated", patience=0)
    try:
        return Engine(database).create_workflow("x")
    finally:
        database.close()


def refused_statement(engine: Engine) -> Any:
    return engine.database.execute("list", {"p_status": None, "p_prefix": "", "p_limit": -1, "p_offset": 0})


def refused_write(engine: Engine) -> Any:
    claim = claimed(engine)
    with refusing(engine, "steps"):
        return engine.checkpoint(claim, "train", 1)


def not_a_laboratory(engine: Engine) -> Any:
    database = Database(engine.database.url.render_as_string(hide_password=False), "public", patience=0)
    try:
        return Engine(database).reset_database()
    finally:
        database.close()


def swallowed_stop(engine: Engine) -> Any:
    start(engine, lambda run, _: run.step("train", lambda: 1), workflow_id="w-1")
    worker = engine.worker("worker")
    caught: list[BaseException] = []

    def function(run: Any, _: Any) -> None:
        worker.stop()
        try:
            run.step("train", lambda: 1)
        except BaseException as error:
            caught.append(error)
            raise

    worker.workflows = {NAME: function}
    assert worker.run_once() == "released"
    raise caught[0]


def other_key(run: Any) -> None:
    run.side_effect("pay", key="k", arguments=1)
    run.side_effect("pay", key="k", arguments=2)


# A message begins with a capital, or with the name of a statement or an action; one is the tutorial's own.
BEGINS = re.compile(r"[A-Z]|[a-z_]+( '.*')?( of workflow '.*')?: |tool committed before workflow acknowledgment$")

Provocation = tuple[str, Callable[[Engine], Any], list[str]]
# the error, how to provoke it, and what it must say: where it happened, and what to do next
PROVOKED: dict[str, Provocation] = {
    "unfaithful value": (
        "UnfaithfulValue",
        lambda e: e.create_workflow({"a": [{1}]}, workflow_id="w-1"),
        ["'w-1'", "$.a[0]", "return plain JSON values"],
    ),
    "name of the wrong type": ("BadName", lambda e: e.cancel_workflow(7), ["Workflow id", "int", "pass a text"]),  # type: ignore[arg-type]
    "name too long": ("BadName", lambda e: e.cancel_workflow("x" * 201), ["Workflow id", "201", "choose another"]),
    "name with NUL": ("BadName", lambda e: e.cancel_workflow("a\0b"), ["Workflow id", "'a\\x00b'", "choose another"]),
    "name of a schema": (
        "BadName",
        lambda e: Database("postgresql://x/y", "Ünï"),
        ["name 'Ünï'", "do not start with a digit"],
    ),
    "name of PostgreSQL's own": (
        "BadName",
        lambda e: Database("postgresql://x/y", "information_schema"),
        ["reserved for PostgreSQL", "Choose another"],
    ),
    "id twice in a batch": (
        "BadName",
        lambda e: e.create_workflows([1, 1], workflow_ids=["x", "x"]),
        ["batch", "give each workflow its own id"],
    ),
    "reserved step id": (
        "BadName",
        lambda e: DurableRunner("r", StepStore()).step("__effect__k", lambda: 1),
        ["'__effect__k'", "choose another id"],
    ),
    "unknown workflow": ("UnknownWorkflow", lambda e: e.cancel_workflow("w-0"), ["'w-0'", "list_workflows() shows"]),
    "id taken": ("IdTaken", taken, ["'w-1'", "choose another id"]),
    "already finished": ("AlreadyFinished", finished, ["'w-1'", "completed", "see get_workflow()"]),
    "event refused": (
        "EventRefused",
        refused_event,
        ["'w-1'", "'go'", "another payload came first", "see get_workflow()"],
    ),
    "event too late": ("EventRefused", late_event, ["'w-1'", "'go'", "cancelled", "see get_workflow()"]),
    "step failed": (
        "StepFailed",
        failed_step,
        ["'w-1'", "'train'", "division by zero", "Catch StepFailed to continue", "requeue"],
    ),
    "changed code": (
        "DeterminismError",
        changed_code,
        ["'w-1'", "step 'train'", "step 'fit'", "Deploy the code that started"],
    ),
    "same step twice": (
        "DuplicateStep",
        lambda e: raised_inside(e, lambda run: [run.step("s", lambda: 1) for _ in "ab"]),
        ["'w-1'", "step 's'", "Add a counter to the id"],
    ),
    "same step twice by hand": (
        "DuplicateStep",
        twice_by_hand,
        ["'w-1'", "call 2", "step 'train'", "Add a counter to the id"],
    ),
    "nested step": (
        "StepMisuse",
        lambda e: raised_inside(e, lambda run: run.step("a", lambda: run.step("b", lambda: 1)), Policy(max_attempts=1)),
        ["'w-1'", "step 'b' was called inside step 'a'", "call it before or after"],
    ),
    "async step": (
        "StepMisuse",
        lambda e: raised_inside(e, lambda run: run.step("a", asynchronous)),
        ["'w-1'", "step 'a'", "pass a plain function"],
    ),
    "async workflow": (
        "StepMisuse",
        lambda e: (deploy(e, asynchronous), e.worker("w")),
        [f"'{NAME}'", "pass a plain function"],
    ),
    "another action under a key": (
        "ActionMismatch",
        mismatched,
        ["'w-1'", "'k'", "give each planned action its own key"],
    ),
    "another action under a key in one run": (
        "ActionMismatch",
        lambda e: raised_inside(e, other_key),
        ["'w-1'", "'k'", "give each planned action its own key"],
    ),
    "tool refused": ("ToolRefused", refused_tool, ["pay", "nothing happened", "Fix the cause and requeue"]),
    "database away": ("DatabaseAway", away, ["127.0.0.1:1", "Nothing was sent; start it", "agentflow doctor"]),
    "database away while listening": ("DatabaseAway", away_listening, ["127.0.0.1:1", "start it"]),
    "connection lost": ("OutcomeUnknown", killed_connection, ["purpose", "may have been committed", "Issue it again"]),
    "schema missing": (
        "SchemaMissing",
        not_migrated,
        ["'never_migrated'", "Run `agentflow migrate --schema never_migrated`"],
    ),
    "statement refused": (
        "StatementRefused",
        refused_statement,
        ["list", "LIMIT must not be negative", "agentflow doctor"],
    ),
    "write refused": (
        "StatementRefused",
        refused_write,
        ["checkpoint 'train' of workflow 'w-1'", "the auditor says no", "Nothing was changed; fix what it names"],
    ),
    "setting out of range": (
        "BadSetting",
        lambda e: Policy(first_delay=-5),
        ["first_delay", "-5", "from 0.001 to 3,155,760,000", "choose another"],
    ),
    "rows changed by hand": ("AgentFlowError", counted_wrong, ["'w-1'", "should have 1", "has 0", "restore the rows"]),
    "not a laboratory": ("NotALaboratory", not_a_laboratory, ["'public'", "Nothing was deleted; use a schema made by"]),
    "lost lease": (
        "LostLease",
        stale,
        ["'w-1'", "checkpoint was refused because the row's token is 2, not 1", "Nothing was changed; stop"],
    ),
    "suspended": (
        "Suspend",
        lambda e: raised_inside(e, lambda run: run.wait_for_event("gate", "go")),
        ["'gate'", "'go'", "deliver that event"],
    ),
    "postponed": (
        "Postponed",
        lambda e: raised_inside(e, lambda run: run.step("s", lambda: 1 / 0)),
        ["Try 1 of 's'", "the next is due in"],
    ),
    "stopping": ("Stopping", swallowed_stop, ["let the run end", "another worker will continue"]),
    "crash": (
        "CrashInjected",
        lambda e: (e.create_workflow("x"), e.run_once("w", crash_after_tool_commit=True)),
        ["tool committed before workflow acknowledgment"],
    ),
}


async def asynchronous(run: Any = None, given: Any = None) -> None:
    pass


@pytest.mark.parametrize("name", PROVOKED)
def test_error_says_what_happened_where_and_what_to_do_next(engine: Engine, name: str) -> None:
    expected, provoke, said = PROVOKED[name]
    with pytest.raises(BaseException) as raised:
        provoke(engine)
    error = raised.value
    if expected == "StepMisuse" and isinstance(error, errors.StepFailed):  # the failure that was recorded
        assert error.error["type"] == expected
    else:
        assert type(error).__name__ == expected
    assert [part for part in said if part not in str(error)] == []
    assert BEGINS.match(str(error))


def test_every_error_class_is_provoked_by_a_test() -> None:
    here = {expected for expected, *_ in PROVOKED.values()}
    tests = "".join(file.read_text(encoding="utf-8") for file in (ROOT / "tests").rglob("test_*.py"))
    assert [name for name in set(CLASSES) - here if not re.search(rf"raises\((errors\.)?{name}\b", tests)] == []


def test_schema_of_a_newer_version_is_refused_with_what_to_do(schema: Callable[[], Database]) -> None:
    database = schema()
    migrate(database)
    with database.alchemy.connect() as connection:
        connection.exec_driver_sql(f"UPDATE \"{database.schema}\".schema_version SET version_num = '9999'")
    with pytest.raises(errors.SchemaTooNew, match=r"(?s)newer AgentFlow.*Nothing was changed; install that version"):
        migrate(database)


def test_failed_workflow_keeps_its_errors_next_step_in_the_row(engine: Engine) -> None:
    start(engine, lambda run, _: [run.step("s", lambda: 1) for _ in "ab"], workflow_id="w-1")
    assert turn(engine) == "failed"
    assert "Add a counter to the id" in workflow(engine, "w-1")["error"]["message"]


# -- names that people see


def modules() -> Iterator[ModuleType]:
    """Every module of the package, except the migrations' scripts and those that run when they are imported."""
    yield agentflow
    for found in pkgutil.walk_packages(agentflow.__path__, "agentflow."):
        if found.name.rpartition(".")[2] not in ("env", "__main__") and ".versions" not in found.name:
            yield importlib.import_module(found.name)


MODULES = {module.__name__: module for module in modules()}


def test_every_name_of_all_can_be_imported_and_is_said_once() -> None:
    assert [name for name in agentflow.__all__ if not hasattr(agentflow, name)] == []
    assert len(set(agentflow.__all__)) == len(agentflow.__all__)


def test_the_tutorials_names_are_found_where_its_reader_looks() -> None:
    methods = (
        "create_workflow get_workflow claim_workflow checkpoint create_action_intent execute_simulated_tool "
        "acknowledge_action advance_one_step run_once run_until_idle expire_lease run_competing_workers "
        "reliability_metrics write_reliability_report reset_database"
    )
    assert [name for name in methods.split() if not callable(getattr(Engine, name, None))] == []
    names = (
        "lease_guard mock_llm_classify mock_llm_plan log_event workflows action_intents tool_ledger Claim LostLease "
        "CrashInjected"
    )
    assert [name for name in names.split() if name not in agentflow.__all__] == []


@pytest.mark.parametrize("name", MODULES)
def test_module_and_everything_public_in_it_says_in_a_docstring_what_it_is(name: str) -> None:
    module = MODULES[name]
    tree = ast.parse(inspect.getsource(module))
    bare = [] if ast.get_docstring(tree) else [name]
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            bare += [node.name] * (ast.get_docstring(node) is None)
            bare += [f"{node.name}.{method}" for method in undocumented(node.body)]
    bare += undocumented(tree.body)
    assert bare == []


def undocumented(body: list[ast.stmt]) -> list[str]:
    functions = [node for node in body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    return [node.name for node in functions if not node.name.startswith("_") and ast.get_docstring(node) is None]


def test_migration_scripts_say_what_they_make() -> None:
    scripts = sorted((ROOT / "agentflow" / "migrations" / "versions").glob("[0-9]*.py"))
    assert scripts
    assert [
        script.name for script in scripts if not ast.get_docstring(ast.parse(script.read_text(encoding="utf-8")))
    ] == []


def test_every_public_signature_is_typed() -> None:
    def untyped(function: Any) -> bool:
        hints = inspect.signature(function)
        missing = [p for p in hints.parameters.values() if p.annotation is p.empty and p.name not in ("self", "cls")]
        return bool(missing) or (hints.return_annotation is inspect.Signature.empty and function.__name__ != "__init__")

    found = []
    for module in MODULES.values():
        for name, value in vars(module).items():
            if getattr(value, "__module__", None) != module.__name__ or name.startswith("_"):
                continue
            if inspect.isfunction(value):
                found += [f"{module.__name__}.{name}"] * untyped(value)
            elif inspect.isclass(value):
                own = [v for n, v in vars(value).items() if inspect.isfunction(v) and not n.startswith("_")]
                found += [f"{module.__name__}.{name}.{method.__name__}" for method in own if untyped(method)]
    assert found == []


def test_models_options_are_explained() -> None:
    assert inspect.getdoc(StandInModel)
    options = [name for name in inspect.signature(StandInModel).parameters if name != "seed"]
    assert [name for name in options if name not in (inspect.getdoc(StandInModel) or "")] == []
