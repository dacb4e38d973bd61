"""`python -m tests.support.shell` carries out one command of `agentflow` after another: see `tests.support.programs.Shell`."""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys

from agentflow.cli import main


def carry_out(asked: dict[str, object]) -> tuple[object, str, str]:
    """The command's exit code and output, as a process of its own would have them."""
    os.environ.clear()
    os.environ.update(asked["environment"])  # type: ignore[call-overload]
    os.chdir(str(asked["folder"]))
    sys.argv[:] = ["agentflow", *asked["arguments"]]  # type: ignore[misc]
    sys.stdin = io.TextIOWrapper(io.BytesIO(str(asked["given"]).encode()))
    out, err, code = io.StringIO(), io.StringIO(), 0
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main()
        except SystemExit as ended:
            code = ended.code  # type: ignore[assignment]
    return (
        (1, out.getvalue(), f"{err.getvalue()}{code}\n")
        if isinstance(code, str)
        else (code, out.getvalue(), err.getvalue())
    )


if __name__ == "__main__":
    asking, telling = os.fdopen(os.dup(0)), os.fdopen(os.dup(1), "w")
    for line in iter(asking.readline, ""):
        print(json.dumps(carry_out(json.loads(line))), file=telling, flush=True)
