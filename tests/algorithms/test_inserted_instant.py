"""Chains of instants that grow by one: the dual method begins at the bound of the chain before, and ends at the same optimum."""

from itertools import pairwise
from pathlib import Path
from random import Random

import numpy as np
import pytest

from remat.algorithms._arrays.graph_arrays import BACKWARD, flatten
from remat.algorithms._bounds.inserted_instant import inherited
from remat.algorithms._bounds.instants import Dependencies
from remat.algorithms._bounds.ordered_instants import ordered_formulation
from remat.algorithms._milp.basis import DualBasis
from remat.algorithms._milp.direct import solve_relaxed
from remat.algorithms._whole.baselines import store_all_peak
from remat.ir import read_joint_graph
from tests.benchmarks.tiny import tiny_graph

CAPTURED = Path(__file__).parents[1] / "data" / "captured"


def grown(flat, budget, at):
    """The formulations of chains of the first instants, of the first two, ...; stages that were divided keep their rows."""
    dependencies, together, formulations = Dependencies(flat), set(), []
    for n in range(1, len(at) + 1):
        chain = tuple(sorted(at[:n]))
        ends = (*chain, None)
        i = ends.index(at[n - 1])
        together |= {(ends[i - 1], ends[i + 1])} if i else set()
        number = {node: k for k, node in enumerate(ends)}
        coarse = [(number[begin], number[end]) for begin, end in together]
        formulations.append(ordered_formulation(flat, dependencies, chain, budget, coarse=coarse))
    return formulations


def ended(formulation, start=None):
    basis = start or DualBasis()
    answer = solve_relaxed(formulation.linear, start=basis)
    return answer, basis.ended


@pytest.fixture(scope="module")
def gpt12():
    graph = read_joint_graph(CAPTURED / "gpt12.json.gz")
    flat = flatten(graph)
    backward = np.flatnonzero((flat.phase == BACKWARD) & flat.required)
    at = [int(backward[int(share * len(backward))]) for share in (0.3, 0.02, 0.6, 0.45)]
    return grown(flat, int(0.35 * store_all_peak(graph)), at)


def test_the_first_multipliers_prove_the_bound_of_the_chain_before(gpt12):
    for shorter, longer in pairwise(gpt12):
        before, where = ended(shorter)
        start = DualBasis(inherited(shorter, where, longer), before.iterations)
        at_once = solve_relaxed(longer.linear, 1, start=start)  # one iteration, the fewest
        assert not at_once.finished
        assert at_once.bound >= before.bound - 1  # duals are rounded


def test_from_there_the_optimum_takes_a_part_of_the_iterations(gpt12):
    for shorter, longer in pairwise(gpt12):
        before, where = ended(shorter)
        after, _ = ended(longer, DualBasis(inherited(shorter, where, longer), before.iterations))
        cold, _ = ended(longer)
        assert after.finished
        assert abs(after.bound - cold.bound) <= 1
        assert after.iterations - before.iterations < 0.75 * cold.iterations
        assert after.effort < cold.effort


def test_optima_of_chains_do_not_depend_on_where_the_method_began():
    rng, resumed = Random(5), 0
    for _ in range(60):
        graph = tiny_graph(rng, 5, summed=False)
        flat = flatten(graph)
        at = list(graph.required)
        rng.shuffle(at)
        formulations = grown(flat, int(rng.uniform(0.4, 0.9) * store_all_peak(graph)), at)
        before, where = ended(formulations[0])
        for shorter, longer in pairwise(formulations):
            if longer.impossible or where is None:
                break
            cold, _ = ended(longer)
            before, where = ended(longer, DualBasis(inherited(shorter, where, longer), before.iterations))
            assert before.infeasible == cold.infeasible
            assert abs(before.bound - cold.bound) <= 1
            resumed += 1
    assert resumed > 60
