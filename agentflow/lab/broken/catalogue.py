"""Engines without guards: the real engine with a few lines less, and what each of them forgets.

A broken engine is one entry of the table below, and any set of them makes an engine. A guard that is a clause of SQL is one
clause less in the statements; a guard that is behaviour is one method overridden, and those methods are in `overrides`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from ...database import Database
from ...engine import Engine
from ...errors import AgentFlowError
from ...journal import ClaimedJournal
from ...statements import ALL_STATEMENTS, COUNTED, GUARDED, Statement
from . import overrides

_CONDITIONS = {
    "token": "fence_token = %(p_token)s",
    "owner": "lease_owner = %(p_worker)s",
    "lease": "lease_expires_at > clock_timestamp()",
    "checkpoints": "checkpoints = %(p_checkpoints)s",
    "status": "status = 'ready'",
}
"""What a guard compares, under the name by which a refusal calls it."""


@dataclass(frozen=True)
class Edit:
    """One change of a statement's text: `old` occurs in it `times` times, and is replaced by `new`."""

    statement: str
    old: str
    new: str = ""
    times: int = 1


@dataclass(frozen=True)
class Broken:
    """One broken engine: what it forgets, a public defect of that kind (owner/repository#number), and the few lines.

    `edits` change statements, `adds` are statements of its own, `engine` and `journal` override a method each. `setting` is
    what a laboratory needs to show it, as a schedule line writes it.
    """

    name: str
    forgets: str
    defect: str | None = None
    edits: tuple[Edit, ...] = ()
    adds: tuple[Statement, ...] = ()
    engine: type[Engine] | None = None
    journal: type[ClaimedJournal] | None = None
    setting: str = ""


def _asked(guard: str) -> str:
    return f"\n      AND {_CONDITIONS[guard]}"


def _named(guard: str) -> str:
    return f"\n                  CASE WHEN ({_CONDITIONS[guard]}) IS NOT TRUE THEN '{guard}' END,"


def _instead(guard: str, other: str, *statements: str) -> tuple[Edit, ...]:
    """Another guard in the place of this one; a refusal names the other, too."""
    return tuple(Edit(name, write(guard), write(other)) for name in statements for write in (_asked, _named))


def _without(guard: str, *statements: str) -> tuple[Edit, ...]:
    """The guard is gone, and no refusal names it; `load`, which writes nothing, only has the name."""
    return tuple(
        Edit(name, write(guard))
        for name in statements
        for write in (_asked, _named)
        if name != "load" or write is _named
    )


_ORDERED = """\
      AND next_run_at <= (SELECT clock_timestamp())
      AND (lease_expires_at IS NULL OR lease_expires_at <= clock_timestamp())
      AND name = ANY(%(p_names)s)
      -- All rows but these, whose claim was refused and which are passed by for a while; or only these.
      AND (id = ANY(%(p_ids)s::text[])) = %(p_only)s
    ORDER BY next_run_at
    LIMIT 1
    FOR NO KEY UPDATE SKIP LOCKED
"""
_HAS_EVENT = "events ? %(p_subject)s"
_IN_SNAPSHOT = "(SELECT seen.events ? %(p_subject)s FROM agentflow.workflows AS seen WHERE seen.id = %(p_workflow)s)"
_RISES = "SET fence_token = fence_token + 1"

_UNOWNED = _without("token", *GUARDED) + _without("lease", *GUARDED) + _without("checkpoints", *COUNTED)

