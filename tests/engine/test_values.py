"""A value is refused by name before anything is written, or it comes back exactly. Nothing in between."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import decimal
import enum
import json
import math
import pathlib
import uuid
from collections.abc import Callable
from typing import Any

import numpy
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from agentflow import Engine, StepStore
from agentflow.errors import BadName, UnfaithfulValue
from agentflow.model import ToolCall
from agentflow.values import MAX_DEPTH, MAX_VALUE_BYTES, check_name, fingerprint, to_json
from tests.support.runs import NAME, counts, crash, deploy, effects, settle, start, steps, turn, workflow


class Colour(enum.Enum):
    RED = "red"


class Level(enum.IntEnum):
    LOW = 1


class Text(str):
    pass


class Number(int):
    pass


class Items(list[Any]):
    pass


class Table(dict[str, Any]):
    pass


@dataclasses.dataclass
class Point:
    x: int = 1


class Unspeakable:
    """Nothing about it can be shown."""

    def __repr__(self) -> str:
        raise ZeroDivisionError("repr")

    __str__ = __repr__


def looped() -> list[Any]:
    value: list[Any] = []
    value.append(value)
    return value


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


# what is refused, and the path that the error names
UNFAITHFUL: dict[str, tuple[Any, str]] = {
    "nul": ("a\0b", "$"),
    "nul in a list": ({"k": ["\0"]}, "$.k[0]"),
    "nul as a key": ({"\0": 1}, "$.'\\x00'"),
    "lone surrogate": (["\ud800"], "$[0]"),
    "surrogate as a key": ({"\udfff": 1}, "$.'\\udfff'"),
    # in New York PostgreSQL would silently store it as 03:30
    "naive datetime, an hour that New York does not have": ([datetime.datetime(2026, 3, 8, 2, 30)], "$[0]"),
    "nan": ({"loss": math.nan}, "$.loss"),
    "infinities": ([1.0, math.inf, -math.inf], "$[1]"),
    "numpy nan": (numpy.float64("nan"), "$"),
    "numpy float": ({"loss": numpy.float64(0.5)}, "$.loss"),
    "numpy int": ([numpy.int64(5)], "$[0]"),
    "numpy bool": (numpy.bool_(True), "$"),
    "numpy array": ({"a": {"b": numpy.array([1, 2])}}, "$.a.b"),
    "datetime": ({"at": datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)}, "$.at"),
    "date": (datetime.date(2026, 1, 1), "$"),
    "decimal": (decimal.Decimal("0.1"), "$"),
    "set": ({1}, "$"),
    "bytes": ([b"x"], "$[0]"),
    "uuid": (uuid.UUID(int=1), "$"),
    "path": (pathlib.PurePosixPath("x"), "$"),
    "enum": ({"colour": Colour.RED}, "$.colour"),
    "int enum": (Level.LOW, "$"),
    "dataclass": (Point(), "$"),
    "tuple": ({"pair": (1, 2)}, "$.pair"),
    "text subclass": (Text("x"), "$"),
    "int subclass": ([Number(1)], "$[0]"),
    "list subclass": (Items([1]), "$"),
    "dict subclass": (Table(a=1), "$"),
    "key of a text subclass": ({Text("a"): 1}, "$"),
    "int keys": ({"ids": {1: "a"}}, "$.ids"),
    "bool keys": ({True: "a"}, "$"),
    "None as a key": ({None: "a"}, "$"),
    "tuple as a key": ({(1, 2): "a"}, "$"),
    "unspeakable": ([Unspeakable()], "$[0]"),
    "unspeakable key": ({Unspeakable(): 1}, "$"),
    "function": (len, "$"),
    "complex": (1j, "$"),
    "generator": ((x for x in "ab"), "$"),
    "circular": (looped(), "$[0][0]"),
    "too deep": (nested(MAX_DEPTH + 1), "$[0][0]"),
    "too large an integer": ({"n": 10**5000}, "$.n"),
    "too long": ("x" * (MAX_VALUE_BYTES + 1), "$"),
}
AT_A_DOOR = "nul in a list"  # all were tried at the gate: to_json(), which every door of the engine asks


def text_of(value: Any) -> str:
    """A text that differs whenever type, content or order of keys differ."""
    return json.dumps(value, ensure_ascii=False)


# -- what is refused


@pytest.mark.parametrize("name", UNFAITHFUL)
def test_unfaithful_value_is_refused_with_workflow_step_and_path(name: str) -> None:
    value, path = UNFAITHFUL[name]
    with pytest.raises(UnfaithfulValue) as refused:
        to_json(value, workflow="w-1", step="train")
    assert (refused.value.workflow, refused.value.step) == ("w-1", "train")
    assert refused.value.path.startswith(path)
    assert all(part in str(refused.value) for part in ("'w-1'", "'train'", f"path {path}", "Nothing was written"))


def test_unfaithful_step_value_fails_the_workflow_once_and_the_worker_lives(engine: Engine) -> None:
    value, path = UNFAITHFUL[AT_A_DOOR]
    computed: list[str] = []
    workflow_id = start(engine, lambda run, _: run.step("train", lambda: computed.append("once") or value))
    good = engine.create_workflow("hello")["id"]
    assert engine.worker("worker").run_until_idle() == 1
    row = workflow(engine, workflow_id)
    assert (row["status"], computed) == ("failed", ["once"])
    assert all(part in row["error"]["message"] for part in (workflow_id, "'train'", f"path {path}"))
    assert [(step["value"], step["error"]["type"]) for step in steps(engine, workflow_id)] == [
        (None, "UnfaithfulValue")
    ]
    assert workflow(engine, good)["status"] == "completed"


@pytest.mark.parametrize("door", ["input", "event"])
def test_unfaithful_value_is_refused_from_outside_before_anything_is_written(engine: Engine, door: str) -> None:
    value, path = UNFAITHFUL[AT_A_DOOR]
    start(engine, lambda run, _: None, workflow_id="w-1")
    doors: dict[str, Callable[[], Any]] = {
        "input": lambda: engine.create_workflow(value, name=NAME, workflow_id="w-2"),
        "event": lambda: engine.deliver_event("w-1", "go", value),
    }
    before = counts(engine)
    with pytest.raises(UnfaithfulValue) as refused:
        doors[door]()
    assert refused.value.path.startswith(path)
    assert counts(engine) == before
    assert workflow(engine, "w-1")["events"] == {}


@pytest.mark.parametrize("door", ["result", "arguments", "tool result"])
def test_unfaithful_value_is_refused_inside_a_workflow_and_nothing_of_it_is_written(engine: Engine, door: str) -> None:
    value, path = UNFAITHFUL[AT_A_DOOR]
    seen: list[UnfaithfulValue] = []

    def through(run: Any, _: Any) -> Any:
        try:
            if door == "arguments":
                run.side_effect("pay", key="k", arguments=value)
            elif door == "tool result":
                run.side_effect("pay", key="k", tool=lambda call: engine.world(call) and value)
        except UnfaithfulValue as error:
            seen.append(error)
            raise
        return value

    workflow_id = start(engine, through)
    assert turn(engine) == "failed"
    row = workflow(engine, workflow_id)
    assert row["error"]["type"] == "UnfaithfulValue"
    assert f"path {path}" in row["error"]["message"]
    assert (row["result"], steps(engine, workflow_id)) == (None, [])
    found = counts(engine)
    assert found["{s}.action_intents"] == found["{w}.tool_ledger"] == (door == "tool result")
    assert [(e.workflow, e.step) for e in seen] == ([] if door == "result" else [(workflow_id, "k")])


def test_workflow_whose_tools_answer_cannot_be_kept_does_not_complete_by_swallowing_that(engine: Engine) -> None:
    def swallows(run: Any, _: Any) -> str:
        with contextlib.suppress(UnfaithfulValue):
            run.side_effect("pay", key="k", tool=lambda call: engine.world(call) and math.nan)
        return "done"

    workflow_id = start(engine, swallows)
    assert turn(engine) == "failed"
    assert [action["status"] for action in engine.get_workflow(workflow_id)["actions"]] == ["PENDING"]  # type: ignore[index]
    assert len(effects(engine)) == 1


def test_one_bad_item_of_a_hundred_refuses_the_batch_with_its_index(engine: Engine) -> None:
    before = counts(engine)
    requests: list[Any] = [f"request {n}" for n in range(100)]
    requests[57] = {"k": ["\0"]}
    with pytest.raises(UnfaithfulValue, match=r"path \$\.k\[0\]") as refused:
        engine.create_workflows(requests)
    assert refused.value.__notes__ == ["This is item 57 of 100; none was created."]
    assert counts(engine) == before
    requests[57] = "mended"
    assert len(engine.create_workflows(requests)) == 100
    assert engine.worker("worker").run_until_idle() == 100


@pytest.mark.parametrize("bad", ["\ud800", "a\0b", "", "x" * 201, b"bytes", None, 7, Text("x")])
def test_bad_name_is_refused_before_a_transaction_opens(engine: Engine, bad: Any) -> None:
    workflow_id = start(engine, lambda run, _: None, workflow_id="w-1")
    boundaries: list[Any] = []
    watched = engine.with_hook(boundaries.append)
    before = counts(engine)
    doors: list[Callable[[], Any]] = [
        lambda: watched.create_workflow("x", name=bad),
        lambda: watched.create_workflows(["x"], workflow_ids=["" if bad is None else bad]),
        lambda: watched.claim_workflow(bad),
        lambda: watched.deliver_event(bad, "go"),
        lambda: watched.deliver_event(workflow_id, "x" * 10_001 if bad == "x" * 201 else bad),
        lambda: watched.cancel_workflow(bad),
        lambda: watched.requeue_workflow(bad),
        lambda: watched.expire_lease(bad),
        lambda: watched.get_workflow(bad),
        lambda: watched.history(bad),
        lambda: watched.list_workflows(prefix="\0" if bad in ("", None) else bad),
    ]
    for door in doors:
        with pytest.raises(BadName):
            door()
    assert boundaries == []
    assert counts(engine) == before


@pytest.mark.parametrize("bad", ["\ud800", "a\0b", "", "x" * 201, b"bytes", None])
def test_bad_step_id_action_key_or_event_name_fails_one_workflow_in_words(engine: Engine, bad: Any) -> None:
    event = "x" * 10_001 if bad == "x" * 201 else bad
    calls: list[Callable[[Any], Any]] = [
        lambda run: run.step(bad, lambda: 1),
        lambda run: run.side_effect("pay", key=bad),
        lambda run: run.side_effect(bad, key="k"),
        lambda run: run.wait_for_event(bad, "go"),
        lambda run: run.wait_for_event("gate", event),
    ]
    for call in calls:
        workflow_id = start(engine, lambda run, _, call=call: call(run))
        assert turn(engine) == "failed"
        assert workflow(engine, workflow_id)["error"]["type"] == "BadName"
    assert (effects(engine), counts(engine)["{s}.steps"], counts(engine)["{s}.action_intents"]) == ([], 0, 0)


# -- what survives

EXACT: dict[str, Any] = {
    "none": None,
    "true": True,
    "one": 1,
    "one as a float": 1.0,
    "minus zero": -0.0,
    "1e22": 1e22,
    "1e16": 1e16,
    "smallest": 5e-324,
    "largest": 1.7976931348623157e308,
    "a third": 1 / 3,
    "beyond 64 bits": [2**63, -(2**64), 10**400],
    "order of keys": {"zz": 1, "a": 2, "é": {"b": 1, "aa": 2}},
    "emoji": {"👩‍👩‍👧": "🏳️‍🌈 \U0010ffff"},
    "two normal forms": ["é", "e\u0301", "\u2028\u2029\ufeff"],
    "control characters": "\x01\x1f\x7f\r\n\t\\\"'",
    "looks like JSON": ['{"a":1}', "null", "\\u0000", "%(p_id)s", "{s}"],
    "empty": [{}, [], "", {"": ""}],
    "deep": nested(MAX_DEPTH),
    "eight thousand bytes": "é" * 4_000,
}


def carried_everywhere(engine: Engine, value: Any) -> dict[str, list[str]]:
    """The value went through every door, was seen by two workers, and was read back; what was seen at each door."""
    expected, seen = text_of(value), {"step": [], "input": [], "event": [], "tool": [], "arguments": []}  # type: ignore[var-annotated]

    def tool(call: ToolCall) -> Any:
        seen["arguments"].append(text_of(call.arguments))
        return value

    def through(run: Any, given: Any) -> Any:
        seen["input"].append(text_of(given))
        seen["step"].append(text_of(run.step("step", lambda: value)))
        seen["event"].append(text_of(run.wait_for_event("gate", "go")))
        seen["tool"].append(text_of(run.side_effect("act", key="k", tool=tool, arguments=value)))
        run.step("last", lambda: None)
        return value

    workflow_id = start(engine, through, value)
    engine.deliver_event(workflow_id, "go", value)
    engine.deliver_event(workflow_id, "go", json.loads(expected))
    crash(engine, "checkpoint", "before", "last")
    row = settle(engine, workflow_id)
    shown = engine.get_workflow(workflow_id) or {}
    assert row["status"] == "completed", row["error"]
    seen["result"] = [text_of(row["result"]), text_of(shown["result"])]
    seen["shown"] = [text_of(shown["request"]), text_of(shown["events"]["go"])]
    seen["stored"] = [text_of(step["value"]) for step in steps(engine, workflow_id)[:3]]
    return seen


def check_everywhere(engine: Engine, value: Any) -> None:
    seen = carried_everywhere(engine, value)
    assert [len(seen[door]) for door in ("input", "step", "event", "tool", "arguments")] == [2, 2, 2, 2, 1]
    assert {text for texts in seen.values() for text in texts} == {text_of(value)}


@pytest.mark.parametrize("name", EXACT)
def test_value_survives_every_door_and_a_replay_exactly(engine: Engine, name: str) -> None:
    check_everywhere(engine, EXACT[name])


TEXTS = st.text(st.characters(exclude_characters="\0", exclude_categories=("Cs",)))
FAITHFUL = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=12,
)
POISON = st.sampled_from(
    [value for name, (value, _) in UNFAITHFUL.items() if name not in ("too long", "too deep", "circular")]
)
ONE_AT_A_TIME = settings(
    max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)


@ONE_AT_A_TIME
@given(value=FAITHFUL)
@example(value={"b": [-0.0, 1e22, 2**70], "a": "\U0001f600"})
def test_any_faithful_value_survives_every_door_and_a_replay_exactly(engine: Engine, value: Any) -> None:
    check_everywhere(engine, value)


@ONE_AT_A_TIME
@given(poison=POISON, around=st.lists(st.one_of(TEXTS, st.integers(0, 3)), max_size=6), beside=FAITHFUL)
def test_any_value_that_holds_an_unfaithful_one_is_refused_at_its_path_and_writes_nothing(
    engine: Engine, poison: Any, around: list[Any], beside: Any
) -> None:
    value, path = poison, ""
    for layer in around:
        if isinstance(layer, str):
            value, path = {"beside": beside, layer + "!": value}, f".{(layer + '!')[:80]}{path}"
        else:
            value, path = [beside] * layer + [value], f"[{layer}]{path}"
    before = counts(engine)
    with pytest.raises(UnfaithfulValue) as refused:
        engine.create_workflow(value, workflow_id="w-1")
    assert (refused.value.workflow, refused.value.step) == ("w-1", "input")
    assert refused.value.path.startswith("$" + path)
    assert counts(engine) == before


@settings(max_examples=200, deadline=None)
@given(value=FAITHFUL)
def test_store_in_memory_gives_back_exactly_what_it_was_given(value: Any) -> None:
    store = StepStore()
    store.put("run", "step", value)
    assert text_of(store.get("run", "step")[1]) == text_of(value)
    assert text_of(StepStore.restore(store.snapshot()).get("run", "step")[1]) == text_of(value)


def test_none_is_a_result_like_any_other(engine: Engine) -> None:
    computed: list[str] = []
    workflow_id = start(engine, lambda run, _: run.step("nothing", lambda: computed.append("ran")))
    crash(engine, "complete", "before")
    assert settle(engine, workflow_id)["status"] == "completed"
    assert computed == ["ran"]
    assert (workflow(engine, workflow_id)["result"], workflow(engine, workflow_id)["completed_at"] is None) == (
        None,
        False,
    )


def test_event_with_no_payload_ends_the_wait(engine: Engine) -> None:
    workflow_id = start(engine, lambda run, _: [run.wait_for_event("gate", "go")])
    assert turn(engine) == "waiting"
    engine.deliver_event(workflow_id, "go")
    assert settle(engine, workflow_id)["result"] == [None]


# -- the first run sees what a replay sees


def test_step_value_that_is_changed_afterwards_stays_as_it_was_recorded(engine: Engine) -> None:
    kept: list[int] = [1]
    seen: list[Any] = []

    def through(run: Any, _: Any) -> Any:
        value = run.step("list", lambda: kept)
        kept.append(len(kept) + 1)
        seen.append(list(value))
        value.append("mine")
        return run.step("last", lambda: value)

    workflow_id = start(engine, through)
    crash(engine, "checkpoint", "before", "last")
    assert settle(engine, workflow_id)["result"] == [1, "mine"]
    assert seen == [[1], [1]]


@pytest.mark.parametrize("lost_at", [None, ("tool", "after"), ("checkpoint", "before", "last")])
def test_tool_that_changes_its_arguments_changes_nothing_for_the_workflow(engine: Engine, lost_at: Any) -> None:
    seen: list[Any] = []

    def tool(call: ToolCall) -> Any:
        seen.append(dict(call.arguments))
        return call.arguments.pop("amount")

    def through(run: Any, _: Any) -> Any:
        arguments = {"amount": 5}
        run.side_effect("pay", key="k", tool=tool, arguments=arguments)
        return run.step("last", lambda: arguments)

    workflow_id = start(engine, through)
    if lost_at:
        crash(engine, *lost_at)
    assert settle(engine, workflow_id)["result"] == {"amount": 5}
    assert seen == [{"amount": 5}] * (2 if lost_at == ("tool", "after") else 1)


# -- sizes


def test_value_of_exactly_the_limit_is_kept_and_one_byte_more_is_refused(engine: Engine) -> None:
    longest = "x" * (MAX_VALUE_BYTES - 2)
    assert len(to_json(longest, workflow="w", step="s")) == MAX_VALUE_BYTES
    with pytest.raises(UnfaithfulValue, match="limit of 16,777,216"):
        to_json(longest + "x", workflow="w", step="s")
    workflow_id = start(engine, lambda run, _: len(run.step("large", lambda: longest)))
    assert settle(engine, workflow_id)["result"] == len(longest)


def test_limit_counts_bytes_not_characters() -> None:
    with pytest.raises(UnfaithfulValue, match="limit of 16,777,216"):
        to_json("é" * (MAX_VALUE_BYTES // 2), workflow="w", step="s")


def test_step_result_of_20_megabytes_is_refused_once_and_the_next_workflow_runs(engine: Engine) -> None:
    workflow_id = start(engine, lambda run, _: run.step("large", lambda: "x" * 20_000_000))
    good = engine.create_workflow("hello")["id"]
    assert engine.worker("worker").run_until_idle() == 1
    assert "20,000,002 bytes" in workflow(engine, workflow_id)["error"]["message"]
    assert workflow(engine, good)["status"] == "completed"


def test_path_of_a_value_under_long_keys_stays_short() -> None:
    value: Any = math.nan
    for _ in range(100):
        value = {"k" * 100_000: value}
    with pytest.raises(UnfaithfulValue) as refused:
        to_json(value, workflow="w", step="s")
    assert len(refused.value.path) < 10_000


def test_event_of_8000_bytes_with_a_name_of_8000_bytes_wakes_500_workflows(engine: Engine) -> None:
    name, payload = "n" * 8_000, "p" * 8_000
    deploy(engine, lambda run, _: len(run.wait_for_event("gate", name)))
    ids = engine.create_workflows([None] * 500, name=NAME)
    worker = engine.worker("worker")
    assert [worker.run_once() for _ in ids] == ["waiting"] * 500
    for workflow_id in ids:
        engine.deliver_event(workflow_id, name, payload)
    assert worker.run_until_idle() == 500
    assert {workflow(engine, i)["result"] for i in ids[::50]} == {8_000}


# -- the parts


def test_fingerprint_tells_types_apart_and_not_the_order_of_keys() -> None:
    def same(a: Any, b: Any) -> bool:
        return fingerprint(a, workflow="w", step="s") == fingerprint(b, workflow="w", step="s")

    assert same({"a": 1, "b": [2]}, {"b": [2], "a": 1})
    assert not any(
        same(a, b) for a, b in ((1, 1.0), (1, True), (0, False), (None, "null"), (0.0, -0.0), ([1], {"0": 1}))
    )


@pytest.mark.parametrize(
    "name", ["user:1_", "50%", "\\", "'", '"; DROP TABLE', "Ünï 👩‍👩‍👧", "x" * 200, " ", "%s", "{s}"]
)
def test_any_other_text_is_a_good_name(name: str) -> None:
    assert check_name("workflow id", name) == name
