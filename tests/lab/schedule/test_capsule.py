"""The run capsule: the same on every machine, readable without a database, and honest about what was changed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agentflow import Engine
from agentflow.errors import BadCapsule
from agentflow.lab.history.canonical import MEASURED, canonical
from agentflow.lab.laboratory.laboratory import PATIENT
from agentflow.lab.pictures.saved import saved
from agentflow.lab.pictures.timeline import timeline
from agentflow.lab.schedule.capsule import Capsule, capture, first_divergence
from agentflow.lab.schedule.stepper import Stepper
from tests.conftest import rows
from tests.support.programs import ROOT

GAP = "A*5 A! expire B*"
# What GAP came to when the capsule was made. It changes only when the engine's history, the playable workflows or the capsule's
# form changes, and then on purpose: what people have saved no longer agrees with what they play.
HASH_OF_THE_GAP = "3451c07595e48d1fb09699c558c1bc6fef3159aa9367f3d61700fa1cec2da1f8"


@pytest.fixture
def play(engine: Engine) -> Callable[..., Capsule]:
    engine.policy = PATIENT

    def played(line: str, **options: Any) -> Capsule:
        with Stepper(engine, **options) as stepper:
            stepper.play(line)
            return capture(stepper)

    return played


def times(capsule: Capsule) -> list[float]:
    return [entry["at"] for entry in capsule.history]


# -- the same everywhere -----------------------------------------------------------------------------------------------


def test_the_hash_is_the_same_on_every_machine(play: Callable[..., Capsule]) -> None:
    assert play(GAP).hash == HASH_OF_THE_GAP


def test_what_a_clock_measured_is_kept_and_is_not_in_the_hash(play: Callable[..., Capsule]) -> None:
    first, second = play(GAP), play(GAP)
    assert times(first) != times(second)
    assert times(first)[0] == 0
    assert times(first) == sorted(times(first))
    details = [entry["detail"] or {} for entry in first.history]
    assert {name for detail in details for name in detail} & MEASURED == {"asked_at", "replay_ms"}
    assert first.hash == second.hash
    assert first_divergence(first, second) is None


def test_workers_become_lanes_and_their_later_starts_are_numbered(play: Callable[..., Capsule]) -> None:
    capsule = play("A*2 A! A+ expire A*2 A! A+ expire A* B")
    assert [entry["worker"] for entry in capsule.history if entry["event"] == "workflow_claimed"] == ["A", "A.2", "A.3"]
    assert [(entry["detail"] or {}).get("held_by") for entry in capsule.history if entry["transaction"] == "claim"] == [
        None, "A", "A.2",
    ]  # fmt: skip


def test_effects_are_counted_from_one(play: Callable[..., Capsule], engine: Engine) -> None:
    play(GAP)
    capsule = play("without=idempotency_key A*5 A! expire B*")
    assert [entry["detail"]["effect_id"] for entry in capsule.history if entry["transaction"] == "tool"] == [1, 2]
    assert min(row["effect_id"] for row in rows(engine, "SELECT effect_id FROM {w}.tool_ledger")) > 1


def test_the_canonical_form_of_a_canonical_history_is_itself(play: Callable[..., Capsule], engine: Engine) -> None:
    capsule = play("requests=2 A*2 A! A+ A B*2")
    assert canonical(capsule.history) == capsule.history
    alone = canonical(engine.history("request-1"))
    assert [entry["worker"] for entry in alone] == [entry["worker"] for entry in capsule.entries("request-1")]
    assert canonical([]) == []


@pytest.mark.parametrize(
    "line",
    [
        GAP, "requests=2 A*2 B*2 A! expire@1 C* B*", "without=fence_token,lease_owner A*2 A|| expire B*3 A> A*2 B*",
        "model=varying A*2 A|| expire B*3 A> A B*", 'workflow=research_agent A* event:editor.approved={"by":"ä"} B* B',
        "workflow=approval_agent A*", "A*4 A/ A", "",
    ],
)  # fmt: skip
def test_a_capsule_that_was_saved_and_loaded_plays_to_the_same(
    play: Callable[..., Capsule], engine: Engine, tmp_path: Path, line: str
) -> None:
    capsule = play(line)
    loaded = Capsule.load(capsule.save(tmp_path / "run.json"))
    assert (loaded, loaded.hash) == (capsule, capsule.hash)
    assert loaded.schedule == line
    again = loaded.play_again(engine, "process")
    assert first_divergence(loaded, again) is None
    assert again.hash == capsule.hash


# -- what it says ------------------------------------------------------------------------------------------------------


def test_the_outcome_has_the_figures_under_their_names(play: Callable[..., Capsule], engine: Engine) -> None:
    outcome = play(GAP).outcome
    figures = engine.reliability_metrics()
    for name in ("workflows_total", "workflows_completed", "tool_execution_attempts", "business_effects"):
        assert outcome[name] == figures[name]
    assert outcome["workflows"] == [
        {
            "id": "request-1", "status": "completed", "state": "COMPLETED", "error": None,
            "result": {"account_unlocked": True, "resolution_code": "SIM-200"},
        }
    ]  # fmt: skip
    assert outcome["sentence"] == "1 of 1 workflow completed; 2 attempts left 1 business effect."


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("without=idempotency_key A*5 A! expire B*", "1 business effect too many"),
        (
            "without=acknowledge_after_tool A*5 A! expire B*",
            "request-1 is completed, and resolve-account left no effect.",
        ),
        ("A! " + "A+ A A! expire " * 6 + "B", "request-1 has failed: CrashBudgetSpent"),
    ],
)
def test_what_is_not_well_is_a_problem(play: Callable[..., Capsule], line: str, problem: str) -> None:
    (said,) = play(line).outcome["problems"]
    assert said.startswith(problem)


def test_an_unfinished_workflow_is_named_and_is_no_problem(play: Callable[..., Capsule]) -> None:
    outcome = play("requests=2 A*5 A! B*").outcome
    assert outcome["problems"] == []
    assert "left unfinished: request-1 (ACTION_PENDING)." in outcome["sentence"]


def test_a_capsule_is_read_without_a_database(play: Callable[..., Capsule], tmp_path: Path) -> None:
    play(GAP).save(tmp_path / "gap.json")
    program = (
        "import sys; from agentflow.lab.schedule.capsule import Capsule\n"
        "capsule = Capsule.load(sys.argv[1]); print(capsule); print(len(capsule._repr_html_()))"
    )
    told = {**os.environ, "DATABASE_URL": "postgresql://nobody@127.0.0.1:9/nothing", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "gap.json")],
        env=told,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(GAP)
    assert "2 attempts left 1 business effect." in done.stdout


@pytest.mark.parametrize("line", [GAP, "requests=2 A*2 A! A+ A A! A+ expire@1 A*2 B"])
def test_a_capsule_shows_the_picture_of_the_live_run(
    play: Callable[..., Capsule], engine: Engine, tmp_path: Path, line: str
) -> None:
    capsule = play(line)
    live = {one: timeline(engine.history(one), schedule=line) for one in capsule.workflows}
    files = Capsule.load(capsule.save(tmp_path / "run.json")).draw(tmp_path / "run.svg")
    assert [file.name for file in files] == ["run.svg", "run-request-2.svg"][: len(live)]
    assert [file.read_text(encoding="utf-8").strip() for file in files] == [one.svg for one in live.values()]
    assert all(saved(one.svg) in capsule._repr_html_() for one in live.values())


def test_what_workflows_bring_along_is_escaped(play: Callable[..., Capsule]) -> None:
    capsule = play("workflow=approval_agent A* event:approval")
    hostile = "<script>alert(1)</script>"
    entries = [{**entry, "subject": hostile} for entry in capsule.history]
    shown = Capsule("A", hostile, capsule.requests, entries, {**capsule.outcome, "problems": [hostile]})._repr_html_()
    assert "<script" not in shown
    assert "&lt;script" in shown


# -- files that cannot be used -----------------------------------------------------------------------------------------


def changed(change: Callable[[dict[str, Any]], Any]) -> Callable[[str], str]:
    def apply(text: str) -> str:
        data = json.loads(text)
        change(data)
        return json.dumps(data)

    return apply


def set_in(*path: Any, to: Any) -> Callable[[str], str]:
    def change(data: Any) -> None:
        for key in path[:-1]:
            data = data[key]
        data[path[-1]] = to

    return changed(change)


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (lambda text: text[:-20], "is not JSON"),
        (lambda text: "", "is not JSON"),
        (lambda text: "[" * 100_000, "is not JSON"),
        (lambda text: "\ud800", "is not JSON"),
        (lambda text: "[]", "is not a capsule: the file does not have exactly the members"),
        (lambda text: "{}", "is not a capsule: the file does not have exactly the members"),
        (set_in("agentflow_capsule", to=2), "of version 2, but this AgentFlow reads version 1"),
        (set_in("agentflow_capsule", to="1"), "agentflow_capsule of the file has the wrong type"),
        (set_in("history", 3, "fence_token", to=7), "was changed after it was written: it states the hash"),
        (set_in("history", 6, "detail", to={"more": 1}), "was changed after it was written"),
        (set_in("history", 3, "event", to=None), "event of entry 4 has the wrong type"),
        (set_in("history", 3, to=[]), "entry 4 does not have exactly the members"),
        (set_in("outcome", "business_effects", to=2), "was changed after it was written"),
        (set_in("outcome", "sentence", to=None), "sentence of outcome has the wrong type"),
        (set_in("requests", 0, "input", to="other"), "was changed after it was written"),
        (set_in("requests", 0, to={}), "request 1 does not have exactly the members"),
        (set_in("schedule", to="A*5 A! expire C*"), r"play its schedule: agentflow play 'A\*5 A! expire C\*'"),
        (set_in("schedule", to="A*5 A%"), r'is not a capsule: .*"%" at 6 is not a move'),
        (set_in("setting", "requests", to=2), "was changed after it was written"),
        (set_in("hash", to="0" * 64), "states the hash 000000000000"),
        (changed(lambda data: data["history"].pop()), "was changed after it was written"),
        (changed(lambda data: data.update(note="x")), "the file does not have exactly the members"),
    ],
)  # fmt: skip
def test_a_file_that_cannot_be_used_is_refused_with_what_to_do(
    play: Callable[..., Capsule], tmp_path: Path, spoil: Callable[[str], str], why: str
) -> None:
    path = play(GAP).save(tmp_path / "gap.json")
    path.write_text(spoil(path.read_text(encoding="utf-8")), encoding="utf-8", errors="surrogatepass")
    with pytest.raises(BadCapsule, match=why) as error:
        Capsule.load(path)
    assert str(path) in str(error.value)
    assert any(word in str(error.value) for word in ("Give", "Ask for", "Play"))


def test_a_file_that_is_not_there_or_no_file_or_too_large_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadCapsule, match="cannot be read"):
        Capsule.load(tmp_path / "nothing.json")
    with pytest.raises(BadCapsule, match="cannot be read"):
        Capsule.load(tmp_path)
    large = tmp_path / "large.json"
    with large.open("wb") as file:
        file.truncate(17 * 2**20)
    with pytest.raises(BadCapsule, match="more than 16,777,216 bytes"):
        Capsule.load(large)


def test_a_change_of_what_a_clock_measured_is_not_noticed(play: Callable[..., Capsule], tmp_path: Path) -> None:
    path = play(GAP).save(tmp_path / "gap.json")
    path.write_text(set_in("history", 2, "at", to=99.5)(path.read_text()))
    assert Capsule.load(path).history[2]["at"] == 99.5


# -- where two part ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("one", "other", "said"),
    [
        (
            "A*5 A! expire B*", "A*4 A! expire B*",
            'request-1, entry 6: "A calls the tool; the tool commits business effect 1',
        ),
        ("A*3", "A*2", 'request-1, entry 4: "A commits checkpoint plan with token 1." against nothing, the history has ended'),
        ("A*3", "B*3", 'request-1, entry 2: "A claims it: token 1." against "B claims it: token 1."'),
        ("requests=2 A* B", "requests=2 A* B*", 'request-2, entry 3: nothing, the history has ended against "B commits'),
        ("A*7", "A*", "the histories agree; schedule: A*7 against A*"),
        ("model=varying A*2", "A*2", "the histories agree; schedule"),
        ("model=varying A*", "A*", "the histories agree; schedule"),
        ("A*3 A! A+", "A*3 A!", "the histories agree; schedule"),
    ],
)  # fmt: skip
def test_the_first_divergence_is_named(play: Callable[..., Capsule], one: str, other: str, said: str) -> None:
    assert str(first_divergence(play(one), play(other))).startswith(said)


def test_a_divergence_in_the_same_words_names_what_differs(play: Callable[..., Capsule]) -> None:
    here = play("A*2")
    entries = [{**entry, "detail": {"replayed": 1}} if entry["n"] == 3 else entry for entry in here.history]
    there = Capsule(here.schedule, here.engine, here.requests, entries, here.outcome)
    assert first_divergence(here, there) == (
        'request-1, entry 3: "A commits checkpoint classify with token 1.", but detail null against {"replayed": 1}'
    )
    other = replace(
        there, history=[{**e, "detail": e["detail"] and {**e["detail"], "replayed": True}} for e in entries]
    )
    assert "request-1" in str(first_divergence(there, other)) and there.hash != other.hash
    one = replace(here, outcome={**here.outcome, "problems": [1]})
    said = "the histories agree; outcome: "
    assert str(first_divergence(one, replace(one, outcome={**one.outcome, "problems": [True]}))).startswith(said)


def test_entries_of_nobody_who_was_asked_and_their_order_are_compared_too(play: Callable[..., Capsule]) -> None:
    here = play("requests=2 A*2 B*2")
    stray = replace(here, history=[*here.history, {**here.history[-1], "workflow_id": "stray\x1b[2J", "n": 9}])
    assert str(first_divergence(here, stray)).startswith(
        "stray\\x1b[2J, entry 1: nothing, the history has ended against "
    )
    turned = replace(here, history=here.entries("request-2") + here.entries("request-1"))
    assert first_divergence(here, turned) == "the histories agree, each by itself; their entries stand in another order"


@pytest.mark.parametrize(
    ("detail", "why"),
    [
        ({"lease_seconds": "x"}, "its entries make no history"), ({"effect_id": {}}, "its entries make no history"),
        ({"attempts": []}, ""), ({"outcome": [1]}, ""), ({"held_by": 4}, ""),
    ],
)  # fmt: skip
def test_a_file_whose_hash_is_right_and_whose_entries_make_no_sense_does_no_harm(
    play: Callable[..., Capsule], tmp_path: Path, detail: dict[str, Any], why: str
) -> None:
    here = play(GAP)
    strange = replace(here, history=[{**entry, "detail": detail, "workflow_id": "\x1b[2J"} for entry in here.history])
    path = strange.save(tmp_path / "strange.json")
    if why:
        with pytest.raises(BadCapsule, match=why):
            Capsule.load(path)
    else:
        assert str(first_divergence(here, Capsule.load(path))).isprintable()
