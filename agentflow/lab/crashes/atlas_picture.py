"""The picture of a crash atlas: a row for each boundary, a column for each set of guards, and in each cell what is left.

Right is quiet, wrong is loud: one effect is a small muted diamond, a duplicate is filled with ink, a lost effect is
hatched. The two rows of the acknowledgment gap lie between rules.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..history.words import brief, counted
from ..pictures.saved import scrolling
from ..pictures.svg import INK, MUTE, PAPER, RULE, Picture, escaped, frame
from .atlas_result import AtlasCell, AtlasResult
from .kill_plan import in_gap

LEFT, WIDE, HIGH, FIRST = 182, 96, 22, 95
PAIR, AROUND_GAP = 29, 34  # px from a row to the next: of another transaction, into and out of the gap
LONGEST = 36  # characters of a boundary's name
STICKY = 8  # more columns than this: the row names stay while the rest scrolls


def draw_atlas(
    atlas: AtlasResult, *, live: bool = False, beside: Callable[[AtlasCell, float, float], str] = lambda *_: ""
) -> AtlasPicture:
    """Draws the atlas, with its text twin; with `live`, a cell can get the focus, and a screen reader reads it alone.

    `beside` draws more into a cell, around its middle.
    """
    rows = dict(zip(atlas.boundaries, _rows(atlas.boundaries), strict=True))
    left = LEFT + 7 * max(0, *(min(len(one.partition(" ")[2]), LONGEST) - 19 for one in rows))  # px for a character
    bottom, right = list(rows.values())[-1] + 24.5, left + WIDE * len(atlas.guard_sets)
    notes = atlas.notes()
    body = [*_heads(atlas, left), _rule(78.5, right)]
    for boundary, y in rows.items():
        body += _names(boundary, y)
        for number, guards in enumerate(atlas.guard_sets):
            cell, x = atlas.cell(boundary, guards.name), left + WIDE / 2 + WIDE * number
            body.append(_cell(cell, x, y, live) + beside(cell, x, y))
    body += [*_gap(rows, right), _rule(bottom, right), *_key(bottom, atlas)]
    for number, note in enumerate(notes):
        body.append(f'<text x="190" y="{bottom + 44 + 16 * number:g}" class="m">{escaped(note)}</text>')
    size = {"width": max(right + 220, left + 600), "height": bottom + 48.5 + 16 * len(notes)}
    text = atlas.text()
    svg = frame("\n".join(body), label=atlas.title, text=text, **size)
    if live:
        svg = svg.replace('role="img"', 'role="group"', 1)
    gutter = _gutter(rows, left + 1, size["height"], atlas) if len(atlas.guard_sets) > STICKY else ""
    return AtlasPicture(svg, text, gutter=gutter, wide=left + 1)


@dataclass(frozen=True, repr=False)
class AtlasPicture(Picture):
    """A picture whose row names (`gutter`, so many px `wide`) stay in sight while many columns scroll."""

    gutter: str = field(default="", compare=False)
    wide: int = LEFT + 1

    @property
    def html(self) -> str:
        """The picture itself, for a widget."""
        if not self.gutter:
            return scrolling("Picture", "overflow-x:auto", self.svg)
        held = (
            f'<div style="position:sticky;left:0;z-index:1;flex:none;margin-right:-{self.wide}px">{self.gutter}</div>'
        )
        return f'<div style="display:flex;overflow-x:auto">{held}<div style="flex:none">{self.svg}</div></div>'


def _rows(boundaries: Sequence[str]) -> Iterator[float]:
    """The middle of each row: before and after one transaction lie close together, the gap lies apart."""
    y = float(FIRST)
    for before, boundary in zip((None, *boundaries), boundaries, strict=False):
        if before:
            gaps = [in_gap(one) for one in (before, boundary)]
            together = all(gaps) or before.split(" ", 1)[1] == boundary.split(" ", 1)[1]
            y += AROUND_GAP if any(gaps) and not all(gaps) else HIGH if together else PAIR
        yield y


def _heads(atlas: AtlasResult, left: int) -> Iterator[str]:
    yield _here(atlas)
    yield f'<text x="{left}" y="22" class="m">{escaped(atlas.leaves)}</text>'
    for number, guards in enumerate(atlas.guard_sets):
        x = left + WIDE // 2 + WIDE * number
        bold = "" if guards.without or guards.naive else " b"
        for line, words in enumerate(reversed(guards.lines)):
            yield f'<text x="{x}" y="{72 - 13 * line}" class="c{bold}" font-size="11">{escaped(words)}</text>'


def _here(atlas: AtlasResult) -> str:
    return f'<text x="10" y="22" class="m">{escaped(atlas.here)}</text>'


def _rule(y: float, right: float, ink: str = RULE, width: int = 1) -> str:
    return f'<path d="M10 {y:g}L{right:g} {y:g}" stroke="{ink}" stroke-width="{width}" fill="none"/>'


def _names(boundary: str, y: float) -> Iterator[str]:
    edge, name = boundary.split(" ", 1)
    loud = in_gap(boundary)
    yield f'<text x="58" y="{y + 4:g}" class="e {"b" if loud else "m"}" font-size="12">{edge}</text>'
    bold = ' class="b"' if loud else ""
    yield f'<text x="66" y="{y + 4:g}"{bold} font-size="12">{escaped(brief(name, LONGEST))}</text>'


def _cell(cell: AtlasCell, x: float, y: float, live: bool) -> str:
    """One cell, labelled with its sentence."""
    focus = ' tabindex="-1" role="img" data-lm-suppress-shortcuts="true"' if live else ""
    said = escaped(cell.sentence)
    where = f'data-boundary="{escaped(cell.boundary)}" data-guards="{escaped(cell.guards)}"'
    more = f"<title>{said}</title>"
    if live:
        more += f'<rect class="hit" x="{x - 46:g}" y="{y - 10:g}" width="92" height="20" fill="transparent"/>'
    return f'<g class="cell"{focus} {where} aria-label="{said}">{more}{"".join(_marks(cell, x, y))}</g>'


def _marks(cell: AtlasCell, x: float, y: float) -> Iterator[str]:
    if cell.state == "missing":
        yield f'<path d="M{x - 5:g} {y:g}L{x + 5:g} {y:g}" stroke="{MUTE}" stroke-width="1.2" fill="none"/>'
    elif cell.state == "running":
        yield f'<text x="{x:g}" y="{y + 3:g}" class="c m" font-size="12">...</text>'
    elif cell.state == "failed":
        yield f'<text x="{x:g}" y="{y + 5:g}" class="c b" font-size="14">?</text>'
    elif cell.effects is None or cell.due is None:
        yield f'<text x="{x:g}" y="{y + 4:g}" class="c m" font-size="11">unseen</text>'
    elif cell.effects < cell.due:
        yield from _lost(cell, x, y)
    elif cell.effects == cell.due:
        yield from _right(cell, x, y)
    else:
        yield from _doubled(cell, x, y)


def _right(cell: AtlasCell, x: float, y: float) -> Iterator[str]:
    """What is due: quiet, but in ink within the gap; further left, beside a word, if nobody completed the workflow."""
    loud = in_gap(cell.boundary)
    x -= 0 if cell.completed else 20
    yield _diamond(x - 9, y, 5, INK if loud else MUTE)
    yield f'<text x="{x + 10:g}" y="{y + 4.5:g}" class="c{"" if loud else " m"}" font-size="12">{cell.effects}</text>'
    if not cell.completed:
        yield f'<text x="{x + 22:g}" y="{y + 4:g}" class="b" font-size="11">stuck</text>'


def _doubled(cell: AtlasCell, x: float, y: float) -> Iterator[str]:
    yield f'<rect x="{x - 46:g}" y="{y - 10:g}" width="92" height="20" fill="{INK}"/>'
    yield _diamond(x - 9, y, 8, "none", PAPER, 1.5)
    yield _diamond(x - 9, y, 4.5, PAPER)
    yield f'<text x="{x + 10:g}" y="{y + 5:g}" class="inv c" font-size="14">{cell.effects}</text>'


def _lost(cell: AtlasCell, x: float, y: float) -> Iterator[str]:
    yield from _hatched(x - 46, y - 10, 92, 20)
    yield f'<rect x="{x - 20:g}" y="{y - 7.5:g}" width="40" height="15" fill="{PAPER}"/>'
    yield _diamond(x - 9, y, 6, "none", INK, 1.5, ' stroke-dasharray="2 1.6"')
    yield f'<text x="{x + 10:g}" y="{y + 5:g}" class="c b" font-size="14">{cell.effects}</text>'


def _diamond(x: float, y: float, r: float, fill: str, stroke: str = INK, width: float = 0, dash: str = "") -> str:
    path = f"M{x:g} {y - r:g}l{r:g} {r:g}l-{r:g} {r:g}l-{r:g}-{r:g}z"
    return f'<path d="{path}" stroke="{stroke}" stroke-width="{width:g}" fill="{fill}"{dash}/>'


def _hatched(x: float, y: float, wide: float, high: float) -> Iterator[str]:
    """A frame with a hatch, as plain paths: a pattern would need an id."""
    lines = []
    for across in range(6, int(wide + high), 6):
        low, far = min(across, high), min(across, wide)
        lines.append(f"M{x + across - low:g} {y + low:g}L{x + far:g} {y + across - far:g}")
    inner = f'x="{x + 0.8:g}" y="{y + 0.8:g}" width="{wide - 1.6:g}" height="{high - 1.6:g}"'
    yield f'<rect x="{x:g}" y="{y:g}" width="{wide:g}" height="{high:g}" fill="{INK}" opacity=".07"/>'
    yield f'<path d="{"".join(lines)}" stroke="{INK}" stroke-width="1.2" opacity="0.5" fill="none"/>'
    yield f'<rect {inner} fill="none" stroke="{INK}" stroke-width="1.6"/>'


def _gap_edges(rows: dict[str, float]) -> list[tuple[float, float]]:
    """Where the two rules around each gap lie."""
    gaps: list[list[float]] = []
    for before, (boundary, y) in zip(("", *rows), rows.items(), strict=False):
        if in_gap(boundary):
            gaps[len(gaps) if not in_gap(before) else -1 :] = [[*(gaps[-1] if in_gap(before) else ()), y]]
    return [(gap[0] - 16, gap[-1] + 16) for gap in gaps]


def _gap(rows: dict[str, float], right: float) -> Iterator[str]:
    """Rules around each gap, a bracket, and the picture's one box."""
    for top, low in _gap_edges(rows):
        middle = (top + low) / 2
        yield from (_rule(y, right + 8, INK, 2) for y in (top, low))
        yield f'<path d="M{right + 2:g} {top:g}h10v{low - top:g}h-10" stroke="{INK}" stroke-width="3" fill="none"/>'
        yield f'<path d="M{right + 12:g} {middle:g}L{right + 20:g} {middle:g}" stroke="{INK}" stroke-width="3" fill="none"/>'
        yield f'<rect x="{right + 20:g}" y="{middle - 31:g}" width="190" height="62" rx="3" fill="{INK}"/>'
        said = (("acknowledgment gap", -10, 14), ("effect exists,", 8, 12), ("engine does not know", 23, 12))
        for words, below, size in said:
            yield f'<text x="{right + 115:g}" y="{middle + below:g}" class="inv c" font-size="{size}">{words}</text>'


