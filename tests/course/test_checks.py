"""Checks name the wrong row: each is shown a row that was broken on purpose."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from agentflow import AgentFlowError, Engine, Ledger
from agentflow.doctor import Diagnosis
from agentflow.errors import BadRequestFile, QueryRefused
from agentflow.lab.course import checks
from agentflow.lab.history.sentences import sentences
from agentflow.lab.laboratory import laboratory
from agentflow.lab.laboratory.laboratory import PATIENT, doctor, support_requests
from agentflow.lab.notebook.tables import Table, query, shown, snapshot
from agentflow.lab.schedule.stepper import Stepper
from agentflow.statements import TRANSACTIONS


@pytest.fixture
def done(engine: Engine) -> Engine:
    """One workflow, `request-1`, completed by one worker."""
    engine.create_workflow("My password no longer works", workflow_id="request-1")
    assert engine.run_once("A")
    return engine


def tamper(engine: Engine, sql: str, **binds: Any) -> None:
    """A row is made wrong by hand."""
    schema = engine.database.schema
    with engine.database.alchemy.begin() as connection:
        connection.execute(text(sql.format(s=f'"{schema}"', w=f'"{schema}_world"')), binds)


def test_right_rows_pass_every_check(done: Engine) -> None:
    assert checks.completed(done, "request-1") == "completed: request-1"
    assert checks.one_effect(done, "request-1")
    assert checks.attempts(done, "request-1", 1)
    assert checks.tokens(done, "request-1") == "3 checkpoints, the last under token 1"


def test_a_workflow_that_is_not_completed_is_named(engine: Engine) -> None:
    engine.create_workflow("x", workflow_id="request-1")
    with pytest.raises(AssertionError, match="workflows, row 'request-1', column status: found ready"):
        checks.completed(engine, "request-1")


def test_a_workflow_that_does_not_exist_is_named(engine: Engine) -> None:
    with pytest.raises(AssertionError, match="workflows: there is no row 'request-1'"):
        checks.completed(engine, "request-1")


def test_a_pending_intent_is_named(done: Engine) -> None:
    tamper(done, "UPDATE {s}.action_intents SET status = 'PENDING', tool_result = NULL, acknowledged_at = NULL")
    with pytest.raises(AssertionError, match="action_intents, row 'request-1:resolve-account', column status"):
        checks.one_effect(done, "request-1")


def test_a_second_effect_under_another_key_is_named(done: Engine) -> None:
    done.execute_simulated_tool("request-1:another-key")
    with pytest.raises(AssertionError, match=r"tool_ledger, row \d+, column idempotency_key: found request-1:a"):
        checks.one_effect(done, "request-1")


def test_a_second_effect_under_a_forgotten_key_is_named(done: Engine) -> None:
    done.world.forget_keys()
    done.execute_simulated_tool("request-1:resolve-account")
    with pytest.raises(AssertionError, match="tool_ledger"):
        checks.one_effect(done, "request-1")
    assert snapshot(done, "request-1").sentence() == "The world has 2 effects for 1 planned action: one too many."


def test_a_lost_effect_is_named(done: Engine) -> None:
    tamper(done, "DELETE FROM {w}.tool_ledger")
    with pytest.raises(AssertionError, match="tool_ledger: no row has idempotency_key 'request-1:resolve-account'"):
        checks.one_effect(done, "request-1")


def test_a_workflow_too_few_one_that_is_open_and_a_lost_effect_are_all_named(done: Engine) -> None:
    assert checks.nothing_lost(done, workflows=1) == "1 workflow completed, one effect for each planned action"
    with pytest.raises(AssertionError, match="workflows: found 1 row, expected 2"):
        checks.nothing_lost(done, workflows=2)
    done.create_workflow("x", workflow_id="request-2")
    with pytest.raises(AssertionError, match="workflows, row 'request-2', column status: found ready"):
        checks.nothing_lost(done, workflows=2)
    done.run_until_idle("B")
    tamper(done, "DELETE FROM {w}.tool_ledger WHERE workflow_id = 'request-2'")
    with pytest.raises(AssertionError, match="tool_ledger: no row has idempotency_key 'request-2:resolve-account'"):
        checks.nothing_lost(done, workflows=2)


def test_a_wrong_number_of_attempts_is_named(done: Engine) -> None:
    with pytest.raises(AssertionError, match=r"tool_ledger, row \d+, column attempts: found 1, expected 2"):
        checks.attempts(done, "request-1", 2)


def test_a_checkpoint_under_a_token_that_was_never_given_is_named(done: Engine) -> None:
    tamper(done, "UPDATE {s}.steps SET fence_token = 9 WHERE step_id = 'plan'")
    with pytest.raises(AssertionError, match="steps, row 'request-1/plan', column fence_token: found 9"):
        checks.tokens(done, "request-1")


def test_a_checkpoint_under_an_older_token_than_before_is_named(done: Engine) -> None:
    tamper(done, "UPDATE {s}.workflows SET fence_token = 3")
    tamper(done, "UPDATE {s}.steps SET fence_token = 3 WHERE step_id = 'classify'")
    with pytest.raises(AssertionError, match="steps, row 'request-1/plan', column fence_token: found 1"):
        checks.tokens(done, "request-1")


def test_a_checkpoint_without_a_result_is_named(done: Engine) -> None:
    assert checks.recorded(done, "request-1", "classify", "plan") == "a result is recorded for classify, plan"
    tamper(done, "UPDATE {s}.steps SET value = 'null' WHERE step_id = 'plan'")
    with pytest.raises(
        AssertionError, match="steps, row 'request-1/plan', column value: found NULL, expected a result"
    ):
        checks.recorded(done, "request-1", "classify", "plan")
    with pytest.raises(AssertionError, match="steps: there is no row 'request-1/send'"):
        checks.recorded(done, "request-1", "send")


def test_a_refusal_that_did_not_happen_or_came_under_another_token_is_named(engine: Engine) -> None:
    engine.policy = PATIENT
    with Stepper(engine) as stepper:
        stepper.play("A*")
        with pytest.raises(AssertionError, match="request-1 has no entry write_refused"):
            checks.refused(engine, "request-1", token=1)
        stepper.play("A*2 A|| expire B* A> A")
    said = "a write under token 1 was refused by token, owner, lease and checkpoints: the row holds token 2"
    assert checks.refused(engine, "request-1", token=1) == said
    with pytest.raises(AssertionError, match="history, row 'request-1/13', column fence_token: found 1, expected 2"):
        checks.refused(engine, "request-1", token=2)


def test_a_refusal_before_anybody_took_over_is_named(engine: Engine) -> None:
    engine.policy = PATIENT
    with Stepper(engine) as stepper:
        stepper.play("A*2 expire A")
    with pytest.raises(
        AssertionError, match="history, row 'request-1/5', column row_token: found 1, expected more than 1"
    ):
        checks.refused(engine, "request-1", token=1)


def test_wrong_figures_of_execution_ledgers_are_named() -> None:
    ledgers = [Ledger(["a", "b"], [], ["mail"]), Ledger(["c"], ["a", "b"], [])]
    assert checks.ledgers(ledgers, executed=3, side_effects=1)
    with pytest.raises(AssertionError, match="executed: found 3, expected 4"):
        checks.ledgers(ledgers, executed=4, side_effects=1)
    with pytest.raises(AssertionError, match="side_effects"):
        checks.ledgers(ledgers, executed=3, side_effects=2)


def test_numbers_and_nouns_agree(done: Engine) -> None:
    assert (
        checks.ledgers([Ledger(["a"], [], ["mail"])], executed=1, side_effects=1)
        == "1 step executed, 1 side effect sent"
    )
    assert checks.attempts(done, "request-1", 1) == "the tool was called 1 time for request-1"
    done.create_workflow("x", workflow_id="request-2")
    assert "History, 1 entry<" in snapshot(done, "request-2").to_html()
    assert "History, 0 entries<" in snapshot(done, None).to_html()


def test_a_failed_check_is_shown_as_its_sentence_alone() -> None:
    with pytest.raises(checks.CheckFailed) as caught:
        checks.ledgers([], executed=1, side_effects=0)
    assert " ".join(caught.value._render_traceback_()) == f"Not yet. {caught.value}"


def test_a_long_sentence_is_broken_between_words() -> None:
    lines = checks.CheckFailed("three words of " * 20)._render_traceback_()
    assert len(lines) > 1
    assert " ".join(lines) == "Not yet. " + " ".join(["three words of"] * 20)
    assert all(len(line) <= 80 for line in lines)


def test_query_reads_both_schemas_and_cannot_write(done: Engine) -> None:
    joined = "SELECT status, t.attempts FROM workflows JOIN tool_ledger AS t ON workflow_id = id WHERE id = :id"
    assert query(done, joined, id="request-1") == [{"status": "completed", "attempts": 1}]
    with pytest.raises(QueryRefused, match="read-only"):
        query(done, "DELETE FROM workflows")


def test_a_query_leaves_its_connection_as_the_engine_needs_it(done: Engine) -> None:
    """The pool's next user gets the same connection (last in, first out): it commits by itself and has its own path."""
    query(done, "SELECT 1 AS one")
    pooled = done.database.alchemy.raw_connection()
    try:
        connection = pooled.driver_connection
        assert connection is not None
        assert connection.autocommit
        assert "t_" not in connection.execute("SHOW search_path").fetchone()[0]
        assert connection.execute("SHOW transaction_read_only").fetchone()[0] == "off"
    finally:
        pooled.close()


