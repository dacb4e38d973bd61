"""Text of others in HTML and SVG stays text: every payload through every piece makes no element and no attribute of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from html.parser import HTMLParser
from typing import Any
from xml.etree import ElementTree

import pytest
from ipywidgets import HTML

from agentflow import AgentFlowError, Engine
from agentflow.lab.course.outline import RIGHT, Outline, Question
from agentflow.lab.course.prompts import Prompt
from agentflow.lab.course.record import StageRecord
from agentflow.lab.crashes.atlas_result import AtlasCell
from agentflow.lab.crashes.atlas_view import detail
from agentflow.lab.explorer.explore import Exploration
from agentflow.lab.explorer.report import Finding
from agentflow.lab.explorer.search import Bounds
from agentflow.lab.history.canonical import canonical
from agentflow.lab.isolation.pair_matrix import PairMatrix
from agentflow.lab.laboratory.laboratory import PATIENT
from agentflow.lab.notebook.notes import Notes
from agentflow.lab.notebook.tables import Table, query, snapshot
from agentflow.lab.pictures.timeline import timeline
from agentflow.lab.plots import plots
from agentflow.lab.plots.frames import work_frame
from agentflow.lab.race.picture import draw_race
from agentflow.lab.race.result import Look, RaceResult
from agentflow.lab.room.widget import ControlRoom
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
PLAIN = ["plain", "plain " * 60, "two\nlines"]
Part = tuple[str, str]


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
    for one in shown:
        if one.startswith("<svg"):
            ElementTree.fromstring(one)
    return {part for one in shown for part in _Parts(one).found}


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


def results(history: list[dict[str, Any]], text: str) -> Iterator[str]:
    """What shows results that a learner's own names went into."""
    entries = altered(history, text)
    outcome = {"sentence": text, "problems": [text], "workflows": []}
    yield Capsule("A*", text, [{"workflow_id": "w", "input": text}], list(canonical(entries)), outcome)._repr_html_()
    yield detail(AtlasCell(text, text, "done", line=text, history=tuple(entries), error=text))
    yield detail(AtlasCell(text, text, "done", executions=((1, text),)))
    yield detail(AtlasCell(text, text, "failed", error=text))
    finding = Finding(text, "harm", text, Schedule(Setting(workflow=text)), text)
    yield Exploration(
        Setting(workflow=text),
        Bounds(),
        2,
        1,
        1,
        1,
        1,
        1.0,
        1,
        1,
        (finding,),
        text,
        None,
        {},
        ((text, text),),
        text,
        text,
    )._repr_html_()
    yield PairMatrix(text, (), 1.0)._repr_html_()
    look = Look("A", text, 1, 0.0, 1.0, ("B",))
    commits = (
        Commit("A", text, "workflow_claimed", "claim", text, 1, 1.0),
        Commit("A", text, "write_refused", "checkpoint", text, 1, 2.0),
    )
    yield draw_race(RaceResult("skip_locked", ("A", "B"), 1, (look,), commits, 0, 0)).svg
    yield Table([{text: text}], text)._repr_html_()
    yield Notes([text, f"`{text}`"])._repr_html_()
    record = StageRecord(Outline(text, text, text, 1), lambda: (_ for _ in ()).throw(AgentFlowError(text)))
    prompt = Prompt(Question(text, text, {text: RIGHT, f"b{text}": text}, text), record, lambda *_: text, text)
    yield from (prompt.to_html(), *(widget.value for widget in prompt.build().children if isinstance(widget, HTML)))
    prompt.close()


PIECES: dict[str, Callable[[list[dict[str, Any]], str], Iterator[str]]] = {"timelines": timelines, "results": results}


@pytest.mark.parametrize("piece", PIECES)
def test_no_payload_becomes_an_element_or_an_attribute(piece: str, history: list[dict[str, Any]]) -> None:
    known = parts_of([one for text in PLAIN for one in PIECES[piece](history, text)])
    for payload in PAYLOADS:
        shown = list(PIECES[piece](history, payload))
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
        room.run("workflow=hostile A*")
        pieces = [room.to_html(), *parts(room)]
        for entry in (1, room.scene().length // 2, room.scene().length):
            room.show(entry)
            pieces += parts(room)
        row = room.scene().row
        assert row is not None and row["status"] == "failed"
        pieces.append(snapshot(engine, row["id"])._repr_html_())
        pieces.append(query(engine, "SELECT * FROM steps", "".join(texts))._repr_html_())
        pieces.append(timeline(engine.history(row["id"])).svg)
        room.close()
        engine.create_workflow("x", name="hostile", workflow_id=texts[0])
        engine.run_once(texts[1])
        pieces.append(plots.work_per_worker(work_frame(engine)).svg)
        shown[attack] = pieces
    assert parts_of(shown[True]) - parts_of(shown[False]) == set()
    assert sum("owned" in one for one in shown[True]) > 8
