"""A progress bar on standard error."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def progress_bar(unit: str, wanted: bool | None, total: int | None = None) -> Iterator[Callable[[int], None]]:
    """Shows a bar if `wanted` (None: on a terminal only); the caller is given a function that sets how much is done."""
    from tqdm import tqdm

    with tqdm(total=total, unit=unit, disable=None if wanted is None else not wanted) as bar:
        yield lambda done: bar.update(done - bar.n) and None
