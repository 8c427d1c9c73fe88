"""The published systems as expressions: each is in the registry, its repr rebuilds it, and it plans."""

import pytest

from remat.algorithms import IMPOSSIBLE, Exhaustive, Problem, named, store_all_peak
from remat.algorithms._plugins.expression import parse
from tests.algorithms.test_exhaustive import unit_chain

WITHOUT_LINK = (
    "chen",
    "revolve",
    "rotor",
    "rk_rotor",
    "checkmate",
    "rk_checkmate",
    "rockmate",
    "hiremate",
    "dtr",
    "tw_remat",
)
WITH_LINK = ("pofo", "offload_only", "autocapper", "opportunist")


@pytest.mark.parametrize("name", WITHOUT_LINK + WITH_LINK)
def test_the_expression_rebuilds_the_system(name):
    system = getattr(named, name)
    assert parse(name) == system
    assert parse(repr(system)) == system


@pytest.mark.parametrize("name", ["checkmate", "rk_checkmate"])
@pytest.mark.parametrize("budget", [3, 4, 6])
def test_milp_formulations_reach_the_optimum_of_a_unit_chain(name, budget):
    problem = Problem(graph=unit_chain(4), budget=budget)
    assert getattr(named, name).solve(problem).upper == Exhaustive().solve(problem).upper


@pytest.mark.parametrize("name", WITHOUT_LINK)
def test_with_all_its_memory_every_system_recomputes_nothing_and_with_less_it_plans_and_does_not_beat_the_oracle(name):
    graph, system = unit_chain(4), getattr(named, name)
    assert system.solve(Problem(graph=graph, budget=store_all_peak(graph))).upper == graph.time
    tight = Problem(graph=graph, budget=4)
    assert Exhaustive().solve(tight).upper <= system.solve(tight).upper < IMPOSSIBLE
