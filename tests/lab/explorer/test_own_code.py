"""Tools and invariants of one's own are explored: the learner's own function bodies, put back for every state."""

from __future__ import annotations

import json
import os
import random
import secrets
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from agentflow import Database, Engine, ToolRefused
from agentflow.errors import BadSchedule, UnfaithfulValue
from agentflow.lab.explorer.explore import ExplorerError, explore
from agentflow.lab.explorer.report import Exploration
from agentflow.lab.schedule.grammar import Schedule
from agentflow.lab.verify.snapshot import Rows
from agentflow.model import ToolCall
from agentflow.tools import SimulatedTool
from tests.support.orders import order

SMALL = {"crashes": 1, "expiries": 1, "lost_replies": 1}
TINY = {"crashes": 1, "expiries": 1, "lost_replies": 0}
ONE_EFFECT = "one effect per action"


@dataclass
class Provider:
    """A provider with a table of its own, which tells, and can be put back. `keyed`: it keeps its keys."""

    keyed: bool = True
    rows: list[list[Any]] = field(default_factory=list)

    def __call__(self, call: ToolCall) -> Any:
        """Charges; the same key again charges nothing, and is answered otherwise."""
        if self.keyed and call.idempotency_key in [row[0] or "no key" for row in self.rows]:
            return {"charged": "before"}
        self.rows.append([call.idempotency_key, call.action, call.workflow_id])
        return {"charged": call.arguments}

    def effects(self) -> Any:
        """What it did."""
        return [tuple(row) for row in self.rows]

    def snapshot(self) -> Any:
        """Its table."""
        return self.rows

    def restore(self, state: Any) -> None:
        """Its table as it was then."""
        self.rows = [list(row) for row in state]


class Silent(Provider):
    """Does not tell what it did: its snapshot does."""

    effects = None  # type: ignore[assignment]

    def __getattribute__(self, name: str) -> Any:
        if name == "effects":
            raise AttributeError(name)
        return super().__getattribute__(name)


@pytest.fixture
def explored(url: str) -> Iterator[Callable[..., Exploration]]:
    """Explores a function on the real engine, with an input of its own."""
    engine = Engine(Database(url, "unused"))

    def run(function: Any = order, inputs: Any = ({"total": 300},), **options: Any) -> Exploration:
        return explore(engine, workflow=function, inputs=list(inputs), **{**SMALL, **options})

    yield run
    engine.close()


def harm(found: Exploration) -> tuple[str, str]:
    """The invariant that fell, and the moves that lead there."""
    assert found.verdict == "harm", found
    return found.findings[0].invariant, str(Schedule(moves=found.findings[0].schedule.moves))


# -- tools that can be put back ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [Provider, Silent])
def test_a_tool_that_keeps_its_keys_is_explored_for_every_state_and_put_back(explored: Any, kind: Any) -> None:
    tool = kind(rows=[["old", "charge", "long ago"]])
    found, whole = (explored(tool=tool, reduce=reduce, **TINY) for reduce in (True, False))
    assert found.ok and found.ends == whole.ends and found.ends["completed"], found
    assert tool.rows == [["old", "charge", "long ago"]]
    (name, times), *none = found.ran["tools"].items()
    assert name.endswith(f":{kind.__name__}") and times > 5 and not none and found.ran["as_if"] == []


def test_a_provider_elsewhere_is_as_it_was_also_if_the_search_is_stopped(explored: Any, tmp_path: Path) -> None:
    """What the explorer's process did to memory is gone with it; a file stays."""

    class InAFile(Provider):
        rows = property(lambda self: json.loads(file.read_text()), lambda self, rows: self.write(rows))  # type: ignore

        def write(self, rows: Any) -> None:
            file.write_text(json.dumps(rows))

        def __call__(self, call: ToolCall) -> Any:
            self.write([*self.rows, [call.idempotency_key, call.action, call.workflow_id]])

    def spins(run: Any, given: Any) -> Any:
        return run.side_effect("charge", key="charge") or run.step("turn", lambda: os._exit(3))

    file, before = tmp_path / "rows", [["old", "charge", "long ago"]]
    tool = InAFile(rows=before)
    assert harm(explored(tool=tool, **TINY))[0] == ONE_EFFECT and tool.rows == before
    with pytest.raises(ExplorerError, match="ended with exit code 3"):
        explored(spins, tool=tool, **TINY)
    assert tool.rows == before


