"""The same workflow function on DBOS, another engine on the same PostgreSQL: its steps become DBOS's, the key stays ours.

`make dbos` adds DBOS to .venv. It has a schema of its own beside ours, opens no port and sends nothing; see docs/outgrow.md.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from . import errors
from .database import Database
from .journal import callable_tool
from .model import Policy, Tool
from .run import DurableRunner, StepStore, Workflow
from .tools import SimulatedTool
from .values import fingerprint, to_json

_OURS = "obj_description(to_regnamespace('{0}'), 'pg_namespace') = 'made by AgentFlow for DBOS'"
_MAKE = f"""DO $$ BEGIN CREATE SCHEMA {{0}}; COMMENT ON SCHEMA {{0}} IS 'made by AgentFlow for DBOS';
EXCEPTION WHEN duplicate_schema OR unique_violation THEN ASSERT {_OURS}, 'Schema {{0}} was not made by AgentFlow'; END $$"""
_DROP = f"""DO $$ DECLARE n oid := to_regnamespace('{{0}}'); one text; BEGIN IF {_OURS} THEN FOR one IN
SELECT 'DROP TABLE ' || string_agg(oid::regclass::text, ', ') FROM pg_class WHERE relkind = 'r' AND relnamespace = n UNION ALL
SELECT 'DROP FUNCTION ' || string_agg(oid::regprocedure::text, ', ') FROM pg_proc WHERE pronamespace = n
LOOP EXECUTE coalesce(one, 'SELECT'); END LOOP; DROP SCHEMA {{0}}; END IF; END $$"""
_FOREVER = 2_000_000_000  # seconds, and tries
_ENDS = {"SUCCESS": "completed", "ERROR": "failed", "CANCELLED": "cancelled"}
_running: list[OnDbos] = []
_REFUSED, _MISUSED = (errors.ToolRefused, errors.UnfaithfulValue), (errors.StepMisuse, errors.UnfaithfulValue)


class OnDbos:
    """One DBOS executor in this process, which can have no second one. Raises AgentFlowError if it cannot be started.

    `workflows` are unchanged functions by name; `tool` is called for effects that name none. Nothing takes over by itself: a
    start under the same `executor` does, and `resume`. A `version` of the code carries what it has started, and nothing else.
    """

    def __init__(
        self, database: Database, workflows: Mapping[str, Workflow], tool: Tool | None = None, *,
        executor: str = "local", version: str = "1", policy: Policy | None = None,
    ) -> None:  # fmt: skip
        try:
            import dbos
        except ImportError as no:
            raise errors.AgentFlowError("DBOS is not installed here. Run `make dbos` in AgentFlow's folder.") from no
        if _running:
            raise errors.AgentFlowError("DBOS runs in this process already, and cannot twice. Close the first one.")
        self.dbos, self.database, self.version, self.policy = dbos, database, version, policy or Policy()
        self.tool, self.schema = tool or SimulatedTool(database.twin()), f"{database.schema}_dbos"
        database.command(_MAKE.format(self.schema))
        where = {"system_database_url": database.address, "dbos_system_schema": self.schema, "log_level": "CRITICAL"}
        who: Any = {"name": "agentflow", "executor_id": executor, "application_version": version, "enable_otlp": False}
        dbos.DBOS(config=where | who | {"serializer": dbos.DBOSPortableJSONSerializer()})  # its own default is pickle
        _running.append(self)
        mark = partial(dbos.DBOS.workflow, max_recovery_attempts=self.policy.crash_budget)
        self._functions = {name: mark(name=name)(partial(self._carry, one)) for name, one in workflows.items()}
        dbos.DBOS.launch()

    def submit(self, workflow_id: str, name: str, request: Any) -> None:
        """Starts the workflow in this process, or finds it started. Raises UnknownWorkflow, IdTaken, UnfaithfulValue."""
        if name not in self._functions:
            raise errors.UnknownWorkflow(f"There is no workflow {name!r} here; there is {', '.join(self._functions)}.")
        asked = name, (told := partial(fingerprint, workflow=workflow_id, step="input"))(request)
        with self.dbos.SetWorkflowID(workflow_id):
            found: Any = self.dbos.DBOS.start_workflow(self._functions[name], request).get_status()
        if (found.name, told(found.input["args"][0])) != asked:
            raise errors.IdTaken(f"Workflow {workflow_id!r} exists with another name or input. Choose another id.")

    def deliver(self, workflow_id: str, name: str, payload: Any) -> None:
        """Sends the event; the first payload of a name wins, and of a second one DBOS says nothing. Raises UnknownWorkflow."""
        message = {"payload": json.loads(to_json(payload, workflow=workflow_id, step=name))}
        self.look(workflow_id)
        self.dbos.DBOS.send(workflow_id, message, topic=name, idempotency_key=name)

    def resume(self, executor: str) -> list[str]:
        """Takes over what an executor has left, and returns the ids; nobody checks that it is dead. Raises AgentFlowError."""
        found = self.dbos.DBOS.list_workflows(status="PENDING", executor_id=executor)
        if others := {str(one.app_version) for one in found} - {self.version}:
            why = f"has left workflows of version {min(others)!r}, and this is {self.version!r}. Nothing was resumed"
            raise errors.AgentFlowError(f"Executor {executor!r} {why}; start that version, and resume them there.")
        self.dbos.DBOS.resume_workflows(ids := [one.workflow_id for one in found])
        return ids

    def look(self, workflow_id: str) -> dict[str, Any]:
        """Its `status` in AgentFlow's words (pending before the end), `result` and `error`. Raises UnknownWorkflow."""
        if (found := self.dbos.DBOS.get_workflow_status(workflow_id)) is None:
            raise errors.UnknownWorkflow(f"No workflow has the id {workflow_id!r}. Submit it first.")
        status = "failed" if found.status.startswith("MAX_RECOVERY") else _ENDS.get(found.status, "pending")
        error = found.error and {"type": getattr(found.error, "name", ""), "message": str(found.error)}
        return {"status": status, "result": found.output, "error": error}

    def close(self) -> None:
        """Ends DBOS in this process; what is pending stays so. It cannot stop a step that runs: for that, end the process."""
        self.dbos.DBOS.destroy(destroy_registry=True)
        _running.clear()

    def _carry(self, function: Workflow, request: Any) -> Any:
        run, result = _Run(self), None
        try:
            result = function(run, request)
        except BaseException as error:
            run.ended_by = run.ended_by or error
        if not isinstance(ended := run.ended_by, Exception | self.dbos.error.DBOSBaseException | None):
            raise type(type(ended).__name__, (Exception,), {})(str(ended))  # DBOS notes the end by an Exception alone
        run.finish()
        return json.loads(to_json(result, workflow=run.run_id, step="result"))


