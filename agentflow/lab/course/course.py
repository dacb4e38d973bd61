"""The course as a notebook uses it: a question before each reveal, hints, what was finished, what comes next.

What lives here: the few methods that cells call, and what they say. What does not: the questions (`stages`), where answers
are kept (`record`), buttons (`ask`). Nothing here stops a notebook: an unanswered question never does, and while
PostgreSQL does not answer, a sentence says that nothing is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ...errors import AgentFlowError
from ..history.entries import Row
from ..laboratory import laboratory
from ..notebook.notes import Said
from ..notebook.tables import Table
from . import stages
from .desk import Desk
from .exercise import SOLVED as SAYS_SOLVED
from .exercise import is_number, judged
from .outline import SURE, Exercise, Outline, Question
from .prompts import AGAIN, Hints, Prompt
from .record import PASSED, SOLVED, Record, predicted, the_record

LATE = "This does not count."
FIRST = "Your first answer stays."


def stage(name: str) -> Stage:
    """The stage of this notebook, where the learner left it. Raises LookupError if the course has no such stage."""
    told = stages.outline(name)
    laboratory.let_go("course", "record")  # the first cell again finds a server that was started anew
    chosen = Stage(told, the_record)
    chosen.sit_down()
    return chosen


def progress() -> Said:
    """Where the learner is: which stages are finished, what was predicted and solved, and what comes next."""
    desks = [Desk(told, the_record) for told in stages.COURSE]
    rows = [_progress_row(desk) for desk in desks]
    trouble = next((desk.trouble for desk in desks if desk.trouble), "")
    coming = next((row["stage"] for row in rows if row["finished"] != "yes"), None)
    fast = ", ".join(told.name for told in stages.COURSE if told.fast)
    lines = [f"Next: {coming}." if coming else "Every stage is finished."]
    lines += [f"Fast track, if you know job queues and transactions well: {fast}."]
    return Said([*lines, *([trouble] if trouble else [])], Table(rows, "the course"))


class Stage:
    """One stage of the course as one learner goes through it; made by stage()."""

    def __init__(self, told: Outline, opened: Callable[[], Record]) -> None:
        self.outline, self._desk = told, Desk(told, opened)
        self._asked: dict[str, Prompt] = {}
        self._helped: dict[str, Hints] = {}
        self._hinted: dict[str, int] = {}
        self._revealed: set[str] = set()  # also while nothing can be kept

    def sit_down(self) -> None:
        """The newest attempt goes on; one that was read through without a prediction is left, and another begun."""
        self._desk.sit_down()

    # -- questions ---------------------------------------------------------------------------------------------------

    def predict(self, name: str, answer: int | None = None, sure: str = SURE[0]) -> Prompt:
        """The question, to be shown and answered by clicks, or by `answer` (a number from 1) and how `sure` you are.

        The first answer stays, and none counts after the reveal. Without an answer the notebook goes on.
        """
        question = self.outline.question(name)
        note = self.answer(name, answer, sure) if answer is not None else ""
        asked = Prompt(question, self._desk, lambda number, how: self.answer(name, number, how), note)
        laboratory.keep("ask", f"{self.outline.name}/{name}", asked)
        self._asked[name] = asked
        return asked

    def answer(self, name: str, answer: Any, sure: Any = SURE[0]) -> str:
        """The answer is kept if it is one and no other came first; why it was not, or nothing."""
        question = self.outline.question(name)
        if not (is_number(answer) and 1 <= answer <= len(question.options)):
            return f"Choose a number from 1 to {len(question.options)}, such as answer=1."
        if sure not in SURE:
            return f"Say how sure you are with one of these: {', '.join(f'sure={how!r}' for how in SURE)}."
        given = {"answer": answer, "sure": sure}
        kept = self._desk.keep(predicted(name), None if name in self._revealed else given)
        if kept is None:
            return self._desk.trouble
        if kept.answer(name) == given:
            return ""
        return FIRST if kept.answer(name) else LATE

    def reveal(self, name: str) -> Said:
        """What is right, beside what was predicted and the idea behind it; from now on no answer counts."""
        question = self.outline.question(name)
        kept = self._desk.keep(predicted(name), None)
        self._revealed.add(name)
        lines = [f"It is {question.right}: {question.options[question.right - 1].says}. {question.because}"]
        if kept and (said := kept.answer(name)):
            lines.append(_compared(question, said))
        if name in self._asked:
            self._asked[name].refresh()
        return self._said(lines)

    def summary(self) -> Said:
        """What was predicted and what was right, with the ideas behind the wrong answers."""
        kept = self._desk.attempt()
        answers = {question: kept.answer(question.name) for question in self.outline.questions} if kept else {}
        given = {question: said for question, said in answers.items() if said}
        if not given:
            return self._said(["You predicted nothing in this stage.", AGAIN])
        wrong = [(question, said) for question, said in given.items() if said["answer"] != question.right]
        lines = [f"Predicted: {len(given)} of {len(self.outline.questions)}. Right: {len(given) - len(wrong)}."]
        lines += [f"{question.ask} {_compared(question, said)}" for question, said in wrong]
        rows = [_predicted_row(question, said) for question, said in given.items()]
        return self._said(lines, Table(rows, "your predictions"))

    def again(self) -> Said:
        """A new attempt has begun, in which every question is open; the earlier answers are kept beside it."""
        kept = self._desk.again()
        self._revealed.clear()
        for asked in self._asked.values():
            asked.refresh("")
        return self._said([f"Attempt {kept.number} begins: run the cells from the top."] if kept else [])

    # -- exercises ---------------------------------------------------------------------------------------------------

    def exercise(self, name: str) -> Hints:
        """The exercise's hints, to be shown one at a time, and whether it is solved."""
        hints = Hints(self.outline.exercise(name), self._desk, lambda: self.hint(name))
        laboratory.keep("hints", f"{self.outline.name}/{name}", hints)
        self._helped[name] = hints
        return hints

    def hint(self, name: str) -> Said:
        """The next hint of the exercise; how many were shown is kept. After the last one, all of them."""
        chosen = self.outline.exercise(name)
        kept = self._desk.exercise(chosen)
        number = max(kept.hints if kept else 0, self._hinted.get(name, 0)) + 1
        self._hinted[name] = number
        if number > len(chosen.hints):
            return self._said(["These are all the hints.", *(_hint(n, hint) for n, hint in enumerate(chosen.hints, 1))])
        self._keep_exercise(chosen, f"hint {number}")
        return self._said([_hint(number, chosen.hints[number - 1])])

    def check(self, name: str, function: Callable[..., Any], *more: Any) -> Said:
        """What the exercise's judge says of the function; that it is solved is kept. Raises CheckFailed."""
        chosen = self.outline.exercise(name)
        verdict = judged(chosen.judge, function, *more)
        if not verdict.startswith(SAYS_SOLVED):
            return Said([verdict])
        self._keep_exercise(chosen, SOLVED)
        return self._said([verdict])

    def _keep_exercise(self, chosen: Exercise, event: str) -> None:
        """The event is kept, and the exercise's hints on the page say so."""
        self._desk.keep_exercise(chosen, event)
        if chosen.name in self._helped:
            self._helped[chosen.name].refresh()

    # -- the end of a stage ------------------------------------------------------------------------------------------

    def done(self, *checks: str) -> Said:
        """The stage is finished, as each of these checks passed (or it would have raised); what comes next.

        Questions that nobody revealed are closed. Raises AgentFlowError if there is no check.
        """
        if not checks:
            raise AgentFlowError("A stage ends in checks: stage.done(checks.completed(engine, ...), ...).")
        for question in self.outline.questions:
            self._desk.keep(predicted(question.name), None)
        self._desk.keep(PASSED, True)
        following = [told.name for told in stages.COURSE if told.name > self.outline.name]
        then = f"Next: {following[0]}." if following else "It was the last one."
        return self._said([f"Stage {self.outline.name} is finished. {then}", *checks])

    def _said(self, lines: list[str], table: Table | None = None) -> Said:
        trouble = [self._desk.trouble] if self._desk.trouble else []
        return Said([*lines, *trouble], table)

    def __repr__(self) -> str:
        asked, tasks = len(self.outline.questions), len(self.outline.exercises)
        return f"{self.outline.title}: {self.outline.minutes} minutes, questions: {asked}, exercises: {tasks}"


