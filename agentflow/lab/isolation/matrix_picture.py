"""What a pair matrix looks like: a table with a cell for each two transactions, and the same in plain text.

Seconds are left out, since they differ from run to run.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from html import escape

from ...statements import TRANSACTIONS
from ..history.words import counted
from ..notebook.tables import STYLE
from .pairs import KNOWN, Pair

SHOWN = 12
"""How many differences are shown one by one."""

_LETTERS = {"waited": "w", "passed": ".", "some waited": "b"}
_MARKS = {"waited": "●", "passed": "○", "some waited": "◐"}
_GRID = """<style>
.af-look.af-look .af-pairs td{text-align:center;padding:4px 8px;min-width:34px;font-size:18px;line-height:1.1}
.af-look.af-look .af-pairs small{display:block;font-size:11px;white-space:nowrap}
.af-look.af-look .af-verdict{font-size:18px;font-weight:600}
.af-look.af-look .af-pairs thead th{writing-mode:vertical-rl;transform:rotate(180deg);text-align:left;
 padding:2px 4px;border:0}
.af-look.af-look .af-pairs tbody th{text-align:right;padding:2px 8px 2px 0}
.af-look.af-look .af-pairs .af-differs{background:var(--jp-ui-font-color1,#1f2328);color:var(--jp-layout-color1,#fff);
 border-radius:3px;font-weight:600}
</style>"""
_LEGEND = "numbers: pairs that came out like one after the other, of all · "
_LEGEND += "● waited · ○ passed · ◐ some waited · + a known difference · inverted: a difference"


def _cells(all_pairs: Sequence[Pair]) -> dict[tuple[str, str], list[Pair]]:
    """The pairs of each two transactions, over all situations and workers."""
    cells: dict[tuple[str, str], list[Pair]] = defaultdict(list)
    for pair in all_pairs:
        cells[pair.first.transaction, pair.second.transaction].append(pair)
    return cells


def _names(all_pairs: Sequence[Pair]) -> list[str]:
    met = {pair.first.transaction for pair in all_pairs}
    return [name for name in TRANSACTIONS if name in met]


def _how(pairs: list[Pair]) -> str:
    waits = {pair.waited for pair in pairs}
    return "some waited" if len(waits) == 2 else "waited" if waits == {True} else "passed"


def _differing(pairs: Sequence[Pair]) -> int:
    return sum(pair.like is None for pair in pairs)


def _verdict(all_pairs: Sequence[Pair]) -> str:
    """One sentence: how many pairs, and whether two transactions at once do what one after the other does."""
    if not all_pairs:
        return "no pair was played, so this says nothing about two transactions at once."
    situations = counted(len({pair.situation for pair in all_pairs}), "situation")
    played = f"{counted(len(all_pairs), 'pair')} from {situations}: "
    if differing := _differing(all_pairs):
        return played + f"{differing} came out like neither order, or waited where nobody may."
    return played + "two transactions at once do what one after the other does."


def _known(all_pairs: Sequence[Pair]) -> list[str]:
    met = Counter(pair.like for pair in all_pairs if pair.like and pair.is_known)
    return [f"Known, {counted(times, 'pair')}: {name}. {KNOWN[name].reason}" for name, times in met.items()]


def _differences(all_pairs: Sequence[Pair]) -> list[str]:
    """The first of each kind of difference, those with another answer first, and how many kinds are left out."""
    kinds: dict[tuple[str, str, bool], list[Pair]] = defaultdict(list)
    for pair in sorted((one for one in all_pairs if one.like is None), key=lambda one: one.answers_agree):
        kinds[pair.first.transaction, pair.second.transaction, pair.waited].append(pair)
    shown = [
        f"Difference, {counted(len(pairs), 'pair')} of this kind; {pairs[0].sentence()}" for pairs in kinds.values()
    ]
    return shown[:SHOWN] + ([f"... and {counted(len(shown) - SHOWN, 'more kind')}."] if len(shown) > SHOWN else [])


def text(engine: str, all_pairs: Sequence[Pair]) -> str:
    """The matrix in plain text: a line for each first transaction, a column for each second."""
    names, cells = _names(all_pairs), _cells(all_pairs)
    lines = [f"{engine}, {_verdict(all_pairs)}", "rows are held uncommitted, columns are started meanwhile;"]
    lines += ["w waited, . passed, b some waited, + a known difference, ! a difference"]
    lines += [" " * 12 + " ".join(f"{name[:4]:4}" for name in names).rstrip()]
    for first in names:
        row = [_letter(cells[first, second]) for second in names]
        lines.append(f"{first:12}" + " ".join(f"{cell:4}" for cell in row).rstrip())
    return "\n".join(lines + _known(all_pairs) + _differences(all_pairs))


def _letter(pairs: list[Pair]) -> str:
    known = any(pair.is_known for pair in pairs)
    return _LETTERS[_how(pairs)] + "+" * known + "!" * bool(_differing(pairs))


def html(engine: str, all_pairs: Sequence[Pair]) -> str:
    """The matrix as a table; a cell's tooltip says how many pairs it stands for."""
    names, cells = _names(all_pairs), _cells(all_pairs)
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in names)
    body = "".join(
        f'<tr><th scope="row">{escape(first)}</th>{"".join(_cell(cells[first, second]) for second in names)}</tr>'
        for first in names
    )
    verdict = f'<p class="af-verdict">{escape(engine)}: {escape(_verdict(all_pairs))}</p>'
    lines = "".join(f"<p>{escape(line)}</p>" for line in [_LEGEND, *_known(all_pairs), *_differences(all_pairs)])
    corner = "<td>held \\ started</td>"
    table = f'<table class="af-pairs"><thead><tr>{corner}{head}</tr></thead><tbody>{body}</tbody></table>'
    return f'{STYLE}{_GRID}<div class="af-look">{verdict}{table}{lines}</div>'


def _cell(pairs: list[Pair]) -> str:
    differing, known = _differing(pairs), sum(pair.is_known for pair in pairs)
    label = f"{pairs[0].first.transaction} held, {pairs[0].second.transaction} started: {counted(len(pairs), 'pair')}, "
    label += f"{_how(pairs)}, {counted(known, 'known difference')}, {counted(differing, 'difference')}"
    mark = _MARKS[_how(pairs)] + "+" * bool(known)
    mark += f"<small>{len(pairs) - differing} of {len(pairs)}</small>"
    differs = ' class="af-differs"' if differing else ""
    return f'<td{differs} title="{escape(label)}" aria-label="{escape(label)}">{mark}</td>'
