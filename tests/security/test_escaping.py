"""Text of others in HTML and SVG stays text: every payload through every piece makes no element and no attribute of its own."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import unquote
from xml.etree import ElementTree

import ipywidgets
import pytest

from agentflow import AgentFlowError, Engine
from agentflow.errors import BadSchedule
from agentflow.lab.course.lesson import Lesson
from agentflow.lab.course.mission import Mission
from agentflow.lab.course.outline import RIGHT, Exercise, Outline, Question
from agentflow.lab.course.prompts import FoldedAnswer, Hints, Prompt
from agentflow.lab.course.record import WORKFLOWS_OF_THE_COURSE, Record, StageRecord
from agentflow.lab.crashes.atlas_picture import Atlas, AtlasPicture, draw_atlas
from agentflow.lab.crashes.atlas_result import AtlasCell, GuardSet
from agentflow.lab.crashes.atlas_view import AtlasView, detail
from agentflow.lab.explorer.explore import Exploration
from agentflow.lab.explorer.map_view import MapView
from agentflow.lab.explorer.report import Finding
from agentflow.lab.explorer.search import Bounds
from agentflow.lab.history.canonical import canonical
from agentflow.lab.history.story_reader import read_story
from agentflow.lab.isolation.pair_matrix import PairMatrix
from agentflow.lab.laboratory.laboratory import PATIENT, let_go
from agentflow.lab.notebook.notes import Notes
from agentflow.lab.notebook.tables import Snapshot, Table, query, snapshot
from agentflow.lab.pictures.svg import Picture
from agentflow.lab.pictures.timeline import Timeline, timeline
from agentflow.lab.plots import plots
from agentflow.lab.plots.frames import work_frame
from agentflow.lab.race.picture import Comparison, Race
from agentflow.lab.race.result import Look
from agentflow.lab.room import still, view
from agentflow.lab.room.messages import trouble_of
from agentflow.lab.room.scene import LaneView, LastTransaction, Scene
from agentflow.lab.room.widget import ControlRoom, Shown
from agentflow.lab.schedule.capsule import Capsule
from agentflow.lab.schedule.commit_order import Commit
from agentflow.lab.schedule.grammar import Schedule, Setting
from tests.lab.room.screen import parts

PAYLOADS = [
    "<owned>", "<script>owned()</script>", '"><owned>', "'><owned>", '" owned="1', "' owned='1", "</style><owned>",
    "</title><owned>", "</desc></svg><owned>", "]]><owned>", "--><owned>", "<!--<owned>", "&lt;owned&gt;", "&#60;owned&#62;",
    "<img src=x onerror=owned()>", "<svg onload=owned()>", "</textarea><owned>", "`<owned>`", "**<owned>**", "$<owned>$",
    "{0}<owned>%s", "\x1b]0;<owned>\x07", "\u2028<owned>", "</g></text><owned>", "javascript:owned()", "\x0b<owned>\ufffe",
    "<owned\n>", "\" onfocus=owned() autofocus x=\"",
]  # fmt: skip
PLAIN = ["plain", "plain " * 60, "two\nlines", "`code`"]
Part = tuple[str, str]
# What JupyterLab's own code puts into a page as text, whatever it is. (It does not with the options of ToggleButtons.)
WIDGETS = ["VBox", "HBox", "Box", "Button", "RadioButtons", "Dropdown", "Text", "BoundedIntText"]
AS_TEXT = {getattr(ipywidgets, name) for name in WIDGETS}


class _Parts(HTMLParser):
    def __init__(self, shown: str) -> None:
        super().__init__(convert_charrefs=False)
        self.found: set[Part] = set()
        self.feed(shown)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found |= {(tag, ""), *((tag, name) for name, _ in attrs)}

    def handle_comment(self, data: str) -> None:
        self.found.add(("a comment", ""))


def parts_of(shown: list[str]) -> set[Part]:
    """The elements and attributes that pieces of HTML are made of; pictures in them are well-formed XML."""
    images = [
        unquote(unescape(found)) for one in shown for found in re.findall(r'src="data:image/svg[^,]*,([^"]*)"', one)
    ]
    for one in (*shown, *images):
        if one.startswith("<svg"):
            ElementTree.fromstring(one)
    return {part for one in shown for part in _Parts(one).found}


def html_of(thing: Any) -> Iterator[str]:
    """The HTML by which a thing is shown: its own, and that of the live view with its buttons and fields."""
    if isinstance(thing, str):
        yield thing
    elif isinstance(thing, ipywidgets.Widget):
        assert "owned" not in " ".join(thing._dom_classes)
        assert not getattr(thing, "description_allow_html", False)
        if isinstance(thing, ipywidgets.HTML):
            yield thing.value
        else:
            assert type(thing) in AS_TEXT
        for child in getattr(thing, "children", ()):
            yield from html_of(child)
    else:
        bundle = getattr(thing, "_repr_mimebundle_", lambda: {"text/html": thing._repr_html_()})()
        yield bundle["text/html"]
        yield from html_of(getattr(thing, "view", ""))


@pytest.fixture(scope="module")
def history(shared_database: Any) -> list[dict[str, Any]]:
    """A history with a claim, a checkpoint, a plan, a call, an acknowledgment, a failure and a refusal in it."""
    engine = Engine(shared_database)
    engine.reset_database()
    engine.create_workflow("I cannot login", workflow_id="w")
    engine.run_once("A")
    return engine.history("w")


def altered(history: list[dict[str, Any]], text: str) -> list[dict[str, Any]]:
    def detail_of(entry: dict[str, Any]) -> dict[str, Any]:
        return {**(entry["detail"] or {}), "error": text, "note": text}

    return [{**one, "subject": text, "worker": one["worker"] and text, "detail": detail_of(one)} for one in history]


def timelines(history: list[dict[str, Any]], text: str) -> Iterator[str]:
    entries = altered(history, text)
    for options in ({}, {"compact": True}, {"axis": "milliseconds"}, {"seconds": True}, {"fold": True}, {"cursor": 3}):
        yield timeline(entries, schedule=text, **options).svg  # type: ignore[arg-type]
    live = timeline(entries, live=True, workers=[text, "B"])
    yield from (live.svg, live.html, f"<svg>{live.gutter}</svg>", timeline(entries)._repr_html_())


def results(history: list[dict[str, Any]], text: str) -> Iterator[Any]:
    """What shows results that a learner's own names went into."""
    entries = altered(history, text)
    outcome = {"sentence": text, "problems": [text], "workflows": []}
    yield Capsule("A*", text, [{"workflow_id": "w", "input": text}], list(canonical(entries)), outcome)
    yield detail(
        cell := AtlasCell(after := f"after {text}", f"{text} 0", "done", line=text, history=tuple(entries), error=text)
    )
    yield detail(AtlasCell(text, text, "done", executions=((1, text),)))
    yield detail(AtlasCell(text, text, "failed", error=text))
    atlas = Atlas(tuple(GuardSet((text, str(n))) for n in range(8)), {(after, f"{text} 0"): cell}, 1.0, (after,))
    yield from (atlas, draw_atlas(atlas), draw_atlas(atlas, live=True))
    finding = Finding(text, "harm", text, Schedule(Setting(workflow=text)), text)
    yield Exploration(
        Setting(workflow=text), Bounds(), 2, 1, 1, 1, 1, 1.0, 1, 1, (finding,), text, None, {}, ((text, text),), text, text
    )  # fmt: skip
    yield PairMatrix(text, (), 1.0)
    look = Look("A", text, 1, 0.0, 1.0, ("B",))
    commits = (
        Commit("A", text, "workflow_claimed", "claim", text, 1, 1.0),
        Commit("A", text, "write_refused", "checkpoint", text, 1, 2.0),
    )
    race = Race("skip_locked", ("A", "B"), 1, (look,), commits, 0, 0)
    yield from (race, Comparison(race, race))
    yield Table([{text: text}], text)
    yield Notes([text, f"`{text}`"])
    yield Mission(Setting(workflow=text), text, 1, 1)