def _key(bottom: float, atlas: AtlasResult) -> Iterator[str]:
    """What the marks mean, on one line."""
    due = next((cell.due for cell in atlas if cell.state == "done" and cell.due is not None), 1)
    y = bottom + 22.5
    yield _diamond(190, bottom + 18.5, 5, MUTE)
    yield f'<text x="204" y="{y:g}" class="m">{counted(due, "effect")}, right</text>'
    yield f'<rect x="314" y="{y - 12:g}" width="30" height="16" fill="{INK}"/>'
    yield f'<text x="329" y="{y + 1:g}" class="inv c" font-size="13">{due + 1}</text>'
    yield f'<text x="352" y="{y:g}" class="m">duplicate effect</text>'
    yield from _hatched(474, y - 12, 30, 16)
    yield f'<rect x="482" y="{y - 9.5:g}" width="14" height="11" fill="{PAPER}"/>'
    yield f'<text x="489" y="{y + 1:g}" class="c b" font-size="13">{max(0, due - 1)}</text>'
    yield f'<text x="512" y="{y:g}" class="m">effect lost</text>'
    yield f'<path d="M606 {y - 4:g}L616 {y - 4:g}" stroke="{MUTE}" stroke-width="1.2" fill="none"/>'
    yield f'<text x="624" y="{y:g}" class="m">no such boundary</text>'
    yield _killed(bottom, atlas.kills)


