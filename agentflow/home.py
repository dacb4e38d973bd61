"""A folder that AgentFlow made for its server, and the files in it: nothing else is used, and no link is followed.

Whose a folder is, is decided before anything in it is touched. A new home carries a mark; one that was made before there
were marks is known by what our `initdb` wrote into its configuration.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from .errors import ServerError

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl
    import pwd

MARK = "made-by-agentflow"
_SAYS = "AgentFlow made what is in this folder: a PostgreSQL server and its data. `agentflow stop` stops it.\n"
_OLDER = re.compile(rf"^unix_socket_directories = '{'' if sys.platform == 'win32' else '../socket'}'", re.MULTILINE)
_FOLDERS = ("data", "socket")
_FILES = (MARK, "lock", "lifeline", "server.log", "password", "port", "data/PG_VERSION", "data/postgresql.conf")


def refusal(home: Path) -> str | None:
    """Why this folder cannot be a home, or None: it is no folder of ours, or not empty and not made by AgentFlow."""
    try:
        found = home.lstat()
    except FileNotFoundError:
        return None
    linked = stat.S_ISLNK(found.st_mode)  # one of our own may lead to a home that we made before
    if linked and (found.st_uid not in _owners() or not home.is_dir() or refusal(home.resolve()) or not _is_made(home)):
        return f"{home} is a link, and not to a home that AgentFlow made"
    if linked:
        return None
    if not stat.S_ISDIR(found.st_mode):
        return f"{home} is not a folder"
    for path in (home, *(home / name for name in (*_FOLDERS, *_FILES))):
        with suppress(FileNotFoundError):
            if why := _unlike_ours(path, path == home or path.name in _FOLDERS):
                return why
    if found.st_mode & 0o022 and os.name != "nt":
        return f"other users may change {home}; take that permission away (chmod go-w)"
    if not _is_made(home) and any(home.iterdir()):
        return f"AgentFlow did not make {home}, and it is not empty"
    return None


def make(home: Path) -> None:
    """Makes the home, or marks it if it is an empty folder. Raises ServerError for a folder that cannot be one, OSError."""
    if why := refusal(home):
        raise refused(why)
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not _is_made(home):
        with suppress(FileExistsError), os.fdopen(_open(home / MARK, os.O_EXCL), "w") as mark:
            mark.write(_SAYS)


def refused(why: str) -> ServerError:
    """The error for a folder that is not used."""
    return ServerError(f"{why}. Nothing was changed there; set AGENTFLOW_HOME to a new folder.")


def touch(path: Path) -> None:
    """Makes a file of ours that only its owner may read. Raises OSError for a link."""
    os.close(_open(path))


@contextmanager
def locked(path: Path, seconds: float) -> Iterator[int]:
    """Holds the lock on `path` for this process alone meanwhile; a process that dies releases it.

    Gives the file's descriptor. Raises ServerError if another process has held it for `seconds`, BlockingIOError at once if
    that is 0.
    """
    descriptor, deadline = _open(path), time.monotonic() + seconds
    try:
        while not _taken(descriptor):
            if not seconds:
                raise BlockingIOError(f"{path} is locked")
            if time.monotonic() > deadline:
                raise ServerError(
                    f"Another process has held {path} for {seconds:g} s. Nothing was changed; wait until the command that "
                    "starts or stops this server has ended, or end it, and try again."
                )
            time.sleep(0.02)
        yield descriptor
    finally:
        os.close(descriptor)


def short_link(target: Path) -> Path:
    """A link to `target` in a 0700 folder of ours; its name follows from `target`, so all processes find it."""
    base = "/tmp" if os.access("/tmp", os.W_OK) else tempfile.gettempdir()  # TMPDIR may differ between processes
    for nth in range(9):
        name = hashlib.sha256(os.fsencode(os.path.realpath(target)) + bytes([nth])).hexdigest()[:16]
        folder = Path(base, f"agentflow-{name}")
        with suppress(FileExistsError):
            folder.mkdir(mode=0o700)
        found = folder.lstat()
        if stat.S_ISDIR(found.st_mode) and found.st_uid == getattr(os, "geteuid", int)() and not found.st_mode & 0o077:
            with suppress(FileExistsError):
                (folder / "s").symlink_to(os.path.realpath(target))
            return folder / "s"
    raise ServerError(
        f"Another user owns {folder} and the names like it. Set AGENTFLOW_HOME to a path of fewer than 80 letters."
    )


def _taken(descriptor: int) -> bool:
    with suppress(OSError):
        if sys.platform == "win32":
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        else:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    return False


def _open(path: Path, how: int = 0) -> int:
    """The file, made if need be, for its owner alone; a link is not followed."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | how | getattr(os, "O_NOFOLLOW", 0), 0o600)
    if sys.platform != "win32" and os.fstat(descriptor).st_uid == os.geteuid():
        os.fchmod(descriptor, 0o600)  # an older one was made with the shell's umask
    return descriptor


def _owners() -> set[int]:
    """Who may own a home: this user; for root also nobody, to whom older homes were given."""
    if sys.platform == "win32":
        return {0}
    me = os.geteuid()
    return {me} | {one.pw_uid for one in pwd.getpwall() if me == 0 and one.pw_name == "nobody"}


def _unlike_ours(path: Path, folder: bool) -> str | None:
    """Why this cannot be what AgentFlow made there. Raises FileNotFoundError if nothing is there."""
    found = path.lstat()
    if found.st_uid not in _owners():
        return f"{path} belongs to another user"
    if stat.S_ISLNK(found.st_mode):
        return f"{path} is a link"
    if folder != stat.S_ISDIR(found.st_mode) or not (folder or (stat.S_ISREG(found.st_mode) and found.st_nlink == 1)):
        return f"{path} is not what AgentFlow makes under that name"
    return None


def _is_made(home: Path) -> bool:
    """Whether it carries the mark, or was made before there were marks. Another process may just be writing it."""
    for _ in range(200):
        try:
            if said := (home / MARK).read_text(errors="replace"):
                return said == _SAYS
        except OSError:
            break
        time.sleep(0.01)
    with suppress(OSError):
        conf = (home / "data" / "postgresql.conf").read_text(errors="replace")
        return (home / "data" / "PG_VERSION").is_file() and bool(_OLDER.search(conf))
    return False
