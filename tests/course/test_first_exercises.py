"""The exercises of 00 to 03: the solution passes, the stub is told what to do, plausible mistakes get a fitting message."""

from __future__ import annotations

import contextlib
import itertools
import random
import re
import sys
import time
from collections.abc import Callable
from importlib import import_module
from typing import Any

import pytest

from agentflow import Engine
from agentflow.lab.course import stages
from agentflow.lab.course.checks import CheckFailed
from agentflow.lab.course.judging import NOT_SOLVED, answer_of, judged
from agentflow.lab.laboratory.laboratory import PATIENT
from agentflow.lab.notebook.tables import query
from agentflow.lab.schedule.stepper import Stepper
from tests.solutions import durable_checkpoints, leases_and_fencing, retry_or_checkpoint, start_here

ONE: Any = 1
NUMBERS = itertools.count(1)


def counted_in_memory(run: Any, _request: str) -> int:
    ticket: int = run.step("ticket", lambda: next(NUMBERS))
    run.side_effect("send-ticket", key="send-ticket", arguments=ticket)
    return ticket


def goes_on(run: Any, _request: str) -> float:
    ticket: float = run.step("ticket", random.random)
    with contextlib.suppress(BaseException):
        run.side_effect("send-ticket", key="send-ticket", arguments=ticket)
    return ticket


def test_every_exercise_has_a_solution_under_its_name() -> None:
    for told in (told for told in stages.COURSE if told.exercises):
        module = import_module(f"tests.solutions.{told.name[3:].replace('-', '_')}")
        assert [
            exercise.name for exercise in told.exercises if not callable(getattr(module, exercise.name, None))
        ] == []


@pytest.mark.parametrize(("given", "kind"), [(None, "nothing"), (1, "a number"), ("A*", "a text")])
def test_what_is_no_function_is_told_as_that(given: Any, kind: str) -> None:
    with pytest.raises(
        CheckFailed, match=f"calls your function itself, but was given {kind}. Pass the name of the function.$"
    ):
        judged(lambda function: str(function()), given)


def test_only_a_step_that_was_given_a_value_is_told_of_lambda() -> None:
    with pytest.raises(CheckFailed, match=r"'int' object is not callable, at `.*`\.$"):
        judged(lambda function: str(answer_of(function, "when called")), lambda: ONE())


def test_the_solution_of_start_here_is_accepted_and_the_stub_and_wrong_answers_are_not(engine: Engine) -> None:
    engine.policy = PATIENT
    judge = stages.outline("00-start-here").exercise("count_effects").judge
    with Stepper(engine) as stepper:
        stepper.play("A*5 A! expire B*")
    before = engine.reliability_metrics()
    assert judged(judge, start_here.count_effects, engine).startswith("Solved")

    def stub(_engine: Engine, _id: str) -> int:
        raise NotImplementedError

    assert judged(judge, stub, engine) == NOT_SOLVED
    sql = "SELECT attempts FROM tool_ledger WHERE workflow_id = :id"

    def each_call(engine: Engine, workflow_id: str) -> Any:
        return query(engine, sql, id=workflow_id)[0]["attempts"]

    def summed(engine: Engine, workflow_id: str) -> Any:
        return sum(row["attempts"] for row in query(engine, sql, id=workflow_id))

    def everything(engine: Engine, _: str) -> Any:
        return query(engine, "SELECT count(*) AS n FROM tool_ledger")[0]["n"]

    def first_row(engine: Engine, workflow_id: str) -> Any:
        return query(engine, "SELECT 1 AS n FROM tool_ledger WHERE workflow_id = :id LIMIT 1", id=workflow_id)[0]["n"]

    def remembered(engine: Engine, workflow_id: str) -> Any:
        kept = "SELECT count(*) AS n FROM tool_ledger WHERE workflow_id = :id AND remembered"
        return query(engine, kept, id=workflow_id)[0]["n"]

    def grouped(engine: Engine, workflow_id: str) -> Any:
        counted = "SELECT count(*) AS n FROM tool_ledger WHERE workflow_id = :id GROUP BY workflow_id"
        return query(engine, counted, id=workflow_id)[0]["n"]

    hints: list[tuple[Callable[[Engine, str], Any], str]] = [
        (each_call, "returns 2 for request-1, and tool_ledger has 1 row for it, whose attempts are your number"),
        (summed, "returns 2 for request-1, and tool_ledger has 1 row for it, whose attempts are your number"),
        (remembered, "returns 0 for a workflow with several actions and calls, and tool_ledger has 1 row for it"),
        (lambda _e, _w: 1, "returns 1 for request-1, for a workflow whose effect was doubled"),
        (lambda _e, _w: 2, "returns 2 for request-1, for a workflow whose effect was doubled"),
        (
            everything,
            "returns 3 for .*They have 1, 2 and 0 rows in tool_ledger: your number does not depend on workflow_id",
        ),
        (first_row, "returns 1 for a workflow whose effect was doubled on purpose, and tool_ledger has 2 rows for it"),
        (
            lambda _e, w: 1 if w == "request-1" else 2 if w.startswith("doubled") else 0,
            "returns 0 for a workflow whose effect was doubled on purpose, and tool_ledger has 2 rows for it",
        ),
        (
            lambda e, w: query(
                e,
                "SELECT count(DISTINCT coalesce(idempotency_key, effect_id::text)) AS n FROM tool_ledger "
                "WHERE workflow_id LIKE :id || '%'",
                id=w,
            )[0]["n"],
            # or, if by chance the id of the doubled one begins with that of request-1, 3 for this one
            "for a workflow with several actions and calls, and tool_ledger has 1 row for it|does not exist|3 for request-1,",
        ),
        (
            lambda e, w: min(
                2, query(e, "SELECT count(*) AS n FROM tool_ledger WHERE workflow_id = :id", id=w)[0]["n"]
            ),
            "returns 2 for a workflow with several actions and calls, and tool_ledger has 3 rows for it",
        ),
        (lambda _e, _w: sys.exit(), "raised SystemExit for request-1, at `.*`.$"),
        (lambda _e, _w: None, "does it end with `return`"),
        (
            lambda e, w: query(e, sql, id=w),
            "returns a list of rows for request-1: .*attempts.* The check wants a number",
        ),
        (lambda e, w: query(e, sql, id=w)[0], "returns a row for request-1: .*attempts.* The check wants a number"),
        (lambda _e, _w: "1", "returns a text for request-1, 1. Return a whole number"),
        (lambda e, w: query(e, "SELECT nothing FROM tool_ledger"), "raised QueryRefused for request-1: .*nothing"),
        (
            grouped,
            "raised IndexError for a workflow that does not exist: .*at `return query.*tool_ledger has no row for it: what does",
        ),
    ]
    for wrong, hint in hints:
        with pytest.raises(CheckFailed, match=hint) as caught:
            judged(judge, wrong, engine)
        assert not re.search(r"[0-9a-f]{32}", str(caught.value))
        assert caught.value.__suppress_context__
    assert engine.reliability_metrics() == before


