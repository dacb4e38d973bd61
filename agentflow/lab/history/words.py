"""Words that sentences and pictures share: a number with its noun, and what stands in a picture's box."""

from __future__ import annotations

from collections.abc import Sequence

EFFECT_LOST = ("effect lost", "acknowledged, and nothing happened")
IN_THE_GAP = ("acknowledgment gap", "effect exists, engine does not know")
REFUSED = "refused, nothing changed"


def counted(number: int, one: str, more: str = "") -> str:
    """The number with its noun, such as `1 entry` and `2 entries`; without `more`, an s makes the plural."""
    return f"{number} {one if number == 1 else more or one + 's'}"


def brief(text: str, most: int) -> str:
    """The text on one line, at most so long; what a terminal would obey and nobody could see is written as an escape."""
    plain = "".join(c if c.isprintable() else repr(c)[1:-1] for c in text[: most + 1])
    return plain if len(plain) <= most else plain[: most - 1] + "…"


def by(names: Sequence[str]) -> str:
    """` by token, owner and lease`; nothing if there is no name."""
    return f" by {' and '.join(filter(None, (', '.join(names[:-1]), names[-1])))}" if names else ""


def doubled(effects: int) -> str:
    """What is wrong with more than one effect of one action."""
    return f"one action intent, {'two' if effects == 2 else effects} effects"


def letters(number: int) -> str:
    """1 is a, 26 is z, 27 is aa."""
    return (letters((number - 1) // 26) if number > 26 else "") + chr(97 + (number - 1) % 26)
