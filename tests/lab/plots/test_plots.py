"""Plots: what is drawn is what stands in the table, in the house's colours, the same bytes each time."""

from __future__ import annotations

import ast
import logging
import re
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pandas
import pytest

from agentflow import Claim, Database, Engine
from agentflow.errors import AgentFlowError, BadFrame
from agentflow.lab.crashes.soak import soak
from agentflow.lab.pictures.saved import saved
from agentflow.lab.pictures.svg import SENTINELS, Picture
from agentflow.lab.plots import plots
from agentflow.lab.plots.frames import effects_frame, measured_recoveries, recoveries_frame, work_frame
from tests.bench.recoveries import LEASES, RECOVERIES
from tests.conftest import drop, rows

SVG = "{http://www.w3.org/2000/svg}"
LINK = "{http://www.w3.org/1999/xlink}href"
LAB = Path(plots.__file__).parents[1]
LEASE, POLL = 0.4, 0.1


@pytest.fixture(scope="module")
def crashed(url: str) -> Iterator[Engine]:
    """Twelve requests whose workers were killed six times and taken over, and nobody is alive any more."""
    name = "plots_soaked"
    drop(Database(url, name))
    requests = [f"request {n}: I cannot login" for n in range(12)]
    soak(url, requests, schema=name, keep=True, kills=6, seed=4, lease_seconds=LEASE)
    database = Database(url, name)
    engine = Engine(database)
    yield engine
    engine.close()
    drop(database)


def recovered(**more: Any) -> pandas.DataFrame:
    """Six recoveries with a short lease and two with a long one."""
    table = {
        "label": ["lease 1 s"] * 6 + ["lease 3 s"] * 2,
        "detect_ms": [900.0, 950, 1000, 1050, 1100, 1000, 2900, 3100],
        "claim_ms": [5.0] * 8,
        "replay_ms": [12.0, 10, 14, 12, 12, 12, 11, 13],
        "re_execute_ms": [60.0, 62, 58, 70, 50, 60, 61, 59],
        "lease_seconds": [1.0] * 6 + [3.0] * 2,
        "poll_seconds": [0.25] * 8,
    }
    return pandas.DataFrame({**table, **more})


def effected() -> pandas.DataFrame:
    """Three as planned (one of them asked for twice), one doubled, one not done yet."""
    return pandas.DataFrame(
        {
            "workflow": ["a", "b", "c", "d", "e"],
            "planned": [1, 1, 1, 1, 1],
            "attempts": [1, 1, 2, 2, 0],
            "effects": [1, 1, 1, 2, 0],
            "too_many": [0, 0, 0, 1, 0],
            "undone": [0, 0, 0, 0, 1],
        }
    )


def worked() -> pandas.DataFrame:
    return pandas.DataFrame({"worker": ["A", "B", "C", "D"], "claimed": [4, 3, 3, 2], "completed": [4, 3, 2, 2]})


ALL = {
    "recovery": lambda: plots.recovery_latency(recovered()),
    "effects": lambda: plots.attempts_against_effects(effected()),
    "work": lambda: plots.work_per_worker(worked()),
}
EMPTY = {
    "recovery": lambda: plots.recovery_latency(recovered().head(0)),
    "effects": lambda: plots.attempts_against_effects(effected().head(0)),
    "work": lambda: plots.work_per_worker(worked().head(0)),
}


def group(picture: Picture, gid: str) -> ElementTree.Element:
    """The part of the picture that was drawn under this name."""
    groups = ElementTree.fromstring(picture.svg).iter(f"{SVG}g")
    found = [g for g in groups if re.fullmatch(f"af[0-9a-f]+-{gid}", str(g.get("id")))]
    assert len(found) == 1, gid
    return found[0]


def points(picture: Picture, gid: str) -> list[tuple[float, float]]:
    """The centres of the marks of one part, in pixels of the SVG."""
    return [(float(str(use.get("x"))), float(str(use.get("y")))) for use in group(picture, gid).iter(f"{SVG}use")]


def extent(picture: Picture, gid: str) -> tuple[float, float]:
    """Left and right edge of a bar, in pixels of the SVG."""
    path = group(picture, gid).find(f"{SVG}path")
    assert path is not None
    xs = [float(x) for x in re.findall(r"[ML] (\S+) \S+", str(path.get("d")))]
    return min(xs), max(xs)


