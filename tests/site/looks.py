"""Pages of the site in the browser: contrast, width, errors, loads, search, screenshots."""

from collections.abc import Iterator
from pathlib import Path

from tests.site.browser import Browser

DESKTOP, PHONE = (1280, 900), (390, 844)
SHOWN = (
    "index.html",
    "tutorials/a-first-model.html",
    "how-to/look-at-a-plan.html",
    "reference/solvers.html",
    "reference/api/exec.html",
)
"""Pages of which there are screenshots."""

CONTRAST = """
(() => {
  const parse = text => { const v = text.match(/[\\d.]+/g).map(Number); return v.length < 4 ? [...v, 1] : v; };
  const over = (top, low) => [0, 1, 2].map(i => top[i] * top[3] + low[i] * (1 - top[3])).concat(1);
  const light = color => color.slice(0, 3).map(v => v / 255).map(v => v <= .03928 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4)
    .reduce((sum, v, i) => sum + v * [.2126, .7152, .0722][i], 0);
  const behind = node => {
    const layers = [];
    for (let at = node; at; at = at.parentElement) layers.push(parse(getComputedStyle(at).backgroundColor));
    return layers.reverse().reduce((low, top) => over(top, low), [255, 255, 255, 1]);
  };
  const seen = new Map();
  const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walk.nextNode()) {
    const node = walk.currentNode.parentElement, words = walk.currentNode.textContent.trim();
    if (!words || node.closest("script, style, noscript, .headerlink, .md-skip, .md-search__output, svg")) continue;
    if (!node.checkVisibility({ opacityProperty: true, visibilityProperty: true })) continue;
    const style = getComputedStyle(node), back = behind(node), ink = parse(style.color);
    for (let at = node; at; at = at.parentElement) ink[3] *= getComputedStyle(at).opacity;
    const front = over(ink, back);
    const [a, b] = [light(front), light(back)].sort((x, y) => y - x), ratio = (a + .05) / (b + .05);
    const size = parseFloat(style.fontSize), large = size >= 24 || (size >= 18.66 && style.fontWeight >= 700);
    const what = `${node.tagName}.${node.className} ${style.color} on ${back.slice(0, 3).map(Math.round)}`;
    if (ratio < (large ? 3 : 4.5)) seen.set(what, `${ratio.toFixed(2)} "${words.slice(0, 30)}"`);
  }
  return [...seen].map(([key, value]) => `${key}: ${value}`);
})()
"""

WIDER = """
[...document.querySelectorAll("body *")].filter(node => {
  const box = node.getBoundingClientRect();
  if (!box.width || box.right <= innerWidth + 1 || getComputedStyle(node).position === "fixed") return false;
  for (let at = node.parentElement; at; at = at.parentElement)
    if (/auto|scroll|hidden|clip/.test(getComputedStyle(at).overflowX) || getComputedStyle(at).position === "fixed") return false;
  return node.checkVisibility();
}).slice(0, 3).map(node => `${node.tagName}.${node.className} reaches ${Math.round(node.getBoundingClientRect().right)}`)
"""

SEARCH = """
new Promise(resolve => {
  const box = document.querySelector("[data-md-component=search-query]");
  const open = document.querySelector("#__search");
  open.checked = true;
  open.dispatchEvent(new Event("change", { bubbles: true }));
  box.focus();
  box.value = "WORD";
  for (const kind of ["focus", "keyup", "input"]) box.dispatchEvent(new Event(kind, { bubbles: true }));
  const end = Date.now() + 20000, look = () => {
    const results = [...document.querySelectorAll(".md-search-result__item > a")].map(link => link.getAttribute("href"));
    if (results.length || Date.now() > end) resolve(results);
    else { box.dispatchEvent(new Event("keyup", { bubbles: true })); setTimeout(look, 200); }
  };
  look();
})
"""


def faults(page: Browser, site: Path, pages: list[Path]) -> Iterator[str]:
    """What is wrong with each page at two widths, a line each."""
    for path in pages:
        here = path.relative_to(site)
        page.open(path.as_uri(), *DESKTOP)
        yield from (f"{here}: contrast {fault}" for fault in page.run(CONTRAST))
        page.call(
            "Emulation.setDeviceMetricsOverride", width=PHONE[0], height=PHONE[1], deviceScaleFactor=1, mobile=False
        )
        yield from (f"{here}: wider than a phone: {fault}" for fault in page.run(WIDER))
        yield from (f"{here}: {error}" for error in page.errors)
        yield from (f"{here}: asked for {address}" for address in foreign(page))


def foreign(page: Browser) -> list[str]:
    """What a page asked other hosts for."""
    return [address for address in page.loaded if not address.startswith(("file:", "data:", "blob:", "about:"))]


def searched(page: Browser, site: Path, word: str, expected: str) -> Iterator[str]:
    """Search for a word on the files themselves, without a server."""
    page.open((site / "index.html").as_uri(), *DESKTOP)
    results = page.run(SEARCH.replace("WORD", word))
    if not any(expected in str(result) for result in results):
        yield f"search for {word!r} finds {results[:5]}, not {expected}"


def screenshots(page: Browser, site: Path, folder: Path) -> Iterator[str]:
    """Write pictures of the pages that are shown, at two widths; a page that is blank is a fault."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in SHOWN:
        for words, (width, height) in (("desktop", DESKTOP), ("phone", PHONE)):
            page.open((site / name).as_uri(), width, height)
            picture = folder / f"{name.removesuffix('.html').replace('/', '-')}-{words}.png"
            page.screenshot(picture)
            if picture.stat().st_size < 10_000:
                yield f"{name}: the picture at {width} pixels is blank"