def remove_dbos(database: Database) -> None:
    """Drops DBOS's schema beside this one, if it is there and was made here, with all that is in it."""
    database.command(_DROP.format(f"{database.schema}_dbos"))


class _Run(DurableRunner):
    def __init__(self, on: OnDbos) -> None:
        self.on, self.dbos, self.received = on, on.dbos.DBOS, dict[str, Any]()
        super().__init__(str(self.dbos.workflow_id), StepStore(), self.received)

    def side_effect(self, name: str, key: str, tool: Tool | None = None, arguments: Any = None) -> Any:
        step, chosen = partial(self._step, name, key, tries=_FOREVER, fatal=_REFUSED), tool or self.on.tool
        return super().side_effect(name, key, lambda call: step(lambda: callable_tool(chosen)(call)), arguments)

    def wait_for_event(self, step_id: str, name: str) -> Any:
        self._allow("wait", step_id)
        if name not in self.received:  # DBOS gives each message out once
            self.received[name] = self.dbos.recv(topic=name, timeout_seconds=_FOREVER)["payload"]
        return super().wait_for_event(step_id, name)

    def _execute(self, step_id: str, fn: Callable[[], Any]) -> Any:
        return self._step(
            step_id, step_id, partial(super()._execute, step_id, fn), self.on.policy.max_attempts, _MISUSED
        )

    def _step(self, name: str, key: str, work: Callable[[], Any], tries: int, fatal: tuple[type, ...]) -> Any:
        def tried() -> dict[str, Any]:
            try:
                return {"value": json.loads(to_json(work(), workflow=self.run_id, step=key))}
            except BaseException as error:
                if isinstance(error, fatal) or self.dbos.step_status.current_attempt == tries - 1:
                    return {"error": errors.describe_failure(error)}
                raise RuntimeError(f"{name} failed") from error  # DBOS tries again after an Exception alone

        often = {"retries_allowed": True, "max_attempts": tries, "interval_seconds": self.on.policy.first_delay}
        done = self.dbos.run_step({"name": name, **often}, tried)
        if "error" in done:
            raise errors.StepFailed(self.run_id, key, done["error"])
        return done["value"]
