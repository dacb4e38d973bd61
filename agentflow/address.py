"""Where PostgreSQL is: a URL as SQLAlchemy reads it, without importing SQLAlchemy for it."""

from __future__ import annotations

import re
from urllib.parse import quote, unquote

from .errors import BadName

# SQLAlchemy's grammar: driver, user, password (any sign but @), and the rest. What was once read as a password stays one.
_URL = re.compile(
    r"([\w+]+)://(?:([^:/]*)(?::([^@]*))?@)?+((?:\[[^/?]+\]|[^/:?]+)?(?::[0-9]+)?(?:/[^?]*)?(?:\?.*)?)", re.DOTALL
)


def addresses(url: str) -> tuple[str, str]:
    """Returns the URL in one spelling, and without its password. Raises BadName, which does not repeat the URL."""
    found = _URL.fullmatch(url)
    if not found:
        raise BadName("DATABASE_URL is not a valid URL. Expected postgresql://user:password@host:5432/database.")
    driver, user, password, rest = found.groups()
    if driver not in ("postgres", "postgresql", "postgresql+psycopg"):
        raise BadName(f"DATABASE_URL starts with {driver}://, but AgentFlow needs postgresql://.")
    user, password = (part and quote(unquote(part), safe="+") for part in (user, password))
    start, secret = f"postgresql+psycopg://{user or ''}", "" if password is None else f":{password}"
    rest = rest if user is None else f"@{rest}"
    return start + secret + rest, start + (secret and ":***") + re.sub(r"(password=)[^&]*", r"\1***", rest)
