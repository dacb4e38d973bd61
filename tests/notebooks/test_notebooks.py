"""The notebooks keep their rules, read without running. nbval runs them, and `tests/support/notebook_again.py` once more."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import nbformat
import pytest
from nbclient.exceptions import CellExecutionError
from nbformat import NotebookNode

from agentflow.lab.course import stages
from tests.support.execute_notebooks import canonical, execute
from tests.support.notebook_rules import ANATOMY, LIVE, MEASURED, METADATA, RULES, broken, code, course_of, prose

NOTEBOOKS = sorted((Path(__file__).resolve().parents[2] / "notebooks").glob("*.ipynb"))

pytestmark = pytest.mark.notebook


@pytest.fixture(params=NOTEBOOKS, ids=lambda path: path.stem)
def path(request: pytest.FixtureRequest) -> Path:
    chosen: Path = request.param
    return chosen


@pytest.fixture
def notebook(path: Path) -> NotebookNode:
    return nbformat.read(path, as_version=4)


def test_the_course_has_a_notebook_for_each_stage_and_no_other() -> None:
    assert [path.stem for path in NOTEBOOKS] == [told.name for told in stages.COURSE]


def test_a_notebook_keeps_every_rule(notebook: NotebookNode) -> None:
    assert broken(notebook) == []


def test_a_notebook_asks_what_its_stage_asks(path: Path, notebook: NotebookNode) -> None:
    assert list(course_of(notebook, stages.outline(path.stem))) == []


def test_a_saved_notebook_is_valid_and_carries_nothing_of_the_machine(path: Path, notebook: NotebookNode) -> None:
    nbformat.validate(notebook)
    assert f'"{LIVE}":' not in path.read_text(encoding="utf-8")  # the style sheet of the room names it, too


def test_links_lead_to_notebooks_that_exist(path: Path, notebook: NotebookNode) -> None:
    linked = [found for text in prose(notebook) for found in re.findall(r"\]\(([^)#]+\.ipynb)", text)]
    assert [name for name in linked if not (path.parent / name).is_file()] == []


def test_no_helper_is_defined_in_two_notebooks() -> None:
    names = [
        name
        for path in NOTEBOOKS
        for cell in code(nbformat.read(path, as_version=4))
        for name in re.findall(r"^(?:def|class) (\w+)", cell.source, re.MULTILINE)
    ]
    assert sorted(names) == sorted(set(names))


# --- the rules themselves: each is broken once


def a_notebook() -> NotebookNode:
    """The smallest notebook that keeps every rule."""
    parts = ["# A stage\n\n**Goal.** Something new.", *(f"## {part}" for part in ANATOMY[1:])]
    cells = []
    for number, text in enumerate(parts, 1):
        shown = nbformat.v4.new_output("execute_result", data={"text/plain": str(number)}, execution_count=number)
        cells.append(nbformat.v4.new_markdown_cell(text))
        cells.append(nbformat.v4.new_code_cell(str(number), execution_count=number, outputs=[shown]))
    return nbformat.v4.new_notebook(cells=cells, metadata=METADATA)


def shows(html: str) -> Callable[[NotebookNode], None]:
    """A cell shows this HTML."""

    def change(notebook: NotebookNode) -> None:
        notebook.cells[1].outputs[0].data["text/html"] = html

    return change


def says(text: str) -> Callable[[NotebookNode], None]:
    """The third cell says this."""

    def change(notebook: NotebookNode) -> None:
        notebook.cells[2].source += f"\n\n{text}"

    return change


def runs(source: str) -> Callable[[NotebookNode], None]:
    """The first code cell runs this."""

    def change(notebook: NotebookNode) -> None:
        notebook.cells[1].source = source

    return change


def _all_five_lines(notebook: NotebookNode) -> None:
    for cell in code(notebook):
        cell.source = "1\n" * 5


def _an_error(notebook: NotebookNode) -> None:
    notebook.cells[1].outputs = [nbformat.v4.new_output("error", ename="E", evalue="", traceback=[])]


def _a_picture(notebook: NotebookNode) -> None:
    notebook.cells[1].outputs[0].data["image/png"] = ""


def _imports_later(notebook: NotebookNode) -> None:
    notebook.cells[3].source = "from agentflow.lab import query"


def _silent(notebook: NotebookNode) -> None:
    for cell in code(notebook):
        cell.outputs = []


BREAKING: list[tuple[str, str, Callable[[NotebookNode], None]]] = [
    ("size", "41 cells", lambda n: n.cells.extend(nbformat.v4.new_markdown_cell("x") for _ in range(27))),
    ("size", "13 lines", runs("1\n" * 13)),
    ("size", "1280 px", runs("x" * 107)),
    ("size", "median", _all_five_lines),
    ("size", "empty", lambda n: n.cells.append(nbformat.v4.new_markdown_cell(" "))),
    ("reading", "121 words", lambda n: n.cells.append(nbformat.v4.new_markdown_cell("word " * 121))),
    ("anatomy", "Explain is missing", lambda n: n.cells.pop(8)),
    ("anatomy", "another order", lambda n: n.cells.insert(0, n.cells.pop(8))),
    ("headings", "level 1", lambda n: n.cells.pop(0)),
    ("headings", "level 1", says("# Another")),
    ("headings", "level 4 stands below one of level 2", says("#### Deep")),
    ("installs", "pip install", runs("import os\nos.system('pip install x')")),
    ("installs", "'!'", runs("!ls")),
    ("installs", "'%'", runs("%pip install x")),
    ("one_import_from_the_laboratory", "an import of agentflow.lab after", _imports_later),
    ("one_import_from_the_laboratory", "every name that", runs("from agentflow.lab.course import checks")),
    ("one_import_from_the_laboratory", "more than one", runs("from agentflow.lab import query\n" * 2)),
    ("alternatives", "aria-label", shows('<svg role="img" width="1"></svg>')),
    ("alternatives", "role", shows('<svg aria-label="x"></svg>')),
    ("alternatives", "alt", shows('<img src="x.svg" alt="">')),
    ("alternatives", "alt", says("![](x.svg)")),
    ("outputs", "run once from the top", lambda n: n.cells[1].update(execution_count=3)),
    ("outputs", "show nothing", _silent),
    ("outputs", "an error", _an_error),
    ("outputs", "neither text nor HTML", _a_picture),
    ("the_same_everywhere", "12:34:56", shows("at 12:34:56")),
    ("the_same_everywhere", "3f2a91bc", shows("A.3f2a91bc")),
    ("saved", "metadata of one machine", lambda n: n.metadata.update(widgets={})),
    ("saved", "metadata in a cell", lambda n: n.cells[1].metadata.update(collapsed=True)),
    ("saved", "a widget", lambda n: n.cells[1].outputs[0].data.update({LIVE: {}})),
]


def test_a_plain_notebook_breaks_no_rule() -> None:
    assert broken(a_notebook()) == []


@pytest.mark.parametrize(
    ("name", "sentence", "change"), BREAKING, ids=[f"{name}: {said}" for name, said, _ in BREAKING]
)
def test_what_breaks_a_rule_is_told(name: str, sentence: str, change: Callable[[NotebookNode], None]) -> None:
    notebook = a_notebook()
    change(notebook)
    assert [said for said in broken(notebook) if said.startswith(f"{name}: ") and sentence in said]


def test_every_rule_is_broken_once() -> None:
    assert {name for name, _, _ in BREAKING} == {check.__name__ for check in RULES}


def test_a_cell_that_measures_may_show_a_time() -> None:
    notebook = a_notebook()
    shows("1.234 s")(notebook)
    notebook.cells[1].metadata["tags"] = [MEASURED]
    assert broken(notebook) == []


@pytest.mark.parametrize(
    ("before", "after", "sentence"),
    [
        ('course.stage("00', 'course.stage("01', "the first code cell has no line"),
        ('stage.predict("when-b-is-done")', "1", "is not asked"),
        ('stage.reveal("when-b-is-done")', "1", "not revealed after it"),
        ('stage.exercise("count_effects")', "1", "exercise count_effects needs"),
        ("def count_effects(", "def counted(", "exercise count_effects needs"),
        ("raise NotImplementedError", "return 1", "a stub holds more"),
        ("stage.done(", "print(", "stage.done(...) is missing"),
        ('stage.predict("when-b-is-done")', 'stage.predict("what")', "'what' is neither"),
    ],
)
def test_a_notebook_that_leaves_its_stage_is_told(before: str, after: str, sentence: str) -> None:
    notebook = nbformat.read(NOTEBOOKS[0], as_version=4)
    for cell in code(notebook):
        cell.source = cell.source.replace(before, after)
    assert [said for said in course_of(notebook, stages.COURSE[0]) if sentence in said]


# --- running them


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
    assert " ".join(caught.value.traceback.split()).endswith(f"Not yet. {caught.value.evalue}")
    assert "Traceback" not in caught.value.traceback
