"""Where in the learner's own code an error came from."""

from __future__ import annotations

import traceback
from pathlib import Path

PACKAGE = str(Path(__file__).resolve().parents[2])
STANDARD = str(Path(traceback.__file__).resolve().parent)


def own_line(error: BaseException) -> str:
    """The line that the error came from, as ", at `...`"; empty if none of the learner's lines was running."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if frame.line and not frame.filename.startswith(PACKAGE)]
    own = [frame for frame in own if not frame.filename.startswith(STANDARD)] or own
    own = [frame for frame in own if "site-packages" not in frame.filename] or own
    return f", at `{own[-1].line}`" if own else ""
