"""Plots for people who look rather than click: each takes a DataFrame and returns a Picture with its text twin.

No plot queries a database, and none needs a display. Sizes are CSS pixels.
"""

from __future__ import annotations

import hashlib
import io
import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from matplotlib.transforms import Affine2D, blended_transform_factory

from ..history.words import counted
from ..pictures.svg import COLOURS, DASHED, HUES, SENTINELS, Picture, themed
from . import text as twin
from .text import ENOUGH, PARTS, EffectsCell, Recoveries, check_columns, duration, effects_cells

if TYPE_CHECKING:
    import pandas

INK, MUTE, RULE, PAPER = SENTINELS
HUE_OF = {worker: COLOURS.get(worker, INK) for worker in HUES}
ROW_PITCH, BAR_HEIGHT, HEADINGS, UNDER = 54, 18, 78, 18
_BOLD: dict[str, Any] = {"weight": "bold", "size": 12}
_RC: dict[Any, Any] = {
    "svg.fonttype": "none", "font.family": "DejaVu Sans", "font.size": 11, "text.color": INK, "axes.edgecolor": INK,
    "xtick.color": MUTE, "ytick.color": INK, "xtick.major.size": 0, "ytick.major.size": 0, "axes.linewidth": 1.2,
    "axes.spines.top": False, "axes.spines.right": False, "axes.spines.bottom": False, "axes.facecolor": "none",
    "text.parse_math": False, "axes.axisbelow": True, "grid.color": RULE, "grid.linewidth": 1, "hatch.linewidth": 1,
}  # fmt: skip


# -- recovery latency --------------------------------------------------------------------------------------------------


def recovery_latency(frame: pandas.DataFrame, own: pandas.DataFrame | None = None) -> Picture:
    """How long recoveries took, split into detect, claim, replay and re-execute, every recovery a point.

    A row of the picture for each `label`, such as a lease length (see frames.recoveries_frame). The bars are means, since
    means add up; fewer than five recoveries are points without a bar. `own` are your recoveries, filled points over the row of
    their label; the picture says how many are meant, how far they spread, and what that does not show.
    Raises BadFrame, which names the column.
    """
    mine: dict[str, Recoveries] = {}
    for one in (frame, own) if own is not None else (frame,):
        check_columns(one, numbers=PARTS, words=["label"])
    if own is not None:
        mine = {str(label): Recoveries(label, rows) for label, rows in own.groupby("label", sort=False)}
    groups = [Recoveries(label, rows) for label, rows in frame.groupby("label", sort=False)]
    alone = [each for label, each in mine.items() if label not in {group.label for group in groups}]
    groups += [mine.pop(each.label) for each in alone]
    with matplotlib.rc_context(_RC):
        rows = max(1, len(groups))
        figure, height = _figure(960, HEADINGS + 6 + ROW_PITCH * rows + 52 + UNDER)
        left, right = _panels(figure, height, rows)
        _scale(left, max([group.widest for group in (*groups, *mine.values())], default=1000.0) * 1.1)
        right.xaxis.set_major_locator(MaxNLocator(4))
        _scale(right, max([max(group.rest) for group in (*groups, *mine.values())], default=100.0) * 1.12)
        _headings(figure, height, groups)
        labels: dict[str, str] = {}
        for n, group in enumerate(groups):
            labels |= _recovery_row(left, right, n, group)
            if yours := mine.get(group.label):
                labels |= _points(left, right, n, yours, "own", INK)
        if groups:
            _recovery_words(left, right, groups)
        else:
            _nothing(left, ROW_PITCH / 2, "no recoveries yet")
    return _picture(figure, labels, twin.latency_label(groups), twin.latency_text(groups, list(mine.values())))


def _panels(figure: Figure, height: float, rows: int) -> tuple[Axes, Axes]:
    """Whole recoveries on the left, the same without detect on the right; one unit upright is one pixel."""
    left, right = figure.subplots(1, 2, sharey=True, width_ratios=[512, 276])
    edges = {"left": 92 / 960, "right": 940 / 960, "bottom": (52 + UNDER) / height, "top": 1 - HEADINGS / height}
    figure.subplots_adjust(**edges, wspace=60 / ((512 + 276) / 2))
    left.set_ylim(6 + ROW_PITCH * rows, 0)
    left.set_yticks([])
    return left, right


