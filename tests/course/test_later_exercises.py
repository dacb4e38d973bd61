"""The exercises of 06, 08 and 09: the solution passes, the stub is told what to do, mistakes get a fitting message."""

from __future__ import annotations

import contextlib
import inspect
import itertools
import re
import time
import uuid
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pytest

from agentflow import Engine, Policy, StepFailed
from agentflow.lab.course import judging, stages
from agentflow.lab.course.checks import CheckFailed
from agentflow.lab.course.judging import NOT_SOLVED, judged
from agentflow.lab.course.stages.beyond_the_lab import POLL
from agentflow.lab.laboratory.laboratory import PATIENT
from agentflow.lab.laboratory.scratch_schema import new_name
from agentflow.lab.notebook.tables import query
from agentflow.lab.schedule.stepper import Stepper
from agentflow.worker import Worker
from tests.conftest import rows
from tests.solutions import beyond_the_lab, reliability_evidence, your_own_workflow


def refused(judge: Callable[..., str], function: Callable[..., Any], says: str, *more: Any) -> None:
    """The judge refuses the function with a sentence that holds these words, and nothing of one run."""
    with pytest.raises(CheckFailed, match=re.escape(says)) as caught:
        judged(judge, function, *more)
    assert not re.search(r"[0-9a-f]{32}", str(caught.value))


MADE: list[str] = []  # schemas of this test's judges; tests beside it have others


@pytest.fixture(autouse=True)
def _made(monkeypatch: pytest.MonkeyPatch) -> None:
    def named(prefix: str) -> str:
        MADE.append(new_name(prefix))
        return MADE[-1]

    MADE.clear()
    monkeypatch.setattr(judging, "new_name", named)


def schemas_of_judges(engine: Engine) -> list[dict[str, Any]]:
    """The schemas of this test's judges that are still there."""
    both = [*MADE, *(f"{name}_world" for name in MADE)]
    return rows(engine, "SELECT nspname FROM pg_namespace WHERE nspname = ANY(:both)", both=both)


# -- 06, reliability evidence


def number(sql: str) -> Callable[[Engine], Any]:
    """A function that answers with the one number of this query."""

    def count(engine: Engine) -> Any:
        return next(iter(query(engine, sql)[0].values()))

    return count


BY_KEY = """
    SELECT count(*) FROM (
        SELECT 1 FROM tool_ledger GROUP BY idempotency_key HAVING count(idempotency_key) > 1) AS repeated"""
IN_ALL = "SELECT (SELECT count(*) FROM tool_ledger) - (SELECT count(*) FROM action_intents)"
WITHOUT_A_KEY = """
    SELECT coalesce(sum(n - 1), 0) FROM (
        SELECT count(*) AS n FROM tool_ledger WHERE idempotency_key IS NULL GROUP BY workflow_id, action) AS each"""
PLANNED = """
    SELECT coalesce(sum({}), 0) FROM (
        SELECT workflow_id, action, count(*) AS n, count(idempotency_key) - count(DISTINCT idempotency_key) AS r
        FROM tool_ledger GROUP BY workflow_id, action) AS done
    LEFT JOIN (
        SELECT workflow_id, action, count(*) AS m FROM action_intents WHERE status {} 'REFUSED' GROUP BY workflow_id, action
    ) AS plans USING (workflow_id, action)"""
EACH = "FROM (SELECT count(*) AS n FROM tool_ledger GROUP BY workflow_id, action) AS each"


@pytest.fixture
def judge_06() -> Callable[..., str]:
    return stages.outline("06-reliability-evidence").exercise("duplicate_effects").judge


def test_duplicates_are_counted_by_the_solution_and_the_laboratory_is_left_alone(
    engine: Engine, judge_06: Callable[..., str]
) -> None:
    engine.policy = PATIENT
    with Stepper(engine) as stepper:
        stepper.play("A*5 A! expire B*")
    before = engine.reliability_metrics()
    assert judged(judge_06, reliability_evidence.duplicate_effects, engine).startswith("Solved")
    assert engine.reliability_metrics() == before
    assert schemas_of_judges(engine) == []


