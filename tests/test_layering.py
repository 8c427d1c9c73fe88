"""The house: imports run one way, and `import remat` stays light."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent / "remat"

RANK = {
    "errors": 0,
    "units": 1,
    "ir": 2,
    "algorithms": 3,
    "viz": 3,
    "exec": 4,
    "zoo": 5,
    "demo": 6,
    "cli": 7,
    "testing": 8,
}
ONLY_READS = {"viz": {"errors", "units", "ir", "viz"}}
THIRD_PARTY = {
    "errors": set(),
    "units": set(),
    "ir": {"attrs"},
    "algorithms": {
        "attrs",
        "numpy",
        "numba",
        "llvmlite",
        "cvxpy",
        "highspy",
        "scipy",
        "networkx",
        "pyscipopt",
        "distributed",
        "ortools",
    },
    "exec": {"attrs", "numpy", "torch", "rich"},
    "zoo": {"torch", "attrs"},
    "viz": {"attrs", "matplotlib"},
    "testing": {"attrs", "hypothesis", "numpy", "torch"},
    "cli": {"attrs", "typer", "rich", "click", "torch", "matplotlib"},
    "demo": {"attrs", "torch", "rich", "matplotlib"},
}


def imports(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            yield node.module
            if node.module == "remat":
                yield from (f"remat.{alias.name}" for alias in node.names)


def room(path):
    return path.relative_to(ROOT).with_suffix("").parts[0]


FILES = [path for path in sorted(ROOT.rglob("*.py")) if path != ROOT / "__init__.py"]


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_run_one_way_and_stay_within_the_room(path):
    here = room(path)
    assert here in RANK, f"{path}: a room the layering does not know"
    for name in imports(path):
        top, *rest = name.split(".")
        if top == "remat" and rest:
            there = rest[0]
            assert there in RANK, f"{path} imports {name}: not a room"
            assert there == here or RANK[there] < RANK[here], f"{path} imports {name}: upward"
            assert here not in ONLY_READS or there in ONLY_READS[here], f"{path} imports {name}"
        elif top != "remat" and top not in sys.stdlib_module_names:
            assert top in THIRD_PARTY[here], f"{path} imports {name}: not allowed in {here}"


def test_import_remat_loads_nothing_heavy():
    heavy = ("torch", "cvxpy", "numba", "hypothesis", "numpy", "matplotlib", "scipy", "networkx")
    code = f"import sys, remat, remat.ir, remat.algorithms; print([m for m in {heavy!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=os.environ)
    assert done.stdout.strip() == "[]"


def test_the_root_offers_about_25_names():
    import remat

    assert 20 <= len(remat.__all__) <= 26
    missing = [name for name in remat.__all__ if not hasattr(remat, name)]
    assert missing == []
