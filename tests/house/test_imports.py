"""What an import costs: rooms that need the standard library alone import nothing else, and a command only what it uses."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
import typer

import agentflow
from agentflow import Engine
from agentflow.cli import app
from tests.support.programs import environment

_ALONE = """
import importlib, sys
class Fence:
    def find_spec(self, name, path=None, target=None):
        first = name.partition(".")[0]
        if first not in sys.stdlib_module_names and first != "agentflow":
            raise ImportError(f"{name} is imported")
sys.meta_path.insert(0, Fence())
importlib.import_module(sys.argv[1])
"""
ALONE = ["agents", "errors", "evidence", "gate", "log", "model", "requests", "run", "statements", "tools", "values"]

# Runs lines of code one after the other, and prints what each imports that those before it have not.
_IN_TURN = """
import importlib, json, os, pkgutil, sys
def command(*words):
    try:
        importlib.import_module("agentflow.cli").app(words, prog_name="agentflow")
    except SystemExit as end:
        assert not end.code, f"{words}: {end.code}"
def cut(home, name):  # what a command becomes in the end
    setattr(pkgutil.resolve_name(home), name, lambda *_, **__: sys.exit())
sys.stdout = open(os.devnull, "w")
for code in sys.argv[1:]:
    before = {name.partition(".")[0] for name in sys.modules}
    exec(code)
    print(json.dumps([code, [name for name in sys.modules if name not in before]]), file=sys.__stdout__)
"""
_DRIVER = {"psycopg", "psycopg_binary", "typing_extensions"}
_HELP = {"typer", "annotated_doc", "shellingham"}
_OPTIONS = {"pydantic", "pydantic_core", "annotated_types", "typing_inspection"}
IN_TURN = [
    {
        "import agentflow, agentflow.lab": set(),
        "command('--help')": _HELP,
        "from agentflow import Database, Engine, migrate, open_engine": _DRIVER,
        "command('stop')": _OPTIONS,
        "command('migrate')": set(),
        "command('submit', '--requests', '-')": set(),
        "cut('agentflow.worker.Worker', 'run_forever'); command('worker')": set(),
        "command('report')": set(),
        "command('check')": set(),
        "command('doctor')": set(),
        "command('free')": set(),
        "cut('agentflow.grants', 'grant'); command('grant')": set(),
        "command('reset', '--yes')": set(),
        "cut('agentflow.cli.launch', 'become'); command('lab')": set(),
        "cut('agentflow.lab.crashes.atlas', 'atlas'); command('atlas')": set(),
        "cut('agentflow.lab.crashes.soak', 'soak'); command('soak', '--requests', '-')": set(),
        "cut('agentflow.api', 'serve'); command('api', '--port', '0')": {
            *("anyio", "click", "fastapi", "h11", "opentelemetry", "starlette", "uvicorn"),
        },
    },
    {
        "command('play', 'A*', '--capsule', 'a.json')": {
            *_HELP, *_DRIVER, *_OPTIONS, "alembic", "mako", "markupsafe", "pygments", "sqlalchemy",
        },
        "command('diff', 'a.json', 'a.json')": set(),
        "command('explore', '--crashes', '0', '--expiries', '0', '--lost-replies', '0')": {"tqdm"},
    },
]  # fmt: skip


@pytest.mark.parametrize("module", ALONE)
def test_a_room_of_records_and_texts_needs_the_standard_library_alone(module: str) -> None:
    assert fenced(f"agentflow.{module}") == ""


def test_the_fence_stops_what_is_not_allowed() -> None:
    assert fenced("agentflow.schema") == "ImportError: sqlalchemy is imported"


def fenced(module: str) -> str:
    """What a module asks for beyond the standard library; empty if it can be imported."""
    done = subprocess.run([sys.executable, "-c", _ALONE, module], capture_output=True, text=True, check=False)
    return done.stderr.strip().rpartition("\n")[2]


@pytest.mark.parametrize("imported", IN_TURN, ids=["on a schema", "on a new schema"])
def test_an_import_and_a_command_bring_in_the_packages_of_the_list_and_no_other(
    engine: Engine, url: str, tmp_path: Path, imported: dict[str, set[str]]
) -> None:
    env = environment(DATABASE_URL=url, AGENTFLOW_SCHEMA=engine.database.schema, AGENTFLOW_HOME=str(tmp_path / "home"))
    done = subprocess.run(
        [sys.executable, "-c", _IN_TURN, *imported], env=env, cwd=tmp_path, stdin=subprocess.DEVNULL,
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.stderr == ""
    installed = {*packages_distributions()} - {"agentflow"}
    assert {code: installed & {*names} for code, names in map(json.loads, done.stdout.splitlines())} == imported


def test_every_command_is_on_the_list() -> None:
    commands = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    assert {*re.findall(r"command\('([a-z]+)'", str(IN_TURN))} == {*commands}


def test_every_public_name_is_there_and_an_unknown_one_is_refused() -> None:
    assert all(getattr(agentflow, name) is not None for name in agentflow.__all__)
    assert set(agentflow.__all__) <= set(dir(agentflow))
    assert agentflow.workflows.name == "workflows"  # the table: no module may take its name
    with pytest.raises(AttributeError, match="module 'agentflow' has no attribute 'Engin'"):
        _ = agentflow.Engin
