"""The house keeps its own rules: what lies where, what is locked, and that nothing of one machine is committed."""

import ast
import json
import re
import shutil
import subprocess
import sys
import tomllib
from importlib.metadata import distribution, packages_distributions, version
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from packaging.markers import Marker
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.support import chromium

ROOT = Path(__file__).resolve().parents[2]

TOP_LEVEL = {
    *("notebooks", "agentflow", "tests", "data", "docs"),
    *("environment.yml", "compose.yaml", "README.md"),
    *("pyproject.toml", "requirements.lock", "Makefile", "CHANGELOG.md", "LICENSE"),
}


def tracked_files(*others: str) -> list[str]:
    """Paths relative to the root, as git sees them: committed or staged, and with these options of its listing others."""
    listing = ["ls-files", "-z", "--cached", *others]
    git = ["git", "-c", f"safe.directory={ROOT}", *listing]
    names = subprocess.run(git, cwd=ROOT, check=True, capture_output=True).stdout.decode().split("\0")
    return [name for name in names if name and (ROOT / name).is_file()]


# --- what lies where


def test_top_level_holds_only_what_the_house_plans():
    top = {name.split("/")[0] for name in tracked_files()}  # a learner's own files may lie beside them
    assert {name for name in top if not name.startswith(".")} - TOP_LEVEL == set()


def test_no_tracked_file_names_a_registry_or_a_path_of_one_machine():
    hosts = ["pypi" + ".org", "pythonhosted" + ".org", "npmjs" + ".org", "debian" + ".org", "anaconda" + ".org"]
    hosts += ["docker" + ".io", "ghcr" + ".io"]
    folders = "|".join(["work/", "root/", "farm"])
    forbidden = re.compile("|".join(map(re.escape, hosts)) + rf"|(?<![\w./-])/(?:{folders})")
    found = []
    for name in tracked_files("--others", "--exclude-standard"):  # a new file is told before it is committed
        text = (ROOT / name).read_bytes().decode("utf-8", errors="replace")
        found += [f"{name}: {match.group()}" for match in forbidden.finditer(text)]
    assert found == []


def test_nothing_generated_is_tracked():
    folders = r"__pycache__|artifacts|build|dist|\.venv|\.agentflow|\.ipynb_checkpoints|[^/]+\.egg-info"
    generated = re.compile(rf"(^|/)({folders})/")
    assert [name for name in tracked_files() if generated.search(name)] == []


# --- what an installation installs


def locked() -> dict[str, str]:
    """Normalised name to the lines of its entry in the lock file."""
    entries = re.split(r"\n(?=\S)", (ROOT / "requirements.lock").read_text(encoding="utf-8"))
    return {re.sub(r"[-_.]+", "-", re.split(r"[=\[ ]", entry)[0]).lower(): entry for entry in entries if entry.strip()}


def declared() -> set[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    extras = project["project"]["optional-dependencies"].values()
    wanted = [*project["build-system"]["requires"], *project["project"]["dependencies"], *chain.from_iterable(extras)]
    return {re.sub(r"[-_.]+", "-", re.split(r"[<>=!~\[; ]", one)[0]).lower() for one in wanted}


def test_every_package_is_locked_to_one_version_with_hashes():
    hashed = re.compile(r"[A-Za-z0-9._-]+==\S+( ;.*)? \\\n    --hash=sha256:[0-9a-f]{64}")
    assert [name for name, entry in locked().items() if not hashed.match(entry)] == []


def test_the_lock_covers_every_declared_dependency_and_the_build_backend():
    assert declared() - set(locked()) == set()


def test_the_lock_carries_names_versions_and_hashes_and_nothing_else():
    lines = (ROOT / "requirements.lock").read_text(encoding="utf-8").splitlines()
    shape = re.compile(r"[a-z0-9._-]+==\S+( ; .*)? \\|    --hash=sha256:[0-9a-f]{64}( \\)?|    # via [a-z0-9., ()-]+")
    assert [line for line in lines if not shape.fullmatch(line)] == []


def test_what_runs_here_is_what_the_lock_says():
    pins = {name: re.match(r"\S+==(\S+)", entry) for name, entry in locked().items()}
    for name in declared() - {"uv"}:  # where uv cannot be had, pip installs
        pin = pins[name]
        assert pin is not None
        assert version(name) == pin.group(1), f"{name} differs from requirements.lock: run make test, which installs it"


def running(extra: str = "") -> set[str]:
    """What the lock has on this machine for an installer that meets no extra: its first part; or with this one."""
    markers = {name: re.match(r"\S+ ; (.*) \\", entry) for name, entry in locked().items()}
    return {name for name, found in markers.items() if not found or Marker(found.group(1)).evaluate({"extra": extra})}


def needed_by(names: list[str]) -> set[str]:
    """These requirements and everything below them, as the installed packages declare it."""
    found: set[str] = set()
    waiting = [Requirement(name) for name in names]
    while waiting:
        one = waiting.pop()
        key = f"{canonicalize_name(one.name)}[{','.join(sorted(one.extras))}]"
        if key not in found:
            found.add(key)
            below = [Requirement(text) for text in distribution(one.name).requires or ()]
            extras = one.extras or {""}
            waiting += [r for r in below if not r.marker or any(r.marker.evaluate({"extra": e}) for e in extras)]
    return {key.partition("[")[0] for key in found}


def test_an_installer_takes_from_the_lock_what_running_needs_and_no_more():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    extras = project["project"]["optional-dependencies"]
    assert running() == needed_by([*project["project"]["dependencies"], *extras["setup"]])
    assert {re.split("[<>=]", one)[0] for one in project["build-system"]["requires"]} <= running()
    assert running() & {"mypy", "playwright", "pytest", "ruff", "schemathesis", "hypothesis", "uv", "dbos"} == set()


def test_make_dbos_adds_what_dbos_needs_and_no_more():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    assert running("dbos") - running() == needed_by(extras["dbos"]) - running()


def test_whatever_the_package_imports_is_in_that_part():
    """DBOS is in a part of its own: an installation need not have it, and one room alone imports it (test_arrows.py)."""
    owners = packages_distributions()
    for path in (ROOT / "agentflow").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [one.name for one in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) and not node.level else []
            for name in {name.partition(".")[0] for name in names} - {"agentflow", *sys.stdlib_module_names}:
                part = "dbos" if name == "dbos" else ""
                assert {canonicalize_name(owner) for owner in owners[name]} & running(part), f"{path}: {name}"


# --- commands


def makefile_targets() -> set[str]:
    return set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))


