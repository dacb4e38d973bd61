"""One named SQL statement: its text, the race that it settles, and what kind of transaction it is."""

from __future__ import annotations

from dataclasses import dataclass

DEFAULT_SCHEMA = "agentflow"
WORLD_SUFFIX = "_world"

GUARD = """\
    WHERE id = %(p_workflow)s
      AND lease_owner = %(p_worker)s
      AND fence_token = %(p_token)s
      AND lease_expires_at > clock_timestamp()
"""
FENCE = "fence_token = %(p_token)s"


@dataclass(frozen=True)
class Statement:
    """`race` is one sentence: what the statement settles, and how.

    `entries` are what it may write to the history when it is committed, `refusals` when its guard matches nothing.
    `by_person`: a person or a program does it to a workflow, with no claim. `guarded`: the text asks for a claim as GUARD
    does; `counted`: it also compares the number of checkpoints. `progress`: it moves the workflow on, and not only its
    lease. `advances`: it may record a checkpoint. `releases`: the entries after which the worker holds no lease.
    `decides`: the clauses by which its text settles the race; for most it is the fencing token in the guard.

    The row that a refusal gives names the guards that failed, in `guards`. It names none if the refusal waited, to be
    recorded, for the very change that makes the statement possible.
    """

    name: str
    race: str
    text: str
    entries: tuple[str, ...] = ()
    refusals: tuple[str, ...] = ()
    by_person: bool = False
    guarded: bool = False
    counted: bool = False
    progress: bool = False
    advances: bool = False
    releases: tuple[str, ...] = ()
    decides: tuple[str, ...] = (FENCE,)

    @property
    def commits(self) -> bool:
        """Whether it may change a row; else it only reads."""
        return any(f"{word} agentflow" in self.text for word in ("INSERT INTO", "UPDATE", "DELETE FROM", "FROM ONLY"))

    @property
    def waits(self) -> bool:
        """Whether it may wait for somebody's lock: a read does not, nor does what skips a locked row."""
        return self.commits and "SKIP LOCKED" not in self.text

    def render(self, schema: str) -> str:
        """The text for another pair of schemas. Its notifications come on the channel of the schema's name."""
        text = self.text.replace(f"{DEFAULT_SCHEMA}{WORLD_SUFFIX}.", f"{quoted(schema + WORLD_SUFFIX)}.")
        text = text.replace(f"{DEFAULT_SCHEMA}.", f"{quoted(schema)}.")
        return text.replace(f"'{DEFAULT_SCHEMA}'", f"'{schema}'")


def command(name: str, schema: str) -> str:
    """The command as a person types it for this schema, in backticks."""
    return f"`agentflow {name}{'' if schema == DEFAULT_SCHEMA else f' --schema {schema}'}`"


def quoted(identifier: str) -> str:
    """The identifier in double quotes."""
    return '"' + identifier.replace('"', '""') + '"'
