"""AgentFlow: a laboratory for durable execution over a small, real workflow engine on a real PostgreSQL.

*Execution is at least once. At most one result is recorded per step; and once a workflow completes, and while the tool
remembers its keys, each planned action has left exactly one business effect.* Start with `open_engine()`.
"""

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
from .workflows import research_agent, states, support_agent

__all__ = [
    "ActionIntent", "AgentFlowError", "Boundary", "Checkpoint", "Claim", "CrashInjected", "Database", "DurableRunner",
    "Engine", "Ledger", "LostLease", "NaiveRunner", "Policy", "SimulatedTool", "StandInModel", "StepFailed", "StepStore",
    "Suspend", "ToolCall", "ToolRefused", "action_intents", "find_database", "history", "lease_guard", "log_event", "migrate",
    "mock_llm_classify", "mock_llm_plan", "open_engine", "research_agent", "show_sql", "states", "steps", "support_agent",
    "tool_attempts", "tool_ledger", "workflows",
]  # fmt: skip