_GUARDS = (
    Broken(
        "idempotency_key",
        "The tool is called without a key, so the world cannot know that it was asked before.",
        "crewAIInc/crewAI#5802",
        engine=overrides.NoKey,
    ),
    Broken(
        "intent",
        "The action is planned only after the tool was called, so a crash between leaves no trace of what was meant.",
        journal=overrides.PlansAfterwards,
    ),
    Broken(
        "fence_token",
        "Writes do not compare the token, so a claim that was taken over still looks like a claim.",
        "NousResearch/hermes-agent#99283",
        _without("token", *GUARDED, "load"),
    ),
    Broken(
        "lease_owner",
        "Writes do not compare the owner, so whoever knows the workflow may write.",
        "rafidahmed870/queue-jobs-worker#19",
        _without("owner", *GUARDED, "load"),
    ),
    Broken(
        "lease_expiry",
        "Writes do not look whether the lease has ended, so a late worker writes until somebody takes over.",
        "imtms/tagent-core#56",
        _without("lease", *GUARDED),
    ),
    Broken(
        "checkpoint_count",
        "Writes do not compare how many checkpoints there are, so the same call may be recorded at two positions.",
        edits=_without("checkpoints", *COUNTED),
    ),
    Broken(
        "skip_locked",
        "A claim waits for a row that somebody holds locked, instead of taking the next one.",
        "OCA/queue#859",
        (Edit("claim", " SKIP LOCKED"),),
    ),
    Broken(
        "checkpoint_after_step",
        "The step is marked as done before it is run, so after a crash a result is replayed that nobody computed.",
        journal=overrides.MarksFirst,
    ),
    Broken(
        "acknowledge_after_tool",
        "The action is acknowledged before the tool is called, so after a crash nobody calls it any more.",
        "taskiq-python/taskiq#222",
        journal=overrides.AcknowledgesFirst,
    ),
)

_OTHERS = (
    Broken(
        "key_from_position",
        "The key counts the calls that this run executes; a successor, which replays some, counts to another number.",
        "openclaw/openclaw#127378",
        journal=overrides.KeyFromPosition,
    ),
    Broken(
        "key_at_execution",
        "The key is made at the moment of the call (here from the token), so each call brings a key of its own.",
        "square/square-mcp-server#31",
        engine=overrides.KeyAtExecution,
    ),
    Broken(
        "fence_read_first",
        "Token, owner and lease are read by one statement and trusted by the next: what was read may be old by then.",
        "sipyourdrink-ltd/bernstein#5908",
        _UNOWNED + _without("owner", *GUARDED),
        (overrides.READ_FENCE,),
        engine=overrides.ReadsFence,
    ),
    Broken(
        "claim_reads_first",
        "A claim reads a runnable row and writes it in a second statement: two workers read it before either writes.",
        "vishnukothakapu/linkid#397",
        (
            Edit("claim", "WHERE status = 'ready'\n" + _ORDERED, "WHERE id = %(p_next)s\n      AND status = 'ready'\n"),
            Edit("claim", _RISES, "SET fence_token = %(p_read_token)s + 1"),
        ),
        (overrides.READ_RUNNABLE,),
        engine=overrides.ReadsBeforeClaiming,
    ),
    Broken(
        "claim_without_lock",
        "A claim reads and writes in one statement but locks nothing between, so it writes over a claim that it waited for.",
        edits=(
            Edit("claim", "\n    FOR NO KEY UPDATE SKIP LOCKED"),
            Edit("claim", "SELECT id,\n", "SELECT id,\n           fence_token AS read_token,\n"),
            Edit("claim", _RISES, "SET fence_token = read_token + 1"),
        ),
    ),
    Broken(
        "name_is_owner",
        "The worker's name alone says who holds the lease, and the next process of that name holds it too.",
        "aegra/aegra#547",
        _UNOWNED + _without("token", "load"),
        setting="names=shared",
    ),
    Broken(
        "status_only",
        "Writes ask only whether the workflow is unfinished, not who they are.",
        "nazarli-shabnam/clevis#253",
        _UNOWNED + _instead("owner", "status", *GUARDED),
    ),
    Broken(
        "lease_never_expires",
        "A claim takes only what nobody holds, so what a dead worker held is held for ever.",
        "scttnlsn/monq#33",
        (
            Edit("claim", " OR lease_expires_at <= clock_timestamp())", ")"),
            Edit("runnable", " OR lease_expires_at <= clock_timestamp())", ")"),
        ),
    ),
    Broken(
        "wait_reads_first",
        "The events are looked at in one statement and the workflow parked by the next: what comes between wakes nobody.",
        "aikirun/aiki#173",
        (Edit("wait", _HAS_EVENT, "%(p_seen)s", 7),),
        (overrides.READ_EVENTS,),
        engine=overrides.ReadsEvents,
        setting="workflow=research_agent",
    ),
    Broken(
        "wait_reads_snapshot",
        "One statement, but it looks for the event in a snapshot and not in the row that it has locked.",
        "Kludex/pgtask#23",
        (Edit("wait", _HAS_EVENT, _IN_SNAPSHOT, 7),),
        setting="workflow=research_agent",
    ),
    Broken(
        "renewal_revives",
        "A renewal asks neither whose the lease is nor whether it has ended, and takes it back from its new holder.",
        "brendanlong/lion-reader#917",
        (
            *_instead("owner", "status", "renew"),
            *_without("token", "renew"),
            *_without("lease", "renew"),
            Edit("renew", "SET lease_expires_at", "SET lease_owner = %(p_worker)s,\n        lease_expires_at"),
        ),
    ),
)

