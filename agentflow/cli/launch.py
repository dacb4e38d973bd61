"""What a program needs before it can run: JupyterLab's command line, a port, your own workflows, tables.

Nothing leaves the computer: JupyterLab listens on 127.0.0.1 and keeps its token, and its news, its check for updates
and its extension index are off.
"""

from __future__ import annotations

import importlib
import json
import logging
import os
import socket
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, redirect_stdout
from itertools import islice
from operator import attrgetter
from pathlib import Path
from traceback import extract_tb
from typing import Any, NoReturn, TextIO

import typer

from ..agents import DEFAULT_WORKFLOW, TAKE_A_TEXT, WORKFLOWS, why_no_workflow
from ..database import Database
from ..engine import is_embedded
from ..errors import AgentFlowError, BadName, DatabaseAway, UnfaithfulValue
from ..log import log_event
from ..migrations import migrate
from ..model import Tool
from ..requests import read_requests
from ..run import Workflow
from ..tools import why_no_tool
from ..values import to_json

FIRST_NOTEBOOK = Path("notebooks", "00-start-here.ipynb")
# Configuration without which JupyterLab asks whether it may fetch news, and a kernel whose folder comes last on sys.path.
JUPYTER = Path(__file__).parent.parent / "jupyter"


def course_folder() -> Path | None:
    """The folder whose `notebooks/` has the first notebook: this one, one above it, or the one of this checkout.

    A notebook that somebody else put there is not opened: it would run as us.
    """
    here, ours = Path.cwd(), Path(__file__).resolve().parents[2]
    for folder in (here, *here.parents, ours):
        if (folder / FIRST_NOTEBOOK).is_file():
            if folder == ours or _is_own(folder):
                return folder
            typer.echo(f"{folder / FIRST_NOTEBOOK} belongs to somebody else, so it is not opened.", err=True)
    return None


def _is_own(folder: Path) -> bool:
    """Whether the folder, its notebooks and their folder are ours, the links on the way too."""
    parts = (folder, folder / FIRST_NOTEBOOK.parent, *(folder / FIRST_NOTEBOOK.parent).glob("*.ipynb"))
    owners = {facts.st_uid for part in parts for facts in (part.lstat(), part.stat())}
    return owners == {getattr(os, "geteuid", int)()}


def jupyterlab(port: int, browser: bool, folder: Path | None) -> list[str]:
    """The command line of JupyterLab; without a course it opens on the current folder."""
    parts = [sys.executable, "-P", "-m", "agentflow.jupyterlab", "--ServerApp.ip=127.0.0.1", f"--ServerApp.port={port}"]
    parts += ["--LabApp.extension_manager=readonly"]
    if folder:
        parts += [f"--ServerApp.root_dir={folder}", f"--LabApp.default_url=/lab/tree/{FIRST_NOTEBOOK.as_posix()}"]
    if not browser:
        parts.append("--no-browser")
    if getattr(os, "geteuid", lambda: 1)() == 0:
        parts.append("--allow-root")
    return parts


def become(parts: list[str], schema: str) -> NoReturn:
    """Turns this process into JupyterLab (on Windows: waits for it).

    Its kernels find the schema in AGENTFLOW_SCHEMA, and its terminals find the command `agentflow`.
    """
    own = {"JUPYTER_CONFIG_PATH": JUPYTER, "JUPYTER_PATH": JUPYTER, "PATH": Path(sys.executable).parent}
    before = {name: os.pathsep.join(filter(None, [str(own[name]), os.environ.get(name)])) for name in own}
    environment = os.environ | before | {"AGENTFLOW_SCHEMA": schema}
    sys.stdout.flush()
    if sys.platform == "win32":
        sys.exit(subprocess.run(parts, env=environment, check=False).returncode)
    os.execve(parts[0], parts, environment)


