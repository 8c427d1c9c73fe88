"""The files of the built site, without a browser.

Links and anchors lead somewhere, images have words, no mark of Markdown is left in the text, no other host is asked.
"""

from collections.abc import Iterable, Iterator
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

LOADS = {
    "script": "src",
    "img": "src",
    "iframe": "src",
    "source": "src",
    "link": "href",
    "video": "src",
    "audio": "src",
}
"""Tags that load something, and the attribute that says what."""
LITERAL = {"code", "pre", "script", "style", "title"}
"""Tags whose text is shown, or used, as it stands."""
MARKS = ("`", "**", "](")
"""Marks of Markdown, which no reader should see."""


class Parts(HTMLParser):
    """Links, loads, anchors, images of a page, and marks of Markdown that are left in its text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.anchors: set[str] = set()
        self.wordless: list[str] = []
        self.marks: list[str] = []
        self._literal = 0
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        """Keep what the tag links to, loads or names."""
        given = {key: value or "" for key, value in attributes}
        self._literal += tag in LITERAL
        self.anchors |= {given[key] for key in ("id", "name") if key in given}
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        if tag in LOADS and LOADS[tag] in given and given.get("rel") not in ("next", "prev", "canonical"):
            self.loads.append(given[LOADS[tag]])
        if tag == "img" and not given.get("alt", "").strip():
            self.wordless.append(given.get("src", ""))

    def handle_endtag(self, tag: str) -> None:
        """Leave what is shown as it stands."""
        self._literal -= tag in LITERAL

    def handle_data(self, data: str) -> None:
        """Keep text that a mark of Markdown is left in."""
        if not self._literal and any(mark in data for mark in MARKS):
            self.marks.append(" ".join(data.split())[:60])


@cache
def parts(page: Path) -> Parts:
    """What a page is made of."""
    return Parts(page.read_text(encoding="utf-8"))


def pages(site: Path) -> list[Path]:
    """All pages of the site, but for the one that a server shows in place of any other: its links begin at the server's root."""
    return sorted(path for path in site.rglob("*.html") if path.name != "404.html")


def faults(site: Path) -> Iterator[str]:
    """What is wrong with the files, a line each."""
    for page in pages(site):
        here = page.relative_to(site)
        for link in dict.fromkeys(parts(page).links):
            yield from (f"{here}: link to {link}: {reason}" for reason in broken(page, link))
        for load in parts(page).loads:
            address = urlsplit(load)
            if address.netloc:
                yield f"{here}: loads {load} from another host"
            elif address.path and address.scheme != "data" and not (page.parent / unquote(address.path)).exists():
                yield f"{here}: loads {load}, which does not exist"
        yield from (f"{here}: image {image} without words" for image in parts(page).wordless)
        yield from (f"{here}: not rendered: {text}" for text in parts(page).marks)


def missing(site: Path, entries: Iterable[str]) -> Iterator[str]:
    """Names that have an entry in the reference and none on the site."""
    anchors = {anchor for page in pages(site) for anchor in parts(page).anchors}
    yield from (f"{name} has no entry in the reference on the site" for name in entries if name not in anchors)


def broken(page: Path, link: str) -> Iterator[str]:
    """Why a link leads nowhere; links to other hosts are not followed."""
    address = urlsplit(link)
    if address.scheme or address.netloc:
        return
    target = (page.parent / unquote(address.path)).resolve() if address.path else page
    if target.is_dir():
        target = target / "index.html"
    if not target.exists():
        yield "no such file"
    elif (
        address.fragment
        and target.suffix == ".html"
        and unquote(address.fragment) not in parts(target).anchors | {"__skip"}
    ):
        yield "no such anchor"
