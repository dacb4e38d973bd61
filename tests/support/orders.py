"""Workflows that another process can import at little cost, each with one thing that a single process does not show."""

from __future__ import annotations

import os
import threading
import uuid
from pathlib import Path
from typing import Any

AT_IMPORT = uuid.uuid4().hex
SEEN: set[str] = set()
PRICES: dict[str, int] = {}


def order(run: Any, given: Any) -> Any:
    """Decides, and charges."""
    price = run.step("price", lambda: given["total"] * 2)
    return run.side_effect("charge", key="charge", arguments=price)


def by_set(run: Any, given: Any) -> Any:
    """The order of a set of texts is each process's own."""
    return run.side_effect("pack", key="pack", arguments=[*{"bulb", "cable", "desk", "fan", "lamp", "rug", "shelf"}])


def by_hash(run: Any, given: Any) -> Any:
    """A key from hash() of a text."""
    return run.side_effect("charge", key=f"charge-{hash('order-7')}")


def by_import(run: Any, given: Any) -> Any:
    """A value made when the module was imported."""
    run.step("look", lambda: 1)
    return AT_IMPORT


def by_process(run: Any, given: Any) -> Any:
    """A step that only one process has."""
    return run.step(f"look-{os.getpid()}", lambda: 1)


def guarded(run: Any, given: Any) -> Any:
    """A step writes into a file, once for each process."""

    def pay() -> None:
        if run.run_id in SEEN:
            return
        SEEN.add(run.run_id)
        with Path(given).open("a") as book:
            book.write("paid\n")

    run.step("pay", pay)
    return run.side_effect("mail", key="mail")


def from_memory(run: Any, given: Any) -> Any:
    """What a step found is kept beside the record."""
    run.step("look", lambda: PRICES.update(total=300))
    return run.side_effect("charge", key="charge", arguments=PRICES.get("total", 0))


def ships_if_new(run: Any, given: Any) -> Any:
    """Ships only if its tool says that the charge is new."""
    if run.side_effect("charge", key="charge", arguments=given) == "new":
        run.side_effect("ship", key="ship", arguments=given)


def keeps_keys(call: Any) -> str:
    """A tool with a file for each key in the folder that is its argument."""
    try:
        Path(call.arguments, str(call.idempotency_key)).touch(exist_ok=False)
    except FileExistsError:
        return "again"
    return "new"


def meets_another(run: Any, given: Any) -> Any:
    """A step writes what this process makes of hash(), and waits until another process has written, too."""

    def meet() -> int:
        folder = Path(given)
        (folder / str(os.getpid())).write_text(str(hash("order-7")))
        while len([*folder.iterdir()]) < 2:
            threading.Event().wait(0.01)
        return 1

    return run.step("meet", meet)


def raises_after_its_payment(run: Any, given: Any) -> Any:
    """Pays, and fails."""
    run.side_effect("pay", key="pay")
    raise KeyError("paid")


def steps_fail(run: Any, given: Any) -> Any:
    """Its step cannot succeed."""
    return run.step("divide", lambda: 1 / 0)
