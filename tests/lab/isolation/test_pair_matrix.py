"""The pair matrix: two transactions at once do what one after the other does, and a matrix of a broken engine shows where not."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

import pytest

from agentflow import Database, Engine, migrate
from agentflow.errors import AgentFlowError
from agentflow.lab.broken.catalogue import engine_class
from agentflow.lab.isolation.pair_matrix import ALONE, IN_TURN, KNOWN, OTHER_WAY, Pair, PairMatrix, pair_matrix
from agentflow.lab.isolation.sessions import TwoSessions
from agentflow.lab.isolation.situations import SITUATIONS, calls
from agentflow.statements import TRANSACTIONS
from tests.support.helpers import eventually
from tests.support.isolation import Session
from tests.support.verdicts import RACES, WAITS

QUICK = ("lease expired", "failed")
LOCKS_NOTHING = ("load", "tool")  # of the engine's rows; two calls of the tool wait for each other in the world


@pytest.fixture(scope="module")
def quick(url: str) -> PairMatrix:
    """The real engine's matrix from some situations."""
    return pair_matrix(database=Database(url), situations=QUICK)


def kinds(matrix: PairMatrix) -> set[tuple[str, str]]:
    """Which two transactions differ."""
    return {(pair.first.transaction, pair.second.transaction) for pair in matrix.differences}


# -- the real engine ---------------------------------------------------------------------------------------------------


def test_two_transactions_at_once_do_what_one_after_the_other_does(quick: PairMatrix) -> None:
    assert [str(pair) for pair in quick.differences] == []
    assert {pair.like for pair in quick.pairs} == {IN_TURN, OTHER_WAY, ALONE, *KNOWN}


@pytest.mark.long
def test_every_pair_from_every_situation_does_what_one_after_the_other_does(url: str) -> None:
    matrix = pair_matrix(database=Database(url))
    assert [str(pair) for pair in matrix.differences] == []
    assert {pair.situation for pair in matrix.pairs} == set(SITUATIONS)
    assert {pair.like for pair in matrix.pairs if pair.is_known} == set(KNOWN)
    assert {pair.first.transaction for pair in matrix.pairs} == set(TRANSACTIONS)
    assert len(matrix.pairs) > 4_000


def test_all_transactions_are_tried_in_both_places_and_both_ends(quick: PairMatrix) -> None:
    every = {pair.second.transaction for pair in quick.pairs}
    assert every == set(TRANSACTIONS)
    assert {(p.first.transaction, p.second.transaction) for p in quick.pairs} == {(x, y) for x in every for y in every}
    ended = {(p.first.transaction, p.end) for p in quick.pairs}
    assert {name for name, end in ended if end == "ROLLBACK"} == every - {"load"}


def test_who_writes_a_locked_row_waits_and_who_reads_or_claims_passes(quick: PairMatrix) -> None:
    for pair in quick.pairs:
        first, second = pair.first.transaction, pair.second.transaction
        if pair.situation == "failed" and (first == "claim" or "renew" in (first, second)):
            locked = False  # the claim found nothing, and to renew what its holder has given up is not even refused
        else:
            locked = first not in LOCKS_NOTHING and second not in LOCKS_NOTHING and TRANSACTIONS[second].waits
        assert pair.waited == (locked or first == second == "tool"), pair.sentence()


def test_nothing_is_left_on_the_server(own_database: Callable[..., Database]) -> None:
    database = own_database()
    pair_matrix(database=database, situations=["absent"], transactions=["create", "claim"])
    with Session(database) as session:
        assert session.run("SELECT nspname FROM pg_namespace WHERE nspname LIKE 'pairs%'") == []
        here = "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
        eventually(lambda: session.run(here) == [])


def test_an_unknown_situation_or_transaction_is_refused_with_the_names_that_there_are(url: str) -> None:
    with pytest.raises(AgentFlowError, match=r"no situation 'asleep'; choose from absent, ready"):
        pair_matrix(database=Database(url), situations=["asleep"])
    with pytest.raises(AgentFlowError, match=r"no transaction 'commit'; choose from create, claim"):
        pair_matrix(database=Database(url), transactions=["claim", "commit"])


def test_a_matrix_without_pairs_says_nothing_of_them(url: str) -> None:
    none = pair_matrix(database=Database(url, "unused"), transactions=())
    said = "no pair was played, so this says nothing about two transactions at once."
    assert none.pairs == () and said in str(none) and said in none._repr_html_()


