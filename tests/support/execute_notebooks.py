"""Runs notebooks from the top and saves what they show, canonically: `python -m tests.support.execute_notebooks [FILE ...]`.

Canonical: outputs and counts as a fresh run gives them, no widget state, no execution times, no kernel of one machine,
so that two runs save the same bytes. The database is `DATABASE_URL`, or an embedded server in a temporary folder.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbformat import NotebookNode

NOTEBOOKS = Path(__file__).resolve().parents[2] / "notebooks"
LIVE = "application/vnd.jupyter.widget-view+json"
KERNEL = {"display_name": "Python 3", "language": "python", "name": "python3"}


def execute(path: Path, timeout: int = 60) -> NotebookNode:
    """The notebook as a fresh kernel runs it, in canonical form. Raises CellExecutionError at a cell that fails."""
    notebook = nbformat.read(path, as_version=4)
    where = {"metadata": {"path": path.parent}}
    NotebookClient(notebook, timeout=timeout, kernel_name="python3", resources=where).execute()
    return canonical(notebook)


def canonical(notebook: NotebookNode) -> NotebookNode:
    """The same notebook without what belongs to one run: widget views and state, times, the kernel's details."""
    tags = [cell.metadata.get("tags") for cell in notebook.cells]
    for number, (cell, kept) in enumerate(zip(notebook.cells, tags, strict=True), 1):
        cell.id = f"cell-{number:02d}"
        cell.metadata = nbformat.from_dict({"tags": kept} if kept else {})
        if "outputs" in cell:
            cell.outputs = [_without_its_run(output) for output in _joined(cell.outputs)]
    notebook.metadata = nbformat.from_dict({"kernelspec": KERNEL, "language_info": {"name": "python"}})
    notebook.nbformat_minor = 5
    return notebook


def _joined(outputs: Sequence[NotebookNode]) -> list[NotebookNode]:
    """Printed text in one piece: how many pieces it came in is chance."""
    joined: list[NotebookNode] = []
    for output in outputs:
        if output.output_type == "stream" and joined and joined[-1].get("name") == output.name:
            joined[-1].text += output.text
        else:
            joined.append(output)
    return joined


def _without_its_run(output: NotebookNode) -> NotebookNode:
    output.get("data", {}).pop(LIVE, None)
    if "metadata" in output:
        output.metadata = nbformat.from_dict({})
    return output


@contextmanager
def database() -> Iterator[None]:
    """Kernels find a PostgreSQL that is nobody's own laboratory, and a course in which nobody answers."""
    os.environ.setdefault("AGENTFLOW_COURSE", "course_under_test")
    if os.environ.get("DATABASE_URL"):
        yield
        return
    from agentflow.server import Server

    with tempfile.TemporaryDirectory(prefix="agentflow-notebooks-") as home:
        os.environ["AGENTFLOW_HOME"] = home
        server = Server(Path(home)).start()
        try:
            yield
        finally:
            server.stop()


def main(names: Sequence[str]) -> None:
    """The named notebooks (all, if none is named) are executed and saved."""
    with database():
        for path in [Path(name) for name in names] or sorted(NOTEBOOKS.glob("*.ipynb")):
            nbformat.write(execute(path), path)
            print(f"{path.name}: executed and saved")


if __name__ == "__main__":
    main(sys.argv[1:])
