"""Solves that begin where the one before ended: the same bounds, from fewer iterations."""

from pathlib import Path

import numpy as np
import pytest

from remat.algorithms._arrays.graph_arrays import BACKWARD, flatten
from remat.algorithms._bounds.instants import Dependencies, instant_formulation
from remat.algorithms._copies.copy_arrays import lanes_of
from remat.algorithms._copies.link_bound import Reach, link_formulation
from remat.algorithms._milp.basis import Basis
from remat.algorithms._milp.direct import solve_relaxed
from remat.algorithms._milp.linear import Builder
from remat.algorithms._whole.baselines import store_all_peak
from remat.ir import Link, read_joint_graph
from tests.algorithms.test_bounds import knapsack

CAPTURED = Path(__file__).parents[1] / "data" / "captured"


@pytest.fixture(scope="module")
def instants():
    """Formulations of neighbouring instants of a captured graph, without a link and with one."""
    graph = read_joint_graph(CAPTURED / "gpt12.json.gz")
    flat, budget, link = flatten(graph), int(0.35 * store_all_peak(graph)), Link.symmetric(gb_per_s=12)
    firsts = np.flatnonzero((flat.phase == BACKWARD) & flat.required)[:5].tolist()
    dependencies, reach = Dependencies(flat), Reach(flat)
    alone = [instant_formulation(flat, dependencies, at, budget) for at in firsts]
    lanes = lanes_of(flat, link, budget, None)
    return alone, [link_formulation(flat, lanes, reach, at, graph.time) for at in firsts]


@pytest.mark.parametrize("linked", [False, True])
def test_each_has_the_same_bound_from_where_the_one_before_ended(instants, linked):
    basis = None
    for formulation in instants[linked]:
        basis = Basis(formulation.column_names, formulation.row_names, basis)
        answer = solve_relaxed(formulation.linear, start=basis)
        assert answer.finished
        assert abs(answer.bound - solve_relaxed(formulation.linear).bound) <= 1  # duals are rounded
        begun = Basis(formulation.column_names, formulation.row_names, basis)
        assert solve_relaxed(formulation.linear, start=begun).effort == 10 * len(formulation.linear.rhs)  # no iteration


def test_names_tell_columns_apart(instants):
    for formulation in (*instants[0], *instants[1]):
        assert len(set(formulation.column_names)) == len(formulation.linear.cost)
        assert len(set(formulation.row_names)) == len(formulation.linear.rhs)


def test_a_formulation_with_little_in_common_begins_from_nothing():
    first, other = (Basis([(kind, k) for k in range(6)], range(4)) for kind in "ab")
    solve_relaxed(knapsack(5), start=first)
    again = Basis([("b", k) for k in range(6)], range(4), first)
    assert solve_relaxed(knapsack(6), start=again).bound == solve_relaxed(knapsack(6), start=other).bound == 4


def test_infeasible_from_a_basis_is_proved_by_a_ray():
    def needs(most):
        builder = Builder()
        builder.new(2, cost=1)
        builder.row([(0, 2), (1, 3)], most)
        builder.row([(0, -1), (1, -1)], -2)
        return builder.build()

    basis = Basis("xy", "ab")
    assert solve_relaxed(needs(5), start=basis).bound == 2
    answer = solve_relaxed(needs(4), start=Basis("xy", "ab", basis))
    assert answer.infeasible
    assert answer.duals is not None