@pytest.mark.parametrize("kind", [Provider, Silent])
def test_a_tool_that_ignores_its_keys_doubles_an_effect(explored: Any, kind: Any) -> None:
    found = explored(tool=kind(keyed=False), expiries=0, workers=1)
    assert harm(found) == (ONE_EFFECT, "A*3 A/ A due A*2")
    assert "effect 2 of action 'charge', of which 1 was planned" in str(found.findings[0])
    assert harm(explored(tool=kind(keyed=False), **TINY)) == (ONE_EFFECT, "A*4 expire B*2")


def test_the_engine_without_a_guard_and_a_good_tool_is_found_too(explored: Any) -> None:
    assert harm(explored(tool=Provider(), without=["idempotency_key"], **TINY))[0] == ONE_EFFECT


def test_a_tool_without_an_effect_is_found(explored: Any) -> None:
    class Nothing(Provider):
        def __call__(self, call: ToolCall) -> Any:
            return {"charged": 0}

    found = explored(tool=Nothing(), **TINY)
    assert harm(found)[0] == "completed means done" and "has no effect although" in str(found.findings[0])


def test_what_a_tool_did_before_it_failed_is_seen(explored: Any) -> None:
    """Nobody hears an answer, and the engine asks again: with the key, nothing is doubled."""

    @dataclass
    class Breaks(Provider):
        def __call__(self, call: ToolCall) -> Any:
            known = len(self.rows)
            answer = super().__call__(call)
            if len(self.rows) > known:
                raise ConnectionError("reset by peer")
            return answer

    assert explored(tool=Breaks(), **TINY).ok


def test_a_refusal_is_a_refusal(explored: Any) -> None:
    def never(call: ToolCall) -> Any:
        raise ToolRefused("no money")

    class Never(Provider):
        __call__ = staticmethod(never)  # type: ignore[assignment]

    for tool in (never, Never()):
        found = explored(tool=tool, expect="failed", **TINY)
        assert found.ok and "As expected, the workflow fails: StepFailed." in found.about, found


def test_two_tools_in_one_workflow_have_two_states(explored: Any) -> None:
    bank, shop, careless = Provider(), Provider(), Provider(keyed=False)

    def both(run: Any, given: Any, second: Any = shop) -> Any:
        run.side_effect("charge", key="charge", tool=bank)
        return run.side_effect("ship", key="ship", tool=second)

    found = explored(both, **TINY)
    assert found.ok and len(found.ran["tools"]) == 2 and not bank.rows and not shop.rows
    assert all(times > 1 for times in found.ran["tools"].values())
    assert harm(explored(both_with(bank, careless), **TINY))[0] == ONE_EFFECT


def both_with(first: Any, second: Any) -> Any:
    """A workflow that charges with one tool, and ships with another."""

    def both(run: Any, given: Any) -> Any:
        run.side_effect("charge", key="charge", tool=first)
        return run.side_effect("ship", key="ship", tool=second)

    return both


def test_a_world_is_asked_by_key_in_the_state_in_which_it_is(explored: Any) -> None:
    class LooksUp(Provider):
        asked = 0

        def look_up(self, key: str) -> Any:
            return any(row[0] == key for row in self.rows), {"charged": "before"}

    found = explored(tool=LooksUp(keyed=False), retry="look_up", **TINY)
    assert harm(found) == (ONE_EFFECT, "A*3 expire B A B"), "B has asked before A acts"
    assert explored(tool=LooksUp(), retry="look_up", **TINY).ok


# -- tools that cannot -------------------------------------------------------------------------------------------------


def test_any_other_tool_is_explored_as_if_it_kept_its_keys(explored: Any, tmp_path: Path) -> None:
    calls = tmp_path / "calls"

    def charge(call: ToolCall) -> Any:
        with calls.open("a") as file:
            file.write(f"{call.idempotency_key}\n")
        return {"charged": call.arguments}

    found = explored(tool=charge, **TINY)
    assert found.ok and calls.read_text() == "request-1:charge\n"
    name = f"{__name__}:test_any_other_tool_is_explored_as_if_it_kept_its_keys.<locals>.charge"
    assert found.ran["tools"] == {name: 1} and found.ran["as_if"] == [name]
    assert f"{name} was explored as if your tool kept its keys: it offers no snapshot() and restore(state)." in str(
        found
    )
    assert found.to_dict()["bodies_run"] == json.loads(json.dumps(found.ran))
    assert harm(explored(tool=charge, without=["idempotency_key"], **TINY))[0] == ONE_EFFECT
    assert harm(explored(tool=charge, forgettings=1, **TINY))[0] == ONE_EFFECT


