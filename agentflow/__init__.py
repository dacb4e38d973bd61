"""AgentFlow: a laboratory for durable execution over a small, real workflow engine on a real PostgreSQL.

*Execution is at least once. At most one result is recorded per step; and once a workflow completes, and while the tool
remembers its keys, each planned action has left exactly one business effect.* Start with `open_engine()`.

Each name is loaded when it is first asked for, so that `agentflow.statements` or a picture can be imported without a driver.
"""

import os
import sys

if sys.argv[:1] == ["-m"] and not sys.flags.safe_path:  # `python -m`: the folder where it is started comes last
    sys.path.append(sys.path.pop(0))

os.environ.pop("PSYCOPG_IMPL", None)  # the driver is what is installed, whatever the shell says
os.environ.pop("PSYCOPG_WAIT_FUNC", None)

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .agents import research_agent, states, support_agent
    from .database import Database
    from .engine import Engine, find_database, lease_guard, open_engine
    from .errors import AgentFlowError, CrashInjected, LostLease, StepFailed, Suspend, ToolRefused
    from .log import log_event
    from .migrations import migrate
    from .model import ActionIntent, Boundary, Checkpoint, Claim, Policy, ToolCall
    from .run import DurableRunner, Ledger, NaiveRunner, StepStore
    from .schema import action_intents, history, steps, tool_attempts, tool_ledger, workflows
    from .statements import show_sql
    from .tools import SimulatedTool, StandInModel, mock_llm_classify, mock_llm_plan

_HOMES = {
    "agents": ("research_agent", "states", "support_agent"),
    "database": ("Database",),
    "engine": ("Engine", "find_database", "lease_guard", "open_engine"),
    "errors": ("AgentFlowError", "CrashInjected", "LostLease", "StepFailed", "Suspend", "ToolRefused"),
    "log": ("log_event",),
    "migrations": ("migrate",),
    "model": ("ActionIntent", "Boundary", "Checkpoint", "Claim", "Policy", "ToolCall"),
    "run": ("DurableRunner", "Ledger", "NaiveRunner", "StepStore"),
    "schema": ("action_intents", "history", "steps", "tool_attempts", "tool_ledger", "workflows"),
    "statements": ("show_sql",),
    "tools": ("SimulatedTool", "StandInModel", "mock_llm_classify", "mock_llm_plan"),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "ActionIntent", "AgentFlowError", "Boundary", "Checkpoint", "Claim", "CrashInjected", "Database", "DurableRunner",
    "Engine", "Ledger", "LostLease", "NaiveRunner", "Policy", "SimulatedTool", "StandInModel", "StepFailed", "StepStore",
    "Suspend", "ToolCall", "ToolRefused", "action_intents", "find_database", "history", "lease_guard", "log_event", "migrate",
    "mock_llm_classify", "mock_llm_plan", "open_engine", "research_agent", "show_sql", "states", "steps", "support_agent",
    "tool_attempts", "tool_ledger", "workflows",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    """Loads the module of a name of `__all__`, and keeps the name here; or a module that has such names, such as `errors`."""
    if name in _HOMES:
        return import_module(f".{name}", __name__)
    if name not in _HOME_OF:
        raise AttributeError(f"module 'agentflow' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f".{_HOME_OF[name]}", __name__), name)
    return value


def __dir__() -> list[str]:
    return __all__
