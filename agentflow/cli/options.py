"""What the commands share: the application, its options, and how figures are printed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any

import typer

COMMAND_PATIENCE = 2.0  # seconds that a command waits for a database that is away; a worker waits for ever
app = typer.Typer(
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    help="AgentFlow: a laboratory for durable execution on a real PostgreSQL. It uses the embedded server, or the one "
    "that DATABASE_URL names.",
)

Schema = Annotated[
    str, typer.Option("--schema", metavar="NAME", envvar="AGENTFLOW_SCHEMA", help="The schema to work in.")
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON value for programs.")]
_REQUESTS = typer.Option("--requests", metavar="FILE", help="A .csv or .jsonl file, or plain lines; - is stdin.")
Requests = Annotated[str, _REQUESTS]
RequestsOrNone = Annotated[str | None, _REQUESTS]
Column = Annotated[str | None, typer.Option("--column", metavar="NAME", help="The CSV column or JSON member to take.")]
Input = Annotated[str | None, typer.Option("--input", metavar="JSON", help="The input, such as '{\"total\": 300}'.")]
_NAMED = "NAME|MODULE:ATTRIBUTE"
WorkflowOrNone = Annotated[
    str | None, typer.Option("--workflow", metavar=_NAMED, help="An example's name, or a function of your own.")
]
Workflows = Annotated[
    list[str] | None,
    typer.Option("--workflow", metavar=_NAMED, help="The only workflow to run (default: the examples); repeatable."),
]
OwnTool = Annotated[
    list[str] | None,
    typer.Option("--tool", metavar="MODULE:ATTRIBUTE", help="A tool of your own, instead of the simulated one."),
]
OwnTools = Annotated[
    list[str] | None,
    typer.Option(
        "--tool", metavar="MODULE:ATTRIBUTE",
        help="A tool of your own, instead of the simulated one; repeatable: all are asked for their effects().",
    ),
]  # fmt: skip
Events = Annotated[
    list[str] | None,
    typer.Option("--event", metavar="NAME=JSON", help="What an event brings (default: true); repeatable."),
]
Guards = Annotated[
    list[str] | None, typer.Option("--without", metavar="GUARD", help="A guard that the engine lacks; repeatable.")
]
Tools = Annotated[
    list[str] | None,
    typer.Option("--tool", metavar="MODULE:ATTRIBUTE", help="A tool of your own, asked for its effects(); repeatable."),
]
ShowProgress = Annotated[
    bool | None, typer.Option("--progress/--no-progress", help="Show progress (default: on a terminal).")
]


def print_json(value: Any) -> None:
    """Prints the value as indented JSON."""
    typer.echo(json.dumps(value, ensure_ascii=False, indent=2, default=str))


def answer(as_json: bool, value: Any, text: str) -> None:
    """Prints the value for programs, or the text for people."""
    print_json(value) if as_json else typer.echo(text)


def print_figures(figures: Mapping[str, Any]) -> None:
    """Prints the figures, a line each, without the sentences beside them."""
    figures = {name: value for name, value in figures.items() if name != "problems"}
    width = max(map(len, figures))
    for name, value in figures.items():
        typer.echo(f"{name:<{width}}  {'not observed' if value is None else value}")
