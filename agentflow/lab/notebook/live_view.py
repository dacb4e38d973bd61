"""A live widget and what a notebook keeps of it, as two outputs of one cell: in a page with a kernel the widget is seen.

In one output JupyterLab prefers the widget, and says `model not found` in its place where no kernel can restore it. As two,
the saved one stays readable there.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from IPython.display import DisplayHandle, display

from ..pictures.saved import saved

LIVE = "af-live-view"
"""The class of a live widget, which brings the style below."""
HIDES_SAVED = (
    "<style>.jp-OutputArea-child:has(>.jp-OutputArea-output .af-saved):has(+.jp-OutputArea-child .af-live-view)"
    "{display:none}</style>"
)
NO_KERNEL = "Run this cell to use the controls."


def show(live: Mapping[str, Any] | None, html: str, text: str) -> DisplayHandle:
    """Displays both, the widget's view only if there is one. With the handle `keep` replaces what the notebook keeps."""
    handle: DisplayHandle = display(_kept(html, text), raw=True, display_id=True)  # type: ignore[no-untyped-call]
    if view := {kind: shown for kind, shown in (live or {}).items() if not kind.startswith("text/")}:
        display({**view, "text/plain": NO_KERNEL}, raw=True)  # type: ignore[no-untyped-call]
    return handle


def keep(handle: DisplayHandle, html: str, text: str) -> None:
    """The notebook keeps this from now on, in place of what was displayed with the handle."""
    handle.update(_kept(html, text), raw=True)  # type: ignore[no-untyped-call]


def _kept(html: str, text: str) -> dict[str, str]:
    return {"text/html": f'<div class="af-saved">{saved(html)}</div>', "text/plain": text}
