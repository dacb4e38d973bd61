"""Orders of a soak that went another way than one of the same input that nobody disturbed, read from the rows."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from ...engine import Engine
from ..history.words import brief
from ..notebook.tables import query

_MOST = 20  # orders that are looked at one by one

_DID = """\
WITH did AS (
    SELECT id, input::text AS given, fence_token = 1 AS calm,
           coalesce((SELECT array_agg(action ORDER BY action) FROM action_intents WHERE workflow_id = w.id), '{}') AS actions
    FROM workflows AS w WHERE status = 'completed'
),
calm AS (
    SELECT given, min(id) AS calm_id, array_agg(DISTINCT actions::text) AS ways FROM did WHERE calm GROUP BY given
)
SELECT id, calm_id FROM did JOIN calm USING (given) WHERE NOT calm AND actions::text <> ALL (ways)
ORDER BY id LIMIT :most"""
_CALLS = """\
SELECT kind, step_id, CASE WHEN kind <> 'side_effect' THEN coalesce(value, error)::text END AS answer,
       (SELECT action FROM action_intents AS i WHERE i.workflow_id = s.workflow_id AND i.key = s.step_id) AS action
FROM steps AS s WHERE workflow_id = :id ORDER BY position"""


def other_ways(engine: Engine) -> Iterator[str]:
    """A sentence for each order whose actions are other than those of an undisturbed order of the same input.

    Where a step or an event said something else first, another way is right. An input of which no order was left undisturbed is
    compared with nothing.
    """
    for row in query(engine, _DID, most=_MOST):
        mine, calm = (query(engine, _CALLS, id=one) for one in (row["id"], row["calm_id"]))
        if _parted_by_an_action(mine, calm):
            yield (
                f"workflow {brief(row['id'], 80)} planned {_actions(mine)}, and {brief(row['calm_id'], 80)}, which had the same "
                f"input and was not disturbed, {_actions(calm)}: by what a tool answers when it is called again"
            )


def _parted_by_an_action(mine: Sequence[Any], calm: Sequence[Any]) -> bool:
    """Whether the two ask for something else before a step or an event answered them differently."""
    for one, other in zip(mine, calm, strict=False):
        if (one["kind"], one["step_id"]) != (other["kind"], other["step_id"]):
            return True
        if one["answer"] != other["answer"]:
            return False
    return len(mine) != len(calm)


def _actions(calls: Sequence[Any]) -> str:
    return json.dumps([one["action"] for one in calls if one["kind"] == "side_effect"])
