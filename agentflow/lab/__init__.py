"""The laboratory: everything that stops, crashes, shows and checks the engine, through its one hook.

This is what a notebook imports; each name is loaded when it is asked for, so that `agentflow.lab` itself costs nothing.
The packages are listed, floor by floor, in docs/architecture.md. The engine imports none of them.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from . import course
    from .broken.catalogue import GUARDS
    from .course import checks
    from .course.mission import draw
    from .crashes.atlas import atlas
    from .crashes.atlas_result import BOUNDARIES, GUARD_SETS
    from .crashes.atlas_view import AtlasView
    from .crashes.comparison import compare_engines, resume_the_living
    from .crashes.soak import soak
    from .explorer.explore import explore
    from .isolation.pair_matrix import pair_matrix
    from .laboratory.laboratory import PATIENT, doctor, fresh_laboratory, server_of_its_own, support_requests
    from .notebook.clean_up import clean_up
    from .notebook.live_api import live_api, live_worker
    from .notebook.other_process import locked, query_elsewhere
    from .notebook.tables import Table, query, snapshot
    from .pictures.timeline import timeline
    from .plots.frames import effects_frame, measured_recoveries, recoveries_frame
    from .plots.plots import attempts_against_effects, recovery_latency
    from .race.race import compare_claims
    from .room.widget import control_room
    from .schedule.play import small_multiples
    from .schedule.stepper import Stepper
    from .verify.checker import check_rows
    from .verify.invariants import INVARIANTS

__all__ = [
    "BOUNDARIES", "GUARDS", "GUARD_SETS", "INVARIANTS", "PATIENT", "AtlasView", "Stepper", "Table", "atlas",
    "attempts_against_effects", "check_rows", "checks", "clean_up", "compare_claims", "compare_engines", "control_room",
    "course", "doctor", "draw", "effects_frame", "explore", "fresh_laboratory", "live_api", "live_worker", "locked",
    "measured_recoveries", "pair_matrix", "query", "query_elsewhere", "recoveries_frame", "recovery_latency",
    "resume_the_living", "server_of_its_own", "small_multiples", "snapshot", "soak", "support_requests", "timeline",
]  # fmt: skip

_HOMES = {
    "broken.catalogue": "GUARDS", "course.mission": "draw", "crashes.atlas": "atlas",
    "crashes.atlas_result": "BOUNDARIES GUARD_SETS", "crashes.atlas_view": "AtlasView",
    "crashes.comparison": "compare_engines resume_the_living", "crashes.soak": "soak",
    "explorer.explore": "explore", "isolation.pair_matrix": "pair_matrix",
    "laboratory.laboratory": "PATIENT doctor fresh_laboratory server_of_its_own support_requests",
    "notebook.clean_up": "clean_up", "notebook.live_api": "live_api live_worker",
    "notebook.other_process": "locked query_elsewhere",
    "notebook.tables": "Table query snapshot", "pictures.timeline": "timeline",
    "plots.frames": "effects_frame measured_recoveries recoveries_frame",
    "plots.plots": "attempts_against_effects recovery_latency", "race.race": "compare_claims", "room.widget": "control_room",
    "schedule.play": "small_multiples", "schedule.stepper": "Stepper",
    "verify.checker": "check_rows", "verify.invariants": "INVARIANTS",
}  # fmt: skip
# Two names are modules. `course` is also a package, which Python gives once it was imported, so it is the package always.
_MODULES = {"course": ".course", "checks": ".course.checks"}


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(_MODULES[name], __name__)
    home = next((home for home, names in _HOMES.items() if name in names.split()), None)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{home}", __name__), name)


def __dir__() -> list[str]:
    return __all__
