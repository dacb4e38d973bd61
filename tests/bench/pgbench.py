"""PostgreSQL's own load generator with the engine's own statements: what the server can do with no Python in the way.

The statements' texts are the engine's; only the parameters are written in pgbench's manner. pgbench checks nothing: it
does not look at what came back, so its figure is a ceiling that no engine in Python reaches.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from contextlib import suppress
from pathlib import Path

from agentflow import Database
from agentflow.database import _SETTINGS as SESSION
from agentflow.server import ServerError, find_binaries
from tests.bench.contestants import REQUEST

_CATEGORY = '{"category":"account_access","priority":"normal"}'
_PLAN = '{"steps":["validate identity","reset credentials","confirm access"]}'
_RESULT = '{"account_unlocked":true,"resolution_code":"SIM-200"}'

# The script's variables. Each workflow's id is a random number, so that two runs do not meet.
_DEFINES = {
    "worker": "pgbench", "names": "{research_agent,support_agent}", "lease": "30 seconds", "budget": "5",
    "name": "{support_agent}", "input": '{"\\"' + REQUEST + '\\""}',
    "classify": "classify", "suffix": ":resolve-account", "plan": "plan", "action": "resolve-account",
    "classified": "CLASSIFIED", "planned": "PLANNED", "pending": "ACTION_PENDING",
    "acknowledged": "ACTION_ACKNOWLEDGED",
    "category": _CATEGORY, "steps": _PLAN, "arguments": '{"category":"account_access"}', "result": _RESULT,
}  # fmt: skip
_CLAIMED = {"workflow": ":c_id", "worker": ":worker", "token": ":c_fence_token", "detail": "NULL", "error": "NULL"}
_KEY = "(:c_id::text || :suffix)"  # pgbench takes a colon for a variable even inside quotes
_SCRIPT: list[tuple[str, dict[str, str]]] = [
    ("create", {"ids": "('{' || :number::text || '}')", "names": ":name", "inputs": ":input"}),
    ("claim", {"names": ":names", "worker": ":worker", "lease": ":lease", "crash_budget": ":budget",
               "ids": "'{}'", "only": "false"}),
    ("checkpoint", {"subject": ":classify", "state": ":classified", "value": ":category", "checkpoints": ":zero"}),
    ("checkpoint", {"subject": ":plan", "state": ":planned", "value": ":steps", "checkpoints": ":one"}),
    ("intent", {"subject": ":action", "state": ":pending", "key": _KEY, "action": ":action", "arguments": ":arguments",
                "checkpoints": ":two"}),
    ("tool", {"key": _KEY, "action": ":action", "arguments": ":arguments", "result": ":result"}),
    ("acknowledge", {"subject": ":action", "state": ":acknowledged", "value": ":result", "checkpoints": ":two"}),
    ("complete", {"subject": "NULL", "value": ":result", "checkpoints": ":three"}),
]  # fmt: skip
STATEMENTS = [name for name, _ in _SCRIPT]


def script(database: Database) -> str:
    """One workflow's life as a pgbench script, from the texts that the engine sends to this database."""
    lines = ["\\set number random(1, 9000000000000000000)"]
    lines += [f"\\set {name} {value}" for value, name in enumerate(["zero", "one", "two", "three"])]
    for name, told in _SCRIPT:
        binds = _CLAIMED | told
        text = re.sub(r"%\(p_(\w+)\)s", lambda found, binds=binds: binds[found[1]], database.sql(name)).replace(
            "%%", "%"
        )
        lines.append(text + (" \\gset c_" if name == "claim" else ";"))
    return "\n".join(lines) + "\n"


class PgBench:
    """pgbench on one database; each call of run() is one process that plays the script.

    A claim must not come back empty (pgbench would stop), so with many clients some workflows must be waiting already.
    """

    def __init__(self, database: Database, folder: Path) -> None:
        self.database, self.path = database, folder / "workflow.sql"
        self.path.write_text(script(database), encoding="utf-8")

    def run(self, workflows: int, clients: int) -> float:
        """So many workflows were carried by so many clients; seconds, without the time to connect."""
        target = self.database.url.set(drivername="postgresql").render_as_string(hide_password=False)
        each = max(1, workflows // clients)
        defines = [part for name, value in _DEFINES.items() for part in ("-D", f"{name}={value}")]
        command = [_program(), "-n", "-M", "prepared", "-c", clients, "-j", min(clients, 2), "-t", each,
                   "-f", self.path, *defines, target]  # fmt: skip
        environment = {**os.environ, "PGOPTIONS": _session()}
        done = subprocess.run(
            list(map(str, command)), env=environment, capture_output=True, text=True, timeout=600, check=False
        )
        found = re.search(r"^tps = ([0-9.]+)", done.stdout, re.MULTILINE)
        if done.returncode or not found or f"{each * clients}/{each * clients}" not in done.stdout:
            raise RuntimeError(f"pgbench failed: {done.stderr or done.stdout}")
        return workflows / float(found[1])


def _session() -> str:
    """The settings that the engine's own connections have."""
    pairs = (re.fullmatch(r"SET (\w+) = '?([^']*)'?", setting) for setting in SESSION)
    return " ".join("-c {}={}".format(pair[1], pair[2].replace(" ", "\\ ")) for pair in pairs if pair)


def _program() -> str:
    """pgbench of the embedded PostgreSQL, or else of the machine."""
    with suppress(ServerError):
        return str(find_binaries() / "pgbench")
    return shutil.which("pgbench") or "pgbench"