def _killed(bottom: float, kills: int) -> str:
    return f'<text x="10" y="{bottom + 22.5:g}" class="m">{kills} processes killed</text>'


def _gutter(rows: dict[str, float], wide: int, height: float, atlas: AtlasResult) -> str:
    """The row names and all that is left of them, on paper, to be laid over the picture's own."""
    bottom = list(rows.values())[-1] + 24.5
    parts = [_here(atlas), *(line for boundary, y in rows.items() for line in _names(boundary, y))]
    parts += [_rule(78.5, wide), *(_rule(y, wide, INK, 2) for gap in _gap_edges(rows) for y in gap)]
    parts += [_rule(bottom, wide), _killed(bottom, atlas.kills)]
    svg = frame("\n".join(parts), width=wide, height=height, label="boundaries", text="the names of the rows")
    svg = re.sub(r"min-width:\d+px", f"width:{wide}px", svg, count=1)
    return svg.replace('role="img"', 'role="img" aria-hidden="true"', 1)


class Atlas(AtlasResult):
    """Every boundary times every set of guards. A notebook shows it as a picture, and as text where there is none."""

    def picture(self) -> Picture:
        """The atlas as a picture with its text twin."""
        return draw_atlas(self)

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        return {**self.picture()._repr_mimebundle_(), "text/plain": repr(self)}
