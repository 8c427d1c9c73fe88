"""Nodes that make kept gradients run after a heavy node on which they do not depend: plans where no rerun helps."""

from random import Random

import numpy as np
import pytest
from attrs import evolve
from hypothesis import assume, given
from hypothesis import strategies as st

from remat.algorithms import Clock, PeakShaving, Problem, auto, lowest_budget, parse, plan_first
from remat.algorithms._arrays.kept_data import working_sets
from remat.algorithms._arrays.postponing import kept_before_positions, postponed_order, relieved_order
from remat.algorithms._copies.copy_passes import CopiesAlone
from remat.algorithms._copies.copy_room import needed_bytes
from remat.algorithms._copies.copy_search import CopySearch
from remat.algorithms._copies.with_copies import leaves_out
from remat.algorithms._search.passes import ShavingParams
from remat.algorithms._search.peak_shaving import NO_CEILING, shave
from remat.algorithms._search.postpone import Postpone
from remat.algorithms._search.state import Search
from remat.ir import Graph, GraphBuilder, Kind, Link, validate
from remat.testing.random_schedules import random_schedule
from remat.testing.strategies import legal_graphs

LAYERS = 4


def tied(*, run_once: bool = False) -> Graph:
    """Layers that each make a kept gradient of 3 bytes, and a last node with a working set of 12 that needs none of them.

    In the captured order 12 + 4 x 3 bytes and the activation are resident at the last node; run first, it needs 12 and a few.
    With `run_once` no activation can be made again.
    """
    b = GraphBuilder("tied")
    b.data("t", 1, Kind.TANGENT)
    for i in range(LAYERS):
        b.data(f"a{i}", 1)
        b.data(f"w{i}", 3, Kind.PARAM_GRAD)
        b.forward(f"F{i}", reads=[f"a{i - 1}"] if i else [], writes=[f"a{i}"], time=2, run_once=run_once)
    b.loss("L", reads=[f"a{LAYERS - 1}"], writes=["t"], time=1)
    b.data("sum", 1, Kind.PARAM_GRAD)
    for i in reversed(range(LAYERS)):
        b.backward(f"W{i}", reads=["t", f"a{i}"], writes=[f"w{i}"], time=3)
    b.backward("heavy", reads=["t"], writes=["sum"], time=3, workspace=12)
    return b.build()


def search_at(budget):
    return Search(Problem(graph=tied(), budget=budget), Clock(), 0, "test")


def test_no_rerun_helps_where_kept_data_are_resident_and_postponing_does():
    search = search_at(20)
    scoring = ShavingParams().scoring(search)
    _, fit = shave(search.flat, scoring, search.base, 20, search.streams.spawn("peak shaving"), NO_CEILING)
    assert not fit
    Postpone().improve(search)
    assert validate(search.problem.graph, search.schedule(), budget=20).peak <= 20