def test_the_sum_of_postgresql_counts_as_a_whole_number(engine: Engine, judge_06: Callable[..., str]) -> None:
    assert judged(
        judge_06, number(PLANNED.format("greatest(n - greatest(1, coalesce(m, 1)), r)", "<>")), engine
    ).startswith("Solved")


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (
            number(BY_KEY),
            "Your function returns 0, and 1 is right. Both rows are of request-1 and resolve-account, and no key occurs twice",
        ),
        (
            number(f"SELECT count(*) {EACH} WHERE n > 1"),
            "three effects of one planned action. Your function returns 1, and 2 is right. All three rows are of request-1",
        ),
        (number(IN_ALL), "but both rows are of request-1, and request-2 has none"),
        (
            number("SELECT coalesce(sum(attempts), 0)::int - count(*) FROM tool_ledger"),
            "The one row has attempts 2: two calls, one effect.",
        ),
        (number("SELECT count(*) FROM tool_ledger"), "Your function returns 1, and 0 is right"),
        (number(f"SELECT coalesce(max(n), 0) {EACH}"), "Your function returns 1, and 0 is right"),
        (number("SELECT nothing FROM tool_ledger"), "QueryRefused for the laboratory of this notebook"),
        (number(f"SELECT sum(n - 1) {EACH}"), "returns nothing for the laboratory of this notebook, NULL"),
        (lambda engine: Decimal("NaN"), "returns a Decimal for the laboratory of this notebook"),
        (lambda engine: query(engine, BY_KEY), "returns a list of rows"),
        (lambda engine: 0, "Your function returns 0, and 1 is right"),
        (
            number("SELECT count(*) - 1 FROM tool_ledger"),
            "tool_ledger is empty the world holds nothing. Your function returns -1",
        ),
        (number("SELECT greatest(count(*) - 1, 0) FROM tool_ledger"), "The rows are of request-1 and of request-2."),
        (
            number("SELECT count(*) - count(DISTINCT workflow_id) FROM tool_ledger"),
            "Both rows are of request-1, one of unlock-account, one of write-letter.",
        ),
        (
            number("SELECT count(*) - count(DISTINCT action) FROM tool_ledger"),
            "The rows are of request-1 and of request-2.",
        ),
        (number(WITHOUT_A_KEY), "three effects of two planned e-mails. Your function returns 2, and 1 is right."),
        (
            number(f"SELECT coalesce(sum(n - 1), 0) {EACH}"),
            "one for each of two planned e-mails. Your function returns 1",
        ),
        (
            number(PLANNED.format("greatest(0, n - coalesce(m, 1))", "<>")),
            "two effects under one key, and another e-mail that is planned and not yet sent. Your function returns 0",
        ),
        (
            number(PLANNED.format("greatest(n - greatest(1, coalesce(m, 1)), r)", "IS DISTINCT FROM 'X' OR status <>")),
            "those that the tool refused are not counted among the plans",
        ),
        (lambda engine: engine.reliability_metrics()["duplicate_business_effects"], "that is the query to be written"),
    ],
)
def test_a_wrong_count_of_duplicates_is_told_what_it_forgets(
    engine: Engine, judge_06: Callable[..., str], wrong: Callable[[Engine], Any], says: str
) -> None:
    refused(judge_06, wrong, says, engine)
    assert schemas_of_judges(engine) == []


# -- 08, your own workflow


def shop(run: Any, item: str, *, keys: Any = None, first: str = "charge", refunds: str = "refused") -> Any:
    """An order with the mistake that was asked for."""
    keys = keys or (lambda action: action)
    if first == "ship":
        run.side_effect("ship", key=keys("ship"), arguments=item)
    run.side_effect("charge", key=keys("charge"), arguments=item)
    if first == "ship":
        return None
    try:
        run.side_effect("ship", key=keys("ship"), arguments=item)
    except StepFailed:
        if refunds == "never":
            return "sorry"
    else:
        if refunds != "always":
            return "shipped"
    return run.side_effect("refund", key=keys("refund"), arguments=item)


def no_catch(run: Any, item: str) -> Any:
    run.side_effect("charge", key="charge", arguments=item)
    run.side_effect("ship", key="ship", arguments=item)


