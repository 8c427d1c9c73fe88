"""Names say what they hold: words that fit anything are not names of variables, functions, attributes or classes."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent / "remat"

VAGUE = {"one", "found", "own", "said", "told", "taste", "held", "known", "made", "there"}
DIALECT = {"programme", "programmes", "beside", "bonce", "bwdonly", "primed", "anew"}
"""Words for which the field has others; see the names in docs/glossary.md."""


def names(path):
    """Every name that a file binds, with its line."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id, node.lineno
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr, node.lineno
        elif isinstance(node, ast.arg):
            yield node.arg, node.lineno
        elif isinstance(node, (ast.FunctionDef, ast.ClassDef)) or (isinstance(node, ast.MatchAs) and node.name):
            yield node.name, node.lineno
        elif isinstance(node, ast.alias) and node.asname:
            yield node.asname, node.lineno


def vague(path):
    words = VAGUE | DIALECT
    return [f"{path}:{line}: {name}" for name, line in names(path) if name.strip("_").lower() in words]


FILES = sorted(ROOT.rglob("*.py"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_names_say_what_they_hold(path):
    assert vague(path) == []


@pytest.mark.parametrize(
    "source",
    [
        "for one in x: pass",
        "def f(found): pass",
        "[own for own in x]",
        "self.held = 1",
        "import a as said",
        "def _made(): pass",
    ],
)
def test_a_vague_name_is_found_wherever_it_is_bound(tmp_path, source):
    path = tmp_path / "a.py"
    path.write_text(source)
    assert len(vague(path)) == 1
