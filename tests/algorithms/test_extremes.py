"""Curves and solvers at the ends of what is legal: options, no time and no bytes, nearly 2^63 of either, wrong arguments."""

import numpy as np
import pytest
from attrs import evolve, frozen

from remat.algorithms import (
    AnyOrder,
    Clock,
    Exhaustive,
    HIlp,
    MultiStart,
    Postpone,
    Problem,
    RuinAndRecreate,
    SavedSet,
    Solver,
    StoreAll,
    auto,
    choices,
    lowest_budget,
    sweep,
)
from remat.algorithms._copies.copy_passes import LargerBudgets, ShavePostponed
from remat.algorithms._copies.copy_search import CopySearch
from remat.algorithms._search.shifting import objective_of
from remat.algorithms._search.state import Search
from remat.algorithms.named import rotor
from remat.errors import BadArgument
from remat.ir import GraphBuilder, Kind, Link, Option
from remat.units import LARGEST
from remat.viz.curve import Mark, draw_curve
from remat.viz.curves import draw_curves
from tests.graphs import tiny_step


def with_options():
    """A forward that saves what its backward reads, or is cheap and saves nothing; the tangent is read by both backward nodes."""
    b = GraphBuilder("options")
    b.data("x", 1, Kind.INPUT)
    b.data("a", 4)
    b.data("t", 1, Kind.TANGENT)
    b.data("g", 2, Kind.PARAM_GRAD)
    b.forward("F", reads=["x"], writes=["a"], options=(Option(time=3, workspace=2), Option(time=1, workspace=6)))
    b.loss("L", reads=["a"], writes=["t"], time=1)
    b.backward("B", reads=["t", "a"], writes=["g"], time=2)
    return b.build()


@pytest.mark.parametrize("solver", [Exhaustive(), HIlp(), None], ids=repr)
@pytest.mark.parametrize("link", [None, Link.symmetric(gb_per_s=1)], ids=["alone", "with a link"])
def test_the_lowest_budget_of_a_graph_with_options_is_one_of_a_plan(solver, link):
    graph = with_options()
    lowest = lowest_budget(graph, solver, accuracy=0, link=link)
    assert lowest.limit <= lowest.point.budget and lowest.point.outcome.cost.peak <= lowest.point.budget
    assert link is not None or solver is None or lowest.point.budget == 7  # t, a and g, and F with 6 of its own
    if solver is not None:
        assert choices(graph, solver=solver, points=3).choices[-1].ratio is not None


def test_a_step_that_takes_neither_time_nor_memory_has_a_curve():
    b = GraphBuilder("nothing")
    b.data("x", 0, Kind.INPUT)
    b.data("t", 0, Kind.TANGENT)
    b.loss("L", reads=["x"], writes=["t"], time=0)
    curve = choices(b.build(), points=2)
    assert [(one.budget, one.share, one.ratio, one.lower) for one in curve.choices] == [(0, 1, 1, 1)]
    draw_curve([Mark(budget=0, time=0), Mark(budget=4, time=0)], peak=0, time=0)
    draw_curves({"a": [Mark(budget=0, time=0), Mark(budget=4, time=0)]}, peak=0, time=0)


@pytest.mark.parametrize("budgets", [["50%", 3], [[3]], [None, 3]], ids=repr)
def test_what_is_no_budget_of_a_curve_is_refused(budgets):
    with pytest.raises(BadArgument, match="budget"):
        sweep(with_options(), budgets, StoreAll())


def test_a_class_is_no_test_of_a_graph():
    with pytest.raises(BadArgument, match="function of a graph"):
        auto.when(StoreAll)


def long_chain(unit):
    """Fourteen stages of equal times, the last one wide."""
    b = GraphBuilder("long")
    b.data("x", 1, Kind.INPUT)
    b.data("t", 1, Kind.TANGENT)
    for i in range(14):
        b.data(f"a{i}", 5)
        b.forward(f"F{i}", reads=[f"a{i - 1}" if i else "x"], writes=[f"a{i}"], time=unit)
    b.loss("L", reads=["a13"], writes=["t"], time=unit)
    for i in reversed(range(14)):
        b.data(f"g{i}", 1, Kind.GRADIENT if i else Kind.INPUT_GRAD)
        b.backward(f"B{i}", reads=[f"g{i + 1}" if i < 13 else "t", f"a{i}"], writes=[f"g{i}"], time=unit)
    return b.build()


@pytest.mark.parametrize("solver", [MultiStart(), RuinAndRecreate(work=1e5), AnyOrder(), auto], ids=repr)
def test_times_whose_sum_with_reruns_exceeds_a_word_leave_plans_as_they_are(solver):
    """All nodes once take nearly 2^63 ns."""
    unit = (2**63 - 1) // 29
    for budget in (25, 40):
        long, short = (solver.solve(Problem(graph=long_chain(each), budget=budget)) for each in (unit, 1000))
        assert (long.schedule is None) == (short.schedule is None)
        assert long.lower <= long.upper


@frozen
class Widened(Solver):
    """Plans a graph in which a node works in so many bytes more."""

    bytes_more: int

    def plan(self, problem, clock, seed):
        nodes = list(problem.graph.computes)
        nodes[0] = evolve(nodes[0], options=(Option(time=1, workspace=self.bytes_more),))
        return StoreAll().plan(evolve(problem, graph=evolve(problem.graph, computes=tuple(nodes))), clock, seed)


def test_a_graph_that_is_too_large_is_refused_where_it_was_made_from_a_legal_one():
    problem = Problem(graph=long_chain(1), budget=100)
    assert Widened(5).solve(problem).schedule is not None
    outcome = Widened(2**63 - 1).solve(problem)
    assert outcome.schedule is None and "too large: the sizes" in outcome.trail[0]
    assert (Widened(2**63 - 1) | StoreAll()).solve(problem).schedule is not None


@pytest.mark.parametrize("budget", [2**40, 2**62, 2**63 - 1])
def test_a_budget_far_above_the_peak_is_rounded_for_a_chain_as_the_peak_is(budget):
    outcome = rotor.solve(Problem(graph=long_chain(3), budget=budget))
    assert outcome.cost.time == 29 * 3


@pytest.mark.parametrize("budget", [LARGEST, LARGEST - 511, LARGEST // 2])
def test_a_share_of_a_budget_is_no_more_than_the_budget_where_a_float_rounds_up(budget):
    graph, link = tiny_step(), Link.symmetric(gb_per_s=1)
    outcome = Postpone().solve(Problem(graph=graph, budget=budget))
    assert outcome.cost.time == graph.time
    assert objective_of(np.zeros(1, np.int64), budget, 1.0).level == budget
    search = CopySearch(Problem(graph=graph, budget=budget, link=link), Clock(), 0, "test", rough=StoreAll())
    for move in (ShavePostponed(reserves=(0.0, 0.5)), LargerBudgets(factors=(1, 2))):
        move.improve(search)
    assert search.best is None or search.best.time == graph.time
    lp = Search(Problem(graph=graph, budget=budget), Clock(), 0, "test")
    SavedSet(instants=1, shares=(1.0,)).improve(lp)
    assert lp.best_time == graph.time
