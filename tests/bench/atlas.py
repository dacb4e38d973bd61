"""How long the whole crash atlas takes: 76 workers killed and recovered, with a new process for each."""

from __future__ import annotations

from agentflow.lab.crashes.atlas import atlas
from tests.bench.place import Place


def atlas_seconds(place: Place) -> float:
    """Seconds that the whole atlas took. Raises RuntimeError if a cell was not as predicted."""
    found = atlas(place.url, schema=place.name("atlas"))
    if not found.ok or found.seconds is None:
        raise RuntimeError(f"the atlas is not as predicted: {found.problems[0] if found.problems else 'no time'}")
    return found.seconds
