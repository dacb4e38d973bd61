"""Answers last: kept before the reveal, by the engine itself, in a schema that no reset touches."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import textwrap
import uuid
from collections.abc import Iterator
from dataclasses import replace
from html import unescape
from pathlib import Path
from typing import Any

import psycopg
import pytest
from sqlalchemy import text

from agentflow import AgentFlowError, Database, Engine, migrate
from agentflow.errors import DatabaseAway, NotALaboratory
from agentflow.lab import course
from agentflow.lab.course import prompts, record, stages
from agentflow.lab.course.judging import NOT_SOLVED
from agentflow.lab.course.lesson import LATE, STAYS, Lesson
from agentflow.lab.course.outline import MAX_HINTS, RIGHT, Exercise, Outline, Question
from agentflow.lab.course.record import (
    PASSED,
    WORKFLOWS_OF_THE_COURSE,
    Kept,
    Record,
    open_record,
    predicted,
    the_record,
)
from agentflow.lab.laboratory import laboratory
from agentflow.lab.laboratory.laboratory import fresh_laboratory
from tests.conftest import drop
from tests.support.helpers import database_of_its_own
from tests.support.signals import send

ROOT = Path(__file__).resolve().parents[2]
START, RETRY = "00-start-here", "01-retry-or-checkpoint"
ASKED, TASK = "when-b-is-done", "count_effects"
FIRST_ASKED = "who-makes-it-run"


@pytest.fixture(scope="module")
def server(url: str) -> Iterator[str]:
    """A database in which nobody else has a course."""
    with database_of_its_own(url) as own:
        yield own


@pytest.fixture(scope="module")
def shared(server: str) -> Iterator[Record]:
    """A course that these tests share; `schema` empties it before each."""
    opened = Record(Engine(Database(server, "a_course"), workflows=WORKFLOWS_OF_THE_COURSE))
    migrate(opened.engine.database, course=True)
    yield opened
    opened.close()


@pytest.fixture
def schema(shared: Record, server: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The schema of a course that nobody has begun, which is what a notebook finds."""
    with shared.engine.database.alchemy.connect() as connection:
        connection.execute(text("TRUNCATE a_course.workflows, a_course.steps, a_course.history"))
    monkeypatch.setenv("DATABASE_URL", server)
    monkeypatch.setenv("AGENTFLOW_COURSE", "a_course")
    yield "a_course"
    laboratory.let_go("course", "record")


@pytest.fixture
def kept(schema: str, shared: Record) -> Record:
    """The rows of that course, read beside the notebook."""
    return shared


