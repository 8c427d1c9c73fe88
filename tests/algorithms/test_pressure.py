"""Which instants are tried on a leaf of a tree of orders: pressures, and the order of the places that exceed a budget."""

import numpy as np

from remat.algorithms import Clock, Problem, store_all_peak
from remat.algorithms._arrays.graph_arrays import flatten
from remat.algorithms._arrays.liveness import memory_profile
from remat.algorithms._bounds.instants import Dependencies
from remat.algorithms._search.instant_choice import _PARTS, worst_instants
from remat.algorithms._search.pressure import Pressures
from remat.algorithms._search.state import Search
from remat.ir import GraphBuilder, Kind
from tests.algorithms.test_runs_liveness import chain


def pressures_of(flat, budget):
    return Pressures(flat, Dependencies(flat), budget).of(np.arange(flat.time.size))


def towers(length):
    """Two chains of equal layers below one loss; the gradient of a layer's weight is read by nothing."""
    b = GraphBuilder("towers")
    b.data("t", 1, Kind.TANGENT)
    for name in "pq":
        b.data(f"{name}x", 0, Kind.INPUT)
        for k in range(length):
            b.data(f"{name}a{k}", 8)
            b.data(f"{name}g{k}", 8, Kind.GRADIENT if k else Kind.INPUT_GRAD)
            b.data(f"{name}w{k}", 1, Kind.PARAM_GRAD)
            b.forward(f"{name}F{k}", reads=[f"{name}a{k - 1}" if k else f"{name}x"], writes=[f"{name}a{k}"], time=3)
    b.loss("L", reads=[f"{name}a{length - 1}" for name in "pq"], writes=["t"], time=1)
    for name in "qp":
        for k in reversed(range(length)):
            reads = [f"{name}g{k + 1}" if k < length - 1 else "t", f"{name}a{k - 1}" if k else f"{name}x"]
            b.backward(f"{name}W{k}", reads=reads, writes=[f"{name}w{k}"], time=3)
            b.backward(f"{name}B{k}", reads=reads, writes=[f"{name}g{k}"], time=3)
    return b.build()


def test_a_pressure_is_what_the_earliest_run_takes_over_the_budget_times_what_is_certain():
    # B2 beside a0, a1, t and its gradient: 13. B1 beside a0, g2, t and its gradient: 13. B0 beside g1, t and its own: 9.
    # Of a forward node all bytes count: its output and those of the layers before it.
    assert pressures_of(flatten(chain()), 10).tolist() == [3 * 4, 3 * 8, 3 * 12, 0, 3 * 3, 3 * 3, 0]


def test_what_may_be_postponed_at_will_presses_less_and_towers_press_equally():
    graph = towers(5)
    pressure = dict(zip((node.name for node in graph.computes), pressures_of(flatten(graph), 40), strict=True))
    assert pressure["L"] == 0
    assert pressure["pF3"] == pressure["qF3"] == 4 * 8 * 5
    for k in range(1, 5):
        assert pressure[f"pB{k}"] == pressure[f"qB{k}"] > pressure[f"pW{k}"] > 0


def test_only_what_hardly_anything_follows_may_be_postponed():
    graph = towers(10)
    flat = flatten(graph)
    dependencies = Dependencies(flat)
    found = {graph.computes[v].name for v in range(graph.loss, len(graph)) if dependencies.postponable(flat, v)}
    weights = {f"{name}W{k}" for name in "pq" for k in range(10)}
    # B1 and B0 of a tower come after at most half of the backward, with its other layers, and two nodes or fewer follow
    assert weights <= found <= weights | {f"{name}B{k}" for name in "pq" for k in (0, 1)}


def test_the_places_over_a_budget_come_by_excess_and_pressure_one_of_each_part_first():
    graph = chain(100)
    search = Search(Problem(graph=graph, budget=int(0.7 * store_all_peak(graph))), Clock(), 0, "test")
    memory = np.zeros(len(search.base), np.int64)
    memory_profile(search.flat, search.base, len(search.base), memory)
    pressure = pressures_of(search.flat, search.budget)
    both = worst_instants(search, search.base, Pressures(search.flat, Dependencies(search.flat), search.budget))
    found = [v for v in both if v >= 100]
    assert set(found) == {v for v in range(100, len(graph.computes)) if pressure[v] and memory[v] > search.budget}
    worst = {v: pressure[v] * (memory[v] - search.budget) for v in range(100)}
    assert both[3] == max(worst, key=worst.get) and both[7] in worst and len(both) == len(found) + 2
    score = {v: pressure[v] * (memory[v] - search.budget) for v in found}
    part = [(v - 100) * _PARTS // 101 for v in found]  # of the loss and the 100 backward nodes
    heads = len(set(part))
    assert len(set(part[:heads])) == heads > 3
    most = {p: max(score[v] for v, its in zip(found, part, strict=True) if its == p) for p in part}
    assert [score[v] for v in found[:heads]] == [most[p] for p in part[:heads]]
    for several in (found[:heads], found[heads:]):
        assert [score[v] for v in several] == sorted((score[v] for v in several), reverse=True)


def test_nothing_is_tried_where_a_sequence_fits():
    graph = chain(10)
    search = Search(Problem(graph=graph, budget=store_all_peak(graph)), Clock(), 0, "test")
    assert worst_instants(search, search.base, Pressures(search.flat, Dependencies(search.flat), 1)) == []
