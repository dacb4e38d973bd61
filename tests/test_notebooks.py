"""The notebooks keep their anatomy, read without running, and their exercises can be solved."""

from __future__ import annotations

import json
import re
import statistics
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient.exceptions import CellExecutionError

from agentflow import Database, Engine
from agentflow.lab import checks
from agentflow.lab.laboratory import PATIENT
from agentflow.lab.look import query
from agentflow.lab.stepper import Stepper
from tests.execute_notebooks import LIVE, canonical, execute
from tests.helpers import database_of_its_own
from tests.solutions import retry_or_checkpoint, start_here

NOTEBOOKS = sorted((Path(__file__).resolve().parent.parent / "notebooks").glob("*.ipynb"))
ANATOMY = ("Goal", "Predict", "Run", "Look", "Explain", "Check", "Exercise")
VOLATILE = re.compile(
    r"\b[0-9a-f]{8}\b|\d{4}-\d\d-\d\d|\d\d:\d\d:\d\d|0x[0-9a-f]{6,}"
    r"|\d\.\d+ ?m?s\b|(?<![\w.<])/\w+/\w+|\b\d+\.\d+\.\d+\b"
)

pytestmark = pytest.mark.notebook


@pytest.fixture(params=NOTEBOOKS, ids=lambda path: path.stem)
def path(request: pytest.FixtureRequest) -> Path:
    chosen: Path = request.param
    return chosen


