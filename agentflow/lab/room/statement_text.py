"""A statement as PostgreSQL was asked it: the text with its bound values filled in, and the deciding clause in bold.

A worker's name loses the suffix that is new for each start, and values that vary are left out, so the same moves show the
same text on every machine.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from ...statements import TRANSACTIONS
from ..history.entries import worker_name
from ..pictures.svg import escaped

LONGEST_LITERAL = 120  # characters
_A_LITERAL = r"(?:'(?:[^']|'')*'|\d+)"


def filled(text: str, params: Mapping[str, Any]) -> str:
    """The text with every bind as a literal."""
    return re.sub(r"%\((\w+)\)s", lambda found: literal(found[1], params.get(found[1])), text).replace("%%", "%")


def literal(bind: str, value: Any) -> str:
    """A bound value as SQL writes it; long ones are cut and end in an ellipsis."""
    if value is None:
        return "NULL"
    if isinstance(value, bool | int | float):
        return str(value).lower()
    if isinstance(value, timedelta):
        return "'1 day'" if value >= timedelta(days=1) else f"'{value.total_seconds():g} s'"
    if isinstance(value, list | tuple):
        return f"ARRAY[{', '.join(literal(bind, one) for one in value)}]"
    shown = worker_name(value) if bind == "p_worker" else _steady(bind, str(value))
    if len(shown) > LONGEST_LITERAL:
        shown = shown[: LONGEST_LITERAL - 1] + "…"
    return "'" + shown.replace("'", "''") + "'"


def _steady(bind: str, text: str) -> str:
    """JSON without what differs from run to run: how long a replay took, where a file lies."""
    if bind not in ("p_detail", "p_error"):
        return text
    value = json.loads(text)
    if isinstance(value, dict):
        value |= dict.fromkeys(value.keys() & {"replay_ms", "traceback"}, "…")
    return json.dumps(value, ensure_ascii=False)


def marked(name: str, text: str) -> str:
    """The filled text as HTML, everything escaped, the clauses that decide the race in bold."""
    clauses = "|".join(map(re.escape, TRANSACTIONS[name].decides))
    clauses = re.sub(r"%\\\(\w+\\\)s", lambda _: _A_LITERAL, clauses)
    decides, *refuses = re.split(r"(?<=\nrefused AS)", text)  # where the clause only names the guard
    parts = map(escaped, re.split(f"({clauses})", decides))
    return "".join([*(f"<b>{part}</b>" if n % 2 else part for n, part in enumerate(parts)), *map(escaped, refuses)])
