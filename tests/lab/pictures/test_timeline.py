"""A picture tells what the entries tell, and only that: the story of real histories, then the drawing of it.

Histories are made by the engine on a real PostgreSQL (`tests/support/histories.py`).
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable
from dataclasses import FrozenInstanceError
from itertools import pairwise
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from agentflow import Database, Engine
from agentflow.errors import AlreadyFinished
from agentflow.lab.history.faults import FAULTS
from agentflow.lab.history.sentences import line, sentence, sentences, summary, twin
from agentflow.lab.history.story import Mark, Span, Story, folded
from agentflow.lab.history.story_reader import read_story
from agentflow.lab.laboratory.laboratory import PATIENT
from agentflow.lab.pictures.svg import escaped
from agentflow.lab.pictures.timeline import NOTHING, Timeline, lanes_of, timeline
from agentflow.lab.pictures.timeline_layout import shortened, width, wrapped
from agentflow.lab.pictures.timeline_marks import NAMES as NAMES_BELOW
from agentflow.lab.schedule.play import small_multiples
from agentflow.lab.schedule.presets import PRESETS
from agentflow.lab.schedule.stepper import Stepper
from tests.support import histories
from tests.support.histories import ACTION, ALL, Entries

SVG = "{http://www.w3.org/2000/svg}"

Of = Callable[[str], Entries]


def marks(told: Story, kind: str) -> list[Mark]:
    return [mark for mark in told.marks if mark.kind == kind]


def column(told: Story, kind: str, which: int = 0) -> int:
    return [n for n, mark in enumerate(told.marks) if mark.kind == kind][which]


def played(engine: Engine, line: str) -> Entries:
    """The history of the first workflow after a schedule."""
    engine.policy = PATIENT
    with Stepper(engine) as stepper:
        stepper.play(line)
    return engine.history("request-1")


# -- the story: who held what, who lived ---------------------------------------------------------------------------------


def test_the_lease_of_a_killed_worker_lasts_until_it_expires_and_has_no_hollow_end(entries: Of) -> None:
    told = read_story(entries("acknowledgment_gap"))
    first, second = told.bands
    assert (first.who, first.token, first.how, first.hollow) == ("A", 1, "expired", None)
    assert (first.start, first.end) == (column(told, "claim"), column(told, "expire"))
    assert (second.who, second.token, second.how, second.end) == ("B", 2, "released", column(told, "complete"))
    assert [(run.who, run.how) for run in told.runs] == [("A", "killed"), ("B", "runs")]


def test_a_paused_worker_outlives_its_lease_until_it_stops_by_itself(entries: Of) -> None:
    told = read_story(entries("stale_worker"))
    assert told.bands[0].hollow == column(told, "stop")
    assert told.sleeps == (Span(column(told, "pause"), column(told, "resume"), True, "A"),)
    assert [(run.who, run.how, run.resumed) for run in told.runs] == [
        ("A", "paused", False), ("B", "runs", False), ("A", "stopped", True),
    ]  # fmt: skip
    assert line(told.marks[-1]) == "13a. A gives the workflow up with LostLease"


def test_a_worker_whose_lease_expires_while_it_runs_lives_without_authority_to_the_end(entries: Of) -> None:
    told = read_story(entries("duplicate_effect"))
    assert told.bands[0].hollow == told.now
    assert told.runs[0].how == "runs"


def test_a_lease_that_was_let_go_has_no_expiry(entries: Of) -> None:
    told = read_story(entries("failed_tries"))
    assert {band.how for band in told.bands} == {"released"}
    assert [token for _, token in told.rows[0].tokens] == [0, 1, 2, 3, 4]


def test_a_lease_that_ended_unseen_ends_before_the_next_claim(engine: Engine) -> None:
    """Real leases end without an entry: the next claim shows it."""
    entries = [one for one in histories.acknowledgment_gap(engine) if one["event"] != "lease_expired_for_test"]
    told = read_story(entries)
    assert (told.bands[0].how, told.bands[0].end) == ("expired", column(told, "claim", 1) - 0.5)


def test_each_renewal_is_a_mark_and_its_lease_goes_on(entries: Of) -> None:
    told = read_story(entries("renewals"))
    assert [(band.who, len(marks(told, "renew"))) for band in told.bands] == [("A", 5)]


def test_a_cancelled_workflow_takes_the_lease_from_a_worker_that_lives(entries: Of) -> None:
    told = read_story(entries("cancelled"))
    assert (told.bands[0].how, told.bands[0].hollow) == ("released", column(told, "stop"))
    assert told.box is not None
    assert told.box.title == "cancelled: owner, lease"
    assert told.person


# -- replays have no entry of their own ----------------------------------------------------------------------------------


def test_replays_follow_the_claim_and_are_numbered_under_it(entries: Of) -> None:
    replays = marks(read_story(entries("acknowledgment_gap")), "replay")
    assert [(mark.label, mark.who, mark.subject) for mark in replays] == [("9a", "B", "classify"), ("9b", "B", "plan")]


def test_only_what_was_really_replayed_is_shown(entries: Of) -> None:
    rows = [dict(entry) for entry in entries("acknowledgment_gap")]
    first = next(row for row in rows if (row["detail"] or {}).get("replayed"))
    first["detail"] = {**first["detail"], "replayed": 1}
    without_call = [row for row in rows if row["n"] != first["n"] - 1]  # B's call shows what came before it, too
    assert [mark.subject for mark in marks(read_story(without_call), "replay")] == ["classify"]


def test_what_a_worker_replays_is_drawn_with_the_entry_that_shows_it(entries: Of) -> None:
    so_far = entries("gap_so_far")
    assert marks(read_story(so_far), "replay") == [], "it may have been lost before it loaded anything"
    whole = entries("acknowledgment_gap")
    told = read_story(whole[: len(so_far) + 1])
    assert [(mark.label, mark.subject, mark.n) for mark in marks(told, "replay")] == [
        ("9a", "classify", 10),
        ("9b", "plan", 10),
    ]


def test_a_worker_lost_directly_after_its_claim_has_replayed_nothing(engine: Engine) -> None:
    a, b = histories.begin(engine, "A", "B")
    a.claim().step("classify").kill("before checkpoint plan")
    histories.expire(engine)
    b.claim().kill("after claim")
    assert marks(read_story(engine.history(histories.W)), "replay") == []


def test_a_worker_that_fails_the_workflow_at_once_is_not_said_to_have_replayed_anything(engine: Engine) -> None:
    a, b = histories.begin(engine, "A", "B")
    a.claim().step("classify").kill("before checkpoint plan")
    histories.expire(engine)
    b.claim()
    engine.fail_workflow(b.claimed, {"type": "DeterminismError", "message": "no", "traceback": ""})
    assert marks(read_story(engine.history(histories.W)), "replay") == []


def test_a_requeued_workflow_does_not_replay_the_failure_that_was_removed(engine: Engine) -> None:
    (a,) = histories.begin(engine, "A")
    error = {"type": "ValueError", "message": "no", "traceback": ""}
    a.claim().step("classify")
    a.claimed = engine.checkpoint(a.claimed, "plan", error=error)
    engine.fail_workflow(a.claimed, error)
    engine.requeue_workflow(histories.W)
    a.claim().step("plan").complete()
    assert [mark.subject for mark in marks(read_story(engine.history(histories.W)), "replay")] == ["classify"]


# -- the gap -------------------------------------------------------------------------------------------------------------


def test_the_gap_lasts_from_the_effect_to_the_acknowledgment_that_closes_it(entries: Of) -> None:
    told = read_story(entries("acknowledgment_gap"))
    assert told.gaps == (Span(column(told, "tool"), column(told, "acknowledge"), True, ACTION),)
    assert marks(told, "acknowledge")[0].closes
    assert marks(told, "kill")[0].in_gap


def test_an_open_gap_lasts_until_now(entries: Of) -> None:
    told = read_story(entries("gap_so_far"))
    assert told.gaps == (Span(column(told, "tool"), told.now, False, ACTION),)


@pytest.mark.parametrize("name", ["happy_path", "stale_worker", "renewals", "tool_refuses", "effect_lost"])
def test_an_ordinary_call_leaves_no_gap(entries: Of, name: str) -> None:
    assert read_story(entries(name)).gaps == ()


def test_a_lost_reply_is_a_gap_although_its_worker_lives(entries: Of) -> None:
    told = read_story(entries("lost_reply"))
    assert told.gaps == (Span(column(told, "tool"), column(told, "acknowledge"), True, ACTION),)
    (lost,), (received,) = marks(told, "lose")[0].answers, marks(told, "acknowledge")[0].answers
    assert (lost.call, lost.how, received.call, received.how) == (
        column(told, "tool"), "lost", column(told, "tool", 1), "received",
    )  # fmt: skip


def test_each_action_has_a_gap_of_its_own(entries: Of) -> None:
    told = read_story(entries("two_actions"))
    assert [gap.what for gap in told.gaps] == ["mail-after"]
    assert [mark.effect for mark in marks(told, "tool")] == [1, 2, 2]


# -- the world -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "keys"),
    [
        ("duplicate_effect", ["no", "no"]),
        ("new_keys", ["", "new"]),
        ("forgotten_key", ["", "forgotten"]),
        ("acknowledgment_gap", ["", "same"]),
    ],
)
def test_a_call_says_which_key_it_came_with(entries: Of, name: str, keys: list[str]) -> None:
    assert [mark.key for mark in marks(read_story(entries(name)), "tool")] == keys


@pytest.mark.parametrize("name", ["duplicate_effect", "new_keys", "forgotten_key"])
def test_two_effects_for_one_intent_are_a_duplicate_whatever_their_keys(entries: Of, name: str) -> None:
    told = read_story(entries(name))
    assert told.doubled == (Span(column(told, "tool", 0), column(told, "tool", 1), True, ACTION),)
    assert [mark.doubled for mark in marks(told, "tool")] == [False, True]


def test_two_actions_with_an_effect_each_are_no_duplicate(entries: Of) -> None:
    assert read_story(entries("two_actions")).doubled == ()


def test_effects_beyond_the_first_are_counted_for_each_action(entries: Of) -> None:
    rows = entries("two_actions_repeated")
    told = read_story(rows)
    assert [mark.nth for mark in marks(told, "tool")] == [1, 2, 3, 1, 2]
    assert told.box
    assert told.box.text == "one action intent, 3 effects"
    said = [match[0] for one in twin(told) if (match := re.search("one action intent, .*? effects", one))]
    assert said == [f"one action intent, {number} effects" for number in ("two", "3", "two")]
    assert re.findall(r'class="inv c"[^>]*>(\d+)<', timeline(rows).svg) == ["2", "3", "2"]


def test_an_acknowledged_action_without_an_effect_is_lost(entries: Of) -> None:
    told = read_story(entries("effect_lost"))
    assert told.lost == (Span(column(told, "acknowledge"), column(told, "complete"), True, ACTION),)


def test_a_refusal_of_the_tool_is_no_effect_and_no_loss(entries: Of) -> None:
    told = read_story(entries("tool_refuses"))
    assert [mark.answer for mark in marks(told, "tool")] == ["refused"]
    assert (told.effects, told.lost, told.box) == ((), (), None)


def test_the_caller_of_the_tool_is_found_although_the_world_does_not_know_it(entries: Of) -> None:
    assert [mark.who for mark in marks(read_story(entries("three_workers")), "tool")] == ["B", "C"]
    assert [mark.who for mark in marks(read_story(entries("two_actions")), "tool")] == ["A", "A", "B"]


def test_a_stale_worker_that_calls_the_tool_is_told_from_the_one_that_holds_the_lease(engine: Engine) -> None:
    a, b = histories.begin(engine, "A", "B")
    a.claim().intent().pause(f"before tool {ACTION}")
    histories.expire(engine)
    b.claim().tool()
    a.resume(f"before tool {ACTION}").tool()
    b.acknowledge()
    a.refused(a.acknowledge)
    assert [mark.who for mark in marks(read_story(engine.history(histories.W)), "tool")] == ["B", "A"]


def test_a_worker_that_sleeps_before_its_call_is_not_taken_for_the_caller(engine: Engine) -> None:
    """In an engine that acknowledges first, the holder stands before no planned action when it calls."""
    a, b = histories.begin(engine, "A", "B")
    a.claim().intent().pause(f"before tool {ACTION}")
    histories.expire(engine)
    b.claim().acknowledge().tool()
    assert [mark.who for mark in marks(read_story(engine.history(histories.W)), "tool")] == ["B"]


# -- waits, refusals, the one box ----------------------------------------------------------------------------------------


def test_a_wait_is_ended_by_its_event(entries: Of) -> None:
    told = read_story(entries("approval"))
    assert told.waits == (Span(column(told, "wait"), column(told, "deliver"), True, "editor.approved"),)
    assert [mark.event for mark in marks(told, "deliver")] == ["event_delivered", "event_repeated"]


def test_the_line_of_a_worker_that_is_killed_while_its_workflow_waits_ends_in_a_cross(engine: Engine) -> None:
    told = read_story(played(engine, "workflow=approval_agent A* A! event:approval B*"))
    (killed,) = [run for run in told.runs if run.who == "A"]
    assert (killed.how, killed.end) == ("killed", column(told, "kill"))
    assert "5. A crashes before claim; it held nothing" in twin(told)
    drawn = timeline(played(engine, "workflow=approval_agent A* A! event:approval B*"))
    (group,) = [one for one in parsed(drawn).iter(SVG + "g") if one.get("data-n") == "5"]
    assert group.get("aria-label") == "5. A crashes before claim; it held nothing"
    assert any("l16 16m0-16l-16 16" in one.get("d", "") for one in group.iter(SVG + "path"))


def test_a_kill_that_lost_nothing_is_not_what_leaves_the_outcome_unknown(engine: Engine) -> None:
    said = twin(read_story(played(engine, "A*4 A/ A A! due B*")))
    assert "9. A crashes before claim; it held nothing" in said


def test_a_worker_that_is_paused_while_its_workflow_waits_sleeps_in_the_picture(engine: Engine) -> None:
    told = read_story(played(engine, "workflow=approval_agent A* A|| event:approval B* A> A"))
    (sleep,) = told.sleeps
    assert (sleep.start, sleep.end, sleep.closed) == (column(told, "pause"), column(told, "resume"), True)
    assert "5. A is paused before claim; it holds nothing" in twin(told)
    assert told.bands[0].how == "released"
    assert told.bands[0].hollow is None


def test_forgotten_keys_have_a_mark_a_name_on_the_clock_and_a_sentence(engine: Engine) -> None:
    drawn = timeline(played(engine, "A*5 A! forget expire B*"))
    (group,) = [one for one in parsed(drawn).iter(SVG + "g") if one.get("data-n") == "8"]
    assert group.get("aria-label") == "8. the tool forgets its keys; what it has done stays done"
    assert [one.text for one in group.iter(SVG + "text")] == ["forget", "keys", "forgotten"]
    (ring,) = group.iter(SVG + "circle")
    strikes = [one.get("d", "") for one in group.iter(SVG + "path") if one.get("d", "").endswith("l20 -20")]
    assert {float(d[1:].split()[0]) + 10 for d in strikes} == {float(ring.get("cx", 0))}
    assert "the tool forgets its keys" in drawn.sentence


def test_an_open_wait_has_no_winner(engine: Engine) -> None:
    (a,) = histories.begin(engine, "A")
    a.claim().wait("approval")
    told = read_story(engine.history(histories.W))
    assert told.waits == (Span(column(told, "wait"), told.now, False, ""),)


def test_a_wait_may_be_ended_by_a_cancellation(entries: Of) -> None:
    told = read_story(entries("cancelled_while_waiting"))
    assert told.waits == (Span(column(told, "wait"), column(told, "cancel"), True, "cancelled"),)


def test_a_spent_crash_budget_raises_the_token_and_gives_no_lease(entries: Of) -> None:
    told = read_story(entries("crash_budget_spent"))
    assert [token for _, token in told.rows[0].tokens] == [0, 1, 2, 3, 4, 5, 6, 7]
    assert len(told.bands) == 6
    assert twin(told)[-1].endswith("the crash budget is spent: the workflow is failed, token 7")


def test_processes_under_one_name_share_a_lane_and_differ_in_their_tokens(entries: Of) -> None:
    told = read_story(entries("shared_name"))
    assert told.workers == ("W",)
    assert [(band.who, band.token) for band in told.bands] == [("W", 1), ("W", 2)]
    assert told.sleeps[0].end == column(told, "claim", 1)
    assert told.box is not None
    assert told.box.title == "1 ≠ 2: token, owner, lease, checkpoints"


@pytest.mark.parametrize(
    ("name", "why"),
    [("stale_worker", "1 ≠ 2"), ("three_workers", "2 ≠ 3"), ("cancelled", "cancelled")],
)
def test_a_refused_write_says_what_it_met(entries: Of, name: str, why: str) -> None:
    assert [mark.why for mark in marks(read_story(entries(name)), "refused")] == [why]


@pytest.mark.parametrize(
    ("played", "met"),
    [
        ("A*2 A|| expire A> A", "lease: the lease has ended"),
        ("A*2 A|| expire B A> A", "token and owner: the row holds token 2, B holds the lease"),
        (
            "A*2 A|| expire B*2 A> A",
            "token, owner and checkpoints: the row holds token 2, B holds the lease, the row has 2 checkpoints, not 1",
        ),
        ("names=shared A*2 A|| expire B A> A", "token: the row holds token 2"),
        ("without=fence_token A*2 A|| expire B A> A", "owner: B holds the lease"),
        ("without=lease_owner A*2 A|| expire B A> A", "token: the row holds token 2"),
        ("without=fence_token,lease_owner A*2 A|| expire B*2 A> A", "checkpoints: the row has 2 checkpoints, not 1"),
        ("names=shared without=fence_token A*2 A|| expire B A> A B", "checkpoints: the row has 2 checkpoints, not 1"),
        (
            "A*2 A|| expire B* A> A",
            "token, owner, lease and checkpoints: the workflow is completed, the row holds token 2, nobody holds the lease, "
            "the row has 3 checkpoints, not 1",
        ),
    ],
)
def test_the_sentence_of_a_refused_write_says_truthfully_what_it_met(engine: Engine, played: str, met: str) -> None:
    engine.policy = PATIENT
    with Stepper(engine) as stepper:
        stepper.play(played)
    assert f"; stopped by {met}; refused, 0 rows" in sentences(engine.history("request-1"))[-1]


@pytest.mark.parametrize(
    ("detail", "said", "title"),
    [
        ({"row_token": 2, "row_status": "ready"}, "; the row holds token 2; refused, 0 rows", "1 ≠ 2"),
        ({"row_token": 1, "row_status": "cancelled"}, "; the workflow is cancelled; refused, 0 rows", "cancelled"),
        ({"row_token": 1, "row_status": "ready"}, "with token 1; refused, 0 rows", "refused"),
    ],
)
def test_a_refusal_that_an_older_agentflow_recorded_can_be_read_and_names_no_guard(
    entries: Of, detail: dict[str, Any], said: str, title: str
) -> None:
    told = [*entries("stale_worker")[:-1], {**entries("stale_worker")[-1], "detail": detail}]
    box = read_story(told).box
    assert said in sentences(told)[-1] and "stopped by" not in sentences(told)[-1]
    assert box and (box.title, box.text) == (title, "refused, nothing changed")
    assert timeline(told).svg != timeline(told, compact=True).svg


def test_what_a_person_may_not_do_is_refused_by_status_and_no_worker_stops(engine: Engine) -> None:
    engine.policy = PATIENT
    with Stepper(engine) as stepper:
        stepper.play("A*")
    for tried in (engine.cancel_workflow, engine.requeue_workflow, engine.expire_lease):
        with pytest.raises(AlreadyFinished):
            tried("request-1")
    told = read_story(engine.history("request-1"))
    assert [sentence(mark).partition(": ")[0] for mark in told.marks[-3:]] == [
        "a person tries to cancel the workflow; stopped by status",
        "a person tries to requeue the workflow; stopped by status",
        "a person tries to expire the lease; stopped by status and lease",
    ]
    assert told.box and (told.box.title, told.box.text) == ("completed", "refused, nothing changed")
    assert summary(told).startswith("A refused write: ") and "refused by status" in timeline(told).svg


def test_a_write_after_the_lease_was_given_back_says_that_nobody_holds_the_row(engine: Engine) -> None:
    (a,) = histories.begin(engine, "A")
    a.claim()
    engine.release_lease(a.claimed)
    a.refused(lambda: a.step("classify"))
    assert "; stopped by owner and lease: nobody holds the lease; refused" in sentences(engine.history(histories.W))[-1]


def test_a_write_after_the_lease_alone_ended_says_expired(engine: Engine) -> None:
    (a,) = histories.begin(engine, "A")
    a.claim()
    histories.expire(engine)
    a.refused(lambda: a.step("classify"))
    told = read_story(engine.history(histories.W))
    assert [mark.why for mark in marks(told, "refused")] == ["lease ended"]
    assert told.box is not None
    assert (told.box.title, told.box.text) == ("lease ended", "refused, nothing changed")


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("duplicate_effect", "duplicate"), ("forgotten_key", "duplicate"), ("effect_lost", "lost"),
        ("stale_worker", "refused"), ("three_workers", "refused"), ("acknowledgment_gap", "gap"),
        ("lost_reply", "gap"), ("happy_path", None), ("approval", None), ("failed_tries", None),
    ],
)  # fmt: skip
def test_the_one_box_shows_the_worst_that_happened(entries: Of, name: str, kind: str | None) -> None:
    rows = entries(name)
    box = read_story(rows).box
    assert (box.kind if box else None) == kind
    for compact in (False, True):
        assert timeline(rows, compact=compact).svg.count(' rx="3" ') + timeline(rows, compact=compact).svg.count(
            ' rx="3"/>'
        ) == (1 if kind else 0)


def test_a_story_is_frozen(entries: Of) -> None:
    with pytest.raises(FrozenInstanceError):
        read_story(entries("happy_path")).marks = ()  # type: ignore[misc]


# -- words ---------------------------------------------------------------------------------------------------------------


def test_the_twin_of_the_acknowledgment_gap(entries: Of) -> None:
    assert timeline(entries("acknowledgment_gap")).text.splitlines() == [
        "1. create writes the workflow row, token 0",
        "2. A claims it: token 1",
        "3. A commits checkpoint classify with token 1",
        "4. A commits checkpoint plan with token 1",
        "5. A commits the action intent resolve-account with token 1",
        "6. A calls the tool; the tool commits business effect 1, attempts 1",
        "7. A crashes before acknowledge resolve-account: the answer dies with it, the effect exists, the engine does not know",
        "8. A's lease expires",
        "9. B claims it: token 2; recovery starts",
        "9a. B replays classify from its checkpoint",
        "9b. B replays plan from its checkpoint",
        "10. B calls the tool again with the same key; the tool answers from the key: attempts 2, still one effect",
        "11. B commits acknowledge resolve-account with token 2: the gap is closed",
        "12. B commits complete with token 2",
    ]


def test_the_sentence_says_what_happened_and_what_is_left(entries: Of) -> None:
    said = timeline(entries("acknowledgment_gap")).sentence
    assert said.startswith("The acknowledgment gap: A claims it, A crashes before acknowledge resolve-account")
    assert said.endswith("B completes it with token 2; attempts 2, effects 1")


@pytest.mark.parametrize("name", sorted(ALL))
def test_every_entry_has_one_sentence_without_times_or_ids(entries: Of, name: str) -> None:
    rows = entries(name)
    said = sentences(rows)
    assert len(said) == len(rows)
    secret = {row["worker"].partition(".")[2] for row in rows if row["worker"]} - {""} | {"request-1", "_"}
    assert [one for one in said if any(word in one for word in secret)] == []


def test_a_short_lease_says_its_length_and_a_laboratorys_does_not(engine: Engine) -> None:
    short = timeline(histories.gap_so_far(engine, lease=3))
    assert "lease 3 s · token 1" in short.svg
    assert "2. A claims it: token 1, lease 3 s" in short.text
    engine.reset_database()
    assert ">lease · token 1<" in timeline(histories.gap_so_far(engine)).svg


# -- drawing -------------------------------------------------------------------------------------------------------------

OPTIONS: list[dict[str, Any]] = [
    {}, {"compact": True}, {"axis": "milliseconds"}, {"fold": True}, {"live": True, "cursor": 3}, {"seconds": True},
    {"cursor": 5, "schedule": "A*5 A! expire B*"},
]  # fmt: skip


def parsed(drawn: Timeline) -> ET.Element:
    return ET.fromstring(drawn.svg)


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("name", sorted(ALL))
def test_every_history_is_well_formed_svg_without_ids(entries: Of, name: str, options: dict[str, Any]) -> None:
    drawn = timeline(entries(name), **options)
    root = parsed(drawn)
    forbidden = {SVG + tag for tag in ("defs", "marker", "pattern", "clipPath", "use", "script", "image")}
    assert [one.tag for one in root.iter() if one.tag in forbidden or "id" in one.attrib] == []
    assert re.search(r"\bnan\b|\binf\b|None", re.sub(r"<(title|desc)>.*?</\1>", "", drawn.svg)) is None
    if drawn.gutter:
        ET.fromstring(drawn.gutter)


@pytest.mark.parametrize("name", sorted(ALL))
def test_the_marks_are_named_in_causal_order_by_the_lines_of_the_twin(entries: Of, name: str) -> None:
    drawn = timeline(entries(name), live=True)
    root = parsed(drawn)
    named = [group for group in root.iter(SVG + "g") if group.get("class") == "ev"]
    told = folded(read_story(entries(name)), frozenset({"replay"}))
    assert [group.get("aria-label") for group in named] == [line(mark) for mark in told.marks]
    assert [group.findtext(SVG + "title") for group in named] == [group.get("aria-label") for group in named]
    desc = root.findtext(SVG + "desc") or ""
    assert all(one in desc for one in twin(read_story(entries(name))))
    assert root.get("aria-label") == drawn.sentence == root.findtext(SVG + "title")


def test_the_static_picture_is_one_image_and_the_live_one_a_group_with_one_tab_stop(entries: Of) -> None:
    rows = entries("acknowledgment_gap")
    still, live = parsed(timeline(rows)), parsed(timeline(rows, live=True, cursor=4))
    assert (still.get("role"), live.get("role")) == ("img", "group")
    assert [one for one in still.iter() if "tabindex" in one.attrib] == []
    stops = [one for one in live.iter() if one.get("tabindex") == "0"]
    assert [one.get("data-n") for one in stops] == ["4"]
    focusable = [one for one in live.iter() if "tabindex" in one.attrib]
    assert {one.get("data-lm-suppress-shortcuts") for one in focusable} == {"true"}
    assert len(focusable) == len(read_story(rows).marks)


@pytest.mark.parametrize("name", sorted(ALL))
def test_hue_is_on_marks_and_never_on_text(entries: Of, name: str) -> None:
    for text in parsed(timeline(entries(name))).iter(SVG + "text"):
        assert {"fill", "stroke", "style"} & set(text.attrib) == set()


def placed(drawn: Timeline) -> list[tuple[int, float, float, float, float, str, str]]:
    """Every text: its strip, left, right, top, bottom, class and words; places inside a strip."""
    root = parsed(drawn)
    strips = [root, *(g for g in root.findall(SVG + "g") if "transform" in g.attrib)]
    found = []
    for number, strip in enumerate(strips):
        groups = [strip, *(g for g in strip.findall(SVG + "g") if g.get("class") == "ev")]
        for text in (one for group in groups for one in group.findall(SVG + "text")):
            kind, size = text.get("class", ""), float(text.get("font-size", 11))
            x, y = float(text.get("x", 0)), float(text.get("y", 0))
            wide = width(text.text or "", size, "b" in kind.split() or "inv" in kind.split())
            left = x - wide / 2 if "c" in kind.split() else x
            found.append((number, left, left + wide, y - size * 0.75, y + size * 0.2, kind, text.text or ""))
    return found


@pytest.mark.parametrize(
    "options", [*OPTIONS, {"compact": True, "live": True}, {"compact": True, "seconds": True}], ids=str
)
@pytest.mark.parametrize("name", sorted(ALL))
def test_no_two_texts_of_a_picture_overlap(entries: Of, name: str, options: dict[str, Any]) -> None:
    texts = placed(timeline(entries(name), **options))
    for index, one in enumerate(texts):
        for other in texts[index + 1 :]:
            apart = one[0] != other[0] or one[2] <= other[1] + 0.5 or other[2] <= one[1] + 0.5
            assert apart or one[4] <= other[3] or other[4] <= one[3], (one, other)


@pytest.mark.parametrize("options", [{}, {"compact": True}], ids=str)
@pytest.mark.parametrize("name", sorted(ALL))
def test_the_box_covers_no_text_but_its_own(entries: Of, name: str, options: dict[str, Any]) -> None:
    drawn = timeline(entries(name), **options)
    root = parsed(drawn)
    strips = [root, *(g for g in root.findall(SVG + "g") if "transform" in g.attrib)]
    for number, strip in enumerate(strips):
        for box in (one for one in strip.findall(SVG + "rect") if one.get("rx") == "3"):
            left, top = float(box.get("x", 0)), float(box.get("y", 0))
            right, bottom = left + float(box.get("width", 0)), top + float(box.get("height", 0))
            assert right <= float(root.get("width", 0))
            for text in (one for one in placed(drawn) if one[0] == number):
                inside = text[1] < right and text[2] > left and text[3] < bottom and text[4] > top
                assert not inside or "inv" in text[5].split(), text
                if "inv" in text[5].split() and top < text[3] < bottom:
                    assert left <= text[1] and text[2] <= right


@pytest.mark.parametrize("name", sorted(ALL))
def test_everything_lies_on_the_paper(entries: Of, name: str) -> None:
    """Also while the history grows, whatever stands in the last column."""
    rows = entries(name)
    for options in ({}, {"compact": True}, {"compact": True, "live": True}, {"axis": "milliseconds"}):
        for upto in range(1, len(rows) + 1):
            drawn = timeline(rows[:upto], schedule="A*5 A! expire B*", **options)
            wide = float(parsed(drawn).get("width", 0))
            assert [text for text in placed(drawn) if text[1] < 0 or text[2] > wide + 1] == []


# What is left for a picture in a notebook in a JupyterLab of 1,280 px, its file browser open.
NARROW = 828


@pytest.mark.parametrize("compact", [False, True])
@pytest.mark.parametrize(
    ("line", "columns"),
    [
        ("A*5 A! expire B*", 14),
        ("A*5 A! forget expire B*", 15),
        ("A*2 A|| expire B A> A* B*", 15),
        ("without=fence_token,lease_owner model=varying A*2 A|| expire B A> A* B*", 15),
        ("A*4 A/ A A! due B*", 16),
    ],
)
def test_a_static_picture_shrinks_to_a_narrow_page_and_stays_legible(
    engine: Engine, line: str, columns: int, compact: bool
) -> None:
    drawn = timeline(played(engine, line), compact=compact)
    wide = float(parsed(drawn).get("width", 0))
    least = float(re.findall(r"min-width:(\d+)px", drawn.svg)[0])
    assert len(drawn.text.split("\n")) == columns
    assert least <= NARROW
    assert 11 * least / wide >= 9, "no text is smaller than 9 px"
    shown = [text[6] for text in placed(drawn)]
    assert shown.count("check-") + shown.count("checkpoint") == drawn.text.count("commits checkpoint")
    faults = [text[6] for text in placed(drawn) if text[5] == "c b"]
    assert not any(words.endswith("…") for words in faults), faults


@pytest.mark.parametrize("compact", [False, True])
def test_the_wall_of_a_refused_delivery_lies_on_no_word(engine: Engine, compact: bool) -> None:
    line = "workflow=approval_agent A* event:approval event:approval event:approval=false B*"
    drawn = timeline(played(engine, line), compact=compact)
    (group,) = [one for one in parsed(drawn).iter(SVG + "g") if "refused" in one.get("aria-label", "")]
    (wall,) = group.iter(SVG + "rect")
    left, top = float(wall.get("x", 0)), float(wall.get("y", 0))
    right, bottom = left + float(wall.get("width", 0)), top + float(wall.get("height", 0))
    words = [text for text in placed(drawn) if text[6] in {"deliver", "refused", "approval", "event"}]
    assert [text for text in words if text[1] < right and text[2] > left and text[3] < bottom and text[4] > top] == []
    assert len(words) == 9


@pytest.mark.parametrize("compact", [False, True])
def test_the_second_effect_is_said_below_its_mark(engine: Engine, compact: bool) -> None:
    drawn = timeline(played(engine, "without=idempotency_key A*5 A! expire B*"), compact=compact)
    (group,) = [one for one in parsed(drawn).iter(SVG + "g") if "business effect 2" in one.get("aria-label", "")]
    assert [one.text for one in group.iter(SVG + "text")] == ["2", "no key", "effect 2"]


@pytest.mark.parametrize("compact", [False, True])
@pytest.mark.parametrize("name", ["acknowledgment_gap", "lost_reply", "approval", "cancelled", "forgotten_key"])
def test_milliseconds_keep_the_name_of_every_entry_however_close_they_stand(
    entries: Of, name: str, compact: bool
) -> None:
    """All entries in one and the same moment: no gap can be shorter."""
    rows = [{**row, "at": 0.0} for row in entries(name)]
    drawn = timeline(rows, compact=compact, axis="milliseconds")
    groups = {
        one.get("data-n"): {text.text for text in one.iter(SVG + "text")} for one in parsed(drawn).iter(SVG + "g")
    }
    for mark in read_story(rows).marks:
        below = NAMES_BELOW.get(mark.kind, mark.subject or "LostLease")
        words = FAULTS[mark.kind].label if mark.kind in FAULTS else below
        named = words.format(who=mark.who) if mark.kind not in {"tool", "refused"} else ""
        assert {named} - {""} <= groups[mark.label], mark
    assert {mark.label for mark in read_story(rows).marks} <= {text[6] for text in placed(drawn)}


def test_sixty_entries_of_three_workers_stand_on_strips_of_at_most_twelve_columns(entries: Of) -> None:
    rows = entries("sixty_entries")
    assert 50 <= len(rows) <= 60
    drawn = timeline(rows)
    root = parsed(drawn)
    strips = [root, *(g for g in root.findall(SVG + "g") if "transform" in g.attrib)]
    sizes = [len([g for g in strip.findall(SVG + "g") if g.get("class") == "ev"]) for strip in strips]
    assert len(sizes) >= 4
    assert max(sizes) <= 12
    assert max(sizes) - min(sizes) < len(sizes)  # equally long, as far as the number of columns allows
    assert 11 * 846 / float(root.get("width", 0)) >= 9.9
    for who in "ABC":
        assert drawn.svg.count(f">worker {who}<") == len(strips)


def test_a_fold_keeps_every_entry_that_is_not_a_renewal_checkpoint_or_replay(entries: Of) -> None:
    told = read_story(entries("sixty_entries"))
    tight = folded(told)
    together = {one.label for mark in tight.marks for one in mark.folded}
    assert {mark.kind for mark in told.marks if mark.label in together} == {"renew", "checkpoint", "replay"}
    kept = [mark.label for mark in tight.marks if not mark.folded]
    assert kept == [mark.label for mark in told.marks if mark.label not in together]
    assert all(len(mark.folded) >= 4 for mark in tight.marks if mark.folded)


def test_a_fold_moves_leases_and_gaps_with_their_columns(entries: Of) -> None:
    told = read_story(entries("sixty_entries"))
    tight = folded(told)
    for before, after in zip(told.gaps, tight.gaps, strict=True):
        assert (
            tight.marks[int(after.start)] == told.marks[int(before.start)]
            or tight.marks[int(after.start)].kind == "tool"
        )
        assert tight.marks[int(after.end)].kind == "acknowledge"
    for band in tight.bands:
        assert tight.marks[int(band.start)].kind == "claim"


# -- the same picture from everywhere ------------------------------------------------------------------------------------


def as_json(rows: Entries) -> Entries:
    """As a run capsule keeps them."""
    return json.loads(json.dumps(rows, default=str))  # type: ignore[no-any-return]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("name", sorted(ALL))
def test_rows_json_and_short_names_give_the_same_bytes(entries: Of, name: str, options: dict[str, Any]) -> None:
    rows = entries(name)
    short = [{**row, "worker": row["worker"] and row["worker"].split(".")[0]} for row in rows]
    seconds = [{**row, "at": row["at"].timestamp()} for row in rows]
    drawn = timeline(rows, **options)
    assert drawn == timeline(rows, **options)
    assert drawn == timeline(as_json(rows), **options)
    assert drawn == timeline(short, **options)
    assert drawn == timeline(seconds, **options)


@pytest.mark.parametrize("name", sorted(ALL))
def test_the_picture_without_times_is_the_same_for_every_run(entries: Of, engine: Engine, name: str) -> None:
    again = ALL[name](engine)
    assert timeline(again).svg == timeline(entries(name)).svg
    assert timeline([{**row, "at": None} for row in again]).svg == timeline(entries(name)).svg


def test_without_times_milliseconds_fall_back_to_entries(entries: Of) -> None:
    rows = [{**row, "at": None} for row in entries("happy_path")]
    assert timeline(rows, axis="milliseconds").svg == timeline(rows).svg


def test_milliseconds_keep_columns_apart_and_cut_an_idle_stretch(entries: Of) -> None:
    rows = [dict(row) for row in entries("acknowledgment_gap")]
    for row, at in zip(rows, [0, 5, 20, 30, 42, 60, 64, 3000, 3120, 3140, 3150, 3160], strict=True):
        row["at"] = at / 1000
    drawn = timeline(rows, axis="milliseconds")
    names = [float(one.get("x", 0)) for one in parsed(drawn).iter(SVG + "text") if one.get("y") == "22"][1:]
    assert names == sorted(names)
    assert all(later - earlier >= 14 for earlier, later in pairwise(names))
    assert max(later - earlier for earlier, later in pairwise(names)) < 65 * 13 / 3
    assert ">milliseconds<" in drawn.svg
    assert ">3120<" in drawn.svg
    strokes = [one.get("d", "") for one in parsed(drawn).iter(SVG + "path") if one.get("d", "").endswith("m4 13l4 -13")]
    cut = [float(stroke.removeprefix("M").split()[0]) + 6 for stroke in strokes]
    assert len(cut) == 2, "two stretches are idle: until the lease ends, and until somebody claims"
    assert names[6] < cut[0] < names[7] < cut[1] < names[8]


# -- what the world may send ---------------------------------------------------------------------------------------------

NAMES = [
    "<script>alert(1)</script>", "\"quoted\" & 'single'", "x" * 200, "שלום עולם", "👩‍👩‍👧🎉" * 20, "a\nb\tc\x01\ufffe", "]]>",
    "-", "a-b_c:d.e/f " * 20,
]  # fmt: skip


@pytest.mark.parametrize("name", NAMES, ids=range(len(NAMES)))
@pytest.mark.parametrize("options", [{}, {"compact": True, "live": True}, {"axis": "milliseconds"}], ids=str)
def test_names_are_escaped_and_shortened(entries: Of, name: str, options: dict[str, Any]) -> None:
    rows = []
    for row in entries("approval") + entries("three_workers"):
        worker = row["worker"] and f"{row['worker'][0]}{name}".replace(".", "")
        rows.append({**row, "subject": row["subject"] and name, "worker": worker, "n": len(rows) + 1})
    drawn = timeline(rows, schedule=name, **options)
    root = parsed(drawn)
    assert root.find(f".//{SVG}script") is None
    assert all(
        text[2] - text[1] <= 170 for text in placed(drawn) if "inv" not in text[5] and "k" not in text[5].split()
    )
    assert "<script" not in drawn._repr_html_().replace("&lt;script", "")
    assert len(drawn.text.splitlines()) >= len(rows)


def test_a_label_is_cut_to_its_room_and_broken_at_its_own_signs() -> None:
    assert wrapped("resolve-account") == ("resolve-", "account")
    assert wrapped("plan") == ("plan",)
    assert all(width(one) <= 62 for said in NAMES for one in wrapped(said))
    assert width(shortened("x" * 200, 40)) <= 40
    assert shortened("short") == "short"


def test_nothing_yet_is_said_in_a_sentence() -> None:
    for compact in (False, True):
        drawn = timeline([], compact=compact)
        assert NOTHING in [one.text for one in parsed(drawn).iter(SVG + "text")]
        assert ">worker A<" in drawn.svg
        assert ">worker B<" in drawn.svg
    assert drawn.text == ""
    assert drawn.sentence == "Nothing has happened yet."


@pytest.mark.parametrize("name", sorted(ALL))
def test_every_beginning_of_a_history_is_a_picture(entries: Of, name: str) -> None:
    """As the control room draws it, move by move."""
    rows = entries(name)
    for upto in range(len(rows)):
        ET.fromstring(timeline(rows[:upto], compact=True, live=True, cursor=upto).svg)


def test_entries_in_any_order_or_with_gaps_are_drawn_without_an_error(entries: Of) -> None:
    """A broken engine, or a truncated history, may tell anything."""
    dice = random.Random(1)
    for name in sorted(ALL):
        for _ in range(15):
            rows = [row for row in entries(name) if dice.random() < 0.8]
            dice.shuffle(rows)
            for axis in ("entry", "milliseconds"):
                ET.fromstring(timeline(rows, axis=axis, fold=dice.random() < 0.5).svg)  # type: ignore[arg-type]


def test_an_entry_of_an_unknown_kind_is_drawn_and_told(entries: Of) -> None:
    row = {**entries("happy_path")[0], "event": "something_new", "subject": "x", "n": 9}
    drawn = timeline([*entries("happy_path"), row])
    assert drawn.text.splitlines()[-1] == "9. something_new x"
    assert drawn.svg.index(">something<") < drawn.svg.index(">new<")


def test_lanes_are_those_that_take_part_and_four_at_most(entries: Of) -> None:
    assert lanes_of(read_story([])) == (["A", "B"], [])
    assert lanes_of(read_story(entries("three_workers"))) == (["A", "B", "C"], [])
    rows = [{**row, "worker": row["worker"] and f"worker-{n}"} for n, row in enumerate(entries("renewals"))]
    lanes, left_out = lanes_of(read_story(rows))
    assert len(lanes) == 4
    assert timeline(rows).text.splitlines()[-len(left_out) :] == [f"Not drawn: worker {name}" for name in left_out]


# -- what it is in a notebook --------------------------------------------------------------------------------------------


def test_a_notebook_shows_the_picture_and_its_closed_twin(entries: Of, tmp_path: Path) -> None:
    drawn = timeline(entries("stale_worker"))
    bundle = drawn._repr_mimebundle_()
    assert bundle["text/plain"] == drawn.text == repr(drawn)
    assert "<svg" not in bundle["text/html"] and f'alt="{escaped(drawn.sentence)}"' in bundle["text/html"]
    assert re.search(r"<details><summary>[^<]+</summary><pre>1\. create", bundle["text/html"])
    assert "overflow-x:auto" in bundle["text/html"]
    assert drawn.save(tmp_path / "x.svg").read_text("utf-8") == drawn.svg + "\n"


def test_looking_back_marks_one_column_and_fades_what_came_later(entries: Of) -> None:
    rows = entries("acknowledgment_gap")
    assert 'opacity=".35"' in timeline(rows, cursor=5).svg
    assert 'opacity=".35"' not in timeline(rows, cursor=12).svg
    assert 'opacity=".35"' not in timeline(entries("gap_so_far"), cursor=9).svg
    assert timeline(rows, cursor=5).svg.count('opacity=".04"') == 1


@pytest.mark.parametrize("preset", sorted(PRESETS))
def test_every_preset_is_drawn_alike_from_both_of_its_runs(shared_database: Database, preset: str) -> None:
    engine = Engine(shared_database, policy=PATIENT)
    pictures = []
    for _ in range(2):
        with Stepper(engine) as stepper:
            stepper.play(PRESETS[preset].line)
            pictures.append(timeline(engine.history("request-1"), schedule=PRESETS[preset].line))
    engine.reset_database()
    engine.world.database.close()
    assert pictures[0] == pictures[1]
    box = {"acknowledgment gap": "gap", "lost reply": "gap", "stale worker": "refused", "duplicate effect": "duplicate"}
    assert pictures[0].svg.count('rx="3"') == (1 if preset in box else 0)


# -- several workflows, losing claims, processes ---------------------------------------------------------------------------


def test_each_workflow_of_a_history_has_its_line_and_every_worker_its_marks(engine: Engine) -> None:
    engine.policy = PATIENT
    with Stepper(engine) as stepper:
        stepper.play(PRESETS["race"].line)
        rows = [row for name in stepper.workflows for row in engine.history(name)]
    drawn, told = timeline(rows), read_story(rows)
    assert [row.name for row in told.rows] == ["request-1", "request-2"]
    assert {(mark.who, mark.row) for mark in told.marks if mark.kind == "claim"} == {("A", 0), ("B", 1)}
    strips = drawn.svg.count(">worker A<")
    assert drawn.svg.count(">request-1<") == drawn.svg.count(">request-2<") == strips
    assert [mark.n for mark in told.marks] == list(range(1, len(rows) + 1))
    assert "4. request-2: B claims it: token 1" in drawn.text.splitlines()


def test_a_claim_that_comes_back_empty_is_an_open_ring_and_says_what_it_passed_over(engine: Engine) -> None:
    drawn = timeline(played(engine, "A*2 B A*"))
    (group,) = [one for one in parsed(drawn).iter(SVG + "g") if "passes over" in one.get("aria-label", "")]
    assert group.get("aria-label") == "4. B asks for work and passes over request-1"
    (ring,) = group.iter(SVG + "circle")
    assert ring.get("fill") == "var(--paper)"
    assert [one.text for one in group.iter(SVG + "text")] == ["passes over", "request-1"]
    assert not list(group.iter(SVG + "path")), "nothing is written"


def test_only_a_process_is_struck_by_a_signal(engine: Engine) -> None:
    line = "A*2 A|| A> A!"
    engine.policy, said = PATIENT, {}
    for kind in ("thread", "process"):
        with Stepper(engine, lanes=kind) as stepper:  # type: ignore[arg-type]
            stepper.play(line)
        drawn = timeline(engine.history("request-1"))
        said[kind] = [one for one in drawn.text.split("\n") if one.startswith(("4.", "5.", "6."))]
        assert ("SIGKILL A" in drawn.svg, "crash A" in drawn.svg) == (kind == "process", kind == "thread")
    assert said["thread"] == [
        "4. A is paused before checkpoint plan",
        "5. A wakes up",
        "6. A crashes before checkpoint plan",
    ]
    assert said["process"] == [
        "4. A is paused (SIGSTOP) before checkpoint plan", "5. A wakes up (SIGCONT)",
        "6. A is killed (SIGKILL) before checkpoint plan",
    ]  # fmt: skip


def test_a_call_that_several_workers_may_have_made_is_nobodys_until_an_entry_shows_whose_it_was(engine: Engine) -> None:
    rows = played(engine, "A*4 expire B A A")
    told = read_story(rows)
    (call,) = marks(told, "tool")
    assert call.who == "A or B"
    (shown,) = [one for mark in told.marks for one in mark.answers if one.asked]
    assert (shown.who, shown.call) == ("A", column(told, "tool"))
    assert timeline(rows[: call.n]).text.splitlines()[-1].startswith(f"{call.n}. A or B calls the tool")


def test_every_bracket_is_named(engine: Engine) -> None:
    """The one with the box by the box; here a refused write has the box, and the gap keeps its name."""
    drawn = timeline(played(engine, "A*5 A|| expire B* A> A"), live=True)
    words = [one.text for one in parsed(drawn).iter(SVG + "text")]
    assert words.count("acknowledgment gap") == 1
    assert any((said or "").startswith("1 ≠ 2: ") for said in words)


def test_small_multiples_show_the_same_crash_on_several_engines(engine: Engine) -> None:
    engine.policy = PATIENT
    drawn = small_multiples(engine, {
        "all guards": "A*5 A! expire B*", "no key": "without=idempotency_key A*5 A! expire B*",
        "acknowledged first": "without=acknowledge_after_tool A*5 A! expire B*",
    })  # fmt: skip
    rows = [one for one in ET.fromstring(drawn.svg).iter(SVG + "g") if one.get("class") == "ev"]
    words = [[text.text for text in row.iter(SVG + "text")] for row in rows]
    assert [("1 effect" in one, "2" in one, "0 effects: effect lost" in one) for one in words] == [
        (True, False, False), (False, True, False), (False, False, True),
    ]  # fmt: skip
    assert [len(list(row.iter(SVG + "rect"))) for row in rows] == [0, 1, 1]
    assert drawn.text.splitlines()[1].startswith("no key: A duplicate effect: ")
