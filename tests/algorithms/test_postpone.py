"""Nodes that make kept gradients run after a heavy node on which they do not depend: plans where no rerun helps."""

import numpy as np
import pytest
from attrs import evolve
from hypothesis import assume, given
from hypothesis import strategies as st

from remat.algorithms import Clock, PeakShaving, Problem, auto, lowest_budget, parse, plan_first
from remat.algorithms._arrays.graph_arrays import flatten
from remat.algorithms._arrays.kept_data import working_sets
from remat.algorithms._arrays.postponing import kept_before_positions, postponed_order, relieved_order
from remat.algorithms._copies.copy_passes import CopiesAlone
from remat.algorithms._copies.copy_search import CopySearch
from remat.algorithms._copies.with_copies import leaves_out
from remat.algorithms._search.passes import ShavingParams
from remat.algorithms._search.peak_shaving import NO_CEILING, shave
from remat.algorithms._search.postpone import Postpone
from remat.algorithms._search.state import Search
from remat.ir import Graph, GraphBuilder, Kind, Link, validate
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
    assert validate(graph, search.schedule, budget=15, link=link).time == search.best.time
    roomy = CopySearch(evolve(problem, budget=26), Clock(), 0, "test")
    assert np.array_equal(roomy.start, roomy.base)


@given(legal_graphs(layers=False, options=False), st.integers(0, 8), st.sampled_from([1, 10, 1000]))
def test_with_a_link_there_is_a_plan_wherever_working_sets_and_what_is_kept_fit(graph, more, speed):
    assume(leaves_out(graph) is None)
    flat = flatten(graph)
    base = np.flatnonzero(flat.required).astype(np.int32)
    order = postponed_order(flat, base, 0, len(base))
    budget = int((working_sets(flat)[order] + kept_before_positions(flat, order)).max()) + more
    search = CopySearch(Problem(graph=graph, budget=budget, link=Link.symmetric(gb_per_s=speed)), Clock(), 0, "test")
    assume(bool((search.lanes.movable | flat.keep | (flat.size == 0) | (flat.producer < 0)).all()))
    assume(bool((flat.contributions[flat.keep] <= 1).all()))
    search.start = order
    CopiesAlone().improve(search)
    assert search.best is not None


def test_over_a_link_the_smallest_budget_is_what_the_heaviest_node_needs():
    graph, link = tied(run_once=True), Link.symmetric(gb_per_s=1)
    bare, linked = lowest_budget(graph), lowest_budget(graph, link=link)
    assert bare.point.budget == 18 and linked.point.budget == 15  # the activations are away while the last node runs
    assert validate(graph, linked.point.outcome.schedule, 15, link).time == linked.point.outcome.cost.time
    alone = lowest_budget(graph, PeakShaving())
    assert lowest_budget(graph, PeakShaving(), link=link).point.budget == alone.point.budget  # that one plans no copies


@given(legal_graphs(layers=False, options=False))
def test_the_smallest_budget_over_a_link_has_a_plan_and_claims_nothing_without_copies(graph):
    link = Link.symmetric(gb_per_s=1)
    linked = lowest_budget(graph, link=link)
    assert linked.limit <= linked.point.budget <= lowest_budget(graph).point.budget
    validate(graph, linked.point.outcome.schedule, linked.point.budget, link)
    assert linked.point.outcome.lower <= linked.point.outcome.cost.time
