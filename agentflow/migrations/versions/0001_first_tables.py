"""The first tables: workflows, steps, action intents, history; and the world's ledger and attempts."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSON, JSONB

revision = "0001"
down_revision = None

_now = sa.text("clock_timestamp()")


def _moment(name: str, default: bool = False) -> sa.Column[object]:
    return sa.Column(name, sa.DateTime(timezone=True), nullable=not default, server_default=_now if default else None)


def upgrade() -> None:
    op.create_table(
        "workflows",
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("input", JSON, nullable=False),
        sa.Column("status", sa.Text, nullable=False, server_default="ready"),
        sa.Column("state", sa.Text, nullable=False, server_default="PENDING"),
        sa.Column("result", JSON),
        sa.Column("error", JSON),
        sa.Column("lease_owner", sa.Text),
        _moment("lease_expires_at"),
        sa.Column("fence_token", sa.BigInteger, nullable=False, server_default="0"),
        sa.Column("checkpoints", sa.Integer, nullable=False, server_default="0"),
        sa.Column("entries", sa.BigInteger, nullable=False, server_default="1"),
        _moment("next_run_at", default=True),
        sa.Column("waiting_for", sa.Text),
        sa.Column("events", JSONB, nullable=False, server_default=sa.text("'{}'::jsonb")),
        sa.Column("attempts", sa.Integer, nullable=False, server_default="0"),
        sa.Column("crashes", sa.Integer, nullable=False, server_default="0"),
        _moment("recovery_started_at"),
        _moment("created_at", default=True),
        _moment("updated_at", default=True),
        _moment("completed_at"),
        _moment("finished_at"),
        sa.CheckConstraint("status = ANY ('{ready,waiting,completed,failed,cancelled}')", name="status_is_known"),
        sa.CheckConstraint("(lease_owner IS NULL) = (lease_expires_at IS NULL)", name="lease_is_whole"),
        sa.CheckConstraint("lease_owner IS NULL OR status = 'ready'", name="only_ready_is_leased"),
        sa.CheckConstraint("(status = 'waiting') = (waiting_for IS NOT NULL)", name="waiting_names_its_event"),
        sa.CheckConstraint("(status = 'completed') = (completed_at IS NOT NULL)", name="completed_has_its_time"),
        sa.CheckConstraint("(status = 'completed') = (result IS NOT NULL)", name="completed_has_its_result"),
        sa.CheckConstraint("(finished_at IS NULL) = (status = ANY ('{ready,waiting}'))", name="finished_has_its_time"),
        sa.CheckConstraint("status <> 'failed' OR error IS NOT NULL", name="failed_says_why"),
        sa.CheckConstraint("lease_owner IS NULL OR fence_token > 0", name="leased_has_its_token"),
        sa.CheckConstraint(
            "fence_token >= 0 AND checkpoints >= 0 AND entries > 0 AND attempts >= 0 AND crashes >= 0",
            name="counts_are_counts",
        ),
        sa.Index("workflows_runnable", "next_run_at", postgresql_where=sa.text("status = 'ready'")),
        postgresql_with={"fillfactor": 70},
    )
    op.create_table(
        "steps",
        sa.Column("workflow_id", sa.Text, nullable=False),
        sa.Column("step_id", sa.Text, nullable=False),
        sa.Column("position", sa.Integer, nullable=False),
        sa.Column("kind", sa.Text, nullable=False),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("value", JSON),
        sa.Column("error", JSON),
        sa.Column("waited_for", sa.Text),
        sa.Column("fence_token", sa.BigInteger, nullable=False),
        sa.Column("worker", sa.Text, nullable=False),
        _moment("created_at", default=True),
        sa.PrimaryKeyConstraint("workflow_id", "step_id", name="steps_pkey"),
        sa.CheckConstraint("kind = ANY ('{step,side_effect,wait}')", name="kind_is_known"),
        sa.CheckConstraint("(value IS NULL) <> (error IS NULL)", name="value_or_failure"),
        sa.CheckConstraint("(kind = 'wait') = (waited_for IS NOT NULL)", name="wait_names_its_event"),
        sa.CheckConstraint("position > 0 AND fence_token > 0", name="counts_from_one"),
    )
    op.create_table(
        "action_intents",
        sa.Column("workflow_id", sa.Text, nullable=False),
        sa.Column("key", sa.Text, nullable=False),
        sa.Column("idempotency_key", sa.Text, nullable=False),
        sa.Column("action", sa.Text, nullable=False),
        sa.Column("arguments", JSON, nullable=False),
        sa.Column("status", sa.Text, nullable=False, server_default="PENDING"),
        sa.Column("tool_result", JSON),
        sa.Column("error", JSON),
        sa.Column("fence_token", sa.BigInteger, nullable=False),
        sa.Column("worker", sa.Text, nullable=False),
        _moment("created_at", default=True),
        _moment("acknowledged_at"),
        sa.PrimaryKeyConstraint("workflow_id", "key", name="action_intents_pkey"),
        sa.Index("action_intents_idempotency_key", "idempotency_key", unique=True),
        sa.CheckConstraint("status = ANY ('{PENDING,ACKNOWLEDGED,REFUSED}')", name="status_is_known"),
        sa.CheckConstraint("(status = 'ACKNOWLEDGED') = (tool_result IS NOT NULL)", name="acknowledged_has_its_result"),
        sa.CheckConstraint("(status = 'REFUSED') = (error IS NOT NULL)", name="refused_says_why"),
        sa.CheckConstraint("(status = 'PENDING') = (acknowledged_at IS NULL)", name="acknowledged_has_its_time"),
    )
    op.create_table(
        "history",
        sa.Column("workflow_id", sa.Text, nullable=False),
        sa.Column("n", sa.BigInteger, nullable=False),
        _moment("at", default=True),
        sa.Column("event", sa.Text, nullable=False),
        sa.Column("transaction", sa.Text, nullable=False),
        sa.Column("subject", sa.Text),
        sa.Column("worker", sa.Text),
        sa.Column("fence_token", sa.BigInteger),
        sa.Column("detail", JSON),
        sa.PrimaryKeyConstraint("workflow_id", "n", name="history_pkey"),
        sa.CheckConstraint("n > 0", name="counts_from_one"),
    )
    op.create_table(
        "tool_ledger",
        sa.Column("effect_id", sa.BigInteger, sa.Identity(always=True), primary_key=True),
        sa.Column("idempotency_key", sa.Text),
        sa.Column("remembered", sa.Boolean, nullable=False, server_default=sa.text("true")),
        sa.Column("workflow_id", sa.Text, nullable=False),
        sa.Column("action", sa.Text, nullable=False),
        sa.Column("arguments", JSON, nullable=False),
        sa.Column("result", JSON, nullable=False),
        sa.Column("attempts", sa.Integer, nullable=False, server_default="1"),
        _moment("committed_at", default=True),
        sa.CheckConstraint("attempts > 0", name="an_effect_was_asked_for"),
        sa.Index("tool_ledger_key", "idempotency_key", unique=True, postgresql_where=sa.text("remembered")),
        schema="world",
    )
    op.create_table(
        "tool_attempts",
        sa.Column("attempt_id", sa.BigInteger, sa.Identity(always=True), primary_key=True),
        sa.Column("effect_id", sa.BigInteger),
        sa.Column("attempt", sa.Integer),
        sa.Column("idempotency_key", sa.Text),
        sa.Column("workflow_id", sa.Text, nullable=False),
        sa.Column("action", sa.Text, nullable=False),
        sa.Column("outcome", sa.Text, nullable=False),
        _moment("came_at", default=True),
        sa.CheckConstraint("outcome = ANY ('{effect,repeated,refused}')", name="outcome_is_known"),
        sa.CheckConstraint("(outcome = 'refused') = (effect_id IS NULL)", name="refused_has_no_effect"),
        sa.Index("tool_attempts_workflow", "workflow_id"),
        schema="world",
    )
