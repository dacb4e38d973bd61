"""What a control room looks like: HTML, SVG and text of a scene, everything escaped, the same on every machine.

No times and no ids that differ from run to run; workers have the names of their lanes. It needs the standard library alone.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib.resources import files

from ..history.sentences import lease_of
from ..history.words import counted
from ..pictures.svg import CODE_FONT, COLOURS, DARK, HUES, LIGHT, escaped, tokens
from ..pictures.timeline import NOTHING, timeline
from .row_tables import TABLES, Grid, GridCell, belief, brief, holder, sign, world
from .scene import LaneView, Scene
from .statement_text import marked

LONGEST_CELL = 100  # characters
WIDE = ("value", "result", "tool_result", "idempotency_key")
LEGEND = (
    ("colour", "who: worker A, B or C; ink is the database, the world, a person"),
    ("band", "a lease; hollow: its worker lives without it"),
    ("hollow, solid square", "a step runs, its checkpoint is committed"), ("dotted square", "replayed from its checkpoint"),
    ("shield, line that rises", "the fencing token"), ("tick", "a commit"), ("flat wall", "a write that was refused"),
    ("diamond", "an effect in the world; doubled: once too often"), ("ring", "the world answered from the key"),
    ("cut arrow", "a reply that was lost"), ("hatch, bracket", "the effect exists, and the engine does not know"),
    ("cross; two bars", "killed; paused"), ("parentheses", "a wait, and what ended it"),
)  # fmt: skip
FOLDS = {
    "rows": "rows in full", "sql": "SQL of this move", "twin": "history as text", "legend": "legend", "settings": "settings",
}  # fmt: skip
KEYS = "L or Escape: lecture. In it Space, PageDown: on; PageUp: back; H: hide what comes."


def folds() -> str:
    """What opens the folded parts; it never changes, so it stays open while they do."""
    items = "".join(f"<div><dt>{escaped(name)}</dt><dd>{escaped(what)}</dd></div>" for name, what in LEGEND)
    inner = {"legend": f'<dl class="legend">{items}</dl><p class="m">{KEYS}</p>'}
    all_ = (
        f'<details class="f-{key}"><summary>{name}</summary>{inner.get(key, "")}</details>'
        for key, name in FOLDS.items()
    )
    return f'<div class="folds">{"".join(all_)}</div>'


_PALETTE = (
    f".af-room{{{tokens(COLOURS | LIGHT)}\n --code:{CODE_FONT}}}\n"
    f"@media(prefers-color-scheme:dark){{.af-room{{{tokens(DARK).rstrip(';')}}}}}\n"
).replace("--rule", "\n --rule")
CSS = _PALETTE + files(__package__).joinpath("room.css").read_text(encoding="utf-8")
SCRIPT = files(__package__).joinpath("room.js").read_text(encoding="utf-8")


def parts(scene: Scene) -> Mapping[str, str]:
    """The HTML of each part of a live room, by its name; a lane's is `lane A`. What is folded comes last."""
    return {
        "head": head(scene),
        "say": say(scene),
        "picture": picture(scene),
        **{f"lane {lane.name}": lane_line(lane, scene) for lane in scene.lanes},
        "panes": panes(scene),
        "of": f'<span class="m">of {scene.length}</span>',
        "more": (
            f'<div class="fold rows">{rows(scene)}</div><div class="fold sql">{_sql(scene)}</div>'
            f'<div class="fold twin" data-line="{escaped(scene.line)}">{history(scene)}</div>'
        ),
    }


def picture(scene: Scene) -> str:
    """The timeline as SVG, with marks that can take the focus, and the names of its lanes apart."""
    drawn = timeline(
        scene.story, compact=True, live=True, cursor=scene.at or None, axis=scene.axis, workers=scene.drawn_lanes
    )
    tall = drawn.svg.partition(' height="')[2].partition('"')[0]
    where = f'data-entry="{scene.at}" data-turn="{escaped(scene.who)}" style="--tall:{tall}"'
    return f'<div class="tl" {where}><div class="gut">{drawn.gutter}</div>{drawn.svg}</div>'


def head(scene: Scene) -> str:
    """Which workflow, its state, the fencing token and the lease, each in its place."""
    state = scene.row["state"] if scene.row else "none"
    token = scene.row["fence_token"] if scene.row else 0
    line = escaped(scene.setting)
    setting = f'<span class="m set" title="{line}">{line}</span>' if line else ""
    return (
        f'<div class="head"><div><b>{escaped(scene.name)}</b> <code>{escaped(scene.workflow)}</code>{setting}</div>'
        f'<div><span class="chip" title="state">{escaped(state)}</span>{_shield(token)}{_lease(scene)}</div></div>'
    )


