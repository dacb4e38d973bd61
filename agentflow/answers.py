"""The shapes of what the API takes and gives; they are its documentation at `/docs`. `api` fills them."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from .agents import DEFAULT_WORKFLOW
from .values import MAX_ID

Status = Literal["ready", "waiting", "completed", "failed", "cancelled"]


class Problem(BaseModel):
    """Why a request was refused, in a sentence."""

    detail: str


class Health(BaseModel):
    """Whether the database answers and has the current tables; `agentflow doctor` says more."""

    status: Literal["up", "down"]


class NewWorkflow(BaseModel):
    """What to create."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={"examples": [{"request": "I cannot login after a password reset", "id": "ticket-1"}]},
    )
    request: str | dict[str, Any] = Field(description="The workflow's input; text for `support_agent`")
    name: str = Field(DEFAULT_WORKFLOW, min_length=1, max_length=MAX_ID, description="Which workflow function runs it")
    id: str | None = Field(
        None,
        min_length=1,
        max_length=MAX_ID,
        description="An id of your choice: creating it again with the same request changes nothing",
    )


class Summary(BaseModel):
    """One workflow in a list."""

    id: str
    name: str
    status: Status = Field(description="For the engine: can it run, does it wait, has it ended?")
    state: str = Field(description="For people: the state that the workflow declares for its last checkpoint")
    lease_owner: str | None = Field(description="The worker that holds it")
    fence_token: int = Field(description="Rises with each claim; an older one is void")
    checkpoints: int
    attempts: int = Field(description="Failed tries of the next step")
    crashes: int = Field(description="Workers lost since the last checkpoint")
    waiting_for: str | None = Field(description="The event that it waits for")
    created_at: datetime
    updated_at: datetime
    completed_at: datetime | None
    finished_at: datetime | None = Field(description="When it ended, in whatever way")


class StepAnswer(BaseModel):
    """One checkpoint: the result of a call, or its recorded failure."""

    position: int
    step_id: str
    kind: Literal["step", "side_effect", "wait"]
    state: str
    value: Any
    error: dict[str, Any] | None
    fence_token: int
    worker: str
    created_at: datetime


class Action(BaseModel):
    """One planned action and the key under which the tool is called, however often."""

    key: str
    idempotency_key: str
    action: str
    arguments: Any
    status: Literal["PENDING", "ACKNOWLEDGED", "REFUSED"]
    tool_result: Any
    error: dict[str, Any] | None
    created_at: datetime
    acknowledged_at: datetime | None


class WorkflowAnswer(Summary):
    """One workflow with everything that is recorded of it."""

    request: Any
    classification: Any = Field(description="The recorded result of the step `classify`")
    plan: Any = Field(description="The recorded result of the step `plan`")
    result: Any
    error: dict[str, Any] | None
    lease_expires_at: datetime | None
    next_run_at: datetime
    recovery_started_at: datetime | None
    events: dict[str, Any] = Field(description="The events that came, with their payloads")
    steps: list[StepAnswer]
    actions: list[Action]


class EntryAnswer(BaseModel):
    """One thing that happened."""

    n: int
    at: datetime
    event: str
    transaction: str
    subject: str | None
    worker: str | None
    fence_token: int | None
    detail: Any


class Delivered(BaseModel):
    """The workflow has the event; delivering the same again gets this answer again."""

    workflow_id: str
    event: str


class Worked(BaseModel):
    """Whether this call completed a workflow."""

    worked: bool


_NOT_OBSERVED = "Null: not observed; see problems"


class Metrics(BaseModel):
    """The reliability figures, from the tables alone."""

    workflow_completion_rate: float
    workflows_total: int
    workflows_completed: int
    tool_execution_attempts: int | None = Field(description=f"Calls of the tool. {_NOT_OBSERVED}")
    business_effects: int | None = Field(description=_NOT_OBSERVED)
    duplicate_business_effects: int | None = Field(description=f"Beyond one for each action. {_NOT_OBSERVED}")
    missing_business_effects: int = Field(description="Acknowledged actions of which no effect was seen")
    unacknowledged_effects: int | None = Field(description=f"Of workflows that ended in the gap. {_NOT_OBSERVED}")
    effects_not_observed: int = Field(
        description="Actions given to a tool of your own that does not tell of its effects"
    )
    recovery_latency_ms: float | None = Field(description="Mean, from take-over to completion")
    recovery_latency_p50_ms: float | None
    recovery_latency_p95_ms: float | None
    recovery_latency_max_ms: float | None
    ready_unknown_to_workers: int = Field(description="Ready workflows that no running worker knows")
    ready_due_later: int = Field(description="Ready workflows that no worker may claim yet")
    semantics: str
    problems: list[str] = Field(description="A sentence for all that is doubled, missing or not observed")
