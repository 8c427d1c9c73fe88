"""The page of `remat show --html` in the browser: the mouse, the keys, the address, the table, names that are traps."""

from collections.abc import Iterator
from pathlib import Path

from remat.viz.page import print_page
from tests.site.browser import Browser
from tests.site.looks import CONTRAST, DESKTOP, PHONE, WIDER, foreign
from tests.viz.examples import SPOOF, copied, recomputed

PANEL = """
({ what: document.getElementById("what").textContent,
   rows: Object.fromEntries([...document.querySelectorAll("#details dt")]
     .map(name => [name.textContent, name.nextSibling.textContent])) })
"""


def place(page: Browser, time: float, size: float) -> tuple[float, float]:
    """Where a time [ns] and a size [bytes] are on the picture of the memory."""
    script = f"""(() => {{ const box = element("memory").getBoundingClientRect();
        return [box.left + xOf({time}, box.width), box.top + yOf({size}, box.height)]; }})()"""
    x, y = page.run(script)
    return float(x), float(y)


def faults(page: Browser, folder: Path) -> Iterator[str]:
    """What the page does wrong, a line each."""
    folder.mkdir(parents=True, exist_ok=True)
    plain, spoofed, copies = (folder / f"{name}.html" for name in ("step", "spoofed", "copies"))
    plain.write_text(print_page(recomputed(), budget=90), encoding="utf-8")
    spoofed.write_text(print_page(recomputed(SPOOF)), encoding="utf-8")
    copies.write_text(print_page(copied()), encoding="utf-8")
    for check in (hovered, moved_by_keys, opened_at_a_tensor, filtered, escaped, shown_with_copies):
        for fault in check(page, {"plain": plain, "spoofed": spoofed, "copies": copies}):
            yield f"the page of a step, {check.__name__}: {fault}"
    for path in (plain, spoofed, copies):
        page.open(path.as_uri(), *PHONE)
        yield from (f"{path.name}: {fault}" for fault in (*page.run(WIDER), *page.run(CONTRAST), *page.errors))
        yield from (f"{path.name}: asked for {address}" for address in foreign(page))


def differs(panel: dict, what: str, /, **rows: str) -> Iterator[str]:
    """Where the panel does not say what it should."""
    if panel["what"] != what:
        yield f"the panel is of {panel['what']!r}, not {what!r}"
    for name, words in rows.items():
        if words not in panel["rows"].get(name, ""):
            yield f"{what}: {name} is {panel['rows'].get(name)!r}, not {words!r}"


def hovered(page: Browser, files: dict[str, Path]) -> Iterator[str]:
    """The mouse on a tensor tells of it; a click holds it; Escape lets go; the mouse on a run tells of that."""
    page.open(files["plain"].as_uri(), *DESKTOP)
    page.move(*place(page, 3000, 20))
    why = "read once, by H; then it is dropped"
    yield from differs(page.run(PANEL), "a", size="40 B", module="net.low", why=why, recomputed="at 10.000 µs")
    page.move(*place(page, 3000, 55), click=True)
    yield from differs(page.run(PANEL), "h", size="30 B", module="net.high", recomputed="never")
    page.move(*place(page, 3000, 20))
    yield from differs(page.run(PANEL), "h")
    page.key("Escape")
    yield from differs(page.run(PANEL), "Point at a tensor")
    box = page.run(
        '(() => { const box = element("lanes").getBoundingClientRect(); return [box.left, box.top, box.width]; })()'
    )
    x = box[0] + page.run(f"xOf(11000, {box[2]})")
    page.move(x, box[1] + 0.9 * page.run('element("lanes").clientHeight'))
    yield from differs(page.run(PANEL), "F", lane="recomputed", takes="2.000 µs", module="net.low")


def moved_by_keys(page: Browser, files: dict[str, Path]) -> Iterator[str]:
    """The arrow keys move through time and through what is resident."""
    page.open(files["plain"].as_uri(), *DESKTOP)
    page.run('element("memory").focus()')
    seen = set()
    for key in ("ArrowRight", "ArrowUp", "ArrowUp", "ArrowUp", *["ArrowLeft"] * 45):
        page.key(key)
        seen.add(page.run(PANEL)["what"])
    if not {"a", "h"} <= seen:
        yield f"only {sorted(seen)} were reached"


def opened_at_a_tensor(page: Browser, files: dict[str, Path]) -> Iterator[str]:
    """The address names a tensor."""
    page.open(files["plain"].as_uri() + "#tensor=s", *DESKTOP)
    yield from differs(page.run(PANEL), "s", what="param grad", why="it is the gradient of a parameter")


def filtered(page: Browser, files: dict[str, Path]) -> Iterator[str]:
    """The table is by size, its filter takes modules, and a name in it chooses the tensor."""
    page.open(files["plain"].as_uri(), *DESKTOP)
    rows = '[...document.querySelectorAll("#rows tr td:first-child")].map(cell => cell.textContent)'
    if page.run(rows)[:3] != ["a", "a", "h"]:
        yield f"the table begins with {page.run(rows)[:3]}"
    page.run('element("filter").value = "net.high"; element("filter").dispatchEvent(new Event("input"))')
    if page.run(rows) != ["h", "s", "BH"]:
        yield f"the filter leaves {page.run(rows)}"
    page.run('document.querySelector("#rows button").click()')
    yield from differs(page.run(PANEL), "h")


def escaped(page: Browser, files: dict[str, Path]) -> Iterator[str]:
    """A name with markup, colors and turned text is shown as text."""
    page.open(files["spoofed"].as_uri(), *DESKTOP)
    page.move(*place(page, 3000, 20))
    yield from differs(page.run(PANEL), "</script><b>a\\u202egnp\\x1b[31m")
    if page.run('document.querySelectorAll("b").length'):
        yield "a name became markup"


def shown_with_copies(page: Browser, files: dict[str, Path]) -> Iterator[str]:
    """Copies have lanes, and a copied phantom says so."""
    page.open(files["copies"].as_uri() + "#tensor=P", *DESKTOP)
    yield from differs(page.run(PANEL), "P", why="copied to the host", module="layers.0")
    lanes = page.run("lanes.map(([lane]) => lane)")
    if lanes != ["forward", "backward", "recomputed", "to host", "to device"]:
        yield f"lanes are {lanes}"
