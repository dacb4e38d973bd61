"""What a run of chaos will be, decided by its seed before anything starts: which fault strikes when, and who asks for what."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from random import Random
from typing import Any

# Of a hundred workflows so many are of each kind.
SHARES = {"support_agent": 35, "research_agent": 20, "approval_agent": 20, "order": 20, "slow": 5}
CANCELLED = 0.02


@dataclass(frozen=True)
class Setting:
    """How large a run is. `kinds` gives for each kind of fault how often it strikes; times in seconds."""

    seed: int
    seconds: float
    workflows: int
    kinds: Mapping[str, int]
    workers: int = 4
    lease: float = 3.0


@dataclass(frozen=True)
class Strike:
    """A fault of this kind at this second; what is left open about it is drawn from `chance`."""

    at: float
    kind: str
    number: int
    seed: int

    @property
    def chance(self) -> Random:
        """The same numbers each time that they are asked for."""
        return Random(f"{self.seed} strike {self.number}")


@dataclass(frozen=True)
class Wish:
    """What a person asks for at this second: create, deliver or cancel. Person 0 has a cable, person 1 the network."""

    at: float
    person: int
    asks: str
    workflow: str
    name: str = ""
    payload: Any = None


@dataclass(frozen=True)
class Plan:
    """The whole run, in the order of time."""

    setting: Setting
    strikes: tuple[Strike, ...]
    wishes: tuple[Wish, ...]

    def __str__(self) -> str:
        """A line for the size, and one for each kind of fault with its seconds."""
        told = self.setting
        names = Counter(wish.name for wish in self.wishes if wish.asks == "create")
        kinds = ", ".join(f"{count} {name}" for name, count in names.items())
        lines = [
            f"seed {told.seed}: {told.seconds:g} s, {told.workflows} workflows ({kinds}), {told.workers} workers, "
            f"lease {told.lease:g} s, {len(self.strikes)} faults of {len({one.kind for one in self.strikes})} kinds"
        ]
        for kind in dict.fromkeys(sorted(one.kind for one in self.strikes)):
            lines.append(f"  {kind:<21} at {' '.join(f'{one.at:.1f}' for one in self.strikes if one.kind == kind)}")
        return "\n".join(lines)


def make_plan(setting: Setting) -> Plan:
    """The plan of this setting; the same one each time."""
    chance = Random(f"{setting.seed} plan")
    kinds = [kind for kind, often in setting.kinds.items() for _ in range(often)]
    chance.shuffle(kinds)
    pace = 0.9 * setting.seconds / max(1, len(kinds))
    strikes = (
        Strike(0.05 * setting.seconds + (n + chance.random()) * pace, kind, n, setting.seed)
        for n, kind in enumerate(kinds)
    )
    return Plan(setting, tuple(strikes), tuple(sorted(_wishes(setting, chance), key=lambda wish: wish.at)))


def _wishes(setting: Setting, chance: Random) -> Iterator[Wish]:
    names = list(SHARES)
    sure = [
        name for name in names for _ in range(min(2, setting.workflows // len(names)))
    ]  # a small run has all kinds, too
    drawn = sure + chance.choices(names, list(SHARES.values()), k=setting.workflows - len(sure))
    chance.shuffle(drawn)
    for n, name in enumerate(drawn):
        at, workflow, person = chance.uniform(0, 0.92 * setting.seconds), f"{name}-{n:05}", chance.randrange(2)
        request, event = _request(name, n, chance)
        yield Wish(at, person, "create", workflow, name, request)
        later = min(at + chance.expovariate(4 / setting.seconds), 0.97 * setting.seconds)
        if event:
            yield Wish(later, person, "deliver", workflow, event, chance.random() < 0.8)
            if chance.random() < 0.3:  # again, perhaps by somebody else, perhaps with another payload
                again = later + chance.expovariate(1.0)
                yield Wish(again, chance.randrange(2), "deliver", workflow, event, chance.random() < 0.5)
        if chance.random() < CANCELLED:
            yield Wish(at + chance.expovariate(1.0), person, "cancel", workflow)


def _request(name: str, n: int, chance: Random) -> tuple[Any, str | None]:
    """A request of this kind, and the event that it will wait for."""
    if name == "research_agent":
        waits = chance.random() < 0.4
        return {"with_wait": waits, "nonce": n}, "editor.approved" if waits else None
    if name in ("order", "slow"):
        return {"item": f"item {chance.randrange(1000)}"}, None
    text = f"request {n}: {chance.choice(['I forgot my password', 'the invoice is wrong'])}"
    return text, "approval" if name == "approval_agent" else None
