"""`Enumerate`: tiny problems are solved to the optimum, others are left alone."""

import random

from remat.algorithms import IMPOSSIBLE, Clock, Enumerate, Exhaustive, Problem, Status, auto, plan_first
from remat.algorithms._search.state import Search
from remat.ir import GraphBuilder, Kind, Link
from remat.testing.oracle import frontier, optimum
from tests.algorithms.test_runs_liveness import chain
from tests.soundness.judging import changes, graph_of

LINK = Link.symmetric(gb_per_s=1.0)


def tried(graph, budget, **settings):
    search = Search(Problem(graph=graph, budget=budget), Clock(), 0, "test")
    Enumerate(**settings).improve(search)
    return search


def flat_graphs(count):
    """Random legal graphs without layers and options."""
    graphs = (graph_of(seed) for seed in random.Random(0).sample(range(10**6), 100))
    return [graph for graph in graphs if auto.refuses(graph) is None][:count]


def test_the_default_planners_are_optimal_wherever_the_second_oracle_knows_the_optimum():
    asked = 0
    for graph in flat_graphs(12):
        points = frontier(graph)
        for budget in changes(points):
            best = optimum(points, budget)
            for planner in (auto, plan_first):
                outcome = planner.solve(Problem(graph=graph, budget=budget))
                asked += 1
                assert outcome.status is (Status.INFEASIBLE if best is None else Status.OPTIMAL)
                assert best is None or outcome.cost.time == best.time
    assert asked > 40


def test_a_graph_with_more_nodes_or_data_is_left_alone():
    graph = chain(5)
    assert tried(graph, 14).best is not None
    assert tried(graph, 14, nodes=len(graph) - 1).best is None
    assert tried(graph, 14, cells=len(graph.data) - 1).best is None


def test_at_the_limit_of_states_the_bound_reached_stays():
    search = tried(chain(5), 14, states=3)
    exact = Exhaustive().solve(Problem(graph=chain(5), budget=14))
    assert search.best is None
    assert search.lower <= exact.lower


def test_with_a_link_nothing_is_proved():
    graph = chain(5)
    search = Search(Problem(graph=graph, budget=14, link=LINK, host_budget=100), Clock(), 0, "test")
    Enumerate().improve(search)
    assert search.best is not None
    assert search.lower == graph.time < search.best_time


def test_a_proof_that_is_asked_for_is_left_to_bounds_that_have_one():
    graph = chain(5)
    claimed = auto.solve(Problem(graph=graph, budget=14))
    proved = auto.solve(Problem(graph=graph, budget=14), proof=True)
    assert claimed.status is Status.OPTIMAL
    assert proved.cost == claimed.cost
    assert proved.certified >= graph.time
    assert any("Enumerate" in line for line in claimed.trail)


def test_a_state_with_millions_of_moves_ends_it_too():
    b = GraphBuilder("many-ways")
    b.data("t", 0, Kind.TANGENT)
    b.data("w", 0, Kind.PARAM_GRAD)
    data = [f"a{i}" for i in range(20)]
    for name in data:
        b.data(name, 1)
    b.forward("F", writes=data, time=1)
    b.loss("L", reads=["a0"], writes=["t"], time=1, workspace=10)
    b.backward("B", reads=["t", *data], writes=["w"], time=1)
    graph = b.build()
    search = tried(graph, 21, states=20)
    assert search.best is None
    assert search.lower < IMPOSSIBLE
    limited = Search(Problem(graph=graph, budget=21), Clock(0.0), 0, "test")
    Enumerate().improve(limited)
    assert limited.best is None
