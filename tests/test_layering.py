"""The house: imports run one way, and `import remat` stays light."""

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.circles import circles, file_imports, imported, room_imports, room_of

ROOT = Path(__file__).parent.parent / "remat"

RANK = {
    "_collector": 0,
    "_frozen": 0,
    "_lazy": 1,
    "_warn": 0,
    "errors": 0,
    "units": 1,
    "budget": 2,
    "settings": 2,
    "ir": 3,
    "proof": 4,
    "records": 5,
    "algorithms": 5,
    "viz": 5,
    "exec": 6,
    "zoo": 7,
    "integrations": 7,
    "demo": 8,
    "cli": 9,
    "testing": 10,
}
ROOMS = {
    "algorithms": {
        "_core": 0,
        "_plugins": 0,
        "_arrays": 1,
        "_milp": 1,
        "_hierarchy": 1,
        "_bounds": 2,
        "_chain": 2,
        "_dtr": 2,
        "_whole": 2,
        "_proving": 3,
        "_copies": 4,
        "_search": 5,
        "_staged": 6,
        "_curves": 6,
        "dynamic": 7,
        "named": 7,
    },
    "exec": {
        "_torch": 0,
        "_copy": 1,
        "_program": 1,
        "_trace": 2,
        "_cost": 2,
        "_capture": 3,
        "_run": 3,
        "_plan": 4,
        "_sizes": 4,
        "_dtr": 4,
        "_module": 5,
        "wrapping": 6,
        "step_log": 6,
        "weightless": 6,
        "buckets": 0,
        "preparing": 6,
        "reporting": 6,
        "plan_files": 6,
        "sweeping": 7,
        "estimating": 7,
        "in_place": 7,
        "blocks": 8,
        "under_dtr": 7,
        "inspecting": 7,
    },
}
"""Rooms of packages: each imports of lower rooms only, inside functions and for type checkers too."""

ONLY_READS = {"viz": {"errors", "units", "settings", "ir", "viz"}}
THIRD_PARTY = {
    "_frozen": {"attrs"},
    "_lazy": set(),
    "_warn": set(),
    "errors": set(),
    "units": set(),
    "budget": {"attrs"},
    "settings": {"attrs"},
    "ir": {"attrs"},
    "proof": {"attrs"},
    "records": {"attrs"},
    "algorithms": {
        "attrs",
        "numpy",
        "numba",
        "llvmlite",
        "cvxpy",
        "highspy",
        "scipy",
        "pyscipopt",
        "ortools",
        "distributed",
    },
    "exec": {"attrs", "numpy", "torch", "rich"},
    "zoo": {"torch", "attrs"},
    "integrations": {"torch", "transformers", "accelerate", "lightning"},
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


@pytest.mark.parametrize(
    "path", [path for path in FILES if room(path) in ROOMS], ids=lambda path: str(path.relative_to(ROOT))
)
def test_imports_between_rooms_of_a_package_run_one_way(path):
    package, rooms = room(path), ROOMS[room(path)]
    here = path.relative_to(ROOT / package).with_suffix("").parts[0]
    if here == "__init__":  # the list of public names, which no room reads
        return
    assert here in rooms, f"{path}: a room the layering does not know"
    for name in imports(path):
        if name == f"remat.{package}" or name.startswith(f"remat.{package}."):
            there = name.split(".")[2] if name.count(".") > 1 else "__init__"
            assert there in rooms, f"{path} imports {name}: not a room"
            assert there == here or rooms[there] < rooms[here], f"{path} imports {name}: upward"


def private_names_of_torch(path):
    for node in ast.walk(ast.parse(path.read_text())):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Attribute):
            names = [ast.unparse(node)]
        for name in names:  # operations are named by the dispatcher, not by torch's Python
            if name.startswith("torch.") and not name.startswith("torch.ops.") and "._" in name and ".__" not in name:
                yield name


def test_one_room_alone_uses_private_names_of_torch():
    private = ROOT / "exec" / "_torch"
    users = {path for path in FILES if any(private_names_of_torch(path))}
    assert private / "joint.py" in users
    assert {path for path in users if path.parent != private} == set()


@pytest.mark.parametrize("package", ["remat.algorithms", "remat.exec", "remat.ir", "remat.testing"])
def test_no_circles(package):
    assert circles(room_imports(package)) == circles(file_imports(package)) == []


@pytest.mark.parametrize("call", ["passModel", "HighsModel(", "addRow", "* (1 - MIP_TOLERANCE)"])
def test_one_file_loads_problems_into_highs_and_one_takes_off_its_tolerance(call):
    files = {path.name for path in ROOT.rglob("*.py") if call in path.read_text()}
    assert files <= {"highs.py"} if "MIP" not in call else files == {"answer.py"}


def test_a_circle_is_found_wherever_its_imports_stand(tmp_path):
    one, other = tmp_path / "one.py", tmp_path / "other.py"
    one.write_text("def f():\n    from pkg.other import g\n")
    other.write_text("from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from pkg import one\n")
    modules = {"pkg.one": one, "pkg.other": other}
    imports = {name: set(imported(path, set(modules))) for name, path in modules.items()}
    assert circles(imports | {"pkg.third": {"pkg.one"}}) == [["pkg.one", "pkg.other"]]
    assert room_of("remat.algorithms._core.clock", "remat.algorithms") == "_core"


def test_the_guide_for_contributors_shows_every_room():
    guide = (ROOT.parent / "CONTRIBUTING.md").read_text()
    drawn = set(re.findall(r"\w+", " ".join(re.findall(r"^```text$(.*?)^```$", guide, re.M | re.S))))
    assert {room for rooms in ROOMS.values() for room in rooms} <= drawn


@pytest.mark.parametrize("package", ["algorithms", "exec", "ir", "testing"])
def test_nothing_has_the_name_of_a_module_beside_it(package):
    clashes = []
    for path in (ROOT / package).rglob("*.py"):
        modules = {
            other.stem for other in path.parent.iterdir() if other.suffix == ".py" or (other / "__init__.py").exists()
        }
        nodes = ast.parse(path.read_text()).body
        names = {node.name for node in nodes if isinstance(node, (ast.FunctionDef, ast.ClassDef))}
        clashes += [f"{path.relative_to(ROOT)}: {name}" for name in sorted(names & modules)]
    assert clashes == []


def test_import_remat_loads_nothing_heavy():
    heavy = ("torch", "cvxpy", "numba", "hypothesis", "numpy", "matplotlib", "scipy")
    code = f"import sys, remat, remat.ir, remat.algorithms; print([m for m in {heavy!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=os.environ)
    assert done.stdout.strip() == "[]"


def test_the_root_offers_about_25_names():
    import remat

    assert 20 <= len(remat.__all__) <= 26
    missing = [name for name in remat.__all__ if not hasattr(remat, name)]
    assert missing == []
