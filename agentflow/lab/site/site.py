"""The course as pages that open from the file system: `python -m agentflow.lab.site`, or `make site`.

Executed notebooks become HTML. Each page is complete, so that nothing is fetched from anywhere, and a policy in it makes the
browser keep to that. The pages show what a run showed when no question was answered.
"""

from __future__ import annotations

import base64
import hashlib
import html
import mimetypes
import os
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

import nbformat
from mistune import BlockParser, InlineParser
from nbconvert.filters.markdown_mistune import IPythonRenderer, MarkdownWithMath
from pygments import lex
from pygments.lexers import PythonLexer
from pygments.token import Comment, Keyword, Number, Operator, String

from ...errors import AgentFlowError
from ..course.stages import COURSE
from ..notebook.live_view import NO_KERNEL

NOTEBOOKS, PLACE = Path("notebooks"), Path("artifacts", "site")
# Nothing but what the page itself holds: no script, no font, no picture from elsewhere, and nowhere to send a form.
POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"
# What a notebook may not bring: a policy stops most of it, but nothing stops `<meta http-equiv="refresh">`.
_REFUSED = re.compile(r"<(?=/?(?:base|embed|form|frame|iframe|link|meta|object|script)\b)", re.IGNORECASE)
_PICTURE = re.compile(r'<img\b[^<>]*\bsrc="data:image/svg\+xml;charset=utf-8,[^<>]*>')  # as a cell's picture is saved
SKIP = '<a class="skip" href="#main">Skip to the lesson</a>'
COLOURED = ((Keyword, "k"), (Operator.Word, "k"), (String, "s"), (Number, "m"), (Comment, "c"))
ABOUT = "A laboratory for durable execution: kill workers at any moment, watch others go on, and prove from rows what is left."
PROMISE = (
    "Execution is at least once. At most one result is recorded per step; and once a workflow completes, and while the tool "
    "remembers its keys, each planned action has left exactly one business effect."
)


@dataclass(frozen=True)
class Page:
    """One page of the site: its name, title and content, and what the index says about it."""

    name: str
    title: str
    body: str
    about: str = ""
    note: str = ""


def build(paths: Sequence[Path], place: Path = PLACE) -> list[Path]:
    """Writes the site of these executed notebooks into `place`; older pages of ours are gone. Returns the files, the index first.

    Raises AgentFlowError for a notebook that cannot be read or was not executed, a picture that is not beside it, or a file
    in the way.
    """
    pages = [_page(path, [one.stem for one in paths]) for path in paths]
    if place.is_symlink() or (place.exists() and not place.is_dir()):
        raise AgentFlowError(f"{place} is no folder but a link or a file. Nothing was written; move it elsewhere.")
    place.mkdir(parents=True, exist_ok=True)
    ours = {old for old in place.glob("*.html") if _is_ours(old)}
    for file in (place / f"{name}.html" for name in ("index", *(page.name for page in pages))):
        if file not in ours and os.path.lexists(file):
            raise AgentFlowError(
                f"{file} is in the way: this AgentFlow did not write it, or it was changed since. Nothing was written; "
                "move it elsewhere."
            )
    for old in ours:
        old.unlink()
    written = [_write(place / "index.html", "AgentFlow: the course", _index(pages), [_way("Begin", pages[0])])]
    for before, page, after in zip([None, *pages[:-1]], pages, [*pages[1:], None], strict=True):
        neighbours = [_way(word, one) for word, one in (("Before", before), ("Next", after)) if one]
        ways = [("index.html", "The course"), *neighbours]
        written.append(_write(place / f"{page.name}.html", page.title, page.body, ways))
    return written


def _mark(name: str, page: bytes) -> bytes:
    """The last line of a page of ours, which a page that was changed or has another name does not have."""
    return f"<!-- agentflow.lab.site {hashlib.sha256(os.fsencode(name) + b'/' + page).hexdigest()} -->\n".encode()


def _is_ours(file: Path) -> bool:
    if file.is_symlink() or not file.is_file():
        return False
    *lines, last = file.read_bytes().splitlines(keepends=True) or [b""]
    return last == _mark(file.name, b"".join(lines))


def _way(word: str, page: Page) -> tuple[str, str]:
    return _address(page.name), f"{word}: {page.title}"


