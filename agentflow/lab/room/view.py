"""What a control room looks like: HTML, SVG and text of a scene, everything escaped, the same on every machine.

No times and no ids that differ from run to run; workers have the names of their lanes. It needs the standard library alone.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib.resources import files

from ..history.entries import Row
from ..history.words import counted
from ..pictures.svg import CODE_FONT, COLOURS, DARK, HUES, LIGHT, escaped, tokens
from ..pictures.timeline import timeline
from .row_tables import TABLES, Grid, GridCell, belief, holder, sign, world
from .scene import LaneView, Scene
from .statement_text import marked

LONGEST_CELL = 100  # characters
WIDE = ("value", "result", "tool_result", "idempotency_key")
_PALETTE = (
    f".af-room{{{tokens(COLOURS | LIGHT)}\n --code:{CODE_FONT}}}\n"
    f"@media(prefers-color-scheme:dark){{.af-room{{{tokens(DARK).rstrip(';')}}}}}\n"
).replace("--rule", "\n --rule")
CSS = _PALETTE + files(__package__).joinpath("room.css").read_text(encoding="utf-8")
SCRIPT = files(__package__).joinpath("room.js").read_text(encoding="utf-8")


def parts(scene: Scene) -> Mapping[str, str]:
    """The HTML of each part of a live room, by its name; a lane's is `lane A`. The history comes last."""
    return {
        "head": head(scene),
        "say": say(scene),
        "picture": f'<div class="tl" data-entry="{scene.at}">{picture(scene)}</div>',
        **{f"lane {lane.name}": lane_line(lane, scene.busy == lane.name) for lane in scene.lanes},
        "panes": panes(scene),
        "of": f'<span class="m">of {scene.length}</span>',
        "history": history(scene),
    }


def picture(scene: Scene) -> str:
    """The timeline as SVG, with marks that can take the focus; the names of its lanes stay in view."""
    drawn = timeline(
        scene.story, compact=True, live=True, cursor=scene.at or None, axis=scene.axis, workers=scene.drawn_lanes
    )
    return f'<div class="gut">{drawn.gutter}</div>{drawn.svg}'


def head(scene: Scene) -> str:
    """Which workflow, its state, the fencing token and the lease."""
    state = scene.row["state"] if scene.row else "none"
    token = scene.row["fence_token"] if scene.row else 0
    line = escaped(scene.setting)
    setting = f'<span class="m set" title="{line}">{line}</span>' if line else ""
    return (
        f'<div class="head"><span><b>{escaped(scene.name)}</b> <code>{escaped(scene.workflow)}</code></span>{setting}'
        f'<span><span class="m">state</span> <span class="chip">{escaped(state)}</span></span>'
        f'<span><span class="m">fence token</span> {_shield(token)}</span>{_lease(scene.row)}</div>'
    )


def _shield(token: int) -> str:
    return (
        f'<svg class="af-sh" viewBox="0 0 22 24" width="20" height="22" role="img" aria-label="fence token {token}">'
        '<path d="M1 1.5h20v10c0 7-6 10-10 11.5c-4-1.5-10-4.5-10-11.5z"/>'
        f'<text x="11" y="16">{token}</text></svg>'
    )


def _lease(row: Row | None) -> str:
    lane = holder(row)
    if not row or not lane:
        return '<span><span class="m">lease</span> none</span>'
    over = row["expired"]
    state = "expired" if over else "held until a move ends it"
    return (
        f'<span class="{_hue(lane)}"><span class="m">lease</span> <span class="sw{" out" if over else ""}"></span> '
        f'<b>worker {escaped(lane)}</b> <span class="meter" role="img" aria-label="lease {state}">'
        f'<i style="width:{0 if over else 100}%"></i></span> {state}</span>'
    )


def _hue(lane: str) -> str:
    return lane.lower() if lane in HUES else "n"


def lane_line(lane: LaneView, busy: bool = False) -> str:
    """The line above a lane's buttons."""
    line = f"running {lane.next} ..." if busy else lane.line
    return (
        f'<p class="line"><b>worker {escaped(lane.name)}</b> <span class="where" title="{escaped(line)}">{escaped(line)}</span>'
        f'<span class="sp"></span><span class="m">{escaped(lane.held)}</span></p>'
    )


def say(scene: Scene) -> str:
    """What just happened, or what went wrong; with how many clicks came too fast."""
    fast = ""
    if scene.ignored:
        clicks = counted(scene.ignored, "click was", "clicks were")
        fast = f' <span class="m">Too fast: {clicks} ignored. Click when the sentence above has changed.</span>'
    if scene.trouble:
        wrong = scene.trouble
        details = f"<details><summary>traceback</summary><pre>{escaped(wrong.traceback)}</pre></details>"
        return (
            f'<div class="say bad"><b>{escaped(wrong.kind)}</b> {escaped(wrong.sentence)} {escaped(wrong.next_step)}'
            f"{details if wrong.traceback else ''}</div>{fast}"
        )
    remark = f' <span class="m">{escaped(scene.remark)}</span>' if scene.remark else ""
    return f'<div class="say"><b>{escaped(scene.sentence)}</b>{remark}{fast}</div>'


