"""Which guard matters: the verdict of the explorer on each set of guards left out, under which assumptions and bounds.

A test explores every line again. An explorer that moves by transactions cannot see races inside one statement: such an engine
holds here, and the pair matrix finds it.

The lesson of the table. The token (with the owner) keeps stale workers from writing; the count of checkpoints keeps two
lines of calls from mixing; each alone is enough against harm while the other stands, and so are names that are new for each
start. Without token, owner and one of the two others, workflows break. No guard of the row replaces the idempotency key,
because the tool acts outside: neither does `look_up`, which needs the key itself, and the key protects only while the tool
remembers it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from agentflow import Engine
from agentflow.lab.explorer.explore import explore
from agentflow.lab.explorer.report import Exploration
from agentflow.lab.notebook.tables import Table

VerdictKind = Literal["harm", "authority", "holds"]


@dataclass(frozen=True)
class Verdict:
    """One exploration and what came of it: `kind`, the invariant that fell and the moves of the shortest schedule.

    `without` are the guards (or the mistakes) of broken.BROKEN, `options` the other options of explore(). `long` says that
    exhausting it takes more than a few seconds. `because` is the reason in a sentence.
    """

    without: tuple[str, ...]
    kind: VerdictKind
    because: str
    invariant: str = ""
    moves: str = ""
    options: dict[str, Any] = field(default_factory=dict)
    long: bool = False

    @property
    def assumption(self) -> str:
        """The other options of explore(), as `name=value`."""
        return " ".join(f"{name}={value}" for name, value in self.options.items())

    def __str__(self) -> str:
        return f"{' '.join([','.join(self.without) or 'all guards', self.assumption]).strip()}: {self.kind}"

    def explored(self, engine: Engine | None = None, **options: Any) -> Exploration:
        """The exploration of this line, made now; options as for explore()."""
        return explore(engine, without=self.without, **{**self.options, **options})


_EFFECT, _DONE, _ANSWER, _STUCK, _ONCE = (
    "one effect per action", "completed means done", "the result is the tools", "no workflow is stuck", "one completion",
)  # fmt: skip
_STALE, _RISE = "nothing under an older token", "tokens only rise"
SHARED: dict[str, Any] = {"names": "shared"}
VARYING: dict[str, Any] = {"model": "varying"}
SMALL: dict[str, Any] = {"crashes": 1, "expiries": 1}


def _harm(*without: str, because: str, fell: str, moves: str, **options: Any) -> Verdict:
    return Verdict(without, "harm", because, fell, moves, options)


def _authority(*without: str, because: str, moves: str, long: bool = False, **options: Any) -> Verdict:
    return Verdict(without, "authority", because, _STALE, moves, options, long)


def _holds(*without: str, because: str, long: bool = False, **options: Any) -> Verdict:
    return Verdict(without, "holds", because, options=options, long=long)


_TOGETHER = "a stale worker writes where its successor writes, and the step stands there already"
_COUNTED = "a stale worker writes as long as it counts right; the tool's key and the count keep the harm away"

VERDICTS: tuple[Verdict, ...] = (
    # The real engine, under every assumption.
    _holds(because="every guard is on"),
    _holds(because="two workers of one name are told apart by their tokens", **SHARED),
    _holds(because="what a step answered is checkpointed once, whoever asked", **VARYING, long=True),
    _holds(because="the world is asked by the key before the tool is called again", retry="look_up"),
    _holds(because="an event is seen in the locked row, before, during or after", workflow="approval_agent"),
    _holds(because="the first payload stays", workflow="approval_agent", payloads=2, **SMALL),
    _holds(because="an unexpired lease is prolonged, a lost one never revived", renewals=1, long=True),
    _holds(because="what is asked again is recognised in the locked row", lost_commits=1, long=True),
    _holds(because="each workflow's row is guarded by itself", workflows=2, crashes=1, expiries=1, lost_replies=0, long=True),
    # One guard less.
    _harm("idempotency_key", because="the tool cannot know that it was asked before", fell=_EFFECT, moves="A*5 expire B*2"),
    _harm(
        "idempotency_key", because="looking up needs the key that was not given", fell=_EFFECT, moves="A*5 expire B*2",
        retry="look_up",
    ),
    _harm(
        "checkpoint_after_step", because="a result is replayed that nobody computed", fell=_STUCK, moves="A*2 A!",
    ),
    _harm(
        "acknowledge_after_tool", because="what is recorded cannot be the tool's answer, which came later", fell=_ANSWER,
        moves="A*7",
    ),
    _harm(
        "acknowledge_after_tool", because="nobody calls the tool any more after a crash", fell=_DONE,
        moves="A*5 expire B*2", stop_at="never", **SMALL,
    ),
    _holds("intent", because="the key is made from names, and so the same one after a crash"),
    _holds("fence_token", because="names are new for each start, so the owner tells holders apart"),
    _holds("lease_owner", because="the token tells holders apart"),
    _holds("lease_expiry", because="until somebody takes over, the late worker is the only one"),
    _holds("checkpoint_count", because="only the holder writes, and it counts by itself"),
    _holds("skip_locked", because="it waits inside a statement, where only the pair matrix looks"),
    _authority("fence_token", because=_COUNTED, moves="A expire B A", **SHARED),
    _holds("lease_owner", because="the token tells holders apart", **SHARED),
    _holds("lease_expiry", because="until somebody takes over, the late worker is the only one", **SHARED),
    _holds("checkpoint_count", because="only the holder writes, and it counts by itself", **SHARED),
    _holds("intent", because="the key is made from names", **SHARED),
    _holds("fence_token", because="the owner tells holders apart, whatever the model says", **VARYING, **SMALL),
    _holds("lease_owner", because="the token tells holders apart, whatever the model says", **VARYING, **SMALL),
    _holds("checkpoint_count", because="only the holder writes, whatever the model says", **VARYING, **SMALL),
    _holds("intent", because="its arguments come from a checkpoint, whatever the model says", **VARYING, **SMALL),
    _harm(
        "checkpoint_count", because="what was committed unheard is committed again", fell=_STUCK, moves="A A? A*2",
        lost_commits=1,
    ),
    # Two guards less, where one less does nothing.
    _authority("fence_token", "lease_owner", because=_COUNTED, moves="A expire B A", long=True),
    _authority("fence_token", "lease_owner", because=_COUNTED, moves="A expire B A", **SHARED),
    _authority("fence_token", "lease_owner", because=_COUNTED, moves="A expire B A", **VARYING, **SMALL),
    _holds("fence_token", "lease_expiry", because="the owner tells holders apart"),
    _authority("fence_token", "lease_expiry", because=_COUNTED, moves="A expire B A", **SHARED),
    _holds("fence_token", "checkpoint_count", because="the owner tells holders apart"),
    _harm("fence_token", "checkpoint_count", because=_TOGETHER, fell=_STUCK, moves="A expire B A B*2", **SHARED),
    _holds("lease_owner", "lease_expiry", because="the token tells holders apart"),
    _holds("lease_owner", "checkpoint_count", because="the token tells holders apart"),
    _holds("lease_expiry", "checkpoint_count", because="token and owner tell holders apart"),
    _holds("lease_owner", "lease_expiry", because="the token tells holders apart", **SHARED),
    _holds("lease_owner", "checkpoint_count", because="the token tells holders apart", **SHARED),
    _holds("lease_expiry", "checkpoint_count", because="token and owner tell holders apart", **SHARED),
    _holds("intent", "fence_token", because="the owner tells holders apart, the key is made from names", long=True),
    _holds("intent", "lease_owner", because="the token tells holders apart, the key is made from names", long=True),
    _holds("intent", "lease_expiry", because="token and owner tell holders apart", long=True),
    _holds("intent", "checkpoint_count", because="only the holder writes", long=True),
    # Three and four.
    _harm(
        "fence_token", "lease_owner", "lease_expiry", because="nobody is told apart, and the count ends with the last step",
        fell=_ONCE, moves="A*6 expire B A B",
    ),
    _harm("fence_token", "lease_owner", "checkpoint_count", because=_TOGETHER, fell=_STUCK, moves="A expire B A B*2"),
    _holds("fence_token", "lease_expiry", "checkpoint_count", because="the owner alone is enough, while names are new"),
    _harm(
        "fence_token", "lease_expiry", "checkpoint_count", because=_TOGETHER, fell=_STUCK, moves="A expire B A B*2",
        **SHARED,
    ),
    _holds("lease_owner", "lease_expiry", "checkpoint_count", because="the token alone is enough"),
    _holds("lease_owner", "lease_expiry", "checkpoint_count", because="the token alone is enough", **SHARED),
    _harm(
        "fence_token", "lease_owner", "lease_expiry", "checkpoint_count", because=_TOGETHER, fell=_STUCK,
        moves="A expire B A B*2",
    ),
    # Mistakes in a guard's place.
    _harm("key_from_position", because="a successor counts to another number", fell=_EFFECT, moves="A*5 expire B*2"),
    _harm("key_at_execution", because="each call brings a key of its own", fell=_EFFECT, moves="A*5 expire B*2"),
    _harm("fence_read_first", because="what was read is old when the write comes", fell=_STUCK, moves="A*2 expire B A B*4"),
    _harm("claim_reads_first", because="two workers read the row before either writes", fell=_STUCK, moves="A B A*2 B*3"),
    _harm(
        "name_is_owner", because="the next process of the name is the owner too", fell=_STUCK, moves="A expire B A B*2",
        **SHARED,
    ),
    _harm("status_only", because="nobody is told apart", fell=_STUCK, moves="A expire B A B*2"),
    _harm("lease_never_expires", because="what a dead worker held is held for ever", fell=_STUCK, moves="A A!"),
    _harm(
        "wait_reads_first", because="the event comes between the look and the parking", fell=_STUCK,
        moves="A*3 event:approval A", workflow="approval_agent",
    ),
    _authority("renewal_revives", because=_COUNTED, moves="A expire B A~", renewals=1, crashes=1),
    _holds("claim_without_lock", because="the race lies inside a statement; the pair matrix finds it"),
    _holds(
        "wait_reads_snapshot", because="the race lies inside a statement; the pair matrix finds it", workflow="approval_agent",
    ),
    # The promise's own edges: two failures at once, and a tool that forgets.
    _holds(
        because="a forgotten key that nobody needs any more harms nobody", forgettings=1, crashes=0, expiries=0,
        lost_replies=0,
    ),
    _harm(
        because="a worker is lost in the gap and the tool forgets: two failures at once", fell=_EFFECT,
        moves="A*5 expire B forget B", forgettings=1,
    ),
    _harm(
        because="looking up finds nothing when the tool has forgotten", fell=_EFFECT, moves="A*5 expire forget B*2",
        forgettings=1, retry="look_up",
    ),
)  # fmt: skip
"""Every set of guards that was explored, by default within explore()'s bounds: two workers, two crashes, two expiries, one
lost reply."""


RACES = (
    ("fence_read_first", "claimed", "expire", "checkpoint"),
    ("fence_read_first", "claimed", "cancel", "complete"),
    ("claim_reads_first", "ready", "claim", "claim"),
    ("claim_without_lock", "ready", "claim", "claim"),
    ("wait_reads_first", "claimed", "deliver", "wait"),
    ("wait_reads_snapshot", "claimed", "deliver", "wait"),
    ("checkpoint_count", "in the gap", "acknowledge", "acknowledge"),
)
"""Broken engines that the pair matrix finds: in which situation, and which two transactions; a test tries each again."""

WAITS = "skip_locked"
"""The broken engine that the pair matrix sees wait where nobody may; it does no other harm."""


def best(name: str) -> Verdict:
    """The gravest verdict on this broken engine alone, under the fewest assumptions."""
    kinds = ("harm", "authority", "holds")
    alone = [one for one in VERDICTS if one.without == (name,)]
    return min(alone, key=lambda one: (kinds.index(one.kind), len(one.options)))


def table(kind: VerdictKind | None = None) -> Table:
    """The verdicts (all, or those of one kind) as a table: guards left out, assumption, what came of it, and why."""
    rows = [
        {
            "without": ", ".join(one.without) or "nothing", "assumption": one.assumption,
            "verdict": f"{one.kind}: {one.invariant}" if one.invariant else one.kind, "shortest schedule": one.moves,
            "because": one.because,
        }
        for one in VERDICTS
        if kind in (None, one.kind)
    ]  # fmt: skip
    return Table(rows, "which guard matters")
