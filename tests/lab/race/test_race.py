"""Races: real processes on one queue, and what their rows say of who waited for whom."""

from __future__ import annotations

import multiprocessing
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any
from xml.etree import ElementTree

import pytest
from sqlalchemy import text

from agentflow import Database, Engine, migrate
from agentflow.errors import NotALaboratory, RaceError
from agentflow.lab.notebook.tables import worker_name
from agentflow.lab.pictures.saved import saved
from agentflow.lab.race.picture import Race, draw_race
from agentflow.lab.race.race import CLAIMS, compare_claims, contend, observed, race, read_race
from agentflow.lab.race.result import Look
from agentflow.lab.schedule.commit_order import Commit
from agentflow.lab.schedule.grammar import MAX_REQUESTS, parse
from agentflow.lab.schedule.stepper import Stepper
from agentflow.model import Boundary, Claim
from agentflow.worker import new_identity
from tests.support.helpers import Unlucky, database_of_its_own, eventually
from tests.support.isolation import Session, asked
from tests.support.isolation import race as held_apart

SVG = "{http://www.w3.org/2000/svg}"


def some(count: int) -> list[str]:
    return [f"request {number}: I cannot login" for number in range(1, count + 1)]


def tiny(run: Any, request: str) -> str:
    """A workflow that is over as soon as it is claimed, so that claims meet."""
    return request


class Tiny(Engine):
    """Its workflows have no step: all that its workers do is claim and complete."""

    def __init__(self, database: Database, **options: Any) -> None:
        super().__init__(database, workflows={"support_agent": tiny}, **options)


class Dying(Engine):
    """Its workers end at their first workflow."""

    def claim_workflow(self, worker_id: str, lease_seconds: float | None = None, *, names: Any = None) -> Claim | None:
        if super().claim_workflow(worker_id, lease_seconds, names=names):
            raise SystemExit(9)
        return None


class Blind(Engine):
    """Its workers never see any work."""

    def claim_workflow(self, worker_id: str, lease_seconds: float | None = None, *, names: Any = None) -> None:
        return None


@pytest.fixture(scope="module")
def both(url: str) -> dict[str, Race]:
    """One race with each claim."""
    compared = compare_claims(some(MAX_REQUESTS), url=url)
    return {"skip_locked": compared.skip_locked, "plain_lock": compared.plain_lock}


@pytest.fixture
def elsewhere(url: str) -> Iterator[str]:
    """A database in which nothing is but what a test leaves there."""
    with database_of_its_own(url) as own:
        yield own


def left_in(url: str) -> list[Any]:
    """The schemas, and the sessions of others, in a database."""
    database = Database(url)
    with database.alchemy.connect() as connection:
        schemas = (
            connection.execute(text("SELECT nspname FROM pg_namespace WHERE nspname LIKE 'race%'")).scalars().all()
        )
        sessions = connection.execute(
            text(
                "SELECT application_name FROM pg_stat_activity "
                "WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'"
            )
        )
        found = [*schemas, *sessions.scalars().all()]
    database.close()
    return found


def claimed_by(entries: Iterator[dict[str, Any]]) -> list[tuple[str, int, str]]:
    """Workflow, token and worker of each claim."""
    return sorted(
        (entry["workflow_id"], entry["fence_token"], worker_name(entry["worker"]))
        for entry in entries
        if entry["event"] == "workflow_claimed"
    )


# -- what always holds ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("claim", CLAIMS)
def test_each_request_is_claimed_once_and_leaves_one_effect(both: dict[str, Race], claim: str) -> None:
    raced = both[claim]
    assert sorted(str(look.workflow) for look in raced.claims) == [f"request-{n}" for n in range(1, MAX_REQUESTS + 1)]
    assert {look.token for look in raced.claims} == {1}
    assert (raced.completed, raced.effects, raced.attempts, raced.refused) == (MAX_REQUESTS,) * 3 + ([],)


def test_workers_really_run_side_by_side(url: str) -> None:
    raced = race(some(24), url=url)
    assert len({look.worker for look in raced.claims}) >= 2
    bars = [(held.first, held.last, held.look.worker) for held in raced.held]
    assert any(a < c < b and mine != other for a, b, mine in bars for c, _, other in bars)


