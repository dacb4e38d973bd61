"""Tools of one's own in the evidence: not observed if they tell nothing, counted like the simulated tool if they tell."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import pytest

from agentflow import Engine, ToolCall
from agentflow.errors import ToolRefused
from agentflow.evidence import ask, recoveries
from agentflow.lab.history.sentences import sentences
from agentflow.lab.notebook.tables import snapshot
from agentflow.lab.plots.frames import effects_frame
from agentflow.lab.verify.checker import check_rows
from agentflow.lab.verify.invariants import Mover, Transition, violations
from agentflow.lab.verify.snapshot import Rows, read_rows
from agentflow.tools import SimulatedTool, own_name
from tests.conftest import rows
from tests.support.helpers import eventually, working
from tests.support.runs import crash, settle, start, turn

PAY = "pay"
OF_EFFECTS = ("tool_execution_attempts", "business_effects", "duplicate_business_effects", "unacknowledged_effects")


class Effect(NamedTuple):
    """What a tool tells; a tuple or a list of the same will do."""

    key: str | None
    action: str
    workflow: str
    attempts: int | None = None


class Shop:
    """A provider with a list of its own. It ignores keys, unless it is told to heed them."""

    def __init__(self, heeds: bool = False) -> None:
        self.heeds, self.charged = heeds, list[Effect]()

    def __call__(self, call: ToolCall) -> Any:
        for n, one in enumerate(self.charged):
            if self.heeds and one.key == call.idempotency_key:
                self.charged[n] = one._replace(attempts=(one.attempts or 0) + 1)
                return {"paid": True}
        self.charged.append(Effect(call.idempotency_key, call.action, call.workflow_id, 1))
        return {"paid": True}


class OpenShop(Shop):
    """It tells of its effects."""

    def effects(self) -> list[Effect]:
        return self.charged


def charged(engine: Engine, tool: Any, died: bool = True) -> str:
    """A workflow has paid with this tool and is completed; a worker died in the gap."""
    workflow_id = start(engine, lambda run, _: run.side_effect(PAY, key="k", tool=tool), workflow_id="order")
    if died:
        crash(engine, "tool")
    assert settle(engine, workflow_id)["status"] == "completed"
    return workflow_id


def figures(engine: Engine, *tools: Any) -> list[Any]:
    """Attempts, effects, duplicates and effects that nobody acknowledged."""
    found = engine.reliability_metrics(*tools)
    return [found[name] for name in OF_EFFECTS]


def problems(engine: Engine, *tools: Any) -> str:
    return "\n".join(engine.reliability_metrics(*tools)["problems"])


def test_a_customer_who_was_charged_twice_by_a_tool_that_tells_nothing_is_not_observed(engine: Engine) -> None:
    shop = Shop()
    charged(engine, shop)
    assert len(shop.charged) == 2
    assert figures(engine) == [None] * 4
    assert engine.reliability_metrics()["effects_not_observed"] == 1
    assert "test_own_tools:Shop" in problems(engine)
    assert "--tool MODULE:ATTRIBUTE" in problems(engine)


def test_it_is_not_observed_in_the_gap_and_after_it_whatever_became_of_the_workflow(engine: Engine) -> None:
    start(engine, lambda run, _: run.side_effect(PAY, key="k", tool=Shop()), workflow_id="order")
    crash(engine, "tool")
    assert figures(engine) == [None] * 4
    engine.cancel_workflow("order")
    assert figures(engine) == [None] * 4


def test_what_the_simulated_tool_doubled_is_said_although_another_tool_tells_nothing(engine: Engine) -> None:
    charged(engine, Shop())
    for _ in range(2):
        engine.world(ToolCall(None, "mail", None, "order"))
    assert figures(engine) == [None] * 4
    assert "doubled: 1" in problems(engine)


@pytest.mark.parametrize(("heeds", "wanted"), [(False, [2, 2, 1, 0]), (True, [2, 1, 0, 0])])
def test_a_tool_that_tells_is_counted_like_the_simulated_one(engine: Engine, heeds: bool, wanted: list[int]) -> None:
    shop = OpenShop(heeds)
    charged(engine, shop)
    assert figures(engine) == [None] * 4  # nobody asked it
    assert figures(engine, shop) == wanted
    assert bool(problems(engine, shop)) == (not heeds)


def test_tables_pictures_and_invariants_count_what_a_tool_tells(engine: Engine) -> None:
    shop = engine.tool = OpenShop()
    charged(engine, shop)
    seen = snapshot(engine, "order")
    assert "2 effects for 1 planned action" in seen.sentence()
    assert [row["idempotency_key"] for row in seen.effects] == ["order:k"] * 2
    assert "commits business effect 2: one action intent, two effects" in "\n".join(sentences(seen.history))
    frame = effects_frame(engine)
    assert (list(frame["attempts"]), list(frame["effects"]), list(frame["too_many"])) == ([2], [2], [1])
    fell = violations(Transition(Rows(), read_rows(engine), Mover()))
    assert {one.name for one, _ in fell} == {"one effect per action"}


def test_tables_and_pictures_say_what_is_not_observed_and_invariants_do_not_call_it_lost(engine: Engine) -> None:
    engine.tool = Shop(heeds=True)
    charged(engine, engine.tool, died=False)
    seen = snapshot(engine, "order")
    assert (seen.judged.sign, "not observed" in seen.sentence()) == ("?", True)
    assert "Shop; its effects are not observed" in "\n".join(sentences(seen.history))
    assert list(effects_frame(engine)["workflow"]) == []
    after = read_rows(engine)
    before = replace(after, workflows=({**after.workflows[0], "status": "ready"},))
    assert violations(Transition(before, after, Mover())) == []


def test_an_effect_that_another_tool_tells_does_not_hide_that_the_actions_own_tool_was_not_asked(
    engine: Engine,
) -> None:
    """The first charge went to a tool that tells, and its reply was lost; the second to one that nobody asks."""
    asked, shop = OpenShop(heeds=True), Shop()
    charged(engine, shop, died=False)
    asked.charged.append(Effect("order:k", PAY, "order"))
    engine.tool = asked
    assert figures(engine, asked) == [None] * 4
    assert engine.reliability_metrics(asked)["missing_business_effects"] is None
    assert "test_own_tools:Shop" in problems(engine, asked)
    assert snapshot(engine, "order").judged.sign == "?"
    told = ask(engine.database, [asked])
    checked = check_rows(engine.database, told=told.effects, asked=told.asked)
    assert list(checked.mistakes) == [] and "test_own_tools:Shop" in checked.not_observed[0]


def test_a_class_in_place_of_its_object_is_named_as_one(engine: Engine) -> None:
    charged(engine, OpenShop())
    assert "OpenShop is a class, and its effects are not observed: name an object of it" in problems(engine, OpenShop)


def test_a_tool_may_have_acted_before_it_refused(engine: Engine) -> None:
    def pays_and_refuses(call: ToolCall) -> Any:
        raise ToolRefused("the account is closed")

    start(engine, lambda run, _: run.side_effect(PAY, key="k", tool=pays_and_refuses), workflow_id="order")
    assert turn(engine) == "failed"
    assert figures(engine) == [None] * 4


def test_a_tool_of_which_the_told_effect_is_gone_has_lost_it(engine: Engine) -> None:
    shop = engine.tool = OpenShop(heeds=True)
    charged(engine, shop, died=False)
    shop.charged.clear()
    assert engine.reliability_metrics()["missing_business_effects"] == 1
    assert "missing: 1" in problems(engine)
    assert "the world has no effect" in snapshot(engine, "order").sentence()


def test_a_tool_may_not_know_how_often_it_was_called_or_under_which_key(engine: Engine) -> None:
    engine.tool = tool = OpenShop(heeds=True)
    charged(engine, tool)
    tool.charged[0] = Effect(None, PAY, "order")
    assert figures(engine) == [None, 1, 0, 0]
    assert problems(engine) == ""


def raises() -> Any:
    raise OSError("the provider is down")


@pytest.mark.parametrize(
    ("told", "said", "observed"),
    [
        (raises, "OpenShop.effects() raised OSError: the provider is down", False),
        (sys.exit, "raised SystemExit", False),
        (lambda: None, "raised TypeError", False),
        (lambda: ["order:k"], "'order:k' is no effect: give (idempotency key, action, workflow id", False),
        (lambda: [("order:k", PAY)], "is no effect", False),
        (lambda: [("order:k", PAY, "order", 0)], "is no effect", False),
        (lambda: [("order:k", PAY, "order", True)], "is no effect", False),
        (lambda: [(7, PAY, "order", 1)], "is no effect", False),
        (lambda: [("\x00", PAY, "order", 1)], "raised UnfaithfulValue", False),
        (lambda: [("order:k", PAY, "order"), ("x", PAY, "elsewhere")], "workflow 'elsewhere' under key 'x', and there", True),
        (lambda: [("order:k", PAY, "order"), ("order:z", PAY, "order")], "no action was planned under that key", True),
        (lambda: [("order:k", "refund", "order")], "under that key 'pay' was planned for 'order'", True),
    ],
)  # fmt: skip
def test_what_a_tool_tells_is_checked_and_what_is_wrong_is_named(
    engine: Engine, told: Callable[[], Any], said: str, observed: bool
) -> None:
    shop = OpenShop(heeds=True)
    charged(engine, shop, died=False)
    shop.effects = told  # type: ignore[method-assign]
    assert said in problems(engine, shop)
    assert (figures(engine, shop)[1] is not None) == observed


def test_an_effect_of_an_unknown_workflow_is_not_counted(engine: Engine) -> None:
    shop = OpenShop()
    charged(engine, shop, died=False)
    shop.charged.append(Effect("x", PAY, "elsewhere", 5))
    assert figures(engine, shop) == [1, 1, 0, 0]


def test_a_tool_is_known_by_its_module_and_name(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    schema = engine.database.schema
    assert own_name(engine.world, schema) is None
    assert own_name(SimulatedTool(engine.world.database), "another") == "agentflow.tools:SimulatedTool"
    assert own_name(Shop(), schema) == own_name(functools.partial(Shop()), schema) == f"{__name__}:Shop"
    monkeypatch.setattr(sys.modules[__name__], "mail", mail := Shop(), raising=False)
    assert own_name(mail, schema) == f"{__name__}:mail"
    monkeypatch.setattr(raises, "__module__", "__main__")
    monkeypatch.setattr(sys.modules["__main__"], "__file__", "/home/me/orders.py", raising=False)
    assert own_name(raises, schema) == "orders:raises"
    assert ask(engine.database, [engine.world, Shop()]).asked == []


# -- figures of the rows


def test_an_effect_whose_workflow_was_cancelled_or_given_up_in_the_gap_is_unacknowledged(engine: Engine) -> None:
    for name in ("cancelled", "spent"):
        engine.create_workflow("login", workflow_id=name)
        crash(engine, "tool")
        assert engine.reliability_metrics()["unacknowledged_effects"] == (name == "spent")
        if name == "cancelled":
            engine.cancel_workflow(name)
    for _ in range(engine.policy.crash_budget + 1):
        engine.claim_workflow("dies")
        if rows(engine, "SELECT FROM {s}.workflows WHERE lease_owner IS NOT NULL"):
            engine.expire_lease("spent")
    found = engine.reliability_metrics()
    assert (found["unacknowledged_effects"], found["problems"]) == (2, [])


def test_latency_has_its_percentiles_and_a_clock_that_went_backwards_measures_nothing(engine: Engine) -> None:
    ids = [f"w{number}" for number in range(4)]
    for number, workflow_id in enumerate(ids):
        engine.create_workflow("login", workflow_id=workflow_id)
        crash(engine, "checkpoint", "after", "classify")
        settle(engine, workflow_id)
        took = f"{100 * (number + 1)} milliseconds"
        rows(
            engine,
            "UPDATE {s}.workflows SET recovery_started_at = completed_at - CAST(:took AS interval) WHERE id = :i RETURNING id",
            took=took, i=workflow_id,
        )  # fmt: skip
    names = [f"recovery_latency_{part}ms" for part in ("", "p50_", "p95_", "max_")]
    assert [engine.reliability_metrics()[name] for name in names] == [250.0, 250.0, 385.0, 400.0]
    # The last entry was written after the clock had been set back, and the span alone does not show it.
    back = "UPDATE {s}.history SET at = at - interval '1 s' WHERE workflow_id = :i AND event = 'workflow_completed' RETURNING n"
    rows(engine, back, i=ids[0])
    assert [engine.reliability_metrics()[name] for name in names] == [None] * 4
    assert "clock went backwards: 1" in problems(engine)
    rows(
        engine,
        "UPDATE {s}.workflows SET completed_at = completed_at - interval '1 day' WHERE id = :i RETURNING id",
        i=ids[1],
    )
    assert "clock went backwards: 2" in problems(engine)
    assert [row["recovery_ms"] for row in recoveries(engine.database) if row["workflow_id"] == ids[1]] == [None]


def test_ready_rows_that_no_running_worker_knows_or_may_claim_are_counted(engine: Engine) -> None:
    def found() -> tuple[int, int]:
        figures = engine.reliability_metrics()
        return figures["ready_unknown_to_workers"], figures["ready_due_later"]

    engine.create_workflow(1, name="typo", workflow_id="typo")
    engine.create_workflow("login", workflow_id="later")
    rows(engine, "UPDATE {s}.workflows SET next_run_at = next_run_at + interval '1 h' WHERE id = 'later' RETURNING id")
    assert found() == (2, 1)
    with working(engine.worker("W.1", poll_seconds=0.1)):
        eventually(lambda: found() == (1, 1))
    eventually(lambda: found() == (2, 1))
