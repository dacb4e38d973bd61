"""An independent checker: reads only the tables and the history of a laboratory, and names each row that is wrong.

It uses nothing of the engine but a connection to its database, so a bug in the engine cannot hide from it. A workflow that is
neither finished nor waiting for an event is not finished: a mistake only where nobody works any more, which no row tells.

Some facts are recorded in one place only, so the checker cannot verify them: a workflow's input and result, the value of a
plain step, the state that a checkpoint names (except the last one of a waiting workflow), why something failed unless a tool
refused it, and who called the tool (a late call, or a call by a worker that had lost its lease, goes unnoticed). It ignores
`created_at` and `next_run_at` of a workflow, and most of `updated_at`. What a tool of one's own did it knows only from what
that tool tells. If entries and rows agree that the server's clock was set, it does not compare times across that, and says so.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import psycopg

from .action_rules import ACTION_RULES
from .history_rules import AT_ONCE, ENDS, HISTORY_RULES, MOMENTS, Rule
from .row_rules import ROW_RULES, UNFINISHED

T = TypeVar("T")
RULES = [*HISTORY_RULES, *ROW_RULES, *ACTION_RULES]


class Connectable(Protocol):
    """Where the tables are: the engine's schema, and the world's."""

    def snapshot(self, work: Callable[[psycopg.Cursor[dict[str, Any]]], T], *settings: str) -> T:
        """What `work` reads by a cursor that sees one snapshot, under these settings; tables are named without a schema."""


@dataclass(frozen=True)
class Mistake:
    """One row that is wrong: its table and key, what it holds, and what it should hold; `rule` names the broken rule."""

    rule: str
    table: str
    row: str
    stands: str
    should: str

    def __str__(self) -> str:
        return f"{self.table} {self.row}: {self.stands}; should be: {self.should} ({self.rule})"


@dataclass(frozen=True)
class Checked:
    """The mistakes, how many workflows there are, and a sentence for each thing that could not be looked at.

    `unfinished` are workflows that somebody still works on, or could.
    """

    workflows: int
    mistakes: Sequence[Mistake]
    not_observed: Sequence[str]
    most: int = 20
    unfinished: Sequence[Mistake] = ()

    def __repr__(self) -> str:
        found = self._counted(self.mistakes, "mistake") if self.mistakes else "no row contradicts another"
        return "\n".join(
            [
                f"workflows: {self.workflows}, rules: {len(RULES)}: {found}.",
                *map(str, self.mistakes),
                *self.not_observed,
                *self._open(),
            ]
        )

    def _counted(self, found: Sequence[Mistake], noun: str) -> str:
        most = "at least " * (self.most in Counter(one.rule for one in found).values())
        return f"{most}{len(found)} {noun}{'s' * (len(found) > 1)}"

    def _open(self) -> Iterable[str]:
        if self.unfinished:
            first, many = self.unfinished[0], self._counted(self.unfinished, "workflow")
            yield (
                f"Not finished: {many}, such as {first.row!r:.80} ({first.stands}). Their rows were checked as far as they are; "
                "check again when nobody works any more."
            )


def find_mistakes(database: Connectable, *, most: int = 20) -> list[Mistake]:
    """Returns the mistakes in the tables of a laboratory where nobody works any more, at most `most` for each rule.

    An empty list means that all rows agree, and that all work is done. All rules see one snapshot.
    Raises what the database raises when the tables cannot be read.
    """
    found = check_rows(database, most=most)
    return [*found.mistakes, *found.unfinished]


def check_rows(
    database: Connectable, *, told: Iterable[Mapping[str, Any]] = (), asked: Iterable[str] = (), most: int = 20
) -> Checked:
    """Checks all rows against each other, and against what the tools in `asked` told of their effects; see find_mistakes()."""
    given = json.dumps(list(told)), json.dumps(list(asked))

    def read(cursor: psycopg.Cursor[dict[str, Any]]) -> Checked:
        keep = "SELECT set_config('agentflow.told', %s, true), set_config('agentflow.asked', %s, true)"
        cursor.execute(keep, given)
        facts = cursor.execute(_FACTS.encode()).fetchone() or {}

        def mistakes(*rules: Rule) -> list[Mistake]:
            return [
                Mistake(rule.name, row["table"], row["row"], str(row["stands"]), str(row["should"]))
                for rule in rules
                for row in cursor.execute(_limited(rule, most).encode())
            ]

        return Checked(facts["workflows"], mistakes(*RULES), list(_not_observed(facts)), most, mistakes(UNFINISHED))

    return database.snapshot(read, *_SETTINGS)


def _not_observed(facts: Mapping[str, Any]) -> Iterable[str]:
    if facts["tools"]:
        told = "It was not asked, or has no effects()"
        yield f"Not observed: what {facts['tools']} did, in planned actions: {facts['unseen']}. {told}."
    if facts["was_set"] == "true":
        yield "Not observed: the order of times. The server's clock was set back while this ran."


# Whole tables are read, once each: by scanning them, with room to sort, for as long as it takes.
_SETTINGS = ("statement_timeout = 0", "enable_seqscan = on", "enable_bitmapscan = on", "work_mem = '64MB'", "jit = off")

# What all rules read as they read a table: effects by the world's record and by what tools of one's own told, and the
# actions that were given to a tool that told nothing.
_SEEN = """\
WITH effects AS (
    SELECT 'tool_ledger' AS "table", effect_id, idempotency_key, workflow_id, action, arguments, result
    FROM tool_ledger
    UNION ALL
    SELECT 'effects()', row_number() OVER (), idempotency_key, workflow_id, action, NULL, NULL
    FROM json_to_recordset(current_setting('agentflow.told')::json)
         AS told (idempotency_key text, workflow_id text, action text)
),
unseen AS (
    SELECT DISTINCT workflow_id, subject AS key, detail ->> 'tool' AS tool
    FROM history
    WHERE event IN ('action_intent_committed', 'action_acknowledged')
      AND NOT current_setting('agentflow.asked')::jsonb ? (detail ->> 'tool')
)
"""

# The clock is known to have been set back if an entry is later than a later one, or than now, and both have a witness: for
# each, a column that the same statement wrote (at most AT_ONCE apart), or the entry beside it. One wrong time has none.
_FACTS = f"""\
{_SEEN.rstrip()},
{MOMENTS},
twins AS (
    SELECT workflow_id, event, subject, moment FROM moments
    UNION ALL
    SELECT id, 'workflow_created', '', created_at FROM workflows
),
confirmed AS (
    SELECT workflow_id, n, at
    FROM history AS h
    JOIN twins AS t USING (workflow_id, event)
    WHERE t.subject = CASE WHEN event = ANY ({ENDS} || 'workflow_created'::text) THEN '' ELSE h.subject END
      AND moment BETWEEN at - {AT_ONCE} AND at + {AT_ONCE}
    UNION ALL
    SELECT workflow_id, n, at
    FROM history
    WHERE transaction = 'claim' AND (detail ->> 'asked_at')::timestamptz BETWEEN at - {AT_ONCE} AND at
    UNION ALL
    SELECT workflow_id, n, at
    FROM history JOIN workflows ON id = workflow_id
    WHERE (n = entries AND updated_at BETWEEN at - {AT_ONCE} AND at + {AT_ONCE})
       OR (event IN ('event_delivered', 'workflow_requeued') AND next_run_at BETWEEN at - {AT_ONCE} AND at + {AT_ONCE})
),
clock AS (
    SELECT at, max(at) OVER (PARTITION BY workflow_id ORDER BY n) AS latest FROM confirmed
),
four AS (
    SELECT least(at, lag(at) OVER w) AS two, greatest(lead(at) OVER w, lead(at, 2) OVER w) AS next, lead(at, 2) OVER w AS last
    FROM history
    WINDOW w AS (PARTITION BY workflow_id ORDER BY n)
)
SELECT (SELECT count(*) FROM workflows) AS workflows,
       (SELECT count(DISTINCT (workflow_id, key)) FROM unseen) AS unseen,
       (SELECT string_agg(DISTINCT tool, ', ') FROM unseen) AS tools,
       set_config('agentflow.clock_was_set', (
           EXISTS (SELECT FROM clock WHERE at < latest OR at > statement_timestamp())
           OR EXISTS (SELECT FROM four WHERE next < two AND last IS NOT NULL))::text, true) AS was_set"""


def _limited(rule: Rule, most: int) -> str:
    return f'{_SEEN}SELECT * FROM (\n{rule.sql}\n) AS mistake ("table", "row", stands, should) LIMIT {most}'