def panes(scene: Scene) -> str:
    """Belief beside world, with the sign between them and the SQL of the last transaction."""
    found, hue = scene.grids, _hue(scene.who)
    mark = sign(scene.row)
    differ = "belief and world differ" if mark == "≠" else "belief and world agree"
    as_of = f'<p class="m">as of entry {scene.length}</p>' if scene.away else ""
    left = "".join(grid_html(found[name]) for name in TABLES[:-1])
    return (
        f'<div class="panes{" away" if scene.away else ""}"><div class="pane {hue}">{as_of}<h3>what the engine believes</h3>'
        f"<p>{escaped(belief(scene.row))}</p>{left}</div>"
        f'<div class="ne{"" if mark == "≠" else " eq"}" role="img" aria-label="{differ}"><i></i><span>{mark}</span><i></i></div>'
        f'<div class="pane {hue}"><h3>what the world did</h3><p>{escaped(world(scene.row))}</p>'
        f"{grid_html(found[TABLES[-1]])}{_sql(scene)}</div></div>"
    )


def grid_html(grid: Grid) -> str:
    """One table: heads that may break at their underscores, changed cells with the value before."""
    heads = "".join(f'<th scope="col">{_breaking(column)}</th>' for column in grid.columns)
    lines = "".join(f"<tr>{''.join(map(_cell, grid.columns, row))}</tr>" for row in grid.rows)
    none = f'<tr><td class="null" colspan="{len(grid.columns)}">0 rows</td></tr>'
    scroll = ' class="tall" tabindex="0"' if len(grid.rows) > 8 else ""
    return (
        f"<div{scroll}><table><caption>{grid.name}</caption><thead><tr>{heads}</tr></thead>"
        f"<tbody>{lines or none}</tbody></table></div>"
    )


def _cell(column: str, cell: GridCell) -> str:
    wide = column in WIDE
    was = f"<small>was {_shortened(cell.was, wide)}</small>" if cell.was is not None else ""
    full = f' title="{escaped(cell.text[:2_000])}"' if len(cell.text) > LONGEST_CELL else ""
    kind = " ".join(["ch"] * cell.changed + ["w"] * wide)
    return f'<td class="{kind}"{full}>{_shortened(cell.text, wide)}{was}</td>'


def _shortened(value: str, wide: bool) -> str:
    short = value if len(value) <= LONGEST_CELL else value[: LONGEST_CELL - 1] + "…"
    return '<span class="null">null</span>' if value == "NULL" else _breaking(short) if wide else escaped(short)


def _breaking(value: str) -> str:
    """The text, which may be broken after an underscore, a colon or a hyphen."""
    return "<wbr>".join(escaped(part) for part in re.split(r"(?<=[_:,-])(?=\S)", value))


def _sql(scene: Scene) -> str:
    last = scene.transaction
    if last is None:
        return "<h3>last transaction: none yet</h3>"
    by = f"by worker {last.who}" if last.who else "by the laboratory"
    text = _hanging(marked(last.name, last.sql))
    return (
        f"<h3>last transaction: <b>{escaped(last.name)}</b>, {escaped(by)}, {counted(last.rows, 'row')}</h3>"
        f'<pre class="{_hue(last.who)}" tabindex="0" role="region" aria-label="SQL of {escaped(last.name)}">{text}</pre>'
    )


def _hanging(text: str) -> str:
    """The same text with each line as an element: where a line is broken, its rest is indented further."""
    lines, open_ = [], False
    for line in text.split("\n"):
        shown = f"<b>{line}" if open_ else line
        open_ = shown.count("<b>") > shown.count("</b>")
        hang = len(line) - len(line.lstrip(" ")) + 4
        lines.append(f'<span style="--hang:{hang}ch">{shown}{"</b>" if open_ else ""}\n</span>')
    return "".join(lines)


def history(scene: Scene) -> str:
    """The text twin of the timeline."""
    lines = "".join(f"<li>{escaped(line)}</li>" for line in scene.history)
    entries = counted(scene.length, "entry", "entries")
    return (
        f'<details class="twin" open data-line="{escaped(scene.line)}"><summary>history as text, {entries}</summary>'
        f"<ol>{lines}</ol></details>"
    )


def as_text(scene: Scene) -> str:
    """The same in plain text."""
    row = scene.row
    lease = f"{holder(row)}{', expired' if row['expired'] else ''}" if row and holder(row) else "none"
    facts = f"{scene.name} {scene.workflow}: state {row['state'] if row else 'none'}, token {row['fence_token'] if row else 0}"
    lanes = [f"worker {lane.name}: {lane.line}{f' ({lane.held})' if lane.held else ''}" for lane in scene.lanes]
    first = str(scene.trouble) if scene.trouble else " ".join(filter(None, (scene.sentence, scene.remark)))
    numbered = [f"{n}. {line}" for n, line in enumerate(scene.history, 1)]
    return "\n".join(
        [first, f"{facts}, lease {lease}", *lanes, f"schedule: {scene.line or '(empty)'}",
         f"belief: {belief(row)} {sign(row)} world: {world(row)}", *numbered]
    )  # fmt: skip
