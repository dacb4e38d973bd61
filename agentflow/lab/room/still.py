"""A control room without its buttons, as plain HTML: what a cell's moves came to, and what a notebook keeps of the room.

It has no style of its own, so that it reads the same wherever a notebook is opened; pictures and tables get theirs from
`saved`. Standard library alone, like the view.
"""

from __future__ import annotations

from ..history.words import counted
from ..pictures.svg import escaped
from ..pictures.timeline import timeline
from .row_tables import TABLES, Grid, GridCell, belief, holder, sign, world
from .scene import Scene


def still(scene: Scene) -> str:
    """What just happened: a sentence, the picture, belief beside world, and the line that leads here."""
    said = escaped(scene.trouble or scene.sentence)
    remark = f" {escaped(scene.remark)}" if scene.remark and not scene.trouble else ""
    if not scene.length:
        return f"<p><b>{said}</b>{remark}</p>"
    drawn = timeline(scene.story, cursor=scene.entry, workers=scene.drawn_lanes).svg
    beside = f"The engine believes: {escaped(belief(scene.row))} <b>{sign(scene.row)}</b> The world: {escaped(world(scene.row))}"
    return (
        f"<p><b>{said}</b>{remark}</p>{drawn}<p>{beside}</p><p>{_where(scene)}</p>"
        f"<p>schedule <code>{escaped(scene.line) or '(empty)'}</code></p>"
    )


def kept(scene: Scene) -> str:
    """The whole room: the still, where each worker stands, and the rows, folded."""
    if not scene.length:
        return still(scene)
    lanes = [f"worker {lane.name}: {lane.line}{f' ({lane.held})' if lane.held else ''}" for lane in scene.lanes]
    rows = sum(len(scene.grids[name].rows) for name in TABLES)
    tables = "".join(_table(scene.grids[name]) for name in TABLES)
    standing = "".join(f"<li>{escaped(lane)}</li>" for lane in lanes)
    return f"{still(scene)}<ul>{standing}</ul><details><summary>{counted(rows, 'row')}</summary>{tables}</details>"


def _where(scene: Scene) -> str:
    """The workflow's row in one line."""
    row, setting = scene.row, f", {escaped(scene.setting)}" if scene.setting else ""
    lease = f"worker {holder(row)}{', expired' if row['expired'] else ''}" if row and holder(row) else "none"
    state, token = (row["state"], row["fence_token"]) if row else ("none", 0)
    return (
        f"{escaped(scene.name)} <code>{escaped(scene.workflow)}</code>{setting}: state {escaped(state)}, "
        f"fence token {token}, lease {escaped(lease)}"
    )


def _table(grid: Grid) -> str:
    head = "".join(f'<th scope="col">{escaped(column)}</th>' for column in grid.columns)
    body = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in grid.rows)
    none = f'<tr><td colspan="{len(grid.columns)}">0 rows</td></tr>'
    return f"<table><caption>{grid.name}</caption><thead><tr>{head}</tr></thead><tbody>{body or none}</tbody></table>"


def _cell(cell: GridCell) -> str:
    """A value, bold where the last move changed it, with the value before."""
    text = escaped(cell.text if len(cell.text) <= 100 else f"{cell.text[:99]}…")
    was = f" (was {escaped(cell.was[:100])})" if cell.was is not None else ""
    return f"<td>{f'<b>{text}</b>{was}' if cell.changed else text}</td>"