def all_in_one(run: Any, item: str) -> Any:
    try:
        run.side_effect("charge", key="charge", arguments=item)
        return run.side_effect("ship", key="ship", arguments=item)
    except StepFailed:
        return run.side_effect("refund", key="refund", arguments=item)


def ships_anyway(run: Any, item: str) -> Any:
    with contextlib.suppress(StepFailed):
        run.side_effect("charge", key="charge", arguments=item)
    try:
        return run.side_effect("ship", key="ship", arguments=item)
    except StepFailed:
        return run.side_effect("refund", key="refund", arguments=item)


def hides_the_refunds_refusal(run: Any, item: str) -> Any:
    try:
        return shop(run, item)
    except StepFailed:
        return "sorry"


def pays_twice(run: Any, item: str) -> Any:
    run.side_effect("charge", key="charge-2", arguments=item)
    return shop(run, item)


def only_charges(run: Any, item: str) -> Any:
    run.side_effect("charge", key="charge", arguments=item)


def waits(run: Any, item: str) -> Any:
    shop(run, item)
    run.wait_for_event("paid", "paid")


def only_once_in_memory(run: Any, item: str) -> Any:
    if run.run_id not in DONE:
        DONE.add(run.run_id)
        run.side_effect("charge", key="charge", arguments=item)
    try:
        run.side_effect("ship", key="ship", arguments=item)
    except StepFailed:
        run.side_effect("refund", key="refund", arguments=item)


def refunds_in_a_step(run: Any, item: str) -> Any:
    run.side_effect("charge", key="charge", arguments=item)
    try:
        run.side_effect("ship", key="ship", arguments=item)
    except StepFailed:
        run.step("refund", lambda: run.side_effect("refund", key="refund", arguments=item))


def refunds_and_fails(run: Any, item: str) -> Any:
    run.side_effect("charge", key="charge", arguments=item)
    try:
        run.side_effect("ship", key="ship", arguments=item)
    except StepFailed:
        run.side_effect("refund", key="refund", arguments=item)
        raise


DONE: set[str] = set()
COUNTER, STARTED = itertools.count(), str(uuid.uuid4())[:9]


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (
            no_catch,
            "the refusal is raised as StepFailed, and nothing caught it. The customer has paid for nothing.",
        ),
        (
            lambda run, item: shop(run, item, refunds="always"),
            "and it should hold charge, ship. A customer who has the lamp gets no refund",
        ),
        (
            lambda run, item: shop(run, item, refunds="never"),
            "A customer who was charged and got nothing gets a refund.",
        ),
        (lambda run, item: shop(run, item, first="ship"), "The shop was first asked to ship. Charge first"),
        (
            lambda run, item: shop(run, item, keys=lambda a: f"{a}-{next(COUNTER)}"),
            "Keys must be the same in every run",
        ),
        (lambda run, item: shop(run, item, keys=lambda a: "order"), "your workflow failed: ActionMismatch"),
        (
            lambda run, item: shop(run, item, keys=lambda a: f"{a}-{time.strftime('%H')}"),
            "Keys must be the same in every run",
        ),
        (
            lambda run, item: shop(run, item, keys=lambda a: f"{a}-{time.strftime('%Y-%m-%d')}"),
            "Keys must be the same in every run",
        ),
        (only_once_in_memory, "and the reply to charge is lost, the next worker asked for something other"),
        (refunds_in_a_step, "side_effect 'refund' was called inside step 'refund'"),
        (
            refunds_and_fails,
            "the customer has the money back, and then your function raises StepFailed. Return instead",
        ),
        (lambda run, item: shop(run, item, keys=lambda a: f"{a}-{STARTED}"), "Keys must be the same in every run"),
        (all_in_one, "When charging is refused, the world holds refund, and it should hold nothing."),
        (
            hides_the_refunds_refusal,
            "your workflow is completed: the customer has paid, has nothing, and nobody is told",
        ),
        (ships_anyway, "When charging is refused, the world holds ship, and it should hold nothing."),
        (pays_twice, "When all goes well, there are 2 effects of charge: it was asked for under more than one key."),
        (only_charges, "When all goes well, nothing was shipped. The shop was only asked to charge."),
        (lambda run, item: item, "Nothing was asked of the shop."),
        (lambda run, item: run.side_effect("pay", key="pay"), "was asked for 'pay'"),
        (waits, "your workflow is left waiting"),
        (lambda run: None, "your workflow failed: TypeError"),
    ],
)
def test_an_order_that_leaves_the_customer_alone_is_told_when(
    engine: Engine, wrong: Callable[..., Any], says: str
) -> None:
    refused(stages.outline("08-your-own-workflow").exercise("order").judge, wrong, says, engine)
    assert schemas_of_judges(engine) == []


