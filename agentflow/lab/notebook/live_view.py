"""A live widget and what a notebook keeps of it, as two outputs of one cell: in a page with a kernel the widget is seen.

In one output JupyterLab prefers the widget, and says `model not found` in its place where no kernel can restore it. As two,
the saved one stays readable there.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from IPython.display import DisplayHandle, display

LIVE = "af-live-view"
"""The class of a live widget, which brings the style below."""
HIDES_SAVED = (
    "<style>.jp-OutputArea-child:has(>.jp-OutputArea-output .af-saved):has(+.jp-OutputArea-child .af-live-view)"
    "{display:none}</style>"
)
NO_KERNEL = "Run this cell to use the controls."


def show(bundle: Mapping[str, Any]) -> DisplayHandle:
    """Displays what a notebook keeps of it, and its widget, if it has one. With the handle `keep` replaces the former."""
    handle: DisplayHandle = display(_kept(bundle), raw=True, display_id=True)  # type: ignore[no-untyped-call]
    if live := {kind: shown for kind, shown in bundle.items() if not kind.startswith("text/")}:
        display({**live, "text/plain": NO_KERNEL}, raw=True)  # type: ignore[no-untyped-call]
    return handle


def keep(handle: DisplayHandle, bundle: Mapping[str, Any]) -> None:
    """The notebook keeps this from now on, in place of what was displayed with the handle."""
    handle.update(_kept(bundle), raw=True)  # type: ignore[no-untyped-call]


def _kept(bundle: Mapping[str, Any]) -> dict[str, str]:
    return {"text/html": f'<div class="af-saved">{bundle["text/html"]}</div>', "text/plain": bundle["text/plain"]}