@pytest.mark.parametrize("how", ["lambda", "partial", "method"])
def test_a_tool_that_is_made_anew_in_each_run_is_the_same(explored: Any, how: str) -> None:
    def mine(run: Any, given: Any) -> Any:
        tool = {"lambda": lambda call: given, "partial": partial(lambda call, to: to, to=given), "method": given.get}
        if how == "method":
            return run.side_effect("charge", key="charge", tool=lambda call: tool["method"]("total"))
        return run.side_effect("charge", key="charge", tool=tool[how])

    assert explored(mine, **TINY).ok


def test_the_simulated_tool_named_by_a_side_effect_is_simulated(explored: Any, url: str) -> None:
    other = SimulatedTool(Database(url, "nowhere"), answers={"charge": 7})

    def mine(run: Any, given: Any) -> Any:
        return run.step("seven", lambda: run.side_effect and 7) + run.side_effect("charge", key="c", tool=other)

    assert explored(mine, **TINY).ok


@pytest.mark.long
def test_a_tool_whose_answer_never_comes_certifies_nothing_and_says_why(explored: Any) -> None:
    def down(call: ToolCall) -> Any:
        raise ConnectionError("the provider is away")

    found = explored(tool=down, **TINY)
    assert (
        not found.ok
        and "request-1 is never done, whoever works on it: ConnectionError: the provider is" in found.problem
    )
    assert "give your tool snapshot() and restore(), so that it is really asked again" in found.problem


# -- what acts unseen --------------------------------------------------------------------------------------------------


def test_an_effect_hidden_in_a_step_is_found_with_its_shortest_schedule(explored: Any) -> None:
    careless, careful = Provider(keyed=False), Provider()

    def hidden_in(bank: Provider) -> Any:
        def hidden(run: Any, given: Any) -> Any:
            run.step("pay", lambda: bank(ToolCall("order-7", "pay", 1, "order-7")))
            return run.side_effect("mail", key="mail")

        return hidden

    found = explored(hidden_in(careless), tool=careless, **TINY)
    assert harm(found) == (ONE_EFFECT, "A expire B")
    assert "request-1: effect 2 of action 'pay', which nobody planned" in str(found.findings[0]) and not careless.rows
    assert not explored(hidden_in(careful), tool=careful, **TINY).findings, "its key protects it"


def a_hidden(bank: Any, key: Any = None) -> Any:
    """A workflow with a step that calls the provider by stealth."""

    def hidden(run: Any, given: Any) -> Any:
        run.step("pay", lambda: bank(ToolCall(key, "pay", 1, run.run_id)))
        return run.side_effect("mail", key="mail")

    return hidden


def plain(file: Path) -> Any:
    """A tool that keeps no keys, writes into a file and tells, and cannot be put back."""

    def bank(call: ToolCall) -> Any:
        rows = [*json.loads(file.read_text()), [call.idempotency_key, call.action, call.workflow_id]]
        file.write_text(json.dumps(rows))

    vars(bank)["effects"] = lambda: json.loads(file.read_text())
    file.write_text('[["old", "pay", "long ago"]]')
    return bank


def test_an_effect_hidden_in_a_step_from_a_plain_tool_is_counted_and_certifies_nothing(
    explored: Any, tmp_path: Path
) -> None:
    bank = plain(tmp_path / "rows")
    found = explored(a_hidden(bank), tool=bank, **TINY)
    hidden = sum(row[1] == "pay" for row in bank.effects()) - 1
    assert not found.ok and found.verdict == "unknown" and hidden > 1
    assert (
        f"Not certified: {hidden} effects of action 'pay' in {__name__}:plain.<locals>.bank came from" in found.problem
    )
    assert "'mail'" not in found.problem and "Make each a side effect, and explore again." in found.problem
    honest = explored(tool=bank, **TINY)
    assert honest.ok and honest.about == "", honest