def values(picture: Picture, axes: int, pixels: list[float]) -> list[float]:
    """What stands at these places on an axis."""
    back = picture.figure.axes[axes].transData.inverted()
    return [float(back.transform((x, 0))[0]) for x in pixels]


# -- the picture is the table --------------------------------------------------------------------------------------------


def test_every_recovery_is_a_point_at_its_time() -> None:
    picture, table = plots.recovery_latency(recovered()), recovered()
    for n, label in enumerate(("lease 1 s", "lease 3 s")):
        mine = table[table["label"] == label]
        taken = values(picture, 0, [x for x, _ in points(picture, f"row{n}-taken")])
        rest = values(picture, 1, [x for x, _ in points(picture, f"row{n}-rest")])
        assert taken == pytest.approx(list(mine["detect_ms"] + mine["claim_ms"]), abs=0.01)
        assert rest == pytest.approx(list(mine["claim_ms"] + mine["replay_ms"] + mine["re_execute_ms"]), abs=0.01)


def test_bars_are_means_that_add_up() -> None:
    picture, mine = plots.recovery_latency(recovered()), recovered().head(6)
    edges = [extent(picture, f"row0-right-{n}") for n in (1, 2, 3)]
    ends = values(picture, 1, [right for _, right in edges])
    means = [mine[part].mean() for part in ("claim_ms", "replay_ms", "re_execute_ms")]
    assert ends == pytest.approx([means[0], sum(means[:2]), sum(means)], abs=0.01)
    assert [left for left, _ in edges[1:]] == pytest.approx([right for _, right in edges[:2]])
    assert values(picture, 0, [extent(picture, "row0-detect")[1]])[0] == pytest.approx(
        mine["detect_ms"].mean(), abs=0.01
    )


def test_points_stand_below_their_bar_and_never_on_it() -> None:
    picture = plots.recovery_latency(recovered())
    path = group(picture, "row0-detect").find(f"{SVG}path")
    assert path is not None
    bottom = max(float(y) for y in re.findall(r"[ML] \S+ (\S+)", str(path.get("d"))))
    heights = [y - bottom for _, y in points(picture, "row0-taken")]
    assert min(heights) >= 6 and max(heights) <= 15


def test_your_own_recoveries_stand_over_the_measured_ones_and_what_follows_is_said() -> None:
    measured, own = measured_recoveries(), recovered()
    assert measured["label"].value_counts().to_dict() == {f"lease {lease:g} s": RECOVERIES for lease in LEASES}
    picture = plots.recovery_latency(measured, own=own)
    mine = own[own["label"] == "lease 1 s"]
    assert values(picture, 0, [x for x, _ in points(picture, "row1-owntaken")]) == pytest.approx(
        list(mine["detect_ms"] + mine["claim_ms"]), abs=0.02
    )
    assert len(points(picture, "row1-taken")) == RECOVERIES and "n = 20, " in picture.svg
    assert "Not shown: that a lease makes the rest faster or slower." in picture.text


def test_fewer_than_five_recoveries_are_points_without_a_bar() -> None:
    picture = plots.recovery_latency(recovered())
    assert len(points(picture, "row1-taken")) == 2
    assert "row1-detect" not in picture.svg and "row0-detect" in picture.svg
    assert "fewer than 5: no mean, no bar" in picture.svg


def test_the_tick_is_lease_and_one_poll_and_absent_when_nobody_knows() -> None:
    picture = plots.recovery_latency(recovered())
    path = group(picture, "row0-latest").find(f"{SVG}path")
    assert path is not None
    x = float(str(path.get("d")).split()[1])
    assert values(picture, 0, [x]) == pytest.approx([1250], abs=0.01)
    assert "-latest" not in plots.recovery_latency(recovered().drop(columns="poll_seconds")).svg
    assert "-latest" not in plots.recovery_latency(recovered(poll_seconds=None)).svg


def test_no_hue_says_who_in_recovery_latency() -> None:
    drawn = plots.recovery_latency(recovered()).svg.split("</style>")[1]
    assert not re.findall(r"(?:fill|stroke): #", drawn) and "fill: var(--mute)" in drawn


