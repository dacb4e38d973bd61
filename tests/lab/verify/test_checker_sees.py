"""What the checker can see: tools of one's own, a server's clock that is set, a tool that forgets."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from agentflow import CrashInjected, Database, Engine, ToolCall, migrate
from agentflow.database import _SETTINGS
from agentflow.evidence import ask
from agentflow.lab.laboratory.laboratory import PATIENT
from agentflow.lab.schedule.grammar import parse
from agentflow.lab.schedule.stepper import Stepper
from agentflow.lab.verify.checker import check_rows, find_mistakes
from tests.support.planted import PLANTED, finished_laboratory, plant

LINES = [
    "A*5 A! expire B*",
    "A*2 A|| expire B* A> A",
    "A*4 A/ A due A*",
    "A A~ A*4 A! A+ expire B*2 expire A* B*",
    "requests=2 A B A B A* B*",
    "workflow=approval_agent A* event:approval event:approval=false B*",
    "workflow=approval_agent A*2 A! event:approval expire B*",
]
CONFIRMED = {
    "an effect that was committed after the acknowledgment", "completed a day before the history says so",
    "a recovery that began before its claim was asked for", "a checkpoint from before its entry's predecessor",
    "an acknowledgment from after the end",
}  # fmt: skip
"""Wrong times that another column of the same statement contradicts, whatever the clock did."""


class Clock:
    """The server's clock, as the statements and the defaults of one schema see it; set() sets it."""

    def __init__(self, database: Database) -> None:
        self.database, self.off = database, 0.0
        plant(Engine(database), "CREATE TABLE {s}.clock AS SELECT 0.0::float8 AS off")
        for name in ("clock_timestamp", "statement_timestamp"):
            self._run(
                f"CREATE FUNCTION {{s}}.{name}() RETURNS timestamptz LANGUAGE sql VOLATILE AS $$ "
                f"SELECT pg_catalog.{name}() + make_interval(secs => off) FROM {{s}}.clock $$"
            )
        self._run(
            "DO $$ DECLARE one text; BEGIN FOR one IN SELECT format('ALTER TABLE %I.%I ALTER %I SET DEFAULT "
            "{s}.clock_timestamp()', table_schema, table_name, column_name) FROM information_schema.columns "
            "WHERE quote_ident(table_schema) IN ('{n}', '{n}_world') AND column_default LIKE '%clock_timestamp()' "
            "LOOP EXECUTE one; END LOOP; END $$"
        )

    def set(self, off: float) -> None:
        """The clock shows so many seconds more than the real one; leases and back-offs last as long as before."""
        self._run(
            f"UPDATE {{s}}.workflows SET next_run_at = next_run_at + make_interval(secs => {off - self.off}), "
            f"lease_expires_at = lease_expires_at + make_interval(secs => {off - self.off}); "
            f"UPDATE {{s}}.clock SET off = {off}"
        )
        self.off = off

    def _run(self, sql: str) -> None:
        with self.database.session() as session:
            name = self.database.schema
            session.execute(sql.replace("{s}", f'"{name}"').replace("{n}", name).encode())