def test_a_table_is_escaped_and_says_when_it_is_empty() -> None:
    table = Table([{"a": "<b>", "n": None}], "x & y")
    assert "&lt;b&gt;" in table._repr_html_()
    assert "<p><b>x &amp; y</b></p><table " in table._repr_html_()
    assert repr(table) == "x & y\na    n\n<b>  NULL"
    assert "0 rows" in Table([], columns=["a"])._repr_html_()
    assert repr(Table([], columns=["a"])) == "a\n(0 rows)"
    assert len(shown("x" * 1000)) == 200


def test_every_entry_that_the_engine_writes_has_a_sentence(engine: Engine) -> None:
    """No entry is shown by its bare name: the names stand in the statements."""
    entries = [statement.text.split("entry AS")[-1] for statement in TRANSACTIONS.values()]
    names = {name for part in entries for name in re.findall(r"'([a-z]+(?:_[a-z]+)+)'", part)}
    names = {name for name in names if not name.startswith(("row_", "held_", "asked_", "lease_seconds"))}
    assert {"workflow_created", "write_refused", "lease_expired_for_test"} <= names
    for name in names:
        entry = {"event": name, "transaction": "t", "subject": "s", "worker": "A.1", "fence_token": 1, "detail": None}
        assert name not in sentences([entry])[0]


def test_the_doctor_speaks_of_a_sound_laboratory(engine: Engine, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATABASE_URL", url)
    assert engine.database.schema in doctor(engine)[-1]
    finding = Diagnosis("durability", False, "A commit may be lost.", "Turn fsync on.")
    monkeypatch.setattr(laboratory, "examine", lambda _: iter([finding]))
    with pytest.raises(AgentFlowError, match=r"durability: A commit may be lost\. Turn fsync on\."):
        doctor(engine)


def test_support_requests_are_found_inside_the_repository(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert len(support_requests()) >= 400
    monkeypatch.chdir(tmp_path)
    assert len(support_requests()) >= 400  # AgentFlow's own checkout has them
    with pytest.raises(BadRequestFile, match=r"support_requests\.csv"):
        support_requests(tmp_path / "support_requests.csv")
