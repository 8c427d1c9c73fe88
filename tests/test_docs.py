"""What the docs say is executed: every `python` block of every page, the links, the ids of the rules."""

import doctest
import importlib
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
FENCE = re.compile(r"^```python\n(.*?)^```$", re.M | re.S)
LINK = re.compile(r"\[[^\]]*\]\(([^)#\s]+)(?:#[^)]*)?\)")


def name_of(path):
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("page", [page for page in PAGES if FENCE.search(page.read_text())], ids=name_of)
def test_the_code_of_a_page_runs(page, tmp_path, monkeypatch):
    """The blocks of a page run in order, in one namespace and an empty folder; what they assert must hold."""
    monkeypatch.chdir(tmp_path)
    namespace = {"__name__": "docs"}
    text = page.read_text()
    for block in FENCE.finditer(text):
        line = text[: block.start()].count("\n") + 2
        code = compile("\n" * (line - 1) + block.group(1), str(page), "exec")
        exec(code, namespace)


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_lead_somewhere(page):
    targets = [link for link in LINK.findall(page.read_text()) if "://" not in link and not link.startswith("mailto:")]
    missing = [link for link in targets if not (page.parent / link).exists()]
    assert missing == []


def test_every_rule_has_its_line_in_the_reference():
    from remat.ir import GRAPH_RULES, SCHEDULE_RULES

    page = (ROOT / "docs" / "reference" / "rules.md").read_text()
    missing = [rule for rule in (*GRAPH_RULES, *SCHEDULE_RULES) if rule not in page]
    assert missing == []


@pytest.mark.parametrize("module", ["remat.ir.build", "remat.units"])
def test_examples_in_docstrings(module):
    assert doctest.testmod(importlib.import_module(module)).failed == 0


def test_every_public_name_of_the_algorithms_has_its_row():
    from remat import algorithms
    from remat.algorithms._plugins.registry import brought

    page = (ROOT / "docs" / "reference" / "algorithms.md").read_text()
    rows = dict(re.findall(r"^\| `(\w+)` \| (?:`([^`]*)`)?", page, re.M))
    systems = {name for name, where in brought("solvers").items() if ".named:" in where}
    assert set(rows) - {path.stem for path in (ROOT / "remat" / "algorithms").glob("_*")} == {
        *algorithms.__all__,
        *systems,
    }
    for name in algorithms.__all__:
        module = algorithms._WHERE[name].partition(":")[0]
        assert rows[name] == module.removeprefix("remat.algorithms.").replace(".", "/") + ".py"


def test_every_room_of_the_algorithms_is_named_in_the_reference():
    page = (ROOT / "docs" / "reference" / "algorithms.md").read_text()
    rooms = [path.parent.name for path in (ROOT / "remat" / "algorithms").glob("_*/__init__.py")]
    assert [room for room in rooms if f"| `{room}` |" not in page] == []
