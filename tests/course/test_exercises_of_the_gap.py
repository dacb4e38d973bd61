"""The exercises of 04 and 05: the solution passes, the stub is told what to do, plausible mistakes get a fitting message."""

from __future__ import annotations

import datetime
import functools
import hashlib
import itertools
import json
import os
import random
import socket
import time
import unicodedata
import uuid
from collections.abc import Callable
from typing import Any

import pytest

from agentflow import Engine
from agentflow.lab.course import judging, stages
from agentflow.lab.course.checks import CheckFailed
from agentflow.lab.course.judging import NOT_SOLVED, judged
from agentflow.lab.laboratory.scratch_schema import new_name
from agentflow.values import idempotency_key
from tests.conftest import rows
from tests.solutions import suspend_and_resume, the_acknowledgment_gap

KEY = stages.outline("04-the-acknowledgment-gap").exercise("key_for").judge
WAKEUP = stages.outline("05-suspend-and-resume").exercise("lost_wakeup").judge
COUNTED = itertools.count(7)
REMEMBERED: dict[tuple[str, str], str] = {}
POSITIONS: dict[tuple[str, str], str] = {}
RUN, STARTED, PREFIX = uuid.uuid4().hex, time.time(), ":"


def remembered(workflow_id: str, action: str) -> str:
    return REMEMBERED.setdefault((workflow_id, action), str(uuid.uuid4()))


@functools.cache
def cached(_workflow_id: str, _action: str) -> str:
    return str(random.random())


def with_a_default(workflow_id: str, action: str, run: str = uuid.uuid4().hex) -> str:
    return json.dumps([run, workflow_id, action])


def of_this_hour(workflow_id: str, action: str) -> str:
    from datetime import datetime

    return json.dumps([workflow_id, action, datetime.now().hour])


def in_a_closure() -> Callable[[str, str], str]:
    run = uuid.uuid4().hex
    return lambda w, a: json.dumps([run, w, a])


ENCLOSED = in_a_closure()


def stub(*_: Any) -> Any:
    raise NotImplementedError


