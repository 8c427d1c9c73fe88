"""A package from outside: found by entry points, checked under every law where torch cannot be imported."""

import subprocess
import sys
import tomllib
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path

import pytest

from remat.algorithms import Exhaustive, HIlp, Problem
from remat.algorithms._plugins import registry
from remat.algorithms._plugins.expression import parse
from remat.algorithms.dynamic import score_named
from remat.errors import RematError
from remat.testing import check_backend, check_source
from tests.algorithms.test_exhaustive import unit_chain

HERE = Path(__file__).parent / "plugin"


@pytest.fixture(autouse=True)
def installed():
    """Without the package these tests would show nothing, so its absence fails them."""
    there = any(one.name == "Greedy" for one in entry_points(group="remat.solvers"))
    assert there, "the package under tests/plugin is not installed: pip install --no-deps --editable tests/plugin"


WITHOUT_TORCH = """
import sys
class NoTorch:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "torch":
            raise ImportError("torch is not to be imported here")
sys.meta_path.insert(0, NoTorch())
from remat.algorithms._plugins.registry import get
from remat.testing import check_partitioner, check_solver, check_transform
check_solver(get("solvers", "Greedy")(), examples=60)
check_transform(get("transforms", "Slack")(spare=2), examples=30)
check_partitioner(get("partitioners", "Halves")(), examples=30)
assert "torch" not in sys.modules
"""


def test_a_solver_from_outside_is_found_and_keeps_every_law_without_torch():
    done = subprocess.run([sys.executable, "-c", WITHOUT_TORCH], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "Greedy(rounds=20): 23 laws hold" in done.stdout


def test_it_is_written_in_under_forty_lines():
    lines = [line for line in (HERE / "remat_greedy" / "solver.py").read_text().splitlines() if line.strip()]
    assert len(lines) < 40


def test_expressions_know_plug_ins():
    assert repr(parse("Slack(spare=3) >> (Greedy(rounds=2) | StoreAll())")).startswith("Slack(spare=3) >> first(Greedy")


class Distribution:
    name = "another-package"


def point(name, value, group="remat.solvers"):
    found = EntryPoint(name=name, value=value, group=group)
    return found._for(Distribution())


def test_a_name_that_two_packages_claim_is_an_error_that_names_both():
    with pytest.raises(RematError) as caught:
        registry.entries("solvers", outside=[point("StoreAll", "other:StoreAll")])
    assert caught.value.rule == "P-CLASH"
    assert "another-package" in str(caught.value) and "remat.algorithms._whole.baselines" in str(caught.value)


def test_a_plug_in_that_cannot_be_imported_names_its_package():
    entry = registry.entries("solvers", outside=[point("Ghost", "no_such_module:Ghost")])["Ghost"]
    with pytest.raises(RematError, match="another-package"):
        entry.load()


@pytest.mark.parametrize(("kind", "name", "rule"), [("solvers", "StoreAl", "P-NAME"), ("colours", "red", "P-KIND")])
def test_what_is_not_there_is_refused_with_what_is_near(kind, name, rule):
    with pytest.raises(RematError) as caught:
        registry.get(kind, name)
    assert caught.value.rule == rule and ("StoreAll" in str(caught.value) or "solvers" in str(caught.value))


@pytest.mark.parametrize(
    ("kind", "name"), [(kind, name) for kind in registry.GROUPS for name in registry.registered(kind)]
)
def test_every_registered_name_loads(kind, name):
    assert registry.get(kind, name) is not None


@pytest.mark.parametrize("name", registry.registered("words"))
def test_every_word_of_the_algebra_loads(name):
    assert callable(registry.word(name))


# -- every kind, as the package declares it ---------------------------------------------------------------------------------


@pytest.fixture
def declared(monkeypatch):
    """The entry points of the package's `pyproject.toml`, whichever of them the environment knows."""
    groups = tomllib.loads((HERE / "pyproject.toml").read_text())["project"]["entry-points"]
    points = {
        group: tuple(point(name, value, group) for name, value in names.items()) for group, names in groups.items()
    }
    monkeypatch.setattr(registry, "_installed", lambda group: points.get(group, ()))
    return points


def test_the_package_has_a_part_of_every_kind_and_each_loads(declared):
    assert set(declared) == set(registry.GROUPS.values())
    for kind, group in registry.GROUPS.items():
        assert all(registry.get(kind, one.name) is not None for one in declared[group])


def test_sources_back_ends_and_scores_from_outside_stand_in_expressions(declared):
    source = parse("pool(Ends(), StoreAll().sweep(peaks=1, saves=1))")
    solver = parse("hierarchical(Halves(), lower=Ends(), top=HIlp(backend=InChild(Enumeration(most=3))))")
    assert repr(source).startswith("pool(Ends(), ") and parse(repr(solver)) == solver
    assert parse("largest")() == score_named("largest") and score_named("largest").value(5, 8, 1, 1) == -8


def test_a_source_from_outside_keeps_every_law(declared):
    report = check_source(registry.get("sources", "Ends")(), examples=20, say=lambda text: None)
    assert report.tried["L-OPTION"] and report.tried["L-EXPAND"]


def test_a_back_end_from_outside_keeps_every_law_and_plans(declared):
    backend = registry.get("backends", "Enumeration")()
    assert check_backend(backend, examples=20, say=lambda text: None).tried["L-GAP"] > 20
    graph = unit_chain(1)
    for budget in range(1, 5):
        problem = Problem(graph=graph, budget=budget)
        outcome = HIlp(backend=backend, warm_start=False).solve(problem)
        assert "enumerated" in " ".join(outcome.trail) or "needs" in " ".join(outcome.trail)
        assert outcome.upper == Exhaustive().solve(problem).upper
