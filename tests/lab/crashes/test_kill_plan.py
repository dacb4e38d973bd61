"""The plan of kills: a function of the seed, with the acknowledgment gap in it, and never beyond what can happen."""

from __future__ import annotations

import pytest

from agentflow import Boundary
from agentflow.lab.crashes.kill_plan import GAP, PATH, label, plan_kills


def kills(plan: dict[int, tuple[str, ...]]) -> list[tuple[int, str]]:
    return [(request, where) for request, each in plan.items() for where in each]


def test_the_same_seed_plans_the_same_kills_and_another_seed_others() -> None:
    assert plan_kills(1, 549, 100) == plan_kills(1, 549, 100)
    assert plan_kills(1, 549, 100) != plan_kills(2, 549, 100)


@pytest.mark.parametrize("seed", range(20))
def test_exactly_the_ordered_kills_are_planned_and_a_tenth_of_them_in_the_gap(seed: int) -> None:
    for requests, ordered in ((549, 100), (549, 1), (10, 10), (7, 30), (1, 12), (3, 0)):
        planned = kills(plan_kills(seed, requests, ordered))
        assert len(planned) == ordered
        assert 10 * sum(where in GAP for _, where in planned) >= ordered


def test_every_boundary_is_planned_somewhere() -> None:
    assert {where for _, where in kills(plan_kills(1, 2_000, 500))} == set(PATH)


def test_no_kill_is_planned_behind_the_end_or_before_what_is_recorded() -> None:
    for each in (where for seed in range(10) for where in plan_kills(seed, 5, 40).values()):
        assert "after complete" not in each[:-1]
        recorded = 0
        for where in each:
            if where in PATH[1:]:
                assert PATH.index(where) >= recorded
                reached = PATH.index(where) + where.startswith("after")
                tool, done = PATH.index("before tool"), PATH.index("after acknowledge")
                recorded = max(
                    recorded, tool if tool < reached < done + 1 and where != "after acknowledge" else reached
                )


def test_kills_without_requests_are_refused() -> None:
    with pytest.raises(ValueError, match="no request"):
        plan_kills(1, 0, 1)


def test_a_boundary_s_label_names_the_step_only_of_a_checkpoint() -> None:
    assert label(Boundary("checkpoint", "after", subject="plan")) == "after checkpoint plan"
    assert label(Boundary("tool", "after", subject="resolve-account")) == "after tool"
