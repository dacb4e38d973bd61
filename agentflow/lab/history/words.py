"""Small pieces of sentences that several rooms need."""

from __future__ import annotations


def counted(number: int, one: str, more: str = "") -> str:
    """The number with its noun, such as `1 entry` and `2 entries`; without `more`, an s makes the plural."""
    return f"{number} {one if number == 1 else more or one + 's'}"
