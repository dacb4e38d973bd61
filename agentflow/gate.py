"""What a request must be before the API sees it: sent to us, not by a foreign page, with the token, of limited size, JSON.

Its path reaches the API intact, with a slash inside an id.

Plain ASGI, with nothing of FastAPI: a body is counted while it arrives, so that one without Content-Length is bounded
too.
"""

from __future__ import annotations

import hmac
import json
import os
import re
import secrets
import stat
import tempfile
from collections.abc import Awaitable, Callable, Collection, MutableMapping
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from .errors import AgentFlowError
from .home import make

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[MutableMapping[str, Any], Receive, Send], Awaitable[None]]

MAX_BODY = 1024 * 1024  # bytes
DISCARD_AT_MOST = 16 * MAX_BODY  # bytes read and dropped, so that a client which still sends learns why it is refused
LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})
_HOST = re.compile(r"(\[[0-9a-f:.]+\]|[a-z0-9._-]+)(:[0-9]{1,5})?")
_GUARDING = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data:; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-store",
}
"""What every answer tells a browser: no page frames it, and the page of /docs asks nobody else."""


def authorization(home: Path) -> tuple[Path, str]:
    """The file of this home with the header that every request carries, and its token; made when it is asked for first.

    It is one line, `Authorization: Bearer TOKEN`, which `curl -H @FILE` reads. Raises AgentFlowError if it is not ours alone,
    ServerError if the home is not.
    """
    file = home / "api-authorization"
    make(home)
    if not os.path.lexists(file):
        descriptor, fresh = tempfile.mkstemp(prefix=f"{file.name}.new-", dir=home)  # 0600
        with open(descriptor, "w") as new:
            new.write(f"Authorization: Bearer {secrets.token_urlsafe(32)}\n")
        with suppress(FileExistsError):  # another process was first; its token is whole
            os.link(fresh, file)
        os.unlink(fresh)
    try:
        with open(os.open(file, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0))) as kept:
            facts, line = os.fstat(kept.fileno()), kept.read(200)
    except (OSError, UnicodeDecodeError):
        facts, line = None, ""
    ours = facts and facts.st_uid == getattr(os, "geteuid", int)() and stat.S_ISREG(facts.st_mode)
    private = facts and (os.name == "nt" or not facts.st_mode & 0o077)
    found = re.fullmatch(r"Authorization: Bearer ([\w-]{43})\n", line)
    if ours and private and found:
        return file, found[1]
    raise AgentFlowError(
        f"{file} should hold the API's token, readable by you alone, but it is a link, damaged, or others can read it. "
        "Nothing was started; delete it, and the next start makes a new one."
    )


class Refused(Exception):
    """The request goes no further; status and a sentence."""

    def __init__(self, status: int, detail: str) -> None:
        super().__init__(detail)
        self.status, self.detail = status, detail


class Gate:
    """Lets through requests for `hosts`, from pages of the API itself or from no page, with the token.

    A web page that a person visits can send requests to their own computer, under its own Origin, or under its
    own name that it points to 127.0.0.1; another user of this computer can send any. Only whether the API is up, and the
    page /docs with its files and description, which hold no data, are open.
    """

    def __init__(self, application: Application, *, token: str, hosts: Collection[str] = LOOPBACK) -> None:
        self.application, self.hosts = application, {host.lower() for host in hosts}
        self.header = f"Bearer {token}".encode()

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        """Hands the request on with its whole body, or answers it with one sentence."""
        if scope["type"] == "lifespan":
            return await self.application(scope, receive, send)

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], *((k.encode(), v.encode()) for k, v in _GUARDING.items())]
            await send(message)

        path = segments(scope)
        try:
            headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
            self._check_sender(scope, path, headers)
            body = await _whole_body(receive)
            if body is None:  # the client went away in the middle: half a body is no request
                return None
            if body:
                _check_json(headers)
        except Refused as refused:
            return await _answer(guarded, refused)
        await self.application({**scope, "path": path}, _replayed(body, receive), guarded)

    def _check_sender(self, scope: MutableMapping[str, Any], path: str, headers: dict[str, str]) -> None:
        host, origin = headers.get("host", "").lower(), headers.get("origin")
        named = _HOST.fullmatch(host)
        if not named or named[1].strip("[]") not in self.hosts:
            names = ", ".join(sorted(self.hosts))
            raise Refused(
                403,
                f"This API answers to {names}, not to {host!r:.100} (--allow-host adds a name). Nothing was changed.",
            )
        opened = path == "/docs" and headers.get("sec-fetch-mode") == "navigate"  # somebody follows a link to the page
        page = headers.get("sec-fetch-site", "none")
        if (page not in {"same-origin", "none"} and not opened) or origin not in {None, f"{scope['scheme']}://{host}"}:
            raise Refused(403, f"A page from {origin or page!r:.100} may not ask anything here. Nothing was changed.")
        is_open = path in {"/health", "/openapi.json", "/docs"} or path.startswith("/docs/")
        if not is_open and not hmac.compare_digest(headers.get("authorization", "").encode("latin-1"), self.header):
            raise Refused(
                401, "This API wants its token (Authorization: Bearer ...), which this request does not have. Nothing was "
                "changed; `agentflow api` prints a link to /docs and a command for curl that have it."
            )  # fmt: skip


async def _whole_body(receive: Receive) -> bytes | None:
    """The body, at most MAX_BODY bytes, or None if the client went away. Raises Refused."""
    body, length = bytearray(), 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        chunk = message.get("body", b"")
        length += len(chunk)
        if length <= MAX_BODY:
            body += chunk
        else:
            body.clear()
        if length > DISCARD_AT_MOST or not message.get("more_body", False):
            break
    if length > MAX_BODY:
        raise Refused(413, f"The body has more than {MAX_BODY:,} bytes. Nothing was changed; send less at once.")
    return bytes(body)


def _check_json(headers: dict[str, str]) -> None:
    kind = headers.get("content-type", "")
    if kind.partition(";")[0].strip().lower() != "application/json":
        but = f"not {kind[:100]!r}" if kind else "but this one has no content type"
        raise Refused(415, f"A body must be application/json, {but}. Nothing was changed.")


def _replayed(body: bytes, receive: Receive) -> Receive:
    """The body as one message, then whatever comes (the client went away)."""
    waiting = [{"type": "http.request", "body": body, "more_body": False}]

    async def next_message() -> Message:
        return waiting.pop() if waiting else await receive()

    return next_message


def segments(scope: MutableMapping[str, Any]) -> str:
    """The path decoded segment by segment: only a slash inside a segment is still %2F, and a per cent sign %25.

    So an id that holds a slash is one segment; `spelled()` gives the segment's own text.
    """
    raw = scope.get("raw_path")
    if raw is None:
        return str(scope["path"])
    parts = (unquote(part, errors="surrogateescape") for part in raw.decode("latin-1").split("/"))
    return "/".join(part.replace("%", "%25").replace("/", "%2F") for part in parts)


def spelled(segment: str) -> str:
    """The text of a path segment from `segments()`."""
    return segment.replace("%2F", "/").replace("%25", "%")


async def _answer(send: Send, refused: Refused) -> None:
    body = json.dumps({"detail": refused.detail}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    if refused.status == 413:
        headers.append((b"connection", b"close"))
    elif refused.status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    await send({"type": "http.response.start", "status": refused.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