def room(history: list[dict[str, Any]], text: str) -> Iterator[Any]:
    """All that a control room says, live and as a picture: where lanes are, a wait, a failure, a refused line, a traceback."""
    lanes = [LaneView(text, text, text, text), LaneView("A", text, text, text, before_tool=True)]
    step = {"step_id": text, "value": text, "error": {"type": text, "message": text}, "fence_token": 1, "worker": text}
    row = {
        "id": text, "status": "waiting", "state": text, "lease_owner": f"{text}.x", "lease_expires_at": 1, "expired": False,
        "fence_token": 1, "recovery_started_at": None, "waiting_for": text, "attempts": 1, "crashes": 1,
        "error": {"type": text, "message": text}, "steps": [step], "intents": [], "effects": [],
    }  # fmt: skip
    story = read_story(altered(history, text))
    scene = Scene(
        text, Setting(workflow=text), text, row, {**row, "state": f"{text}before"}, text, lanes, story,
        transaction=LastTransaction("claim", text, text), line=text, sentence=text, remark=text, awaited=text, ignored=2,
    )  # fmt: skip
    for trouble in (
        None,
        trouble_of(AgentFlowError(text)),
        trouble_of(BadSchedule(text)),
        trouble_of(ValueError(text)),
    ):
        yield view.say(replace(scene, trouble=trouble))
    yield from (*view.parts(scene).values(), still.kept(replace(scene, row={**row, "status": "failed"})))
    yield view.lane_line(lanes[0], replace(scene, busy=lanes[0].name))


