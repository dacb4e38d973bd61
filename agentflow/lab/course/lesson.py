"""The course as a notebook uses it: a question before each reveal, hints, what was finished, what comes next.

Nothing here stops a notebook: a question may stay unanswered, and while PostgreSQL does not answer, a sentence says that
nothing is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from ...errors import AgentFlowError
from ..history.entries import Row
from ..laboratory import laboratory
from ..notebook.notes import Notes
from ..notebook.tables import Table
from . import stages
from .judging import NOT_SOLVED, is_number, judged
from .outline import SURE, Exercise, Outline, Question
from .prompts import AGAIN, FoldedAnswer, Hints, Prompt
from .record import PASSED, SOLVED, Kept, Record, StageRecord, predicted, the_record

LATE = "Too late: the answer has been shown, so this one was not recorded."
STAYS = "Your first answer stays."


def stage(name: str) -> Lesson:
    """Opens the stage of this notebook where the learner left it. Raises LookupError if the course has no such stage."""
    outline = stages.outline(name)
    laboratory.let_go("course", "record")  # the first cell, run again, finds a server that was started anew
    return Lesson(outline, the_record)


def progress() -> Notes:
    """Shows which stages are finished, what was predicted and solved, and what comes next."""
    records = [StageRecord(outline, the_record) for outline in stages.COURSE]
    rows = [_progress_row(record) for record in records]
    trouble = [record.trouble for record in records if record.trouble][:1]
    following = next((row["stage"] for row in rows if row["finished"] != "yes"), None)
    fast = ", ".join(outline.name for outline in stages.COURSE if outline.fast)
    lines = [f"Next: {following}." if following else "Every stage is finished."]
    lines += [f"Fast track, if you know job queues and transactions well: {fast}."]
    return Notes([*lines, *trouble], Table(rows, "the course"))


class Lesson:
    """One stage of the course as one learner goes through it; made by stage()."""

    def __init__(self, outline: Outline, open_it: Callable[[], Record]) -> None:
        self.outline, self._record = outline, StageRecord(outline, open_it)
        self._prompts: dict[str, Prompt] = {}
        self._hints: dict[str, Hints] = {}
        self._hinted: dict[str, int] = {}  # how many hints were shown, also while nothing can be kept
        self._folded: dict[str, FoldedAnswer] = {}
        self._revealed: set[str] = set()  # also while nothing can be kept
        self._record.open_round()

    # -- questions ---------------------------------------------------------------------------------------------------

    def predict(self, name: str, answer: int | None = None, sure: str = SURE[0]) -> Prompt:
        """Shows the question, to be answered by clicks, or by `answer` (a number from 1) and how `sure` you are.

        The first answer stays, and none counts after the reveal. Without an answer the notebook goes on.
        """
        question = self.outline.question(name)
        note = self.answer(name, answer, sure) if answer is not None else ""
        prompt = self._prompts[name] = Prompt(question, self._record, partial(self.answer, name), note)
        laboratory.keep("ask", f"{self.outline.name}/{name}", prompt)
        return prompt

    def answer(self, name: str, answer: Any, sure: Any = SURE[0]) -> str:
        """Keeps the answer, unless it is not one or another came first. Returns why it was not kept, or an empty text."""
        question = self.outline.question(name)
        if not (is_number(answer) and 1 <= answer <= len(question.options)):
            return f"Choose a number from 1 to {len(question.options)}, such as answer=1."
        if sure not in SURE:
            return f"Say how sure you are with one of these: {', '.join(f'sure={how!r}' for how in SURE)}."
        given = {"answer": answer, "sure": sure}
        kept = self._record.keep(predicted(name), None if name in self._revealed else given)
        if kept is None:
            return self._record.trouble
        if kept.answer(name) == given:
            self._refresh(name)
            return ""
        return STAYS if kept.answer(name) else LATE

    def reveal(self, name: str) -> Notes | FoldedAnswer:
        """Shows the right answer beside the predicted one and the idea behind it; folded, as long as nobody has predicted."""
        question = self.outline.question(name)
        told = partial(self._told, question)
        if self._is_closed(name):
            return told()
        answer = self._folded[name] = FoldedAnswer(
            question, told, partial(self.unfold, name), partial(self._is_closed, name)
        )
        laboratory.keep("answer", f"{self.outline.name}/{name}", answer)
        return answer

    def unfold(self, name: str) -> Notes:
        """Shows the right answer, also if nobody has predicted; from now on no prediction counts."""
        question = self.outline.question(name)
        self._record.keep(predicted(name), None)
        self._revealed.add(name)
        self._refresh(name)
        return self._told(question)

    def _is_closed(self, name: str) -> bool:
        """Whether the question was answered or its answer unfolded."""
        kept = self._record.this_round()
        return name in self._revealed or bool(kept and kept.is_closed(name))

    def _told(self, question: Question) -> Notes:
        kept = self._record.this_round()
        lines = [f"It is {question.right}: {list(question.options)[question.right - 1]}. {question.because}"]
        if kept and (given := kept.answer(question.name)):
            lines.append(_compared(question, given))
        return self._notes(lines)

    def _refresh(self, name: str) -> None:
        """Shows on the page what became of a question: in its cell, and where its answer is folded."""
        if name in self._prompts:
            self._prompts[name].refresh()
        if name in self._folded:
            self._folded[name].refresh()

    def summary(self) -> Notes:
        """Shows what was predicted and what was right, with the ideas behind the wrong answers."""
        kept = self._record.this_round()
        given = _answers(self.outline, kept) if kept else []
        if not given:
            return self._notes(["You predicted nothing in this stage.", AGAIN])
        wrong = [(question, answer) for question, answer in given if answer["answer"] != question.right]
        lines = [f"Predicted: {len(given)} of {len(self.outline.questions)}. Right: {len(given) - len(wrong)}."]
        lines += [f"{question.ask} {_compared(question, answer)}" for question, answer in wrong]
        return self._notes(lines, Table([_predicted_row(*one) for one in given], "your predictions"))

    def again(self) -> Notes:
        """Starts another round, in which every question is open; the earlier answers are kept beside it."""
        kept = self._record.next_round()
        self._revealed.clear()
        for prompt in self._prompts.values():
            prompt.refresh("")
        for answer in self._folded.values():
            answer.refresh()
        return self._notes([f"Round {kept.number} begins: run the cells from the top."] if kept else [])

    # -- exercises ---------------------------------------------------------------------------------------------------

    def exercise(self, name: str) -> Hints:
        """Shows the exercise's hints one at a time, and whether it is solved."""
        hints = self._hints[name] = Hints(self.outline.exercise(name), self._record, lambda: self.hint(name))
        laboratory.keep("hints", f"{self.outline.name}/{name}", hints)
        return hints

    def hint(self, name: str) -> Notes:
        """Shows the next hint of the exercise, and keeps how many were shown. After the last one, shows all of them."""
        chosen = self.outline.exercise(name)
        kept = self._record.exercise(chosen)
        number = max(kept.hints if kept else 0, self._hinted.get(name, 0)) + 1
        self._hinted[name] = number
        hints = [f"Hint {n}: {hint}" for n, hint in enumerate(chosen.hints, 1)]
        if number > len(hints):
            return self._notes(["These are all the hints.", *hints])
        self._keep_exercise(chosen, f"hint {number}")
        return self._notes([hints[number - 1]])

    def check(self, name: str, function: Callable[..., Any], *more: Any) -> Notes:
        """Shows what the exercise's judge says of the function, and keeps that it is solved. Raises CheckFailed."""
        chosen = self.outline.exercise(name)
        verdict = judged(chosen.judge, function, *more)
        if verdict == NOT_SOLVED:
            return Notes([verdict])
        self._keep_exercise(chosen, SOLVED)
        return self._notes([verdict])

    def _keep_exercise(self, chosen: Exercise, event: str) -> None:
        """Keeps the event, and shows it on the page with the exercise's hints."""
        self._record.keep_exercise(chosen, event)
        if chosen.name in self._hints:
            self._hints[chosen.name].refresh()

    # -- the end of a stage ------------------------------------------------------------------------------------------

    def done(self, *checks: str) -> Notes:
        """Marks the stage as finished, as each of these checks passed (or it would have raised), and shows what comes next.

        A question whose answer is still folded stays open. Raises AgentFlowError if there is no check.
        """
        if not checks:
            raise AgentFlowError("stage.done() needs at least one check, such as checks.completed(engine, ...).")
        self._record.keep(PASSED, True)
        following = [outline.name for outline in stages.COURSE if outline.name > self.outline.name]
        then = f"Next: {following[0]}." if following else "It was the last one."
        return self._notes([f"Stage {self.outline.name} is finished. {then}", *checks])

    def _notes(self, lines: list[str], table: Table | None = None) -> Notes:
        trouble = [self._record.trouble] if self._record.trouble else []
        return Notes([*lines, *trouble], table)

    def __repr__(self) -> str:
        questions, exercises = len(self.outline.questions), len(self.outline.exercises)
        return f"{self.outline.title}: {self.outline.minutes} minutes, questions: {questions}, exercises: {exercises}"