def test_the_order_of_the_solution_survives_every_death(engine: Engine) -> None:
    judge = stages.outline("08-your-own-workflow").exercise("order").judge
    assert judged(judge, your_own_workflow.order, engine).startswith("Solved")
    assert schemas_of_judges(engine) == []


# -- 09, beyond the lab


def with_(**changes: Policy) -> Callable[[], Any]:
    """The solution with other settings for some services."""
    return lambda: {**beyond_the_lab.settings(), **changes}


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (with_(chat=Policy()), "chat: a lease of 30 s. A death is noticed by the first poll after the lease ends"),
        (with_(chat=Policy(lease_seconds=14.9)), "so up to 15.9 s later, and 15 s is the limit."),
        (
            with_(chat=Policy(lease_seconds=3)),
            "A pause of 2 s that begins just before a renewal leaves it 3 s without one",
        ),
        (with_(video=Policy()), "video: a lease of 30 s ends while the step"),
        (with_(video=Policy(lease_seconds=700)), "may be a third old when the step begins, and 466.667 s are left"),
        (
            with_(video=Policy(lease_seconds=100_000)),
            "noticed up to 100001 s later, and 3600 s is the limit.",
        ),
        (with_(rates=Policy()), "rates: the last of 4 tries comes 1.4 s after the first"),
        (with_(rates=Policy(max_attempts=40, first_delay=1, max_delay=3600)), "86400 s later nobody needs the answer."),
        (lambda: {"chat": Policy()}, "a Policy for each of chat, video, rates. Yours has none for video, rates."),
        (dict, "Yours has none for chat, video, rates."),
        (with_(batch=Policy()), "Yours also has one for batch."),
        (lambda: (1, 2, 3), "Yours is a tuple."),
        (lambda: dict.fromkeys(("chat", "video", "rates"), 30), "chat: 30 is a number. Return Policy(...)."),
        (lambda: int("x"), "Your function raised ValueError when it was called"),
        (lambda: {"chat": Policy(lease_seconds=float("nan"))}, "Setting lease_seconds must be a number from 0.1 to"),
        (with_(rates=Policy(max_attempts=10**9, first_delay=1)), "rates: max_attempts is 1000000000. Give a whole"),
    ],
)
def test_settings_that_do_not_fit_are_told_which_figure(wrong: Callable[[], Any], says: str) -> None:
    refused(stages.outline("09-beyond-the-lab").exercise("settings").judge, wrong, says)


def test_the_settings_of_the_solution_fit() -> None:
    judge = stages.outline("09-beyond-the-lab").exercise("settings").judge
    assert judged(judge, beyond_the_lab.settings).startswith("Solved")
    assert judged(judge, with_(chat=Policy(lease_seconds=14))).startswith("Solved")


def test_the_poll_that_is_counted_is_a_workers_own() -> None:
    assert inspect.signature(Worker).parameters["poll_seconds"].default == POLL


# -- the stubs


@pytest.mark.parametrize(
    ("stage", "name"),
    [
        ("06-reliability-evidence", "duplicate_effects"),
        ("08-your-own-workflow", "order"),
        ("09-beyond-the-lab", "settings"),
    ],
)
def test_a_stub_is_told_what_to_do(engine: Engine, stage: str, name: str) -> None:
    def stub(*_: Any) -> Any:
        raise NotImplementedError

    more = () if name == "settings" else (engine,)
    assert judged(stages.outline(stage).exercise(name).judge, stub, *more) == NOT_SOLVED