PIECES: dict[str, Callable[[list[dict[str, Any]], str], Iterator[Any]]] = {
    "timelines": timelines, "results": results, "room": room,
}  # fmt: skip


@pytest.mark.parametrize("piece", PIECES)
def test_no_payload_becomes_an_element_or_an_attribute(piece: str, history: list[dict[str, Any]]) -> None:
    known = parts_of([one for text in PLAIN for thing in PIECES[piece](history, text) for one in html_of(thing)])
    for payload in PAYLOADS:
        shown = [one for thing in PIECES[piece](history, payload) for one in html_of(thing)]
        assert parts_of(shown) - known == set(), payload
        assert any("owned" in one for one in shown), payload


def test_no_payload_in_a_row_becomes_an_element_or_an_attribute(engine: Engine) -> None:
    """Every payload at once in ids, steps, values, keys, actions, errors and names of workers, in the room and in tables."""

    def hostile(run: Any, given: Any) -> Any:
        for payload in texts:
            run.step(payload, lambda payload=payload: {payload: payload})
        run.side_effect(texts[0], key=texts[1], arguments={texts[2]: texts})
        run.step("fails", lambda: (_ for _ in ()).throw(ValueError("".join(texts))))

    shown: dict[bool, list[str]] = {}
    for attack, texts in ((False, [f"plain{n} {'x' * 9}" for n in range(len(PAYLOADS))]), (True, PAYLOADS)):
        engine.reset_database()
        engine.policy, engine.workflows = replace(PATIENT, max_attempts=1), {"hostile": hostile}
        room = ControlRoom(engine, "workflow=hostile A*", quiet_seconds=0)
        pieces = [*html_of(room)]
        for entry in (1, room.scene().length // 2, room.scene().length):
            room.show(entry)
            pieces += parts(room)
        row = room.scene().row
        assert row is not None and row["status"] == "failed"
        looks: list[Snapshot | Table] = [
            snapshot(engine, row["id"]),
            query(engine, "SELECT * FROM steps", "".join(texts)),
        ]
        pieces += [one for look in looks for one in html_of(look)]
        pieces.append(timeline(engine.history(row["id"])).svg)
        room.close()
        engine.create_workflow("x", name="hostile", workflow_id=texts[0])
        engine.run_once(texts[1])
        pieces.append(plots.work_per_worker(work_frame(engine)).svg)
        shown[attack] = pieces
    assert parts_of(shown[True]) - parts_of(shown[False]) == set()
    assert sum("owned" in one for one in shown[True]) > 8


def test_no_payload_in_a_lesson_becomes_an_element_or_an_attribute(engine: Engine) -> None:
    """Every payload in a question, options, ideas, hints, verdicts and errors: on buttons' views, in notes and tables."""
    shown: dict[bool, list[str]] = {}
    for attack, texts in ((False, ["`code`", "two\nlines", *"abcdefgh"]), (True, PAYLOADS)):
        engine.reset_database()
        record = Record(Engine(engine.database, workflows=WORKFLOWS_OF_THE_COURSE))
        said = "".join(texts)
        question = Question("q", said, {said: RIGHT} | {text: text for text in texts}, said)
        exercise = Exercise("e", (said, *texts), lambda _, said=said: said)
        outline = Outline("stage", said, said, 1, (question,), (exercise,))
        lesson = Lesson(outline, lambda record=record: record)
        pieces = [*html_of(prompt := lesson.predict("q"))]
        for given in (2, 3):
            prompt.choose(given, "guess")
            pieces += html_of(prompt)
        pieces += html_of(hints := lesson.exercise("e"))
        (button,) = hints.view.children[1].children
        for _ in texts:
            button.click()
        pieces += html_of(hints)
        pieces += html_of(FoldedAnswer(question, lesson.summary, lambda: None, lambda: False))
        for notes in (
            lesson.reveal("q"),
            lesson.summary(),
            lesson.hint("e"),
            lesson.check("e", len),
            lesson.done(said),
        ):
            pieces += html_of(notes)
        # A click that fails, and a record that cannot be kept.
        for error in (ValueError(said), AgentFlowError(said)):

            def fails(*_: Any, error: Exception = error) -> Any:
                raise error

            kept = StageRecord(outline, fails)
            for shows in (Prompt(question, kept, fails, said), Hints(exercise, kept, fails)):
                pieces += html_of(shows)
                shows.view.children[-2].children[0].click()  # type: ignore[union-attr]
                pieces += html_of(shows)
                shows.close()
        atlas = Atlas((GuardSet((said,)),), boundaries=tuple(f"after {text}" for text in texts))
        for cell in [AtlasCell(after, said, "done", line=said, error=said) for after in atlas.boundaries]:
            atlas = atlas.with_cell(cell)
        pieces += html_of(shows := AtlasView(atlas))
        shows.close()
        one: Any = SimpleNamespace(
            at=lambda _: (1.0, 1.0), way=lambda _: [], gap=[False], shown=[], harms=[], depth=[0], singly=True
        )
        drawn = MapView(one, Picture("<svg></svg>", said), Setting(workflow=said))  # type: ignore[arg-type]
        drawn.choose(0)
        pieces += html_of(drawn)
        drawn.close()
        shown[attack] = pieces
    let_go("ask", "stage/q")
    let_go("hints", "stage/e")
    assert parts_of(shown[True]) - parts_of(shown[False]) == set()
    assert sum("owned" in one for one in shown[True]) > 20


def test_every_class_that_shows_itself_as_html_is_attacked_here() -> None:
    attacked = {
        Capsule,
        Atlas,
        AtlasPicture,
        AtlasView,
        Exploration,
        MapView,
        PairMatrix,
        Race,
        Comparison,
        Table,
        Notes,
        Mission,
    }
    attacked |= {Prompt, Hints, FoldedAnswer, Shown, ControlRoom, Snapshot, Picture, Timeline}
    found = set()
    for file in Path(view.__file__).parents[2].rglob("*.py"):
        for kind in re.split(r"^(?=class )", file.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]:
            if re.search(r"def _(repr_html|repr_mimebundle|ipython_display)_", kind):
                found.add(re.match(r"class (\w+)", kind)[1])  # type: ignore[index]
    assert found - {"_Shown"} <= {kind.__name__ for kind in attacked}
