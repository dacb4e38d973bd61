"""The notebooks keep their anatomy, read without running, and their exercises can be solved."""

from __future__ import annotations

import json
import re
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient.exceptions import CellExecutionError

from agentflow import Database, Engine
from agentflow.lab.laboratory import PATIENT
from tests.execute_notebooks import LIVE, canonical, execute
from tests.helpers import database_of_its_own

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


def test_a_wrong_answer_in_a_notebook_is_one_sentence_and_an_error(
    url: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    cell = nbformat.v4.new_code_cell(
        "from agentflow.lab import course\n"
        "course.stage('01-retry-or-checkpoint').check('help_desk', lambda run, request: 5)"
    )
    path = tmp_path / "wrong.ipynb"
    nbformat.write(nbformat.v4.new_notebook(cells=[cell]), path)
    with pytest.raises(CellExecutionError) as caught:
        execute(path)
    assert caught.value.ename == "CheckFailed"
    assert caught.value.evalue.startswith("No message was sent.")
    assert caught.value.traceback.strip().endswith(f"Not yet. {caught.value.evalue}")
    assert "Traceback" not in caught.value.traceback