@pytest.mark.parametrize("excess", range(14))
def test_an_order_is_legal_and_frees_what_it_was_asked_for(excess):
    search = search_at(100)
    flat, base = search.flat, search.base
    at = len(base) - 1
    order = relieved_order(flat, base, at, excess)
    assert sorted(order.tolist()) == sorted(base.tolist())
    validate(search.problem.graph, search.arrays.schedule_of(order))
    position = order.tolist().index(base[at])
    freed = kept_before_positions(flat, base)[at] - kept_before_positions(flat, order)[position]
    assert freed == min(3 * LAYERS, -(-excess // 3) * 3)
    assert np.array_equal(order[:position], base[:position])  # the last ones are moved


def test_a_working_set_is_what_a_run_needs_besides_kept_data():
    flat = search_at(100).flat
    graph = tied()
    needs = dict(zip((node.name for node in graph.computes), working_sets(flat).tolist(), strict=True))
    assert needs["heavy"] == 12 + 1 and needs["W0"] == 3 + 1 and needs["F1"] == 2  # the tangent is kept


@given(legal_graphs(layers=False, options=False), st.integers(0, 2**32), st.integers(0, 40))
def test_a_sequence_with_reruns_stays_legal_and_keeps_what_is_kept(graph, seed, room):
    """Its runs are the same, none is heavier by kept data than the room leaves unless nothing could be moved behind it."""
    search = Search(Problem(graph=graph, budget=0), Clock(), 0, "test")
    flat, schedule = search.flat, random_schedule(graph, Random(seed).randint)
    seq = search.arrays.sequence_of(schedule)
    relieved = postponed_order(flat, seq, room)
    assert sorted(relieved.tolist()) == sorted(seq.tolist())
    assert validate(graph, search.arrays.schedule_of(relieved)).time == search.arrays.time_of(seq)
    excess = (working_sets(flat)[seq] + kept_before_positions(flat, seq)).max() - room
    after = (working_sets(flat)[relieved] + kept_before_positions(flat, relieved)).max() - room
    assert np.array_equal(relieved, seq) or (excess > 0 and after <= excess)


def test_kept_data_of_a_sequence_are_counted_once():
    search = search_at(100)
    graph = search.problem.graph
    names = [node.name for node in graph.computes]
    runs = np.array(
        [names.index(name) for name in ("F0", "F1", "F2", "F3", "L", "W3", "F2", "W3", "W2", "heavy")], np.int32
    )
    assert kept_before_positions(search.flat, runs)[-1] == 1 + 2 * 3
    moved = relieved_order(search.flat, runs, len(runs) - 1, 6)
    assert [names[v] for v in moved[4:]] == ["L", "F2", "heavy", "W3", "W3", "W2"]


def test_nothing_is_tried_where_no_node_is_heavy():
    search = search_at(60)
    Postpone().improve(search)
    assert search.trail == search_at(60).trail


def test_both_planners_ask_it_before_they_search_longer():
    for solver in (auto, plan_first):
        text = repr(solver)
        assert 0 < text.index("Postpone(") < text.index("Continuation(") < text.index("Relieve(")
    assert parse(repr(Postpone((0.0, 0.1), heaviest=3))) == Postpone((0.0, 0.1), heaviest=3)


def test_copies_begin_with_an_order_in_which_they_can_take_away_enough():
    graph, link = tied(), Link.symmetric(gb_per_s=1)
    problem = Problem(graph=graph, budget=15, link=link)  # 14 at the heavy node, 26 in the captured order
    search = CopySearch(problem, Clock(), 0, "test")
    assert not np.array_equal(search.start, search.base)
    CopiesAlone().improve(search)
    assert search.best is not None
    assert validate(graph, search.schedule(), budget=15, link=link).time == search.best.time
    roomy = CopySearch(evolve(problem, budget=26), Clock(), 0, "test")
    assert np.array_equal(roomy.start, roomy.base)


@given(legal_graphs(layers=False, options=False), st.integers(0, 8), st.sampled_from([1, 10, 1000]), st.booleans())
def test_copies_alone_find_a_plan_at_the_least_room_of_an_order(graph, more, speed, another):
    assume(leaves_out(graph) is None)
    problem = Problem(graph=graph, budget=0, link=Link.symmetric(gb_per_s=speed))
    search = CopySearch(problem, Clock(), 0, "test")
    order = postponed_order(search.flat, search.base, 0, len(search.base)) if another else search.base
    needed = needed_bytes(search.flat, search.lanes, order)
    roomy = CopySearch(evolve(problem, budget=needed + more), Clock(), 0, "test")
    roomy.start = order
    CopiesAlone().improve(roomy)
    assert roomy.best is not None
    less = CopySearch(evolve(problem, budget=needed - 1), Clock(), 0, "test") if needed else None
    if less is not None:
        less.start = order
        CopiesAlone().improve(less)
        assert less.best is None


def test_over_a_link_the_smallest_budget_is_what_the_heaviest_node_needs():
    graph, link = tied(run_once=True), Link.symmetric(gb_per_s=1)
    bare, linked = lowest_budget(graph), lowest_budget(graph, link=link)
    assert bare.point.budget == 18 and linked.point.budget == 15  # the activations are away while the last node runs
    assert validate(graph, linked.point.outcome.schedule, 15, link).time == linked.point.outcome.cost.time
    alone = lowest_budget(graph, PeakShaving())
    assert lowest_budget(graph, PeakShaving(), link=link).point.budget == alone.point.budget  # that one plans no copies


def test_a_deadline_leaves_the_smallest_budget_over_a_link_its_plan():
    graph, link = tied(run_once=True), Link.symmetric(gb_per_s=1)
    assert lowest_budget(graph, link=link, clock=Clock(0)).point.budget == 15
    assert auto.solve(Problem(graph=graph, budget=15, link=link), clock=Clock(0)).schedule is not None


def shared_sum() -> Graph:
    """A kept sum of 10 bytes with two writers, a node that takes 20 between them, and four activations that are made once."""
    b = GraphBuilder("shared-sum")
    b.data("t", 1, Kind.TANGENT)
    b.data("s", 10, Kind.PARAM_GRAD)
    for i in range(4):
        b.data(f"a{i}", 8)
        b.forward(f"F{i}", reads=[f"a{i - 1}"] if i else [], writes=[f"a{i}"], time=1, run_once=True)
    b.loss("L", reads=["a3"], writes=["t"], time=1)
    for name, size in (("x", 1), ("big", 20), ("y", 1)):
        b.data(name, size)
    b.backward("S1", reads=["t", "a3"], writes=["s", "x"], time=1)
    b.backward("BIG", reads=["x"], writes=["big"], time=1)
    b.backward("Y", reads=["big"], writes=["y"], time=1)
    b.backward("S2", reads=["y", "a0"], writes=["s"], time=1)
    return b.build()


def test_a_sum_with_several_writers_stays_on_the_device():
    graph, link = shared_sum(), Link.symmetric(gb_per_s=1)
    lowest = lowest_budget(graph, link=link)
    assert lowest.point.budget == 32 < lowest_budget(graph).point.budget  # the sum, `big`, the tangent, and x or y
    validate(graph, lowest.point.outcome.schedule, 32, link)


@given(legal_graphs(layers=False, options=False))
def test_the_smallest_budget_over_a_link_claims_nothing_without_copies(graph):
    link = Link.symmetric(gb_per_s=1)
    linked = lowest_budget(graph, link=link)
    assert linked.limit <= linked.point.budget <= lowest_budget(graph).point.budget
    validate(graph, linked.point.outcome.schedule, linked.point.budget, link)
    best = auto.solve(Problem(graph=graph, budget=linked.point.budget, link=link))
    assert linked.point.outcome.lower <= best.cost.time
