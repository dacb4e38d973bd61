"""Small multiples: several histories one under the other, so that one sees where they part.

Only what differs between engines that meet the same crash is drawn: who worked and died, what the world did, what is left.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from ..history.entries import Row
from ..history.sentences import summary
from ..history.story import Story
from ..history.story_reader import read_story
from .svg import DASHED, HUES, INK, PAPER, RULE, Picture, escaped, frame, num
from .timeline_layout import shortened, width

LEFT, MIDDLE, RIGHT, HEAD, HIGH = 184, 540, 260, 34, 66
BAR, LANE, LEDGER = 14, 11, 46


def draw_multiples(histories: Mapping[str, Sequence[Row] | Story]) -> Picture:
    """The histories under their names, on one scale of entries, with what each left in the world."""
    told = {name: read_story(rows) for name, rows in histories.items()}
    pitch = MIDDLE / max([len(one.marks) for one in told.values()] or [1])
    wide, high = LEFT + MIDDLE + RIGHT, HEAD + HIGH * len(told)
    heads = (
        (10, "engine"),
        (LEFT, "entries in their order"),
        (LEFT + MIDDLE + 20, "the world holds, and the engine believes"),
    )
    body = [f'<text x="{x}" y="20" class="m">{said}</text>' for x, said in heads]
    twin = []
    for n, (name, one) in enumerate(told.items()):
        said = f"{name}: {summary(one)}; {_left(one)[0]}, {_believes(one)}"
        row = f'<g class="ev" data-n="{n + 1}" aria-label="{escaped(said)}" transform="translate(0 {HEAD + HIGH * n})">'
        body.append(f"{row}<title>{escaped(said)}</title>{_row(name, one, pitch)}</g>")
        twin.append(said)
    label = f"The same on {len(told)} engines: {', '.join(f'{name}: {_left(one)[0]}' for name, one in told.items())}"
    return Picture(frame("".join(body), width=wide, height=high, label=label, text="\n".join(twin)), "\n".join(twin))


def _believes(told: Story) -> str:
    """What the engine's last word on an action is."""
    kinds = [mark.kind for mark in told.marks if mark.kind in {"intent", "acknowledge"}]
    return "no intent" if not kinds else "ACKNOWLEDGED" if kinds[-1] == "acknowledge" else "PENDING"


def _left(told: Story) -> tuple[str, bool]:
    """What is left in the world, and whether that is wrong."""
    effects = len(told.effects)
    title = told.box.title if told.box and told.box.kind in {"unauthorised", "duplicate", "lost"} else ""
    return f"{effects} effect{'' if effects == 1 else 's'}{': ' if title else ''}{title}", bool(title)


def _row(name: str, told: Story, pitch: float) -> str:
    def x(column: float) -> float:
        return LEFT + pitch * (column + 0.5)

    out = [
        f'<text x="10" y="{BAR + 14}" class="b" font-size="12">{escaped(shortened(name, LEFT - 22, 12, True))}</text>',
        f'<path d="M10 {HIGH - 0.5}H{LEFT + MIDDLE + RIGHT - 10}" stroke="{RULE}"/>',
    ]
    out += _workers(told, x) + _world(told, x)
    said, wrong = _left(told)
    at, wide = LEFT + MIDDLE + 20, width(said, 12, True) + 20
    if wrong:
        out.append(f'<rect x="{at}" y="8" width="{num(wide)}" height="25" rx="3" fill="{INK}"/>')
    words = 'class="inv c"' if wrong else 'class="b"'
    out.append(f'<text x="{num(at + wide / 2 if wrong else at)}" y="25" font-size="12" {words}>{escaped(said)}</text>')
    out.append(f'<text x="{at}" y="{LEDGER + 4}" class="m">{_believes(told)}</text>')
    return "".join(out)


def _workers(told: Story, x: Callable[[float], float]) -> list[str]:
    place, out = {who: n for n, who in enumerate(told.workers)}, []
    for run in told.runs:
        end = told.now if run.end is None else run.end
        y, hue = BAR + LANE * place.get(run.who, 0), HUES.get(run.who, INK)
        dash = f' stroke-dasharray="{DASHED[run.who]}"' if run.who in DASHED else ""
        left, right = x(run.start), x(end)
        out.append(f'<path d="M{num(left)} {y}H{num(right)}" stroke="{hue}" stroke-width="3"{dash}/>')
        out.append(f'<text x="{num(left - 6)}" y="{y + 4}" class="e">{escaped(shortened(run.who, 40))}</text>')
        if run.how == "killed":
            cross = f"M{num(right - 6)} {y - 6}l12 12m0-12l-12 12"
            out.append(
                f'<path d="{cross}" stroke="{PAPER}" stroke-width="7"/><path d="{cross}" stroke="{hue}" stroke-width="4"/>'
            )
    return out


def _world(told: Story, x: Callable[[float], float]) -> list[str]:
    """The world's line as in a timeline: a rule, ink once an effect exists, doubled after a duplicate; and what it did."""
    y, now = LEDGER, x(told.now)
    first = next((x(n) for n in told.effects), now)
    second = next((x(n) for n, mark in enumerate(told.marks) if mark.doubled), now)
    out = [f'<path d="M{LEFT} {y}H{num(first)}" stroke="{RULE}" stroke-width="1.5"/>']
    for left, right, ink, wide in ((first, second, INK, 3), (second, now, INK, 9), (second, now, PAPER, 3)):
        if left < right:
            out.append(f'<path d="M{num(left)} {y}H{num(right)}" stroke="{ink}" stroke-width="{wide}"/>')
    for n, mark in enumerate(told.marks):
        if mark.answer == "repeated":
            out.append(f'<circle cx="{num(x(n))}" cy="{y}" r="7" fill="{PAPER}" stroke="{INK}" stroke-width="2.5"/>')
        elif mark.answer == "effect":
            size = 15 if mark.doubled else 9
            out.append(_diamond(x(n), size, f'fill="{INK}" stroke="{PAPER}" stroke-width="2"'))
            if mark.doubled:
                out.append(f'<text x="{num(x(n))}" y="{y + 4}" class="inv c" font-size="12">{mark.nth}</text>')
    out += [
        _diamond(x(span.start), 9, f'fill="{PAPER}" stroke="{INK}" stroke-width="2" stroke-dasharray="2 2.4"')
        for span in told.lost
    ]
    return out


def _diamond(x: float, size: int, more: str) -> str:
    return f'<path d="M{num(x)} {LEDGER - size}l{size} {size}l-{size} {size}l-{size}-{size}z" {more}/>'
