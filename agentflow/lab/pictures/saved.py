"""What a notebook keeps of pictures, tables and rooms: `saved(html)`, through which everything goes that a cell shows.

A notebook that was never run here is not trusted: JupyterLab takes inline SVG and style sheets out of it, GitHub every style
and every data address as well. So a picture becomes an image with a name, its text twin folded below it; and a table has its
style on its cells. What stays on GitHub are the name, the twin and the table, word for word.
"""

from __future__ import annotations

import re

_SVG = re.compile(r"(<svg\b.*?</svg>)", re.DOTALL)
_CELL = "text-align:left;vertical-align:top"
_UNSEEN = re.compile(r"<(title|desc)>.*?</\1>|(?<=\S) (?:aria-[a-z]+|role|tabindex|data-[a-z]+)=\"[^\"]*\"", re.DOTALL)
_THEME = re.compile(r"var\(--jp-[\w-]+,((?:[^()]|\([^()]*\))*)\)")
_ADDRESS = {"%": "%25", "#": "%23", '"': "%22", "<": "%3C", ">": "%3E", "\n": "%0A", "&": "&amp;"}


def saved(made: str) -> str:
    """The same HTML without inline SVG and style sheets, the same bytes each time."""
    parts = _SVG.split(made)
    return "".join(_image(part) if n % 2 else _styled(part) for n, part in enumerate(parts))


def _styled(part: str) -> str:
    """HTML without pictures: no style sheet; tables look as in any theme, with their caption above them."""
    part = re.sub(r"<style>.*?</style>", "", part, flags=re.DOTALL)
    part = re.sub(r"(<table\b[^>]*>)<caption>(.*?)</caption>", r"<p><b>\2</b></p>\1", part, flags=re.DOTALL)
    part = re.sub(r"<table\b(?![^>]*style=)", '<table style="margin:2px 0 8px"', part)
    return re.sub(r"<(t[hd])\b(?![^>]*style=)", rf'<\1 style="{_CELL}"', part)


def _image(svg: str) -> str:
    """One SVG as an image that is named, on paper of its own in each theme, and below it, folded, its text twin."""
    head = svg[: svg.index(">")]
    label, wide, tall = (re.search(rf'\b{name}="([^"]*)"', head) for name in ("aria-label", "width", "height"))
    twin = re.search(r"<desc>(.*?)</desc>", svg, re.DOTALL)
    if label is None or wide is None or tall is None:
        return ""  # what has no name says nothing, such as the names of lanes once more
    least = re.search(r"min-width:\d+px;", head)  # below it the picture scrolls, so that its text stays legible
    style = f"max-width:100%;{least[0] if least else ''}height:auto"
    image = f'<img alt="{label[1]}" width="{wide[1]}" height="{tall[1]}" style="{style}" src="{address(svg)}">'
    shown = scrolling("Picture", "overflow-x:auto", image)
    return f"{shown}<details><summary>The picture in words</summary><pre>{twin[1]}</pre></details>" if twin else shown


def scrolling(name: str, style: str, inner: str) -> str:
    """A container that scrolls sideways, by its keys too."""
    by_key = f'tabindex="0" role="group" aria-label="{name}, scrolls sideways" data-lm-suppress-shortcuts="true"'
    return f'<div style="{style}" {by_key}>{inner}</div>'


def address(svg: str) -> str:
    """The SVG as a data address, for an attribute in double quotes: smaller than base64, and it can be read in a diff.

    What nobody can reach in an image is left out: names of marks, the twin, the variables of JupyterLab's theme.
    """
    seen = _THEME.sub(r"\1", _UNSEEN.sub("", svg))
    seen = re.sub(r'^(<svg\b[^>]*?) style="[^"]*"', r"\1", seen)
    seen = re.sub(r"=\"([^\"']*)\"", r"='\1'", seen)
    return "data:image/svg+xml;charset=utf-8," + re.sub(r'[%#"<>\n&]', lambda sign: _ADDRESS[sign[0]], seen)
