"""The five kinds of workflow, told once more: what each asks for, step by step, and what comes of it.

For the judge, who must not believe the functions themselves. A story is a generator: it yields the next call and is sent
what stands recorded for it, a value or a `Failure`; what it returns is the workflow's result. Nothing of AgentFlow is
imported.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Call:
    """What a workflow asks for next: a step, an event, or an action with its arguments."""

    kind: str
    step: str
    name: str | None = None
    arguments: Any = None


@dataclass(frozen=True)
class Failure:
    """The recorded failure of a call."""

    error: Any


Story = Generator[Call, Any, Any]


def support_agent(request: str) -> Story:
    """Classify, plan, resolve."""
    classification = yield Call("step", "classify")
    yield Call("step", "plan")
    return (yield _resolved(classification))


def approval_agent(request: str) -> Story:
    """Classify, ask, and resolve if the answer was yes."""
    classification = yield Call("step", "classify")
    if not (yield Call("wait", "approval", "approval")):
        return {"account_unlocked": False}
    return (yield _resolved(classification))


def research_agent(options: Mapping[str, Any]) -> Story:
    """Retrieve, extract, tell by e-mail, perhaps ask, draft, deliver."""
    yield Call("step", "retrieval")
    facts = yield Call("step", "extraction")
    yield Call("side_effect", "extraction-complete", "email:extraction-complete")
    if options["with_wait"]:
        yield Call("wait", "approval", "editor.approved")
    draft = yield Call("step", "drafting")
    delivered = yield Call("step", "deliver")
    right = draft == f"draft({'+'.join(facts)})#{options['nonce']}" and delivered == f"delivered:{draft}"
    return delivered if right else ("no result, since the draft was", draft)


def order(request: Mapping[str, Any]) -> Story:
    """Quote, reserve, charge, ship; or give back."""
    quote = yield Call("step", "quote")
    reserved = yield Call("side_effect", "reserve", "reserve", {"item": request["item"], "quote": quote["number"]})
    paid = yield Call("side_effect", "charge", "charge", {"total": quote["total"]})
    if isinstance(paid, Failure):
        last = yield Call("side_effect", "back", "give-back", {"reservation": reserved["receipt"]})
    else:
        last = yield Call("side_effect", "ship", "ship", {"paid": paid["receipt"]})
    return {"shipped": not isinstance(paid, Failure), "quote": quote["number"], "receipt": last["receipt"]}


def slow(request: Mapping[str, Any]) -> Story:
    """Take long, fetch or not, tell."""
    long = yield Call("step", "long")
    page = yield Call("step", "fetch")
    page = None if isinstance(page, Failure) else page
    told = yield Call("side_effect", "tell", "tell", {"long": long, "page": page})
    return {"long": long, "page": page, "told": told}


def _resolved(classification: Mapping[str, Any]) -> Call:
    return Call("side_effect", "resolve-account", "resolve-account", {"category": classification["category"]})


STORIES: Mapping[str, Callable[[Any], Story]] = {
    "support_agent": support_agent,
    "research_agent": research_agent,
    "approval_agent": approval_agent,
    "order": order,
    "slow": slow,
}
MAY_FAIL = {"charge", "fetch"}  # the only calls whose recorded failure is no mistake
EVENTS = {"approval", "editor.approved"}
