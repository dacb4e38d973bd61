"""The clock and the disk of the server of its own: `shim.c` in front of PostgreSQL, told by a file what to do.

It needs Linux and a C compiler. Where one is missing, `why_not()` says so, and the plan names what is not made.
"""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

SOURCE = Path(__file__).with_name("shim.c")


def why_not() -> str | None:
    """Why the server's clock and disk cannot be told what to do on this machine, or None if they can."""
    if sys.platform != "linux":
        return "LD_PRELOAD needs Linux"
    if set(" :") & set(tempfile.gettempdir()):
        return f"LD_PRELOAD takes no path like {tempfile.gettempdir()!r}"
    return None if shutil.which("cc") else "there is no C compiler `cc`"


class Shim:
    """What a server reads from `folder` when it was started with `environment`: a clock that is right, a disk with room."""

    def __init__(self, folder: Path) -> None:
        self.library, self._state = folder / "shim.so", folder / "shim.state"
        command = ["cc", "-shared", "-fPIC", "-O1", "-w", "-o", str(self.library), str(SOURCE), "-ldl"]
        subprocess.run(command, check=True, capture_output=True, text=True)
        self._ahead, self._full = 0, False
        self._tell()

    @property
    def environment(self) -> tuple[str, ...]:
        """The variables under which a program comes to have it."""
        return f"LD_PRELOAD={self.library}", f"CHAOS_SHIM={self._state}"

    def clock(self, ahead: int) -> None:
        """The server's clock is so many seconds ahead of ours, or behind it."""
        self._ahead = ahead
        self._tell()

    def disk(self, *, full: bool) -> None:
        """The server's disk is full, or has room again."""
        self._full = full
        self._tell()

    def _tell(self) -> None:
        file = os.open(self._state, os.O_WRONLY | os.O_CREAT, 0o644)
        os.pwrite(file, struct.pack("=qq", self._ahead, self._full), 0)
        os.close(file)
