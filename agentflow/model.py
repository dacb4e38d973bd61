"""Frozen records that travel between the rooms. Nothing here talks to a database. Read `schema` next."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

from .values import check_settings

Edge = Literal["before", "after"]
Outcome = Literal["committed", "refused", "unknown"]


@dataclass(frozen=True)
class Claim:
    """The right to work on one workflow: who, which token, and what the locked row held when it was claimed.

    `lease_seconds` is how long the lease lasts from each claim or renewal, in seconds of the database's clock. `troubles`
    counts the runs in a row that were let go because something else than the workflow was wrong.
    """

    workflow_id: str
    worker_id: str
    fence_token: int
    name: str = ""
    input: Any = None
    checkpoints: int = 0
    attempts: int = 0
    recovered: bool = False
    lease_seconds: float = 30.0
    troubles: int = field(default=0, repr=False)


@dataclass(frozen=True)
class Checkpoint:
    """One recorded call: its result (`value`), or its recorded failure (`error`: type, message, traceback).

    `waited_for` is the name of the event that a wait got.
    """

    position: int
    step_id: str
    kind: str
    value: Any = None
    error: dict[str, Any] | None = None
    waited_for: str | None = None

    def __str__(self) -> str:
        return f"{self.kind} {self.step_id!r}" + (f" for event {self.waited_for!r:.80}" if self.waited_for else "")


@dataclass(frozen=True)
class ActionIntent:
    """One planned action: the key under which the tool is called, however often."""

    workflow_id: str
    key: str
    idempotency_key: str | None
    action: str
    arguments: Any = None
    status: str = "PENDING"


@dataclass(frozen=True)
class ToolCall:
    """What a tool receives. Two calls with one idempotency key must leave one business effect."""

    idempotency_key: str | None
    action: str
    arguments: Any = None
    workflow_id: str = ""


Tool = Callable[[ToolCall], Any]


@dataclass(frozen=True)
class Boundary:
    """The moment before or after a transaction, as the hook sees it.

    `subject` is the step id, action key or event name; `outcome` is None before the transaction.
    """

    transaction: str
    edge: Edge
    worker: str | None = None
    workflow: str | None = None
    token: int | None = None
    subject: str | None = None
    outcome: Outcome | None = None

    @property
    def name(self) -> str:
        """The transaction and its subject, such as `checkpoint classify`."""
        return f"{self.transaction} {self.subject or ''}".strip()

    @property
    def place(self) -> str:
        """The same with its edge, such as `before checkpoint classify`."""
        return f"{self.edge} {self.name}"


Hook = Callable[[Boundary], None]


@dataclass(frozen=True)
class Policy:
    """How patient the engine is. All times in seconds. Raises BadSetting for anything out of range.

    `unknown_outcome`: "call_again" calls the tool again with the same key when its outcome is unknown, "look_up" asks the
    world by key first. `crash_budget` take-overs from an expired lease since the last checkpoint are allowed.
    """

    lease_seconds: float = 30.0
    max_attempts: int = 4
    first_delay: float = 0.2
    max_delay: float = 60.0
    crash_budget: int = 5
    unknown_outcome: Literal["call_again", "look_up"] = "call_again"

    def __post_init__(self) -> None:
        check_settings(**vars(self))

    def delay(self, tries: int) -> float:
        """Returns the seconds to wait after so many failures: doubled each time, capped, plus up to a quarter of jitter."""
        return float(min(self.max_delay, self.first_delay * 2 ** min(tries - 1, 30))) * random.uniform(1.0, 1.25)
