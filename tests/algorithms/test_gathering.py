"""Readers of a datum are moved next to each other, over gaps and over reruns, and the sequence stays a schedule."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from remat.algorithms._arrays.gathering import gathered
from remat.algorithms._arrays.graph_arrays import flatten
from remat.algorithms._core.problem import Problem
from remat.algorithms._search.passes import RuinAndRecreate
from remat.algorithms._search.ruin_recreate import perturbed
from remat.algorithms._search.run_problem import RunProblem
from remat.algorithms._search.warmup import warm_up
from remat.ir import GraphBuilder, Kind, validate
from remat.testing.strategies import legal_graphs, scheduled


def two_uses(inner=1):
    """An activation `a` with two readers in the backward, U and V, and heavy nodes X between them that do not read it."""
    b = GraphBuilder("two-uses")
    b.data("a", 4)
    b.data("t", 1, Kind.TANGENT)
    b.forward("F", writes=["a"], time=9)
    b.loss("L", reads=["a"], writes=["t"], time=1)
    b.data("u", 1, Kind.PARAM_GRAD)
    b.data("v", 1, Kind.PARAM_GRAD)
    b.backward("U", reads=["t", "a"], writes=["u"], time=1)
    for i in range(inner):
        b.data(f"x{i}", 1, Kind.PARAM_GRAD)
        b.backward(f"X{i}", reads=["t"], writes=[f"x{i}"], time=1, workspace=6)
    b.backward("V", reads=["t", "a"], writes=["v"], time=1)
    return b.build()


def outcomes(graph, runs):
    """The sequences that it is changed into, over many draws."""
    flat, index = flatten(graph), graph.node_index
    sequence = np.array([index[name] for name in runs.split()], np.int32)
    every = set()
    for seed in range(200):
        changed = gathered(flat, sequence, np.array([seed * 7919], np.uint64))
        every.add(" ".join(graph.computes[v].name for v in changed.tolist()))
    return every


def test_readers_of_a_resident_datum_move_to_each_other():
    assert outcomes(two_uses(), "F L U X0 V") >= {"F L X0 U V", "F L U V X0"}


def test_one_rerun_serves_what_two_did():
    graph = two_uses(2)
    every = outcomes(graph, "F L F U X0 X1 F V")
    assert every >= {"F L X0 X1 F U V", "F L F U V X0 X1"}  # over the second rerun, with either reader
    assert "F L U X0 X1 F V" in every  # over the first: its reader follows the loss


def test_without_gaps_and_reruns_nothing_changes():
    assert outcomes(two_uses(), "F L U V X0") == {"F L U V X0"}


@given(scheduled(legal_graphs(layers=False, options=False)), st.integers(0, 2**32))
def test_what_comes_out_is_a_schedule(case, seed):
    problem = RunProblem.of(Problem(graph=case.graph, budget=2**40))
    sequence = problem.sequence_of(case.schedule)
    changed = gathered(problem.flat, sequence, np.array([seed], np.uint64))
    cost = validate(case.graph, problem.schedule_of(changed))
    assert len(sequence) - len(changed) in (0, 1)
    assert sorted(set(changed.tolist())) == sorted(set(sequence.tolist()))
    assert cost.time <= problem.time_of(sequence)


@pytest.mark.parametrize("gathering", [0.5, 1.0])
def test_a_search_that_gathers_saves_the_rerun(gathering):
    graph = two_uses(6)
    problem = Problem(graph=graph, budget=15)
    outcome = RuinAndRecreate(work=2e4, gathering=gathering).solve(problem)
    assert outcome.cost.peak <= 15 and outcome.cost.recomputation == 0
    assert RuinAndRecreate(work=2e4).solve(problem).cost.recomputation > 0


def test_shares_that_are_whole_numbers_compile_nothing():
    warm_up()
    before = len(perturbed.signatures)
    for shares in ({"gathering": 0}, {"disorder": 1, "gathering": 1}, {"disorder": 1, "undone": 1, "gathering": 0.5}):
        assert RuinAndRecreate(work=5e3, **shares).solve(Problem(graph=two_uses(6), budget=15)).cost is not None
    assert len(perturbed.signatures) == before
