"""Where PostgreSQL is, in any spelling of libpq's and SQLAlchemy's, and a connection there that asks the shell for nothing."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from urllib.parse import quote, unquote, unquote_plus

import psycopg
from psycopg.conninfo import conninfo_to_dict
from psycopg.pq import Conninfo

from .errors import BadName

# As libpq reads it, or else as SQLAlchemy does, where a password may hold a bare slash. No second @ and no space: a part of a
# password that was not escaped would be taken for a host or a name, and printed.
_HOST = r"(?:\[[^]/?@\s]+\]|[^]\[/:?,@\s]*)(?::[0-9]*)?"
_URLS = [
    re.compile(
        rf"([\w+]+)://(?:([^:/@]*)(?::({sign}*))?@)?+({_HOST}(?:,{_HOST})*)(?:/([^?@\s]*))?(?:\?(\S*))?", re.DOTALL
    )
    for sign in ("[^/@]", "[^@]")
]
_SHOWN = ("user", "service", "host", "hostaddr", "port", "dbname")
_OPTIONS = {option.keyword.decode(): option for option in Conninfo.get_defaults()}
_BY_VARIABLE = {option.envvar.decode(): option for option in _OPTIONS.values() if option.envvar}
SECRETS = [name for name, option in _OPTIONS.items() if option.dispchar]
_PART = re.compile(r"\[?([^]]*?)\]?(?::([0-9]*))?")
# What libpq asks the shell for, and takes no word for "as if it were not set".
_UNNAMED = {
    "PGDATESTYLE", "PGGEQO", "PGMAXPROTOCOLVERSION", "PGMINPROTOCOLVERSION", "PGOAUTHDEBUG", "PGREQUIRESSL", "PGSERVICE",
    "PGSERVICEFILE", "PGSSLCERTMODE", "PGSYSCONFDIR", "PGTZ", "PGUSER",
}  # fmt: skip


def addresses(url: str) -> tuple[str, str]:
    """Returns the address in one spelling, and as it may be shown. Raises BadName, which does not repeat the address."""
    given = parts(url)
    password = quote(given.pop("password", ""), safe="")
    shown = {name: value for name, value in given.items() if name in _SHOWN}
    return _spelled(given, password), _spelled(shown, password and "***")


def parts(url: str) -> dict[str, str]:
    """Returns what the address says, under libpq's names. Raises BadName."""
    try:
        url.encode()
        given = _of_url(url) if "://" in url or "=" not in url else conninfo_to_dict(url)
        if given and "://" not in url and any(_is_more(name, str(value)) for name, value in given.items()):
            given = None
    except (psycopg.Error, UnicodeError):  # their words hold what they could not read
        given = None
    if given is None or any("\0" in str(value) for value in given.values()):
        raise BadName(
            "DATABASE_URL is not a valid URL. Expected postgresql://user:password@host:5432/database, where a sign such as @, "
            "/, ?, #, ;, = or a space is escaped (%40, %2F, %3F, %23, %3B, %3D, %20), all in UTF-8."
        )
    return {name: str(value) for name, value in given.items() if value != ""}


def _is_more(name: str, value: str) -> bool:
    """Whether this may be two values, with a password in the second: they were parted with a sign that parts nothing."""
    return name not in SECRETS and bool(re.search("[;#]" if name == "options" else "[;#=]", value))


def _of_url(url: str) -> dict[str, Any] | None:
    if not (found := _URLS[0].fullmatch(url) or _URLS[1].fullmatch(url)):
        return None
    driver, user, password, hosts, name, query = found.groups(default="")
    if driver not in ("postgres", "postgresql", "postgresql+psycopg"):
        raise BadName(f"DATABASE_URL starts with {driver}://, but AgentFlow needs postgresql://.")
    several = [_PART.fullmatch(one).groups(default="") for one in hosts.split(",")]  # type: ignore[union-attr]
    host, port = (",".join(one) for one in zip(*several, strict=True))
    raw = {"user": user, "password": password, "host": host, "port": port.strip(",") and port, "dbname": name}
    if any(_is_more(*one) for one in raw.items()):
        return None
    given = {name: unquote(value, errors="strict") for name, value in raw.items()}
    decoded = unquote_plus if "+" in driver else unquote  # a + is a space for SQLAlchemy, and a + for libpq
    for one in filter(None, query.split("&")):
        key, is_one, value = (decoded(part, errors="strict") for part in one.partition("="))
        key, value = ("sslmode", "require") if (key, value) == ("ssl", "true") else (key, value)
        if not is_one or _is_more(key, one.partition("=")[2]):
            return None
        if key not in _OPTIONS:
            said = "" if "@" in query else f" {key!r:.40}"
            raise BadName(
                f"DATABASE_URL has an option{said} that PostgreSQL's library does not know. Correct its name."
            )
        given[key] = value
    return given


def _spelled(given: Mapping[str, str], password: str) -> str:
    rest = dict(given)
    name, place = quote(rest.pop("dbname", ""), safe=""), ""
    who = quote(rest.pop("user", ""), safe="") + f":{password}" * bool(password)
    if re.fullmatch(r"[\w.:-]+", host := rest.get("host", "")) and re.fullmatch("[0-9]*", port := rest.get("port", "")):
        place = (f"[{host}]" if ":" in host else host) + f":{port}" * bool(port)
        rest = {key: value for key, value in rest.items() if key not in ("host", "port")}
    query = "&".join(f"{key}={quote(value)}" for key, value in rest.items())
    return f"postgresql+psycopg://{who}{'@' * bool(who)}{place}{f'/{name}' * bool(name or not place)}{'?' * bool(query)}{query}"


def connect(url: str, **settings: str) -> psycopg.Connection[Any]:
    """Connects to what the address says; what it does not say is PostgreSQL's default, not the shell's. Raises psycopg.Error."""
    given = {"connect_timeout": "5", "client_encoding": "utf8", **parts(url)} | settings
    # A service says more, in a file, and a default would be heard before it: then nothing of the shell's is left.
    hidden = {*_UNNAMED, *(_BY_VARIABLE if "service" in given else ())}
    unsaid = [option for name, option in _BY_VARIABLE.items() if name in os.environ.keys() - hidden]
    defaults = {option.keyword.decode(): (option.compiled or b"").decode() for option in unsaid}
    with _without(hidden):
        return psycopg.connect(**defaults | given, autocommit=True)  # type: ignore[arg-type]


_lock = threading.Lock()
_kept: dict[str, str] = {}
_connecting = 0


@contextmanager
def _without(names: Iterable[str]) -> Iterator[None]:
    """Takes these variables out of the environment until nobody is connecting any more."""
    global _connecting
    with _lock:
        _connecting += 1
        _kept.update({name: os.environ.pop(name) for name in names if name in os.environ})
    try:
        yield
    finally:
        with _lock:
            _connecting -= 1
            _put_back()


def _put_back(child: bool = False) -> None:
    """Puts back what was taken out, when nobody is connecting; in a forked child nobody is."""
    global _connecting
    _connecting = 0 if child else _connecting
    if not _connecting:
        os.environ.update(_kept)
        _kept.clear()
    if child:
        _lock.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_lock.acquire, after_in_parent=_lock.release, after_in_child=lambda: _put_back(child=True)
    )
