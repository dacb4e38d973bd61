"""09: what the notebook on life outside the laboratory asks, and how its exercise is judged."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ....model import Policy
from ...notebook.tables import shown
from ..checks import CheckFailed
from ..judging import a_kind, answer_of
from ..outline import RIGHT, Outline, Question, exercise_of

HOUR, DAY = 3_600.0, 86_400.0
MANY = 100_000
POLL = 1.0  # seconds, as a worker that is started without `--poll`
SCENARIOS = ("chat", "video", "rates")


def settings(give: Callable[[], Any]) -> str:
    """`give()` returns a Policy for each of SCENARIOS, and each fits its scenario. Raises CheckFailed."""
    found = answer_of(give, "when it was called")
    wanted = f"Return a dict with a Policy for each of {', '.join(SCENARIOS)}."
    if not isinstance(found, Mapping):
        raise CheckFailed(f"{wanted} Yours is {a_kind(found)}.")
    if missing := [name for name in SCENARIOS if name not in found]:
        raise CheckFailed(f"{wanted} Yours has none for {', '.join(missing)}.")
    if unknown := [str(name) for name in found if name not in SCENARIOS]:
        raise CheckFailed(f"{wanted} Yours also has one for {shown(', '.join(unknown))}.")
    for name, policy in found.items():
        if not isinstance(policy, Policy):
            raise CheckFailed(f"{name}: {shown(str(policy))} is {a_kind(policy)}. Return Policy(...).")
        if policy.max_attempts > MANY:
            raise CheckFailed(f"{name}: max_attempts is {policy.max_attempts}. Give a whole number up to {MANY:,}.")
    _chat(found["chat"].lease_seconds)
    _video(found["video"].lease_seconds)
    _rates(found["rates"])
    return "Solved: deaths are noticed in time, no living worker is robbed, and the last try comes at the right time."


def _chat(lease: float) -> None:
    if lease + POLL > 15:
        raise CheckFailed(
            f"chat: a lease of {lease:g} s. A death is noticed by the first poll after the lease ends, so up to "
            f"{lease + POLL:g} s later, and 15 s is the limit."
        )
    if lease * 2 / 3 <= 2:
        raise CheckFailed(
            f"chat: a lease of {lease:g} s is renewed every {lease / 3:.2g} s. A pause of 2 s that begins just before a renewal "
            f"leaves it {lease / 3 + 2:.2g} s without one, and a living worker has lost its lease."
        )


def _video(lease: float) -> None:
    if lease <= 600:
        raise CheckFailed(
            f"video: a lease of {lease:g} s ends while the step, which takes 600 s, lets nothing renew it."
        )
    if lease * 2 / 3 <= 600:
        raise CheckFailed(
            f"video: a lease of {lease:g} s may be a third old when the step begins, and {lease * 2 / 3:g} s are left. The step "
            "takes 600 s."
        )

    if lease + POLL > HOUR:
        raise CheckFailed(
            f"video: a lease of {lease:g} s. A death is noticed up to {lease + POLL:g} s later, and 3600 s is the limit."
        )


def _rates(policy: Policy) -> None:
    """All the waiting lasts longer than the outage and less than a day, whatever jitter delay() adds. Raises CheckFailed."""
    delays = [min(policy.max_delay, policy.first_delay * 2 ** min(n, 30)) for n in range(policy.max_attempts - 1)]
    shortest, longest = sum(delays), sum(delays) * 1.25
    if shortest < HOUR:
        raise CheckFailed(
            f"rates: the last of {policy.max_attempts} tries comes {shortest:g} s after the first, and the source may be "
            "away for 3600 s. The step would fail for good while the source is still away."
        )
    if longest > DAY:
        raise CheckFailed(
            f"rates: with the quarter that chance may add, the last of {policy.max_attempts} tries comes {longest:g} s after "
            "the first, and 86400 s later nobody needs the answer."
        )


OUTLINE = Outline(
    name="09-beyond-the-lab",
    title="Beyond the lab",
    goal="See what a real service adds, what this engine does about it, what it leaves open, and how others behave.",
    minutes=15,
    questions=(
        Question(
            "the-poison",
            "A request kills every worker that touches it, before anything is recorded. What should an engine do?",
            {
                "hand it to the next worker, always": "trying again were always right. In fact this request takes a worker from "
                "all the others each time, for ever",
                "drop it": "nobody missed it. In fact a customer waits for it, and the person who fixes the cause needs the row",
                "give up after some deaths, and keep it": RIGHT,
                "give up at the first death": "a death said something about the request. In fact most workers die of deploys, "
                "memory and machines",
            },
            "The count of deaths stands in the row, so it outlives those who died. The third was one too many, and the row keeps "
            "the error.",
        ),
        Question(
            "the-peers",
            "The same function runs on a plain retry, with results in memory, on AgentFlow and on DBOS. Each time it is killed "
            "right after its tool acted, then carried on. On how many of the four is the tool called a second time?",
            {
                "none: their records are for that": "a record could hold what the tool did. In fact it is written after the "
                "answer, and the run died before that",
                "only on the plain retry, which has no record": "a checkpoint closed the gap. In fact it is written after the "
                "call, since it and the world's record cannot commit together",
                "on all four": RIGHT,
            },
            "The effect is in the world and the answer died with the run, so nobody can know, and each asks again. Three of the "
            "four ask with the same key, so only the plain retry has two effects.",
        ),
    ),
    exercises=(
        exercise_of(
            settings,
            "chat and video need only lease_seconds. A lease is renewed when a third has passed, so two thirds are left. "
            "How long a death may go unnoticed is bounded for both.",
            "rates waits max_attempts - 1 times: first_delay, then twice that, and so on, each at most max_delay.",
            "With first_delay=1 and max_delay=3600, twelve waits are 1 + 2 + 4 + ... + 2048 = 4095 seconds.",
        ),
    ),
)
