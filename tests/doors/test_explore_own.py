"""`agentflow explore` on a stranger's own module: a workflow, a provider and an invariant of 30 lines."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from tests.support.programs import agentflow, environment

SHOP = '''
import random


class Provider:
    def __init__(self):
        self.paid = {}

    def __call__(self, call):
        self.paid.setdefault(call.idempotency_key, [call.action, call.workflow_id, call.arguments])
        return {"charged": self.paid[call.idempotency_key][2]}

    def effects(self):
        return [(key, action, workflow) for key, (action, workflow, _) in self.paid.items()]

    def snapshot(self):
        return self.paid

    def restore(self, state):
        self.paid = state


charge = Provider()
PRICES = {}


def order(run, given):
    total = run.step("price", lambda: given["total"])
    return run.side_effect("charge", key="charge", arguments=total)


def hasty(run, given):
    return run.side_effect("charge", key=f"charge-{random.random()}", arguments=given["total"])


def cheap(before, after):
    """Nobody pays 300."""
    return not any(row["arguments"] == "300" for row in after.effects)
'''
OWN = [
    "explore",
    "--tool",
    "shop:charge",
    "--input",
    '{"total": 300}',
    "--crashes",
    "1",
    "--expiries",
    "1",
    "--lost-replies",
    "0",
]
Run = Callable[..., CompletedProcess[str]]


@pytest.fixture
def explored(url: str, tmp_path: Path) -> Run:
    """Runs a command in the folder of the shop."""
    (tmp_path / "shop.py").write_text(SHOP)

    def command(*arguments: str) -> CompletedProcess[str]:
        return agentflow(*OWN, *arguments, env=environment(DATABASE_URL=url), cwd=tmp_path)

    return command


def test_a_shop_of_ones_own_ends_with_0_and_says_what_ran(explored: Run) -> None:
    done = explored("--workflow", "shop:order", "--json")
    told = json.loads(done.stdout)
    assert (done.returncode, done.stderr, told["ok"], told["verdict"]) == (0, "", True, "holds")
    assert told["bodies_run"]["tools"].keys() == {"shop:charge"} and told["bodies_run"]["steps"]["price"] > 10


def test_a_random_key_ends_with_1_and_the_shortest_harm(explored: Run) -> None:
    done = explored("--workflow", "shop:hasty")
    assert done.returncode == 1 and "  schedule: workflow=hasty A*2 A!\n  then:     expire B*\n" in done.stdout
    assert "DeterminismError" in done.stdout and done.stderr.startswith(
        "agentflow: After `workflow=hasty A*2 A!` this does"
    )


def test_an_invariant_of_ones_own_ends_with_1_and_its_sentence(explored: Run) -> None:
    done = explored("--workflow", "shop:order", "--invariant", "shop:cheap")
    assert done.returncode == 1
    assert done.stderr == "agentflow: After `workflow=order A*4` this does not hold: Nobody pays 300.\n"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--invariant", "shop:PRICES"], "{} is no invariant: it is a value of type dict. Give a function of the rows before"),
        (["--number", "2"], "requests=2 needs a list of inputs, one for each workflow, but 1 are given."),
    ],
)  # fmt: skip
def test_what_cannot_be_explored_is_one_sentence(explored: Run, arguments: list[str], said: str) -> None:
    done = explored("--workflow", "shop:order", *arguments)
    assert done.returncode == 1 and done.stdout == "" and done.stderr.startswith(f"agentflow: {said}"), done
    assert done.stderr.count("\n") == 1
