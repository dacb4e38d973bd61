"""`agentflow explore` on a stranger's own module: a workflow, a provider and an invariant of 30 lines."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from tests.support.programs import ROOT, agentflow, environment

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


def anew(run, given):
    return run.side_effect("charge", key="charge", arguments=given["total"], tool=Provider())


def stealthy(run, given):
    total = run.step("price", lambda: charge.paid.setdefault("mail", ["mail", "m", given["total"]])[2])
    return run.side_effect("charge", key="charge", arguments=total)


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


def refunds(folder: Path) -> list[str]:
    """The options for the README's refund, whose large sums wait for the manager."""
    (found,) = re.findall(r"```python\n(from agentflow import open_engine\n.*?)\n\n\nengine = ",
                          (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)  # fmt: skip
    (folder / "readme_refund.py").write_text(found)
    few = ["--crashes", "1", "--expiries", "1", "--lost-replies", "0"]
    return ["explore", "--workflow", "readme_refund:refund", "--input", '{"order": 8, "total": 300}', *few]


def test_an_event_brings_what_the_option_says(url: str, tmp_path: Path) -> None:
    mine, env = refunds(tmp_path), environment(DATABASE_URL=url)
    for payload in ('{"refund": true}', '{"refund": false}'):
        done = agentflow(*mine, "--event", f"manager.decided={payload}", env=env, cwd=tmp_path)
        assert done.returncode == 0 and f"'manager.decided' brings {payload}" in done.stdout, done
    true = agentflow(*mine, env=env, cwd=tmp_path)
    assert true.returncode == 1 and "event 'manager.decided' brought true; --event NAME=JSON" in true.stderr, true


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["decided"], "--event 'decided' has no NAME=JSON."),
        (["a=1", "a=2"], "--event 'a=2' names an event for the second time."),
        (["a=yes"], "--event a= 'yes' is not JSON"),
        (["manager.decide={}"], "An undisturbed run (schedule `A*`) goes wrong: no workflow waits for the event"),
    ],
)  # fmt: skip
def test_an_event_that_cannot_be_used_is_one_sentence(url: str, tmp_path: Path, given: list[str], said: str) -> None:
    options = [part for one in given for part in ("--event", one)]
    done = agentflow(*refunds(tmp_path), *options, env=environment(DATABASE_URL=url), cwd=tmp_path)
    assert done.returncode == 1 and done.stderr.startswith(f"agentflow: {said}"), done
    assert done.stderr.count("\n") == 1


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


def test_an_effect_that_a_step_hides_ends_with_1(explored: Run) -> None:
    done = explored("--workflow", "shop:stealthy")
    assert done.returncode == 1 and "1 effect of action 'mail' in shop:charge came from elsewhere" in done.stderr, done


def test_a_tool_that_each_run_makes_anew_gets_a_hint(explored: Run) -> None:
    done = explored("--workflow", "shop:anew")
    assert done.returncode == 1 and done.stderr.count("\n") == 1
    assert "make it once, in its module, such as tool = Provider(). Fix it, and explore again." in done.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--invariant", "shop:PRICES"], "{} is no invariant: it is a value of type dict. Give a function of the rows before"),
        (["--number", "2"], "requests=2 needs a list with an input for each workflow. Given: 1."),
    ],
)  # fmt: skip
def test_what_cannot_be_explored_is_one_sentence(explored: Run, arguments: list[str], said: str) -> None:
    done = explored("--workflow", "shop:order", *arguments)
    assert done.returncode == 1 and done.stdout == "" and done.stderr.startswith(f"agentflow: {said}"), done
    assert done.stderr.count("\n") == 1
