"""Names and sizes: one name for one thing, no module too long to read, and one import for a notebook."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
MODULES = sorted((ROOT / "agentflow").rglob("*.py"))
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
MAX_LINES = 400
CAPITALISED = re.compile(r"[A-Z][A-Z0-9]*[a-z]\w*")


def types_of(source: str) -> Iterator[str]:
    """The public classes and type aliases that a module defines at its top level."""
    for node in ast.parse(source).body:
        if isinstance(node, ast.ClassDef):
            names = [node.name]
        elif isinstance(node, ast.Assign):
            names = [target.id for target in node.targets if isinstance(target, ast.Name)]
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            names = [node.target.id]
        else:
            names = []
        yield from (name for name in names if CAPITALISED.fullmatch(name))


def lab_imports(source: str) -> list[str]:
    """Which modules of the laboratory a cell imports or imports from, once for each statement."""
    nodes = ast.walk(ast.parse(source))
    found = [node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)]
    nodes = ast.walk(ast.parse(source))
    found += [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    return [name for name in found if f"{name}.".startswith("agentflow.lab.")]


def test_no_public_class_or_type_has_the_name_of_another() -> None:
    places: dict[str, list[str]] = {}
    for path in MODULES:
        for name in types_of(path.read_text(encoding="utf-8")):
            places.setdefault(name, []).append(str(path.relative_to(ROOT)))
    assert {name: found for name, found in places.items() if len(found) > 1} == {}


def test_a_class_an_alias_and_an_annotated_alias_are_names_and_a_constant_is_not() -> None:
    source = "class One: ...\nTwo = int | str\nThree: TypeAlias = int\nFOUR = 4\n_Five = 5\nsix = 6"
    assert list(types_of(source)) == ["One", "Two", "Three"]


def test_no_module_is_longer_than_anybody_reads() -> None:
    lengths = {str(path.relative_to(ROOT)): len(path.read_text(encoding="utf-8").splitlines()) for path in MODULES}
    assert {name: lines for name, lines in lengths.items() if lines > MAX_LINES} == {}


def test_the_laboratory_is_packages_and_nothing_else() -> None:
    found = [path for path in (ROOT / "agentflow" / "lab").iterdir() if path.name != "__pycache__"]
    others = [path.name for path in found if not (path / "__init__.py").is_file()]
    assert others == ["__init__.py"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_imports_the_laboratory_in_one_statement_in_its_first_code_cell(path: Path) -> None:
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    first, *others = [lab_imports("".join(cell["source"])) for cell in cells if cell["cell_type"] == "code"]
    assert first == ["agentflow.lab"]
    assert others == [[]] * len(others)
