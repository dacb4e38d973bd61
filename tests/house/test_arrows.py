"""The arrows of the house: the table of rooms in docs/architecture.md is what the imports are, and they only go down.

A room is a module or a folder directly under `agentflow/`, or a package directly under `agentflow/lab/`.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = "docs/architecture.md"
THE_ENGINE = "the engine"  # a package of the laboratory may know any room of the engine's table, or none
DOORS = frozenset({"requests", "gate", "answers", "doctor", "api", "cli", "jupyterlab", "__main__"})
FACES = frozenset({"agentflow", "agentflow.lab"})  # names are loaded there when asked for; no module may ask

# Each of these libraries is imported in these rooms alone.
HOMES = {
    "psycopg": {
        *("address", "bell", "database", "driver_errors", "patience", "server", "transactions"),
        *("lab/broken", "lab/course", "lab/explorer", "lab/isolation", "lab/laboratory", "lab/schedule", "lab/verify"),
    },
    "sqlalchemy": {"schema", "database", "migrations", "engine", "patience"},
    "alembic": {"migrations"},
    "ipywidgets": {"lab/room", "lab/course", "lab/crashes", "lab/explorer"},
    "matplotlib": {"lab/plots"},
    "pandas": {"lab/plots"},
    "fastapi": {"api"},
    "uvicorn": {"api"},
    "starlette": {"api"},
    "typer": {"cli"},
    "jupyterlab": {"jupyterlab"},
    "h11": {"api"},
    "dbos": {"on_dbos"},
}


def module_name(path: Path, root: Path) -> str:
    parts = path.relative_to(root).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def room_of(module: str) -> str:
    """The room of a module: `agentflow.lab.plots.frames` belongs to `lab/plots`; a face is its own room."""
    parts = module.split(".")
    if module in FACES:
        return module
    return "/".join(parts[1:3]) if parts[1] == "lab" else parts[1]


@cache
def imported_names(path: Path, root: Path) -> set[str]:
    """Absolute dotted names of everything that a module imports, anywhere in it; `from a import b` gives `a.b`."""
    package = path.relative_to(root).parent.parts
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            parents = package[: len(package) - node.level + 1] if node.level else ()
            base = ".".join([*parents, *([node.module] if node.module else [])])
            found |= {f"{base}.{alias.name}" for alias in node.names}
    return found


def arrows_of_modules(root: Path) -> dict[str, set[str]]:
    """Which modules of the package each module imports, also inside functions and for type checkers only."""
    paths = {module_name(path, root): path for path in sorted((root / "agentflow").rglob("*.py"))}
    arrows: dict[str, set[str]] = {}
    for module, path in paths.items():
        names = {name for name in imported_names(path, root) if name.split(".")[0] == "agentflow"}
        found = {name if name in paths else name.rpartition(".")[0] for name in names}
        arrows[module] = {name for name in found if name in paths} - {module}
    return arrows


def arrows_of_rooms(root: Path) -> dict[str, set[str]]:
    """The same, from room to room."""
    arrows: dict[str, set[str]] = {}
    for module, known in arrows_of_modules(root).items():
        rooms = arrows.setdefault(room_of(module), set())
        rooms |= {room_of(one) for one in known} - {room_of(module)}
    return arrows


def table(heading: str) -> dict[str, set[str]]:
    """The rooms under a heading of the page, in its order, and what each of them may know."""
    text = (ROOT / PAGE).read_text(encoding="utf-8")
    section = text.split(f"## {heading}\n")[1].split("\n## ")[0]
    found: dict[str, set[str]] = {}
    for row in re.findall(r"^\| (`.*) \|$", section, re.MULTILINE):
        rooms, _, known = row.split(" | ")
        may_know = {THE_ENGINE} & {known.split(",")[0]} | set(re.findall(r"`([^`]+)`", known))
        found |= dict.fromkeys(re.findall(r"`([^`]+)`", rooms), may_know)
    return found


def engine_table() -> dict[str, set[str]]:
    return table("The rooms of the engine")


def laboratory_table() -> dict[str, set[str]]:
    return table("The rooms of the laboratory")


def test_every_room_has_its_line_on_the_page_and_every_line_its_room():
    there = set(arrows_of_rooms(ROOT)) - FACES
    assert {*engine_table(), *laboratory_table()} == there


@pytest.mark.parametrize("room", sorted(engine_table()))
def test_a_room_of_the_engine_imports_exactly_what_its_line_says(room: str):
    assert arrows_of_rooms(ROOT)[room] == engine_table()[room]


@pytest.mark.parametrize("room", sorted(laboratory_table()))
def test_a_package_of_the_laboratory_imports_exactly_what_its_line_says(room: str):
    engine = set(engine_table())
    known = arrows_of_rooms(ROOT)[room]
    told = laboratory_table()[room]
    assert {one for one in known if one not in engine or one in told} | ({THE_ENGINE} & told) == told
    assert known & engine <= told or THE_ENGINE in told


@pytest.mark.parametrize("rooms", [engine_table(), laboratory_table()], ids=["engine", "laboratory"])
def test_arrows_only_go_down_the_page(rooms: dict[str, set[str]]):
    """A table is written from the roof to the ground."""
    order = {room: floor for floor, room in enumerate(rooms)}
    up = {room: {one for one in known if one in order and order[one] <= order[room]} for room, known in rooms.items()}
    assert {room: known for room, known in up.items() if known} == {}


@pytest.mark.parametrize("arrows", [arrows_of_modules, arrows_of_rooms], ids=["modules", "rooms"])
def test_there_is_no_circle(arrows: Callable[[Path], dict[str, set[str]]]):
    try:
        TopologicalSorter({one: known - FACES for one, known in arrows(ROOT).items() if one not in FACES}).prepare()
    except CycleError as circle:
        pytest.fail(" -> ".join(circle.args[1]))


def test_the_engine_imports_neither_the_laboratory_nor_a_door():
    arrows = arrows_of_rooms(ROOT)
    lab_or_door = {*laboratory_table(), *FACES, *DOORS}
    wrong = {room: arrows[room] & lab_or_door for room in set(engine_table()) - DOORS}
    assert {room: known for room, known in wrong.items() if known} == {}
    assert {room for room in arrows["agentflow"] if room in lab_or_door} == set()


def test_no_module_imports_a_face():
    """A face loads what it is asked for, so an arrow to it would be an arrow to everything."""
    assert {module: known & FACES for module, known in arrows_of_modules(ROOT).items() if known & FACES} == {}


@pytest.mark.parametrize("library", sorted(HOMES))
def test_a_library_is_imported_in_its_homes_alone(library: str):
    paths = sorted((ROOT / "agentflow").rglob("*.py"))
    homes = {
        room_of(module_name(path, ROOT))
        for path in paths
        if library in {name.split(".")[0] for name in imported_names(path, ROOT)}
    }
    assert homes == HOMES[library]


def test_the_import_reader_sees_relative_nested_and_plain_imports(tmp_path: Path):
    inner = tmp_path / "agentflow" / "lab" / "plots"
    inner.mkdir(parents=True)
    for package in (inner, inner.parent, inner.parent.parent):
        (package / "__init__.py").write_text("")
    (tmp_path / "agentflow" / "engine.py").write_text(
        "import agentflow.api\nfrom . import lab\nfrom .errors import Lost\ndef f():\n    from agentflow import x\n"
    )
    for name in ("api", "errors"):
        (tmp_path / "agentflow" / f"{name}.py").write_text("")
    (inner / "frames.py").write_text("from ...engine import Engine\nfrom .text import draw\n")
    (inner / "text.py").write_text("if TYPE_CHECKING:\n    from . import frames\n")
    arrows = arrows_of_modules(tmp_path)
    assert arrows["agentflow.engine"] == {"agentflow", "agentflow.api", "agentflow.lab", "agentflow.errors"}
    assert arrows["agentflow.lab.plots.frames"] == {"agentflow.engine", "agentflow.lab.plots.text"}
    assert arrows["agentflow.lab.plots.text"] == {"agentflow.lab.plots.frames"}
    assert arrows_of_rooms(tmp_path)["lab/plots"] == {"engine"}


def test_the_core_can_be_read_in_one_sitting():
    """Lines of Python, without blank lines, comments, docstrings and the texts of SQL; docs/decisions.md, 20."""
    core = ("schema", "statements", "database", "transactions", "run", "worker", "model", "errors")
    paths = [path for room in core for path in (ROOT / "agentflow").glob(f"{room}/*.py")]
    paths += [ROOT / "agentflow" / f"{room}.py" for room in core if (ROOT / "agentflow" / f"{room}.py").exists()]
    assert sum(lines_of_code(path.read_text(encoding="utf-8")) for path in paths) <= 1_450


def lines_of_code(source: str) -> int:
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef)
    prose: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, documented) and ast.get_docstring(node) is not None:
            prose |= set(range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1))
        if isinstance(node, ast.keyword) and node.arg == "text" and isinstance(node.value, ast.Constant):
            prose |= set(range(node.value.lineno + 1, (node.value.end_lineno or 0) + 1))
    lines = enumerate(source.splitlines(), 1)
    return sum(bool(line.strip()) and not line.strip().startswith("#") and n not in prose for n, line in lines)
