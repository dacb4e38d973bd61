"""The shop of the README, as a stranger would copy it, and what its provider's own table holds."""

from __future__ import annotations

import re
import sqlite3
from pathlib import Path

from tests.support.programs import ROOT


def shop_of_the_readme() -> str:
    """The module's text."""
    (found,) = re.findall(
        r'```python\n(""\"shop\.py: .*?)```', (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL
    )
    return str(found)


def open_shop(folder: Path, orders: int = 12) -> None:
    """Writes the shop and its orders into the folder."""
    (folder / "shop.py").write_text(shop_of_the_readme())
    (folder / "orders.jsonl").write_text("".join(f'{{"total": {n}}}\n' for n in range(orders)))


def books(folder: Path) -> list[tuple[str, str, int, int]]:
    """The provider's table: key, workflow, total and calls."""
    database = sqlite3.connect(folder / "shop.sqlite")
    try:
        return database.execute("SELECT key, workflow, total, calls FROM charges").fetchall()
    finally:
        database.close()
