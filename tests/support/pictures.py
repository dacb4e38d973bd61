"""Draws the pictures of docs/pictures.md from real runs: `python -m tests.support.pictures`.

Each is a schedule, played on thread lanes over a real PostgreSQL, and drawn from what `engine.history()` then returns.
They show no times, so the same schedule gives the same file everywhere; `tests/lab/pictures/test_docs_pictures.py` fails
when a file is stale.
"""

from __future__ import annotations

from pathlib import Path

from agentflow import Engine
from agentflow.lab.laboratory.laboratory import fresh_laboratory
from agentflow.lab.pictures.timeline import timeline
from agentflow.lab.schedule.stepper import Stepper

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "pictures"
PICTURES = {
    "acknowledgment-gap": "A*5 A! expire B*",
    "stale-worker": "A A|| expire B* A> A",
    "duplicate-effect": "without=idempotency_key A*5 expire B*2",
    "lease-and-steps": "A*3",
    "renewal": "A*2 A~ A~ A",
    "kill-and-replay": "A*3 A! expire B*2",
    "lost-reply": "A*4 A/ A due A*",
    "wait": "workflow=approval_agent A* event:approval B*2",
    "killed-while-it-waits": "workflow=approval_agent A* A! event:approval B*",
    "forgotten-keys": "A*5 A! forget expire B*",
    "lost-effect": "without=acknowledge_after_tool A*5 A! expire B*",
    "unauthorised-write": "without=fence_token,lease_owner A*2 A|| expire B A> A*2",
    "passed-over": "A*2 B A",
    "race": "requests=2 A B A B A* B*",
    "three-workers": "A*2 A! expire B*3 B|| expire C*3 B> B C*",
}


def pictures(engine: Engine) -> dict[str, str]:
    """The SVG of each picture, by name. The engine's laboratory is emptied for each."""
    drawn = {}
    for name, line in PICTURES.items():
        with Stepper(engine) as stepper:
            stepper.play(line)
            entries = [row for workflow_id in stepper.workflows for row in engine.history(workflow_id)]
            drawn[name] = timeline(entries, schedule=line).svg
    return drawn


def main() -> None:
    """Writes the files in docs/pictures again."""
    for name, svg in pictures(fresh_laboratory("pictures")).items():
        (FOLDER / f"timeline-{name}.svg").write_text(svg + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