def _scale(axes: Axes, most: float) -> None:
    axes.set_xlim(0, most)
    ticks = [tick for tick in axes.get_xticks() if 0 <= tick <= most]
    axes.set_xticks(ticks, [duration(tick, tick_of=ticks[-1]) if tick else "0" for tick in ticks])
    axes.set_xlim(0, most)
    axes.tick_params(axis="x", pad=8, colors=MUTE)
    axes.grid(axis="x")


def _headings(figure: Figure, height: float, groups: Sequence[Recoveries]) -> None:
    _title(figure, 10 / 960, height, "whole span of a recovery", "from the kill to completion")
    _title(figure, 664 / 960, height, "without detect, the same recoveries", "from the claim to completion")
    counts = sorted({group.count for group in groups})
    if not counts:
        return
    each = str(counts[0]) if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    few = "" if all(group.enough for group in groups) else f" · fewer than {ENOUGH}: no mean, no bar"
    foot = f"bars: means, they add up · circles: {each} a row (left the take-over, right the rest), filled: your own"
    figure.text(10 / 960, 28 / height, f"{foot}{few} · measured", color=MUTE)
    figure.text(10 / 960, 10 / height, twin.not_shown(groups), color=INK)


def _recovery_row(left: Axes, right: Axes, n: int, group: Recoveries) -> dict[str, str]:
    """One row of both panels; what its parts are called, by gid."""
    y = 6 + ROW_PITCH * n
    _row_name(left, y, group.label)
    labels = {}
    if group.enough:
        detect, rest = group.means[0], sum(group.means[1:])
        _detect_bar(left, y, detect, f"row{n}-detect")
        _slices(left, y, detect, group.means[1:], f"row{n}-left")
        _slices(right, y, 0.0, group.means[1:], f"row{n}-right")
        labels[f"row{n}-detect"] = f"{group}."
        labels[f"row{n}-right-1"] = f"{group.label}, without detect: mean {duration(rest)}."
        _note(right, duration(rest), (rest, y + BAR_HEIGHT / 2), (6, 0), f"halo{n}-right", **_BOLD)
    labels |= _points(left, right, n, group, "", PAPER)
    words = f"n = {group.count}, {duration(min(group.rest))} to {duration(max(group.rest))}"
    right.text(
        1,
        y - 2,
        words,
        transform=blended_transform_factory(right.transAxes, right.transData),
        ha="right",
        va="baseline",
        color=MUTE,
        gid=f"halo{n}-n",
    )
    if group.latest:
        left.plot([group.latest] * 2, [y - 3, y + 38], color=INK, lw=2, gid=f"row{n}-latest", solid_capstyle="butt")
        labels[f"row{n}-latest"] = f"{group.label}: lease and one poll, {duration(group.latest)}."
    return labels


def _points(left: Axes, right: Axes, n: int, group: Recoveries, whose: str, fill: str) -> dict[str, str]:
    """Single recoveries below the bars, hollow or, if they are the reader's own, filled; what they are called, by gid."""
    labels, y = {}, 6 + ROW_PITCH * n + BAR_HEIGHT + 6
    for axes, values, name in ((left, group.taken, "taken"), (right, group.rest, "rest")):
        heights = [y + (7 * k) % 10 for k in range(group.count)]
        gid = f"row{n}-{whose}{name}"
        axes.plot(values, heights, "o", ms=5, mfc=fill, mec=INK, mew=1.2, gid=gid, clip_on=False)
        yours = ", your own" if whose else ""
        labels[gid] = f"{group.label}{yours}: {counted(group.count, 'recovery', 'recoveries')}, each a point."
    return labels


def _detect_bar(axes: Axes, y: float, detect: float, gid: str) -> None:
    axes.barh(y, detect, BAR_HEIGHT, align="edge", color=PAPER, lw=0)
    axes.barh(y, detect, BAR_HEIGHT, align="edge", color=INK, alpha=0.14, lw=0)[0].set_gid(gid)
    axes.plot([detect, 0, 0, detect], [y, y, y + BAR_HEIGHT, y + BAR_HEIGHT], color=MUTE, lw=1)


