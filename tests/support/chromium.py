"""Where the browser tests find a Chromium, and what they say when there is none.

`make test` runs this module first: a missing browser ends the run in one sentence and is never a skipped test.
"""

import os
import shutil
import sys
from collections.abc import Mapping

NAMES = (
    "chromium",
    "chromium-browser",
    "google-chrome",
    "google-chrome-stable",
    "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome",
    "/Applications/Chromium.app/Contents/MacOS/Chromium",
)
ADVICE = (
    "The browser tests need Chromium or Chrome, and none was found: install it (Debian: apt-get install chromium; "
    "macOS: Google Chrome), or set AGENTFLOW_CHROMIUM to its path."
)
# Quiet and closed: no sandbox because CI is root, no traffic of the browser's own.
ARGUMENTS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


def find_chromium(environment: Mapping[str, str] = os.environ) -> str:
    """The path of an executable Chromium; raises LookupError, whose message says what to install."""
    chosen = environment.get("AGENTFLOW_CHROMIUM")
    for name in (chosen,) if chosen else NAMES:
        path = shutil.which(name, path=environment.get("PATH"))
        if path:
            return path
    raise LookupError(f"AGENTFLOW_CHROMIUM is {chosen}, which is not an executable file." if chosen else ADVICE)


if __name__ == "__main__":
    try:
        find_chromium()
    except LookupError as missing:
        sys.exit(str(missing))