def test_each_workflow_is_a_diamond_at_its_attempts_and_effects() -> None:
    picture = plots.attempts_against_effects(effected())
    back = picture.figure.axes[0].transData.inverted()
    height = picture.figure.get_size_inches()[1] * 72
    drawn: list[tuple[int, int]] = []
    for gid in set(re.findall(r'id="af[0-9a-f]+-(cell\d+)"', picture.svg)):
        drawn += [tuple(round(v) for v in back.transform((x, height - y))) for x, y in points(picture, gid)]  # type: ignore[misc]
    assert sorted(drawn) == sorted(zip(effected()["attempts"], effected()["effects"], strict=True))


def test_effects_that_came_twice_get_the_one_box() -> None:
    assert "1 workflow with an effect too many" in plots.attempts_against_effects(effected()).svg.split("</style>")[1]
    right = effected().head(3)
    assert "too many" not in plots.attempts_against_effects(right).svg.split("</style>")[1]
    assert plots.attempts_against_effects(right).text.startswith("Attempts against effects of 3 workflows: 0 with")


def test_thousands_of_workflows_stay_inside_their_cell() -> None:
    many = pandas.concat([effected().head(1)] * 3000, ignore_index=True)
    picture = plots.attempts_against_effects(many)
    xs, ys = zip(*points(picture, "cell0"), strict=True)
    assert len(xs) == 3000 and max(xs) - min(xs) < 240 and max(ys) - min(ys) < 80


def test_a_bar_of_work_is_as_long_as_what_was_completed_in_the_workers_hue() -> None:
    picture = plots.work_per_worker(worked())
    ends = [values(picture, 0, [extent(picture, f"done{n}")[1]])[0] for n in range(4)]
    assert ends == pytest.approx(list(worked()["completed"]), abs=0.01)
    hues = [re.findall(r"fill: ([^;]+)", str(group(picture, f"done{n}")[1].get("style")))[0] for n in range(4)]
    assert hues == ["#0072b2", "#d55e00", "#888888", "currentColor"]
    assert "2 completed, 1 claimed only" in picture.svg


@pytest.mark.parametrize("name", ALL)
def test_the_text_twin_says_the_same_and_is_the_description(name: str) -> None:
    picture = ALL[name]()
    root = ElementTree.fromstring(picture.svg)
    assert root.get("role") == "img" and root.get("aria-label") == root.findtext(f"{SVG}title")
    assert root.findtext(f"{SVG}desc") == picture.text == repr(picture) == picture._repr_mimebundle_()["text/plain"]
    assert saved(picture.svg) == picture._repr_mimebundle_()["text/html"]


def test_text_twins_name_every_figure() -> None:
    said = plots.recovery_latency(recovered()).text
    assert said.startswith("Whole span of a recovery, from the kill to completion")
    assert "lease 1 s: mean 1.08 s: detect 1.00 s, claim 5.0 ms, replay 12 ms, re-execute 60 ms; 6 recoveries" in said
    assert "the latest take-over after 1.10 s; lease and one poll are 1.25 s." in said
    said = plots.attempts_against_effects(effected()).text
    assert (
        "1 workflow: 2 attempts, 2 effects, one too many." in said
        and "2 workflows: 1 attempt, 1 effect, as planned." in said
    )
    assert "C completed 2 of 3 workflows that it claimed." in plots.work_per_worker(worked()).text


# -- themes, ids, bytes --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ALL)
def test_ink_and_paper_follow_the_theme(name: str) -> None:
    svg = ALL[name]().svg
    assert "var(--jp-ui-font-color1,#1f2328)" in svg and "var(--jp-ui-font-color1,#e6e6e6)" in svg
    assert 'fill="var(--paper)"/>' in svg and "prefers-color-scheme:dark" in svg
    assert not [sentinel for sentinel in SENTINELS if sentinel in svg]
    drawn = svg.split("</style>", 1)[1]
    assert "currentColor" in drawn and not re.search(r"#(fff|000|ffffff|000000)\b", drawn)
    assert "DejaVu" not in drawn and "var(--jp-ui-font-family" in drawn


@pytest.mark.parametrize("name", ALL)
def test_the_same_table_gives_the_same_bytes(name: str) -> None:
    assert ALL[name]().svg == ALL[name]().svg
    assert not re.search(r"\d{4}-\d\d-\d\dT", ALL[name]().svg)


