"""A home is a folder that AgentFlow made. Any other folder, and all that a link leads to, stays byte for byte as it was."""

from __future__ import annotations

import fcntl
import os
import shutil
import stat
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from agentflow import home, server
from agentflow.doctor import examine
from agentflow.errors import ServerError
from agentflow.server import Server
from tests.support.programs import Shell, environment

AS_ROOT = os.geteuid() == 0
SOMEBODY = 65534


@pytest.fixture
def folder() -> Iterator[Path]:
    """A private folder with a short path."""
    made = Path(tempfile.mkdtemp(prefix="af-"))
    yield made
    for each in made.iterdir():
        with suppress(ServerError):
            Server(each).crash()
    shutil.rmtree(made)


@pytest.fixture(scope="module")
def template() -> Iterator[Path]:
    """A home that was started and stopped."""
    made = Path(tempfile.mkdtemp(prefix="af-"))
    ours = Server(made / "home").start()
    ours.stop()
    yield ours.home
    shutil.rmtree(made)


def copied(template: Path, to: Path) -> Server:
    """A home of its own that is stopped."""
    return Server(shutil.copytree(template, to))


def plain(at: Path) -> Server:
    """A home with all that is in one, except that its data are no cluster."""
    home.make(at)
    for name in ("data", "socket"):
        (at / name).mkdir(mode=0o700)
    for name in ("lock", "lifeline", "server.log", "data/PG_VERSION", "data/postgresql.conf"):
        (at / name).write_text("18\n")
    return Server(at)


def inventory(top: Path) -> dict[str, tuple[int, int, int, bytes | str]]:
    """Every file below: owner, permissions, when it was changed, and what is in it."""
    found: dict[str, tuple[int, int, int, bytes | str]] = {}
    for path in [top, *top.rglob("*")]:
        one = path.lstat()
        inside = os.readlink(path) if path.is_symlink() else path.read_bytes() if stat.S_ISREG(one.st_mode) else ""
        found[str(path)] = (one.st_uid, one.st_mode, one.st_mtime_ns, inside)
    return found


def refused(ours: Server, why: str) -> None:
    """Nobody starts, stops or crashes anything there, and doctor says why."""
    for what in (ours.start, ours.stop, ours.crash):
        with pytest.raises(ServerError, match=why):
            what()
    assert not ours.is_running()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AGENTFLOW_HOME", str(ours.home))
        patch.delenv("DATABASE_URL", raising=False)
        (wrong,) = [one for one in examine("agentflow") if one.topic == "server"]
    assert not wrong.ok and "AGENTFLOW_HOME" in wrong.mend + wrong.says


def project(at: Path) -> Path:
    """Somebody's folder with the names that a home has."""
    for name in ("socket/server.py", "data.new-thesis/thesis.txt", "data/PG_VERSION", "server.log", "lock", "lifeline"):
        (at / name).parent.mkdir(parents=True, exist_ok=True)
        (at / name).write_text(f"mine: {name}")
    return at


def test_a_folder_that_has_our_names_is_left_alone(folder: Path) -> None:
    project(folder / "project")
    before = inventory(folder)
    refused(Server(folder / "project"), "AgentFlow did not make .*, and it is not empty. Nothing was changed")
    with Shell(environment(AGENTFLOW_HOME=str(folder / "project"), DATABASE_URL=None)) as shell:
        every = [shell.run(command) for command in ("stop", "migrate", "lab")]
    for done in every:
        assert done.returncode == 1 and "AgentFlow did not make" in done.stderr and "Traceback" not in done.stderr
    assert inventory(folder) == before


@pytest.mark.parametrize("name", ["socket", "data", "server.log", "lock", "lifeline", home.MARK, "data/PG_VERSION"])
def test_no_link_in_a_home_is_followed(folder: Path, name: str) -> None:
    ours = plain(folder / "home")
    project(folder / "theirs")
    target = folder / "theirs" / {home.MARK: "lock"}.get(name, name)
    shutil.rmtree(ours.home / name) if target.is_dir() else (ours.home / name).unlink()
    (ours.home / name).symlink_to(target)
    before = inventory(folder)
    refused(ours, "is a link")
    assert inventory(folder) == before
    if not target.is_dir():
        (ours.home / name).unlink()
        os.link(target, ours.home / name)
        before = inventory(folder)
        refused(ours, "is not what AgentFlow makes under that name")
        assert inventory(folder) == before


def test_a_link_as_home_leads_only_to_a_home(folder: Path, template: Path) -> None:
    project(folder / "theirs")
    (folder / "empty").mkdir()
    for target in ("theirs", "empty", "nowhere"):
        (link := folder / f"to-{target}").symlink_to(folder / target)
        before = inventory(folder)
        refused(Server(link), "is a link, and not to a home that AgentFlow made")
        assert inventory(folder) == before
    copied(template, folder / "real")
    (folder / "to-real").symlink_to(folder / "real")
    assert Server(folder / "to-real").start().is_running()


def test_only_what_our_server_left_is_removed_and_all_files_are_for_us_alone(folder: Path) -> None:
    """Whatever the umask is, and whatever looks like an interrupted initdb."""
    ours = Server(folder / "home")
    home.make(ours.home)
    thesis, kept = ours.home / "data.new-thesis" / "thesis.txt", (".s.PGSQL.5432.bak", "notes.txt")
    for folder_of_ours in (thesis.parent, ours.socket_folder):
        folder_of_ours.mkdir(mode=0o700)
    for name in (*kept, ".s.PGSQL.5432", ".s.PGSQL.5432.lock"):
        (ours.socket_folder / name).write_text("stale")
    thesis.write_text("mine")
    (ours.home / "data.new-link").symlink_to(thesis.parent)
    before = os.umask(0)
    try:
        ours.start().stop()
    finally:
        os.umask(before)
    assert thesis.read_text() == "mine" and (ours.home / "data.new-link").is_symlink()
    assert sorted(path.name for path in ours.socket_folder.iterdir()) == [*kept]
    found = {path.name: stat.S_IMODE(path.stat().st_mode) for path in ours.home.iterdir() if ".new-" not in path.name}
    files = dict.fromkeys(("lock", "lifeline", "server.log", home.MARK), 0o600)
    assert found == {"data": 0o700, "socket": 0o700, **files}
    assert stat.S_IMODE(ours.home.stat().st_mode) == 0o700


