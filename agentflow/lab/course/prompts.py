"""Questions and hints on the page: with buttons in a live notebook, as text elsewhere.

A click calls the same function as a cell does. What goes wrong is shown below the buttons.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from importlib.resources import files
from typing import Any

import ipywidgets as widgets
from IPython.display import DisplayHandle

from ..notebook.live_view import HIDES_SAVED, LIVE, keep, show
from ..notebook.notes import Notes, as_html
from ..pictures.saved import saved
from .outline import SURE, Exercise, Question
from .record import SOLVED, Kept, StageRecord

OPEN = "Not answered yet. A guess is fine, and the notebook goes on without one."
CHOOSE_FIRST = "Choose an option first, then say how sure you are."
CLOSED = "The answer was shown before you answered."
FOLDED = "Show the answer"
STILL_COUNTS = "Nobody has predicted yet, so the answer stays folded: until it is shown, a prediction counts."
NEXT_HINT = "Show the next hint"
AGAIN = "`stage.again()` starts another round; then run the cells from the top, one at a time."
HOW = "Choose an option, then say how sure you are: that sends it, and the first answer stays."
BUTTONS = {"guess": "It is a guess", "fairly sure": "I am fairly sure", "certain": "I am certain"}

ASK_STYLE = f"<style>{files(__package__).joinpath('ask.css').read_text(encoding='utf-8')}</style>"

# With the focus on a button JupyterLab takes `x` as delete cell. This attribute is the cure; only the page can set it.
NO_SHORTCUTS = (
    '<img alt="" width="0" height="0" src="data:image/gif;base64,R0lGODlhAQABAAAAACH5BAEKAAEALAAAAAABAAEAAAICTAEAOw==" '
    "onload=\"const r=this.closest('.af-ask');if(r){const f=()=>r.querySelectorAll('button,input,summary')"
    ".forEach(e=>e.setAttribute('data-lm-suppress-shortcuts','true'));f();"
    "let last=null;r.tabIndex=-1;r.setAttribute('data-lm-suppress-shortcuts','true');"
    "r.addEventListener('focusin',e=>{last=e.target});"
    "document.addEventListener('pointerdown',e=>{if(!r.contains(e.target))last=null},true);"
    "document.addEventListener('focusin',e=>{if(!r.contains(e.target))last=null});"
    "new MutationObserver(()=>{if(last&&document.activeElement===document.body)r.focus({preventScroll:true})})"
    ".observe(r,{subtree:true,attributes:true,childList:true});"
    'new MutationObserver(f).observe(r,{childList:true,subtree:true});}">'
)


class _Shown(ABC):
    """Something that a page shows as a live view, as HTML and as text."""

    view: widgets.VBox | None = None
    handle: DisplayHandle | None = None  # of the output where it is shown

    @abstractmethod
    def to_html(self) -> str:
        """It, without buttons and style."""

    @abstractmethod
    def build(self) -> widgets.VBox:
        """Its live view."""

    def close(self) -> None:
        """Closes its widgets."""
        if self.view is not None:
            for widget in (*_below(self.view), self.view):
                for part in (getattr(widget, "style", None), widget.layout, widget):
                    if part is not None:
                        part.close()
            self.view = None

    def _ipython_display_(self) -> None:
        self.handle = show(self._repr_mimebundle_())

    def _repr_mimebundle_(self, **options: Any) -> Mapping[str, Any]:
        self.view = self.view or self.build()
        live = self.view._repr_mimebundle_(**options) or {}
        return {**live, "text/html": saved(self.to_html()), "text/plain": repr(self)}

    def _keep(self) -> None:
        """Lets the notebook keep what it shows now, for a page without a kernel."""
        if self.handle is not None:
            keep(self.handle, self._repr_mimebundle_())


def _below(box: widgets.Box) -> list[Any]:
    inner = [one for child in box.children if isinstance(child, widgets.Box) for one in _below(child)]
    return [*inner, *box.children]


def _frame(*children: Any) -> widgets.VBox:
    none = widgets.Layout(height="0", margin="0", overflow="hidden")
    view = widgets.VBox([widgets.HTML(HIDES_SAVED + ASK_STYLE + NO_SHORTCUTS, layout=none), *children])
    return view.add_class("af-ask").add_class(LIVE)


class Prompt(_Shown):
    """A question on the page. `send(number, sure)` keeps an answer; it returns why it did not, or an empty text."""

    def __init__(
        self, question: Question, record: StageRecord, send: Callable[[int, str], str], note: str = ""
    ) -> None:
        self.question, self.record, self.send, self.note = question, record, send, note

    def standing(self, kept: Kept | None) -> str:
        """Whether it was answered (and how), is open or was revealed; and what went wrong."""
        given = kept.answer(self.question.name) if kept else None
        if given:
            option = list(self.question.options)[given["answer"] - 1]
            now = f"You answered {given['answer']} ({given['sure']}): {option}."
        elif kept and kept.is_closed(self.question.name):
            now = f"{CLOSED} {AGAIN}"
        else:
            now = OPEN
        return " ".join(dict.fromkeys(part for part in (self.note, now, self.record.trouble) if part))

    def choose(self, number: int | None, sure: str) -> None:
        """Sends the answer, and shows on the page what became of it."""
        self.refresh(CHOOSE_FIRST if number is None else self.send(number, sure))

    def refresh(self, note: str | None = None) -> None:
        """Shows on the page the state of the question, after `note`, if there is a new one."""
        self.note = self.note if note is None else note
        if self.view is not None:
            self._draw()
        self._keep()

    def build(self) -> widgets.VBox:
        """The question, its options, a button for each degree of confidence, and its state."""
        asked = widgets.HTML(f'<div class="af-look"><p><b>{as_html(self.question.ask)}</b></p><p>{HOW}</p></div>')
        numbered = [(option, number) for number, option in enumerate(self.question.numbered, 1)]
        self._options = widgets.RadioButtons(options=numbered, value=None, layout=widgets.Layout(width="auto"))
        self._options.observe(lambda _: self.refresh("") if self.note == CHOOSE_FIRST else None, "value")
        self._buttons = [self._button(sure) for sure in SURE]
        self._standing = widgets.HTML()
        self.view = _frame(asked, self._options, widgets.HBox(self._buttons), self._standing)
        self._draw()
        return self.view

    def _button(self, sure: str) -> widgets.Button:
        button = widgets.Button(description=BUTTONS[sure], tooltip=f"Send the chosen option: {sure}")
        button.on_click(lambda _: self._click(sure))
        return button

    def _click(self, sure: str) -> None:
        try:
            self.choose(self._options.value, sure)
        except Exception as error:  # an exception of a callback is shown nowhere else
            self.refresh(f"{type(error).__name__}: {error}")

    def _draw(self) -> None:
        kept = self.record.this_round()
        said = as_html(self.standing(kept))
        self._standing.value = f'<div class="af-look" role="status" aria-live="polite"><p>{said}</p></div>'
        if kept and (answer := kept.answer(self.question.name)):
            self._options.value = answer["answer"]
        for one in (self._options, *self._buttons):
            one.disabled = bool(kept and kept.is_closed(self.question.name))

    def to_html(self) -> str:
        """The question, its options and its state, without the style sheet."""
        options = "".join(f"<li>{as_html(option)}</li>" for option in self.question.options)
        standing = as_html(self.standing(self.record.this_round()))
        return f"<p><b>{as_html(self.question.ask)}</b></p><ol>{options}</ol><p>{standing}</p>"

    def __repr__(self) -> str:
        options = [f"  {option}" for option in self.question.numbered]
        return "\n".join([self.question.ask, *options, self.standing(self.record.this_round())])


class Hints(_Shown):
    """An exercise's hints on the page, one at a time. `ask` gives the next one, and keeps that it was shown."""

    def __init__(self, exercise: Exercise, record: StageRecord, ask: Callable[[], Notes]) -> None:
        self.exercise, self.record, self.ask = exercise, record, ask

    def standing(self) -> str:
        """Whether the exercise is solved, how many hints were shown, and what shows the next."""
        kept = self.record.exercise(self.exercise)
        solved = "You solved it. " if kept and SOLVED in kept.events else ""
        number, many = kept.hints if kept else 0, len(self.exercise.hints)
        way = f"stage.hint({self.exercise.name!r}) shows {'the next' if number < many else 'them again'}."
        return " ".join(
            part for part in (f"{solved}Hints shown: {number} of {many}.", way, self.record.trouble) if part
        )

    def build(self) -> widgets.VBox:
        """A button for the next hint, and below it those that were shown."""
        self._button = widgets.Button(description=NEXT_HINT, tooltip="One at a time; try something after each")
        self._button.on_click(lambda _: self._click())
        self._seen = widgets.HTML()
        self.view = _frame(widgets.HBox([self._button]), self._seen)
        self.refresh()
        return self.view

    def refresh(self) -> None:
        """Shows on the page the hints that were asked for so far, in any cell."""
        if self.view is not None:
            kept = self.record.exercise(self.exercise)
            asked = self.exercise.hints[: kept.hints if kept else 0]
            self._draw([f"Hint {number}: {hint}" for number, hint in enumerate(asked, 1)])
        self._keep()

    def _click(self) -> None:
        try:
            self._draw([*self._lines, *self.ask().lines])
        except Exception as error:  # an exception of a callback is shown nowhere else
            self._draw([*self._lines, f"{type(error).__name__}: {error}"])

    def _draw(self, lines: list[str]) -> None:
        self._lines = list(dict.fromkeys(lines))
        self._button.disabled = all(f"Hint {n}: {hint}" in self._lines for n, hint in enumerate(self.exercise.hints, 1))
        self._button.description = "These are all the hints" if self._button.disabled else NEXT_HINT
        said = "".join(f"<p>{as_html(line)}</p>" for line in (*self._lines, self.standing()))
        self._seen.value = f'<div class="af-look" role="status" aria-live="polite">{said}</div>'

    def to_html(self) -> str:
        """The hints, each folded into the one before it, so that they open one at a time."""
        inner = ""
        for number, hint in reversed(list(enumerate(self.exercise.hints, 1))):
            inner = f"<details><summary>Hint {number}</summary><p>{as_html(hint)}</p>{inner}</details>"
        return f"<p>{as_html(self.standing())}</p>{inner}"

    def __repr__(self) -> str:
        return self.standing()


