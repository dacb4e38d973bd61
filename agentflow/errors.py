"""The engine's exceptions: errors under one root, `AgentFlowError`, and control flow.

Control flow must not be swallowed by a workflow's own `except Exception`, so it derives from BaseException. Each message
says what happened, where, and what to do next.
"""

from __future__ import annotations

import traceback
import unicodedata
from typing import Any


class AgentFlowError(Exception):
    """The root of all errors that AgentFlow raises on purpose. What they say is printable()."""

    def __str__(self) -> str:
        return printable(Exception.__str__(self))  # KeyError has one of its own, which quotes


class UnfaithfulValue(AgentFlowError, TypeError):
    """A value would not come back from the database as it went in; nothing was written."""

    def __init__(self, workflow: str, step: str, path: str, reason: str) -> None:
        super().__init__(
            f"Workflow {workflow!r}, step {step!r}, path {path}: {reason}. Nothing was written; return plain JSON values "
            "(dict with text keys, list, text, int, finite float, bool, None)."
        )
        self.workflow, self.step, self.path, self.reason = workflow, step, path, reason


class BadName(AgentFlowError, ValueError):
    """An id, name or key cannot be used; nothing was written."""


class BadSetting(AgentFlowError, ValueError):
    """A setting is out of range, or of another kind; nothing was started with it."""


class UnknownWorkflow(AgentFlowError, KeyError):
    """No workflow has this id."""


class IdTaken(AgentFlowError):
    """The id already belongs to a workflow with another name or input."""


class AlreadyFinished(AgentFlowError):
    """Somebody else ended the workflow first; the message names the winner."""

    def __init__(self, workflow: str, status: str, what: str) -> None:
        super().__init__(f"Workflow {workflow!r} {what}: it is {status}. Nothing was changed; see get_workflow().")
        self.workflow, self.status = workflow, status


class EventRefused(AgentFlowError):
    """The workflow already has an event of this name with another payload, or is finished."""


class StepFailed(AgentFlowError):
    """A step failed for good; this failure is its recorded result. A workflow may catch it and go on."""

    def __init__(self, workflow: str, step: str, error: dict[str, Any]) -> None:
        said = str(error.get("message")).removesuffix(".")
        super().__init__(
            f"Workflow {workflow!r}, step {step!r} failed for good: {error.get('type')}: {said}. "
            "Catch StepFailed to continue, or fix the cause and requeue the workflow."
        )
        self.workflow, self.step, self.error = workflow, step, error


class DeterminismError(AgentFlowError):
    """The workflow function asked for steps other than those that are recorded."""

    next_step = "Deploy the code that started this workflow, or give the changed workflow a new name."

    def __init__(self, workflow: str, position: int, recorded: str, asked: str) -> None:
        super().__init__(
            f"Workflow {workflow!r}, call {position}: recorded {recorded}, asked for {asked}. No stored result was used. "
            f"{self.next_step}"
        )
        self.workflow, self.position, self.recorded, self.asked = workflow, position, recorded, asked


class DuplicateStep(DeterminismError):
    """The same step id was used twice in one run."""

    next_step = "Add a counter to the id, so that each call has its own."

    def __init__(self, workflow: str, position: int, step: str) -> None:
        super().__init__(workflow, position, f"{step} once", f"{step} again")


class StepMisuse(AgentFlowError, TypeError):
    """A step was called in a way that cannot be made durable: async, nested, or from another thread."""


class ActionMismatch(AgentFlowError):
    """An idempotency key was used again with another action or other arguments."""


class ToolRefused(AgentFlowError):
    """Raised by a tool: it certainly did nothing, and will not. Recorded as the action's result."""


class DatabaseAway(AgentFlowError):
    """PostgreSQL did not answer within the time that we were willing to wait (`waited`: it has been waited for)."""

    waited = False


class OutcomeUnknown(DatabaseAway):
    """The connection was lost after a statement was sent: it may have been committed, or may still be."""


class StatementRefused(AgentFlowError):
    """PostgreSQL refused a statement for another reason than an outage; nothing was changed, and no workflow fails by it."""


class PoolerInBetween(StatementRefused):
    """A pooler lends another connection for each transaction: any statement may meet this, whatever its row."""


class QueryRefused(AgentFlowError):
    """PostgreSQL refused a query that somebody wrote, or the query would have changed something; nothing was changed."""


class TooLarge(AgentFlowError, ValueError):
    """A row would grow beyond what PostgreSQL can hold; nothing was written."""


