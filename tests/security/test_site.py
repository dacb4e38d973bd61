"""Hostile notebooks as pages: nothing of the builder's machine is in them, they lead nowhere, and they take linear time."""

from __future__ import annotations

import base64
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from urllib.parse import quote, unquote

import nbformat
import pytest

from agentflow import AgentFlowError
from agentflow.lab.site.site import build

V4 = nbformat.v4
SECRET = "root:x:0:0:a secret of the builder"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder of notebooks, with a picture in it and with secrets around it."""
    (tmp_path / "secret.txt").write_text(SECRET)
    (tmp_path / "secret.svg").write_text(f"<svg>{SECRET}</svg>")
    notebooks = tmp_path / "notebooks"
    notebooks.mkdir()
    (notebooks / "notes.txt").write_text(SECRET)
    (notebooks / "link.svg").symlink_to(tmp_path / "secret.svg")
    (notebooks / "dot.svg").write_text("<svg><circle r='4'/></svg>")
    (tmp_path / "notebooks-too").mkdir()
    (tmp_path / "notebooks-too" / "a.svg").write_text(SECRET)
    return notebooks


def page_of(folder: Path, shown: str = "", text: str = "# A page", code: str = "1") -> str:
    output = V4.new_output("display_data", data={"text/html": shown})
    cells = [V4.new_markdown_cell(text), V4.new_code_cell(code, execution_count=1, outputs=[output] if shown else [])]
    nbformat.write(V4.new_notebook(cells=cells), folder / "01-page.ipynb")
    return build([folder / "01-page.ipynb"], folder.parent / "site")[1].read_text(encoding="utf-8")


SOURCES = [
    *("/etc/passwd", "../secret.svg", "../secret.txt", "notes.txt", "link.svg", "../notebooks-too/a.svg", "./../secret.svg"),
    *("file:///etc/passwd", "//evil.example/a.svg", "https://evil.example/a.svg", "dot.svg/../../secret.svg", "", ".", "\0.svg"),
    *("x" * 5000 + ".svg", "/proc/self/environ", "/dev/zero"),
]  # fmt: skip


@pytest.mark.parametrize("source", SOURCES, ids=range(len(SOURCES)))
@pytest.mark.parametrize("place", ["output", "text"])
def test_a_picture_is_taken_from_the_notebooks_folder_alone(folder: Path, source: str, place: str) -> None:
    image = f'<img alt="" src="{source}">'
    with pytest.raises(AgentFlowError, match="no such picture in its folder"):
        page_of(folder, shown=image) if place == "output" else page_of(folder, text=image)
    assert not (folder.parent / "site").exists()


def test_a_picture_of_the_folder_is_inside_the_page(folder: Path) -> None:
    page = page_of(folder, text="![A dot](dot.svg)", shown='<img data-src="/etc/passwd" src="dot.svg">')
    assert page.count(base64.b64encode((folder / "dot.svg").read_bytes()).decode()) == 2
    for other in (
        "<img src='/etc/passwd'>",
        "<img src=/etc/passwd>",
        "<IMG SRC='../secret.svg'>",
        '<image href="/etc/passwd"/>',
    ):
        assert SECRET not in page_of(folder, shown=other) and "root:" not in page_of(folder, shown=other)


REFUSED = [
    '<meta http-equiv="refresh" content="0;url=https://evil.example">', '<META/http-equiv=refresh content="0;//evil.example">',
    "<base href='https://evil.example/'>", "<form action='https://evil.example'><input name=a></form>", "</form><Form>",
    "<iframe src='https://evil.example'></iframe>", "<object data='x'></object>", "<embed src='x'>", "<script>alert(1)</script>",
    "<link rel='prefetch' href='https://evil.example'>", "<svg><script>1</script></svg>", "<frame src=x>",
    '<p title="</p><meta http-equiv=refresh>">', "<meta\nhttp-equiv='refresh'>", "<<meta http-equiv='refresh'>",
]  # fmt: skip


@pytest.mark.parametrize("html", REFUSED)
@pytest.mark.parametrize("place", ["output", "text"])
def test_a_page_leads_nowhere_by_itself_and_sends_nothing(folder: Path, html: str, place: str) -> None:
    page = page_of(folder, shown=html) if place == "output" else page_of(folder, text=html)
    body = page[page.index("<body>") :]
    assert not re.search("<(base|embed|form|frame|iframe|link|meta|object|script)", body, re.IGNORECASE)
    assert "base-uri 'none'; form-action 'none'" in page[: page.index("<style>")]


NAMES = [
    '05-"><meta http-equiv=refresh content=0;url=https:evil.example>', "<meta http-equiv=refresh content=0;url=x>",
    "javascript:alert(1)", "06-'onclick=a&quot;<b>%22", "#a?b", "\udcff-not-text",
]  # fmt: skip


@pytest.mark.parametrize("name", NAMES, ids=range(len(NAMES)))
def test_the_name_of_a_notebook_is_text_in_every_page_and_leads_to_its_own(folder: Path, name: str) -> None:
    link = quote(os.fsencode(name), safe="")
    cells = [V4.new_markdown_cell(f"[Here]({link}.ipynb#end)"), V4.new_code_cell("1", execution_count=1)]
    paths = [folder / f"{one}.ipynb" for one in ("01-page", name, "99-page")]
    for path in paths:
        nbformat.write(V4.new_notebook(cells=cells), path)
    for file in build(paths, folder.parent / "site"):
        body = file.read_text().partition("<body>")[2]
        assert not re.search(r"<(meta|m|b)\b|<[^<>]*\bonclick=[^<>]*>", body)
        led = {unquote(one.partition("#")[0], errors="surrogateescape") for one in re.findall('href="([^"#]+)', body)}
        assert f"{name}.html" in led and all((folder.parent / "site" / one).exists() for one in led)


UNITS = {
    "sheets": ("<style>", ""), "pictures": ("<img ", ""), "links": ("<a ", ""), "tags": ("<", "# <"),
    "references": ('<a href="', ""),
    "mathematics": ("", "\\begin{a}"), "emphasis": ("", "**a"), "brackets": ("", "[a]("), "tables": ("", "|a|\n|-|\n"),
}  # fmt: skip


@pytest.mark.parametrize("unit", UNITS.values(), ids=UNITS)
def test_a_hostile_notebook_takes_linear_time(folder: Path, unit: tuple[str, str]) -> None:
    """20,000 unfinished tags took the square of the time: 87 s; mathematics that never ends still more."""
    begun = time.process_time()
    try:
        page_of(folder, shown=unit[0] * 20_000, text=f"# A page\n\n{unit[1] * 8_000}")
    except AgentFlowError:
        assert unit[0].startswith("<img")
    assert time.process_time() - begun < 3


def test_equal_style_sheets_stand_once_and_others_stay(folder: Path) -> None:
    page = page_of(folder, shown="<style>.a{}</style>x<style>.b{}</style>y<style>.a{}</style>z<style>.c{")
    assert re.findall(r"\.[abc]\{", page.partition("<main")[2]) == [".a{", ".b{", ".c{"]
    assert "</style>x<style>" in page and "</style>yz<style>.c{" in page


@pytest.mark.parametrize("name", ["index.html", "01-page.html"])
@pytest.mark.parametrize("kind", ["file", "link"])
def test_a_page_of_somebody_else_is_neither_overwritten_nor_deleted(folder: Path, name: str, kind: str) -> None:
    page_of(folder)
    site, thesis = folder.parent / "site", folder.parent / "thesis.html"
    (site / "other.html").write_text("a page of somebody else")
    thesis.write_text(text := (site / name).read_text() if kind == "link" else "a thesis")
    (site / name).unlink()
    (site / name).symlink_to(thesis) if kind == "link" else (site / name).write_text(text)
    with pytest.raises(AgentFlowError, match="in the way"):
        page_of(folder)
    assert (site / name).read_text() == thesis.read_text() == text
    (site / name).unlink()
    page_of(folder)
    assert (site / "other.html").read_text() == "a page of somebody else"


def test_a_page_that_a_learner_changed_or_saved_under_another_name_is_theirs(folder: Path) -> None:
    page = page_of(folder)
    site = folder.parent / "site"
    theirs = {
        "01-page (1).html": page.replace("A page", "My notes"),
        "copy.html": page,
        "empty.html": "",
        "line.html": "\n",
    }
    for name, text in theirs.items():
        (site / name).write_text(text)
    os.mkfifo(site / "pipe.html")
    assert page_of(folder) == page
    assert {name: (site / name).read_text() for name in theirs} == theirs
    (site / "01-page.html").write_text(page.replace("A page", "My notes"))
    with pytest.raises(AgentFlowError, match="changed since"):
        page_of(folder)
    assert "My notes" in (site / "01-page.html").read_text()


def test_a_link_or_a_file_in_place_of_the_site_is_refused(folder: Path) -> None:
    page_of(folder)
    (folder.parent / "site").rename(elsewhere := folder.parent / "elsewhere")
    (folder.parent / "site").symlink_to(elsewhere)
    before = {file: file.stat().st_mtime_ns for file in elsewhere.iterdir()}
    with pytest.raises(AgentFlowError, match="a link or a file"):
        page_of(folder)
    assert before == {file: file.stat().st_mtime_ns for file in elsewhere.iterdir()}
    (folder.parent / "site").unlink()
    (folder.parent / "site").write_text("")
    with pytest.raises(AgentFlowError, match="a link or a file"):
        page_of(folder)


CELLS = '{"nbformat": 4, "nbformat_minor": 5, "metadata": {}, "cells": %s}'
TEXT = CELLS % '[{"cell_type": "markdown", "metadata": {}, "source": "%s"}]'
BROKEN = [
    "{}", "[]", "x", "\0", "[" * 9000, CELLS % 7, CELLS % "[7]", CELLS % '[{"cell_type": "code"}]',
    TEXT % "![x](attachment:../a)", '{"nbformat": 99, "cells": []}',
]  # fmt: skip


@pytest.mark.parametrize("text", BROKEN, ids=range(len(BROKEN)))
def test_a_broken_notebook_is_told_in_a_sentence(folder: Path, text: str) -> None:
    (folder / "02-broken.ipynb").write_text(text)
    with pytest.raises(AgentFlowError, match=r"02-broken\.ipynb cannot be shown"):
        build([folder / "02-broken.ipynb"], folder.parent / "site")
    assert not (folder.parent / "site").exists()


def test_the_program_says_what_is_wrong_and_shows_no_traceback(folder: Path) -> None:
    for spoil in ((folder / "1.ipynb").mkdir, lambda: (folder / "1.ipynb").rmdir() or os.mkfifo(folder / "1.ipynb")):
        spoil()
        command = [sys.executable, "-m", "agentflow.lab.site"]
        done = subprocess.run(command, cwd=folder.parent, capture_output=True, text=True, timeout=20)
        assert (done.returncode, done.stderr.count("\n")) == (1, 1) and "1.ipynb is no file" in done.stderr