def test_the_solution_of_retry_or_checkpoint_is_accepted_and_wrong_answers_are_not() -> None:
    judge = stages.outline("01-retry-or-checkpoint").exercise("help_desk").judge
    assert judged(judge, retry_or_checkpoint.help_desk).startswith("Solved")
    made_up = iter(range(10_000))

    def outside_a_step(run: Any, _request: str) -> int:
        ticket = next(made_up)
        run.side_effect("send-ticket", key="send-ticket", arguments=ticket)
        return ticket

    def made_in_a_step(
        run: Any, *, sends: bool = True, returns: bool = True, of: Any = None, twice: bool = False
    ) -> Any:
        ticket = run.step("ticket", of or (lambda: next(made_up)))
        if sends:
            run.side_effect("send-ticket", key="send-ticket", arguments=ticket)
        if twice:
            run.side_effect("send-ticket", key="send-ticket-2", arguments=ticket)
        return ticket if returns else None

    def constant(run: Any, _request: str) -> int:
        run.side_effect("send-ticket", key="send-ticket", arguments=42)
        return 42

    def by_name(run: Any, _request: str) -> Any:
        run.side_effect("send-ticket", key="send-ticket", arguments=run.run_id)
        return run.run_id

    tickets: dict[str, int] = {}

    def remembers(run: Any, _request: str) -> int:
        run.step("ticket", lambda: "written down")
        ticket = tickets.setdefault(run.run_id, next(made_up))
        run.side_effect("send-ticket", key="send-ticket", arguments=ticket)
        return ticket

    def by_the_hour(run: Any, _request: str) -> str:
        ticket = f"{run.step('ticket', lambda: next(made_up))} at {time.strftime('%H')}"
        run.side_effect("send-ticket", key="send-ticket", arguments=ticket)
        return ticket

    def under_another_key(run: Any, _request: str) -> Any:
        ticket = run.step("ticket", lambda: next(made_up))
        run.side_effect("send-ticket", key=str(random.random()), arguments=ticket)
        return ticket

    def empty(run: Any, _request: str) -> Any:
        run.side_effect("send-ticket", key="send-ticket")

    hints: list[tuple[Callable[[Any, Any], Any], str]] = [
        (
            outside_a_step,
            "saw 0, and after the crash 1: the ticket was made up again, as the second run could not know",
        ),
        (constant, "Another request got the same ticket, 42: two customers cannot share one"),
        (lambda run, _: made_in_a_step(run, of=lambda: 42), "Another request got the same ticket, 42"),
        (
            lambda run, _: made_in_a_step(run, of=7),
            r"run\.step\(\) takes a function, which it calls itself: put `lambda:`",
        ),
        (by_name, "The ticket run-1 is the same after the crash, and no checkpoint holds it: it was not made up"),
        (
            lambda run, _: (made_in_a_step(run, sends=False), by_name(run, _))[1],
            "The ticket run-1 is the same after the crash, and no checkpoint holds it",
        ),
        (remembers, "the ticket was made up again"),
        (counted_in_memory, "Another request got the same ticket, 1, from a process that has just started"),
        (goes_on, "goes on after the crash: it catches what ends its run"),
        (by_the_hour, "saw .*, and after the crash .*: the ticket was made up again"),
        (lambda run, _: made_in_a_step(run, of=lambda: random.randrange(100)), "Another request got the same ticket"),
        (empty, "its arguments are None: the customer reads no ticket"),
        (lambda run, _: made_in_a_step(run, sends=False), "No message was sent. Your function returned without a call"),
        (
            lambda run, _: made_in_a_step(run, twice=True),
            r"One run sent 2 messages: (\d+), \1\. The customer wants one",
        ),
        (lambda run, _: made_in_a_step(run, returns=False), r"The customer saw \d+, and your function returns nothing"),
        (
            lambda run, _: made_in_a_step(run) + 1,
            r"The customer saw (\d+), a number, and your function returns \d+, a number.",
        ),
        (
            lambda run, _: int(made_in_a_step(run, of=lambda: str(next(made_up)))),
            r"The customer saw (\d+), a text, and your function returns \1, a number. Send the ticket itself",
        ),
        (
            under_another_key,
            r"under the key run-1:0\.\d+, and after the crash under run-1:0\.\d+: to the tool these are two",
        ),
        (lambda run, _: run.wait_for_event("reply", "reply"), "waits for an event, and nobody delivers one here"),
        (lambda run, _: run.step("ticket", 5), "'int' object is not callable, at .*put `lambda:` before the value"),
    ]
    for wrong, hint in hints:
        with pytest.raises(CheckFailed, match=hint):
            judged(judge, wrong)

    def stub(_run: Any, _request: str) -> int:
        raise NotImplementedError

    assert judged(judge, stub) == NOT_SOLVED