def listen(host: str, port: int | None) -> socket.socket:
    """Returns a socket on the port; without a port, on 8000 or one of the next ten."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    for candidate in range(8000, 8011) if port is None else [port]:
        try:
            return socket.create_server((host, candidate), family=family)
        except OSError as error:
            trouble = error.strerror or str(error)
    raise AgentFlowError(
        f"Port {port or '8000 to 8010'} on {host} cannot be used ({trouble}). Stop the program that uses it, or choose "
        "another port with --port."
    )


def imported(option: str, spelled: str) -> Any:
    """Returns what `module:attribute` names; modules of the current folder can be imported, last. Raises BadName.

    What the module prints goes to standard error.
    """
    module, _, attribute = spelled.partition(":")
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.append(here)
    try:
        with redirect_stdout(sys.stderr):
            found = importlib.import_module(module)
        return attrgetter(attribute)(found)
    except (Exception, SystemExit) as error:
        raise BadName(f"{option} {spelled!r} cannot be imported{_why_not(error, module, attribute)}") from error


def _why_not(error: BaseException, module: str, attribute: str) -> str:
    """Why what was named could not be imported, and what to do."""
    inside = [one for one in extract_tb(error.__traceback__) if one.filename not in (__file__, importlib.__file__)]
    inside = [one for one in inside if not one.filename.startswith("<frozen ")]
    if inside or isinstance(error, SyntaxError):
        at = f"{inside[-1].filename}, line {inside[-1].lineno}, " if inside else ""
        return f": {at}{type(error).__name__}: {str(error).rstrip('.')}. Mend that, and try again."
    if not (attribute and (found := sys.modules.get(module))):
        return f" ({error}). Give MODULE:ATTRIBUTE, importable from this folder."
    file, mine = getattr(found, "__file__", None) or "part of Python", Path(f"{module}.py").resolve()
    names = ", ".join(name for name, value in vars(found).items() if callable(value) and not name.startswith("_"))
    other = f"{mine} was not read: a module of this folder takes no other's place, so rename it"
    mend = other if mine.is_file() and str(mine) != file else f"it has {names or 'no function'}"
    return f": the module {module!r} ({file}) has no {attribute!r}; {mend:.300}."


def own_tools(spelled: Iterable[str] | None) -> list[Tool]:
    """Returns the tools that each `module:attribute` names. Raises BadName."""
    found = {one: imported("--tool", one) for one in spelled or ()}
    for one, tool in found.items():
        if why := why_no_tool(tool):
            raise BadName(f"--tool {one!r} {why}")
    return [*found.values()]


def own_tool(spelled: Sequence[str] | None) -> Tool | None:
    """Returns the tool that `module:attribute` names, if one is named. Raises BadName, also for a second one."""
    if spelled and len(spelled) > 1:
        raise BadName(
            f"--tool {spelled[1]!r} is the second, and only one can be given here: the tool for all side effects that name "
            "none. Nothing was started; leave out the others, which side effects name in the code."
        )
    return next(iter(own_tools(spelled)), None)


def own_workflows(spelled: Iterable[str] | None) -> dict[str, Workflow]:
    """Returns the workflow functions by name: an example's NAME, or the ATTRIBUTE of `module:attribute`. Raises BadName.

    Without any, all examples.
    """
    found: dict[str, Workflow] = {}
    for one in spelled or WORKFLOWS:
        name = one.rpartition(":")[2]
        if name in found:
            raise BadName(
                f"--workflow {one!r} is the second with the name {name!r}. Nothing was started; rename one of them."
            )
        if ":" not in one and one not in WORKFLOWS:
            raise BadName(
                f"--workflow {one!r} is not known. Choose one of {', '.join(sorted(WORKFLOWS))}, or give a function of your own "
                "as MODULE:ATTRIBUTE."
            )
        found[name] = WORKFLOWS[one] if one in WORKFLOWS else imported("--workflow", one)
        if why := why_no_workflow(found[name]):
            raise BadName(f"--workflow {one!r} {why}")
    return found


def json_value(option: str, given: str) -> Any:
    """The JSON value that is the option's text. Raises BadName."""
    try:
        to_json(value := json.loads(given), workflow="(new)", step="input")
    except UnfaithfulValue as error:
        raise BadName(
            f"{option} {given!r:.80} cannot be stored ({error.path}: {error.reason}). Give plain JSON: finite numbers, "
            "texts, true, false, null, lists and objects."
        ) from error
    except (ValueError, RecursionError) as error:
        raise BadName(
            f"{option} {given!r:.80} is not JSON ({error}). Give a JSON value, such as '{{\"total\": 300}}'; a text has "
            "quotes of its own: '\"text\"'."
        ) from error
    return value