def test_a_hidden_call_that_a_key_protects_is_counted_also_when_its_effect_was_there_before(explored: Any) -> None:
    rows = {"order-7": 1}

    def bank(call: ToolCall) -> Any:
        rows[str(call.idempotency_key)] = rows.get(str(call.idempotency_key), 0) + 1

    def tells() -> Any:
        return [
            (key, "pay" if key == "order-7" else key.partition(":")[2], "request-1", times)
            for key, times in rows.items()
        ]

    vars(bank)["effects"] = tells
    found = explored(a_hidden(bank, "order-7"), tool=bank, **TINY)
    assert not found.ok and "calls of action 'pay' in" in found.problem, found
    assert "effect of" not in found.problem and "bank for what had been done before came from" in found.problem
    assert explored(tool=bank, **TINY).ok


def test_a_plain_tool_that_does_not_tell_was_not_looked_at_in_steps(explored: Any) -> None:
    found = explored(tool=lambda call: 1, **TINY)
    assert found.ok and "was not looked at (not observed): it offers no effects()." in found.lines()[0], found


def test_effects_of_a_plain_tool_that_raises_is_named_before_and_after(explored: Any) -> None:
    for late in (False, True):
        called: list[Any] = []

        def bank(call: ToolCall, called: list[Any] = called) -> Any:
            called.append(call)

        def tells(called: list[Any] = called, late: bool = late) -> Any:
            if called or not late:
                raise OSError("books are locked")
            return []

        vars(bank)["effects"] = tells
        with pytest.raises(ExplorerError, match=r"bank\.effects\(\) raised OSError: books are locked\. Fix it, and"):
            explored(tool=bank, **TINY)


def test_one_effect_under_a_key_of_its_own_hidden_in_a_step_certifies_nothing(explored: Any) -> None:
    bank = Provider()
    found = explored(a_hidden(bank, "order-7"), tool=bank, **TINY)
    assert not found.ok and not found.findings and "1 effect of action 'pay' in" in found.problem, found


def test_how_often_bodies_ran_is_said(explored: Any, tmp_path: Path) -> None:
    calls = tmp_path / "calls"

    def mine(run: Any, given: Any) -> Any:
        with calls.open("a") as file:
            return run.step("price", lambda: file.write("x"))

    found = explored(mine, **TINY)
    assert found.ran["steps"] == {"price": len(calls.read_text())} and found.ran["steps"]["price"] > 10
    assert f"Your own code ran for real meanwhile: step 'price' {len(calls.read_text())} times." in str(found)
    example = explore(time_limit=60, **TINY)
    assert example.ran["steps"]["classify"] > 10 and "for real" not in str(example)


@pytest.mark.parametrize("chance", [lambda: uuid4(), lambda: random.randint(1, 10**9), lambda: secrets.token_hex(4)])
def test_a_random_key_leaves_a_workflow_that_nobody_can_finish(explored: Any, chance: Any) -> None:
    def mine(run: Any, given: Any) -> Any:
        return run.side_effect("charge", key=f"charge-{chance()}")

    before = random.getstate()
    first, again = (explored(mine, tool=Provider(), **TINY) for _ in range(2))
    assert harm(first) == ("no workflow is stuck", "A*2 A!") and str(first.findings[0]) == str(again.findings[0])
    assert random.getstate() == before and os.urandom(8) != os.urandom(8)


# -- invariants --------------------------------------------------------------------------------------------------------


def no_charge_without_order(before: Rows, after: Rows) -> Any:
    """Nobody is charged before the order is recorded.

    More is not told.
    """
    for row in after.effects:
        if not any(step["step_id"] == "record" for step in after.of("steps", row["workflow_id"])):
            return f"{row['workflow_id']} was charged, and no order is recorded"
    return None


def test_an_invariant_of_ones_own_falls_with_its_sentence_and_the_shortest_schedule(explored: Any) -> None:
    def charges_first(run: Any, given: Any) -> Any:
        run.side_effect("charge", key="charge")
        return run.step("record", lambda: 1)

    def records_first(run: Any, given: Any) -> Any:
        run.step("record", lambda: 1)
        return run.side_effect("charge", key="charge")

    for tool in (None, Provider()):
        found = explored(charges_first, tool=tool, invariants=[no_charge_without_order], **TINY)
        assert harm(found) == ("no charge without order", "A*3")
        said = str(found.findings[0])
        assert "harm: Nobody is charged before the order is recorded.\n" in said
        assert "request-1 was charged, and no order is recorded" in said
        assert explored(records_first, tool=tool, invariants=[no_charge_without_order], **TINY).ok


