"""The stages of the course, in order; each module holds the words and the judges of one notebook.

A new stage is a module here with a STAGE, one more name in COURSE, and a notebook of the same name.
"""

from __future__ import annotations

from ..outline import Outline
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

COURSE: tuple[Outline, ...] = (
    start_here.STAGE,
    retry_or_checkpoint.STAGE,
    durable_checkpoints.STAGE,
    leases_and_fencing.STAGE,
    the_acknowledgment_gap.STAGE,
    suspend_and_resume.STAGE,
    reliability_evidence.STAGE,
    every_interleaving.STAGE,
    your_own_workflow.STAGE,
    beyond_the_lab.STAGE,
    secret_mission.STAGE,
)


def outline(name: str) -> Outline:
    """The stage of this name. Raises LookupError, which says which there are."""
    for stage in COURSE:
        if stage.name == name:
            return stage
    raise LookupError(f"the course has no stage {name!r}; there is: {', '.join(stage.name for stage in COURSE)}.")