class FoldedAnswer(_Shown):
    """The answer to a question that nobody has answered yet: folded until a click, or until a prediction is made.

    `told` is what there is to show, `unfold` closes the question, `is_open` says whether it was answered or unfolded.
    """

    def __init__(
        self, question: Question, told: Callable[[], Notes], unfold: Callable[[], Any], is_open: Callable[[], bool]
    ) -> None:
        self.question, self.told, self.unfold, self.is_open = question, told, unfold, is_open

    def build(self) -> widgets.VBox:
        """A button, and in its place what it unfolds."""
        self._button = widgets.Button(description=FOLDED, tooltip="After this, no prediction counts")
        self._button.on_click(lambda _: self._click())
        self._seen = widgets.HTML()
        self.view = _frame(self._button, self._seen)
        self._draw()
        return self.view

    def refresh(self) -> None:
        """Shows the answer on the page if it may be seen now."""
        if self.view is not None:
            self._draw()
        self._keep()

    def _click(self) -> None:
        try:
            self.unfold()
        except Exception as error:  # an exception of a callback is shown nowhere else
            self._seen.value = (
                f'<div class="af-look" role="alert"><p>{as_html(f"{type(error).__name__}: {error}")}</p></div>'
            )

    def _draw(self) -> None:
        is_open = self.is_open()
        self._button.layout.display = "none" if is_open else ""
        said = self.told().to_html() if is_open else f"<p>{as_html(self.standing())}</p>"
        self._seen.value = f'<div class="af-look" role="status">{said}</div>'

    def standing(self) -> str:
        """That the answer is folded, and what shows it."""
        return f"{STILL_COUNTS} `stage.unfold({self.question.name!r})` shows it."

    def to_html(self) -> str:
        """The answer, folded unless it may be seen."""
        told = self.told().to_html()
        folded = f"<p>{as_html(self.standing())}</p><details><summary>{FOLDED}</summary>{told}</details>"
        return told if self.is_open() else folded

    def __repr__(self) -> str:
        return repr(self.told()) if self.is_open() else "\n".join([self.standing(), *self.told().lines[1:]])
