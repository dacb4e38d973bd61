"""The words of saved HTML, as a reader meets them on a page, and on GitHub after its published rules for HTML."""

from __future__ import annotations

from html.parser import HTMLParser

INLINE = frozenset({"a", "b", "code", "em", "i", "small", "span", "strong", "sub", "sup", "wbr"})
VOID = frozenset({"br", "hr", "img", "wbr"})

# What html-pipeline's SanitizationFilter lets through (github.com/gjtorikian/html-pipeline). Of an element that is not
# here the words stay, without a space unless Sanitize puts one there; of a script nothing stays.
ELEMENTS = frozenset(
    """h1 h2 h3 h4 h5 h6 h7 h8 br b i strong em a pre code img tt div ins del sup sub p ol ul table thead tbody tfoot
    blockquote dl dt dd kbd q samp var hr ruby rt rp li tr td th s strike summary details""".split()  # noqa: SIM905
)
SPACED = frozenset(
    """address article aside blockquote br dd div dl dt footer h1 h2 h3 h4 h5 h6 header hgroup hr li nav ol p pre section
    ul video""".split()  # noqa: SIM905
)
SCHEMES = ("http:", "https:", "/", ".")


class _Words(HTMLParser):
    """Collects words; an image is its name."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in INLINE:
            self.found.append(" ")
        if tag == "img":
            self.found += [dict(attrs).get("alt") or "", " "]

    def handle_endtag(self, tag: str) -> None:
        if tag not in INLINE:
            self.found.append(" ")

    def handle_data(self, data: str) -> None:
        self.found.append(data)


class _OnGitHub(HTMLParser):
    """Writes the HTML that the rules leave."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=False)
        self.left: list[str] = []
        self._script = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._script += tag == "script"
        if tag not in ELEMENTS:
            self.left += [" "] * (tag in SPACED)
            return
        kept = {name: value or "" for name, value in attrs if name in {"alt", "title", "colspan", "scope", "open"}}
        source = dict(attrs).get("src") or ""
        if tag == "img" and source.startswith(SCHEMES):
            kept["src"] = source
        self.left.append(f"<{tag}{''.join(f' {name}={chr(34)}{value}{chr(34)}' for name, value in kept.items())}>")

    def handle_endtag(self, tag: str) -> None:
        self._script -= tag == "script"
        if tag in ELEMENTS:
            self.left.append(f"</{tag}>")
        else:
            self.left += [" "] * (tag in SPACED)

    def handle_data(self, data: str) -> None:
        self.left += [data] * (not self._script)

    def handle_entityref(self, name: str) -> None:
        self.left.append(f"&{name};")

    def handle_charref(self, name: str) -> None:
        self.left.append(f"&#{name};")


def words(html: str) -> list[str]:
    """The words of this HTML, each picture read by its name; two that no space and no block parts are one word."""
    reader = _Words()
    reader.feed(html)
    reader.close()
    return "".join(reader.found).split()


def on_github(html: str) -> str:
    """What GitHub's published rules leave of this HTML."""
    rules = _OnGitHub()
    rules.feed(html)
    rules.close()
    return "".join(rules.left)
