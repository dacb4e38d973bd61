"""`Engine`, which people import: transactions, workers, tool and evidence together under the tutorial's names."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from . import evidence
from .agents import DEFAULT_ACTION, DEFAULT_WORKFLOW, WORKFLOWS, answers_of
from .database import Database
from .errors import CrashInjected, NotALaboratory
from .migrations import is_laboratory, migrate
from .model import ActionIntent, Boundary, Claim, Hook, Policy, Tool, ToolCall
from .renewals import Renewals
from .run import Workflow
from .server import ensure_running
from .statements import DEFAULT_SCHEMA, GUARD, TRANSACTIONS
from .tools import SimulatedTool
from .transactions import Transactions
from .values import MAX_KEY, check_name
from .worker import Worker, carry

_PROGRESS = {name for name, one in TRANSACTIONS.items() if one.progress}


class _Advanced(CrashInjected):
    """One transaction of progress was committed; advance_one_step() stops here."""


class Engine(Transactions):
    """Everything that needs a database, in one object that threads may share.

    `workflows` are the functions this engine's workers know, by name; `tool` is called for side effects that name none. It
    is asked for its effects(), and so are those in `asked`: tools of one's own that only a side effect names.
    """

    asked: tuple[Tool, ...] = ()

    def __init__(
        self, database: Database, *, workflows: Mapping[str, Workflow] = WORKFLOWS, tool: Tool | None = None,
        policy: Policy | None = None, hook: Hook | None = None,
    ) -> None:  # fmt: skip
        super().__init__(database, policy=policy, hook=hook)
        self.workflows = dict(workflows)
        world = database.twin()
        world.give_up = database.give_up  # a worker that is told to stop waits for neither
        self.world = SimulatedTool(world)
        self.tool: Tool = tool or self.world
        self._renewals = Renewals(self)

    def worker(self, worker_id: str, **options: Any) -> Worker:
        """A worker of this engine; options as for Worker."""
        return Worker(self, self.workflows, self.tool, worker_id, renewals=self._renewals, **options)

    def claim_workflow(self, worker_id: str, lease_seconds: float | None = None, *, names: Any = None) -> Claim | None:
        """Like Transactions.claim_workflow(), for the workflows whose functions this engine knows."""
        return super().claim_workflow(
            worker_id, lease_seconds, names=sorted(self.workflows) if names is None else names
        )

    # -- the tutorial's defaults -----------------------------------------------------------------------------------

    def create_workflow(
        self, request: Any, *, name: str = DEFAULT_WORKFLOW, workflow_id: str | None = None
    ) -> dict[str, Any]:
        """Like Transactions.create_workflow(), for the support agent unless another is named."""
        return super().create_workflow(request, name=name, workflow_id=workflow_id)

    def create_workflows(
        self, requests: Sequence[Any], *, name: str = DEFAULT_WORKFLOW, workflow_ids: Sequence[str | None] | None = None
    ) -> list[str]:
        """Like Transactions.create_workflows(), for the support agent unless another is named."""
        return super().create_workflows(requests, name=name, workflow_ids=workflow_ids)

    def get_workflow(self, workflow_id: str) -> dict[str, Any] | None:
        """Like Transactions.get_workflow(), with the support agent's `classification` and `plan`."""
        row = super().get_workflow(workflow_id)
        return row and {**row, **answers_of(row["steps"])}

    def create_action_intent(
        self, claim: Claim, key: str = DEFAULT_ACTION, action: str = DEFAULT_ACTION, *args: Any, **options: Any
    ) -> ActionIntent:
        """Like Transactions.create_action_intent(), for the support agent's action unless another is named."""
        return super().create_action_intent(claim, key, action, *args, **options)

    def acknowledge_action(
        self, claim: Claim, tool_result: Any = None, key: str = DEFAULT_ACTION, **options: Any
    ) -> Claim:
        """Like Transactions.acknowledge_action(), for the support agent's action unless another is named."""
        return super().acknowledge_action(claim, tool_result, key, **options)

    # --------------------------------------------------------------------------------------------------------------

    def with_hook(self, hook: Hook | None) -> Engine:
        """The same engine on the same database, with another hook, which hears its renewals too."""
        other: Engine = super().with_hook(hook)
        other._renewals = Renewals(other)
        return other

    def advance_one_step(self, claim: Claim, crash_after_tool_commit: bool = False) -> str:
        """Commits one transaction of progress for the claim, and returns the workflow's state after it.

        Raises LostLease; CrashInjected right after the tool's commit if `crash_after_tool_commit`.
        """

        def stop_after_progress(boundary: Boundary) -> None:
            if boundary.edge == "after" and boundary.outcome == "committed" and boundary.transaction in _PROGRESS:
                raise _Advanced

        engine = self._hooked(_crash_after_tool(self) if crash_after_tool_commit else None, stop_after_progress)
        try:
            with engine._renewals.hold(claim):
                carry(engine, claim, self.workflows[claim.name], self.tool, loaded=True)
        except _Advanced:
            pass
        finally:
            engine._renewals.close()
        return str((self.get_workflow(claim.workflow_id) or {}).get("state"))

    def run_once(self, worker_id: str, crash_after_tool_commit: bool = False) -> bool:
        """Whether this call completed a workflow: False if there was none to claim, or it parked, failed or was lost.

        Raises CrashInjected right after the tool's commit if `crash_after_tool_commit`.
        """
        if not crash_after_tool_commit:
            return self.worker(worker_id).run_once() == "completed"
        engine = self._hooked(_crash_after_tool(self))
        try:
            return engine.worker(worker_id).run_once() == "completed"
        finally:
            engine._renewals.close()

    def run_until_idle(self, worker_id: str) -> int:
        """Works until nothing is runnable, and returns how many workflows this worker completed."""
        return self.worker(worker_id).run_until_idle()

    def run_competing_workers(self, *worker_ids: str) -> list[int]:
        """Runs these workers in threads until idle, and returns how many workflows each completed, in order."""
        with ThreadPoolExecutor(max_workers=max(1, len(worker_ids))) as executor:
            return list(executor.map(self.run_until_idle, worker_ids))

    def execute_simulated_tool(self, idempotency_key: str, action: str = DEFAULT_ACTION, arguments: Any = None) -> Any:
        """Returns the result of the one effect under this key; calling again only counts another attempt.

        `arguments` are those of the action intent, which the checker compares with the ledger's. Raises BadName.
        """
        workflow_id = check_name("idempotency key", idempotency_key, MAX_KEY).rpartition(":")[0]
        return self.world(ToolCall(idempotency_key, action, arguments, workflow_id))

    def record_fault(
        self,
        workflow_id: str,
        event: str,
        *,
        worker: str | None = None,
        token: int | None = None,
        at: str | None = None,
        signal: str = "",
    ) -> None:
        """Records in the history that the laboratory did this to the workflow; `at` names the boundary.

        `signal` is the one that struck a real process, such as SIGKILL.
        """
        params = {
            "p_workflow": workflow_id, "p_event": event, "p_subject": at, "p_worker": worker, "p_token": token,
            "p_detail": json.dumps({"signal": signal}) if signal else None,
        }  # fmt: skip
        self.database.transact(Boundary("fault", "before", worker, workflow_id, token, at), params)

    def reliability_metrics(self, *tools: Tool) -> dict[str, Any]:
        """The reliability figures from the rows, and from what these tools and the engine's tell; see evidence."""
        return evidence.reliability_metrics(self.database, (self.tool, *self.asked, *tools))

    def recoveries(self) -> list[dict[str, Any]]:
        """Each take-over, with its span in ms split into detect, claim, replay and re-execute; see evidence.recoveries()."""
        return evidence.recoveries(self.database)

    def write_reliability_report(self, path: Path = evidence.REPORT, *tools: Tool) -> dict[str, Any]:
        """Writes the figures to `artifacts/reliability-report.json`, and returns them."""
        return evidence.write_reliability_report(self.database, path, (self.tool, *self.asked, *tools))

    def told_effects(self) -> evidence.Told:
        """What the engine's tool, if it is one's own, and those in `asked` tell of their effects."""
        return evidence.ask(self.database, (self.tool, *self.asked))

    def history(self, workflow_id: str, *, after: int = 0, limit: int | None = None) -> list[dict[str, Any]]:
        """Like Transactions.history(), with the calls of which a tool of one's own tells."""
        told = self.told_effects()
        if not told.asked:
            return super().history(workflow_id, after=after, limit=limit)
        return told.among(super().history(workflow_id), workflow_id)[after:][:limit]

    def reset_database(self) -> None:
        """Deletes every workflow of a laboratory and every effect of its world. Raises NotALaboratory for any other schema.

        A write that is in flight is waited for, and its rows go, too. A tool that is called meanwhile still has its effect.
        """
        if not is_laboratory(self.database):
            raise NotALaboratory(
                f"Schema {self.database.schema!r} at {self.database.where} is not marked as a laboratory. Nothing was "
                "deleted; use a schema made by `agentflow lab` or `agentflow migrate --laboratory`."
            )
        for _ in range(100):  # people may go on creating; what they create is whole
            if not self.database.transact(Boundary("reset", "before"), {"p_by": this_process()})[0][0]["entries"]:
                break

    def close(self) -> None:
        """Closes every connection and thread of this engine."""
        self._renewals.close()
        self.database.close()
        self.world.database.close()

    def _hooked(self, *hooks: Hook | None) -> Engine:
        """Returns the same engine, whose hook is followed by these."""
        chain = [hook for hook in (self.hook, *hooks) if hook]

        def tell(boundary: Boundary) -> None:
            for hook in chain:
                hook(boundary)

        return self.with_hook(tell)


