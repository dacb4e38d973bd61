"""The pictures of docs/pictures.md are what the code draws from real runs today, and the page shows all of them."""

from __future__ import annotations

import re

import pytest

from agentflow import Database, Engine
from agentflow.lab.laboratory.laboratory import PATIENT
from tests.support.pictures import FOLDER, PICTURES, pictures


@pytest.fixture
def patient(shared_database: Database) -> Engine:
    """An engine whose leases end only by a move."""
    engine = Engine(shared_database, policy=PATIENT)
    engine.reset_database()
    return engine


def test_the_pictures_of_the_docs_are_those_of_the_same_schedules_played_now(patient: Engine) -> None:
    drawn = pictures(patient)
    patient.reset_database()
    patient.world.database.close()
    stale = [name for name, svg in drawn.items() if (FOLDER / f"timeline-{name}.svg").read_text("utf-8") != svg + "\n"]
    assert stale == [], "python -m tests.support.pictures makes them anew"


def test_the_page_shows_every_picture_with_its_schedule() -> None:
    page = (FOLDER.parent / "pictures.md").read_text("utf-8")
    shown = set(re.findall(r"\(pictures/timeline-([a-z-]+)\.svg\)", page))
    assert shown == set(PICTURES)
    assert {name for name, line in PICTURES.items() if f"`{line}`" not in page} == set()
    assert {path.stem.removeprefix("timeline-") for path in FOLDER.glob("timeline-*.svg")} == set(PICTURES)
