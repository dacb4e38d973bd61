"""The rules of a notebook, read without running: each says what breaks it, a sentence for each place.

Each rule takes one notebook as nbformat reads it; the tests in `test_notebooks` break each rule once.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Callable, Iterator
from itertools import pairwise
from urllib.parse import unquote

from nbformat import NotebookNode

from agentflow.lab.course.outline import Outline

ANATOMY = ("Goal", "Predict", "Run", "Look", "Explain", "Check", "Exercise")
MAX_CELLS, MAX_LINES, MEDIAN_LINES, MAX_WORDS = 40, 12, 4, 120
MAX_LINE = 106  # characters; JupyterLab cuts longer lines in a window of 1280 px
LIVE = "application/vnd.jupyter.widget-view+json"
METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}
MEASURED = "nbval-ignore-output"  # the tag of a cell that shows a measurement
VOLATILE = re.compile(
    r"\b[0-9a-f]{8}\b|\d{4}-\d\d-\d\d|\d\d:\d\d:\d\d|0x[0-9a-f]{6,}"
    r"|\d\.\d+ ?m?s\b|(?<![\w.<])/\w+/\w+|\b\d+\.\d+\.\d+\b"
)
INSTALLS = re.compile(
    r"^\s*[!%]|\b(pip|conda|mamba|apt|apt-get|npm|uv) install\b|\buv pip\b|\bpip\.main\b", re.MULTILINE
)

Rule = Callable[[NotebookNode], Iterator[str]]
RULES: list[Rule] = []


def rule(check: Rule) -> Rule:
    """The check is one of the rules."""
    RULES.append(check)
    return check


def broken(notebook: NotebookNode) -> list[str]:
    """Everything that breaks a rule, a sentence each; nothing, if the notebook is as it should be."""
    return [f"{check.__name__}: {said}" for check in RULES for said in check(notebook)]


def code(notebook: NotebookNode) -> list[NotebookNode]:
    """The code cells."""
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def prose(notebook: NotebookNode) -> list[str]:
    """The texts of the markdown cells, without code blocks."""
    cells = [cell.source for cell in notebook.cells if cell.cell_type == "markdown"]
    return [re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE) for text in cells]


def texts(cell: NotebookNode) -> Iterator[str]:
    """What the outputs of a cell say, as text and as HTML."""
    for output in cell.outputs:
        yield output.get("text", "")
        for mime in ("text/plain", "text/html"):
            yield output.get("data", {}).get(mime, "")


@rule
def size(notebook: NotebookNode) -> Iterator[str]:
    """At most forty cells, none of them empty; short code."""
    if len(notebook.cells) > MAX_CELLS:
        yield f"{len(notebook.cells)} cells, and {MAX_CELLS} is the most"
    lengths = [len(cell.source.splitlines()) for cell in code(notebook)]
    for cell, lines in zip(code(notebook), lengths, strict=True):
        if lines > MAX_LINES:
            yield f"{lines} lines in one cell, and {MAX_LINES} is the most: {cell.source.splitlines()[0]}"
        if max(map(len, cell.source.splitlines()), default=0) > MAX_LINE:
            yield f"a line of more than {MAX_LINE} characters, which a window of 1280 px cuts: {cell.source.splitlines()[0]}"
    if lengths and statistics.median(lengths) > MEDIAN_LINES:
        yield f"the median code cell has {statistics.median(lengths)} lines, and {MEDIAN_LINES} is the most"
    yield from ("an empty cell" for cell in notebook.cells if not cell.source.strip())


@rule
def reading(notebook: NotebookNode) -> Iterator[str]:
    """Little to read between two code cells."""
    run = 0
    for cell in notebook.cells:
        words = len(re.sub(r"<[^>]+>", " ", cell.source).split())
        run = run + words if cell.cell_type == "markdown" else 0
        if run > MAX_WORDS:
            yield f"{run} words between two code cells, and {MAX_WORDS} is the most: {cell.source[:40]!r}"


@rule
def anatomy(notebook: NotebookNode) -> Iterator[str]:
    """Goal, Predict, Run, Look, Explain, Check, Exercise, in this order."""
    text = "\n".join(["", *prose(notebook)])
    places = [text.find("**Goal.**"), *(text.find(f"\n## {part}") for part in ANATOMY[1:])]
    for part, place in zip(ANATOMY, places, strict=True):
        if place < 0:
            yield f"{part} is missing"
    found = [place for place in places if place >= 0]
    if found != sorted(found):
        yield f"the parts stand in another order than {', '.join(ANATOMY)}"


@rule
def headings(notebook: NotebookNode) -> Iterator[str]:
    """One first heading, at the top, and no level left out below it."""
    levels = [len(found) for text in prose(notebook) for found in re.findall(r"^(#+) ", text, re.MULTILINE)]
    if not notebook.cells or not notebook.cells[0].source.startswith("# ") or levels.count(1) != 1:
        yield "the first cell, and no other, begins with a heading of level 1"
    for before, after in pairwise(levels):
        if after > before + 1:
            yield f"a heading of level {after} stands below one of level {before}"


@rule
def installs(notebook: NotebookNode) -> Iterator[str]:
    """Nothing is installed, and no other program started by a magic."""
    for cell in code(notebook):
        if found := INSTALLS.search(cell.source):
            yield f"{found.group().strip()!r} in a cell: what a notebook needs is installed before"


@rule
def one_import_from_the_laboratory(notebook: NotebookNode) -> Iterator[str]:
    """The first code cell names all that the notebook needs of the laboratory, in one import from its face."""
    for number, cell in enumerate(code(notebook)):
        for module in re.findall(r"^\s*(?:from|import) +(agentflow\.lab\S*)", cell.source, re.MULTILINE):
            if number:
                yield f"an import of {module} after the first code cell: {cell.source.splitlines()[0]}"
            elif module != "agentflow.lab":
                yield f"{module} is imported, and agentflow.lab has every name that a notebook needs"
    if code(notebook) and code(notebook)[0].source.count("from agentflow.lab import ") > 1:
        yield "the first code cell has more than one import from agentflow.lab"


@rule
def alternatives(notebook: NotebookNode) -> Iterator[str]:
    """Every picture says in words what it shows."""
    pages = [*prose(notebook), *(text for cell in code(notebook) for text in texts(cell))]
    for page in pages:
        for found in re.findall(r"<svg\b[^>]*>", page):
            if not re.search(r'role="(img|group)"', found) or not re.search(r'aria-label="[^"]+"', found):
                yield f"a picture without role and aria-label: {found[:80]}"
        for found in re.findall(r"<img\b[^>]*>", page):
            if not re.search(r'\balt="[^"]+"', found):
                yield f"a picture without alt: {found[:80]}"
    yield from (f"a picture without alt: {found}" for page in pages for found in re.findall(r"!\[\s*\]\([^)]*\)", page))


@rule
def outputs(notebook: NotebookNode) -> Iterator[str]:
    """It reads without running: it ran from the top to the end, most cells show something, none an error."""
    ran = code(notebook)
    if [cell.execution_count for cell in ran] != list(range(1, len(ran) + 1)):
        yield "it was not run once from the top: execute it again"
    if sum(bool(cell.outputs) for cell in ran) < len(ran) * 2 / 3:
        yield "more than a third of the cells show nothing"
    for cell in ran:
        for output in cell.outputs:
            if output.output_type == "error" or output.get("name") == "stderr":
                yield f"an error stands in the output of {cell.source.splitlines()[0]!r}"
            elif output.output_type != "stream" and not set(output.data) <= {"text/plain", "text/html"}:
                yield f"an output that is neither text nor HTML, so nobody compares it: {sorted(output.data)}"


@rule
def the_same_everywhere(notebook: NotebookNode) -> Iterator[str]:
    """No output shows a time, an id, a path or a version; a cell that measures is tagged."""
    for cell in code(notebook):
        if MEASURED not in cell.metadata.get("tags", []):
            yield from (
                f"{found.group()!r} differs from run to run"
                for text in texts(cell)
                for found in VOLATILE.finditer(unquote(text))  # also in the data address of a picture
            )


@rule
def saved(notebook: NotebookNode) -> Iterator[str]:
    """It is saved as tests.support.execute_notebooks saves it: no widgets, nothing of one machine."""
    if notebook.metadata != METADATA:
        yield f"metadata of one machine or of widgets: {sorted(notebook.metadata)}"
    for cell in notebook.cells:
        if set(cell.metadata) - {"tags"}:
            yield f"metadata in a cell: {sorted(cell.metadata)}"
        if any(LIVE in output.get("data", {}) for output in cell.get("outputs", [])):
            yield "a widget is saved in an output"


def course_of(notebook: NotebookNode, told: Outline) -> Iterator[str]:
    """It opens its stage, asks each question before its reveal, sets each exercise as a stub, and ends in checks."""
    cells = [cell.source for cell in code(notebook)]
    text = "\n".join(cells)
    if f'stage = course.stage("{told.name}")' not in cells[0].splitlines():
        yield f'the first code cell has no line `stage = course.stage("{told.name}")`'
    for question in told.questions:
        asked, revealed = (text.find(f'stage.{call}("{question.name}"') for call in ("predict", "reveal"))
        if not 0 <= asked < revealed:
            yield f"question {question.name} is not asked, or not revealed after it"
    for exercise in told.exercises:
        parts = (f'stage.exercise("{exercise.name}")', f"def {exercise.name}(", f'stage.check("{exercise.name}", ')
        places = [text.find(part) for part in parts]
        if -1 in places or places != sorted(places):
            yield f"exercise {exercise.name} needs, in this order: {', '.join(parts)}"
    for cell in cells:
        stub = any(f"def {exercise.name}(" in cell for exercise in told.exercises)
        if stub and not cell.endswith("raise NotImplementedError"):
            yield "a stub holds more than `raise NotImplementedError`"
    if "stage.done(" not in text:
        yield "stage.done(...) is missing"
    known = {thing.name for thing in (*told.questions, *told.exercises)}
    for name in re.findall(r'stage\.(?:predict|reveal|exercise|hint|check)\("([^"]+)"', text):
        if name not in known:
            yield f"{name!r} is neither a question nor an exercise of {told.name}"