def _crash_after_tool(engine: Engine) -> Callable[[Boundary], None]:
    def crash(boundary: Boundary) -> None:
        if boundary.transaction == "tool" and boundary.edge == "after" and boundary.workflow:
            engine.record_fault(
                boundary.workflow, "crash_injected", worker=boundary.worker, token=boundary.token, at="after tool"
            )
            raise CrashInjected("tool committed before workflow acknowledgment")

    return crash


def lease_guard(claim: Claim) -> Any:
    """Returns the condition under which this claim may write, for a SQLAlchemy statement on `workflows`.

    The same text that every guarded transaction begins with; see show_sql("checkpoint").
    """
    from sqlalchemy import text

    condition = " ".join(GUARD.split()).removeprefix("WHERE ").replace("%(", ":").replace(")s", "")
    return text(condition).bindparams(p_workflow=claim.workflow_id, p_worker=claim.worker_id, p_token=claim.fence_token)


def find_database(schema: str | None = None, *, url: str | None = None, patience: float = 30.0) -> Database:
    """Returns the database of `url`, or of DATABASE_URL, or of the embedded server, which is started; it is not asked yet.

    The schema is the given one, or AGENTFLOW_SCHEMA, or `agentflow`. `patience` as for Database, in seconds.
    """
    where = url or os.environ.get("DATABASE_URL")
    if not where:
        where = ensure_running().url()
    if schema is None:
        schema = os.environ.get("AGENTFLOW_SCHEMA") or DEFAULT_SCHEMA
    return Database(where, schema, patience=patience)


def open_engine(url: str | None = None, schema: str | None = None, *, patience: float = 30.0, **options: Any) -> Engine:
    """Returns an engine on a migrated schema, found as find_database() does. Options as for Engine.

    The embedded server's schemas are laboratories.
    """
    database = find_database(schema, url=url, patience=patience)
    migrate(database, laboratory=url is None and is_embedded())
    return Engine(database, **options)


def this_process() -> str:
    """What this process is called for others who work in the same laboratory."""
    return f"process {os.getpid()} on {socket.gethostname()}"


def is_embedded() -> bool:
    """Whether find_database() means the embedded server, because no DATABASE_URL names another."""
    return not os.environ.get("DATABASE_URL")
