"""What a request must be before the API sees it: from this computer, of limited size, JSON, and with its path intact.

Plain ASGI, with nothing of FastAPI: a body is counted while it arrives, so that one without Content-Length is bounded
too.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Collection, MutableMapping
from typing import Any
from urllib.parse import unquote, urlsplit

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[MutableMapping[str, Any], Receive, Send], Awaitable[None]]

MAX_BODY = 1024 * 1024  # bytes
DISCARD_AT_MOST = 16 * MAX_BODY  # bytes read and dropped, so that a client which still sends learns why it is refused
LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})
_READING = {"GET", "HEAD", "OPTIONS"}


class Refused(Exception):
    """The request goes no further; status and a sentence."""

    def __init__(self, status: int, detail: str) -> None:
        super().__init__(detail)
        self.status, self.detail = status, detail


class Gate:
    """Lets through requests for `hosts` (None: any), and calls that change something only from pages of the API itself.

    A web page that a person visits can send requests to their own computer, under its own Origin, or under its
    own name that it points to 127.0.0.1. Both are refused here.
    """

    def __init__(self, application: Application, hosts: Collection[str] | None = LOOPBACK) -> None:
        self.application, self.hosts = application, hosts

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        """Hands the request on with its whole body, or answers it with one sentence."""
        if scope["type"] != "http":
            return await self.application(scope, receive, send)
        try:
            headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
            self._check_sender(scope["method"], headers)
            body = await _whole_body(receive)
            if body is None:  # the client went away in the middle: half a body is no request
                return None
            if body:
                _check_json(headers)
        except Refused as refused:
            return await _answer(send, refused)
        await self.application({**scope, "path": segments(scope)}, _replayed(body, receive), send)

    def _check_sender(self, method: str, headers: dict[str, str]) -> None:
        host = headers.get("host", "")
        if self.hosts is not None and _hostname(host) not in self.hosts:
            names = ", ".join(sorted(self.hosts))
            raise Refused(403, f"This API answers to {names}, not to {host!r:.100}. Nothing was changed.")
        origin = headers.get("origin")
        if method not in _READING and origin is not None and origin.partition("://")[2] != host:
            raise Refused(403, f"A page from {origin!r:.100} may not change anything here. Nothing was changed.")


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


def _hostname(host: str) -> str:
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""


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
    await send({"type": "http.response.start", "status": refused.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
