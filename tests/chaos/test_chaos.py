"""Faults of all kinds at once: nothing is lost, nothing doubled, and who says so is himself tried."""

from __future__ import annotations

import ast
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.chaos.faults import FAULTS
from tests.chaos.keeper import below
from tests.chaos.plan import make_plan
from tests.chaos.run import Outcome, run, setting
from tests.support.helpers import eventually

HERE = Path(__file__).parent
ARTIFACTS = HERE.parents[1] / "artifacts"
# A quarter of a minute: few faults, of every sort.
SHORT = dict.fromkeys(
    (
        *("restart_immediate", "postmaster_killed", "sessions_terminated", "read_only", "clock_ahead", "disk_full"),
        *("replies_swallowed", "requests_dropped", "reset", "worker_killed", "worker_paused", "worker_stopped"),
    ),
    1,
)


def assert_well(outcome: Outcome) -> None:
    """Everything ended as it should, each fault was made, and the figures are printed."""
    print(outcome)
    ARTIFACTS.mkdir(exist_ok=True)
    (ARTIFACTS / f"chaos-{outcome.plan.setting.seed}.txt").write_text(f"{outcome}\n")
    assert outcome.wrong == []
    figures, told = outcome.figures, outcome.plan.setting
    assert figures["workflows"] == figures["completed"] + figures["cancelled"] == told.workflows
    assert (figures["lost"], figures["doubled"], figures["missing"]) == (0, 0, 0)
    assert figures["by kind"] == told.kinds


@pytest.mark.timeout(300)  # on a machine with other work it may take a minute to begin
def test_a_little_chaos_loses_nothing_and_doubles_nothing() -> None:
    outcome = run(setting(12, seconds=12, number=40, times=SHORT, workers=3, lease=1.5))
    assert_well(outcome)
    assert outcome.figures["restarts"] >= 2 and outcome.figures["kills"] == 1


@pytest.mark.long
@pytest.mark.timeout(2400)
def test_ten_minutes_of_chaos_lose_nothing_and_double_nothing() -> None:
    outcome = run(setting(7))
    assert_well(outcome)
    assert len(outcome.plan.setting.kinds) >= 12 and outcome.plan.setting.workflows >= 2000
    assert outcome.figures["take-overs"] >= 20 and outcome.figures["refused writes"] >= 20


def test_a_seed_is_a_plan() -> None:
    assert make_plan(setting(3)) == make_plan(setting(3)) != make_plan(setting(4))
    assert [str(one.chance.random()) for one in make_plan(setting(3)).strikes] == [
        str(one.chance.random()) for one in make_plan(setting(3)).strikes
    ]
    assert {one.kind for one in make_plan(setting(3)).strikes} == {*setting(3).kinds} <= {*FAULTS}


def imported(path: Path) -> Iterator[str]:
    """The modules that this one imports, and those of this folder that they import."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (one.name for one in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level and node.module
            yield node.module
            if node.module.startswith("tests.chaos."):
                yield from imported(HERE / f"{node.module.rpartition('.')[2]}.py")


def test_the_judge_imports_nothing_of_agentflow() -> None:
    names = set(imported(HERE / "judge.py"))
    ours = {name for name in names if name.startswith("tests")}
    assert ours == {"tests.chaos.machine", "tests.chaos.stories"}
    assert {name.partition(".")[0] for name in names - ours} - sys.stdlib_module_names == {"psycopg"}


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_nothing_outlives_a_run_that_is_interrupted(number: int, tmp_path: Path) -> None:
    env = {**os.environ, "TMPDIR": str(tmp_path)}
    command = [sys.executable, "-m", "tests.chaos", "--seed", "1", "--seconds", "60", "--number", "100"]
    with psutil.Popen(command, cwd=HERE.parents[1], env=env) as process:
        try:
            eventually(lambda: list(tmp_path.glob("agentflow-chaos-*/*/worker3.*.log")), 120)
            assert len(below(tmp_path)) > 10
            process.send_signal(number)
            assert process.wait(120) != 0
        finally:
            if process.poll() is None:
                process.kill()
    eventually(lambda: not below(tmp_path) and not list(tmp_path.glob("agentflow-chaos-*")), 120)