def _address(name: str) -> str:
    """Where a link leads to the page of this name, whatever is in it."""
    return f"{quote(os.fsencode(name), safe='')}.html"


def _page(path: Path, names: Sequence[str]) -> Page:
    try:
        if path.is_file():
            return _page_of(path, names)
        why = "is no file"
    except AgentFlowError:
        raise
    except Exception as error:  # whatever the libraries that read and render it raise at what a stranger wrote
        why = f"cannot be shown ({type(error).__name__}: {str(error)[:200]!r})"
    raise AgentFlowError(
        f"{path} {why}. Nothing was written; open it in JupyterLab, mend and save it, or move it elsewhere."
    )


def _page_of(path: Path, names: Sequence[str]) -> Page:
    notebook = nbformat.read(path, as_version=4)  # type: ignore[no-untyped-call]
    code = [cell for cell in notebook.cells if cell.cell_type == "code" and cell.source.strip()]
    if unexecuted := next((cell for cell in code if cell.execution_count is None), None):
        raise AgentFlowError(
            f"{path} was not executed to the end: the cell `{unexecuted.source.splitlines()[0]}` never ran. Open it in "
            "JupyterLab, choose Run > Run All Cells, save it, and build again."
        )
    body = _REFUSED.sub("&lt;", _once("\n".join(_cell(cell, path) for cell in notebook.cells)))
    body = _with_own_links(body, names)
    stage = next((stage for stage in COURSE if stage.name == path.stem), None)
    if stage is None:
        heading = re.search(r"^# (.+)$", "\n".join(cell.source for cell in notebook.cells), re.MULTILINE)
        return Page(path.stem, heading[1] if heading else path.stem, body)
    note = f"{stage.minutes} minutes{', on the fast track' if stage.fast else ''}"
    return Page(path.stem, stage.title, body, stage.goal, note)


# -- cells ---------------------------------------------------------------------------------------------------------------


class _Prose(IPythonRenderer):
    """Jupyter's renderer, with headings that links find as in JupyterLab (`#The-gap`), and without a pilcrow after each."""

    def heading(self, text: str, level: int, **_: Any) -> str:
        """The heading, with an id."""
        name = html.escape(html.unescape(re.sub(r"<[^<>]+>", "", text)).replace(" ", "-"))
        return f'<h{level} id="{name}">{text}</h{level}>'


def _cell(cell: Any, path: Path) -> str:
    if cell.cell_type == "markdown":
        renderer = _Prose(escape=False, attachments=cell.get("attachments"))
        # without mathematics, which no page shows, and which takes the square of the time for `\\begin` without an end
        markdown = MarkdownWithMath(renderer=renderer, block=BlockParser(), inline=InlineParser())
        return f'<div class="prose">{_with_pictures(markdown.render(cell.source), path)}</div>'
    if cell.cell_type != "code" or not cell.source.strip():  # Shift+Enter on the last cell adds an empty one
        return ""
    shown = _with_pictures("".join(_output(output) for output in cell.outputs), path)
    # what may be too wide scrolls, by key too
    wide = ' role="group" aria-label="Output" tabindex="0"' if re.search("<(svg|table|img)", shown) else ""
    below = f'<div class="output"{wide}>{shown}</div>' if shown else ""
    return f'<pre class="source"><code>{_coloured(cell.source)}</code></pre>{below}'


def _output(output: Any) -> str:
    if output.output_type == "stream":
        return f"<pre>{html.escape(output.text)}</pre>"
    if output.output_type == "error":
        return f"<pre>{html.escape(output.ename)}: {html.escape(output.evalue)}</pre>"
    text = output.data.get("text/plain", "")
    return str(output.data.get("text/html") or (f"<pre>{html.escape(text)}</pre>" if text != NO_KERNEL else ""))


def _coloured(source: str) -> str:
    """Python, with classes for what CSS makes visible: keywords, texts, numbers, comments."""
    coloured = ""
    for kind, text in lex(source, PythonLexer(stripnl=False, ensurenl=False)):
        name = next((name for family, name in COLOURED if kind in family), "")
        coloured += f'<span class="{name}">{html.escape(text)}</span>' if name else html.escape(text)
    return coloured


