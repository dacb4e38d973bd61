"""Rules that say where a worker is lost: they travel to another process, and fire once, at the visit they name."""

from __future__ import annotations

import pickle

import pytest

from agentflow import Boundary, Claim, CrashInjected, Engine
from agentflow.lab.crashes.crash_at import CrashAt, by_exception
from tests.conftest import rows


def test_a_rule_can_be_sent_to_another_process() -> None:
    rule = CrashAt("checkpoint", "after", "classify", worker="A", workflow="w", nth=2)
    assert pickle.loads(pickle.dumps(rule)) == rule
    assert str(rule) == "after checkpoint classify"


@pytest.mark.parametrize(
    "other",
    [
        Boundary("intent", "after", "A", "w", 1, "classify", "committed"),
        Boundary("checkpoint", "before", "A", "w", 1, "classify"),
        Boundary("checkpoint", "after", "B", "w", 1, "classify", "committed"),
        Boundary("checkpoint", "after", "A", "v", 1, "classify", "committed"),
        Boundary("checkpoint", "after", "A", "w", 1, "plan", "committed"),
        Boundary("checkpoint", "after", "A", "w", 1, "classify", "refused"),
        Boundary("checkpoint", "after", "A", "w", 1, "classify", "unknown"),
    ],
)
def test_a_rule_matches_its_own_boundary_and_no_other(other: Boundary) -> None:
    rule = CrashAt("checkpoint", "after", "classify", worker="A", workflow="w")
    assert rule.matches(Boundary("checkpoint", "after", "A", "w", 1, "classify", "committed"))
    assert not rule.matches(other)


def test_the_second_visit_is_hit_once_and_the_others_pass(engine: Engine) -> None:
    for name in ("v", "w", "x"):
        engine.create_workflow("help", workflow_id=name)
    crashing = engine.with_hook(by_exception(engine, CrashAt("checkpoint", "after", "plan", nth=2)))
    with pytest.raises(CrashInjected, match="after checkpoint plan, worker A, workflow w, token 1"):
        crashing.run_until_idle("A")
    assert crashing.run_until_idle("A") == 1
    found = rows(engine, "SELECT id, state FROM {s}.workflows ORDER BY id")
    assert [(row["id"], row["state"]) for row in found] == [("v", "COMPLETED"), ("w", "PLANNED"), ("x", "COMPLETED")]
    told = rows(
        engine, "SELECT workflow_id, subject, worker, fence_token FROM {s}.history WHERE event = 'crash_injected'"
    )
    assert told == [{"workflow_id": "w", "subject": "after checkpoint plan", "worker": "A", "fence_token": 1}]


def test_a_refused_load_is_told_as_refused(engine: Engine) -> None:
    """Otherwise a laboratory would think that a stale worker had been given its checkpoints."""
    engine.create_workflow("help", workflow_id="w")
    assert engine.claim_workflow("A") is not None
    seen: list[Boundary] = []
    with pytest.raises(BaseException, match="load was refused"):
        engine.with_hook(seen.append).load(Claim("w", "A", 7))
    assert [(boundary.edge, boundary.outcome) for boundary in seen] == [("before", None), ("after", "refused")]