@pytest.mark.parametrize("claim", CLAIMS)
def test_each_worker_stops_at_an_empty_claim(both: dict[str, Race], claim: str) -> None:
    ends = {worker: [look for look in both[claim].looks if look.worker == worker][-1] for worker in "ABCD"}
    assert all(look.workflow is None and not look.work_left for look in ends.values())


def test_one_worker_alone_meets_nobody(url: str) -> None:
    for claim in CLAIMS:
        raced = race(some(3), url=url, workers=1, claim=claim)
        assert [look.met for look in raced.looks] == [()] * 4
        assert raced.schedule == "requests=3 A*21"


# -- waiting -------------------------------------------------------------------------------------------------------------


def test_the_plain_lock_is_the_real_claim_without_skip_locked(engine: Engine) -> None:
    ours, plain = (observed(Engine(engine.database), claim).database.sql("claim") for claim in CLAIMS)
    assert ours.replace(" SKIP LOCKED", "") == plain != ours
    real = engine.database.sql("claim")
    assert re.sub(r",\s+'xid'.*'snapshot', pg_current_snapshot\(\)::text", "", ours) == real


@pytest.mark.parametrize("claim", CLAIMS)
@pytest.mark.parametrize("end", ["COMMIT", "ROLLBACK"])
def test_rows_say_who_met_whose_uncommitted_claim(engine: Engine, claim: str, end: Any) -> None:
    """A's claim is held uncommitted while B claims: what B does is seen from outside, and then read from the rows."""
    racing = observed(Engine(engine.database), claim)
    racing.create_workflows(some(3), workflow_ids=["request-1", "request-2", "request-3"])
    first, second = (asked(racing.database, lambda e, who=who: e.claim_workflow(who)) for who in ("A.1", "B.1"))
    seen = held_apart(racing.database, first, second, end)
    assert seen.waited is (claim == "plain_lock")
    passed = end == "COMMIT" or claim == "skip_locked"
    assert [row["id"] for row in seen.second] == ["request-2" if passed else "request-1"]
    rows = read_race(racing, claim, "AB", 3, {})
    met = {str(look.workflow): look.met for look in rows.claims if look.worker == "B"}
    if end == "COMMIT":
        assert met == {"request-2": ("A",)}
        assert [len(rows.waited), len(rows.passed_over)] == ([0, 1] if claim == "skip_locked" else [1, 0])
    else:
        assert list(met.values()) == [()]


def test_a_claim_behind_a_committed_one_met_nobody(engine: Engine) -> None:
    racing = observed(Engine(engine.database), "plain_lock")
    racing.create_workflows(some(2), workflow_ids=["request-1", "request-2"])
    for who in ("A.1", "B.1"):
        racing.claim_workflow(who)
    assert [look.met for look in read_race(racing, "plain_lock", "AB", 2, {}).claims] == [(), ()]


def test_with_a_plain_lock_claims_wait_and_with_skip_locked_none_does(url: str) -> None:
    """Many tiny workflows and one barrier: sooner or later claims meet, whatever the machine."""
    plain = eventually(lambda: waits if (waits := _tiny_race(url, "plain_lock")).waited else None, 60)
    assert plain.passed_over == [] and 0 < plain.waiting < 1
    assert all(look.got > look.asked for look in plain.waited)
    skip = eventually(lambda: passes if (passes := _tiny_race(url, "skip_locked")).passed_over else None, 60)
    assert skip.waited == [] and skip.waiting == 0
    for raced in (plain, skip):
        assert all(set(look.met) <= set("ABCD") - {look.worker} for look in raced.claims)


def _tiny_race(url: str, claim: str) -> Race:
    return race(some(60), url=url, claim=claim, make_engine=Tiny)


