"""DTR and TW-Remat: reference points of the papers, what makes them fail, and starts from them."""

import math

import numpy as np
import pytest

from remat.algorithms import Problem, store_all_peak
from remat.algorithms._arrays.graph_arrays import flatten
from remat.algorithms._arrays.liveness import memory_profile
from remat.algorithms._core.outcome import Status
from remat.algorithms._search.from_solver import From
from remat.algorithms._whole.dtr import HEURISTICS, Dtr, online
from remat.algorithms._whole.tw_remat import TwRemat, adjacency, greedy, legalized, separator_trees, tree_decomposition
from remat.errors import RematError
from remat.ir import GraphBuilder, Kind, Schedule, validate
from tests.algorithms.test_exhaustive import unit_chain


def paper_chain(length):
    """The unit chain of DTR's section 3: every activation and gradient one byte, every run one unit of time, the loss free."""
    b = GraphBuilder("chain")
    b.data("x", 0, Kind.INPUT)
    b.data("t", 1, Kind.GRADIENT)
    for i in range(length):
        b.data(f"a{i}", 1)
        b.data(f"g{i}", 1, Kind.GRADIENT if i else Kind.INPUT_GRAD)
        b.forward(f"F{i}", reads=[f"a{i - 1}" if i else "x"], writes=[f"a{i}"], time=1)
    b.loss("L", reads=[f"a{length - 1}"], writes=["t"], time=0)
    for i in reversed(range(length)):
        reads = [f"g{i + 1}" if i + 1 < length else "t", f"a{i - 1}" if i else "x"]
        b.backward(f"B{i}", reads=reads, writes=[f"g{i}"], time=1)
    return b.build()


@pytest.mark.parametrize(("length", "overhead"), [(100, 1.400), (1000, 1.478)])
def test_on_unit_chains_dtr_costs_what_the_public_simulator_says(length, overhead):
    problem = Problem(graph=paper_chain(length), budget=math.ceil(2 * math.sqrt(length)))
    for heuristic in ("h_dtr", "h_eq"):
        found = Dtr(heuristic).solve(problem)
        assert found.upper / problem.graph.time == pytest.approx(overhead, abs=0.01)
    assert (
        Dtr("h_local").solve(problem).upper > 1.4 * found.upper
    )  # without the neighbourhood chains of evictions grow long


@pytest.mark.parametrize("heuristic", HEURISTICS)
def test_with_all_memory_nothing_is_recomputed_and_with_none_it_is_stuck(heuristic):
    graph = unit_chain(6)
    assert Dtr(heuristic).solve(Problem(graph=graph, budget=store_all_peak(graph))).upper == graph.time
    stuck = Dtr(heuristic).solve(Problem(graph=graph, budget=2))
    assert stuck.status is Status.NOT_FOUND
    assert "stuck after" in stuck.trail[0]


def test_dtr_gives_up_when_it_thrashes():
    graph = paper_chain(60)
    assert Dtr("h_lru", limit=2).solve(Problem(graph=graph, budget=6)).schedule is None
    flat = flatten(graph)
    runs, whole = online(flat, np.flatnonzero(flat.required).astype(np.int32), 6, 4, 2.0)
    assert not whole
    assert len(runs) <= 2 * len(graph) + 1


def test_what_cannot_be_made_again_is_banished_only_when_nothing_evicted_needs_it():
    b = GraphBuilder("once")
    b.data("x", 0, Kind.INPUT)
    for name in ("once", "b", "c", "d"):
        b.data(name, 4)
    b.data("t", 1, Kind.TANGENT)
    b.data("g", 1, Kind.PARAM_GRAD)
    b.forward("O", reads=["x"], writes=["once"], time=1, run_once=True)
    b.forward("B", reads=["once"], writes=["b"], time=1)
    b.forward("C", reads=["b"], writes=["c"], time=1)
    b.forward("D", reads=["c"], writes=["d"], time=1)
    b.loss("L", reads=["d"], writes=["t"], time=1)
    b.backward("G", reads=["t", "b", "c"], writes=["g"], time=1)
    graph = b.build()
    for budget in range(8, 20):
        for heuristic in HEURISTICS:
            outcome = Dtr(heuristic).solve(Problem(graph=graph, budget=budget))
            if outcome.schedule is not None:
                assert [run.node for run in outcome.schedule.runs].count("O") == 1
    assert Dtr().solve(Problem(graph=graph, budget=13)).cost is not None


def test_a_chain_has_width_one_and_halves_at_each_separator():
    flat = flatten(unit_chain(8))
    nodes = list(range(len(flat.time)))
    for rule in ("degree", "fill"):
        bags, tree = tree_decomposition(adjacency(flat), nodes, rule)
        assert max(map(len, bags)) <= 3
        assert sum(map(len, tree)) == 2 * (len(bags) - 1)
        for v, near in enumerate(adjacency(flat)):
            assert all(any(v in bag and u in bag for bag in bags) for u in near)
        (part,) = separator_trees(bags, tree, 1)
        assert part.below == frozenset(nodes)
        assert all(len(one.below) <= len(nodes) * 2 / 3 for one in part.parts)


def test_tree_decompositions_make_long_chains_fit_a_few_of_their_activations():
    graph = paper_chain(64)
    found = TwRemat().solve(Problem(graph=graph, budget=24))  # 67 hold everything
    assert found.cost is not None
    assert found.upper < 2.5 * graph.time
    assert TwRemat().solve(Problem(graph=graph, budget=3)).schedule is None


def test_any_list_of_runs_becomes_legal_and_the_fit_keeps_it_valid():
    graph = paper_chain(10)
    flat = flatten(graph)
    rng = np.random.default_rng(0)
    for _ in range(20):
        runs = legalized(flat, rng.integers(0, len(graph), 60).tolist())
        validate(graph, Schedule.from_runs(graph, runs.tolist()))
        fitted = greedy(flat, runs, 16)
        cost = validate(graph, Schedule.from_runs(graph, fitted.tolist()))
        assert cost.peak == memory_profile(flat, fitted, len(fitted), np.empty(len(fitted), np.int64))


def test_a_start_is_repaired_under_the_budget():
    graph = paper_chain(40)
    problem = Problem(graph=graph, budget=14)
    alone, started = Dtr("h_lru").solve(problem), From(Dtr("h_lru")).solve(problem)
    assert started.upper < alone.upper
    assert From(Dtr(), shares=(1.0,), variants=1).solve(problem).upper <= Dtr().solve(problem).upper


def test_starts_say_what_is_wrong_with_their_settings():
    with pytest.raises(RematError, match="give a Solver"):
        From("Dtr()")
    with pytest.raises(RematError, match="each a number from 1 to 1000"):
        From(Dtr(), shares=(0.5,))
