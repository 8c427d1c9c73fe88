"""The floor by cuts: what must be resident besides the last of the heavy nodes."""

import pytest

from remat.algorithms import IMPOSSIBLE, CutFloor, Exhaustive, Problem, auto, lowest_budget, proved_floor
from remat.algorithms._bounds import kept_cut
from remat.algorithms._bounds.kept_cut import cut_floor
from remat.algorithms._core.clock import Clock
from remat.ir import Drop, GraphBuilder, Kind, Link, Offload, Prefetch, Run, Schedule, validate


def heads(count, *, small=0, heavy=6, run_once=False):
    """Kept gradients of 4 bytes, each made by a node that works in `heavy` bytes, or from its `small` output by another node."""
    b = GraphBuilder("heads")
    b.data("x", 0, Kind.INPUT)
    b.data("a", 2)
    b.data("t", 1, Kind.TANGENT)
    b.forward("F", reads=["x"], writes=["a"], time=1)
    b.loss("L", reads=["a"], writes=["t"], time=1)
    for i in range(count):
        b.data(f"w{i}", 4, Kind.PARAM_GRAD)
        if small:
            b.data(f"h{i}", small)
            b.backward(f"H{i}", reads=["t", "a"], writes=[f"h{i}"], time=1, workspace=heavy)
            b.backward(f"W{i}", reads=[f"h{i}"], writes=[f"w{i}"], time=1)
        else:
            b.backward(f"H{i}", reads=["t", "a"], writes=[f"w{i}"], time=1, workspace=heavy)
    return b.build()


@pytest.mark.parametrize(
    ("graph", "bytes_"),
    [
        (heads(3), 1 + 2 + 4 + 6 + 2 * 4),  # tangent, saved datum, gradient and workspace of the last; two gradients
        (heads(3, small=1, heavy=9), 1 + 2 + 1 + 9 + 2 * 1),  # from what is small the others are made afterwards
        (heads(3, small=5, heavy=9), 1 + 2 + 5 + 9 + 2 * 4),
        (heads(1), 1 + 2 + 4 + 6),
    ],
    ids=["kept", "small", "large", "one"],
)
def test_the_last_heavy_node_runs_beside_a_cut_before_the_kept_data(graph, bytes_):
    assert max(cut_floor(graph, 0), proved_floor(graph)) == bytes_
    assert Exhaustive().solve(Problem(graph=graph, budget=bytes_ - 1)).lower == IMPOSSIBLE
    assert Exhaustive().solve(Problem(graph=graph, budget=bytes_)).cost is not None


def test_sizes_beyond_32_bits_lower_it_by_a_millionth_at_most():
    huge = 1 << 50
    b = GraphBuilder("huge")
    b.data("x", 0, Kind.INPUT)
    b.data("t", 1, Kind.TANGENT)
    b.loss("L", reads=["x"], writes=["t"], time=1)
    for i in range(3):
        b.data(f"w{i}", huge, Kind.PARAM_GRAD)
        b.backward(f"H{i}", reads=["t"], writes=[f"w{i}"], time=1, workspace=2 * huge)
    graph = b.build()
    exact = 1 + 5 * huge
    assert exact * 0.998 <= cut_floor(graph, 0) <= exact


def test_the_pass_claims_what_it_proves_and_has_no_certificate():
    graph = heads(3)
    below = Problem(graph=graph, budget=20)
    outcome = CutFloor().solve(below)
    assert outcome.lower == IMPOSSIBLE and outcome.certified != IMPOSSIBLE
    assert any("floor by cuts" in line for line in outcome.trail)
    assert CutFloor().solve(Problem(graph=graph, budget=21)).lower < IMPOSSIBLE
    assert auto.solve(below).schedule is None


def test_the_lowest_budget_counts_it_and_keeps_the_exact_floor_apart():
    graph = heads(3)
    lowest = lowest_budget(graph)
    assert lowest.floor == proved_floor(graph) < lowest.limit == lowest.point.budget == 21


def test_a_copy_goes_below_it():
    graph, link = heads(3, small=5, heavy=9), Link.symmetric(gb_per_s=1000)
    assert CutFloor().solve(Problem(graph=graph, budget=24, link=link)).lower < IMPOSSIBLE
    steps = [Run("F"), Run("L")]
    for i in range(3):
        steps += [Run(f"H{i}"), Offload(f"h{i}")]
    for i in range(3):
        steps += [Prefetch(f"h{i}"), Run(f"W{i}"), Drop(f"h{i}")]
    assert validate(graph, Schedule(tuple(steps)), link=link).peak < 24 < cut_floor(graph, 0)


def test_without_time_or_work_nothing_is_proved(monkeypatch):
    graph = heads(3)
    clock = Clock()
    clock.stop()
    assert cut_floor(graph, 13, clock) == 13
    monkeypatch.setattr(kept_cut, "_WORK", 1)
    assert cut_floor(graph, 13) == 13


def test_a_part_of_a_sum_is_on_no_path():
    """w2 adds to d before w3 does, so what w3 made d from need not be there, nor be made again, for w2 to run again."""
    b = GraphBuilder("part-of-a-sum")
    for name in ("x", "d", "e", "y"):
        b.data(name, 10, Kind.GRADIENT)
    b.data("a", 0)
    b.data("t", 0, Kind.TANGENT)
    b.data("k", 0, Kind.PARAM_GRAD)
    b.data("kk", 10, Kind.PARAM_GRAD)
    b.data("kv", 10, Kind.PARAM_GRAD)
    b.forward("F", writes=["a"], time=1)
    b.loss("L", reads=["a"], writes=["t"], time=1)
    b.backward("h", reads=["t"], writes=["x"], workspace=50, time=1)
    b.backward("w1", reads=["t"], writes=["d"], time=1)
    b.backward("w2", reads=["t"], writes=["d", "e"], time=1)
    b.backward("w3", reads=["x"], writes=["d"], time=1)
    b.backward("r", reads=["d"], writes=["k"], time=1)
    b.backward("v", reads=["k"], writes=["y"], workspace=50, time=1)
    b.backward("u", reads=["y"], writes=["kv"], time=1)
    b.backward("q", reads=["e"], writes=["kk"], time=1)
    graph = b.build()
    cost = validate(graph, Schedule.from_runs(graph, ["F", "L", "h", "w1", "w2", "w3", "r", "v", "u", "w1", "w2", "q"]))
    assert cut_floor(graph, 0) <= cost.peak == 60
    assert auto.solve(Problem(graph=graph, budget=cost.peak)).lower < IMPOSSIBLE
    assert lowest_budget(graph).impossible < cost.peak