def test_make_help_names_every_command_with_a_sentence():
    make = shutil.which("make")
    assert make, "make is missing: install it"
    lines = subprocess.run([make, "help"], cwd=ROOT, check=True, capture_output=True, text=True).stdout.splitlines()
    told = {line.split()[1] for line in lines if re.match(r"make [a-z-]+ +\S+", line)}
    assert told == makefile_targets() - {"browser", "remake"}


def test_documents_name_only_make_targets_that_exist():
    documents = [name for name in tracked_files() if name.endswith((".md", ".yml", ".yaml")) or name == ".ci/run"]
    command = re.compile(r"(?:`|^ *\$? ?)make ([a-z][a-z-]*)", re.MULTILINE)
    named = {name: set(command.findall((ROOT / name).read_text(encoding="utf-8"))) for name in documents}
    assert {name: targets - makefile_targets() for name, targets in named.items() if targets - makefile_targets()} == {}


def test_ci_runs_the_tests_that_the_readme_tells_people_to_run():
    script = ROOT / ".ci" / "run"
    assert script.stat().st_mode & 0o111, ".ci/run is not executable"
    assert re.search(r"^make test\b", script.read_text(encoding="utf-8"), re.MULTILINE)


def test_a_missing_browser_is_told_in_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(chromium, "NAMES", ("chromium",))
    with pytest.raises(LookupError, match="apt-get install chromium"):
        chromium.find_chromium({"PATH": str(tmp_path)})
    with pytest.raises(LookupError, match="nowhere"):
        chromium.find_chromium({"PATH": str(tmp_path), "AGENTFLOW_CHROMIUM": "nowhere"})


# --- paths in the docs

# What a path begins with that a run makes, or that is no file of ours: `A/` is a move.
NOT_OURS = {"artifacts", ".venv", "A", "jupyterhub_config.py"}
PATH = re.compile(r"[\w.-]+(?:/[\w.-]+)+/?|[\w.-]+/|[\w-]+\.(?:ipynb|json|lock|md|py|svg|toml|ya?ml)")


def paths_named_in(text: str) -> set[str]:
    """What stands in backticks in Markdown, outside blocks of code, and looks like a file or folder of the repository."""
    prose = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    return {
        one for one in re.findall(r"`([^`\n]+)`", prose) if PATH.fullmatch(one) and one.split("/")[0] not in NOT_OURS
    }


def is_here(path: str) -> bool:
    """From the root, from the package, or from the laboratory, where a module may be named without `.py`."""
    starts = (ROOT, ROOT / "agentflow", ROOT / "agentflow" / "lab")
    return any((start / name).exists() for start in starts for name in (path, f"{path}.py"))


def test_every_path_in_the_docs_and_notebooks_exists():
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
    texts = [(page.name, page.read_text(encoding="utf-8")) for page in pages]
    for name, notebook in notebooks().items():
        cells = enumerate(notebook["cells"])
        texts += [
            (f"{name}, cell {n}", "".join(cell["source"])) for n, cell in cells if cell["cell_type"] == "markdown"
        ]
    assert [f"{place}: {path}" for place, text in texts for path in paths_named_in(text) if not is_here(path)] == []


def test_a_path_is_told_from_other_words_in_backticks():
    text = "`engine.py` `lab/room/view` `tests/` `run.step` `A/` `/docs` `A*4 A/ A` `artifacts/x.json`\n```\n`gone.py`\n```"
    assert paths_named_in(text) == {"engine.py", "lab/room/view", "tests/"}
    assert is_here("lab/room/view")
    assert is_here("run.py")
    assert not is_here("agentflow/workflows.py")


# --- notebooks


def notebooks() -> dict[str, dict[str, Any]]:
    paths = sorted((ROOT / "notebooks").glob("*.ipynb"))
    return {path.name: json.loads(path.read_text(encoding="utf-8")) for path in paths}


def code_cells(notebook: dict[str, Any]) -> list[dict[str, Any]]:
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]


def test_notebooks_can_be_read_without_running_them():
    for name, notebook in notebooks().items():
        assert any(cell["outputs"] for cell in code_cells(notebook)), f"{name}: no output is committed"
        assert "widgets" not in notebook["metadata"], f"{name}: saved widget state is committed"
        for cell in code_cells(notebook):
            failed = [output["evalue"] for output in cell["outputs"] if output["output_type"] == "error"]
            assert not failed or "raises-exception" in cell["metadata"].get("tags", []), f"{name}: {failed}"


def test_notebooks_keep_their_size():
    for name, notebook in notebooks().items():
        assert len(notebook["cells"]) <= 40, name
        for cell in code_cells(notebook):
            assert len("".join(cell["source"]).splitlines()) <= 12, f"{name}: {cell['source'][:1]}"