def _compared(question: Question, said: Mapping[str, Any]) -> str:
    """What was predicted, beside what is right; with the idea behind it, if it is wrong."""
    if said["answer"] == question.right:
        return f"You predicted it ({said['sure']})."
    option = question.options[said["answer"] - 1]
    return (
        f"You said {said['answer']} ({said['sure']}): {option.says}. Behind it stands the idea {option.misconception}."
    )


def _predicted_row(question: Question, said: Mapping[str, Any]) -> Row:
    right = "yes" if said["answer"] == question.right else f"no: {question.right}"
    return {"question": question.ask, "you said": said["answer"], "how sure": said["sure"], "right": right}


def _progress_row(desk: Desk) -> Row:
    told, kept = desk.outline, desk.predicted()
    answers = [(question, kept.answer(question.name)) for question in told.questions] if kept else []
    right = sum(bool(said and said["answer"] == question.right) for question, said in answers)
    solved = sum(SOLVED in one.events for one in map(desk.exercise, told.exercises) if one)
    return {
        "stage": told.name,
        "title": told.title,
        "minutes": told.minutes,
        "finished": "yes" if desk.finished() else "no",
        "predicted right": _of(right, len(told.questions)),
        "solved": _of(solved, len(told.exercises)),
    }


def _hint(number: int, hint: str) -> str:
    return f"Hint {number}: {hint}"


def _of(number: int, all_of_them: int) -> str:
    return f"{number} of {all_of_them}"
