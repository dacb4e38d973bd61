"""The past is never repainted, and a write without authority is never silent: for presets, broken engines, random schedules.

What a write was allowed to do is decided here from the rows before it, not from the history that the picture reads.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from xml.etree import ElementTree as ET

import pytest

from agentflow import Database, Engine
from agentflow.lab.history.sentences import twin
from agentflow.lab.history.story import Box
from agentflow.lab.history.story_reader import read_story
from agentflow.lab.laboratory.laboratory import PATIENT
from agentflow.lab.pictures.timeline import timeline
from agentflow.lab.schedule.grammar import Setting
from agentflow.lab.schedule.moves import Moved
from agentflow.lab.schedule.presets import PRESETS
from agentflow.lab.schedule.stepper import Stepper
from agentflow.lab.verify.snapshot import Rows, read_rows
from agentflow.statements import GUARDED
from tests.lab.schedule.test_random_schedules import legal
from tests.support.histories import Entries
from tests.support.verdicts import VERDICTS, Verdict

SVG = "{http://www.w3.org/2000/svg}"
SETTINGS = (
    Setting(), Setting(requests=2), Setting(without=("fence_token", "lease_owner")), Setting(without=("idempotency_key",)),
    Setting(without=("lease_expiry",)), Setting(workflow="approval_agent"), Setting(without=("status_only",)),
    Setting(without=("fence_token",), names="shared"),
)  # fmt: skip


@dataclass
class Watch:
    """The entries with which a worker wrote although the row was another's, had another token, or its lease had ended."""

    engine: Engine
    rows: Rows = field(default_factory=Rows)
    without_authority: list[tuple[str, int]] = field(default_factory=list)

    def __call__(self, moved: Moved) -> None:
        before, self.rows = self.rows, read_rows(self.engine)
        passed = moved.passed
        if passed is None or passed.transaction not in GUARDED:
            return
        row = next((one for one in before.workflows if one["id"] == passed.workflow), None)
        new = [
            one for one in self.rows.history
            if one["workflow_id"] == passed.workflow and row is not None and one["n"] > row["entries"]
        ]  # fmt: skip
        written = [one for one in new if one["transaction"] == passed.transaction and one["event"] != "write_refused"]
        if (
            row
            and written
            and (row["lease_owner"], row["fence_token"], row["lease"]) != (passed.worker, passed.token, "live")
        ):
            self.without_authority.append((str(passed.workflow), written[0]["n"]))


@dataclass(frozen=True)
class Played:
    line: str
    entries: Entries
    without_authority: list[tuple[str, int]]


def _told(stepper: Stepper, watch: Watch) -> Played:
    """Its entries; the numbers of those without authority count the world's entries, too, as a history does."""
    histories = {name: stepper.engine.history(name) for name in stepper.workflows}
    own = {name: [row["n"] for row in rows if row["transaction"] != "tool"] for name, rows in histories.items()}
    found = [(name, own[name][n - 1]) for name, n in watch.without_authority]
    return Played(stepper.line, [row for rows in histories.values() for row in rows], found)


def _play(engine: Engine, line: str) -> Played:
    watch = Watch(engine)
    with Stepper(engine, watch=watch) as stepper:
        stepper.play(line)
        return _told(stepper, watch)


def _wander(engine: Engine, seed: int) -> Played:
    dice, watch = random.Random(seed), Watch(engine)
    with Stepper(engine, watch=watch) as stepper:
        stepper.reset(SETTINGS[seed % len(SETTINGS)])
        for _ in range(14):
            stepper.move(dice.choice(legal(stepper, watch.rows, "AB")))
        return _told(stepper, watch)


@pytest.fixture(scope="module", params=[8, pytest.param(40, marks=pytest.mark.long)], ids="{} random".format)
def played(shared_database: Database, request: pytest.FixtureRequest) -> Iterator[list[Played]]:
    """Every preset, and so many random schedules."""
    engine = Engine(shared_database, policy=PATIENT)
    found = [_play(engine, preset.line) for preset in PRESETS.values()]
    yield [*found, *(_wander(engine, seed) for seed in range(request.param))]
    engine.reset_database()
    engine.world.database.close()


