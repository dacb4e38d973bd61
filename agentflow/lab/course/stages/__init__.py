"""The stages of the course, in order; each module holds the words and the judges of one notebook.

A new stage is a module here with an OUTLINE, one more name in COURSE, and a notebook of the same name.
"""

from __future__ import annotations

from ..outline import Outline, named
from . import (
    beyond_the_lab,
    durable_checkpoints,
    every_interleaving,
    leases_and_fencing,
    reliability_evidence,
    retry_or_checkpoint,
    secret_mission,
    start_here,
    suspend_and_resume,
    the_acknowledgment_gap,
    your_own_workflow,
)

COURSE: tuple[Outline, ...] = tuple(
    module.OUTLINE
    for module in (
        start_here,
        retry_or_checkpoint,
        durable_checkpoints,
        leases_and_fencing,
        the_acknowledgment_gap,
        suspend_and_resume,
        reliability_evidence,
        every_interleaving,
        your_own_workflow,
        beyond_the_lab,
        secret_mission,
    )
)


def outline(name: str) -> Outline:
    """The stage of this name. Raises LookupError, which lists the names."""
    return named(COURSE, name, "the course has no stage")
