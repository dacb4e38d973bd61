"""The gate that every value passes before it is written.

A value either comes back from PostgreSQL exactly as it went in, or is refused by name before anything is written. Values are
stored as `json`, of which PostgreSQL keeps the text, so key order, -0.0 and 1e22 survive. The column of events is JSONB, which
would change these three, so it holds each payload as its JSON text.
"""

from __future__ import annotations

import json
import math
from typing import Any

from .errors import BadName, BadSetting, UnfaithfulValue

MAX_VALUE_BYTES = 16 * 1024 * 1024
MAX_DEPTH = 200
MAX_INT_BITS = 14_000  # Python itself refuses to print integers beyond 4,300 digits
MAX_ID = 200
MAX_EVENT_NAME = 10_000
MAX_KEY = 4 * MAX_ID + 1  # what idempotency_key() makes of the longest workflow id and key
# In seconds: a statement needs some time, a date must be one that Python can read, and an operating system waits for days.
# What is counted goes one beyond its budget, and PostgreSQL's integer holds 2^31 - 1.
_CENTURY, _MOST = 3_155_760_000.0, 2**31 - 2
SETTINGS: dict[str, tuple[Any, Any]] = {
    "lease_seconds": (0.1, _CENTURY), "first_delay": (0.001, _CENTURY), "max_delay": (0.001, _CENTURY),
    "poll_seconds": (0.001, 86_400.0), "max_attempts": (1, _MOST), "crash_budget": (0, _MOST),
    "unknown_outcome": ("call_again", "look_up"),
}  # fmt: skip
"""The lowest and the highest value of each setting of a Policy and a Worker, or the words that it may be."""
# Kept, because dumps() makes one each time.
_encode = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode


def to_json(value: Any, *, workflow: str, step: str) -> str:
    """Returns the JSON text of a value that survives the database exactly.

    Raises UnfaithfulValue with the path inside the value (`$.loss[0]`).
    """
    try:
        _check(value, "$", 0)
        text = _encode(value)
    except _Refused as refused:
        raise UnfaithfulValue(workflow, step, refused.path, refused.reason) from None
    size = len(text) if text.isascii() else len(text.encode())
    if size > MAX_VALUE_BYTES:
        raise UnfaithfulValue(
            workflow, step, "$", f"{size:,} bytes of JSON are more than the limit of {MAX_VALUE_BYTES:,}"
        )
    return text


def fingerprint(value: Any, *, workflow: str, step: str) -> str:
    """Returns the same text for values of equal types and content, whatever the order of keys. Raises UnfaithfulValue."""
    to_json(value, workflow=workflow, step=step)
    return json.dumps(value, sort_keys=True)


class _Refused(Exception):
    def __init__(self, path: str, reason: str) -> None:
        self.path, self.reason = path, reason


def _check(value: Any, path: str, depth: int) -> None:
    kind = type(value)
    if kind is str:
        _check_text(value, path)
    elif kind is dict:
        _check_depth(path, depth)
        for key, item in value.items():
            if type(key) is not str:  # its own repr() may raise, so only its type is told
                raise _Refused(path, f"a key is {type(key).__name__}, but JSON keys are text")
            _check_text(key, f"{path}.{key!r:.80}")
            _check(item, f"{path}.{key:.80}", depth + 1)
    elif kind is list:
        _check_depth(path, depth)
        for index, item in enumerate(value):
            _check(item, f"{path}[{index}]", depth + 1)
    elif kind is float:
        if not math.isfinite(value):
            raise _Refused(path, f"{value} is not a JSON number")
    elif kind is int:
        if value.bit_length() > MAX_INT_BITS:
            raise _Refused(path, f"an integer of {value.bit_length():,} bits is too large to be read back")
    elif value is not None and kind is not bool:
        name = f"{kind.__module__}.{kind.__qualname__}".removeprefix("builtins.")
        raise _Refused(path, f"{name} is not a JSON value and would come back as something else")


def _check_depth(path: str, depth: int) -> None:
    if depth >= MAX_DEPTH:
        raise _Refused(path[:200], f"nested deeper than {MAX_DEPTH} levels (or containing itself)")


def _check_text(text: str, path: str) -> None:
    if "\0" in text:
        raise _Refused(path, "the text holds a NUL character, which PostgreSQL cannot store")
    if not text.isascii():
        try:
            text.encode("utf-8")
        except UnicodeEncodeError:
            raise _Refused(path, "the text holds a lone surrogate, which is not a character") from None


def check_name(kind: str, text: Any, limit: int = MAX_ID) -> str:
    """Returns the name if it is text that can be stored and found again literally. Raises BadName."""
    kind = kind.capitalize()
    if type(text) is not str:
        raise BadName(f"{kind} must be text, not {type(text).__name__}. Nothing was written; pass a text.")
    if not text or len(text) > limit:
        raise BadName(
            f"{kind} must have 1 to {limit:,} characters, but has {len(text):,}. Nothing was written; choose another."
        )
    try:
        _check_text(text, "$")
    except _Refused as refused:
        raise BadName(f"{kind} {text!r:.80}: {refused.reason}. Nothing was written; choose another.") from None
    return text


def check_settings(**settings: Any) -> None:
    """Checks that each setting has a value that a worker can use, as SETTINGS says. Raises BadSetting, which names both."""
    for name, value in settings.items():
        low, high = SETTINGS[name]
        kinds: Any = str if isinstance(low, str) else int if isinstance(low, int) else int | float
        right = isinstance(value, kinds) and not isinstance(value, bool)
        if not right or not (value in (low, high) if kinds is str else low <= value <= high):
            try:
                found = f"{value!r:.80}"
            except Exception:  # an integer of too many digits, and what cannot print itself
                found = f"this {type(value).__name__}"
            wanted = (
                f"{low} or {high}" if kinds is str else f"a {'whole ' * (kinds is int)}number from {low:,} to {high:,}"
            )
            raise BadSetting(f"Setting {name} must be {wanted}, not {found}. Nothing was started; choose another.")


def idempotency_key(workflow_id: str, key: str) -> str:
    """Returns `<workflow id>:<key>`, unique for each pair: a colon or per cent sign inside the key is percent-encoded."""
    return f"{workflow_id}:{key.replace('%', '%25').replace(':', '%3A')}"