@pytest.fixture
def cells(path: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return found


def source(cell: dict[str, Any]) -> str:
    return "".join(cell["source"])


def code(cells: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [cell for cell in cells if cell["cell_type"] == "code"]


def texts(cell: dict[str, Any]) -> Iterator[str]:
    """What an output says, as text and as HTML."""
    for output in cell["outputs"]:
        yield "".join(output.get("text", []))
        for mime in ("text/plain", "text/html"):
            yield "".join(output.get("data", {}).get(mime, []))


def test_the_first_two_lessons_are_there() -> None:
    assert [path.stem for path in NOTEBOOKS][:2] == ["00-start-here", "01-retry-or-checkpoint"]


def test_a_notebook_has_at_most_forty_cells(cells: list[dict[str, Any]]) -> None:
    assert len(cells) <= 40


def test_code_cells_are_short(cells: list[dict[str, Any]]) -> None:
    lengths = [len(source(cell).splitlines()) for cell in code(cells)]
    assert max(lengths) <= 12
    assert statistics.median(lengths) <= 4


def test_there_is_little_to_read_between_two_code_cells(cells: list[dict[str, Any]]) -> None:
    run, longest = 0, 0
    for cell in cells:
        words = len(re.sub(r"<[^>]+>", " ", source(cell)).split())
        run = run + words if cell["cell_type"] == "markdown" else 0
        longest = max(longest, run)
    assert longest <= 120


def test_the_parts_come_in_their_order(cells: list[dict[str, Any]]) -> None:
    prose = "\n".join(source(cell) for cell in cells if cell["cell_type"] == "markdown")
    places = [prose.find("**Goal.**"), *(prose.find(f"\n## {part}") for part in ANATOMY[1:])]
    assert -1 not in places
    assert places == sorted(places)


def test_a_notebook_reads_without_running(cells: list[dict[str, Any]]) -> None:
    ran = code(cells)
    assert [cell["execution_count"] for cell in ran] == list(range(1, len(ran) + 1))
    assert sum(bool(cell["outputs"]) for cell in ran) >= len(ran) * 2 / 3


def test_no_output_is_an_error(cells: list[dict[str, Any]]) -> None:
    outputs = [output for cell in code(cells) for output in cell["outputs"]]
    assert [output for output in outputs if output["output_type"] == "error" or output.get("name") == "stderr"] == []


def test_outputs_are_the_same_on_every_machine(cells: list[dict[str, Any]]) -> None:
    said = [text for cell in code(cells) for text in texts(cell)]
    assert [found.group() for text in said for found in VOLATILE.finditer(text)] == []


def test_every_output_can_be_compared_as_text_or_html(cells: list[dict[str, Any]]) -> None:
    for cell in code(cells):
        for output in cell["outputs"]:
            assert output["output_type"] == "stream" or set(output["data"]) <= {"text/plain", "text/html"}


def test_a_saved_notebook_is_valid_and_carries_nothing_of_the_machine(path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    assert "widgets" not in notebook.metadata
    assert notebook.metadata == {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }
    assert LIVE not in path.read_text(encoding="utf-8")


def test_no_helper_is_defined_in_two_notebooks() -> None:
    names = [
        name
        for path in NOTEBOOKS
        for cell in code(json.loads(path.read_text(encoding="utf-8"))["cells"])
        for name in re.findall(r"^def (\w+)", source(cell), re.MULTILINE)
    ]
    assert len(names) == len(set(names))


def test_canonical_form_removes_what_belongs_to_one_run() -> None:
    cell = nbformat.v4.new_code_cell(
        "1", metadata={"execution": {"shell.execute_reply": "now"}, "tags": ["keep"]}, execution_count=1
    )
    cell.outputs = [
        nbformat.v4.new_output("stream", name="stdout", text="a"),
        nbformat.v4.new_output("stream", name="stdout", text="b"),
        nbformat.v4.new_output("display_data", data={LIVE: {"model_id": "1"}, "text/plain": "x"}, metadata={"m": 1}),
    ]
    clean = canonical(nbformat.v4.new_notebook(cells=[cell], metadata={"widgets": {"state": {}}}))
    assert "widgets" not in clean.metadata
    assert clean.cells[0].metadata == {"tags": ["keep"]}
    assert clean.cells[0].outputs[0].text == "ab"
    assert clean.cells[0].outputs[1].data == {"text/plain": "x"}
    assert clean.cells[0].outputs[1].metadata == {}


@pytest.mark.timeout(180)
def test_a_notebook_shows_the_same_in_any_state_a_learner_can_leave_behind(
    path: Path, url: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A workflow of a dead kernel, leased for a day, and an effect too many: the next run shows the same."""
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    schema = path.stem.split("-", 1)[1].replace("-", "_")
    committed = nbformat.read(path, as_version=4)
    with database_of_its_own(url) as own_url:
        monkeypatch.setenv("DATABASE_URL", own_url)
        execute(path)
        engine = Engine(Database(own_url, schema), policy=PATIENT)
        engine.create_workflow("left behind", workflow_id="request-7")
        engine.claim_workflow("dead-kernel")
        engine.execute_simulated_tool("request-1:another-key")
        engine.close()
        again = execute(path)
    assert [cell.get("outputs") for cell in again.cells] == [cell.get("outputs") for cell in committed.cells]


def test_the_solution_of_start_here_is_accepted_and_the_stub_and_wrong_answers_are_not(engine: Engine) -> None:
    engine.policy = PATIENT
    with Stepper(engine) as stepper:
        stepper.submit("My password no longer works")
        for _ in range(5):
            stepper.step("A")
        stepper.crash("A")
        stepper.recover("A")
    before = engine.reliability_metrics()
    assert checks.effect_counter(engine, start_here.count_effects).startswith("Solved")

    def stub(_engine: Engine, _id: str) -> int:
        raise NotImplementedError

    assert checks.effect_counter(engine, stub) == checks.NOT_SOLVED
    sql = "SELECT attempts FROM tool_ledger WHERE workflow_id = :id"

    def each_call(engine: Engine, workflow_id: str) -> Any:
        return query(engine, sql, id=workflow_id)[0]["attempts"]

    def summed(engine: Engine, workflow_id: str) -> Any:
        return sum(row["attempts"] for row in query(engine, sql, id=workflow_id))

    def everything(engine: Engine, _: str) -> Any:
        return query(engine, "SELECT count(*) AS n FROM tool_ledger")[0]["n"]

    def first_row(engine: Engine, workflow_id: str) -> Any:
        return query(engine, "SELECT 1 AS n FROM tool_ledger WHERE workflow_id = :id LIMIT 1", id=workflow_id)[0]["n"]

    def grouped(engine: Engine, workflow_id: str) -> Any:
        counted = "SELECT count(*) AS n FROM tool_ledger WHERE workflow_id = :id GROUP BY workflow_id"
        return query(engine, counted, id=workflow_id)[0]["n"]

    hints: list[tuple[Callable[[Engine, str], Any], str]] = [
        (each_call, "found 2, expected 1. Count rows, not attempts"),
        (summed, "found 2, expected 1. Count rows, not attempts"),
        (lambda _e, _w: 1, "says 1 for request-1, for a workflow whose effect was doubled"),
        (lambda _e, _w: 2, "says 2 for request-1, for a workflow whose effect was doubled"),
        (everything, "Count the rows of the workflow that is asked for"),
        (first_row, "says 1 for a workflow whose effect was doubled on purpose: it has two rows"),
        (lambda _e, _w: None, "does it end with `return`"),
        (lambda e, w: query(e, sql, id=w), r"returns a list of rows for request-1\. Take the number out"),
        (lambda e, w: query(e, sql, id=w)[0], r"returns a row for request-1\. Take the number out"),
        (lambda _e, _w: "1", "returns a text for request-1, 1. Return a whole number"),
        (lambda e, w: query(e, "SELECT nothing FROM tool_ledger"), "raised ProgrammingError for request-1: .*nothing"),
        (grouped, "raised IndexError for a workflow that does not exist: .*at `return query.*with 0 even then"),
    ]
    for wrong, hint in hints:
        with pytest.raises(checks.CheckFailed, match=hint) as caught:
            checks.effect_counter(engine, wrong)
        assert not re.search(r"[0-9a-f]{32}", str(caught.value))
        assert caught.value.__suppress_context__
    assert engine.reliability_metrics() == before


def test_the_solution_of_retry_or_checkpoint_is_accepted_and_wrong_answers_are_not() -> None:
    assert checks.ticket(retry_or_checkpoint.help_desk).startswith("Solved")
    made_up = iter(range(100))

    def outside_a_step(run: Any, _request: str) -> int:
        ticket = next(made_up)
        run.side_effect("send-ticket", key="send-ticket", arguments=ticket)
        return ticket

    def made_in_a_step(
        run: Any, *, sends: bool = True, returns: bool = True, of: Any = None, twice: bool = False
    ) -> Any:
        ticket = run.step("ticket", of or (lambda: next(made_up)))
        if sends:
            run.side_effect("send-ticket", key="send-ticket", arguments=ticket)
        if twice:
            run.side_effect("send-ticket", key="send-ticket-2", arguments=ticket)
        return ticket if returns else None

    def constant(run: Any, _request: str) -> int:
        run.side_effect("send-ticket", key="send-ticket", arguments=42)
        return 42

    def by_name(run: Any, _request: str) -> Any:
        run.side_effect("send-ticket", key="send-ticket", arguments=run.run_id)
        return run.run_id

    def empty(run: Any, _request: str) -> Any:
        run.side_effect("send-ticket", key="send-ticket")

    hints: list[tuple[Callable[[Any, Any], Any], str]] = [
        (outside_a_step, "saw 0, and after the crash 1: the ticket was made up again. Make it up in a step"),
        (constant, "Another request got the same ticket, 42. Make up a new number"),
        (lambda run, _: made_in_a_step(run, of=lambda: 42), "Another request got the same ticket, 42"),
        (by_name, "No step was recorded before the crash"),
        (empty, "carries no ticket"),
        (lambda run, _: made_in_a_step(run, sends=False), "No message was sent. Call run.side_effect"),
        (lambda run, _: made_in_a_step(run, twice=True), "One run sent 2 messages"),
        (lambda run, _: made_in_a_step(run, returns=False), "returns nothing: end it with `return ticket`"),
        (lambda run, _: made_in_a_step(run) + 1, r"The customer saw (\d+) and your function returns \d+"),
        (lambda run, _: run.step("ticket", 5), "'int' object is not callable, at .*put `lambda:` before the value"),
    ]
    for wrong, hint in hints:
        with pytest.raises(checks.CheckFailed, match=hint):
            checks.ticket(wrong)

    def stub(_run: Any, _request: str) -> int:
        raise NotImplementedError

    assert checks.ticket(stub) == checks.NOT_SOLVED


def test_a_wrong_answer_in_a_notebook_is_one_sentence_and_an_error(
    url: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    cell = nbformat.v4.new_code_cell("from agentflow.lab import checks\nchecks.ticket(lambda run, request: 5)")
    path = tmp_path / "wrong.ipynb"
    nbformat.write(nbformat.v4.new_notebook(cells=[cell]), path)
    with pytest.raises(CellExecutionError) as caught:
        execute(path)
    assert caught.value.ename == "CheckFailed"
    assert caught.value.evalue.startswith("No message was sent.")
    assert caught.value.traceback.strip().endswith(f"Not yet. {caught.value.evalue}")
    assert "Traceback" not in caught.value.traceback
