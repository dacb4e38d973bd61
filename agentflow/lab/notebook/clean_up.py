"""What to do after the course: keep everything, pause, or find out what to delete. Nothing here deletes anything."""

from __future__ import annotations

from typing import Literal

from ...engine import is_embedded
from ...errors import AgentFlowError
from ...server import Server, default_home
from ..laboratory import laboratory
from .notes import Notes

KEPT = "Kept: PostgreSQL keeps running, with every laboratory and all your answers."
PAUSED = "Paused: PostgreSQL is stopped. Every committed row and all your answers are on disk; `make lab` goes on from there."
LAST = "Ready to be deleted: PostgreSQL is stopped. What is left is one folder, and only you should delete it:"
NOT_OURS = (
    "Nothing was stopped: DATABASE_URL names a PostgreSQL that AgentFlow did not start. Stop it where it was started."
)


def clean_up(choice: Literal["keep", "pause", "delete"] = "keep") -> Notes:
    """Does what was chosen and says so. Raises AgentFlowError for another choice, ServerError if PostgreSQL does not stop."""
    if choice not in ("keep", "pause", "delete"):
        raise AgentFlowError(f'clean_up() takes "keep", "pause" or "delete", not {choice!r}. Nothing was done.')
    if choice == "keep":
        return Notes([KEPT, "`agentflow stop` ends PostgreSQL later."])
    if not is_embedded():
        docker = "With Docker: `docker compose down` pauses, `docker compose down --volumes` deletes the rows too."
        return Notes([NOT_OURS, docker])
    laboratory.let_go_of_all()
    home = default_home()
    Server(home).stop()
    if choice == "pause":
        return Notes([PAUSED])
    size = sum(one.stat().st_size for one in home.rglob("*") if one.is_file()) / 1e6 if home.is_dir() else 0.0
    return Notes([LAST, str(home), f"It holds {size:.0f} MB: every laboratory, and your answers. The notebooks stay."])
