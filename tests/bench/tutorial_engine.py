"""The tutorial's engine, as it would be written today for this benchmark: read, decide in Python, write.

Same tables, statements and transactions as the tutorial's `app/core.py` (SQLAlchemy Core in a session for each call,
JSONB, times from the application), on the same server with the same durability. It has no history, no step table, no
checkpoint count, and its log lines are built only when somebody listens, as ours are. Source: the tutorial.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

from sqlalchemy import (
    Column,
    DateTime,
    Integer,
    MetaData,
    String,
    Table,
    Text,
    and_,
    create_engine,
    insert,
    or_,
    select,
    text,
    update,
)
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.dialects.postgresql import UUID as PG_UUID
from sqlalchemy.dialects.postgresql import insert as pg_insert
from sqlalchemy.orm import sessionmaker

from agentflow import log_event, mock_llm_classify, mock_llm_plan

metadata = MetaData()
_ID, _MOMENT = PG_UUID(as_uuid=True), DateTime(timezone=True)

workflows = Table(
    "workflows",
    metadata,
    Column("id", _ID, primary_key=True),
    Column("request", Text, nullable=False),
    Column("state", String(32), nullable=False),
    Column("classification", JSONB),
    Column("plan", JSONB),
    Column("result", JSONB),
    Column("lease_owner", String(100)),
    Column("lease_expires_at", _MOMENT),
    Column("fence_token", Integer, nullable=False),
    Column("recovery_started_at", _MOMENT),
    Column("created_at", _MOMENT, nullable=False),
    Column("updated_at", _MOMENT, nullable=False),
    Column("completed_at", _MOMENT),
)
action_intents = Table(
    "action_intents",
    metadata,
    Column("id", _ID, primary_key=True),
    Column("workflow_id", _ID, nullable=False, unique=True),
    Column("idempotency_key", String(200), nullable=False, unique=True),
    Column("status", String(32), nullable=False),
    Column("tool_result", JSONB),
    Column("created_at", _MOMENT, nullable=False),
    Column("acknowledged_at", _MOMENT),
)
tool_ledger = Table(
    "tool_ledger",
    metadata,
    Column("idempotency_key", String(200), primary_key=True),
    Column("result", JSONB, nullable=False),
    Column("attempts", Integer, nullable=False),
    Column("committed_at", _MOMENT, nullable=False),
)


class StaleClaim(RuntimeError):
    """The guard of an UPDATE matched no row."""


@dataclass(frozen=True)
class TutorialClaim:
    """Whose workflow it is, and under which token."""

    workflow_id: UUID
    worker_id: str
    fence_token: int


class TutorialEngine:
    """The tutorial's functions, as methods on one engine; `schema` holds its three tables."""

    def __init__(self, url: str, schema: str) -> None:
        self.schema = schema
        bound = create_engine(url, pool_size=16, max_overflow=48)
        self.alchemy = bound.execution_options(schema_translate_map={None: schema})
        self.sessions = sessionmaker(self.alchemy, expire_on_commit=False)

    def migrate(self) -> None:
        """The three tables exist."""
        with self.alchemy.begin() as connection:
            connection.execute(text(f'CREATE SCHEMA IF NOT EXISTS "{self.schema}"'))
            metadata.create_all(connection)

    def reset(self) -> None:
        """The three tables are empty."""
        with self.alchemy.begin() as connection:
            for table in metadata.sorted_tables:
                connection.execute(text(f'TRUNCATE "{self.schema}".{table.name}'))

    def create_workflow(self, request: str) -> dict[str, Any]:
        """The request is stored; its row."""
        workflow_id, now = uuid4(), _now()
        with self.sessions.begin() as session:
            row = {"id": workflow_id, "request": request, "state": "PENDING", "fence_token": 0}
            session.execute(insert(workflows).values(**row, created_at=now, updated_at=now))
        log_event("workflow_created", workflow_id=workflow_id)
        return self.get_workflow(workflow_id) or {}

    def get_workflow(self, workflow_id: UUID) -> dict[str, Any] | None:
        """The row as it is now."""
        with self.sessions() as session:
            row = session.execute(select(workflows).where(workflows.c.id == workflow_id)).mappings().one_or_none()
        return dict(row) if row else None

    def claim_workflow(self, worker_id: str, lease_seconds: int = 30) -> TutorialClaim | None:
        """The oldest unfinished and unleased workflow is the worker's."""
        now = _now()
        with self.sessions.begin() as session:
            row = session.execute(_claimable(now)).mappings().one_or_none()
            if row is None:
                return None
            token, recovered = row["fence_token"] + 1, row["lease_owner"] is not None
            session.execute(
                update(workflows)
                .where(workflows.c.id == row["id"])
                .values(
                    lease_owner=worker_id,
                    lease_expires_at=now + timedelta(seconds=lease_seconds),
                    fence_token=token,
                    recovery_started_at=(row["recovery_started_at"] or now) if recovered else None,
                    updated_at=now,
                )
            )
        log_event(
            "workflow_claimed", workflow_id=row["id"], worker_id=worker_id, fence_token=token, recovered=recovered
        )
        return TutorialClaim(row["id"], worker_id, token)

    def checkpoint(self, claim: TutorialClaim, expected_state: str, next_state: str, **values: Any) -> None:
        """The workflow went from one state to the next."""
        with self.sessions.begin() as session:
            _guarded(session, claim, expected_state, {"state": next_state, "updated_at": _now(), **values})
        log_event(
            "checkpoint_committed", workflow_id=claim.workflow_id, state=next_state, fence_token=claim.fence_token
        )

    def create_action_intent(self, claim: TutorialClaim) -> None:
        """The action is planned, in one transaction with the state."""
        key, now = f"{claim.workflow_id}:resolve-account", _now()
        row = {"id": uuid4(), "workflow_id": claim.workflow_id, "idempotency_key": key, "status": "PENDING"}
        with self.sessions.begin() as session:
            session.execute(
                pg_insert(action_intents)
                .values(**row, created_at=now)
                .on_conflict_do_nothing(index_elements=["idempotency_key"])
            )
            _guarded(session, claim, "PLANNED", {"state": "ACTION_PENDING", "updated_at": now})
        log_event("action_intent_committed", workflow_id=claim.workflow_id, idempotency_key=key)

    def execute_simulated_tool(self, idempotency_key: str) -> dict[str, Any]:
        """The one effect of this key; a repeated call counts an attempt."""
        result = {"account_unlocked": True, "resolution_code": "SIM-200"}
        first = {"idempotency_key": idempotency_key, "result": result, "attempts": 1, "committed_at": _now()}
        statement = (
            pg_insert(tool_ledger)
            .values(**first)
            .on_conflict_do_update(index_elements=["idempotency_key"], set_={"attempts": tool_ledger.c.attempts + 1})
            .returning(tool_ledger.c.result, tool_ledger.c.attempts)
        )
        with self.sessions.begin() as session:
            row = session.execute(statement).mappings().one()
        log_event("tool_attempt_committed", idempotency_key=idempotency_key, attempts=row["attempts"])
        return dict(row["result"])

    def acknowledge_action(self, claim: TutorialClaim, tool_result: dict[str, Any]) -> None:
        """The action is acknowledged and the workflow completed, in one transaction."""
        now = _now()
        done = {"state": "COMPLETED", "result": tool_result, "completed_at": now, "updated_at": now}
        with self.sessions.begin() as session:
            intent = session.execute(_intent_of(claim)).mappings().one()
            session.execute(
                update(action_intents)
                .where(action_intents.c.id == intent["id"])
                .values(status="ACKNOWLEDGED", tool_result=tool_result, acknowledged_at=now)
            )
            _guarded(session, claim, "ACTION_PENDING", {**done, "lease_owner": None, "lease_expires_at": None})
        log_event("workflow_completed", workflow_id=claim.workflow_id, fence_token=claim.fence_token)

    def advance_one_step(self, claim: TutorialClaim) -> str:
        """One transition, after reading the row and before reading it again."""
        row = self.get_workflow(claim.workflow_id)
        if row is None:
            raise KeyError(claim.workflow_id)
        state = row["state"]
        if state == "PENDING":
            self.checkpoint(claim, state, "CLASSIFIED", classification=mock_llm_classify(row["request"]))
        elif state == "CLASSIFIED":
            self.checkpoint(claim, state, "PLANNED", plan=mock_llm_plan(row["classification"]))
        elif state == "PLANNED":
            self.create_action_intent(claim)
        elif state == "ACTION_PENDING":
            with self.sessions() as session:
                intent = session.execute(_intent_of(claim)).mappings().one()
            self.acknowledge_action(claim, self.execute_simulated_tool(intent["idempotency_key"]))
        return str((self.get_workflow(claim.workflow_id) or {})["state"])

    def run_once(self, worker_id: str) -> bool:
        """Whether a workflow was claimed; it is completed then."""
        claim = self.claim_workflow(worker_id)
        if claim is None:
            return False
        for _ in range(8):
            if self.advance_one_step(claim) == "COMPLETED":
                return True
        raise RuntimeError("workflow exceeded transition limit")

    def close(self) -> None:
        """No connection is open."""
        self.alchemy.dispose()


def _now() -> datetime:
    return datetime.now(UTC)


def _claimable(now: datetime) -> Any:
    free = or_(workflows.c.lease_owner.is_(None), workflows.c.lease_expires_at < now)
    unfinished = select(workflows).where(workflows.c.state != "COMPLETED", free)
    return unfinished.order_by(workflows.c.created_at).limit(1).with_for_update(skip_locked=True)


def _intent_of(claim: TutorialClaim) -> Any:
    return select(action_intents).where(action_intents.c.workflow_id == claim.workflow_id)


def _guarded(session: Any, claim: TutorialClaim, state: str, values: dict[str, Any]) -> None:
    guard = and_(
        workflows.c.id == claim.workflow_id,
        workflows.c.lease_owner == claim.worker_id,
        workflows.c.fence_token == claim.fence_token,
        workflows.c.lease_expires_at > _now(),
    )
    result = session.execute(update(workflows).where(guard, workflows.c.state == state).values(**values))
    if result.rowcount != 1:
        raise StaleClaim(f"stale fence {claim.fence_token}")
