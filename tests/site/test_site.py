"""What the site promises and no browser is needed for: each public name has its reference, each solver its row."""

import importlib
import inspect
import re
from pathlib import Path

import pytest

from remat.algorithms._plugins.registry import registered
from tests.site import solvers
from tests.test_public_surface import PACKAGES

ROOT = Path(__file__).parent.parent.parent
API = ROOT / "docs" / "reference" / "api"
ENTRY = re.compile(r"^::: (\S+)$", re.M)
WHOLE = {"remat.algorithms.named": "remat.named", "remat.errors": "remat.errors", "remat.units": "remat.units"}
"""Modules that have a page as a whole."""


def entries():
    """Every entry of the reference, and the page that it is on; `make site-check` looks for each on the site."""
    return [(name, page.name) for page in API.glob("*.md") for name in ENTRY.findall(page.read_text())]


def test_every_public_name_has_its_entry_in_the_reference_and_no_entry_stands_twice():
    named = [name for name, _ in entries()]
    assert len(named) == len(set(named))
    short = set(re.findall(r"^\| `(remat\.\w+)` \| \[", (API / "README.md").read_text(), re.M))
    public = {
        f"{package}.{name}"
        for package in (*PACKAGES, "remat.ir", "remat.exec")
        for name in importlib.import_module(package).__all__
    }
    assert public - set(named) - short == set()
    assert {name for name in named if not name.startswith("remat.viz.")} - public == set(WHOLE)
    assert not short & set(named)


def test_every_entry_is_a_name_that_exists_and_has_a_docstring():
    for name, page in entries():
        module, _, attribute = name.rpartition(".")
        value = importlib.import_module(name) if name in WHOLE else getattr(importlib.import_module(module), attribute)
        described = inspect.isclass(value) or inspect.isroutine(value) or inspect.ismodule(value)
        assert not described or (value.__doc__ or "").strip(), (name, page)


def test_a_short_name_leads_to_the_entry_of_the_same_thing():
    rows = re.findall(r"^\| `remat\.(\w+)` \| \[`([\w.]+)`\]\((\w+\.md)", (API / "README.md").read_text(), re.M)
    assert len(rows) > 15
    for short, name, page in rows:
        module, _, attribute = name.rpartition(".")
        assert getattr(importlib.import_module("remat"), short) is getattr(importlib.import_module(module), attribute)
        assert f"::: {name}\n" in (API / page).read_text()


def rows_of_solvers():
    return dict(re.findall(r"^\| `(\w+)` \| ([^|]*) \|", solvers.PAGE.read_text(), re.M))


def test_the_table_of_solvers_has_a_row_for_each_that_is_registered():
    assert set(rows_of_solvers()) == set(registered("solvers"))


@pytest.mark.parametrize(
    "name", [name for name in sorted(registered("solvers")) if name not in ("dtr", "hiremate", "rockmate")]
)
def test_a_solver_accepts_what_its_row_says(name):
    solver = solvers.parse(solvers.expression_of(name))
    words = rows_of_solvers()[name].split(", ")
    assert [word for word in words if word not in ("link", "—")] == solvers.accepted(solver)


def test_the_pages_that_are_looked_at_exist():
    from tests.site.looks import SHOWN

    assert len(SHOWN) == 5
    for page in SHOWN:
        source = ROOT / "docs" / page.replace(".html", ".md").replace("index.md", "README.md")
        assert source.exists(), source


GOOD = '<a href="other.html#here">o</a><img src="p.png" alt="a picture"><a href="https://example.org">e</a>'
FAULTS = {
    '<a href="nowhere.html">n</a>': "no such file",
    '<a href="other.html#there">n</a>': "no such anchor",
    '<img src="p.png">': "without words",
    '<img src="q.png" alt="a picture">': "which does not exist",
    '<script src="https://example.org/x.js"></script>': "from another host",
    '<link rel="stylesheet" href="//example.org/x.css">': "from another host",
    "<p>through `Linearise()</p>": "not rendered: through `Linearise()",
    "<p>**bold**</p>": "not rendered",
    "<pre>`a`</pre><p>[a](b.md)</p>": "not rendered: [a](b.md)",
}


@pytest.mark.parametrize(("markup", "fault"), [(GOOD, None), *FAULTS.items()])
def test_a_fault_of_a_page_is_found(tmp_path, markup, fault):
    from tests.site.files import faults, missing

    (tmp_path / "p.png").write_bytes(b"")
    (tmp_path / "other.html").write_text('<h2 id="here">Here</h2>')
    (tmp_path / "page.html").write_text(markup)
    found = list(faults(tmp_path))
    assert (
        (found == []) if fault is None else (len(found) == 1 and fault in found[0] and found[0].startswith("page.html"))
    )
    assert list(missing(tmp_path, ["here", "remat.gone"])) == ["remat.gone has no entry in the reference on the site"]


def test_without_a_browser_the_check_is_an_error_and_says_what_to_install(monkeypatch):
    from tests.site.browser import browser

    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(SystemExit, match="apt-get install chromium"), browser():
        pass
