"""The lessons: stages with their questions, the record of answers, and the judges of the exercises.

In a notebook `course.stage(...)` opens a lesson and `course.progress()` shows the way through all of them; both are loaded
when they are asked for, since the pages of the site need neither buttons nor a database.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .lesson import progress, stage

__all__ = ["progress", "stage"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from . import lesson

    return getattr(lesson, name)


def __dir__() -> list[str]:
    return __all__
