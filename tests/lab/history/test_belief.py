"""Belief against world: the rule on each case by name, and the same rule as the SQL of the reliability report."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations_with_replacement, product
from typing import Any

import pytest
from sqlalchemy import text

from agentflow import Engine
from agentflow.lab.history.belief import belief_of, lost
from agentflow.lab.notebook.tables import Snapshot
from agentflow.lab.room.row_tables import sign, world

Rows = list[dict[str, Any]]
PLANNED = "PENDING", "ACKNOWLEDGED", "REFUSED"


def intents(*statuses: str, other: bool = False) -> Rows:
    """Planned actions k1 and k2, both named `mail`, or the second named `unlock`."""
    return [
        {
            "key": f"k{n}",
            "idempotency_key": f"w:k{n}",
            "action": "unlock" if other and n == 2 else "mail",
            "status": one,
        }
        for n, one in enumerate(statuses, 1)
    ]


def effects(*keys: str | None, other: bool = False) -> Rows:
    """An effect for each key; None is a call without a key, and any other than k1 and k2 was made up anew."""
    return [
        {
            "effect_id": n,
            "idempotency_key": key and f"w:{key}",
            "action": "unlock" if other and key == "k2" else "mail",
            "attempts": 1,
        }
        for n, key in enumerate(keys, 1)
    ]


GAP = "The effect exists and the engine does not know: this is the acknowledgment gap."
TWICE = "The world has 2 effects for 1 planned action: one too many."
AGREE = "The engine believes what the world did."


@pytest.mark.parametrize(
    ("planned", "done", "mark", "sentence"),
    [
        ((), (), "=", "Nothing has happened in the outside world yet."),
        (("PENDING",), (), "=", "Nothing has happened in the outside world yet."),
        (("REFUSED",), (), "=", "Nothing has happened in the outside world yet."),
        (("ACKNOWLEDGED",), ("k1",), "=", AGREE),
        (("ACKNOWLEDGED",), (None,), "=", AGREE),
        (("ACKNOWLEDGED", "ACKNOWLEDGED"), (None, None), "=", AGREE),
        (("REFUSED", "ACKNOWLEDGED"), (None,), "=", AGREE),
        (("PENDING",), ("k1",), "≠", GAP),
        (("PENDING",), (None,), "≠", GAP),
        (("PENDING",), ("made up",), "≠", GAP),
        (("ACKNOWLEDGED",), ("k1", "k1"), "≠", TWICE),
        (("ACKNOWLEDGED",), (None, None), "≠", TWICE),
        (("ACKNOWLEDGED",), ("k1", "made up"), "≠", TWICE),
        (("PENDING",), ("k1", "k1"), "≠", TWICE),
        (("ACKNOWLEDGED", "PENDING"), ("k1", "k1"), "≠", TWICE),
        (("ACKNOWLEDGED", "PENDING"), ("made up", "made up"), "≠", TWICE),
        (("ACKNOWLEDGED",), (None, None, None), "≠", "The world has 3 effects for 1 planned action: 2 too many."),
        (("ACKNOWLEDGED",), (), "≠", "The engine believes that an action was done, and the world has no effect of it."),
        (("REFUSED",), ("k1",), "≠", "The world has an effect of an action that the tool is recorded to have refused."),
        ((), ("k1",), "≠", "The world has an effect of an action that nobody planned."),
    ],
)  # fmt: skip
def test_belief_beside_world_is_one_sentence_and_one_sign(
    planned: tuple[str, ...], done: tuple[str | None, ...], mark: str, sentence: str
) -> None:
    shown = Snapshot(None, intents(*planned), effects(*done), [])
    assert shown.sentence() == sentence
    assert f">{mark}<" in shown.to_html()
    assert sign({"intents": shown.intents, "effects": shown.effects}) == mark


def test_each_effect_of_two_actions_of_one_name_belongs_to_one_of_them() -> None:
    row = {"intents": intents("ACKNOWLEDGED", "ACKNOWLEDGED"), "effects": effects(None, None)}
    assert world(row) == "k1: one effect, asked for once. k2: one effect, asked for once."
    row = {"intents": intents("REFUSED", "ACKNOWLEDGED"), "effects": effects(None)}
    assert world(row) == "k2: one effect, asked for once."
    assert world({"intents": [], "effects": effects("k1")}) == "mail: one effect, asked for once."


def test_a_refused_action_counts_as_planned_only_if_it_has_an_effect() -> None:
    def planned(*statuses: str, done: tuple[str | None, ...]) -> list[bool]:
        return [one.planned for one in belief_of(intents(*statuses), effects(*done)).actions]

    assert planned("PENDING", "ACKNOWLEDGED", done=()) == [True, True]
    assert planned("REFUSED", "REFUSED", done=("k2",)) == [False, True]
    assert planned(done=("k1",)) == [False]


def test_an_action_that_is_recorded_as_done_and_left_no_effect_is_lost() -> None:
    steps = [{"step_id": key, "kind": "side_effect", "error": None} for key in ("k1", "k2")]
    assert lost(steps, intents("ACKNOWLEDGED", "ACKNOWLEDGED"), effects("k2")) == ["k1"]
    assert lost(steps, intents("ACKNOWLEDGED", "ACKNOWLEDGED"), effects(None, None)) == []
    assert lost([{**steps[0], "error": "{}"}, {**steps[1], "kind": "step"}], [], []) == []


def cases() -> Iterator[tuple[Rows, Rows]]:
    """Up to two planned actions in every status, and up to three effects under every key; also for two names of actions."""
    many = [keys for n in range(4) for keys in combinations_with_replacement(("k1", "k2", None, "made up"), n)]
    for n, other in ((0, False), (1, False), (2, False), (2, True)):
        for statuses, keys in product(product(PLANNED, repeat=n), many):
            yield intents(*statuses, other=other), effects(*keys, other=other)


def test_the_report_counts_effects_too_many_missing_and_unknown_by_the_same_rule(engine: Engine) -> None:
    schema = engine.database.schema
    tables = f'"{schema}".action_intents', f'"{schema}_world".tool_ledger'
    plan = text(
        f"INSERT INTO {tables[0]} (workflow_id, key, idempotency_key, action, arguments, status, tool_result, error, "
        "fence_token, worker, acknowledged_at) SELECT 'w', :key, :idempotency_key, :action, '{}', :status, "
        "CASE WHEN :status = 'ACKNOWLEDGED' THEN '{}'::json END, CASE WHEN :status = 'REFUSED' THEN '{}'::json END, 1, "
        "'A', CASE WHEN :status <> 'PENDING' THEN now() END"
    )
    do = text(
        f"INSERT INTO {tables[1]} (idempotency_key, remembered, workflow_id, action, arguments, result, attempts) "
        "SELECT :idempotency_key, false, 'w', :action, '{}', '{}', :attempts"
    )
    engine.create_workflow("login", workflow_id="w")
    engine.cancel_workflow("w")
    for planned, done in cases():
        with engine.database.alchemy.begin() as connection:
            connection.execute(text(f"TRUNCATE {', '.join(tables)}"))
            for statement, found in ((plan, planned), (do, done)):
                if found:
                    connection.execute(statement, found)
        figures = engine.reliability_metrics()
        assert figures["business_effects"] == len(done)
        judged = belief_of(planned, done)
        assert figures["duplicate_business_effects"] == judged.too_many, (planned, done)
        assert figures["missing_business_effects"] == sum(one.missing for one in judged.actions), (planned, done)
        assert figures["unacknowledged_effects"] == sum(one.unknown for one in judged.actions), (planned, done)
