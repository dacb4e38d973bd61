"""What a pair matrix looks like: a table with a cell for each two transactions, and the same in plain text.

It takes a finished matrix and queries nothing. Seconds are left out: they differ from run to run.
"""

from __future__ import annotations

from collections import defaultdict
from html import escape
from typing import TYPE_CHECKING

from ...statements import TRANSACTIONS
from ..history.words import counted
from ..notebook.tables import STYLE

if TYPE_CHECKING:
    from .pair_matrix import Pair, PairMatrix

SHOWN = 12
"""How many differences are told one by one."""

_LETTERS = {"waited": "w", "passed": ".", "some waited": "b"}
_MARKS = {"waited": "●", "passed": "○", "some waited": "◐"}
_GRID = """<style>
.af-look.af-look .af-pairs td{text-align:center;padding:2px 4px;min-width:20px;font-size:13px}
.af-look.af-look .af-pairs thead th{writing-mode:vertical-rl;transform:rotate(180deg);text-align:left;
 padding:2px 4px;border:0}
.af-look.af-look .af-pairs tbody th{text-align:right;padding:2px 8px 2px 0}
.af-look.af-look .af-pairs .af-differs{background:var(--jp-ui-font-color1,#1f2328);color:var(--jp-layout-color1,#fff);
 border-radius:3px;font-weight:600}
</style>"""
_LEGEND = "● waited · ○ passed · ◐ some waited · + a known difference · inverted: a difference, and how many"


def _cells(matrix: PairMatrix) -> dict[tuple[str, str], list[Pair]]:
    """The pairs of each two transactions, over all situations and workers."""
    cells: dict[tuple[str, str], list[Pair]] = defaultdict(list)
    for pair in matrix.pairs:
        cells[pair.first.transaction, pair.second.transaction].append(pair)
    return cells


def _names(matrix: PairMatrix) -> list[str]:
    met = {pair.first.transaction for pair in matrix.pairs}
    return [name for name in TRANSACTIONS if name in met]


def _how(pairs: list[Pair]) -> str:
    waits = {pair.waited for pair in pairs}
    return "some waited" if len(waits) == 2 else "waited" if waits == {True} else "passed"


def _differing(pairs: list[Pair]) -> int:
    return sum(pair.like is None for pair in pairs)


def verdict(matrix: PairMatrix) -> str:
    """One sentence: how many pairs, and whether two transactions at once do what one after the other does."""
    situations = counted(len({pair.situation for pair in matrix.pairs}), "situation")
    played = f"{counted(len(matrix.pairs), 'pair')} from {situations}: "
    if matrix.differences:
        return played + f"{len(matrix.differences)} came out like neither order, or waited where nobody may."
    return played + "two transactions at once do what one after the other does."


def _known(matrix: PairMatrix) -> list[str]:
    return [f"Known, {counted(times, 'pair')}: {name}. {matrix.reason(name)}" for name, times in matrix.known.items()]


def _differences(matrix: PairMatrix) -> list[str]:
    """The first of each kind of difference, first those that were told something else; how many more there are."""
    kinds: dict[tuple[str, str, bool], list[Pair]] = defaultdict(list)
    for pair in sorted(matrix.differences, key=lambda pair: pair.told_the_same):
        kinds[pair.first.transaction, pair.second.transaction, pair.waited].append(pair)
    told = [f"Difference, {counted(len(pairs), 'pair')} of this kind; {pairs[0].says()}" for pairs in kinds.values()]
    return told[:SHOWN] + ([f"... and {counted(len(told) - SHOWN, 'more kind')}."] if len(told) > SHOWN else [])


def text(matrix: PairMatrix) -> str:
    """The matrix in plain text: a line for each first transaction, a column for each second."""
    names, cells = _names(matrix), _cells(matrix)
    lines = [f"{matrix.engine}, {verdict(matrix)}", "rows are held uncommitted, columns are started meanwhile;"]
    lines += ["w waited, . passed, b some waited, + a known difference, ! a difference"]
    lines += [" " * 12 + " ".join(f"{name[:4]:4}" for name in names).rstrip()]
    for first in names:
        row = [_letter(cells[first, second]) for second in names]
        lines.append(f"{first:12}" + " ".join(f"{cell:4}" for cell in row).rstrip())
    return "\n".join(lines + _known(matrix) + _differences(matrix))


def _letter(pairs: list[Pair]) -> str:
    known = any(pair.is_known for pair in pairs)
    return _LETTERS[_how(pairs)] + "+" * known + "!" * bool(_differing(pairs))


def html(matrix: PairMatrix) -> str:
    """The matrix as a table; a cell's tooltip says how many pairs it stands for."""
    names, cells = _names(matrix), _cells(matrix)
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in names)
    body = "".join(
        f'<tr><th scope="row">{escape(first)}</th>{"".join(_cell(cells[first, second]) for second in names)}</tr>'
        for first in names
    )
    caption = f"<caption>{escape(matrix.engine)}: {escape(verdict(matrix))}</caption>"
    told = "".join(f"<p>{escape(line)}</p>" for line in [_LEGEND, *_known(matrix), *_differences(matrix)])
    corner = "<td>held \\ started</td>"
    table = f'<table class="af-pairs">{caption}<thead><tr>{corner}{head}</tr></thead><tbody>{body}</tbody></table>'
    return f'{STYLE}{_GRID}<div class="af-look">{table}{told}</div>'


def _cell(pairs: list[Pair]) -> str:
    differing, known = _differing(pairs), sum(pair.is_known for pair in pairs)
    says = f"{pairs[0].first.transaction} held, {pairs[0].second.transaction} started: {counted(len(pairs), 'pair')}, "
    says += f"{_how(pairs)}, {counted(known, 'known difference')}, {counted(differing, 'difference')}"
    mark = str(differing) if differing else _MARKS[_how(pairs)] + "+" * bool(known)
    differs = ' class="af-differs"' if differing else ""
    return f'<td{differs} title="{escape(says)}" aria-label="{escape(says)}">{mark}</td>'