def _once(text: str) -> str:
    """The text with each style sheet where it comes first, and nowhere else."""
    first, *parts = text.split("<style>")
    seen: set[str] = set()
    for part in parts:
        sheet, end, after = part.partition("</style>")
        first += after if end and sheet in seen else f"<style>{part}"
        seen.add(sheet)
    return first


def _with_pictures(text: str, path: Path) -> str:
    """The text with each picture of the notebook's folder inside it. Raises AgentFlowError for any other."""

    def inside(found: re.Match[str]) -> str:
        source, folder = found[2], path.parent.resolve()
        if source.startswith("data:"):
            return found.group()
        kind = mimetypes.guess_type(source)[0] or ""
        with suppress(OSError, ValueError):  # no name for a file
            file = (folder / source).resolve()
            if kind.startswith("image/") and file.is_relative_to(folder) and file.is_file():
                return f"{found[1]}data:{kind};base64,{base64.b64encode(file.read_bytes()).decode()}{found[3]}"
        raise AgentFlowError(
            f"{path} shows the picture {source[:200]!r}, but there is no such picture in its folder. Put it there, or draw it."
        )

    return re.sub(r'(<img\b[^<>]*(?<![\w-])src=")([^"]*)(")', inside, text)


def _with_own_links(text: str, names: Sequence[str]) -> str:
    """The text with links to pages in place of links to notebooks; a link to a file without a page is removed."""

    def lead(found: re.Match[str]) -> str:
        target = found[2]
        stem, _, place = target.partition("#")
        if re.match(r"(https?:|mailto:|#)", target):
            return f'{found[1]}href="{target}"'
        name = Path(unquote(html.unescape(stem), errors="surrogateescape")).stem
        if stem.endswith(".ipynb") and name in names:
            return f'{found[1]}href="{_address(name)}{"#" + place if place else ""}"'
        return found[1]

    return re.sub(r'(<a\b[^<>]*?)href="([^"]*)"', lead, text)


# -- pages ---------------------------------------------------------------------------------------------------------------


def _index(pages: Sequence[Page]) -> str:
    return (
        f"<h1>AgentFlow: the course</h1><p>{ABOUT}</p><p>{PROMISE}</p>"
        "<p>These pages show what the notebooks show when they are run. To answer, click and break things yourself, run "
        "<code>make lab</code> in the project's folder.</p>"
        f'{_first_picture(pages)}<ol class="stages">{"".join(map(_line, pages))}</ol>'
    )


def _first_picture(pages: Sequence[Page]) -> str:
    """The first picture of the course, which says more than its name."""
    found = next(filter(None, (_PICTURE.search(page.body) for page in pages)), None)
    return f'<div class="output" role="group" aria-label="Picture" tabindex="0">{found[0]}</div>' if found else ""


def _line(page: Page) -> str:
    """The line of this page in the index."""
    link = f'<a href="{_address(page.name)}">{html.escape(page.name[:2])} · {html.escape(page.title)}</a>'
    about = f'<br>{html.escape(page.about)}<br><span class="mute">{html.escape(page.note)}</span>' if page.about else ""
    return f"<li>{link}{about}</li>"


def _write(file: Path, title: str, body: str, ways: Sequence[tuple[str, str]]) -> Path:
    links = "".join(f'<a href="{target}">{html.escape(words)}</a>' for target, words in ways)
    style = Path(__file__).with_name("site.css").read_text(encoding="utf-8")
    page = f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta http-equiv="Content-Security-Policy" content="{POLICY}">
<title>{html.escape(title)}</title>
<style>{style}</style>
</head>
<body>
{SKIP}
<header><nav aria-label="Course">{links}</nav></header>
<main id="main">
{body}
</main>
<footer><nav aria-label="Stages">{links}</nav></footer>
</body>
</html>
"""
    made = page.encode(errors="xmlcharrefreplace")
    file.write_bytes(made + _mark(file.name, made))
    return file


def main() -> str:
    """Builds the site of the whole course. Returns a sentence that says where it is."""
    paths = sorted(NOTEBOOKS.glob("*.ipynb"))
    if not paths:
        raise AgentFlowError("There is no notebooks/*.ipynb here. Run `make site` in the project's folder.")
    written = build(paths)
    return f"{len(written)} pages. Open {written[0]} in a browser; no network is needed."
