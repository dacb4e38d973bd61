"""A state stands for those that an exchange of workers makes of it, and nothing that an exploration says changes by that."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from agentflow import Engine
from agentflow.lab.broken.catalogue import BROKEN
from agentflow.lab.explorer.explore import explore
from agentflow.lab.explorer.report import Exploration
from tests.support.workflows import drawn

SMALL = {"crashes": 1, "expiries": 1, "lost_replies": 0, "stop_at": "never"}
LOST = {**SMALL, "lost_replies": 1}


def said(found: Exploration) -> tuple[Any, ...]:
    """What an exploration says of the space, whether it was reduced or not."""
    assert found.schedules and found.ends and found.graph
    rows = {state.rows for state in found.graph.states}
    world = found.graph.rules.world
    ends = {world.outcomes(number) for number in rows}
    return found.schedules, dict(found.ends), found.depth, found.verdict, list(map(str, found.findings)), ends


def both(engine: Engine, **options: Any) -> tuple[Exploration, Exploration]:
    """The same space searched reduced and whole, which say the same."""
    reduced, whole = (explore(engine, reduce=reduce, **options) for reduce in (True, False))
    assert said(reduced) == said(whole)
    assert not whole.reduced
    return reduced, whole


@pytest.mark.parametrize(
    "options",
    [
        LOST, {**SMALL, "workers": 3, "crashes": 0}, {**SMALL, "names": "shared"},
        {**SMALL, "workflow": "approval_agent", "expiries": 0}, {**SMALL, "without": ["fence_token", "lease_owner"]},
    ],
    ids=str,
)  # fmt: skip
def test_the_counts_the_ends_and_the_findings_are_those_of_the_whole_space(
    engine: Engine, options: dict[str, Any]
) -> None:
    reduced, whole = both(engine, **options)
    share = 3 if "workers" in options else 1.4
    assert reduced.reduced and share * reduced.states < whole.states
    assert "(an exchange of workers makes no new one)" in str(reduced)


def test_data_that_looks_like_the_name_of_a_worker_is_not_exchanged(engine: Engine) -> None:
    """A workflow of which the second half depends on what looks like the name, in the rows and in every answer."""

    def looks(run: Any, told: Any) -> Any:
        name = run.step("name", lambda: {"worker": "A.1", "lease_owner": "B.1", "held_by": ["A.1", "B.1"]})
        return run.step(name["worker"], lambda: name["lease_owner"])

    reduced, whole = both(Engine(engine.database, workflows={"looks": looks}), workflow="looks", **SMALL)
    assert reduced.reduced and reduced.states < whole.states


def test_values_made_by_chance_belong_to_a_claim_and_not_to_a_worker(engine: Engine) -> None:
    """The next claim makes up another key, whoever makes it; so an exchange of workers changes nothing."""

    def makes_up(run: Any, told: Any) -> Any:
        return run.step("key", lambda: uuid.uuid4().hex)

    reduced, whole = both(Engine(engine.database, workflows={"makes_up": makes_up}), workflow="makes_up", **LOST)
    assert reduced.reduced and reduced.states < whole.states


def plans_anew(run: Any, told: Any) -> Any:
    return run.side_effect("charge", "charge", arguments={"nonce": uuid.uuid4().hex})


@pytest.mark.parametrize(
    "options",
    [
        {"lost_commits": 1, "crashes": 0},
        {"workflow": "plans_anew", "without": ["fence_token", "lease_owner", "lease_expiry"]},
    ],
    ids=str,
)  # fmt: skip
def test_refusals_that_are_taken_for_one_change_nothing(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]
) -> None:
    """What a refused write met in its row leads nowhere else, except where the plan itself was refused."""
    own = Engine(engine.database, workflows={**engine.workflows, "plans_anew": plans_anew})
    options = {**SMALL, **options}
    merged = explore(own, **options)
    monkeypatch.setattr("agentflow.lab.explorer.replayed_worker.is_known", lambda _: False)
    apart = explore(own, **options)
    assert said(merged) == said(apart)
    assert merged.graph and apart.graph
    places = [len(one.graph.rules.world.player.places) for one in (merged, apart) if one.graph]
    assert places[0] < places[1]


class ReadsNames(Engine):
    """Lets only one of two workers lose its claims, by its name: what no exchange would find."""

    def claim_workflow(self, worker_id: str, *more: Any, **options: Any) -> Any:
        return None if worker_id.startswith("B") else super().claim_workflow(worker_id, *more, **options)


def test_an_engine_of_ones_own_may_read_names_and_is_searched_whole(engine: Engine) -> None:
    found, _ = both(ReadsNames(engine.database), **SMALL)
    assert not found.reduced
    assert not explore(engine, model="varying", **SMALL).reduced


def test_a_few_drawn_workflows_end_as_in_the_whole_space(engine: Engine) -> None:
    for seed in range(3):
        both(Engine(engine.database, workflows={"drawn": drawn(seed)}), workflow="drawn", **SMALL)


@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", BROKEN)
def test_every_broken_engine_ends_as_in_the_whole_space(engine: Engine, name: str) -> None:
    for names in ("unique", "shared"):
        workflow = "approval_agent" if name.startswith("wait") else "support_agent"
        more = {"renewals": 1} if name == "renewal_revives" else {}
        both(engine, without=[name], names=names, workflow=workflow, **LOST, **more)


@pytest.mark.long
@pytest.mark.timeout(900)
def test_two_hundred_drawn_workflows_end_as_in_the_whole_space(engine: Engine) -> None:
    for seed in range(200):
        own = Engine(engine.database, workflows={"drawn": drawn(seed)})
        both(own, workflow="drawn", **LOST if seed % 2 else SMALL)