def _marks(entries: Entries, cursor: int | None = None) -> list[str]:
    """Each mark of a live picture as its shapes and words, without its place and its size."""
    root = ET.fromstring(timeline(entries, live=True, compact=True, cursor=cursor).svg)
    groups = [one for one in root.iter(SVG + "g") if one.get("class") == "ev"]
    plain = [re.sub(r' tabindex="[-\d]+"', "", ET.tostring(one, encoding="unicode")) for one in groups]
    return [re.sub(r'(?<=["MLHVvhlcmzZ ,-])-?[\d.]+(?=["MLHVvhlcmzZ ,-])', "0", one) for one in plain]


def test_each_picture_contains_the_marks_of_the_one_before(played: list[Played]) -> None:
    for one in played:
        rows = read_story(one.entries).entries
        first = len({row.workflow for row in rows})
        order = sorted(one.entries, key=lambda row: row["at"])
        before: list[str] = []
        for upto in range(first, len(order) + 1):
            now = _marks(order[:upto])
            assert now[: len(before)] == before, f"{one.line}, entry {upto}"
            before = now


def test_each_text_and_each_span_goes_on_from_the_one_before(played: list[Played]) -> None:
    for one in played:
        order = sorted(one.entries, key=lambda row: row["at"])
        before = read_story([])
        for upto in range(len({row["workflow_id"] for row in order}), len(order) + 1):
            now = read_story(order[:upto])
            assert twin(now)[: len(twin(before))] == twin(before), one.line
            for name in ("gaps", "lost", "waits", "sleeps"):
                begun = [(span.start, span.what if name != "waits" else "") for span in getattr(now, name)]
                assert all(
                    (span.start, span.what if name != "waits" else "") in begun for span in getattr(before, name)
                ), one
            assert {(band.who, band.token, band.start) for band in before.bands} <= {
                (band.who, band.token, band.start) for band in now.bands
            }
            before = now


def test_looking_back_shows_what_was_there_then(played: list[Played]) -> None:
    for one in played[: len(PRESETS)]:
        order = sorted(one.entries, key=lambda row: row["at"])
        for upto in range(len({row["workflow_id"] for row in order}), len(order)):
            then = _marks(order[:upto], upto)
            assert then == _marks(order, upto)[-len(then) :], f"{one.line}, entry {upto}"


def _boxed(one: Played) -> tuple[Box | None, tuple[str, int] | None]:
    told = read_story(one.entries)
    order = sorted(one.entries, key=lambda row: row["at"])
    box = told.box
    if box is None or box.kind != "unauthorised":
        return box, None
    several = len({row["workflow_id"] for row in order}) > 1
    number = told.marks[int(box.span.start)].n
    row = order[number - 1] if several else next(row for row in order if row["n"] == number)
    return box, (row["workflow_id"], row["n"])


def test_the_first_write_without_authority_has_the_box(played: list[Played]) -> None:
    assert any(one.without_authority for one in played), "the random schedules show some"
    for one in played:
        assert _boxed(one)[1] == (one.without_authority or [None])[0], one.line


HARMFUL = [one for one in VERDICTS if one.moves]


@pytest.mark.parametrize("verdict", HARMFUL, ids=str)
def test_every_broken_engines_shortest_schedule_has_the_box_where_it_writes_without_authority(
    shared_database: Database, verdict: Verdict
) -> None:
    engine = Engine(shared_database, policy=PATIENT)
    options = {name: value for name, value in verdict.options.items() if name in {"names", "model", "workflow"}}
    setting = Setting(without=verdict.without, **options)
    one = _play(engine, f"{setting} {verdict.moves}".strip())
    box, first = _boxed(one)
    assert first == (one.without_authority or [None])[0], one.line
    if verdict.kind == "authority":
        assert box is not None and box.title.endswith(", and written")
    drawn = timeline(one.entries)
    assert drawn.svg.count('rx="3"') == (1 if box else 0)
    engine.world.database.close()
