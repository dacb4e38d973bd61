"""Ready workflows that no worker can take, each with the reason: PostgreSQL refuses the claim, or a clock was set back."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from .aside import LOOKED_AT, OF_NO_ROW, refused_claims
from .database import Database
from .model import Boundary
from .statements import command

NAMED = 100


@dataclass(frozen=True)
class Stuck:
    """One workflow that no worker can take: what is the matter with it, and what helps."""

    workflow: str
    says: str
    mend: str


@dataclass(frozen=True)
class StuckWorkflows:
    """What was found (None: nobody could look), and what else is to be said about it."""

    found: Sequence[Stuck] | None
    says: str

    def sentences(self) -> Iterator[str]:
        """A sentence for each workflow, or why there is none; nothing if nothing is stuck."""
        for one in (self.found or ())[:NAMED]:
            yield f"Workflow {one.workflow!r} {one.says}: {one.mend}."
        if self.found is None or len(self.found) > NAMED:
            yield self.says


def look_for_stuck(database: Database) -> StuckWorkflows:
    """Looks for workflows that no worker can take: among the oldest that are due, and among all that are due later or held.

    Changes nothing: claims are rehearsed. Raises AgentFlowError only for what is no matter of rights or outages.
    """
    try:
        found = [*_refused(database), *_stranded(database)]
    except OF_NO_ROW as unseen:
        why = str(unseen.__cause__ or unseen).strip().partition("\n")[0]
        return StuckWorkflows(None, f"Whether a worker can take every ready workflow was not observed ({why}).")
    if len(found) > NAMED:
        return StuckWorkflows(found, f"{len(found) - NAMED} more workflows are stuck.")
    return StuckWorkflows(
        found, f"No ready workflow is stuck; the claims of the oldest, at most {LOOKED_AT}, were rehearsed."
    )


def _refused(database: Database) -> Iterator[Stuck]:
    claim: dict[str, Any] = {
        "p_worker": "nobody",
        "p_names": None,
        "p_ids": [],
        "p_lease": timedelta(0),
        "p_crash_budget": 0,
    }
    for workflow, why in refused_claims(database, claim):
        says = f"cannot be claimed ({why.partition(' Nothing was')[0].rstrip('.')})"
        yield Stuck(
            workflow, says, "correct its row, or the rule that refuses it, or cancel it (engine.cancel_workflow)"
        )


def _stranded(database: Database) -> Iterator[Stuck]:
    for row in database.read("stranded", {}):
        what = f"is held by {row['lease_owner']}" if row["lease_owner"] else "is not due"
        says = f"{what} until {row['until']}, by a clock that was ahead and was set back"
        yield Stuck(row["id"], says, f"{command('free', database.schema)} frees it")


def free(database: Database) -> list[str]:
    """Makes all that a clock set back has left ahead due now, or held no longer than its lease; returns their ids.

    Transaction: free, once for each.
    """
    stranded = [row["id"] for row in database.read("stranded", {})]
    freed = {one: database.transact(Boundary("free", "before", workflow=one), {"p_workflow": one}) for one in stranded}
    return [one for one, (rows, in_doubt) in freed.items() if rows or in_doubt]