def test_no_id_stands_in_two_pictures_and_each_reference_has_its_own() -> None:
    seen: set[str] = set()
    for picture in [make() for make in (*ALL.values(), *EMPTY.values())]:
        ids = re.findall(r'\bid="([^"]+)"', picture.svg)
        assert len(ids) == len(set(ids)) and not seen & set(ids)
        seen |= set(ids)
        root = ElementTree.fromstring(picture.svg)
        named = {str(use.get(LINK))[1:] for use in root.iter(f"{SVG}use")} | set(
            re.findall(r"url\(#([^)]+)\)", picture.svg)
        )
        assert named <= set(ids)


@pytest.mark.parametrize("name", EMPTY)
def test_an_empty_table_is_a_picture_that_says_so(name: str) -> None:
    picture = EMPTY[name]()
    words = {"recovery": "no recoveries yet", "effects": "no workflows yet", "work": "no work yet"}[name]
    assert words in picture.svg and words in picture.text.lower()
    assert ElementTree.fromstring(picture.svg).get("width")


@pytest.mark.parametrize("name", ALL)
def test_a_picture_brings_no_style_for_the_rest_of_the_page(name: str) -> None:
    (style,) = re.findall(r"<style.*?</style>", ALL[name]().svg, flags=re.DOTALL)
    selectors = re.findall(r"(?:^|[}{>])\s*([^{}@<>]+)\{", style.replace("@media(prefers-color-scheme:dark)", ""))
    assert selectors and all(selector.strip().startswith(".af") for selector in selectors)


def test_a_picture_is_saved_as_it_is(tmp_path: Path) -> None:
    picture = plots.work_per_worker(worked())
    assert picture.save(tmp_path / "work.svg").read_text(encoding="utf-8") == picture.svg + "\n"


def test_names_are_escaped_and_any_script_is_drawn_without_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    names = ["<script>alert(1)</script>", "工人 $x$", "A & B", "ع"]
    with warnings.catch_warnings(), caplog.at_level(logging.WARNING):
        warnings.simplefilter("error")
        picture = plots.work_per_worker(worked().assign(worker=names))
        plots.recovery_latency(recovered(label=["工人 $1$"] * 8))
    assert caplog.records == []
    said = "".join(ElementTree.fromstring(picture.svg).itertext())
    assert all(name in said for name in names) and "<script>" not in picture.svg


# -- bad input -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("draw", "why"),
    [
        (lambda: plots.recovery_latency(recovered().drop(columns="claim_ms")), "no column 'claim_ms'"),
        (lambda: plots.recovery_latency(recovered(replay_ms=[float("nan")] + [1.0] * 7)), "'replay_ms', row 0: nan is missing"),
        (lambda: plots.recovery_latency(recovered(detect_ms=[-1.0] * 8)), "'detect_ms', row 0: -1.0 is not a finite number of 0"),
        (lambda: plots.recovery_latency(recovered(detect_ms=[float("inf")] * 8)), "'detect_ms', row 0: inf is not a finite"),
        (lambda: plots.recovery_latency(recovered(claim_ms=["soon"] * 8)), "'claim_ms', row 0: 'soon' is not a number"),
        (lambda: plots.recovery_latency(recovered(label=[None] * 8)), "'label', row 0"),
        (lambda: plots.attempts_against_effects(effected().drop(columns="effects")), "no column 'effects'"),
        (lambda: plots.attempts_against_effects(effected().assign(attempts=1.5)), "'attempts', row 0: 1.5 is not a whole number"),
        (lambda: plots.work_per_worker(worked().assign(completed=-1)), "'completed', row 0: -1 is not a finite number of 0"),
        (lambda: plots.work_per_worker(pandas.DataFrame()), "no column 'worker'; its columns are: none"),
    ],
)  # fmt: skip
def test_a_bad_table_is_refused_and_the_column_named(draw: Any, why: str) -> None:
    with pytest.raises(BadFrame, match=why) as told:
        draw()
    assert isinstance(told.value, AgentFlowError)


# -- matplotlib's place --------------------------------------------------------------------------------------------------