class SchemaMissing(AgentFlowError):
    """The database has no AgentFlow tables, or old ones, or does not let us use them. Workers wait until it has."""


class SchemaTooNew(AgentFlowError):
    """The database was migrated by a newer AgentFlow."""


class NotALaboratory(AgentFlowError):
    """The schema is not marked as a laboratory, so its rows must not be deleted."""


class ServerError(AgentFlowError):
    """The embedded PostgreSQL cannot be installed, started or stopped."""


class LaneError(AgentFlowError):
    """A lane of the laboratory cannot make this move now; nothing was moved unless the message says so."""


class BadSchedule(AgentFlowError, ValueError):
    """A line is not a schedule, or its next move is impossible; the message points at the token. Nothing was moved."""


class BadCapsule(AgentFlowError, ValueError):
    """A file is not a run capsule, has another version, or was changed after it was written."""


class BadRequestFile(AgentFlowError, ValueError):
    """A file of requests cannot be used; the message names the line. Everything before that line was read."""

    def __init__(self, path: str, line: int | None, why: str) -> None:
        where = path if line is None else f"{path}, line {line},"
        super().__init__(f"{where} {why}. Fix it and read the file again.")
        self.path, self.line, self.why = path, line, why


class SoakError(AgentFlowError):
    """A soak could not be run to its end; its message names the workflows that are stuck."""


class RaceError(AgentFlowError):
    """A race could not be run to its end; nothing is left of it unless it was to be kept."""


class BadFrame(AgentFlowError, ValueError):
    """A table cannot be drawn; the message names the column."""


class LostLease(BaseException):
    """This claim no longer has authority; nothing was changed. Stop working on the workflow.

    `guards` are the names of those that failed, as the statement told them; `transactions/claimed` puts them into `reason`.
    """

    def __init__(self, workflow: str, transaction: str, reason: str, guards: tuple[str, ...] = ()) -> None:
        super().__init__(
            f"Workflow {workflow!r}: {transaction} was refused because {reason}. Nothing was changed; stop working on it."
        )
        self.workflow, self.transaction, self.reason, self.guards = workflow, transaction, reason, guards


class Suspend(BaseException):
    """The workflow parks until an event arrives; no worker is held meanwhile.

    Source: durable-py's Suspend, which is an Exception there; a broad `except` must not keep a worker.
    """

    def __init__(self, step_id: str, waiting_for: str) -> None:
        super().__init__(f"Suspended at {step_id!r}, waiting for {waiting_for!r}; deliver that event to continue.")
        self.step_id, self.waiting_for = step_id, waiting_for


class Postponed(BaseException):
    """A step or a call failed and will be tried again: the failure is recorded and the lease released until then."""

    def __init__(self, step_id: str, tries: int, delay_seconds: float) -> None:
        super().__init__(f"Try {tries} of {step_id!r} failed; the next is due in {delay_seconds:g} s.")
        self.step_id, self.tries, self.delay_seconds = step_id, tries, delay_seconds


class Stopping(BaseException):
    """This worker was asked to stop: the run is abandoned at a boundary and its lease released."""

    def __init__(self) -> None:
        super().__init__("This worker was asked to stop; let the run end, and another worker will continue it.")


class CrashInjected(BaseException):
    """The laboratory crashed this worker at a boundary (kinder than a kill: `finally` blocks run)."""


def describe_failure(error: BaseException) -> dict[str, Any]:
    """Returns the error as text that PostgreSQL can store: type, message, traceback.

    Works for exceptions that cannot be printed, pickled or constructed again.
    """
    try:
        message = printable(str(error))
    except BaseException as second:  # any error may hide in its own text, and an exit too
        message = f"<the error's own text raised {type(second).__name__}>"
    try:
        trace = "".join(traceback.format_exception(error))
    except BaseException:  # as above
        trace = "<traceback unavailable>"
    return {
        "type": printable(type.__dict__["__name__"].__get__(type(error))),
        "message": message[:4_000],
        "traceback": printable(trace)[-16_000:],
    }


def printable(text: str) -> str:
    """Returns the text with what PostgreSQL cannot keep, or a terminal obeys or hides, as JSON's escapes; lines and tabs stay."""
    hidden = {c for c in set(text) - {"\n", "\t"} if unicodedata.category(c) in "Cc Cf Cs Zl Zp"}
    codes = {ord(c): c.encode("utf-16-be", "surrogatepass").hex("u", 2) for c in hidden}
    return text.translate({number: f"u{code}".replace("u", "\\u") for number, code in codes.items()})