def _answers(outline: Outline, kept: Kept) -> list[tuple[Question, Mapping[str, Any]]]:
    """The questions that were answered in this round, each with its answer."""
    answers = ((question, kept.answer(question.name)) for question in outline.questions)
    return [(question, answer) for question, answer in answers if answer]


def _compared(question: Question, given: Mapping[str, Any]) -> str:
    """What was predicted, and if it is wrong, the idea behind it and what is so instead."""
    if given["answer"] == question.right:
        return f"You predicted it ({given['sure']})."
    option, misconception = list(question.options.items())[given["answer"] - 1]
    return f"You answered {given['answer']} ({given['sure']}): {option}. That would be true if {misconception}."


def _predicted_row(question: Question, given: Mapping[str, Any]) -> Row:
    right = "yes" if given["answer"] == question.right else f"no: {question.right}"
    return {"question": question.ask, "you answered": given["answer"], "how sure": given["sure"], "right": right}


def _progress_row(record: StageRecord) -> Row:
    outline, kept = record.outline, record.predicted()
    right = sum(given["answer"] == question.right for question, given in _answers(outline, kept)) if kept else 0
    solved = sum(SOLVED in kept.events for kept in map(record.exercise, outline.exercises) if kept)
    return {
        "stage": outline.name,
        "title": outline.title,
        "minutes": outline.minutes,
        "finished": "yes" if record.finished() else "no",
        "predicted right": f"{right} of {len(outline.questions)}",
        "solved": f"{solved} of {len(outline.exercises)}",
    }
