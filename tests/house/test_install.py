"""What `make setup` and `make lint` install, with our Makefile on a small lock: no network, and a uv that notes each call."""

from __future__ import annotations

import base64
import hashlib
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pip
import pytest

ROOT = Path(__file__).resolve().parents[2]
UV = """#!python
import os, subprocess, sys
with open("asked", "a") as asked:
    print(os.environ["UV_DEFAULT_INDEX"], *sys.argv[1:], file=asked)
python = sys.argv.index("--python")
sys.exit(subprocess.call([sys.argv[python + 1], "-m", *sys.argv[1:python], *sys.argv[python + 2:]]))
"""
PROJECT = """[build-system]
requires = []
build-backend = "backend"
backend-path = ["."]
"""
BACKEND = """import shutil
def build_editable(folder, config_settings=None, metadata_directory=None):
    return shutil.copy("wheels/ours-1-py3-none-any.whl", folder).rpartition("/")[2]
"""


def wheel(folder: Path, name: str, script: str | None = None) -> str:
    """A wheel of one empty module, or of one script, lies in the folder; returns its hash."""
    files = {f"{name}-1.data/scripts/{name}" if script else f"{name}.py": script or ""}
    files[f"{name}-1.dist-info/METADATA"] = f"Metadata-Version: 2.1\nName: {name}\nVersion: 1\n"
    files[f"{name}-1.dist-info/WHEEL"] = "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    digests = {path: base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()) for path, text in files.items()}
    record = [f"{path},sha256={digest.decode().rstrip('=')}," for path, digest in digests.items()]
    files[f"{name}-1.dist-info/RECORD"] = "\n".join([*record, f"{name}-1.dist-info/RECORD,,"])
    with zipfile.ZipFile(folder / f"{name}-1-py3-none-any.whl", "w") as archive:
        for path, text in files.items():
            entry = zipfile.ZipInfo(path)
            entry.external_attr = 0o100755 << 16
            archive.writestr(entry, text)
    return hashlib.sha256((folder / f"{name}-1-py3-none-any.whl").read_bytes()).hexdigest()


class Checkout:
    """Our Makefile beside a lock with one package for each part, and an environment in which nothing is installed yet."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.packages = folder, folder / ".venv" / "lib" / "python" / "site-packages"
        (folder / "wheels").mkdir()
        shutil.copy(ROOT / "Makefile", folder)
        (folder / "pyproject.toml").write_text(PROJECT)
        (folder / "backend.py").write_text(BACKEND)
        wheel(folder / "wheels", "ours")
        parts = {"runs": "", "checks": " ; extra == 'dev'", "uv": " ; extra == 'uv'"}
        hashes = {name: wheel(folder / "wheels", name, UV if name == "uv" else None) for name in parts}
        self.lock = folder / "requirements.lock"
        self.lock.write_text(
            "".join(
                f"{name}==1{part} \\\n    --hash=sha256:{hashes[name]}\n    # via x\n" for name, part in parts.items()
            )
        )
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder / ".venv"], check=True)
        self.packages = next((folder / ".venv").glob("lib/python*/site-packages"))
        (self.packages / "pip").symlink_to(Path(pip.__file__).parent)
        stamp = folder / ".venv" / "agentflow-setup"
        stamp.write_text(str(folder / ".venv"))
        os.utime(stamp, (0, 0))

    def make(self, target: str) -> subprocess.CompletedProcess[str]:
        """Runs make as somebody whose pip has an index of its own, but who is on no network."""
        environment = {
            name: value for name, value in os.environ.items() if not name.startswith(("PIP_", "UV_", "MAKE"))
        }
        environment |= {
            "PIP_NO_INDEX": "1",
            "PIP_FIND_LINKS": str(self.folder / "wheels"),
            "PIP_CONFIG_FILE": os.devnull,
        }
        environment |= {"PIP_INDEX_URL": "https://mirror.example/simple"}
        return subprocess.run(
            ["make", target], cwd=self.folder, env=environment, capture_output=True, text=True, timeout=110
        )

    def has(self, name: str) -> bool:
        """Whether a package is installed."""
        return (self.packages / f"{name}.py").exists()

    def asked(self) -> list[str]:
        """What uv was asked, a line for each time."""
        asked = self.folder / "asked"
        return asked.read_text().splitlines() if asked.exists() else []


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    return Checkout(tmp_path)


def test_uv_installs_what_running_needs_and_later_what_checks_need(checkout: Checkout) -> None:
    done = checkout.make("setup")
    assert done.returncode == 0, done.stdout + done.stderr
    assert [checkout.has(name) for name in ("runs", "ours", "checks")] == [True, True, False]
    locked, ourselves = checkout.asked()
    assert locked.startswith(
        "https://mirror.example/simple pip install "
    )  # uv does not read pip's settings: we hand them on
    assert locked.endswith("--only-binary :all: --require-hashes --no-deps -r requirements.lock")
    assert ourselves.endswith("-e .")
    assert not (checkout.folder / ".venv" / "uv").exists()

    checkout.make("setup")
    assert len(checkout.asked()) == 2, "installed twice"

    linted = checkout.make("lint")
    assert checkout.has("checks"), linted.stdout + linted.stderr
    assert len(checkout.asked()) == 4
    assert "No module named ruff" in linted.stderr  # this lock has none


@pytest.mark.long
def test_pip_installs_where_uv_cannot_be_had_and_says_so(checkout: Checkout) -> None:
    (checkout.folder / "wheels" / "uv-1-py3-none-any.whl").unlink()
    done = checkout.make("setup")
    assert done.returncode == 0, done.stdout + done.stderr
    assert [checkout.has(name) for name in ("runs", "ours", "checks")] == [True, True, False]
    assert done.stdout.count("uv cannot install here, for the reason in .venv/uv.log, so pip does") == 1
    assert "uv==1" in (checkout.folder / ".venv" / "uv.log").read_text()
    checkout.make("lint")
    assert checkout.has("checks")


@pytest.mark.long
@pytest.mark.parametrize("name", ["runs", "checks", "uv"])
def test_a_package_with_another_hash_is_never_installed(checkout: Checkout, name: str) -> None:
    wheel(checkout.folder / "wheels", name, "#!python\n" if name == "uv" else None)
    with zipfile.ZipFile(checkout.folder / "wheels" / f"{name}-1-py3-none-any.whl", "a") as archive:
        archive.writestr("harm.py", "")
    done = checkout.make("lint")
    assert not checkout.has("harm")
    assert done.returncode != 0
    if name == "uv":
        assert checkout.has("checks")  # by pip
    else:
        assert "DO NOT MATCH THE HASHES" in done.stderr
        assert (checkout.folder / ".venv" / "agentflow-dev").exists() is False
