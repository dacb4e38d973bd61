"""The grammar of schedules: every token is read, printed in its shortest form, and a wrong one is pointed at."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from agentflow.errors import BadSchedule
from agentflow.lab.schedule.grammar import (
    EXAMPLES,
    LANES,
    MAX_LENGTH,
    MAX_TIMES,
    TOKENS,
    Move,
    Roll,
    Schedule,
    Setting,
    deliver,
    parse,
)
from agentflow.lab.schedule.presets import PLAYABLE, PRESETS

EVERY_TOKEN = {
    "A": Move("go", "A"),
    "B*3": Move("go", "B", 3),
    "C*": Move("go", "C", None),
    "D.": Move("halt", "D"),
    "A!": Move("kill", "A"),
    "A! A+": Move("start", "A"),
    "A||": Move("pause", "A"),
    "A|| A>": Move("resume", "A"),
    "A~": Move("renew", "A"),
    "A/": Move("lose", "A"),
    "A?": Move("lose_answer", "A"),
    "expire": Move("expire"),
    "requests=2 expire@2": Move("expire", request=2),
    "due": Move("due"),
    "requests=9 due@9": Move("due", request=9),
    "event:approval": Move("deliver", event="approval"),
    'event:approval={"by":"ada"}': Move("deliver", event="approval", payload_text='{"by":"ada"}'),
    "requests=3 event:approval=false@3": Move("deliver", event="approval", payload_text="false", request=3),
    "forget": Move("forget"),
    "restart": Move("restart"),
}


@pytest.mark.parametrize("line", EVERY_TOKEN)
def test_every_token_is_read_and_printed(line: str) -> None:
    schedule = parse(line)
    assert schedule.moves[-1] == EVERY_TOKEN[line]
    assert str(schedule) == line


def test_every_token_of_the_grammar_is_among_them() -> None:
    tokens = [token for line in EVERY_TOKEN for token in line.split()]
    assert [pattern for pattern in TOKENS if not any(re.fullmatch(pattern, token) for token in tokens)] == []


def test_an_event_brings_its_payload() -> None:
    line = 'event:a event:b=null event:c={"n":[1,2.5,"x"]}'
    assert [move.payload for move in parse(line).moves] == [True, None, {"n": [1, 2.5, "x"]}]


def test_an_events_name_and_payload_may_hold_what_separates_tokens() -> None:
    move = deliver("a name = with @ and %", "two words @2\n\t\u2028", request=2)
    (read,) = parse(f"requests=2 {move}").moves
    assert (read, read.payload) == (move, move.payload)


@pytest.mark.parametrize("payload", [float("nan"), {1, 2}, object()])
def test_a_payload_that_is_no_json_is_refused(payload: Any) -> None:
    with pytest.raises((TypeError, ValueError)):
        deliver("approval", payload)


@pytest.mark.parametrize(
    ("line", "short"),
    [
        ("  A   A\tA\n", "A*3"),
        ("A*2 A*3 B A", "A*5 B A"),
        ("A*1", "A"),
        ("A A*", "A A*"),
        ("A* A", "A* A"),
        ("A. A", "A. A"),
        ("workflow=support_agent requests=1 model=steady names=unique retry=call_again A", "A"),
        ("requests=2 workflow=approval_agent A", "workflow=approval_agent requests=2 A"),
        ("without=lease_owner,fence_token,lease_owner A", "without=fence_token,lease_owner A"),
        ("event:approval=true", "event:approval"),
        (f"A*{MAX_TIMES} A*2", f"A*{MAX_TIMES} A*2"),
        (f"A*{MAX_TIMES - 1} A", f"A*{MAX_TIMES}"),
        ("", ""),
    ],
)
def test_a_line_is_printed_in_its_shortest_form(line: str, short: str) -> None:
    assert str(parse(line)) == short
    assert parse(short) == parse(line)


@pytest.mark.parametrize(
    ("line", "column", "token", "why"),
    [
        ("A X", 3, "X", "is not a move"),
        ("A  a", 4, "a", "is not a move"),
        ("E", 1, "E", "is not a move"),
        ("A a*5", 3, "a*5", "is not a move; lanes are written in capitals"),
        ("A*5;A!", 1, "A*5;A!", "is not a move; moves are separated by spaces"),
        ("A*5, A!", 1, "A*5,", "is not a move; moves are separated by spaces"),
        ("expire,B*", 1, "expire,B*", "is not a move; moves are separated by spaces"),
        ("requests=2 requests=3", 12, "requests=3", "sets requests a second time"),
        ("model=steady requests=2 model=steady A", 25, "model=steady", "sets model a second time"),
        ("B A%", 4, "%", "is not a move"),
        ("A**", 2, "**", "is not a move"),
        ("A*-1", 2, "*-1", "is not a move"),
        ("A A*0", 3, "A*0", "must repeat 1 to 1,000"),
        (f"A*{MAX_TIMES + 1}", 1, f"A*{MAX_TIMES + 1}", "must repeat 1 to 1,000"),
        ("A*5 A! A", 8, "A", "is dead; A+ starts a new process"),
        ("A! A!", 4, "A!", "is dead"),
        ("B A+", 3, "A+", "is alive; kill it first"),
        ("A|| A", 5, "A", "is paused; A> lets it go on"),
        ("A|| A||", 5, "A||", "is paused"),
        ("A A>", 3, "A>", "is not paused"),
        ("A|| A! A>", 8, "A>", "is dead"),
        ("A expire@2", 3, "expire@2", "is about request-2, but requests=1"),
        ("requests=2 due@3", 12, "due@3", "is about request-3, but requests=2"),
        ("expire@0", 1, "expire@0", "is not a move"),
        ("A event:", 3, "event:", "is not a move"),
        ("A event:x={", 3, "event:x={", "has a payload that is not JSON"),
        ("A event:x=" + "[" * 50 + "]" * 49, 3, "event:x=" + "[" * 50 + "]" * 2, "has a payload that is not JSON"),
        (r'A event:x="\ud800"', 3, r'event:x="\ud800"', "has a payload that is not JSON"),
        ("A event:x=NaN", 3, "event:x=NaN", "has a payload that is not JSON"),
        ("A requests=2", 3, "requests=2", "comes after a move"),
        ("requests=0 A", 1, "requests=0", "is not a number from 1 to 9"),
        ("requests=two A", 1, "requests=two", "is not a number from 1 to 9"),
        ("requests=2 modle=x A", 12, "modle=x", "is not one of workflow, without, requests, model"),
        ("model=wild A", 1, "model=wild", "is not one of steady, varying"),
        ("names=none A", 1, "names=none", "is not one of unique, shared"),
        ("retry=never A", 1, "retry=never", "is not one of call_again, look_up"),
        ("without= A", 1, "without=", "is not a list of names"),
        ("workflow=a,b A", 1, "workflow=a,b", "is not a name"),
        ("workflow=;x A", 1, "workflow=;x", "is not a name"),
    ],
)
def test_a_wrong_token_is_pointed_at(line: str, column: int, token: str, why: str) -> None:
    with pytest.raises(BadSchedule) as error:
        parse(line)
    assert f'"{token}" at {column} ' in str(error.value)
    assert why in str(error.value)
    assert line[column - 1 :].startswith(token)


def test_somebody_who_wrote_no_move_is_offered_each_kind_of_move() -> None:
    assert {"A", "A*5", "A*", "A.", "A!", "A+", "A||", "A>", "expire", "expire@2", "forget", "restart"} < set(EXAMPLES)
    assert [pattern for pattern in TOKENS if not any(re.fullmatch(pattern, example) for example in EXAMPLES)] == []
    assert [one for one in EXAMPLES if not any(re.fullmatch(pattern, one) for pattern in TOKENS)] == []
    with pytest.raises(BadSchedule, match=re.escape(f"is not a move; try {', '.join(EXAMPLES)}.")):
        parse("X")


def test_a_line_without_end_is_refused_and_not_repeated() -> None:
    with pytest.raises(BadSchedule, match="at most 10,000") as error:
        parse("A " * MAX_LENGTH)
    assert len(str(error.value)) < 200
    with pytest.raises(BadSchedule) as error:
        parse("A " * 1_000 + "X" * 1_000)
    assert len(str(error.value)) < 220


def test_a_payload_too_deep_for_json_is_refused() -> None:
    with pytest.raises(BadSchedule, match="not JSON"):
        parse("event:x=" + "[" * 4_000 + "]" * 4_000)


def test_a_roll_says_who_is_dead_before_the_line_begins() -> None:
    with pytest.raises(BadSchedule, match="is dead"):
        parse("A", Roll([Move("kill", "A")]))
    assert parse("A+ A", Roll([Move("kill", "A")])).moves == (Move("start", "A"), Move("go", "A"))


def test_a_worker_killed_in_its_pause_is_dead_and_its_successor_is_not_paused() -> None:
    assert str(parse("A A|| A! A+ A")) == "A A|| A! A+ A"
    with pytest.raises(BadSchedule, match="not paused"):
        parse("A A|| A! A+ A>")


def test_the_lanes_are_those_up_to_the_last_that_moves_and_two_always() -> None:
    assert [parse(line).lanes for line in ("", "A", "B", "C", "A D expire")] == [
        ("A", "B"), ("A", "B"), ("A", "B"), ("A", "B", "C"), ("A", "B", "C", "D"),
    ]  # fmt: skip


def test_the_presets_are_in_their_shortest_form_and_play_on_what_there_is() -> None:
    for preset in PRESETS.values():
        assert str(parse(preset.line)) == preset.line
        assert parse(preset.line).setting.workflow in PLAYABLE


# -- round trip --------------------------------------------------------------------------------------------------------

NAMES = st.from_regex(r"[a-z_][a-z0-9_.-]{0,10}", fullmatch=True)
TEXTS = st.text(st.characters(codec="utf-8"), min_size=1, max_size=8)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**9), 10**9) | st.floats(allow_nan=False, allow_infinity=False) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=5,
)
SETTINGS = st.builds(
    Setting,
    workflow=NAMES,
    without=st.lists(NAMES, max_size=3).map(lambda names: tuple(sorted(set(names)))),
    requests=st.integers(1, 9),
    model=st.sampled_from(["steady", "varying"]),
    names=st.sampled_from(["unique", "shared"]),
    retry=st.sampled_from(["call_again", "look_up"]),
)


@st.composite
def schedules(draw: st.DrawFn) -> Schedule:
    """A setting and moves that may follow each other."""
    setting, roll, moves = draw(SETTINGS), Roll(), []
    request = st.none() | st.integers(1, setting.requests)
    kinds = st.one_of(
        st.builds(Move, st.just("go"), st.sampled_from(LANES), st.none() | st.integers(1, MAX_TIMES)),
        st.builds(
            Move,
            st.sampled_from(["halt", "kill", "start", "pause", "resume", "renew", "lose", "lose_answer"]),
            st.sampled_from(LANES),
        ),
        st.builds(lambda verb, number: Move(verb, request=number), st.sampled_from(["expire", "due"]), request),
        st.builds(deliver, TEXTS, JSON, request),
        st.sampled_from([Move("forget"), Move("restart")]),
    )
    for move in draw(st.lists(kinds, max_size=25)):
        if not roll.refuses(move):
            roll.note(move)
            moves.append(move)
    return Schedule(setting, tuple(moves))


@given(schedules())
@example(Schedule(moves=(deliver("a=b@2", "x @ y"),)))
def test_what_is_printed_is_read_as_the_same(schedule: Schedule) -> None:
    line = str(schedule)
    read = parse(line)
    assert str(read) == line
    assert read.setting == schedule.setting
    assert unrolled(read) == unrolled(schedule)
    assert [json.dumps(move.payload) for move in read.moves if move.event] == [
        json.dumps(move.payload) for move in schedule.moves if move.event
    ]


def unrolled(schedule: Schedule) -> list[Move]:
    """Each counted transaction as a move of its own."""
    return [
        replace(move, times=1 if move.verb == "go" and move.times else move.times)
        for move in schedule.moves
        for _ in range(move.times or 1 if move.verb == "go" else 1)
    ]


@given(st.text(st.sampled_from('ABCDE*.!+|>~/=@:{}%" 0123456789expireduvntgoqsmdlh\n'), max_size=40))
def test_any_text_is_a_schedule_or_is_refused_in_a_sentence(text: str) -> None:
    said = line = ""
    try:
        line = str(parse(text))
    except BadSchedule as refused:
        said = str(refused)
    assert re.search(r" at \d+ ", said) if said else str(parse(line)) == line