def _slices(axes: Axes, y: float, start: float, means: Sequence[float], gid: str) -> None:
    """Claim in ink, replay dotted, re-execute muted, one after the other."""
    for n, (mean, face) in enumerate(zip(means, (INK, PAPER, MUTE), strict=True), 1):
        look: dict[str, Any] = {"facecolor": face, "edgecolor": INK, "linewidth": 1 if face == PAPER else 0}
        axes.barh(y, mean, BAR_HEIGHT, left=start, align="edge", **look)[0].set_gid(f"{gid}-{n}")
        if face == PAPER:
            _dots(axes, y, start, mean)
        start += mean


def _dots(axes: Axes, y: float, start: float, length: float) -> None:
    """Dots of ink in a bar, 4.5 pixels apart; a hatch would make the file large."""
    pixel = _per_pixel(axes)
    wide = length / pixel
    dots = [
        (start + x * pixel, y + 4.5 + 4.5 * row)
        for row in range(3)
        for x in (3.5 + 2.2 * (row % 2) + 4.5 * k for k in range(int(wide / 4.5) + 1))
        if x <= wide - 2.5
    ]
    if dots:
        axes.plot(*zip(*dots, strict=True), "o", ms=2, color=INK, mew=0)


def _recovery_words(left: Axes, right: Axes, groups: Sequence[Recoveries]) -> None:
    """What the parts are called, where there is room for it: nothing needs a legend."""
    drawn = [(n, group) for n, group in enumerate(groups) if group.enough]
    for n, group in drawn:
        _mean_text(left, 6 + ROW_PITCH * n, group, f"halo{n}-left")
    if drawn:
        n, group = max(drawn, key=lambda each: each[1].means[0])
        y, room = 6 + ROW_PITCH * n, group.means[0] / _per_pixel(left)
        for words, needed in (("detect: nobody knows yet that the worker is dead", 380), ("detect", 110)):
            if room >= needed:
                left.text(5.5, y + BAR_HEIGHT / 2, words, transform=_in_pixels(left), va="center", gid="halo-detect")
                break
        if room >= 330:
            thin = "claim, replay, re-execute: the last thin slice, enlarged on the right"
            left.text(sum(group.means), y - 4, thin, color=MUTE, ha="right", va="baseline", gid="halo-thin")
        _slice_names(right, drawn[0][1], 6 + ROW_PITCH * drawn[0][0])
    last = len(groups) - 1
    if groups[last].latest:
        at = (groups[last].latest or 0.0, 6 + ROW_PITCH * last + 28)
        _note(left, "lease +\none poll", at, (6, 0), "halo-latest", linespacing=1.1, annotation_clip=False)


def _mean_text(axes: Axes, y: float, group: Recoveries, gid: str) -> None:
    """The mean at the end of the bar: inside where there is room and no tick, else to the right of both."""
    end, pixel, latest = group.means[0], _per_pixel(axes), group.latest or 0.0
    inside = end / pixel >= 60 and not end - 60 * pixel < latest < end
    x = end if inside else max(sum(group.means), latest)
    side, away = ("right", -5) if inside else ("left", 7)
    _note(axes, duration(sum(group.means)), (x, y + BAR_HEIGHT / 2), (away, 0), gid, ha=side, **_BOLD)


def _slice_names(axes: Axes, group: Recoveries, y: float) -> None:
    """claim, replay, re-execute above the first bar, each led to its part, at least so far apart that they can be read."""
    claim, replay, re_execute = (mean / _per_pixel(axes) for mean in group.means[1:])
    middles = (claim / 2, claim + replay / 2, claim + replay + re_execute / 2)
    x = -1.0
    for words, middle, width in zip(("claim", "replay", "re-execute"), middles, (30, 36, 60), strict=True):
        x = max(x + width / 2, middle, 0)
        x = -16.0 if words == "claim" else x
        axes.text(x, y - 18, words, transform=_in_pixels(axes), ha="center", va="baseline", gid=f"halo-{words}")
        axes.plot([x, middle], [y - 14, y - 2], color=INK, lw=1, transform=_in_pixels(axes), clip_on=False)
        x += width / 2 + 6


# -- attempts against effects ------------------------------------------------------------------------------------------