def test_only_plots_imports_matplotlib() -> None:
    homes = set()
    for path in LAB.parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [str(node.module)] if isinstance(node, ast.ImportFrom) else []
            homes |= {path.name for name in names if name.split(".")[0] == "matplotlib"}
    assert homes == {"plots.py"}


def test_a_plot_needs_no_display_no_pyplot_and_importing_agentflow_no_matplotlib() -> None:
    program = """
import sys, agentflow, agentflow.lab.race.race, agentflow.lab.plots.frames
assert not [name for name in ("matplotlib", "pandas") if name in sys.modules]
import pandas
from agentflow.lab.plots.plots import work_per_worker
svg = work_per_worker(pandas.DataFrame({"worker": ["A"], "claimed": [1], "completed": [1]})).svg
assert "matplotlib.pyplot" not in sys.modules
"""
    environment = {"PYTHONPATH": str(LAB.parent.parent), "PATH": "", "HOME": "/nonexistent", "MPLBACKEND": "TkAgg"}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr


# -- from real crashes ---------------------------------------------------------------------------------------------------


def test_recoveries_of_real_kills_add_up_to_their_span(crashed: Engine) -> None:
    table = recoveries_frame(crashed, poll_seconds=POLL)
    assert len(table) >= 3 and set(table["label"]) == {"lease 0.4 s"}
    spans = {(row["workflow_id"], row["fence_token"]): row["span_ms"] for row in crashed.recoveries()}
    claims = rows(crashed, "SELECT workflow_id, fence_token, at FROM {s}.history WHERE event = 'workflow_claimed'")
    claimed_at = {(row["workflow_id"], row["fence_token"]): row["at"] for row in claims}
    for _, row in table.iterrows():
        parts = row["detect_ms"] + row["claim_ms"] + row["replay_ms"] + row["re_execute_ms"]
        assert parts == pytest.approx(spans[row["workflow"], row["token"]], abs=0.01)
        assert row["detect_ms"] > 0
        apart = claimed_at[row["workflow"], row["token"]] - claimed_at[row["workflow"], row["token"] - 1]
        assert apart.total_seconds() >= LEASE / 2  # nobody takes over a lease that has half of its time left
    assert len(points(plots.recovery_latency(table), "row0-taken")) == len(table)


def lose(engine: Engine, claim: Claim | None) -> None:
    """The worker of this claim is dead, and its lease has ended."""
    assert claim is not None
    engine.record_fault(claim.workflow_id, "worker_killed", worker=claim.worker_id, token=claim.fence_token)
    engine.expire_lease(claim.workflow_id)


def test_a_take_over_that_was_killed_too_is_no_recovery_and_the_lease_is_the_lost_workers(engine: Engine) -> None:
    engine.create_workflow("login", workflow_id="w")
    lose(engine, engine.claim_workflow("A.1", 60.0))
    second = engine.claim_workflow("B.1", 61.0)
    assert second is not None and engine.advance_one_step(second) == "CLASSIFIED"
    lose(engine, second)
    assert engine.worker("C.1", lease_seconds=62.0).run_once() == "completed"
    table = recoveries_frame(engine)
    assert len(engine.recoveries()) == 2
    assert list(zip(table["worker"], table["token"], table["lease_seconds"], strict=True)) == [("C.1", 3, 61.0)]


def test_effects_and_work_of_real_kills_are_the_rows(crashed: Engine) -> None:
    effects, work = effects_frame(crashed), work_frame(crashed, by="identity")
    world = rows(crashed, "SELECT sum(attempts)::int AS attempts, count(*)::int AS effects FROM {w}.tool_ledger")[0]
    assert (effects["attempts"].sum(), effects["effects"].sum()) == (world["attempts"], world["effects"])
    assert list(effects["planned"]) == list(effects["effects"]) == [1] * 12
    assert list(effects["too_many"]) == list(effects["undone"]) == [0] * 12
    claims = rows(crashed, "SELECT count(*)::int AS n FROM {s}.history WHERE event = 'workflow_claimed'")[0]["n"]
    assert work["claimed"].sum() == claims and work["completed"].sum() == 12
    together = work_frame(crashed)
    assert list(together["worker"]) == ["soak"] and together["claimed"].sum() == claims
    assert "12 with" not in plots.attempts_against_effects(effects).text
    assert plots.work_per_worker(work).text.count("completed") == len(work)