def test_the_solution_of_durable_checkpoints_is_accepted_and_wrong_schedules_are_told_where_they_go_wrong(
    engine: Engine,
) -> None:
    judge = stages.outline("02-durable-checkpoints").exercise("lose_a_worker").judge
    for line in (durable_checkpoints.lose_a_worker(), "A*2 A. A! expire B*", "B*3 B! expire A*", "A*3 A! expire A+ A*"):
        assert judged(judge, lambda line=line: line, engine).startswith("Solved")

    def stub() -> str:
        raise NotImplementedError

    assert judged(judge, stub, engine) == NOT_SOLVED
    hints: list[tuple[Any, str]] = [
        (
            "A*2 A! expire B*",
            "history, entry 4: the worker was killed before checkpoint plan. It had computed .* computed 2 times.$",
        ),
        ("A*2 A! expire", "killed before checkpoint plan. It had computed the plan and not committed it.$"),
        (
            "A*4 A! expire B*",
            "entry 6: the worker was killed before tool resolve-account. That is too late: an entry before",
        ),
        (
            "A A! expire B*",
            "entry 3: the worker was killed before checkpoint classify. That is too early: no entry before",
        ),
        ("A*", "No worker is killed in your schedule: its history has 8 entries, and no kill"),
        (
            "A*3 expire B* A!",
            "the worker was killed before intent resolve-account. That is too late: an entry before it commits",
        ),
        ("A*3 expire B B! expire C*", "It was B, and the checkpoint of plan was committed by A"),
        ("A*3 A! B*", "state PLANNED, and lease_owner is A, which is dead. Its lease has not ended"),
        ("A*3 A! expire", "state PLANNED, and lease_owner is still A: its lease has ended, and nobody has claimed"),
        ("A*3 A! expire B*2", "state ACTION_PENDING, and lease_owner is B, which took over and did not finish"),
        ("A*3 A! expire B*2 B! expire", "lease_owner is B, which took over and did not finish"),
        ("without=intent A*3 A! expire B*", "Leave without=intent out"),
        ("A*3 A! expire expire B*", "cannot be played to its end: .*This was move"),
        ("A*3 crash", "cannot be read: .*crash"),
        ("", "has no move"),
        (None, "does it end with `return`"),
        (["A*3"], "returns a list"),
    ]
    for wrong, hint in hints:
        with pytest.raises(CheckFailed, match=hint):
            judged(judge, lambda wrong=wrong: wrong, engine)