def test_a_key_made_from_both_names_is_accepted_and_nothing_of_the_check_stays(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[str] = []

    def named(prefix: str) -> str:
        made.append(new_name(prefix))
        return made[-1]

    monkeypatch.setattr(judging, "new_name", named)
    for make in (
        the_acknowledgment_gap.key_for,
        lambda w, a: hashlib.sha256(json.dumps([w, a]).encode()).hexdigest(),
        lambda w, a: f"{len(w)}{PREFIX}{w}{a}",
        idempotency_key,
    ):
        assert judged(KEY, make, engine).startswith("Solved")
    assert judged(KEY, stub, engine) == NOT_SOLVED
    assert len(made) == 4  # other tests make schemas meanwhile; these are the check's own
    kept = "SELECT nspname FROM pg_namespace WHERE nspname = ANY(:made) OR nspname = ANY(:worlds)"
    assert rows(engine, kept, made=made, worlds=[f"{name}_world" for name in made]) == []
    assert rows(engine, "SELECT * FROM {w}.tool_ledger") == []


MADE: list[tuple[Callable[[str, str], Any], str]] = [
    (lambda _w, _a: str(uuid.uuid4()), "made up anew, so the tool cannot know that it was asked before"),
    (lambda w, _a: f"{w}-{time.time()}", "holds the clock"),
    (lambda w, _a: f"{w}-{datetime.date.today()}", "holds the clock"),
    (lambda w, _a: f"{w}:{next(COUNTED)}", "a position. B replays some calls, so it counts to another number"),
    (lambda w, a: REMEMBERED.setdefault((w, a), str(uuid.uuid4())), "in another process.*What one process remembers"),
    (lambda w, a: POSITIONS.setdefault((w, a), f"{len(POSITIONS)}"), "Here the key is 3, in another process 0"),
    (lambda w, a: f"{RUN}:{w}:{a}", "in another process.*computes when its module is loaded"),
    (lambda w, a: f"{STARTED}:{w}:{a}", "holds the clock|in another process"),
    (lambda w, a: remembered(w, a), "in another process"),
    (cached, "in another process"),
    (with_a_default, "in another process"),
    (in_a_closure(), "in another process"),
    (ENCLOSED, "in another process"),
    (lambda w, a: f"{os.getpid()}:{w}:{a}", "in another process"),
    (lambda w, a: f"{socket.gethostname()}:{w}:{a}", "in another process .*other-"),
    (lambda w, a: json.dumps([os.getcwd(), w, a]), "in another process .*other-"),
    (lambda w, a: json.dumps([uuid.getnode(), w, a]), "in another process"),
    (of_this_hour, "an hour later .*: it holds the clock"),
    (lambda w, a: json.dumps([w, a, datetime.datetime.now().hour]), "an hour later .*: it holds the clock"),
    (lambda w, a: json.dumps([w, a, time.strftime("%B")]), " later .*: it holds the clock"),
    (lambda w, a: json.dumps([w, a, datetime.date.today().year]), " later .*: it holds the clock"),
    (lambda w, a: f"{w}{a}", "and so is that of action .* of workflow .*may be any text"),
    (lambda w, a: f"{w}:{a}", "The key of action 'x' of workflow 'x:' is x::x, and so is that of action ':x'"),
    (lambda w, a: f"{w}<->{a}", "and so is that of action '<->x' of workflow 'x'"),
    (lambda w, a: f"{len(w)}{w}{a}", "and so is that of action"),
    (lambda w, a: f"{w.replace(':', '%3A')}:{a}", "and so is that of action"),
    (lambda w, a: json.dumps([w, a])[:60], "and so is that of action"),
    (lambda w, a: json.dumps([w, a]).lower(), "and so is that of action"),
    (lambda w, a: json.dumps([w.strip(), a.strip()]), "and so is that of action"),
    (lambda w, a: json.dumps(sorted([w, a])), "and so is that of action"),
    (lambda w, a: hashlib.sha256(json.dumps([w, a]).encode()).hexdigest()[:4], "and so is that of action"),
    (lambda w, a: unicodedata.normalize("NFC", json.dumps([w, a], ensure_ascii=False)), "and so is that of action"),
    (lambda w, a: f"{w}\0{a}", "the text holds a NUL character, which PostgreSQL cannot store"),
    (lambda w, a: str(hash((w, a))), "in another process.*would call under another key"),
    (
        lambda w, _a: w,
        "no row for send-receipt of request-1: its key request-1 is also that of resolve-account of request-1",
    ),
    (
        lambda _w, a: a,
        "no row for resolve-account of request-2: its key resolve-account is also that of resolve-account of request-1",
    ),
    (lambda _w, _a: "key", "no row for send-receipt of request-1"),
    (lambda _w, _a: None, "a call without a key has its effect every time"),
    (lambda w, a: (w, a), "a tuple, .*A key is a text"),
    (lambda _w, _a: "", "an empty text. Every action would have the same key"),
    (lambda w, a: w + a + 1, "raised TypeError for resolve-account of request-1"),
]


@pytest.mark.parametrize(("make", "hint"), MADE, ids=[f"{n}: {hint[:24]}" for n, (_, hint) in enumerate(MADE)])
def test_a_key_that_does_not_hold_is_told_what_it_looks_like(
    engine: Engine, make: Callable[[str, str], Any], hint: str
) -> None:
    with pytest.raises(CheckFailed, match=hint):
        judged(KEY, make, engine)


def test_a_lost_wakeup_is_accepted(engine: Engine) -> None:
    assert judged(WAKEUP, suspend_and_resume.lost_wakeup, engine).startswith("Solved")
    for line in ("A*3 event:approval A A*", "workflow=approval_agent without=wait_reads_first A*3 event:approval A*"):
        assert judged(WAKEUP, lambda line=line: line, engine).startswith("Solved")
    assert judged(WAKEUP, stub, engine) == NOT_SOLVED


LINES = [
    ("A* event:approval B*", "entry 4 parked the workflow, and the answer, entry 5, came afterwards and woke it"),
    ("A*2 event:approval A*", "was there first, as entry 4, and the look found it, as entry 5 says"),
    ("event:approval A*", "was there first, as entry 2, and the look found it, as entry 5 says"),
    ("A*3 event:approval", "lost yet: the answer is entry 4, and nobody has parked the workflow. It is ready"),
    ("A*3 event:approval A", "leaves the real engine's workflow ready, because no worker goes on to the end"),
    ("workflow=research_agent A*3 event:approval A*", "Leave workflow=research_agent out"),
    ("without=idempotency_key A*3 event:approval A*", "Leave without=idempotency_key out"),
    ("A* B*", "Nobody answers in your line"),
    ("A* event:hello B*", "no workflow waits for it; approval_agent waits for approval"),
    ("A* A* nonsense", "nonsense"),
    ("A*3 event:approval A! expire B*", "was there first, as entry 4, and the look found it, as entry 8 says"),
    ("A*3 event:approval A! A*", "A!"),
    (None, "does it end with `return`"),
    (["A*"], "Return a schedule"),
]


@pytest.mark.parametrize(("line", "hint"), LINES, ids=[str(line) for line, _ in LINES])
def test_a_line_that_loses_nothing_is_told_when_the_answer_came(engine: Engine, line: Any, hint: str) -> None:
    with pytest.raises(CheckFailed, match=hint):
        judged(WAKEUP, lambda: line, engine)


def test_a_line_that_loses_nothing_can_be_seen_and_is_told_no_move_of_the_solution(engine: Engine) -> None:
    for line in ("A* event:approval B*", "A*2 event:approval A*"):
        with pytest.raises(CheckFailed) as caught:
            judged(WAKEUP, lambda line=line: line, engine)
        said = str(caught.value)
        assert f"room.run('workflow=approval_agent without=wait_reads_first {line}')" in said
        assert "read_events" not in said and "A*3" not in said
