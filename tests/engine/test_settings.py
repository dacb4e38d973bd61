"""A setting that no worker could use is refused by name when it is made; every other one works on PostgreSQL."""

from __future__ import annotations

from dataclasses import fields, replace
from math import inf, nan
from typing import Any

import pytest

from agentflow import Engine, Policy
from agentflow.errors import BadSetting
from agentflow.values import SETTINGS
from tests.support.runs import start, turn, workflow

HUGE = 10**5_000  # Python does not print it
NO_NUMBERS: list[Any] = [inf, -inf, nan, -5, -0.001, 1e18, 1e12, HUGE, -HUGE, "30", None, True, 1j, [30]]
SECONDS = ("lease_seconds", "first_delay", "max_delay")
COUNTS = ("max_attempts", "crash_budget")
BAD = [(name, value) for name in (*SECONDS, *COUNTS) for value in NO_NUMBERS]
BAD += [(name, value) for name in SECONDS for value in (0, 0.0, 1e-7, 5e-324)]
BAD += [(name, value) for name in COUNTS for value in (2.0, 12.5, 2**31 - 1, 2**31)]
BAD += [("max_attempts", 0), ("crash_budget", -1), ("lease_seconds", 0.09)]
BAD += [("unknown_outcome", value) for value in ("maybe", "", None, 1, ["look_up"])]
OF_A_POLICY = {field.name for field in fields(Policy)}


@pytest.mark.parametrize(("name", "value"), BAD, ids=lambda value: "huge" if value in (HUGE, -HUGE) else None)
def test_a_policy_out_of_range_cannot_be_made(name: str, value: Any) -> None:
    with pytest.raises(BadSetting, match=f"Setting {name} must be .*Nothing was started"):
        Policy(**{name: value})
    with pytest.raises(BadSetting):
        replace(Policy(), **{name: value})


def test_every_setting_of_a_policy_is_tried() -> None:
    assert {name for name, _ in BAD} == OF_A_POLICY == set(SETTINGS) - {"poll_seconds"}


@pytest.mark.parametrize("value", [*NO_NUMBERS, 0, 1e-7], ids=lambda value: "huge" if value in (HUGE, -HUGE) else None)
def test_a_lease_or_a_poll_out_of_range_is_refused_before_anything_is_claimed(engine: Engine, value: Any) -> None:
    workflow_id = start(engine, lambda run, _: None)
    if value is not None:  # that of the policy
        with pytest.raises(BadSetting, match=r"Setting lease_seconds must be a number from 0\.1 to"):
            engine.claim_workflow("w", value)
        with pytest.raises(BadSetting, match="Setting lease_seconds"):
            engine.worker("w", lease_seconds=value)
    with pytest.raises(BadSetting, match=r"Setting poll_seconds must be a number from 0\.001 to 86,400"):
        engine.worker("w", poll_seconds=value)
    assert workflow(engine, workflow_id)["fence_token"] == 0


def test_the_longest_times_and_the_highest_counts_are_dates_and_numbers_that_everybody_can_read(engine: Engine) -> None:
    engine.policy = Policy(**{name: SETTINGS[name][1] for name in OF_A_POLICY})
    workflow_id = start(engine, lambda run, _: run.step("a", lambda: 1 / 0))
    assert turn(engine) == "postponed"
    found = engine.get_workflow(workflow_id)
    assert found is not None
    assert found["next_run_at"].year > 2100
    engine.expire_lease(workflow_id)
    assert engine.claim_workflow("w") is not None
    assert engine.get_workflow(workflow_id)["lease_expires_at"].year > 2100  # type: ignore[index]


def test_the_shortest_times_are_no_time_at_all_for_nobody(engine: Engine) -> None:
    engine.policy = Policy(**{name: SETTINGS[name][0] for name in OF_A_POLICY})
    workflow_id = start(engine, lambda run, _: run.step("a", lambda: "done"))
    assert turn(engine) == "completed"
    assert workflow(engine, workflow_id)["result"] == "done"