def test_rows_put_back_are_the_situations_rows(schema: Callable[[], Database]) -> None:
    database = schema()
    migrate(database, laboratory=True)
    stage = TwoSessions(Engine, database)
    try:
        for situation in SITUATIONS:
            several = calls(stage.set_up(situation))
            before = stage.in_turn().rows
            for call in several:
                back = stage.way_back(before, stage.in_turn(call).rows)
                stage.one.call(call)
                stage.one.end("COMMIT")
                if back:
                    stage.restore(back)
                assert stage.in_turn().rows == before, f"{situation}: {call.label}"
    finally:
        stage.close()


# -- known differences -------------------------------------------------------------------------------------------------


def test_the_known_differences_are_these_two_and_each_has_its_reason(quick: PairMatrix) -> None:
    assert list(KNOWN) == ["a claim skipped the row", "a refusal was asked again"]
    assert all(known.reason.endswith(".") for known in KNOWN.values())
    for pair in quick.pairs:
        if pair.like == "a claim skipped the row":
            assert (pair.second.transaction, pair.waited) == ("claim", False)
        if pair.like == "a refusal was asked again":
            assert pair.waited


def test_a_known_difference_excuses_nothing_else(quick: PairMatrix) -> None:
    skipped = next(pair for pair in quick.pairs if pair.like == "a claim skipped the row")
    asked = next(pair for pair in quick.pairs if pair.like == "a refusal was asked again")
    assert skipped.found and asked.found and asked.expected
    excuses = [known.holds for known in KNOWN.values()]

    def excused(pair: Pair, without_second: str) -> bool:
        return any(holds(pair, without_second) for holds in excuses)

    assert excused(skipped, skipped.found.rows)
    assert not excused(skipped, skipped.found.rows + " ")
    assert not excused(replace(skipped, waited=True), skipped.found.rows)
    assert excused(asked, "")
    assert not excused(replace(asked, waited=False), "")
    spoiled = asked.found.rows.replace('"attempts":0', '"attempts":1')
    assert spoiled != asked.found.rows
    assert not excused(replace(asked, found=replace(asked.found, rows=spoiled)), "")
    assert not excused(replace(asked, found=replace(asked.found, second="another")), "")


# -- broken engines ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "situation", "first", "second"), RACES)
def test_a_race_inside_a_statement_is_found(url: str, name: str, situation: str, first: str, second: str) -> None:
    found = pair_matrix(engine_class([name]), Database(url), [situation], {first, second}).differences
    assert (first, second) in {
        (p.first.transaction, p.second.transaction)
        for p in found
        if p.waited and p.end == "COMMIT" and not p.answers_agree
    }
    assert pair_matrix(Engine, Database(url), [situation], {first, second}).differences == []


def test_a_claim_that_does_not_skip_is_seen_to_wait_and_does_no_other_harm(url: str) -> None:
    matrix = pair_matrix(engine_class([WAITS]), Database(url), ["ready"])
    assert {second for _, second in kinds(matrix)} == {"claim"}
    assert all(pair.waited and pair.found == pair.expected for pair in matrix.differences)


@pytest.mark.parametrize("name", ["fence_token", "lease_expiry"])
def test_a_guard_that_no_race_inside_a_statement_needs_makes_no_difference(url: str, name: str) -> None:
    some = {"claim", "checkpoint", "complete", "renew", "expire", "cancel"}
    assert pair_matrix(engine_class([name]), Database(url), ["lease expired"], some).differences == []


@pytest.mark.long
def test_a_wait_that_misses_the_event_differs_only_there(url: str) -> None:
    assert kinds(pair_matrix(engine_class(["wait_reads_snapshot"]), Database(url))) == {("deliver", "wait")}


# -- what it looks like ------------------------------------------------------------------------------------------------


def test_the_text_has_a_line_and_a_column_for_each_transaction_and_no_seconds(quick: PairMatrix) -> None:
    said = str(quick)
    assert f"Engine, {len(quick.pairs)} pairs from 2 situations: two transactions at once do what" in said
    assert [line.split()[0] for line in said.splitlines()[4:21]] == list(TRANSACTIONS)
    assert all(len(line.split()) == 18 for line in said.splitlines()[4:21])
    assert not re.search(r"\d\.\d", said)


def test_the_picture_says_every_cell_and_marks_only_differences(url: str, quick: PairMatrix) -> None:
    picture = quick._repr_html_()
    assert picture.count('" title="') == len(TRANSACTIONS) ** 2
    assert "background:#1f2328" not in picture
    broken = pair_matrix(engine_class(["claim_without_lock"]), Database(url), ["ready"])
    cell = r'title="claim held, claim started: 2 pairs, waited, 0 known differences, 2 differences"[^>]*>'
    cell += "●<br><span[^>]*>0 of 2</span></td>"
    assert re.search(cell, broken._repr_html_()) and "background:#1f2328" in broken._repr_html_()
    assert "A claim may never wait. The second got Claim(worker_id='C', fence_token=1" in str(broken)
    assert " id=" not in picture
