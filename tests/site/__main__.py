"""`make site-check`: the built site and the page of a step, in files and in the browser; exit code 1 with what is wrong."""

import re
import sys
from pathlib import Path

from tests.site import files, looks, step_page
from tests.site.browser import browser

BUILD = Path(__file__).parent.parent.parent / "build"


def main() -> int:
    """Print what is wrong, and how much was looked at."""
    site, pictures = BUILD / "site", BUILD / "site-check"
    if not (site / "index.html").exists():
        sys.exit("the site is not built: make site")
    pages = files.pages(site)
    reference = BUILD.parent / "docs" / "reference" / "api"
    entries = [name for page in reference.glob("*.md") for name in re.findall(r"^::: (\S+)$", page.read_text(), re.M)]
    faults = [*files.faults(site), *files.missing(site, entries)]
    with browser() as page:
        faults += step_page.faults(page, pictures)
        faults += looks.faults(page, site, pages)
        faults += looks.searched(page, site, "fresh clone", "tutorials/a-first-model.html")
        faults += looks.searched(page, site, "PeakShaving", "reference/api/solvers.html")
        faults += looks.screenshots(page, site, pictures)
    for fault in faults:
        print(fault)
    links = sum(len(files.parts(path).links) for path in pages)
    print(f"{len(pages)} pages, {links} links, {len(entries)} names, {len(faults)} faults; pictures are in {pictures}")
    return int(bool(faults))


if __name__ == "__main__":
    sys.exit(main())