def test_a_claim_may_find_nothing_although_work_is_left(engine: Engine) -> None:
    """The only row is locked by somebody else's transaction; when that ends the worker finds it after all."""
    engine.create_workflow("login", workflow_id="request-1")
    found: list[Boundary] = []

    def note(boundary: Boundary) -> None:
        if (boundary.transaction, boundary.edge, boundary.workflow) == ("claim", "after", None):
            found.append(boundary)

    with Session(engine.database) as other, ThreadPoolExecutor(1) as threads:
        other.run("BEGIN")
        other.run(f'SELECT 1 AS one FROM "{engine.database.schema}".workflows FOR UPDATE')
        empty = threads.submit(contend, engine.with_hook(note), new_identity("A"), lambda: datetime.now(UTC))
        eventually(lambda: len(found) >= 2)
        other.run("ROLLBACK")
        told = [left for _, _, left in empty.result(20)]
    assert told[:2] == [True, True] and told[-1] is False and not any(told[told.index(False) :])
    assert engine.get_workflow("request-1")["status"] == "completed"  # type: ignore[index]


# -- the schedule --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("claim", CLAIMS)
def test_the_schedule_played_gives_the_same_claims_to_the_same_workers(
    both: dict[str, Race], claim: str, engine: Engine
) -> None:
    raced = both[claim]
    assert str(parse(raced.schedule)) == raced.schedule
    with Stepper(engine) as stepper:
        stepper.play(raced.schedule)
        assert stepper.line == raced.schedule
        played = [entry for n in range(1, MAX_REQUESTS + 1) for entry in engine.history(f"request-{n}")]
    assert claimed_by(iter(played)) == sorted((str(look.workflow), 1, look.worker) for look in raced.claims)
    assert sum(entry["event"] == "workflow_completed" for entry in played) == MAX_REQUESTS


def test_leases_that_end_and_writes_that_are_refused_are_in_the_schedule(url: str, engine: Engine) -> None:
    raced = race(some(4), url=url, workers=3, make_engine=Unlucky)
    assert raced.effects == 4 and raced.completed == 4
    assert sorted(look.token or 0 for look in raced.claims)[:4] == [1] * 4 and len(raced.claims) > 4
    assert raced.refused and all(entry.token == 1 for entry in raced.refused)
    assert raced.schedule.count("expire@") == 4
    with Stepper(engine) as stepper:
        stepper.play(raced.schedule)
        played = [entry for n in range(1, 5) for entry in engine.history(f"request-{n}")]
    assert claimed_by(iter(played)) == sorted((str(look.workflow), look.token, look.worker) for look in raced.claims)
    assert sum(entry["event"] == "write_refused" for entry in played) == len(raced.refused)
    assert {held.ended for held in raced.held if held.look.token == 1} == {"refused"}


def entry(worker: str, number: int, event: str, at: float, token: int = 1) -> Commit:
    return Commit(worker, f"request-{number}", event, event.split("_")[0], None, token, at)


def made(entries: list[Commit], looks: list[Look] | None = None, claim: str = "skip_locked", **more: Any) -> Race:
    return Race(claim, ("A", "B"), 2, tuple(looks or ()), tuple(entries), 0, 0, **more)


def test_first_claims_stand_in_the_order_of_the_queue_whatever_the_clock_said() -> None:
    """B read the clock before A did, although B passed over the row that A had locked."""
    claims = [entry("A", 1, "workflow_claimed", 2.0), entry("B", 2, "workflow_claimed", 1.0)]
    raced = made([*claims, entry("B", 2, "workflow_completed", 1.5), entry("A", 1, "workflow_completed", 3.0)])
    assert [(commit.worker, commit.at) for commit in raced.commits] == [("A", 2.0), ("B", 1.0), ("B", 1.5), ("A", 3.0)]
    assert raced.schedule == "requests=2 A B*2 A"


def test_a_claim_that_passed_over_an_expired_row_stands_before_its_expiry_or_after_its_next_claim() -> None:
    """B got request-2 while request-1 was free again: somebody held that row locked, so B's claim comes elsewhere."""
    expired = Commit(None, "request-1", "lease_expired_for_test", "expire", None, None, 2.0)
    taken = [entry("A", 1, "workflow_claimed", 4.0, token=2), entry("A", 1, "workflow_completed", 5.0, token=2)]
    other = [entry("B", 2, "workflow_claimed", 3.0), entry("B", 2, "workflow_completed", 3.5)]
    raced = made([entry("A", 1, "workflow_claimed", 1.0), expired, *taken, *other])
    assert raced.schedule == "requests=2 A expire@1 A B*2 A"
    itself = entry("B", 1, "workflow_claimed", 4.0, token=2)
    raced = made([entry("A", 1, "workflow_claimed", 1.0), expired, itself, *other])
    assert raced.schedule == "requests=2 A B expire@1 B*2"


