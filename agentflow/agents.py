"""The example workflows: three agents, each a plain function of a run and its input, and what is particular to them.

Everything durable about them is in the run's three methods. `states` names the state that people see after a step; without
it the state is the step's id in capitals.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from .run import Workflow
from .tools import StandInModel

DEFAULT_WORKFLOW = "support_agent"
DEFAULT_ACTION = "resolve-account"


def states(**names: str) -> Callable[[Workflow], Workflow]:
    """The workflow declares the state after each step: `@states(classify="CLASSIFIED")`."""

    def declare(function: Workflow) -> Workflow:
        function.states = names  # type: ignore[attr-defined]
        return function

    return declare


def support_agent_with(model: StandInModel) -> Workflow:
    """The support agent on a model of your own."""

    @states(classify="CLASSIFIED", plan="PLANNED")
    def support_agent(run: Any, request: str) -> Any:
        """Classify the request, plan, and resolve the account: two model calls and one action in the outside world."""
        if not isinstance(request, str):
            raise TypeError(f"A support request is text, not {type(request).__name__}.")
        classification = run.step("classify", lambda: model.classify(request))
        run.step("plan", lambda: model.plan(classification))
        return run.side_effect(
            "resolve-account", key="resolve-account", arguments={"category": classification["category"]}
        )

    return support_agent


def research_agent_with(model: StandInModel) -> Workflow:
    """The research agent on a model of your own."""

    def research_agent(run: Any, options: Mapping[str, Any] | None = None) -> Any:
        """Retrieval, extraction, an e-mail that must not be sent twice, perhaps an approval, drafting, delivery.

        Options: `fail_on` makes one step raise as a provider's timeout would, `with_wait` asks an editor first, `nonce`
        makes the draft's generation visible. Source: durable-py.
        """
        told = options or {}

        def ask(name: str, prompt: str, answer: Any) -> Any:
            if told.get("fail_on") == name:
                raise RuntimeError(f"{name} timed out")
            return model.ask(name, prompt, answer)

        docs = run.step("retrieval", lambda: ask("retrieval", "sources", ["doc-a", "doc-b", "doc-c"]))
        facts = run.step("extraction", lambda: ask("extraction", str(docs), [doc.upper() for doc in docs]))
        run.side_effect("email:extraction-complete", key="extraction-complete")
        if told.get("with_wait"):
            run.wait_for_event("approval", "editor.approved")
        draft = run.step(
            "drafting", lambda: ask("drafting", str(facts), f"draft({'+'.join(facts)})#{told.get('nonce', 0)}")
        )
        return run.step("deliver", lambda: ask("deliver", draft, f"delivered:{draft}"))

    return research_agent


def approval_agent_with(model: StandInModel) -> Workflow:
    """The approval agent on a model of your own."""

    @states(classify="CLASSIFIED", approval="APPROVED")
    def approval_agent(run: Any, request: str) -> Any:
        """Classify the request, ask a person, and resolve the account only if the answer is yes."""
        classification = run.step("classify", lambda: model.classify(request))
        if not run.wait_for_event("approval", "approval"):
            return {"account_unlocked": False}
        return run.side_effect(
            "resolve-account", key="resolve-account", arguments={"category": classification["category"]}
        )

    return approval_agent


support_agent = support_agent_with(StandInModel())
research_agent = research_agent_with(StandInModel())
approval_agent = approval_agent_with(StandInModel())
WORKFLOWS: dict[str, Workflow] = {
    "support_agent": support_agent,
    "research_agent": research_agent,
    "approval_agent": approval_agent,
}

TAKE_A_TEXT = ("support_agent", "approval_agent")
"""The example workflows whose input is a support request's text."""


def answers_of(steps: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """What the support agent recorded: its classification and its plan, each None until then."""
    values = {step["step_id"]: step["value"] for step in steps}
    return {"classification": values.get("classify"), "plan": values.get("plan")}


def why_no_workflow(function: Any) -> str | None:
    """Why this cannot run as a workflow, and what to do, as the end of a sentence about it; None if it can."""
    if isinstance(function, type) or not callable(function):
        kind = "a class" if isinstance(function, type) else f"a value of type {type(function).__name__}"
    elif inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
        kind = "an async function; the engine is synchronous"
    elif inspect.isgeneratorfunction(function):
        kind = "a generator, whose body would not run"
    else:
        try:
            inspect.signature(function).bind("run", "input")
        except TypeError as error:
            kind = f"a function that cannot take a run and its input ({error})"
        except ValueError:  # a built-in function that says nothing about itself
            return None
        else:
            return None
    return f"is no workflow but {kind}. Give a function such as `def order(run, request): ...`"


def why_unusable(name: str, request: Any) -> str | None:
    """Why the workflow of this name cannot take this request, or None if it can."""
    if name == "support_agent" and not isinstance(request, str):
        return "support_agent takes a text as its request."
    return None
