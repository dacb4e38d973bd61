"""The arrows of the house: which room may import which, and where each library has its one home."""

import ast
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "agentflow"

# Everybody may know how things fail and the records that travel; the other arrows are listed one by one.
# A room is a module or a folder directly under agentflow/. A new room gets a line here and in docs/architecture.md.
ARROWS: dict[str, set[str]] = {
    "errors": set(),
    "log": set(),
    "model": {"errors"},
    "values": {"errors"},
    "schema": set(),
    "statements": {"schema"},
    "queries": {"schema", "statements"},
    "server": {"errors"},
    "trouble": {"errors"},
    "database": {"trouble", "statements", "queries", "schema", "server", "model", "errors", "log"},
    "migrations": {"database", "schema", "errors"},
    "engine": {"database", "statements", "queries", "schema", "model", "errors", "values"},
    "run": {"model", "errors", "values"},
    "journal": {"engine", "run", "model", "errors", "values"},
    "bell": {"database", "errors"},
    "renewals": {"engine", "model", "errors", "log"},
    "worker": {"engine", "run", "journal", "model", "errors", "log", "bell", "renewals"},
    "tools": {"database", "statements", "queries", "schema", "model", "errors", "values", "log"},
    "workflows": {"tools", "run", "model", "errors"},
    "evidence": {"engine", "database", "statements", "queries", "schema", "model", "errors"},
}
# what people import is put together from all of the above
ARROWS["front"] = set(ARROWS)
ENGINE_ROOMS = frozenset(ARROWS)
DOORS = {"api", "cli", "on_dbos"}
# what the doors are made of; no library of theirs but pydantic in `answers`
ARROWS["requests"] = {"errors", "values"}
ARROWS["gate"] = set()
ARROWS["answers"] = {"values"}
ARROWS["launch"] = set(ENGINE_ROOMS)
ARROWS["doctor"] = set(ENGINE_ROOMS)
ARROWS["lab"] = {*ENGINE_ROOMS, "doctor", "requests"}
ARROWS["on_dbos"] = set(ENGINE_ROOMS)
ARROWS["api"] = {*ENGINE_ROOMS, "gate", "answers"}
ARROWS["cli"] = {*ENGINE_ROOMS, "api", "gate", "launch", "doctor", "requests", "lab", "on_dbos"}
ARROWS["__main__"] = {"cli"}

# Each of these libraries has one home.
HOMES = {
    "ipywidgets": "lab",
    "anywidget": "lab",
    "matplotlib": "lab",
    "fastapi": "api",
    "fastapi_offline": "api",
    "uvicorn": "api",
    "starlette": "api",
    "typer": "cli",
    "click": "cli",
    "dbos": "on_dbos",
}


def room_of(path: Path) -> str:
    """The room that a module of the package belongs to: `agentflow/lab/plots/plots.py` belongs to lab."""
    first = path.relative_to(PACKAGE).parts[0]
    return first.removesuffix(".py")


def modules() -> list[Path]:
    return sorted(path for path in PACKAGE.rglob("*.py") if path != PACKAGE / "__init__.py")


def imported_names(path: Path) -> set[str]:
    """Absolute dotted names of everything that a module imports, anywhere in it; `from a import b` gives `a.b`."""
    package = path.relative_to(ROOT).parent.parts
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            parents = package[: len(package) - node.level + 1] if node.level else ()
            base = ".".join([*parents, *([node.module] if node.module else [])])
            found |= {f"{base}.{alias.name}" for alias in node.names}
    return found


def rooms_known_by(path: Path) -> set[str]:
    """Rooms that a module imports; a name from the package's front (`from agentflow import X`) gives `(front)`."""
    rooms = set()
    for name in imported_names(path):
        parts = name.split(".")
        if parts[0] == "agentflow":
            known = len(parts) > 1 and (parts[1] in ARROWS or (PACKAGE / f"{parts[1]}.py").exists())
            rooms.add(parts[1] if known else "(front)")
    return rooms - {room_of(path)}


def test_every_room_has_a_line_in_the_arrow_table():
    rooms = {room_of(path) for path in modules()}
    assert rooms - set(ARROWS) == set()


def test_the_arrow_table_has_no_cycle():
    left = {room: set(known) for room, known in ARROWS.items()}
    while free := {room for room, known in left.items() if not known}:
        left = {room: known - free for room, known in left.items() if room not in free}
    assert left == {}


@pytest.mark.parametrize("room", sorted(ARROWS))
def test_a_room_imports_only_the_rooms_it_may_know(room: str):
    wrong = {}
    for path in modules():
        if room_of(path) == room:
            # The doors and the laboratory may come in by the front, as a learner does; in the engine that is a cycle.
            allowed = ARROWS[room] | (set() if room in ENGINE_ROOMS else {"(front)"})
            if unplanned := rooms_known_by(path) - allowed:
                wrong[path.name] = unplanned
    assert wrong == {}


def test_the_engine_and_its_front_never_import_the_laboratory_or_a_door():
    engine = [path for path in modules() if room_of(path) in ENGINE_ROOMS]
    wrong = {path.name: rooms_known_by(path) & {"lab", *DOORS} for path in engine}
    front = {name.split(".")[1] for name in imported_names(PACKAGE / "__init__.py") if name.startswith("agentflow.")}
    assert {name: rooms for name, rooms in wrong.items() if rooms} == {}
    assert front & {"lab", *DOORS} == set()


@pytest.mark.parametrize("library", sorted(HOMES))
def test_a_library_is_imported_in_its_one_home(library: str):
    homes = {room_of(path) for path in modules() if library in {name.split(".")[0] for name in imported_names(path)}}
    assert homes <= {HOMES[library]}


def test_the_import_reader_sees_relative_nested_and_plain_imports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    package = tmp_path / "agentflow"
    (package / "lab").mkdir(parents=True)
    module = package / "engine.py"
    module.write_text(
        "import agentflow.api\nfrom . import lab\nfrom .errors import Lost\ndef f():\n    from agentflow import x\n"
    )
    inner = package / "lab" / "plots.py"
    inner.write_text("from ..engine import Engine\nfrom .timeline import draw\n")
    monkeypatch.setattr(sys.modules[__name__], "ROOT", tmp_path)
    monkeypatch.setattr(sys.modules[__name__], "PACKAGE", package)
    assert rooms_known_by(module) == {"api", "lab", "errors", "(front)"}
    assert rooms_known_by(inner) == {"engine"}


def test_the_core_can_be_read_in_one_sitting():
    """Lines of code, without blank lines, comments and docstrings; docs/decisions.md, 20."""
    core = ("schema", "statements", "database", "engine", "run", "worker", "model", "errors")
    assert sum(lines_of_code((PACKAGE / f"{room}.py").read_text(encoding="utf-8")) for room in core) <= 1_625


def lines_of_code(source: str) -> int:
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef)
    prose: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, documented) and ast.get_docstring(node) is not None:
            prose |= set(range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1))
    lines = enumerate(source.splitlines(), 1)
    return sum(bool(line.strip()) and not line.strip().startswith("#") and n not in prose for n, line in lines)