def _shield(token: int) -> str:
    return (
        f'<svg class="af-sh" viewBox="0 0 22 24" width="20" height="22" role="img" aria-label="fence token {token}">'
        '<path d="M1 1.5h20v10c0 7-6 10-10 11.5c-4-1.5-10-4.5-10-11.5z"/>'
        f'<text x="11" y="16">{token}</text></svg>'
    )


def _lease(scene: Scene) -> str:
    lane = holder(scene.row)
    if not scene.row or not lane:
        return '<span class="lease">no lease</span>'
    found = [band.seconds for band in scene.story.bands if band.token == scene.row["fence_token"]]
    long, over = lease_of(found[-1] if found else None), scene.row["expired"]
    held = "lease expired" if over else "lease 1 day" if long == "lease" else long  # so long that only a move ends it
    return (
        f'<span class="lease {_hue(lane)}"><span class="sw{" out" if over else ""}"></span><b>worker {escaped(lane)}</b> '
        f'<span class="m">{held}</span></span>'
    )


def _hue(lane: str) -> str:
    return lane.lower() if lane in HUES else "n"


def lane_line(lane: LaneView, scene: Scene) -> str:
    """What stands above a lane's buttons: the worker, its token, and where it is unless its Step says so."""
    line = f"running {lane.next} ..." if scene.busy == lane.name else "" if scene.hidden else lane.line
    held = f' <span class="m">{escaped(lane.held.removeprefix("held "))}</span>' if lane.held else ""
    return (
        f'<p class="line" title="{escaped(line)}"><b>worker {escaped(lane.name)}</b>{held} '
        f'<span class="where">{escaped(line)}</span></p>'
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
    said = "" if scene.hidden else scene.remark
    remark = f' <span class="m">{escaped(said)}</span>' if said else ""
    return f'<div class="say"><b>{escaped(scene.sentence)}</b>{remark}{fast}</div>'


def panes(scene: Scene) -> str:
    """Belief beside world, with the sign between them and of each row what tells most."""
    found, hue = scene.grids, _hue(scene.who)
    mark = sign(scene.row)
    differ = "belief and world differ" if mark == "≠" else "belief and world agree"
    as_of = f'<span class="m">, as of entry {scene.length}</span>' if scene.away else ""
    left = "".join(_brief(found[name]) for name in TABLES[:-1])
    return (
        f'<div class="panes{" away" if scene.away else ""}"><div class="pane {hue}"><h3>the engine believes{as_of}</h3>'
        f"<p>{escaped(belief(scene.row))}</p><dl>{left}</dl></div>"
        f'<div class="ne{"" if mark == "≠" else " eq"}" role="img" aria-label="{differ}"><span>{mark}</span></div>'
        f'<div class="pane {hue}"><h3>the world holds</h3><p>{escaped(world(scene.row))}</p>'
        f"<dl>{_brief(found[TABLES[-1]])}</dl></div></div>"
    )


def _brief(grid: Grid) -> str:
    """One table as a line: each row's cells between dots, what changed in bold."""
    lines = []
    for row in brief(grid):
        shown = [("no owner" if cell.text == "NULL" else _shortened(cell.text, True), cell.changed) for cell in row]
        lines.append(" · ".join(f'<b class="ch">{text}</b>' if changed else text for text, changed in shown))
    return f"<dt>{grid.name}</dt><dd>{'; '.join(lines) or '0 rows'}</dd>"


def rows(scene: Scene) -> str:
    """The four tables in full."""
    left, right = (
        "".join(grid_html(scene.grids[name]) for name in some) for some in (TABLES[:1] + TABLES[2:], TABLES[1:2])
    )
    return f'<div class="grids {_hue(scene.who)}"><div>{left}</div><div>{right}</div></div>'


def grid_html(grid: Grid) -> str:
    """One table: heads that may break at their underscores, changed cells with the value before."""
    heads = "".join(f'<th scope="col">{_breaking(column)}</th>' for column in grid.columns)
    lines = "".join(f"<tr>{''.join(map(_cell, grid.columns, row))}</tr>" for row in grid.rows)
    none = f'<tr><td class="null" colspan="{len(grid.columns)}">0 rows</td></tr>'
    return f"<table><caption>{grid.name}</caption><thead><tr>{heads}</tr></thead><tbody>{lines or none}</tbody></table>"


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
        return "<h3>no transaction yet</h3>"
    by = f"by worker {last.who}" if last.who else "by the laboratory"
    text = _hanging(marked(last.name, last.sql))
    return (
        f"<h3>transaction <b>{escaped(last.name)}</b>, {escaped(by)}, {counted(last.rows, 'row')}</h3>"
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
    return f"<ol>{lines}</ol>" if lines else f"<p>{NOTHING}</p>"


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
