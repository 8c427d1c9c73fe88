"""The public names are written out for type checkers, and are what the lazy loaders serve."""

import ast
import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

PACKAGES = ["remat", "remat.algorithms", "remat.testing"]

USER = """
from remat import Graph, named, warm, wrap
from remat.algorithms import HIlp, Outcome, auto
from remat.exec import sweep
from remat.testing import check_solver
import remat

reveal_type(wrap)
reveal_type(Graph)
reveal_type(Outcome)
reveal_type(auto)
reveal_type(HIlp)
reveal_type(warm)
reveal_type(named.rotor)
reveal_type(remat.algorithms.sweep)
reveal_type(remat.wrap)
reveal_type(sweep)
reveal_type(check_solver)
remat.no_such_name
remat.algorithms.no_such_name
"""

REVEALED = {
    "wrap": "def (model: torch.nn.modules.module.Module, sample: Any =, budget: int | str | None =",
    "Graph": "def (*, name: str =, computes: tuple[remat.ir.node.Compute, ...]",
    "Outcome": "def (*, schedule: remat.ir.schedule.Schedule | None =",
    "auto": "remat.algorithms._core.solver.Solver",
    "HIlp": "def (*, form: Literal['events']",
    "warm": "def (main: remat.algorithms._core.solver.Solver, *, seed: remat.algorithms._core.solver.Solver)",
    "named.rotor": "remat.algorithms._core.solver.Solver",
    "remat.algorithms.sweep": "def (graph: remat.ir.graph.Graph, budgets: ",
    "remat.wrap": "def (model: torch.nn.modules.module.Module, sample: Any =, budget: int | str | None =",
    "sweep": "def (model: torch.nn.modules.module.Module, sample: Any, budgets: ",
    "check_solver": "def (solver: remat.algorithms._core.solver.Solver, *, graphs: ",
}


def test_a_users_type_checker_sees_real_signatures_and_wrong_names(tmp_path):
    script = tmp_path / "user.py"
    script.write_text(USER)
    command = [sys.executable, "-m", "mypy", "--config-file", str(ROOT / "pyproject.toml"), str(script)]
    said = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False).stdout
    types = re.findall(r"Revealed type is \"(.*)\"$", said, flags=re.M)
    assert len(types) == len(REVEALED), said
    for revealed, (name, beginning) in zip(types, REVEALED.items(), strict=True):
        assert revealed.startswith(beginning), f"{name}: {revealed}"
    assert said.count("has no attribute") == 2, said


def for_type_checkers(package):
    """Where the block for type checkers imports each name from."""
    tree = ast.parse(Path(importlib.import_module(package).__file__).read_text())
    (block,) = (node for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING")
    assert all(isinstance(node, ast.ImportFrom) for node in block.body)
    return {alias.name: node.module for node in block.body for alias in node.names}


@pytest.mark.parametrize("package", PACKAGES)
def test_what_type_checkers_read_is_what_is_served(package):
    module, said = importlib.import_module(package), for_type_checkers(package)
    tree = ast.parse(Path(module.__file__).read_text())
    (listed,) = (
        ast.literal_eval(n.value) for n in tree.body if isinstance(n, ast.Assign) and n.targets[0].id == "__all__"
    )
    modules = {name for name in said if said[name] == "remat"}
    assert set(listed) == set(said) - modules and len(listed) == len(set(listed))
    assert set(module._WHERE) == set(said)
    for name, source in said.items():
        expected = getattr(importlib.import_module(source), name, None) or importlib.import_module(f"{source}.{name}")
        assert getattr(module, name) is expected
    assert set(said) <= set(dir(module))


def test_the_public_names_of_the_algebra_are_in_the_registry():
    """A solver's lines in `remat/algorithms/__init__.py` are enough for the registry to know it."""
    from remat import algorithms
    from remat.algorithms import Backend, Partitioner, Solver, Transform
    from remat.algorithms._plugins.registry import registered

    kinds = {"solvers": Solver, "transforms": Transform, "partitioners": Partitioner, "backends": Backend}
    algebra = ("_core", "_plugins")  # combinators are words, protocols are neither
    for kind, base in kinds.items():
        public = {name: getattr(algorithms, name) for name in algorithms.__all__}
        said = {
            name
            for name, value in public.items()
            if (isinstance(value, base) or (isinstance(value, type) and issubclass(value, base) and value is not base))
            and algorithms._WHERE[name].split(".")[2] not in algebra
        }
        assert said == {name for name, where in registered(kind).items() if ".named:" not in where}
