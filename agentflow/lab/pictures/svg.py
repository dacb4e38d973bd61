"""What all pictures share: one palette, one escape, one ink, and the frame around a finished picture with its text twin.

Ink, mute, rule and paper follow JupyterLab's theme, and outside it the browser's.
"""

from __future__ import annotations

import hashlib
import html
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from math import ceil
from pathlib import Path
from typing import Any

from .saved import saved

SMALLEST = 9.9 / 11  # a picture shrinks with its page until its text, 11 px, is 9.9 px high; then it scrolls
INK, MUTE, RULE, PAPER = "currentColor", "var(--mute)", "var(--rule)", "var(--paper)"
FONT = "var(--jp-ui-font-family,system-ui,-apple-system,'Segoe UI',Helvetica,Arial,sans-serif)"
CODE_FONT = "var(--jp-code-font-family,ui-monospace,Menlo,Consolas,'DejaVu Sans Mono',monospace)"

COLOURS = {"A": "#0072B2", "B": "#D55E00", "C": "#888888"}
HUES = {**{worker: f"var(--{worker})" for worker in COLOURS}, "D": INK}
DASHED = {"C": "6 3"}
"""How a worker's colour is drawn, in every picture: C is grey and dashed, D is ink."""

LIGHT = {
    "ink": "var(--jp-ui-font-color1,#1f2328)", "mute": "var(--jp-ui-font-color2,#59636e)",
    "rule": "var(--jp-border-color2,#d0d7de)", "paper": "var(--jp-layout-color1,#fff)",
}  # fmt: skip
DARK = {
    "ink": "var(--jp-ui-font-color1,#e6e6e6)", "mute": "var(--jp-ui-font-color2,#ababab)",
    "rule": "var(--jp-border-color2,#616161)", "paper": "var(--jp-layout-color1,#212121)",
}  # fmt: skip


def tokens(colours: Mapping[str, str]) -> str:
    """The colours as CSS variables."""
    return "".join(f"--{name}:{value};" for name, value in colours.items())


PICTURE_CSS = (
    f".af{{{tokens(LIGHT | COLOURS)}color:var(--ink);font:11px {FONT}}}"
    f"@media(prefers-color-scheme:dark){{.af{{{tokens(DARK).rstrip(';')}}}}}"
    ".af text{fill:var(--ink)}.af .m{fill:var(--mute)}.af .b{font-weight:600}.af .c{text-anchor:middle}"
    ".af .e{text-anchor:end}.af .inv{fill:var(--paper);font-weight:600}"
    ".af .h{paint-order:stroke;stroke:var(--paper);stroke-width:4px;stroke-linejoin:round}"
)
"""The classes of a text: m(uted), b(old), c(entred), e(nds here), inv(erted), h(alo of paper)."""

_ILLEGAL = re.compile("[^\t\n\r\x20-\x7e\x80-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def escaped(value: object) -> str:
    """The value as text that may stand in an element or an attribute, without characters that XML cannot hold.

    HTML can hold them: what is only HTML, such as a table of rows, is escaped with `html.escape` and shows them as they are.
    """
    return html.escape(_ILLEGAL.sub("\ufffd", str(value)))


@lru_cache(maxsize=4096)
def num(value: float) -> str:
    """A coordinate with at most one decimal."""
    return str(int(value)) if value == int(value) else f"{value:.1f}".removesuffix(".0")


@dataclass(frozen=True)
class Picture:
    """One picture: `svg` for the eye, `text` with the same facts. `figure` is matplotlib's, where it drew."""

    svg: str
    text: str
    figure: Any = field(default=None, repr=False, compare=False)

    def __repr__(self) -> str:
        return self.text

    def _repr_html_(self) -> str:
        return saved(self.svg)

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        return {"text/html": self._repr_html_(), "text/plain": self.text}

    def save(self, path: Path | str) -> Path:
        """Writes the SVG to the file; returns the path. Raises OSError."""
        target = Path(path)
        target.write_text(self.svg + "\n", encoding="utf-8")
        return target


def frame(body: str, *, width: float, height: float, label: str, text: str) -> str:
    """Puts a whole SVG around its parts: named, described by its text twin, on paper."""
    about = described(label, text)
    style = f"max-width:100%;min-width:{ceil(width * SMALLEST)}px;height:auto"
    wide, high, named = f"{width:g}", f"{height:g}", f'role="img" aria-label="{escaped(label)}"'
    paper = f'<rect width="{wide}" height="{high}" fill="{PAPER}"/>'
    return svg(f"{about}{paper}\n{body}\n", wide, high, style, named)


def svg(inner: str, width: str, height: str, style: str, named: str) -> str:
    """An SVG of this size around its parts; `named` are the attributes that say what it is."""
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="af" {named} viewBox="0 0 {width} {height}" width="{width}" '
        f'height="{height}" style="{style}">{inner}</svg>'
    )


def described(label: str, text: str, css: str = PICTURE_CSS) -> str:
    """The head of an SVG: its name, its text twin and its style."""
    return f"<title>{escaped(label)}</title><desc>{escaped(text)}</desc><style>{css}</style>"


SENTINELS = {"#010203": INK, "#010305": MUTE, "#010407": RULE, "#010509": PAPER}
"""Colours that nobody would choose: what matplotlib draws in them follows the theme."""


def themed(drawn: str, labels: Mapping[str, str], *, label: str, text: str) -> str:
    """Turns matplotlib's SVG into a picture of the house: themed, described, and with ids that no other picture has.

    `labels` names parts by their gid, for screen readers and as tooltips; a gid that begins with `halo` gets a paper edge.
    """
    width, height = re.findall(r'viewBox="0 0 (\S+) (\S+)"', drawn)[0]
    body = drawn[drawn.index(">", drawn.index("<svg")) + 1 : drawn.rindex("</svg>")]
    # its style would apply to every element of the page, so it becomes an attribute of this picture
    body = re.sub(r"<metadata>.*?</metadata>|<style.*?</style>", "", body, flags=re.DOTALL)
    body = f'<g stroke-linejoin="round" stroke-linecap="butt">{body.strip()}</g>'
    for colour, token in SENTINELS.items():
        body = body.replace(colour, token)
    body = re.sub("'DejaVu Sans'[^;\"]*", FONT, body)
    body = body.replace("font-weight: 700", "font-weight: 600").replace("bold ", "600 ")
    own = "af" + hashlib.sha256((label + text + body).encode()).hexdigest()[:10] + "-"
    body = re.sub(r'<g id="halo', '<g class="h" id="halo', body)
    for gid, said in labels.items():
        name = f'aria-label="{escaped(said)}"'
        body = body.replace(f'id="{gid}">', f'id="{gid}" class="ev" {name}><title>{escaped(said)}</title>')
    body = re.sub(r'(?<=\bid=")|(?<=xlink:href="#)|(?<=url\(#)', own, body)
    whole = frame(body, width=float(width), height=float(height), label=label, text=text)
    return whole.replace("<svg ", '<svg xmlns:xlink="http://www.w3.org/1999/xlink" ', 1)
