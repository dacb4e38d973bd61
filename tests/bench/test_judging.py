"""A slow machine passes, a slow change does not, and a busy machine is not judged. Time is a number here; nothing waits."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from types import SimpleNamespace

import pytest

from tests.bench import idle, yardsticks
from tests.bench.idle import Idle
from tests.bench.laboratory import row
from tests.bench.run import fit_to_judge
from tests.bench.yardsticks import Ratio, between, by_turns, timed


class Machine:
    """Work of 20 ms and a yardstick of 5 ms, on a machine that may be slow; `change` makes the work alone slower."""

    def __init__(self) -> None:
        self.now, self.slow, self.change = 0.0, 1.0, 1.0

    def work(self) -> None:
        self.now += 0.020 * self.slow * self.change

    def yardstick(self) -> None:
        self.now += 0.005 * self.slow


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    found = Machine()
    monkeypatch.setattr(yardsticks, "time", SimpleNamespace(perf_counter=lambda: found.now))
    return found


@pytest.fixture(params=["by turns", "between"])
def measured(request: pytest.FixtureRequest, machine: Machine) -> Callable[[], Ratio]:
    ours, yardstick = timed(machine.work), timed(machine.yardstick)
    return lambda: by_turns(ours, yardstick, 3) if request.param == "by turns" else between(yardstick, ours)


def _judged(ratio: Ratio) -> bool | None:
    return row("our work", ratio, "the yardstick", 6).met


def test_a_slow_machine_passes(machine: Machine, measured: Callable[[], Ratio]) -> None:
    fast = measured()
    machine.slow = 3.0
    slow = measured()
    assert slow.value == pytest.approx(fast.value) == pytest.approx(4.0)
    assert slow.seconds == pytest.approx(3 * fast.seconds)
    assert _judged(fast) is _judged(slow) is True


def test_a_slow_change_is_missed_on_a_fast_machine_and_on_a_slow_one(
    machine: Machine, measured: Callable[[], Ratio]
) -> None:
    machine.change = 3.0
    assert _judged(measured()) is False
    machine.slow = 3.0
    assert _judged(measured()) is False


def test_a_machine_that_changes_its_speed_meanwhile_is_not_judged(machine: Machine) -> None:
    def work() -> None:
        machine.work()
        machine.slow = 2.0

    found = between(timed(machine.yardstick), timed(work))
    assert found.unjudged == "the machine's speed changed 2.0 times meanwhile"
    assert _judged(found) is None


@pytest.fixture
def processors(monkeypatch: pytest.MonkeyPatch) -> dict[str, float]:
    """What each second of waiting adds to the times of two processors."""
    share = {"user": 0.0, "idle": 2.0, "iowait": 0.0, "steal": 0.0, "guest": 0.0}
    times = dict.fromkeys(share, 5.0)

    def sleep(seconds: float) -> None:
        times.update({name: times[name] + seconds * share[name] for name in times})

    monkeypatch.setattr(idle, "time", SimpleNamespace(sleep=sleep))
    monkeypatch.setattr(idle.psutil, "cpu_times", lambda: SimpleNamespace(_asdict=lambda: dict(times)))
    return share


@pytest.mark.parametrize(
    ("spent", "why"),
    [
        ({}, ""),
        ({"idle": 1.0, "iowait": 1.0}, ""),
        ({"user": 0.1, "idle": 1.9}, ""),
        ({"user": 0.86, "idle": 1.14}, "the machine was busy, 43%"),
        ({"user": 0.86, "guest": 0.86, "idle": 1.14}, "the machine was busy, 43%"),
        ({"steal": 0.86, "idle": 1.14}, "the machine was busy, 43%"),
        ({"idle": 0.0}, "this system does not say how busy it is"),
    ],
)
def test_a_throughput_is_judged_on_an_idle_machine_only(
    processors: dict[str, float], spent: dict[str, float], why: str
) -> None:
    processors.update(spent)
    watch = Idle()
    for _ in range(3):
        watch.pause()
    assert watch.unjudged() == why


def test_what_a_host_takes_while_we_work_counts_too(processors: dict[str, float]) -> None:
    watch = Idle()
    watch.pause()
    processors.update(user=1.0, idle=0.4, steal=0.6)
    idle.time.sleep(10)
    assert watch.unjudged() == "the machine was busy, 29%"


def test_a_throughput_is_not_judged_where_both_engines_wait_for_the_disk(processors: dict[str, float]) -> None:
    watch = Idle()
    watch.pause()
    assert fit_to_judge(watch, 0.0001, 0.003)[0] == ""
    assert fit_to_judge(watch, 0.004, 0.036)[0] == "commits wait for the disk 89% of the time, 4.00 ms each"
    processors.update(user=2.0, idle=0.0)
    watch.pause()
    assert fit_to_judge(watch, 0.0001, 0.003)[0] == "the machine was busy, 50%"


def test_nobody_looked_is_not_idle(processors: dict[str, float]) -> None:
    assert Idle().unjudged() == "this system does not say how busy it is"


def test_a_busy_processor_is_seen_by_a_real_look(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(idle, "LIMIT", 0.5 / (os.cpu_count() or 1))
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as other:
        try:
            watch = Idle()
            watch.pause(0.5)
            assert watch.unjudged()
        finally:
            other.kill()
