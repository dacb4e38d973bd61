"""The tables, as SQLAlchemy metadata: what a row is, and what PostgreSQL refuses to hold.

Two schemas: the engine's, and the world's (same name with `_world`), which only tools write. Their names are options of a
`Database`, so that several laboratories can share a server. The migrations contain the same tables as frozen history; a
test compares the two. Read `statements` next.
"""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    DateTime,
    Identity,
    Index,
    Integer,
    MetaData,
    PrimaryKeyConstraint,
    Table,
    Text,
    text,
)
from sqlalchemy.dialects.postgresql import JSON, JSONB

# CHECKs name a list as one array literal: PostgreSQL reads their expressions from text in every statement that writes.
metadata = MetaData()
_now = text("clock_timestamp()")


def _moment(name: str, default: bool = False) -> Column[object]:
    if default:
        return Column(name, DateTime(timezone=True), nullable=False, server_default=_now)
    return Column(name, DateTime(timezone=True))


workflows = Table(
    "workflows",
    metadata,
    Column("id", Text, primary_key=True),
    Column("name", Text, nullable=False),
    Column("input", JSON, nullable=False),
    Column("status", Text, nullable=False, server_default="ready"),
    Column("state", Text, nullable=False, server_default="PENDING"),
    Column("result", JSON),
    Column("error", JSON),
    Column("lease_owner", Text),
    _moment("lease_expires_at"),
    Column("fence_token", BigInteger, nullable=False, server_default="0"),
    Column("checkpoints", Integer, nullable=False, server_default="0"),
    Column("entries", BigInteger, nullable=False, server_default="1"),
    _moment("next_run_at", default=True),
    Column("waiting_for", Text),
    Column("events", JSONB, nullable=False, server_default=text("'{}'::jsonb")),
    Column("attempts", Integer, nullable=False, server_default="0"),
    Column("crashes", Integer, nullable=False, server_default="0"),
    _moment("recovery_started_at"),
    _moment("created_at", default=True),
    _moment("updated_at", default=True),
    _moment("completed_at"),
    _moment("finished_at"),
    CheckConstraint("status = ANY ('{ready,waiting,completed,failed,cancelled}')", name="status_is_known"),
    CheckConstraint("(lease_owner IS NULL) = (lease_expires_at IS NULL)", name="lease_is_whole"),
    CheckConstraint("lease_owner IS NULL OR status = 'ready'", name="only_ready_is_leased"),
    CheckConstraint("(status = 'waiting') = (waiting_for IS NOT NULL)", name="waiting_names_its_event"),
    CheckConstraint("(status = 'completed') = (completed_at IS NOT NULL)", name="completed_has_its_time"),
    CheckConstraint("(status = 'completed') = (result IS NOT NULL)", name="completed_has_its_result"),
    CheckConstraint("(finished_at IS NULL) = (status = ANY ('{ready,waiting}'))", name="finished_has_its_time"),
    CheckConstraint("status <> 'failed' OR error IS NOT NULL", name="failed_says_why"),
    CheckConstraint("lease_owner IS NULL OR fence_token > 0", name="leased_has_its_token"),
    CheckConstraint(
        "fence_token >= 0 AND checkpoints >= 0 AND entries > 0 AND attempts >= 0 AND crashes >= 0",
        name="counts_are_counts",
    ),
    # Finished and waiting rows are outside; no column that a checkpoint changes is inside, so these updates stay HOT.
    Index("workflows_runnable", "next_run_at", postgresql_where=text("status = 'ready'")),
    postgresql_with={"fillfactor": 70},
)

