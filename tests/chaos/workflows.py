"""The five kinds of workflow that a run of chaos is made of: the package's three agents, an order, and a slow one.

Their steps give another value each time that they run, so that a result which ran twice and was recorded twice would show.
`judge` tells each of them once more, without importing them.
"""

from __future__ import annotations

import os
import random
import time
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from agentflow.errors import StepFailed
from tests.chaos.shop import Shop

# The world tells its workers where the shop's books are, and how long a slow step takes: longer than a lease.
RECORD, SEED, SLOW = "AGENTFLOW_CHAOS_RECORD", "AGENTFLOW_CHAOS_SEED", "AGENTFLOW_CHAOS_SLOW"
SHOP = Shop(Path(os.environ.get(RECORD, "shop.sqlite")), int(os.environ.get(SEED, "0")))


def order(run: Any, request: Mapping[str, Any]) -> Any:
    """Quote, reserve, charge and ship; or give back what was reserved if the card is declined."""
    quote = run.step("quote", lambda: {"total": random.randrange(10**9), "number": uuid.uuid4().hex})
    reserved = run.side_effect(
        "reserve", key="reserve", tool=SHOP, arguments={"item": request["item"], "quote": quote["number"]}
    )
    try:
        paid = run.side_effect("charge", key="charge", tool=SHOP, arguments={"total": quote["total"]})
    except StepFailed:
        back = run.side_effect("give-back", key="back", tool=SHOP, arguments={"reservation": reserved["receipt"]})
        return {"shipped": False, "quote": quote["number"], "receipt": back["receipt"]}
    sent = run.side_effect("ship", key="ship", tool=SHOP, arguments={"paid": paid["receipt"]})
    return {"shipped": True, "quote": quote["number"], "receipt": sent["receipt"]}


def slow(run: Any, request: Mapping[str, Any]) -> Any:
    """A step that takes longer than a lease, one that often fails, perhaps for good, and one action."""

    def take_long() -> str:
        time.sleep(float(os.environ[SLOW]))
        return uuid.uuid4().hex

    def fetch() -> str:
        if random.random() < 0.4:
            raise ConnectionError("the page did not answer")
        return uuid.uuid4().hex

    long = run.step("long", take_long)
    try:
        page = run.step("fetch", fetch)
    except StepFailed:
        page = None
    told = run.side_effect("tell", key="tell", arguments={"long": long, "page": page})
    return {"long": long, "page": page, "told": told}