GUARDS: Mapping[str, Broken] = {broken.name: broken for broken in _GUARDS}
"""The guards of the engine by name, each with the engine that lacks it. They can be left out in any combination."""

BROKEN: Mapping[str, Broken] = {broken.name: broken for broken in (*_GUARDS, *_OTHERS)}
"""Every broken engine by name: those that lack a guard, and those that have a mistake in its place."""


class _WithoutGuards(Engine):
    """The base of every broken engine: its database uses the changed texts. `without` names what is missing."""

    without: tuple[str, ...] = ()

    def __init__(self, database: Database, **options: Any) -> None:
        super().__init__(database.with_texts(texts(self.without, database.schema)), **options)


def chosen(without: Iterable[str]) -> list[Broken]:
    """The broken engines of these names, in the table's order, each once. Raises AgentFlowError for an unknown name."""
    names = set([without] if isinstance(without, str) else without)
    unknown = sorted(names - BROKEN.keys())
    if unknown:
        raise AgentFlowError(
            f"There is no guard {unknown[0]!r:.80}. The guards are {', '.join(GUARDS)}; other broken engines are "
            f"{', '.join(name for name in BROKEN if name not in GUARDS)}."
        )
    return [broken for name, broken in BROKEN.items() if name in names]


def texts(without: Iterable[str], schema: str) -> dict[str, str]:
    """The changed and added statements of these broken engines by name, rendered for a schema.

    Raises AgentFlowError if a statement does not have what is to be taken from it, or two of them change the same words.
    """
    several = chosen(without)
    changed = {edit.statement: ALL_STATEMENTS[edit.statement].text for broken in several for edit in broken.edits}
    # A mistake in the guard's place first: a guard's own clause may then be gone already.
    for broken in sorted(several, key=lambda broken: broken.name in GUARDS):
        for edit in broken.edits:
            changed[edit.statement] = _apply(edit, changed[edit.statement], broken.name)
    statements = {name: replace(ALL_STATEMENTS[name], text=text) for name, text in changed.items()}
    statements |= {statement.name: statement for broken in several for statement in broken.adds}
    return {name: statement.render(schema) for name, statement in statements.items()}


def _apply(edit: Edit, text: str, name: str) -> str:
    found = ALL_STATEMENTS[edit.statement].text.count(edit.old)
    if found != edit.times:
        raise AgentFlowError(
            f"The engine without {name} cannot be made: statement {edit.statement!r} contains {edit.old.strip()!r} {found} times "
            f"instead of {edit.times}. The statement was changed; adapt agentflow/lab/broken/catalogue.py."
        )
    if edit.new and text.count(edit.old) != edit.times:
        raise AgentFlowError(
            f"The engine without {name} cannot be made: another broken engine has already changed {edit.old.strip()!r} in "
            f"statement {edit.statement!r}. These two cannot be combined; choose one of them."
        )
    return text.replace(edit.old, edit.new)


def engine_class(without: Iterable[str]) -> type[Engine]:
    """The engine without these guards, or with these mistakes; without none it is Engine itself.

    The same names give the same class. Raises AgentFlowError for an unknown name.
    """
    return _engine_class(tuple(broken.name for broken in chosen(without)))


@cache
def _engine_class(names: tuple[str, ...]) -> type[Engine]:
    if not names:
        return Engine
    several = chosen(names)
    texts(names, "agentflow")  # what misses its words fails here
    journals = tuple(broken.journal for broken in several if broken.journal)
    engines = tuple(broken.engine for broken in several if broken.engine)
    body: dict[str, Any] = {"without": names, "__doc__": " ".join(broken.forgets for broken in several)}
    if journals:
        body["journal"] = type("BrokenJournal", journals, {})
    return type(f"EngineWithout({', '.join(names)})", (*engines, _WithoutGuards), body)