@pytest.fixture
def clock(schema: Callable[..., Database], monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Its functions come before PostgreSQL's own; a real session never looks there."""
    migrate(database := schema(patience=10), laboratory=True)
    first, *rest = _SETTINGS
    path = "search_path = ''"
    assert path in first
    settings = [first.replace(path, f'search_path = "{database.schema}", pg_catalog'), *rest]
    monkeypatch.setattr("agentflow.database._SETTINGS", settings)
    return Clock(database.twin())


@pytest.mark.parametrize("line", LINES)
def test_a_clock_that_is_set_at_any_moment_is_no_fault(clock: Clock, line: str) -> None:
    engine, schedule = Engine(clock.database, policy=PATIENT), parse(line)
    with Stepper(engine) as stepper:
        for seed in range(3):
            chosen, steady = random.Random(f"{line} {seed}"), 0
            stepper.reset(schedule.setting)
            for move in schedule.moves:
                if steady > 1 and chosen.random() < 0.4:
                    clock.set(chosen.choice([0, -30, 3600, -3600, 120]))
                    steady = 0
                steady += 1
                stepper.move(move)
            clock.set(0)
            assert [str(one) for one in find_mistakes(clock.database)] == [], stepper.line


def test_a_clock_that_was_set_is_said_and_hides_no_time_that_its_own_row_contradicts(engine: Engine) -> None:
    own = finished_laboratory(engine)
    assert check_rows(own.database).not_observed == []
    plant(  # the clock is set back while a claim that takes over is carried out
        own,
        "UPDATE {s}.history SET detail = (detail::jsonb || jsonb_build_object('asked_at', at + interval '30 s'))::json "
        "WHERE workflow_id = 'recovered' AND transaction = 'claim' AND fence_token = 2",
    )
    assert [one.rule for one in check_rows(own.database).mistakes] == ["a recovery begins with its claim"]
    back = "SET at = at - interval '1 hour' WHERE workflow_id = 'approved' AND n > 4"
    plant(
        own,
        f"UPDATE {{s}}.history {back}; UPDATE {{s}}.steps SET created_at = created_at - interval '1 hour' "
        "WHERE workflow_id = 'approved' AND position > 1; UPDATE {s}.action_intents SET created_at = created_at - "
        "interval '1 hour', acknowledged_at = acknowledged_at - interval '1 hour' WHERE workflow_id = 'approved'; UPDATE "
        "{s}.workflows SET updated_at = updated_at - interval '1 hour', finished_at = finished_at - interval '1 hour', "
        "completed_at = completed_at - interval '1 hour', next_run_at = next_run_at - interval '1 hour' WHERE id = 'approved'; "
        "UPDATE {w}.tool_ledger SET committed_at = committed_at - interval '1 hour' WHERE workflow_id = 'approved'; "
        "UPDATE {w}.tool_attempts SET came_at = came_at - interval '1 hour' WHERE workflow_id = 'approved'",
    )
    found = check_rows(own.database)
    assert (found.mistakes, [one[:32] for one in found.not_observed]) == ([], ["Not observed: the order of times"])
    for planted in (one for one in PLANTED if one.name in CONFIRMED):
        plant(own, planted.sql)
        told = check_rows(own.database).mistakes
        assert any((one.rule, one.table) == (planted.rule, planted.table) for one in told), planted.name


KEY = "resolve-account"


class Shop:
    """A tool of one's own that heeds keys."""

    def __init__(self) -> None:
        self.done: dict[str | None, list[Any]] = {}

    def __call__(self, call: ToolCall) -> Any:
        one = self.done.setdefault(call.idempotency_key, [call.idempotency_key, call.action, call.workflow_id, 0])
        one[3] += 1
        return {"paid": True}

    def effects(self) -> list[Any]:
        return list(self.done.values())


@pytest.fixture
def shop(engine: Engine) -> Shop:
    """Three workflows paid with a tool of one's own; one of them after a worker had died in the gap."""
    own = engine.tool = Shop()
    for name in ("a", "b", "c"):
        engine.create_workflow("login", workflow_id=name)
    with pytest.raises(CrashInjected):
        engine.run_once("A.1", crash_after_tool_commit=True)
    engine.expire_lease("a")
    assert engine.run_until_idle("B.1") == 3
    return own


def test_an_acknowledged_action_of_an_own_tool_is_no_fault_and_is_not_observed_unless_it_tells(
    engine: Engine, shop: Shop
) -> None:
    blind = check_rows(engine.database)
    assert (blind.mistakes, len(blind.not_observed)) == ([], 1)
    assert "test_checker_sees:Shop did, in planned actions: 3." in blind.not_observed[0]
    told = ask(engine.database, [shop])
    seen = check_rows(engine.database, told=told.effects, asked=told.asked)
    assert (seen.mistakes, seen.not_observed) == ([], [])


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (lambda done: done.pop(f"b:{KEY}"), f"{KEY}: tool_result {{\"paid\":true}}; should be: an effect in the world"),
        (lambda done: done.update(x=[f"b:{KEY}", KEY, "b", 1]), "effects() effect 4 of b: effect 2 of one key"),
        (lambda done: done.update(x=["b:other", KEY, "b", 1]), "effects() effect 4 of b: key b:other"),
        (lambda done: done[f"c:{KEY}"].__setitem__(1, "refund"), "effects() effect 3 of c: refund for c"),
    ],
)  # fmt: skip
def test_what_an_own_tool_tells_is_checked_like_the_ledger(
    engine: Engine, shop: Shop, wrong: Callable[[Any], Any], said: str
) -> None:
    wrong(shop.done)
    told = ask(engine.database, [shop])
    assert said in "\n".join(map(str, check_rows(engine.database, told=told.effects, asked=told.asked).mistakes))


def test_a_second_effect_that_comes_late_because_the_tool_forgot_is_told_as_a_second_effect_only(
    engine: Engine,
) -> None:
    engine.policy = PATIENT
    with Stepper(engine) as stepper:
        stepper.play("A*4 A|| expire B* forget A> A")
        assert {one.rule for one in find_mistakes(engine.database)} == {"one effect for each planned action"}