def attempts_against_effects(frame: pandas.DataFrame) -> Picture:
    """How often the tool was called for each workflow, against the effects it left: each workflow is one diamond.

    Filled where each action has one effect, doubled where there is one too many, hollow where one is missing (yet).
    See frames.effects_frame. Raises BadFrame, which names the column.
    """
    cells = effects_cells(frame)
    wide = max([1, *(attempts for attempts, _, _ in cells)])
    high = max([1, *(effects for _, effects, _ in cells)])
    with matplotlib.rc_context(_RC):
        figure, height = _figure(640, 104 + 90 * (high + 1.1))
        axes = figure.add_axes((130 / 640, 46 / height, 480 / 640, 1 - 104 / height))
        axes.set(xlim=(-0.5, wide + 0.5), ylim=(-0.6, high + 0.5))
        axes.set_xticks(range(wide + 1), [counted(n, "attempt") for n in range(wide + 1)])
        axes.set_yticks(range(high + 1), [counted(n, "effect") for n in range(high + 1)])
        axes.grid(axis="y")
        said = "a diamond is a workflow · the tool may be called again; the effect must not come again"
        _title(figure, 10 / 640, height, "attempts against effects", said)
        across, step = _packing(max(cells.values(), default=1), 480 / (wide + 1) - 24)
        labels = {f"cell{n}": twin.cell_text(cell, cells[cell]) for n, cell in enumerate(sorted(cells))}
        for n, cell in enumerate(sorted(cells)):
            _effects_cell(axes, f"cell{n}", cell, cells[cell], across, (step / (480 / (wide + 1)), step / 90))
        _box(axes, cells)
        if not cells:
            _nothing(axes, 0.5, "no workflows yet")
    return _picture(figure, labels, twin.effects_label(cells), twin.effects_text(cells))


def _packing(most: int, room: float) -> tuple[int, float]:
    """How many diamonds stand side by side, and how far apart in pixels, so that `most` fit into `room` x 40 pixels."""
    step = min(9.0, (room * 40 / most) ** 0.5)
    return max(1, int(room / step)), step


