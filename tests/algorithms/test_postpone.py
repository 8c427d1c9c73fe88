"""Nodes that make kept gradients run after a heavy node on which they do not depend: plans where no rerun helps."""

import numpy as np
import pytest

from remat.algorithms import Clock, Problem, auto, parse, plan_first
from remat.algorithms._bounds.instants import Dependencies
from remat.algorithms._search.passes import ShavingParams
from remat.algorithms._search.peak_shaving import NO_CEILING, shave
from remat.algorithms._search.postpone import Postpone, kept_before_positions, relieved_order, working_sets
from remat.algorithms._search.state import Search
from remat.ir import Graph, GraphBuilder, Kind, validate

LAYERS = 4


def tied() -> Graph:
    """Layers that each make a kept gradient of 3 bytes, and a last node with a working set of 12 that needs none of them.

    In the captured order 12 + 4 x 3 bytes and the activation are resident at the last node; run first, it needs 12 and a few.
    """
    b = GraphBuilder("tied")
    b.data("t", 1, Kind.TANGENT)
    for i in range(LAYERS):
        b.data(f"a{i}", 1)
        b.data(f"w{i}", 3, Kind.PARAM_GRAD)
        b.forward(f"F{i}", reads=[f"a{i - 1}"] if i else [], writes=[f"a{i}"], time=2)
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
    order = relieved_order(flat, Dependencies(flat), base, at, excess)
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