def events(given: Iterable[str] | None) -> dict[str, Any]:
    """The payloads of `NAME=JSON`, by the event's name. Raises BadName, also for a name that comes twice."""
    found: dict[str, Any] = {}
    for one in given or ():
        name, equals, payload = one.partition("=")
        if not (name and equals) or name in found:
            wrong = "names an event for the second time" if name in found else "has no NAME=JSON"
            raise BadName(
                f"--event {one!r:.80} {wrong}. Give each event once, such as 'approval={{\"approved\": true}}'."
            )
        found[name] = json_value(f"--event {name}=", payload)
    return found


class Own:
    """What `--workflow` and `--tool` name for the laboratory, whose processes import it by that name. Raises BadName.

    `workflows` are the functions by name, `name` that of the workflow (None: no option says), `tool` the first
    tool (None: the simulated one), `asked` the others; `options` all that for a soak or an atlas.
    """

    def __init__(self, workflow: str | None, tools: Sequence[str] | None) -> None:
        from ..lab.laboratory.processes import by_name

        self.workflows = own_workflows([workflow] if workflow else None)
        self.name = next(iter(self.workflows)) if workflow else None
        self.is_own = ":" in (workflow or "")
        found, named = own_tools(tools), self.name or DEFAULT_WORKFLOW
        self.tool, self.asked = next(iter(found), None), found[1:]
        self.options: dict[str, Any] = {
            "workflow": named,
            "workflows": self.workflows,
            "tool": self.tool,
            "asked": self.asked,
        }
        for one, spelled in ((self.workflows[named], workflow), (self.tool, next(iter(tools or ()), None))):
            module, _, attribute = (spelled or "").partition(":")
            if attribute:
                by_name(one, module, attribute)

    def inputs(self, given: str | None, requests: str | None, column: str | None) -> Iterator[Any] | None:
        """The input of `--input` or those of `--requests`, read as they are needed; None if neither was given.

        Raises BadName, also for a function of one's own without an input; BadRequestFile.
        """
        if given is None and requests is None and self.is_own:
            raise BadName(f"Workflow {self.name!r} needs an input: give --input JSON, or --requests FILE.")
        if given is None:
            texts = (self.name or DEFAULT_WORKFLOW) in TAKE_A_TEXT
            return None if requests is None else read_requests(requests, column, texts=texts)
        if requests is not None:
            raise BadName("--input and --requests cannot be combined; choose one of them.")
        return iter([json_value("--input", given)])

    def some_inputs(self, *options: str | None) -> list[Any] | None:
        """The same as a list, with no more than a schedule can have."""
        from ..lab.schedule.grammar import MAX_REQUESTS

        found = self.inputs(*options)
        return None if found is None else [*islice(found, MAX_REQUESTS)]


class LogLines(logging.StreamHandler[TextIO]):
    """Log lines while somebody takes them: a pipe that was closed or a full disk ends the lines and not the work."""

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 (logging's name)
        """Says nothing about what was not written."""
        if not isinstance(sys.exc_info()[1], OSError):
            super().handleError(record)


def wait_for_tables(database: Database, identity: str) -> None:
    """Waits until the schema has the current tables, or the worker is told to stop."""
    pause, once = 0.0, database.twin(patience=0)  # each try is told
    while not database.give_up.wait(pause):
        try:
            with closing(once):
                return migrate(once, laboratory=is_embedded())
        except DatabaseAway as away:
            pause = min(5.0, pause * 2 or 0.1)
            log_event("database_away", worker_id=identity, error=str(away), next_try_seconds=pause)
