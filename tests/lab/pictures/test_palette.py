"""One palette: wherever JupyterLab's theme may be missing, the colour beside it is the one that pictures have."""

from __future__ import annotations

import re
from pathlib import Path

import agentflow.lab
from agentflow.lab.pictures import svg
from agentflow.lab.pictures.timeline import timeline
from agentflow.lab.plots import plots

LAB = Path(agentflow.lab.__file__).parent
FALLBACK = re.compile(r"(--jp-[a-z]+-[a-z]+-?[a-z]*\d)[,:]\s*(#[0-9a-f]{3,6})")


def stated(text: str) -> set[tuple[str, str]]:
    return set(FALLBACK.findall(text))


LIGHT, DARK = (stated(" ".join(palette.values())) for palette in (svg.LIGHT, svg.DARK))


def test_every_style_falls_back_to_the_palette_of_the_pictures() -> None:
    styles = [path for kind in ("*.py", "*.css") for path in LAB.rglob(kind) if path.name not in ("svg.py", "site.css")]
    found = {(path.name, *one) for path in styles for one in stated(path.read_text(encoding="utf-8"))}
    ours = {name for name, _ in LIGHT}
    assert len({name for name, *_ in found}) > 2
    assert {one for one in found if one[1] in ours and one[1:] not in LIGHT} == set()
    others = {one[1:] for one in found if one[1] not in ours}
    assert len({name for name, _ in others}) == len(others)


def test_the_site_has_the_palette_of_the_pictures_by_day_and_by_night() -> None:
    day, night = (LAB / "site" / "site.css").read_text(encoding="utf-8").split("@media (prefers-color-scheme:dark)", 1)
    assert (LIGHT - stated(day), DARK - stated(night)) == (set(), set())


def test_no_other_module_writes_the_colour_of_a_worker() -> None:
    files = [path for kind in ("*.py", "*.css", "*.js") for path in LAB.rglob(kind) if path.name != "svg.py"]
    assert [
        path.name for path in files if any(hue in path.read_text(encoding="utf-8") for hue in svg.COLOURS.values())
    ] == []


def test_a_worker_has_one_hue_in_timelines_plots_and_the_control_room() -> None:
    style = (LAB / "room" / "room.css").read_text(encoding="utf-8")
    lanes = {lane: re.findall(rf"^.*\.af-lane-{lane}\b.*--who:(.*)}}$", style, re.MULTILINE) for lane in svg.HUES}
    assert lanes == {lane: [hue] for lane, hue in svg.HUES.items()}
    plotted = {worker: svg.SENTINELS.get(hue, f"var(--{worker})") for worker, hue in plots.HUE_OF.items()}
    assert plotted == svg.HUES
    claim = {"event": "workflow_claimed", "transaction": "claim", "fence_token": 1}
    for worker, hue in svg.HUES.items():
        drawn = timeline(
            [{**claim, "worker": worker}]
        ).svg  # with the filled heads of the lanes of A and B, which are always there
        assert set(re.findall(r'stroke="(var\(--[A-D]\))"', drawn)) == {hue} - {svg.INK}
