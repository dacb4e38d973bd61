"""Workflows whose claim PostgreSQL refused: one worker passes them by for a while, so that they starve no other."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from .database import Database
from .errors import AgentFlowError, DatabaseAway, PoolerInBetween, SchemaMissing
from .log import log_event

LONGEST = 60.0  # seconds
LOOKED_AT = 100  # claims that are rehearsed at once: of the oldest workflows, which a worker meets first
OF_NO_ROW = DatabaseAway, SchemaMissing, PoolerInBetween  # it could be any workflow's
_NOT_WRITTEN = "claim: a trigger let nothing be written, and raised nothing."
_Params = Mapping[str, Any]
_Rows = list[dict[str, Any]]


class Aside:
    """Which workflows are passed by, and until when; threads may share it.

    Each is asked for again, since somebody may have mended it: after a second, and then after twice as long each time.
    """

    def __init__(self) -> None:
        self._until: dict[str, tuple[float, float]] = {}  # a moment of time.monotonic(), and the pause before it

    def claimed(self, database: Database, params: _Params, claim: Callable[[_Params], _Rows]) -> _Rows:
        """What `claim` returns when it is refused no more: each row that it is refused for is logged, and passed by.

        Raises what PostgreSQL refused for another reason than one row.
        """
        while True:
            told = {**params, "p_ids": self.ids(), "p_only": False}
            try:
                rows = claim(told)
                refused = (rows[0]["chosen"], _NOT_WRITTEN) if rows and not rows[0]["id"] else None
            except OF_NO_ROW:
                raise
            except AgentFlowError:
                refused = next(refused_claims(database, told), None)
                if refused is None:
                    raise
            if refused is None:
                self._until.pop(rows[0]["id"] if rows else "", None)  # it was claimed, so nothing is wrong with it
                return rows
            said = {"workflow_id": refused[0], "error": refused[1], "next_try_seconds": self.put(refused[0])}
            log_event("claim_refused", worker_id=params["p_worker"], **said)

    def ids(self) -> list[str]:
        """Those that are passed by now."""
        now = time.monotonic()
        return [one for one, (until, _) in list(self._until.items()) if until > now]

    def put(self, workflow_id: str) -> float:
        """Passes it by from now on; returns for how many seconds."""
        pause = min(LONGEST, 2 * self._until.get(workflow_id, (0.0, 0.5))[1])
        self._until[workflow_id] = time.monotonic() + pause, pause
        return pause


def refused_claims(database: Database, params: _Params) -> Iterator[tuple[str, str]]:
    """The id of each runnable workflow whose claim PostgreSQL would refuse now, and why: of the `LOOKED_AT` oldest.

    Their claims are rehearsed, and undone. Raises DatabaseAway, SchemaMissing, PoolerInBetween.
    """
    for one in database.read("runnable", {**params, "p_most": LOOKED_AT}):
        only = {**params, "p_names": [one["name"]], "p_ids": [one["id"]], "p_only": True}
        try:
            rows = database.rehearse("claim", only)
            if rows and not rows[0]["id"]:
                yield one["id"], _NOT_WRITTEN
        except OF_NO_ROW:
            raise
        except AgentFlowError as refused:
            yield one["id"], str(refused)
