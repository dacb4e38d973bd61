"""What an import costs: rooms that need the standard library alone import nothing else, also through `agentflow` itself."""

from __future__ import annotations

import subprocess
import sys
import sysconfig

import pytest

import agentflow

_ALONE = """
import importlib, sys
allowed = {"agentflow", *sys.argv[2].split(",")}
class Fence:
    def find_spec(self, name, path=None, target=None):
        first = name.partition(".")[0]
        if first not in sys.stdlib_module_names and first not in allowed:
            raise ImportError(f"{name} is imported")
sys.meta_path.insert(0, Fence())
importlib.import_module(sys.argv[1])
"""


ALONE = ("errors", "gate", "log", "model", "requests", "run", "statements", "values")
SYSTEM = sysconfig._get_sysconfigdata_name()  # type: ignore[attr-defined] # of the standard library, but not on its list


def imported_with(module: str, *allowed: str) -> str:
    """What a module asks for that is neither of the standard library nor allowed; empty if it can be imported."""
    command = [sys.executable, "-c", _ALONE, module, ",".join(allowed)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stderr.strip().rpartition("\n")[2]


@pytest.mark.parametrize(
    "module",
    [
        "agentflow",
        *(
            f"agentflow.{name}"
            for name in ("errors", "gate", "log", "model", "requests", "run", "statements", "values")
        ),
    ],
)
def test_a_room_of_records_and_texts_needs_the_standard_library_alone(module: str) -> None:
    assert imported_with(module) == ""


def test_the_engine_needs_no_alembic_until_a_schema_is_migrated() -> None:
    needed = ("sqlalchemy", "psycopg", "psycopg_binary", "typing_extensions", "greenlet", SYSTEM)
    assert imported_with("agentflow.engine", *needed) == ""


def test_the_fence_stops_what_is_not_allowed() -> None:
    assert imported_with("agentflow.schema") == "ImportError: sqlalchemy is imported"


def test_every_public_name_is_there_and_an_unknown_one_is_refused() -> None:
    assert all(getattr(agentflow, name) is not None for name in agentflow.__all__)
    assert set(agentflow.__all__) <= set(dir(agentflow))
    assert agentflow.workflows.name == "workflows"  # the table: no module may take its name
    with pytest.raises(AttributeError, match="module 'agentflow' has no attribute 'Engin'"):
        _ = agentflow.Engin