def test_the_solution_of_leases_and_fencing_is_accepted_and_each_gap_in_a_guard_is_told(engine: Engine) -> None:
    judge = stages.outline("03-leases-and-fencing").exercise("guard").judge
    row, owner, token, runs = (part.strip() for part in leases_and_fencing.guard().split("AND"))
    whole = " AND ".join((row, owner, token, runs))
    held = " AND ".join(f"w.{part}" for part in (owner, token, runs))
    for accepted in (
        leases_and_fencing.guard(),
        f"WHERE {whole}",
        f"{whole} AND status = 'ready'",
        f"{whole} -- and nobody else",
    ):
        assert judged(judge, lambda accepted=accepted: accepted, engine).startswith("Solved")

    def stub() -> str:
        raise NotImplementedError

    assert judged(judge, stub, engine) == NOT_SOLVED
    without = {
        part: " AND ".join(one for one in (row, owner, token, runs) if one != part) for part in (row, owner, token)
    }
    hints: list[tuple[Any, str]] = [
        (without[token], "column fence_token: it is 2, and your guard lets a write under token 1 through"),
        (without[owner], "column lease_owner: it is B, and your guard lets A write"),
        (without[row], "your guard lets one write for request-1 change both rows"),
        (
            f"{row} AND {owner} AND {token}",
            "column lease_expires_at: A's lease ended a second ago, and your guard lets A",
        ),
        (
            "id = 'request-1' AND lease_owner = 'A' AND fence_token = 1 AND " + runs,
            "row 'request-10' with lease_owner B.7",
        ),
        (whole.replace("= :token", "<= :token"), "does not let|lets it write|lets a write under"),
        (
            whole.replace("= :token", ">= :token"),
            "with lease_owner A, fence_token 0|lets a write under token 1|fence_token",
        ),
        (f"{row} AND lease_owner ILIKE :worker AND {token} AND {runs}", "with lease_owner a, fence_token 1"),
        (f"{row} AND rtrim(lease_owner) = :worker AND {token} AND {runs}", "with lease_owner A , fence_token 1"),
        (
            f"{row} AND EXISTS (SELECT 1 FROM workflows AS w WHERE {held})",
            "'request-1' with lease_owner A, .*lets it write",
        ),
        (
            f"{row} AND {owner} AND {runs} AND :token = (SELECT max(fence_token) FROM workflows)",
            "fence_token 11 .*lets it",
        ),
        (f"{row} AND {owner} AND {runs} AND fence_token::text LIKE :token || '%'", "fence_token 10 .*lets it write"),
        (f"{row} AND {owner} AND {runs} AND fence_token % 2 = :token % 2", "fence_token 3 .*lets it write"),
        (
            f"{row} AND {owner} AND {token} AND lease_expires_at > updated_at",
            "column lease_expires_at: A's lease ended a second ago",
        ),
        (f"{whole} AND checkpoints = 0", "and your guard does not let it write"),
        (
            f"{whole} AND lease_expires_at > clock_timestamp() + interval '1 minute'",
            "2 seconds left.*does not let it write",
        ),
        (f"{whole} OR ({row} AND {owner} AND fence_token = 0 + :token + 1)", "fence_token: it is 2"),
        (
            f"{row} AND {owner} AND {token} AND lease_expires_at > clock_timestamp() - interval '0.5 s'",
            "the lease ended while the write waited",
        ),
        (whole.replace("clock_timestamp", "now"), "like now.., is that at which the statement or its transaction"),
        (
            whole.replace("clock_timestamp", "statement_timestamp"),
            "the lease ended while the write waited for its turn",
        ),
        ("  ", "returns an empty text. Return the condition"),
        (whole.replace(">", "<"), "your guard does not let A write"),
        (f"{whole} AND lease_owner IS NULL", "your guard does not let A write"),
        (
            f"{row} AND {token} AND (lease_owner = :worker OR lease_owner IS NULL) AND (lease_owner IS NULL OR {runs})",
            "column lease_owner: it is NULL, nobody owns the row",
        ),
        (
            whole.replace("lease_owner", "owner"),
            "does not understand your condition: column .owner. does not exist. The columns are",
        ),
        (whole.replace(" AND ", ", "), "does not understand your condition: syntax error .*with AND between its parts"),
        (whole.replace(":token", ":fence"), "names a value that does not exist: .*Use :id, :worker, :token"),
        ("true; DROP TABLE workflows", "Leave the semicolon out"),
        (None, "does it end with `return`"),
        (5, "returns a number, 5. Return the condition as a text"),
    ]
    for wrong, hint in hints:
        with pytest.raises(CheckFailed, match=hint):
            judged(judge, lambda wrong=wrong: wrong, engine)
