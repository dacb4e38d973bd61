"""A control room on an empty laboratory; no thread of it is left after the test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from agentflow import Engine
from agentflow.lab.laboratory.laboratory import PATIENT
from agentflow.lab.room.widget import ControlRoom, control_room
from tests.lab.room.screen import idle, ours


@pytest.fixture
def room(engine: Engine) -> Iterator[ControlRoom]:
    engine.policy, others = PATIENT, ours()
    room = control_room(engine, name="test", quiet_seconds=0)
    yield room
    if not room.controller.closed:
        idle(room)
    room.close()
    assert ours() == others