def test_a_lease_that_ran_out_by_itself_is_ended_by_a_move() -> None:
    taken = entry("B", 1, "workflow_claimed", 3.0, token=2)
    raced = made([entry("A", 1, "workflow_claimed", 1.0), taken, entry("B", 1, "workflow_completed", 4.0, token=2)])
    assert raced.schedule == "requests=2 A expire@1 B*2"
    refused = Commit("A", "request-1", "write_refused", "checkpoint", "classify", 1, 2.0)
    raced = made([entry("A", 1, "workflow_claimed", 1.0), refused, taken])
    assert raced.schedule == "requests=2 A expire@1 A B"


# -- to look at ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("claim", CLAIMS)
@pytest.mark.parametrize("milliseconds", [False, True])
def test_the_picture_holds_each_claim_wait_and_empty_claim(
    both: dict[str, Race], claim: str, milliseconds: bool
) -> None:
    raced = both[claim]
    picture = draw_race(raced, milliseconds)
    root = ElementTree.fromstring(picture.svg)
    marks = [mark for mark in root.iter(f"{SVG}g") if mark.get("class") == "ev"]
    bars = [(mark.get("data-worker"), mark.get("data-workflow")) for mark in marks if mark.get("data-workflow")]
    assert sorted(bars) == sorted((look.worker, look.workflow) for look in raced.claims)
    parts = [part.get("class") for part in root.iter() if part.get("class") in ("wait", "over", "empty", "wall")]
    assert parts.count("wait") == len(raced.waited) and parts.count("empty") == len(raced.empty)
    assert parts.count("over") == len(raced.passed_over) and parts.count("wall") == 0
    assert [float(str(mark.get("data-n"))) for mark in marks] == sorted(
        float(str(mark.get("data-n"))) for mark in marks
    )


def test_the_picture_is_named_described_and_free_of_ids(both: dict[str, Race]) -> None:
    picture = both["plain_lock"].picture()
    root = ElementTree.fromstring(picture.svg)
    assert root.get("role") == "img" and "with a plain lock" in str(root.get("aria-label"))
    assert root.findtext(f"{SVG}desc") == picture.text == both["plain_lock"].text()
    assert all(mark.get("aria-label") == mark.findtext(f"{SVG}title") for mark in root.iter(f"{SVG}g"))
    assert " id=" not in picture.svg and "var(--jp-layout-color1,#fff)" in picture.svg
    assert draw_race(both["plain_lock"]).svg == picture.svg
    bundle = picture._repr_mimebundle_()
    assert saved(picture.svg) == bundle["text/html"] and bundle["text/plain"] == picture.text


def test_what_is_measured_is_said_to_be(both: dict[str, Race]) -> None:
    for raced in both.values():
        assert "measured in this run" in raced.text() and "measured in this run" in raced.table().caption
        assert "measured in this run" in raced.picture().svg


def test_a_wait_is_a_hollow_bar_before_its_workflow_and_names_the_neighbour() -> None:
    looks = [
        Look("A", "request-1", 1, 0.0, 0.1), Look("B", "request-2", 1, 0.0, 2.0, ("A",)), Look("A", None, None, 5.0, 5.1),
        Look("B", None, None, 4.0, 4.1, (), True),
    ]  # fmt: skip
    entries = [
        entry("A", 1, "workflow_claimed", 0.1), entry("A", 1, "checkpoint_committed", 1.0),
        entry("B", 2, "workflow_claimed", 2.0), entry("B", 2, "workflow_completed", 3.0),
        entry("A", 1, "workflow_completed", 4.9),
    ]  # fmt: skip
    svg = draw_race(made(entries, looks, "plain_lock")).svg
    assert "waits for A" in svg and "B finds nothing, although a row looks runnable right afterwards." in svg
    mark = next(m for m in ElementTree.fromstring(svg).iter(f"{SVG}g") if m.get("data-workflow") == "request-2")
    hollow = mark.find(f"{SVG}rect[@class='wait']")
    bar = mark.find(f"{SVG}rect")
    assert hollow is not None and bar is not None
    assert float(str(hollow.get("x"))) + float(str(hollow.get("width"))) == pytest.approx(float(str(bar.get("x"))))
    assert "after waiting for A" in str(mark.get("aria-label"))
    over = draw_race(made(entries, looks, "skip_locked")).svg
    assert 'class="wait"' not in over and 'class="over"' in over and "passes over A" in over


