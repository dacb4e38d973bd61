"""The DataFrames that plots are drawn from, read from the rows, while workers run or after every process has died."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...engine import Engine
from ..history.belief import belief_of, with_unseen
from ..history.entries import worker_name
from ..laboratory.laboratory import data_file
from ..notebook.tables import query
from .text import PARTS

if TYPE_CHECKING:
    import pandas

_LEASES = """
SELECT workflow_id, fence_token, (detail ->> 'lease_seconds')::float8 AS lease_seconds
FROM history
WHERE transaction = 'claim'"""

_EFFECTS = """
SELECT w.id AS workflow, w.status,
       coalesce((SELECT json_agg(i ORDER BY i.created_at) FROM action_intents AS i WHERE i.workflow_id = w.id), '[]')
           AS intents,
       coalesce((SELECT json_agg(h) FROM history AS h WHERE h.workflow_id = w.id AND h.detail ->> 'tool' IS NOT NULL), '[]')
           AS own,
       coalesce((SELECT json_agg(l ORDER BY l.effect_id) FROM tool_ledger AS l WHERE l.workflow_id = w.id), '[]') AS effects
FROM workflows AS w
ORDER BY w.created_at"""

_WORK = """
SELECT worker,
       count(*) FILTER (WHERE event = 'workflow_claimed') AS claimed,
       count(*) FILTER (WHERE event = 'workflow_completed') AS completed,
       count(*) FILTER (WHERE event = 'write_refused') AS refused
FROM history
WHERE worker IS NOT NULL
GROUP BY worker
ORDER BY min(at)"""


def recoveries_frame(engine: Engine, poll_seconds: float | None = None) -> pandas.DataFrame:
    """Each recovery that ended in completion, split: `detect_ms`, `claim_ms`, `replay_ms`, `re_execute_ms`.

    Also `label` (the lease length in words), `lease_seconds` (the lost worker's), `poll_seconds` (how often an idle worker
    looks, if told), `workflow`, `worker` and `token`. A take-over that was itself killed, or whose crash nobody recorded,
    has no such split and is left out.
    """
    import pandas

    leases = {(row["workflow_id"], row["fence_token"]): row["lease_seconds"] for row in query(engine, _LEASES)}
    rows = []
    for workflow, row in {row["workflow_id"]: row for row in engine.recoveries()}.items():
        token, parts = row["fence_token"], [row[part] for part in PARTS]
        lease = leases.get((workflow, token - 1))
        if lease is not None and None not in parts:
            rows.append((f"lease {lease:g} s", lease, poll_seconds, workflow, row["worker"], token, *map(float, parts)))
    columns = ["label", "lease_seconds", "poll_seconds", "workflow", "worker", "token", *PARTS]
    return pandas.DataFrame(rows, columns=columns)


def measured_recoveries() -> pandas.DataFrame:
    """The recoveries that were measured once, for `recovery_latency(measured, own=...)`: see data/README.md.

    Raises BadRequestFile if data/recoveries.csv cannot be found.
    """
    import pandas

    return pandas.read_csv(data_file("recoveries.csv"))


def effects_frame(engine: Engine) -> pandas.DataFrame:
    """Each workflow with its planned actions, the calls of the tool and the business effects, by the world's own record.

    A workflow that gave an action to a tool of one's own that does not tell of its effects is left out: nobody saw them.
    `too_many` counts effects beyond one for each action, `undone` the planned actions that have left none yet.
    """
    import pandas

    rows, told = [], engine.told_effects()
    for row in query(engine, _EFFECTS):
        effects = [*row["effects"], *told.of(row["workflow"])]
        judged = belief_of(with_unseen(row["intents"], map(told.marked, row["own"])), effects)
        if any(one.unseen for one in judged.actions):
            continue
        planned, undone = sum(one.planned for one in judged.actions), sum(one.undone for one in judged.actions)
        attempts = sum(one["attempts"] or 1 for one in effects)
        rows.append((row["workflow"], row["status"], planned, attempts, len(effects), judged.too_many, undone))
    columns = ["workflow", "status", "planned", "attempts", "effects", "too_many", "undone"]
    return pandas.DataFrame(rows, columns=columns)


def work_frame(engine: Engine, *, by: str = "name") -> pandas.DataFrame:
    """What each worker claimed, completed and was refused, in the order of their first claims.

    By `name` all processes of one lane are one row; by "identity" each start of a process is its own.
    """
    import pandas

    rows = query(engine, _WORK)
    found = pandas.DataFrame(rows, columns=rows.columns)
    if by == "name":
        found["worker"] = found["worker"].map(worker_name)
        found = found.groupby("worker", sort=False, as_index=False).sum()
    return found