@pytest.fixture
def another(schema: str, server: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The name of a schema that does not exist yet, and where a notebook looks for its course."""
    name = f"c_{uuid.uuid4().hex[:12]}"
    monkeypatch.setenv("AGENTFLOW_COURSE", name)
    yield name
    laboratory.let_go("course", "record")
    drop(Database(server, name))


@pytest.fixture
def stage(kept: Record) -> Lesson:
    """The first stage, opened by its first cell."""
    return course.stage(START)


def shown(thing: Any) -> str:
    """What a page without a kernel shows, and that its text says the same as its HTML."""
    bundle = thing._repr_mimebundle_() if hasattr(thing, "_repr_mimebundle_") else {"text/html": thing._repr_html_()}
    plain = re.sub(r"\W+", "", unescape(re.sub(r"<style>.*?</style>|<[^>]+>", " ", bundle["text/html"], flags=re.S)))
    for line in repr(thing).splitlines():
        assert re.sub(r"\W+", "", re.sub(r"^ *\d+\. ", "", line)) in plain
    return repr(thing)


# --- a prediction


def test_an_unanswered_question_never_blocks_and_tells_nothing_of_the_right_answer(stage: Lesson) -> None:
    said = shown(stage.predict(ASKED))
    assert prompts.OPEN in said
    because = stage.outline.question(ASKED).because
    assert because not in said
    assert all(idea[:20] not in said for idea in stage.outline.question(ASKED).options.values() if idea != RIGHT)
    folded = shown(stage.reveal(ASKED))
    assert folded.startswith(prompts.STILL_COUNTS)
    assert because not in folded
    assert shown(stage.unfold(ASKED)).startswith("It is 3: one effect, tool called twice.")


def test_an_answer_is_kept_with_its_confidence_and_compared_at_the_reveal(stage: Lesson, kept: Record) -> None:
    assert "You answered 4 (certain): two effects." in shown(stage.predict(ASKED, answer=4, sure="certain"))
    assert kept.read(f"{START}:1").events == {predicted(ASKED): {"answer": 4, "sure": "certain"}}
    said = shown(stage.reveal(ASKED))
    assert (
        "You answered 4 (certain): two effects. That would be true if a second call had to act a second time. In fact"
        in said
    )


def test_the_right_answer_is_recognised(stage: Lesson) -> None:
    stage.predict(ASKED, answer=3)
    assert "You predicted it (guess)." in shown(stage.reveal(ASKED))


def test_the_first_answer_stays(stage: Lesson, kept: Record) -> None:
    stage.predict(ASKED, answer=2, sure="certain")
    assert STAYS in shown(stage.predict(ASKED, answer=3, sure="certain"))
    assert kept.read(f"{START}:1").answer(ASKED) == {"answer": 2, "sure": "certain"}


@pytest.mark.parametrize("before", [None, 2])
def test_no_prediction_is_bettered_after_the_reveal(stage: Lesson, kept: Record, before: int | None) -> None:
    stage.predict(ASKED, answer=before)
    stage.unfold(ASKED)
    said = shown(stage.predict(ASKED, answer=3, sure="certain"))
    assert (f"{LATE} {prompts.CLOSED} {prompts.AGAIN}" if before is None else STAYS) in said
    answer = kept.read(f"{START}:1").answer(ASKED)
    assert answer == (None if before is None else {"answer": 2, "sure": "guess"})
    assert "predicted it" not in shown(stage.reveal(ASKED))


@pytest.mark.parametrize("wrong", [0, 5, "2", True, 1.0, [1]])
def test_an_answer_that_is_none_is_not_kept_and_says_what_may_be_chosen(stage: Lesson, wrong: Any) -> None:
    said = shown(stage.predict(ASKED, answer=wrong))
    assert "Choose a number from 1 to 4" in said
    assert prompts.OPEN in said
    assert "sure='guess', sure='fairly sure', sure='certain'" in shown(stage.predict(ASKED, answer=1, sure="very"))
    assert "You answered" not in shown(stage.predict(ASKED))


def test_again_opens_every_question_and_keeps_the_earlier_answers(stage: Lesson, kept: Record) -> None:
    stage.predict(ASKED, answer=2)
    stage.reveal(ASKED)
    assert shown(stage.again()) == "Round 2 begins: run the cells from the top."
    assert prompts.OPEN in shown(stage.predict(ASKED))
    stage.predict(ASKED, answer=3)
    assert "predicted it" in shown(stage.reveal(ASKED))
    assert [one.answer(ASKED) for one in kept.rounds(START)] == [
        {"answer": 3, "sure": "guess"},
        {"answer": 2, "sure": "guess"},
    ]


def test_a_name_that_the_stage_does_not_have_is_told_with_those_it_has(stage: Lesson) -> None:
    for call in (stage.predict, stage.reveal, stage.exercise, stage.hint):
        with pytest.raises(LookupError, match=f"stage {START} has no .* 'nothing'. Choose from: "):
            call("nothing")
    with pytest.raises(LookupError, match=START):
        course.stage("12-nothing")


# --- every run shows the same


def read_through(name: str) -> list[str]:
    """A notebook's cells, run from the top by somebody who answers nothing."""
    opened = course.stage(name)
    asked = [item.name for item in opened.outline.questions]
    pages = [*(opened.predict(one) for one in asked), *(opened.exercise(one.name) for one in opened.outline.exercises)]
    seen = [shown(page) for page in pages]
    seen += [shown(opened.reveal(one)) for one in asked]
    return [*seen, shown(opened.done("a check passed")), shown(opened.summary())]


def test_a_stage_that_nobody_answers_shows_the_same_each_time_and_after_an_interrupted_run(schema: str) -> None:
    for told in stages.COURSE:
        first = read_through(told.name)
        interrupted = course.stage(told.name)
        interrupted.unfold(told.questions[0].name)
        assert read_through(told.name) == first
        assert not re.search(r"round \d", " ".join(first[:-1]).lower())


def test_a_new_kernel_finds_the_answers_and_a_finished_stage_keeps_them(stage: Lesson) -> None:
    stage.predict(ASKED, answer=1, sure="fairly sure")
    stage.reveal(ASKED)
    assert read_through(START)[1].endswith("You answered 1 (fairly sure): nothing: the work of A is lost.")
    assert "Predicted: 1 of 2. Right: 0." in read_through(START)[-1]


def test_an_answer_survives_the_kill_of_its_kernel(stage: Lesson, server: str, schema: str) -> None:
    """The process is killed between the answer and the reveal, without a chance to close anything."""
    cells = f"""
        from agentflow.lab import course
        course.stage({START!r}).predict({ASKED!r}, answer=2)
        print("kept", flush=True)
        input()"""
    code = textwrap.dedent(cells)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        [sys.executable, "-c", code], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as kernel:
        assert kernel.stdout is not None
        assert kernel.stdout.readline() == b"kept\n"
        send(kernel.pid, signal.SIGKILL)
    assert kernel.returncode == -signal.SIGKILL
    assert "You answered 2 (guess)" in shown(course.stage(START).reveal(ASKED))


def test_a_kernel_killed_while_the_engine_carried_the_stage_loses_nothing(stage: Lesson, kept: Record) -> None:
    """Its lease is still there; the event stands in the row all the same, and the next ones come."""
    assert kept.engine.claim_workflow("dead-kernel") is not None
    stage.predict(ASKED, answer=3)
    stage.done("a check passed")
    assert "predicted it" in shown(stage.reveal(ASKED))
    assert kept.finished(START)
    for question in stage.outline.questions:
        stage.unfold(question.name)
    kept.engine.expire_lease(f"{START}:1")
    assert kept.engine.run_until_idle("another") == 1


def test_a_stage_is_a_workflow_whose_checkpoints_are_the_answers(stage: Lesson, kept: Record) -> None:
    stage.predict(FIRST_ASKED, answer=1)
    stage.predict(ASKED, answer=3)
    row = kept.engine.get_workflow(f"{START}:1") or {}
    assert (row["status"], row["waiting_for"], row["lease_owner"]) == ("waiting", PASSED, None)
    stage.done("a check passed")
    row = kept.engine.get_workflow(f"{START}:1") or {}
    answers = {FIRST_ASKED: {"answer": 1, "sure": "guess"}, ASKED: {"answer": 3, "sure": "guess"}}
    assert (row["status"], row["result"]) == ("completed", answers)
    assert [step["kind"] for step in row["steps"]] == ["wait", "wait", "wait"]


def test_answers_that_an_earlier_version_kept_are_still_read(schema: str, kept: Record) -> None:
    """Its rows are workflows named `attempt` and `exercise`; those named `notes` are left alone."""
    engine = kept.engine
    questions = {"questions": [FIRST_ASKED, ASKED]}
    engine.create_workflow(questions, name="attempt", workflow_id=f"{START}:1")
    engine.create_workflow({}, name="exercise", workflow_id=f"{START}/{TASK}")
    engine.create_workflow({}, name="notes", workflow_id="class record/claim_reads_first")
    for event, answer in ((FIRST_ASKED, 2), (ASKED, 1)):
        engine.deliver_event(f"{START}:1", predicted(event), {"answer": answer, "sure": "certain"})
    engine.deliver_event(f"{START}/{TASK}", "hint 1", True)
    opened = course.stage(START)
    assert "You answered 1 (certain)" in shown(opened.reveal(ASKED))
    assert "Predicted: 2 of 2. Right: 1." in shown(opened.summary())
    assert "Hints shown: 1 of 3." in shown(opened.exercise(TASK))
    assert "finished" in shown(opened.done("a check passed"))
    assert (engine.get_workflow(f"{START}:1") or {})["status"] == "completed"
    assert (engine.get_workflow("class record/claim_reads_first") or {})["status"] == "ready"


def test_a_round_of_an_older_edition_goes_on_with_its_own_questions(kept: Record) -> None:
    """Its row waits for a question that is gone; the new question is asked, answered and revealed all the same."""
    old = replace(stages.outline(START), questions=(Question("gone", "Gone?", {"yes": RIGHT}, ""),))
    kept.begin(old, 1)
    opened = course.stage(START)
    opened.predict(ASKED, answer=3)
    assert "predicted it" in shown(opened.reveal(ASKED))
    assert "finished" in shown(opened.done("a check passed"))
    assert kept.finished(START)


# --- what no reset touches


def test_no_reset_and_no_laboratory_touches_the_course(stage: Lesson, kept: Record, schema: str, server: str) -> None:
    stage.predict(ASKED, answer=3)
    with pytest.raises(NotALaboratory):
        kept.engine.reset_database()
    with pytest.raises(NotALaboratory, match="keeps the learner's answers"):
        migrate(Database(server, schema), laboratory=True)
    with pytest.raises(NotALaboratory, match=r"keeps the learner's answers.*Nothing was changed"):
        fresh_laboratory(schema)
    for command in (["reset", "--yes"], ["migrate", "--laboratory"]):
        told = [sys.executable, "-m", "agentflow", *command, "--schema", schema]
        done = subprocess.run(told, capture_output=True, text=True, timeout=60, cwd=ROOT)
        assert done.returncode == 1
        assert "Nothing was" in done.stderr
    other = fresh_laboratory("lab_beside_it")
    other.reset_database()
    laboratory.let_go("engine", "lab_beside_it")
    drop(other.database)
    assert kept.read(f"{START}:1").answer(ASKED) == {"answer": 3, "sure": "guess"}


def test_a_course_that_nobody_has_begun_does_not_become_a_laboratory_either(another: str, server: str) -> None:
    open_record(another).close()
    for open_it in (lambda: migrate(Database(server, another), laboratory=True), lambda: fresh_laboratory(another)):
        with pytest.raises(NotALaboratory, match="cannot become a laboratory"):
            open_it()


def test_a_laboratory_does_not_become_a_course_and_the_notebook_goes_on(another: str, server: str) -> None:
    migrate(Database(server, another), laboratory=True)
    with pytest.raises(NotALaboratory, match="AGENTFLOW_COURSE"):
        open_record(another)
    assert "Your answers cannot be saved now, but you can go on." in shown(course.stage(START).predict(ASKED, answer=3))


# --- the database is away


@pytest.fixture
def away(monkeypatch: pytest.MonkeyPatch) -> None:
    """A port at which nobody answers."""
    monkeypatch.setenv("DATABASE_URL", "postgresql://nobody@127.0.0.1:9/nothing")
    monkeypatch.setattr(record, "WAIT_FOR_RECORD", 0.05)
    laboratory.let_go("course", "record")


def test_without_a_database_every_cell_goes_on_and_says_so(away: None) -> None:
    opened = course.stage(START)
    told = "Your answers cannot be saved now, but you can go on. PostgreSQL at"
    assert told in shown(opened.predict(ASKED))
    assert told in shown(opened.predict(ASKED, answer=3))
    assert told in shown(opened.reveal(ASKED))
    said = shown(opened.unfold(ASKED))
    assert told in said
    assert said.startswith("It is 3")
    assert opened.reveal(ASKED).lines == opened.unfold(ASKED).lines
    assert "finished" in shown(opened.done("a check passed"))
    for page in (opened.summary(), opened.again(), opened.exercise(TASK), course.progress()):
        assert told in shown(page)
    assert [shown(opened.hint(TASK)).splitlines()[0][:6] for _ in range(4)] == ["Hint 1", "Hint 2", "Hint 3", "These "]


def test_when_the_database_comes_back_the_same_stage_keeps_answers_again(
    kept: Record, server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = course.stage(START)
    monkeypatch.setattr(record, "open_record", lambda: (_ for _ in ()).throw(AgentFlowError("away")))
    laboratory.let_go("course", "record")
    assert "away" in shown(opened.predict(ASKED, answer=2))
    monkeypatch.undo()
    monkeypatch.setenv("DATABASE_URL", server)
    monkeypatch.setenv("AGENTFLOW_COURSE", kept.engine.database.schema)
    assert "You answered 3" in shown(opened.predict(ASKED, answer=3))
    assert kept.read(f"{START}:1").answer(ASKED) == {"answer": 3, "sure": "guess"}


def test_the_first_cell_again_looks_for_the_server_anew(schema: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that was started anew may be another one: what was open belongs to the one that is gone."""
    course.stage(START)
    before = the_record()
    closed: list[bool] = []
    monkeypatch.setattr(before.engine.database, "close", lambda: closed.append(True))
    course.stage(START)
    assert closed
    assert the_record() is not before


def test_what_was_revealed_while_nothing_could_be_kept_is_not_predicted_afterwards(
    kept: Record, stage: Lesson, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = the_record().engine
    with monkeypatch.context() as away:
        away.setattr(engine.database, "execute", lambda *_: (_ for _ in ()).throw(DatabaseAway("away")))
        away.setattr(engine.database, "patience", 0.0)
        assert "away" in shown(stage.unfold(ASKED))
    assert LATE in shown(stage.predict(ASKED, answer=3))
    assert kept.read(f"{START}:1").events == {predicted(ASKED): None}
    stage.again()
    assert "You answered 3" in shown(stage.predict(ASKED, answer=3))


def test_an_answer_that_could_not_be_kept_is_said_even_if_the_page_can_be_read_again(
    stage: Lesson, server: str, kept: Record
) -> None:
    asked = stage.predict(ASKED)
    with psycopg.connect(server.replace("+psycopg", "")) as somebody:
        somebody.execute("SELECT FROM a_course.workflows FOR UPDATE")
        asked.choose(3, "guess")
        assert asked.note.startswith("Your answers cannot be saved now, but you can go on.")
        assert asked.note in shown(asked)
        assert kept.read(f"{START}:1").events == {}
    asked.choose(3, "guess")
    assert (asked.note, "You answered 3" in shown(asked)) == ("", True)


def test_a_locked_row_of_the_course_does_not_keep_a_cell_waiting_for_ever(
    stage: Lesson, server: str, kept: Record
) -> None:
    kept.keep(f"{START}:1", predicted(ASKED), None)
    kept.engine.create_workflow({}, name="exercise", workflow_id="held")
    with psycopg.connect(server.replace("+psycopg", "")) as somebody:
        somebody.execute("SELECT FROM a_course.workflows WHERE id = 'held' FOR UPDATE")
        assert kept.engine.runnable(["exercise"])
        assert kept.keep(f"{START}:1", PASSED, True).events[PASSED] is True


def test_while_the_database_is_away_no_cell_waits_for_it_again(stage: Lesson, monkeypatch: pytest.MonkeyPatch) -> None:
    """The record is open when the server goes: the first cell is patient, those after it ask once."""
    engine = the_record().engine
    waited: list[float] = []
    monkeypatch.setattr(engine.database.give_up, "wait", lambda seconds: waited.append(seconds) or True)
    monkeypatch.setattr(engine.database, "execute", lambda *_: (_ for _ in ()).throw(DatabaseAway("away")))
    monkeypatch.setattr(engine.database, "patience", 0.02)
    assert "away" in shown(stage.reveal(ASKED))
    assert waited
    waited.clear()
    for page in (stage.predict(ASKED), stage.done("a check passed"), stage.exercise(TASK), stage.summary()):
        assert "away" in shown(page)
    assert waited == []
    monkeypatch.undo()


def test_another_question_of_an_answered_round_needs_another_round(stage: Lesson) -> None:
    """Somebody who predicted one thing and read on is not told that a run from the top opens the other."""
    stage.outline = replace(
        stage.outline, questions=(*stage.outline.questions, Question("b", "B?", {"yes": RIGHT}, ""))
    )
    stage.predict(ASKED, answer=3)
    stage.unfold("b")
    assert prompts.AGAIN in shown(stage.predict("b"))


# --- exercises


def test_hints_come_one_at_a_time_and_are_kept(stage: Lesson, kept: Record) -> None:
    hints = stage.outline.exercise(TASK).hints
    assert shown(stage.hint(TASK)) == f"Hint 1: {hints[0]}"
    stage.again()
    opened = course.stage(START)
    assert "Hints shown: 1 of 3." in shown(opened.exercise(TASK))
    assert shown(opened.hint(TASK)) == f"Hint 2: {hints[1]}"
    assert kept.read(f"{START}/{TASK}").hints == 2
    opened.hint(TASK)
    assert shown(opened.hint(TASK)).splitlines() == [
        "These are all the hints.",
        *(f"Hint {n}: {hint}" for n, hint in enumerate(hints, 1)),
    ]


def test_a_hint_asked_for_in_a_cell_stands_on_the_page_that_shows_them(stage: Lesson) -> None:
    hints = stage.exercise(TASK)
    assert hints._repr_mimebundle_()
    stage.hint(TASK)
    page = hints.view.children[-1].value  # type: ignore[union-attr]
    assert "Hint 1: " in page and "Hint 2: " not in page and "Hints shown: 1 of 3." in page
    stage.outline = replace(
        stage.outline, exercises=(replace(stage.outline.exercise(TASK), judge=lambda call: call()),)
    )
    stage.check(TASK, lambda: "Solved: well.")
    assert "You solved it." in hints.view.children[-1].value  # type: ignore[union-attr]


def test_a_static_page_folds_each_hint_into_the_one_before(stage: Lesson) -> None:
    html = stage.exercise(TASK)._repr_mimebundle_()["text/html"]
    assert re.findall(r"Hint \d|</details>", html) == ["Hint 1", "Hint 2", "Hint 3", *["</details>"] * 3]


def test_a_solved_exercise_is_kept_and_an_unsolved_one_is_not(stage: Lesson, kept: Record) -> None:
    solved = Exercise(TASK, ("a", "b"), lambda function: function())
    stage.outline = replace(stage.outline, exercises=(solved,))

    def stub() -> str:
        raise NotImplementedError

    assert shown(stage.check(TASK, stub)) == NOT_SOLVED
    assert "You solved it." not in shown(stage.exercise(TASK))
    assert shown(stage.check(TASK, lambda: "Solved: well.")) == "Solved: well."
    assert (kept.engine.get_workflow(f"{START}/{TASK}") or {})["status"] == "completed"
    assert "You solved it." in shown(course.stage(START).exercise(TASK))
    assert [shown(stage.hint(TASK))[:6] for _ in range(3)] == ["Hint 1", "Hint 2", "These "]


# --- the end of a stage, and the course


def test_a_summary_names_the_idea_behind_each_wrong_answer(stage: Lesson) -> None:
    assert "You predicted nothing in this stage." in shown(stage.summary())
    stage.predict(ASKED, answer=2, sure="certain")
    stage.reveal(ASKED)
    said = str(stage.summary())
    assert "Predicted: 1 of 2. Right: 0." in said
    assert "You answered 2 (certain)" in said
    assert "only A knew" in said
    assert "no: 3" in said


def test_a_stage_is_finished_by_its_checks_and_only_by_them(stage: Lesson, kept: Record) -> None:
    with pytest.raises(AgentFlowError, match="needs at least one check"):
        stage.done()
    assert not kept.finished(START)
    assert shown(stage.done("one", "two")).splitlines() == [
        f"Stage {START} is finished. Next: {RETRY}.",
        "one",
        "two",
    ]
    assert shown(stage.done("another")).startswith(f"Stage {START} is finished.")
    stage.again()
    assert kept.finished(START)


def test_progress_says_where_i_was_and_what_is_next(schema: str) -> None:
    fresh = shown(course.progress())
    assert fresh.startswith(f"Next: {START}.")
    assert f"Fast track, if you know job queues and transactions well: {START}" in fresh
    opened = course.stage(START)
    opened.predict(ASKED, answer=3)
    opened.done("a check passed")
    opened.again()
    row, *others = course.progress().table or []
    assert row == {
        "stage": START, "title": "Start here", "minutes": 15, "finished": "yes", "predicted right": "1 of 2", "solved": "0 of 1",
    }  # fmt: skip
    assert all(other["finished"] == "no" for other in others)
    assert shown(course.progress()).startswith(f"Next: {RETRY}.")


# --- clicks


def test_a_click_sends_what_was_chosen_and_a_second_one_changes_nothing(stage: Lesson, kept: Record) -> None:
    asked = stage.predict(ASKED)
    asked._repr_mimebundle_()
    asked._buttons[2].click()
    assert prompts.CHOOSE_FIRST in asked._standing.value
    asked._options.value = 2
    for _ in range(5):
        asked._buttons[2].click()
    assert kept.read(f"{START}:1").answer(ASKED) == {"answer": 2, "sure": "certain"}
    assert "You answered 2 (certain)" in asked._standing.value
    assert asked._options.disabled
    assert all(button.disabled for button in asked._buttons)


def test_run_all_leaves_every_prediction_to_be_made_and_an_answer_opens_what_was_folded(stage: Lesson) -> None:
    asked, folded = stage.predict(ASKED), stage.reveal(ASKED)
    stage.done("a check passed")
    for shows in (asked, folded):
        shows._repr_mimebundle_()
    because = stage.outline.question(ASKED).because[:20]
    assert because not in folded._seen.value
    asked._options.value = 2
    asked._buttons[0].click()
    assert "You answered 2 (guess)" in folded._seen.value and because in folded._seen.value
    assert folded._button.layout.display == "none"
    assert stage.summary().lines[0] == f"Predicted: 1 of {len(stage.outline.questions)}. Right: 0."
    folded._button.click()
    assert "You answered 2 (guess)" in asked._standing.value


def test_a_finished_stage_in_which_nothing_was_unfolded_goes_on_in_the_same_round(stage: Lesson, kept: Record) -> None:
    stage.done("a check passed")
    course.stage(START).predict(ASKED, answer=3)
    assert kept.read(f"{START}:1").answer(ASKED) == {"answer": 3, "sure": "guess"}


def test_a_complaint_goes_when_an_option_is_chosen_and_the_last_hint_rests_the_button(stage: Lesson) -> None:
    asked, hints = stage.predict(ASKED), stage.exercise(TASK)
    for shows in (asked, hints):
        shows._repr_mimebundle_()
    asked._buttons[0].click()
    assert prompts.CHOOSE_FIRST in asked._standing.value
    asked._options.value = 1
    assert prompts.CHOOSE_FIRST not in asked._standing.value
    for _ in stage.outline.exercise(TASK).hints:
        assert not hints._button.disabled
        hints._button.click()
    assert hints._button.disabled


def test_unfolding_closes_the_buttons_of_its_question(stage: Lesson) -> None:
    asked, folded = stage.predict(ASKED), stage.reveal(ASKED)
    for shows in (asked, folded):
        shows._repr_mimebundle_()
    folded._button.click()
    assert "It is 3" in folded._seen.value
    assert prompts.CLOSED in asked._standing.value
    assert asked._options.disabled


def test_a_click_that_goes_wrong_says_so_on_the_page(stage: Lesson, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = stage.predict(ASKED)
    asked._repr_mimebundle_()
    monkeypatch.setattr(asked, "send", lambda *_: 1 / 0)
    asked._options.value = 1
    asked._buttons[0].click()
    assert "ZeroDivisionError" in asked._standing.value


def test_a_cell_that_is_run_again_leaves_no_widget_behind(stage: Lesson) -> None:
    import ipywidgets as widgets

    def count() -> int:
        return len(widgets.widget._instances)  # type: ignore[attr-defined]

    stage.predict(ASKED)._repr_mimebundle_()
    stage.exercise(TASK)._repr_mimebundle_()
    before = count()
    stage.predict(ASKED)._repr_mimebundle_()
    stage.exercise(TASK)._repr_mimebundle_()
    assert count() == before


# --- what the stages ask


@pytest.mark.parametrize("told", stages.COURSE, ids=lambda told: str(told.name))
def test_an_outline_is_whole(told: Outline) -> None:
    for question in told.questions:
        assert list(question.options.values()).count(RIGHT) == 1, question.name
        assert 2 <= len(question.options) <= 5
        assert question.because.endswith(".")
        for option, idea in question.options.items():
            assert idea == RIGHT or re.fullmatch(r"[^.]+\. In fact[ ,][^.]+", idea), option
            assert not option.endswith(".")
    names = [thing.name for thing in (*told.questions, *told.exercises)]
    assert len(names) == len(set(names))
    assert all(1 <= len(exercise.hints) <= MAX_HINTS for exercise in told.exercises)
    assert 5 <= told.minutes <= 20


def test_stages_have_different_names_in_their_order() -> None:
    names = [told.name for told in stages.COURSE]
    assert names == sorted(set(names))
    assert all(re.fullmatch(r"\d\d-[a-z]+(-[a-z]+)*", name) for name in names)


def test_what_is_kept_names_its_round() -> None:
    assert Kept("00-start-here:12", {}).number == 12