def test_an_invariant_sees_the_tool_and_may_change_what_it_got(explored: Any) -> None:
    def poor(before: Rows, after: Rows) -> bool:
        charged = json.loads(after.tools[0]["state"])
        before.workflows[0].clear()
        after.effects and after.effects[0].clear()  # type: ignore[func-returns-value]
        return not charged

    found = explored(tool=Provider(), invariants=[poor], **TINY)
    assert harm(found) == ("poor", "A*4") and "poor: it does not hold" in str(found.findings[0])


def wants_three(before: Rows, after: Rows, more: Any) -> None:
    """Takes one too many."""


def one_effect_per_action(before: Rows, after: Rows) -> None:
    """Has a name that is taken."""


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ([5], "5 is no invariant: it is a value of type int. Give a function of the rows before and after, such as"),
        ([Rows], "is no invariant: it is a class"),
        ([wants_three], f"{__name__}:wants_three is no invariant: missing a required argument: 'more'"),
        ([one_effect_per_action], "Two invariants are called 'one effect per action'; give each its own name."),
        ("ab", "invariants= takes a list of functions, not 'ab'"),
        (no_charge_without_order, "invariants= takes a list of functions"),
        ([lambda before, after: sys.exit(0)], "your invariant '<lambda>' raised SystemExit: 0 (in <lambda>"),
        ([lambda before, after: 1 / 0], "your invariant '<lambda>' raised ZeroDivisionError: division by zero (in <lambda>"),
        ([lambda before, after: 7], "your invariant '<lambda>' returned 7. Return None or True if it holds, and a sentence"),
        ([lambda before, after: ""], "your invariant '<lambda>' returned ''"),
    ],
)  # fmt: skip
def test_an_invariant_that_is_none_is_named_with_the_way_out(explored: Any, given: Any, said: str) -> None:
    with pytest.raises(ExplorerError) as raised:
        explored(invariants=given, **TINY)
    assert said in str(raised.value)


# -- bad input ---------------------------------------------------------------------------------------------------------


class Bad(Provider):
    """Does one thing wrong."""

    wrong = ""

    def snapshot(self) -> Any:
        """Its table, or what JSON cannot hold."""
        if self.wrong == "snapshot raises":
            raise KeyError("table")
        return {1: 2} if self.wrong == "snapshot" else self.rows

    def restore(self, state: Any) -> None:
        """Fails when there is something to restore."""
        if self.wrong == "restore":
            raise OSError("no disk")
        super().restore(state)

    def effects(self) -> Any:
        """Told wrongly."""
        if self.wrong == "effects raises" and self.rows:
            raise ValueError("no table")
        if self.wrong == "effects":
            return [{"key": 1}]
        return [("mine", *row[1:]) for row in self.rows] if self.wrong == "key" else super().effects()


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ("snapshot raises", r":Bad\.snapshot\(\) raised KeyError: 'table'"),
        ("snapshot", r":Bad: its snapshot\(\) gave what JSON cannot hold \(\$: a key is int"),
        ("restore", r":Bad\.restore\(\) raised OSError: no disk"),
        ("effects raises", r":Bad\.effects\(\) raised ValueError: no table"),
        ("effects", r":Bad\.effects\(\): \{'key': 1\} is no effect: give \(idempotency key, action, workflow id"),
        ("key", r":Bad\.effects\(\) tells of 'charge' for workflow 'explored-request-1' under key 'mine', but it was called"),
    ],
)  # fmt: skip
def test_a_tool_that_tells_wrongly_is_named_with_the_way_out(explored: Any, wrong: str, said: str) -> None:
    tool = Bad()
    tool.wrong = wrong
    with pytest.raises(ExplorerError, match=said) as raised:
        explored(tool=tool, **TINY)
    assert "explore again." in str(raised.value)


async def later(call: ToolCall) -> None:
    """Async."""


