"""What can be played: the workflows, their requests, and the famous histories, each as one line."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import Any

from ...agents import approval_agent_with, research_agent_with, support_agent_with, why_no_workflow
from ...errors import BadSchedule
from ...run import Workflow
from ...tools import StandInModel
from ...values import to_json
from .grammar import Schedule, Setting

REQUESTS = (
    "I forgot my password and the reset mail never shows up. Checked spam twice.",
    "the invoice for march has our old address on it, can you send it again?",
    "Login says 'account locked'. I have a demo in an hour, please help!",
    "how do i export all my notes? found only the button for one note",
    "my colleague left, please move her projects to me",
    "password reset link opens an empty page on my phone",
    "We were charged twice for the same month. Once is enough.",
    "the app logs me out every few minutes since the update, login again and again",
    "Can I change the language of the reports, but not of the menus?",
)
"""The requests of a laboratory, in order: `request-1` asks the first."""
MOST_EVENTS = 20  # for which a workflow waits, one after the other


@dataclass(frozen=True)
class Playable:
    """A workflow that a schedule can play: how it is made from a model, what it is asked, and which events it waits for."""

    make: Callable[[StandInModel], Workflow]
    inputs: Callable[[int], Any]
    events: tuple[str, ...] = ()


PLAYABLE: Mapping[str, Playable] = {
    "support_agent": Playable(support_agent_with, lambda index: REQUESTS[index]),
    "approval_agent": Playable(approval_agent_with, lambda index: REQUESTS[index], ("approval",)),
    "research_agent": Playable(research_agent_with, lambda _: {"with_wait": True}, ("editor.approved",)),
}


@dataclass(frozen=True)
class Preset:
    """A famous history: its line, and what to look at."""

    line: str
    look_at: str


PRESETS: Mapping[str, Preset] = {
    "happy path": Preset("A*", "Seven transactions, one worker, one effect."),
    "acknowledgment gap": Preset(
        "A*5 A! expire B*", "A crashes after the effect and before it could say so; B asks again with the same key."
    ),
    "stale worker": Preset(
        "A*2 A|| expire B* A> A", "A sleeps past its lease, B finishes, A wakes up and is refused by the fencing token."
    ),
    "race": Preset("requests=2 A B A B A* B*", "Two workers, two requests: each claims its own, nobody waits."),
    "lost reply": Preset("A*4 A/ A due A*", "The tool acted and its answer was lost; the worker lives and asks again."),
    "approval": Preset(
        "workflow=approval_agent A* event:approval B*", "Nobody holds the workflow while a person thinks; B goes on."
    ),
    "duplicate effect": Preset(
        "without=idempotency_key A*5 A! expire B*", "The same crash without a key: one planned action, two effects."
    ),
}


class WatchedModel(StandInModel):
    """A stand-in model whose calls pass through `watch(name, answer)`, which returns the answer to give."""

    def __init__(self, watch: Callable[[str, Any], Any]) -> None:
        super().__init__()
        self.watch = watch

    def ask(self, name: str, prompt: str, answer: Any) -> Any:
        """Returns what `watch` makes of the answer."""
        return self.watch(name, super().ask(name, prompt, answer))


def labelled_model(label: str) -> WatchedModel:
    """A model whose answers name the worker that asked and the number of the call, so that no two are alike."""
    calls = count(1)

    def mark(_: str, answer: Any) -> Any:
        made = f"{label}.{next(calls)}"
        return {**answer, "answered_by": made} if isinstance(answer, dict) else f"{answer}#{made}"

    return WatchedModel(mark)


def workflows_for(setting: Setting, label: str, own: Mapping[str, Workflow]) -> dict[str, Workflow]:
    """The functions that a worker knows; with `model=varying` those in PLAYABLE answer as `label`."""
    if setting.model == "steady":
        return dict(own)
    model = labelled_model(label)
    return {**own, **{name: playable.make(model) for name, playable in PLAYABLE.items()}}


def inputs_for(setting: Setting, own: Mapping[str, Workflow], inputs: Sequence[Any] | None = None) -> list[Any]:
    """The inputs of the setting's workflows, in order: the first of those given, or else the presets'.

    Raises BadSchedule for a workflow that nobody knows or that is none, and for fewer inputs than workflows; UnfaithfulValue
    for an input that JSON cannot hold.
    """
    if setting.workflow not in own:
        known = ", ".join(sorted(own))
        raise BadSchedule(f"workflow={setting.workflow} is not known; choose one of {known}.")
    if why := why_no_workflow(own[setting.workflow]):
        raise BadSchedule(f"workflow={setting.workflow} {why}")
    if inputs is not None:
        if not isinstance(inputs, list | tuple) or len(inputs) < setting.requests:
            kind = str(len(inputs)) if isinstance(inputs, list | tuple) else f"a {type(inputs).__name__}"
            raise BadSchedule(
                f"requests={setting.requests} needs a list with an input for each workflow. Given: {kind}. Nothing was moved; "
                "give as many inputs as there are workflows."
            )
        for number, value in enumerate(chosen := list(inputs[: setting.requests]), 1):
            to_json(value, workflow=f"request-{number}", step="input")
        return chosen
    playable = PLAYABLE.get(setting.workflow)
    give = playable.inputs if playable else lambda index: REQUESTS[index]
    return [give(index) for index in range(setting.requests)]


def events_of(workflow: str) -> tuple[str, ...] | None:
    """The events that a workflow in PLAYABLE waits for; None for any other, of which nothing is known."""
    playable = PLAYABLE.get(workflow)
    return playable.events if playable else None


def event_payloads(events: Mapping[str, Any] | None) -> dict[str, Any]:
    """What events of these names bring, as a workflow reads it from JSON; any other brings true. Raises UnfaithfulValue."""
    given = (events or {}).items()
    return {name: json.loads(to_json(one, workflow="(new)", step=f"event {name}")) for name, one in given}


def never_came(given: Mapping[str, Any], waited_for: Iterable[str]) -> str:
    """Which event was given a payload, and no workflow waits for it, as a part of a sentence; empty if there is none."""
    if not (never := sorted({*given} - {*waited_for})):
        return ""
    return (
        f"no workflow waits for the event {never[0]!r:.80}, which was given a payload; they wait for "
        f"{', '.join(waited_for) or 'none'}"
    )


def named(workflow: str | Workflow, known: Mapping[str, Workflow]) -> tuple[str, Workflow]:
    """The workflow's name and its function, of which either is given. Raises BadSchedule."""
    name = workflow if isinstance(workflow, str) else str(getattr(workflow, "__name__", type(workflow).__name__))
    functions = known if isinstance(workflow, str) else {name: workflow}
    inputs_for(Setting(name), functions, [None])
    return name, functions[name]


def meant(setting: Setting, own: Mapping[str, Workflow]) -> Setting:
    """The setting; if it has the default workflow and only others are known, the first of them is meant."""
    other = next(iter(own), setting.workflow)
    return (
        setting if setting.workflow in own or setting.workflow != Setting.workflow else replace(setting, workflow=other)
    )


def as_line(setting: Setting | Schedule | str | None) -> str:
    """The schedule line that is meant: a setting's, a preset's by its name, or the line itself."""
    return PRESETS[setting].line if isinstance(setting, str) and setting in PRESETS else str(setting or "")