steps = Table(
    "steps",
    metadata,
    Column("workflow_id", Text, nullable=False),
    Column("step_id", Text, nullable=False),
    Column("position", Integer, nullable=False),
    Column("kind", Text, nullable=False),
    Column("state", Text, nullable=False),
    Column("value", JSON),
    Column("error", JSON),
    Column("waited_for", Text),
    Column("fence_token", BigInteger, nullable=False),
    Column("worker", Text, nullable=False),
    _moment("created_at", default=True),
    PrimaryKeyConstraint("workflow_id", "step_id", name="steps_pkey"),
    CheckConstraint("kind = ANY ('{step,side_effect,wait}')", name="kind_is_known"),
    CheckConstraint("(value IS NULL) <> (error IS NULL)", name="value_or_failure"),
    CheckConstraint("(kind = 'wait') = (waited_for IS NOT NULL)", name="wait_names_its_event"),
    CheckConstraint("position > 0 AND fence_token > 0", name="counts_from_one"),
)

action_intents = Table(
    "action_intents",
    metadata,
    Column("workflow_id", Text, nullable=False),
    Column("key", Text, nullable=False),
    Column("idempotency_key", Text, nullable=False),
    Column("action", Text, nullable=False),
    Column("arguments", JSON, nullable=False),
    Column("status", Text, nullable=False, server_default="PENDING"),
    Column("tool_result", JSON),
    Column("error", JSON),
    Column("fence_token", BigInteger, nullable=False),
    Column("worker", Text, nullable=False),
    _moment("created_at", default=True),
    _moment("acknowledged_at"),
    PrimaryKeyConstraint("workflow_id", "key", name="action_intents_pkey"),
    Index("action_intents_idempotency_key", "idempotency_key", unique=True),
    CheckConstraint("status = ANY ('{PENDING,ACKNOWLEDGED,REFUSED}')", name="status_is_known"),
    CheckConstraint("(status = 'ACKNOWLEDGED') = (tool_result IS NOT NULL)", name="acknowledged_has_its_result"),
    CheckConstraint("(status = 'REFUSED') = (error IS NOT NULL)", name="refused_says_why"),
    CheckConstraint("(status = 'PENDING') = (acknowledged_at IS NULL)", name="acknowledged_has_its_time"),
)

history = Table(
    "history",
    metadata,
    Column("workflow_id", Text, nullable=False),
    Column("n", BigInteger, nullable=False),
    _moment("at", default=True),
    Column("event", Text, nullable=False),
    Column("transaction", Text, nullable=False),
    Column("subject", Text),
    Column("worker", Text),
    Column("fence_token", BigInteger),
    Column("detail", JSON),
    PrimaryKeyConstraint("workflow_id", "n", name="history_pkey"),
    CheckConstraint("n > 0", name="counts_from_one"),
)

tool_ledger = Table(
    "tool_ledger",
    metadata,
    Column("effect_id", BigInteger, Identity(always=True), primary_key=True),
    Column("idempotency_key", Text),
    Column("remembered", Boolean, nullable=False, server_default=text("true")),
    Column("workflow_id", Text, nullable=False),
    Column("action", Text, nullable=False),
    Column("arguments", JSON, nullable=False),
    Column("result", JSON, nullable=False),
    Column("attempts", Integer, nullable=False, server_default="1"),
    _moment("committed_at", default=True),
    CheckConstraint("attempts > 0", name="an_effect_was_asked_for"),
    Index("tool_ledger_key", "idempotency_key", unique=True, postgresql_where=text("remembered")),
    schema="world",
)

tool_attempts = Table(
    "tool_attempts",
    metadata,
    Column("attempt_id", BigInteger, Identity(always=True), primary_key=True),
    Column("effect_id", BigInteger),
    Column("attempt", Integer),
    Column("idempotency_key", Text),
    Column("workflow_id", Text, nullable=False),
    Column("action", Text, nullable=False),
    Column("outcome", Text, nullable=False),
    _moment("came_at", default=True),
    CheckConstraint("outcome = ANY ('{effect,repeated,refused}')", name="outcome_is_known"),
    CheckConstraint("(outcome = 'refused') = (effect_id IS NULL)", name="refused_has_no_effect"),
    Index("tool_attempts_workflow", "workflow_id"),
    schema="world",
)
