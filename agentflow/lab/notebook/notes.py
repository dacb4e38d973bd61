"""A few sentences as a notebook shows them: as text, and as HTML that is readable in both themes."""

from __future__ import annotations

import html
import re
from collections.abc import Sequence
from dataclasses import dataclass

from ..pictures.saved import saved
from .tables import Table


def as_html(line: str) -> str:
    """The sentence, escaped; text between backticks becomes code."""
    return re.sub(r"`([^`\s](?:[^`]*[^`\s])?)`", r"<code>\1</code>", html.escape(line))


@dataclass(frozen=True)
class Notes:
    """Sentences, of which the first is shown in bold, with or without a table below them."""

    lines: Sequence[str]
    table: Table | None = None

    def __repr__(self) -> str:
        return "\n".join([*self.lines, *(["", repr(self.table)] if self.table is not None else [])])

    def to_html(self) -> str:
        """The sentences and the table, without the style sheet."""
        first, *others = [as_html(line) for line in self.lines] or [""]
        below = "".join(f"<p>{line}</p>" for line in others)
        return f"<p><b>{first}</b></p>{below}{self.table.to_html() if self.table is not None else ''}"

    def _repr_html_(self) -> str:
        return saved(self.to_html())