def test_a_refused_write_gets_the_one_box() -> None:
    claims = [entry("A", 1, "workflow_claimed", 1.0), entry("B", 1, "workflow_claimed", 2.0, token=2)]
    met = {"guards": ["token", "owner"], "row_token": 2, "row_owner": "B", "row_status": "ready"}
    refused = Commit("A", "request-1", "write_refused", "checkpoint", "classify", 1, 3.0, met)
    looks = [Look("A", "request-1", 1, 0.5, 1.0), Look("B", "request-1", 2, 1.5, 2.0)]
    svg = draw_race(made([*claims, refused, refused], looks)).svg
    assert svg.count("1 ≠ 2: token, owner") == 1 and svg.count('class="wall"') == 2
    refusal = "A tries to write checkpoint classify with token 1; stopped by {}; refused, 0 rows, nothing changed."
    assert (
        svg.count(f"<title>{refusal.format('token and owner: the row holds token 2, B holds the lease')}</title>") == 2
    )
    met = {"guards": ["lease"], "row_token": 1, "row_owner": "A", "row_status": "ready"}
    late = draw_race(made([claims[0], replace(refused, detail=met)], looks[:1])).svg
    assert late.count(">lease ended<") == 1 and refusal.format("lease: the lease has ended") in late


def test_both_claims_stand_side_by_side(url: str) -> None:
    compared = compare_claims(some(2), url=url, workers=2)
    rows = {row["figure"]: (row["SKIP LOCKED"], row["plain lock"]) for row in compared.table()}
    assert rows["workflows completed"] == rows["business effects"] == (2, 2)
    assert rows["claims that waited"][0] == 0 and rows["claims that passed over a locked row"][1] == 0
    assert compared._repr_html_().count("<img ") == 2 and "SKIP LOCKED" in repr(compared)


# -- bad input, and what is left -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ({"workers": 0}, "1 to 4 workers, not 0"), ({"workers": 5}, "1 to 4 workers, not 5"),
        ({"claim": "fast"}, "no claim 'fast'"), ({"requests": []}, "no request"),
    ],
)  # fmt: skip
def test_what_makes_no_sense_is_refused_before_anything_starts(url: str, wrong: dict[str, Any], why: str) -> None:
    with pytest.raises(RaceError, match=why):
        race(wrong.pop("requests", some(1)), url=url, **wrong)


@pytest.mark.parametrize(
    ("make", "patience", "why"),
    [(Engine, 60.0, None), (Dying, 60.0, "exited on its own with code 9"), (Blind, 2.0, "did not finish in time")],
)
def test_no_process_session_or_schema_is_left(
    elsewhere: str, make: type[Engine], patience: float, why: str | None
) -> None:
    if why is None:
        race(some(3), url=elsewhere, make_engine=make)
    else:
        with pytest.raises(RaceError, match=why):
            race(some(3), url=elsewhere, make_engine=make, patience=patience)
    assert [child.name for child in multiprocessing.active_children() if child.name.startswith("race-")] == []
    eventually(lambda: not left_in(elsewhere))


def test_a_schema_that_exists_is_not_touched(url: str, schema: Callable[..., Database]) -> None:
    migrate(theirs := schema(), laboratory=True)
    Engine(theirs).create_workflow("login", workflow_id="theirs")
    with pytest.raises(NotALaboratory, match="already exists"):
        race(some(2), url=url, schema=theirs.schema)
    assert Engine(theirs).get_workflow("theirs")["status"] == "ready"  # type: ignore[index]
