"""The plan of kills: a function of the seed, with the acknowledgment gap in it, for whatever boundaries a workflow has."""

from __future__ import annotations

import pytest

from agentflow import Boundary
from agentflow.lab.crashes.kill_plan import GAP, PATH, is_fatal, label, plan_kills

AGENT = ("checkpoint classify", "checkpoint plan", "intent pay", "tool pay", "acknowledge pay", "complete")
NOTHING = ("fail",)
TRIP = tuple(f"{what} {name}" for name in "abcdef" for what in ("checkpoint", "intent", "tool", "acknowledge"))


def kills(seed: int, requests: int, ordered: int, path: tuple[str, ...] = AGENT) -> list[tuple[int, str]]:
    """Where the holders of the requests are killed, if each run goes along this path, from what is recorded."""
    plan, found = plan_kills(seed, requests, ordered), []
    for request in plan:
        recorded, before = 0, 0
        while dies := _dies(plan, seed, request, before, path, recorded):
            where, recorded = dies
            found.append((request, where))
            before += 1
    return found


def _dies(plan: dict, seed: int, request: int, before: int, path: tuple[str, ...], recorded: int):
    begins = ("claim", "load") if before else ("claim",)
    for n, name in enumerate((*begins, *path[recorded:]), recorded - len(begins)):
        transaction, _, subject = name.partition(" ")
        for edge in ("before", "after"):
            at = Boundary(transaction, edge, "A", "w", 1, subject or None, "committed" if edge == "after" else None)
            if (name != "claim" or edge == "after") and is_fatal(plan, seed, request, before, at):
                there = max(recorded, n + (edge == "after"))
                again = there < len(path) and path[there].startswith("acknowledge")  # the tool is called again
                return label(at), there - again
    return None


def test_the_same_seed_plans_the_same_kills_and_another_seed_others() -> None:
    assert kills(1, 549, 100) == kills(1, 549, 100)
    assert kills(1, 549, 100) != kills(2, 549, 100)


@pytest.mark.parametrize("path", [AGENT, NOTHING, (*TRIP, "complete")], ids=["agent", "nothing", "trip"])
@pytest.mark.parametrize("seed", range(5))
def test_exactly_the_ordered_kills_happen_whatever_boundaries_there_are(seed: int, path: tuple[str, ...]) -> None:
    for requests, ordered in ((549, 100), (549, 1), (10, 10), (7, 30), (1, 12), (3, 0)):
        assert len(kills(seed, requests, ordered, path)) == ordered


@pytest.mark.parametrize("seed", range(5))
def test_a_tenth_of_the_kills_are_in_the_gap(seed: int) -> None:
    for requests, ordered in ((549, 100), (549, 1), (10, 10), (7, 30)):
        assert 10 * sum(where in GAP for _, where in kills(seed, requests, ordered)) >= ordered


def test_every_boundary_is_hit_somewhere_also_the_last_of_a_long_workflow() -> None:
    assert {where for _, where in kills(1, 2_000, 500)} >= set(PATH)
    assert {where for _, where in kills(1, 9_000, 3_000, (*TRIP, "complete"))} >= {
        f"{edge} checkpoint {name}" for edge in ("before", "after") for name in "abcdef"
    }


def test_only_the_last_kill_of_a_request_is_behind_its_end() -> None:
    for seed in range(10):
        found = kills(seed, 5, 40)
        for request in range(5):
            assert "after complete" not in [where for one, where in found if one == request][:-1]


def test_what_a_clock_brings_about_kills_nobody() -> None:
    plan = plan_kills(1, 50, 50)
    aside = [Boundary(name, "before", "A", "w", 1) for name in ("renew", "release", "postpone", "expire")]
    assert not any(is_fatal(plan, 1, request, 0, at) for request in plan for at in aside)


def test_kills_without_requests_are_refused() -> None:
    with pytest.raises(ValueError, match="no request"):
        plan_kills(1, 0, 1)


def test_a_boundary_s_label_names_the_step_only_of_a_checkpoint() -> None:
    assert label(Boundary("checkpoint", "after", subject="plan")) == "after checkpoint plan"
    assert label(Boundary("tool", "after", subject="resolve-account")) == "after tool"
