"""Plans with copies in another order: each run keeps its copies, the order stays legal, and searches gain by it."""

import numpy as np
import pytest
from attrs import evolve
from hypothesis import assume, given
from hypothesis import strategies as st

from remat.algorithms import Problem, store_all_peak
from remat.algorithms._arrays.graph_arrays import flatten
from remat.algorithms._bounds.floor import first_run_floor
from remat.algorithms._copies.copy_moves import BOTH, Prices
from remat.algorithms._copies.copy_order import carried, reordered_plan
from remat.algorithms._copies.copy_passes import CopiesAlone, RuinCopies
from remat.algorithms._copies.copy_search import CopySearch
from remat.algorithms._core.clock import Clock
from remat.ir import GraphBuilder, Kind, Link, validate
from remat.testing.strategies import legal_graphs


def two_uses():
    """An activation `a` with two readers in the backward, U and V, and nodes X between them that do not read it."""
    b = GraphBuilder("two-uses")
    b.data("a", 4)
    b.data("t", 1, Kind.TANGENT)
    b.forward("F", writes=["a"], time=90)
    b.loss("L", reads=["a"], writes=["t"], time=1)
    for name, inner in (("u", 0), ("x", 6), ("y", 6), ("v", 0)):
        b.data(name, 1, Kind.PARAM_GRAD)
        reads = ["t"] if inner else ["t", "a"]
        b.backward(name.upper(), reads=reads, writes=[name], time=1, workspace=inner)
    return b.build()


def seeded(number):
    return np.array([number * 7919 + 1], np.uint64)


def sequence_of(graph, runs):
    return np.array([graph.node_index[name] for name in runs.split()], np.int32)


def test_a_run_keeps_its_copies_wherever_it_moves():
    graph = two_uses()
    flat = flatten(graph)
    before, mask = sequence_of(graph, "F L U X Y V"), np.array([0, 0, 0, 0, 0, 2], np.int64)
    assert carried(flat, before, mask, sequence_of(graph, "F L U X V Y")).tolist() == [0, 0, 0, 0, 2, 0]


def test_a_copy_without_a_run_between_is_left_out():
    graph = two_uses()
    flat = flatten(graph)
    before, mask = sequence_of(graph, "F L U X Y V"), np.array([0, 0, 0, 0, 0, 2], np.int64)
    assert not carried(flat, before, mask, sequence_of(graph, "F L U V X Y")).any()


def test_reruns_are_matched_in_their_order():
    graph = two_uses()
    flat = flatten(graph)
    before, mask = sequence_of(graph, "F L U X V Y F V"), np.array([0, 0, 0, 0, 2, 0, 0, 0], np.int64)
    fewer = sequence_of(graph, "F L U X V Y V")  # without the rerun of F
    assert carried(flat, before, mask, fewer).tolist() == [0, 0, 0, 0, 2, 0, 0]


@given(legal_graphs(layers=False, options=False), st.integers(0, 2**32), st.floats(0, 1))
def test_plans_in_another_order_are_schedules(graph, seed, part):
    """What the replay accepts, the validator does too."""
    floor, peak = first_run_floor(flatten(graph))[0], store_all_peak(graph)
    assume(floor < peak < 2**50)
    problem = Problem(graph=graph, budget=floor + int(part * (peak - floor)), link=Link.symmetric(gb_per_s=1))
    search, rng = CopySearch(problem, Clock(), 0, "test"), seeded(seed)
    prices = Prices(search.time_prices, 0.5, 1.0, 0.4, 0.0, BOTH)
    plan = search.shaved(search.base, search.bare(search.base), prices, rng)
    assume(plan is not None)
    seq, mask, (lo, hi) = reordered_plan(search.flat, plan, (0, len(plan[0])), (1.0, 0.3, 0.5), rng)
    assert 0 <= lo <= hi <= len(seq)
    assert len(plan[0]) - len(seq) in (0, 1)
    assert sorted(set(seq.tolist())) == sorted(set(plan[0].tolist()))
    roomy = CopySearch(evolve(problem, budget=2**51), Clock(), 0, "test")
    moved = roomy.replayed(seq, mask)
    assert moved.fits
    assert validate(graph, roomy.schedule_of(moved), 2**51, problem.link).time == moved.time


def test_where_the_order_is_as_it_was_so_is_the_plan():
    graph = two_uses()
    plan = sequence_of(graph, "F L U X Y V"), np.array([0, 0, 0, 0, 0, 2], np.int64)
    seq, mask, span = reordered_plan(flatten(graph), plan, (2, 4), (0.0, 0.5, 0.0), seeded(1))
    assert (seq is plan[0], mask is plan[1], span) == (True, True, (2, 4))


def test_the_span_covers_what_has_moved():
    graph = two_uses()
    flat, plan = flatten(graph), (sequence_of(graph, "F L U X Y V"), np.zeros(6, np.int64))
    widened = 0
    for number in range(50):
        seq, _, (lo, hi) = reordered_plan(flat, plan, (3, 4), (1.0, 0.0, 0.0), seeded(number))
        different = np.flatnonzero(seq != plan[0])
        widened += len(different) > 0
        assert all(lo <= i < hi for i in different.tolist())
    assert widened


@pytest.mark.parametrize("changes", [{"gathering": 1.0}, {"disorder": 1.0, "undone": 0.0}])
def test_a_search_finds_plans_that_need_another_order(changes):
    """`a` is away while X and Y run; where V runs before them, nothing waits for its copies."""
    graph = two_uses()
    problem = Problem(graph=graph, budget=store_all_peak(graph) - 1, link=Link.symmetric(gb_per_s=1, latency=20))

    def reached(search):
        one = CopySearch(problem, Clock(), 0, "test")
        CopiesAlone().improve(one)
        search.improve(one)
        return one.best.time

    assert reached(RuinCopies(**changes)) == graph.time < reached(RuinCopies())