def test_a_folder_that_others_may_change_is_refused(folder: Path) -> None:
    ours = plain(folder / "home")
    for mode in (0o770, 0o703):
        ours.home.chmod(mode)
        refused(ours, r"other users may change .*chmod go-w")


@pytest.mark.skipif(not AS_ROOT, reason="only root can give a folder to somebody else")
def test_a_folder_of_another_user_is_refused(folder: Path) -> None:
    ours = plain(folder / "home")
    for path in (ours.home, ours.socket_folder, ours.home / "lock"):
        before = path.stat().st_uid
        os.chown(path, 12345, 12345)
        refused(ours, "belongs to another user")
        os.chown(path, before, before)
    assert home.refusal(ours.home) is None


HOLD = "import fcntl, sys; f = open(sys.argv[1]); fcntl.flock(f, fcntl.LOCK_SH); print('held', flush=True); sys.stdin.read()"


@pytest.mark.skipif(not AS_ROOT, reason="only root can become another user")
def test_another_user_cannot_hold_the_lock_even_of_an_older_home_that_all_may_read(folder: Path) -> None:
    ours = plain(folder / "home")
    for path in (folder, ours.home):
        path.chmod(0o755)
    for name in ("lock", "lifeline"):
        (ours.home / name).chmod(0o666)
    ours.stop()
    for name in ("lock", "lifeline"):
        other = subprocess.run(
            ["/usr/bin/python3", "-c", HOLD, ours.home / name], user=SOMEBODY, group=SOMEBODY, extra_groups=[], cwd="/",
            stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert "Permission denied" in other.stderr


def test_a_lock_that_is_held_for_ever_is_a_sentence(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "SERVER_PATIENCE", 0.1)
    ours = plain(folder / "home")
    with (ours.home / "lock").open() as held:
        fcntl.flock(held, fcntl.LOCK_SH)
        for what in (ours.start, ours.stop):
            began = time.monotonic()
            with pytest.raises(ServerError, match=r"Another process has held .*lock for 0\.1 s\. Nothing was changed"):
                what()
            assert time.monotonic() - began < 5
    ours.stop()


def test_an_older_home_is_known_by_what_our_initdb_wrote(folder: Path, template: Path) -> None:
    ours = copied(template, folder / "home")
    (ours.home / home.MARK).unlink()
    assert ours.start().is_running()
    ours.stop()
    assert not (ours.home / home.MARK).exists()
    conf = ours.data / "postgresql.conf"
    written = conf.read_text()
    for folders in ("'/tmp'", "''"):  # the second is what a server has that hears TCP alone
        conf.write_text(written.replace("'../socket'", folders))
        refused(ours, "AgentFlow did not make")


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="only there the system says where a process stands")
def test_a_process_that_a_stale_file_names_is_not_signalled(folder: Path, template: Path) -> None:
    ours = copied(template, folder / "home")
    with subprocess.Popen(["sleep", "600"]) as bystander, home.locked(ours.home / "lifeline", 1):
        try:
            (ours.data / "postmaster.pid").write_text(f"{bystander.pid}\n{ours.data}\n{int(time.time())}\n5432\n")
            with pytest.raises(ServerError, match=f"names process {bystander.pid}, which is no part of it"):
                ours.stop()
            assert bystander.poll() is None
        finally:
            bystander.kill()


@pytest.mark.parametrize("version", ["17", "19", "", "17';touch PWNED;'"])
def test_data_of_another_postgresql_are_told_and_left_alone(folder: Path, version: str) -> None:
    ours = plain(folder / "home")
    (ours.data / "PG_VERSION").write_text(f"{version}\n")
    said = f"were made by PostgreSQL {version[:2] or 'of no version'}, and PostgreSQL 18 cannot"
    with pytest.raises(ServerError, match=said) as told:
        ours.start()
    assert "PWNED" not in str(told.value)
    assert "set AGENTFLOW_HOME to a new folder" in str(told.value) and str(told.value) == ours.trouble()


def test_damaged_data_are_told_by_doctor_before_a_start(folder: Path) -> None:
    ours = plain(folder / "home")
    (ours.data / "global").mkdir()
    for damage in (b"", b"\0" * 8192):
        (ours.data / "global" / "pg_control").write_bytes(damage)
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("AGENTFLOW_HOME", str(ours.home))
            patch.delenv("DATABASE_URL", raising=False)
            (wrong,) = [one for one in examine("agentflow") if one.topic == "server"]
        assert not wrong.ok and "are damaged (" in wrong.says and "AGENTFLOW_HOME" in wrong.says
        with pytest.raises(ServerError, match="are damaged"):
            ours.start()
    for name in ("postgresql.conf", "PG_VERSION"):
        (ours.data / name).unlink()
        assert f"are damaged ({name} is missing)" in str(ours.trouble())


def test_eight_processes_that_make_one_empty_home_agree(folder: Path) -> None:
    made: list[int] = []
    for _ in range(8):
        if not (child := os.fork()):
            try:
                home.make(folder / "home")
            except BaseException:
                os._exit(1)
            os._exit(0)
        made.append(child)
    assert [os.waitpid(one, 0)[1] for one in made] == [0] * 8