@pytest.mark.parametrize("per_call", [False, True])
@pytest.mark.parametrize(
    ("tool", "said"),
    [
        (5, "the tool 5 is no tool but a value of type int. Give a function of a ToolCall"),
        (Provider, "is a class. Name an object of it, such as tool = Provider()"),
        (later, f"the tool {__name__}:later is no tool but an async function"),
    ],
)  # fmt: skip
def test_what_is_no_tool_is_named(explored: Any, tool: Any, said: str, per_call: bool) -> None:
    def mine(run: Any, given: Any) -> Any:
        return run.side_effect("charge", key="charge", tool=tool)

    with pytest.raises(ExplorerError) as raised:
        explored(mine, **TINY) if per_call else explored(tool=tool, **TINY)
    assert said in str(raised.value)


def test_a_tool_that_asks_the_explorers_database_is_refused() -> None:
    class Inside(Engine):
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            self.tool = self.pay

        def pay(self, call: ToolCall) -> Any:
            try:
                return self.database.read("inspect", {"p_workflow": call.workflow_id})
            except Exception:
                return "swallowed"

    with pytest.raises(
        ExplorerError, match=r"pay asks the explorer's own database\. Let it keep what it does in a place"
    ):
        explore(Inside, **TINY)


def test_a_result_that_json_cannot_hold_is_said_before_anything_is_certified(explored: Any) -> None:
    assert "fails: UnfaithfulValue" in explored(tool=lambda call: {1, 2}, **TINY).problem
    with pytest.raises(ExplorerError, match="returned what JSON cannot hold: <generator"):
        explored(tool=lambda call: (one for one in "ab"), **TINY)


def test_inputs_and_workflows_that_cannot_be_are_refused(explored: Any) -> None:
    with pytest.raises(UnfaithfulValue, match="'request-1', step 'input'"):
        explored(inputs=[{1, 2}])
    with pytest.raises(BadSchedule, match="Given: 1"):
        explored(workflows=2)
    with pytest.raises(ExplorerError, match="workflow=<lambda> has no name that a schedule can hold"):
        explored(lambda run, given: 1)
    two = explored(inputs=[{"total": 1}, {"total": 2}], workers=1, crashes=0, expiries=0, lost_replies=0)
    assert two.ok and two.setting.requests == 2


def test_an_invariant_that_reads_a_workers_name_is_asked_of_the_whole_space(explored: Any) -> None:
    def two(run: Any, told: Any) -> None:
        run.step("a", lambda: 1)

    def only_a_is_first(before: Rows, after: Rows) -> bool:
        return not any(row["fence_token"] == 1 and str(row["lease_owner"]).startswith("B.") for row in after.workflows)

    found = explored(two, invariants=[only_a_is_first])
    assert not found.reduced and found.findings[0].line == "workflow=two B"
    assert explored(two).reduced


def takes_none() -> None:
    """Takes no call."""


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ("key", "TypeError: side_effect() missing 1 required positional argument: 'key', at `return run.side_effect("),
        ("step", "TypeError: step() missing 1 required positional argument: 'fn', at `return run.step("),
        ("tool", f"The tool {__name__}:takes_none was not called, since it cannot take a ToolCall"),
        ("value", "int, finite float, bool, None), at `return run.side_effect("),
    ],
)
def test_a_mistake_in_ones_own_code_is_named_in_whole_sentences(explored: Any, wrong: str, said: str) -> None:
    def mine(run: Any, given: Any) -> Any:
        if wrong == "key":
            return run.side_effect("charge")
        if wrong == "step":
            return run.step("price")
        if wrong == "tool":
            return run.side_effect("charge", key="charge", tool=takes_none)
        return run.side_effect("charge", key="charge", arguments={1, 2})

    found = explored(mine, **TINY)
    assert not found.ok and said in found.problem and ".," not in found.problem, found.problem


@pytest.mark.parametrize("text", ["books are locked", "books are locked.", "are they locked?"])
def test_what_goes_wrong_and_what_to_do_are_two_sentences(explored: Any, text: str) -> None:
    def falls(before: Rows, after: Rows) -> None:
        raise OSError(text)

    class Locked(Provider):
        def effects(self) -> Any:
            raise OSError(text)

    for options in ({"tool": Locked()}, {"invariants": [falls]}):
        with pytest.raises(ExplorerError) as raised:
            explored(**options, **TINY)
        said = str(raised.value)
        assert said.endswith((". Fix it, and explore again.", "? Fix it, and explore again.")) and ".. " not in said