def _effects_cell(axes: Axes, gid: str, cell: EffectsCell, count: int, most: int, step: tuple[float, float]) -> None:
    """As many diamonds as workflows, packed around the cell's middle, and their number below."""
    attempts, effects, judged = cell
    across = max(1, min(most, count, round((2 * count) ** 0.5)))
    rows = -(-count // across)
    xs, ys = [], []
    for row in range(rows):
        here = min(across, count - row * across)
        xs += [attempts + (column - (here - 1) / 2) * step[0] for column in range(here)]
        ys += [effects + (row - (rows - 1) / 2) * step[1]] * here
    size = max(2.0, min(6.0, step[1] * 90 * 0.66))
    if judged == "doubled":
        axes.plot(xs, ys, "D", ms=size + 4, mfc=PAPER, mec=INK, mew=1.2)
    axes.plot(xs, ys, "D", ms=size, mfc=PAPER if judged == "missing" else INK, mec=INK, mew=1, gid=gid)
    _note(axes, counted(count, "workflow"), (attempts, effects), (0, -36), f"halo-{gid}", ha="center")


def _box(axes: Axes, cells: Mapping[EffectsCell, int]) -> None:
    """The one thing to see, if there is one: effects that came twice."""
    doubled = [cell for cell in cells if cell[2] == "doubled"]
    if doubled:
        said = f"{counted(sum(cells[cell] for cell in doubled), 'workflow')} with an effect too many"
        box = {"boxstyle": "round,pad=0.35,rounding_size=0.25", "fc": INK, "lw": 0}
        axes.text(0.99, 0.985, said, transform=axes.transAxes, ha="right", va="top", bbox=box, color=PAPER, **_BOLD)


# -- work per worker ---------------------------------------------------------------------------------------------------


def work_per_worker(frame: pandas.DataFrame) -> Picture:
    """How many workflows each worker claimed and completed: a bar each, in the worker's hue; hollow is claimed only.

    See frames.work_frame. Raises BadFrame, which names the column.
    """
    check_columns(frame, counts=["claimed", "completed"], words=["worker"])
    columns = (frame[name] for name in ("worker", "claimed", "completed"))
    rows = [(str(worker), int(claimed), int(done)) for worker, claimed, done in zip(*columns, strict=True)]
    texts = [twin.worker_text(*row) for row in rows] or ["No work yet."]
    labels: dict[str, str] = {}
    with matplotlib.rc_context(_RC):
        figure, height = _figure(640, 58 + 34 * max(1, len(rows)) + 40)
        axes = figure.add_axes((130 / 640, 36 / height, 480 / 640, 1 - 94 / height))
        axes.set_ylim(34 * max(1, len(rows)), 0)
        axes.set_yticks([])
        most = max([1, *(claimed for _, claimed, _ in rows)])
        axes.set_xlim(0, most * 1.4)
        axes.set_xticks([tick for tick in axes.get_xticks() if tick == int(tick) and tick <= most])
        axes.set_xlim(0, most * 1.4)
        axes.grid(axis="x")
        said = "workflows; filled: completed, hollow: claimed only · measured"
        _title(figure, 10 / 640, height, "work per worker", said)
        for n, (worker, claimed, done) in enumerate(rows):
            labels |= _work_row(axes, n, worker, claimed, done)
        if not rows:
            _nothing(axes, 17, "no work yet")
    text = "\n".join(["Work per worker (measured).", *texts])
    return _picture(figure, labels, f"Work per worker: {' '.join(texts)}", text)


def _work_row(axes: Axes, n: int, worker: str, claimed: int, done: int) -> dict[str, str]:
    y, hue = 34 * n + 8, HUE_OF.get(worker, MUTE)
    edge: dict[str, Any] = {"edgecolor": hue, "linewidth": 1.5, "linestyle": (0, (4, 2)) if worker in DASHED else "-"}
    axes.barh(y, claimed, BAR_HEIGHT, align="edge", facecolor=PAPER, **edge)[0].set_gid(f"claimed{n}")
    axes.barh(y, done, BAR_HEIGHT, align="edge", facecolor=hue, alpha=0.2, lw=0)[0].set_gid(f"done{n}")
    axes.barh(y, done, BAR_HEIGHT, align="edge", facecolor="none", **edge)
    _row_name(axes, y, worker)
    said = f"{done} completed" + (f", {claimed - done} claimed only" if claimed > done else "")
    _note(axes, said, (claimed, y + BAR_HEIGHT / 2), (7, 0), f"halo{n}")
    return {f"done{n}": twin.worker_text(worker, claimed, done)}


# -- what they share ---------------------------------------------------------------------------------------------------


def _figure(width: float, height: float) -> tuple[Figure, float]:
    """An empty figure in which one unit of type is one pixel, and its height."""
    return Figure(figsize=(width / 72, height / 72), dpi=72, facecolor="none"), height


def _title(figure: Figure, x: float, height: float, title: str, said: str) -> None:
    """A title and, below it, what is shown."""
    figure.text(x, 1 - 22 / height, title, weight="bold", size=13)
    figure.text(x, 1 - 39 / height, said, color=MUTE)


def _note(axes: Axes, words: str, at: tuple[float, float], away: tuple[float, float], gid: str, **look: Any) -> None:
    """Words so many pixels away from a point."""
    axes.annotate(words, at, away, textcoords="offset pixels", va="center", gid=gid, **look)


def _in_pixels(axes: Axes) -> Any:
    """Pixels from the left edge of the axes; upright as the data."""
    width = axes.get_window_extent().width
    return blended_transform_factory(Affine2D().scale(1 / width) + axes.transAxes, axes.transData)


def _row_name(axes: Axes, y: float, name: str) -> None:
    axes.text(-12, y + BAR_HEIGHT / 2, name, transform=_in_pixels(axes), ha="right", va="center", **_BOLD)


def _nothing(axes: Axes, y: float, words: str) -> None:
    axes.text(12, y, words, color=MUTE, transform=_in_pixels(axes), va="center", gid="halo-none")


def _per_pixel(axes: Axes) -> float:
    """How much one pixel is, across."""
    return float(axes.get_xlim()[1] / axes.get_window_extent().width)


def _picture(figure: Figure, labels: dict[str, str], label: str, text: str) -> Picture:
    """The figure as a themed SVG; its ids are made from its own content, so the same figure is the same bytes."""
    salt = hashlib.sha256(f"{label}\n{text}".encode()).hexdigest()
    drawn = io.StringIO()
    with matplotlib.rc_context({**_RC, "svg.hashsalt": salt}), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing")  # the reader's own fonts draw it
        figure.savefig(drawn, format="svg", metadata={"Date": None})
    return Picture(themed(drawn.getvalue(), labels, label=label, text=text), text, figure)
