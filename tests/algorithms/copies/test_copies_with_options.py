"""Copies on graphs with layers or options, and from plans of hierarchies."""

from itertools import pairwise

import pytest
from attrs import evolve, frozen
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from remat.algorithms import (
    Clock,
    CopiesAlone,
    HIlp,
    Intervals,
    LargerBudgets,
    MultiStart,
    Plan,
    Polish,
    Problem,
    ReplaceReruns,
    RuinCopies,
    ShaveBoth,
    Solver,
    WithCopies,
    hierarchical,
    store_all_peak,
)
from remat.algorithms._copies.copy_search import CopyMove
from remat.algorithms._copies.fixed_options import FixedOptions
from remat.errors import BudgetExceeded
from remat.ir import Drop, GraphBuilder, Kind, LayerOption, Link, Offload, Run, Schedule, validate
from remat.testing.strategies import layered_graphs
from tests.algorithms.copies.oracle import TooLarge, optimum
from tests.algorithms.test_hierarchical import deep

MOVES = (ReplaceReruns(), ShaveBoth(), RuinCopies(work=2e5))
planner = WithCopies(HIlp(), MOVES)


def layers(count=6):
    """A chain of equal layers that keep 12, 6 or 0 bytes; what is not kept costs time and workspace in the backward."""
    b = GraphBuilder("layers")
    b.data("x", 0, Kind.INPUT)
    b.data("t", 1, Kind.TANGENT)
    for i in range(count):
        b.data(f"a{i}", 4)
        b.data(f"g{i}", 4, Kind.GRADIENT if i else Kind.INPUT_GRAD)
        b.forward(f"F{i}", reads=[f"a{i - 1}" if i else "x"], writes=[f"a{i}"], time=20)
    b.loss("L", reads=[f"a{count - 1}"], writes=["t"], time=1)
    for i in reversed(range(count)):
        b.backward(f"B{i}", reads=[f"g{i + 1}" if i < count - 1 else "t"], writes=[f"g{i}"], time=40, twin=f"F{i}")
    for i in range(count):
        reads = (f"a{i - 1}" if i else "x",)
        options = [
            LayerOption(forward=20, backward=40 + more, phantom=phantom, forward_workspace=6 - phantom // 2,
                        backward_workspace=4 + more // 2, backward_reads=reads)
            for phantom, more in ((12, 0), (6, 10), (0, 20))
        ]  # fmt: skip
        b.layer(f"F{i}", f"B{i}", options)
    return b.build()


@pytest.mark.parametrize(("budget", "without"), [(80, 391), (60, 421)])
def test_phantoms_go_over_the_link(budget, without):
    graph = layers()
    assert HIlp().solve(Problem(graph=graph, budget=budget)).upper == without
    slow, fast = (
        planner.solve(Problem(graph=graph, budget=budget, link=Link.symmetric(gb_per_s=speed))) for speed in (0.2, 4)
    )
    assert fast.upper < slow.upper < without
    phantoms = {layer.phantom for layer in graph.layers}
    assert any(isinstance(step, Offload) and step.datum in phantoms for step in fast.schedule.steps)
    assert fast.lower == graph.time == 361


def test_without_room_on_the_host_the_plan_is_that_without_copies():
    problem = Problem(graph=layers(), budget=60, link=Link.symmetric(gb_per_s=4), host_budget=0)
    assert planner.solve(problem).upper == 421


def test_copies_are_planned_where_there_is_no_plan_without():
    problem, plain = Problem(graph=layers(), budget=60, link=Link.symmetric(gb_per_s=4)), HIlp().within(0)
    assert plain.solve(Problem(graph=problem.graph, budget=60)).schedule is None
    assert WithCopies(plain, MOVES).solve(problem).upper == 361
    asked = []

    class Asked(Solver):
        def plan(self, problem, clock, seed):
            asked.append(problem.budget)
            return Plan()

    slower = evolve(problem, link=Link.symmetric(gb_per_s=0.2))
    WithCopies(plain, (LargerBudgets(factors=(2,)),), thorough=Asked()).solve(slower)
    assert set(asked) == {120}


def test_a_forward_whose_phantom_is_not_used_runs_without_saving_it():
    graph = layers(1)
    chosen = FixedOptions.fastest(graph)
    (layer,) = graph.layers
    again = Schedule(
        (
            Run("F0"),
            Drop(layer.phantom),
            Drop("a0"),
            Run("F0"),
            Run("L"),
            Drop("a0"),
            Run("B0"),
            Drop(layer.phantom),
        )
    )
    assert chosen.lifted(again).steps == (Run("F0", 3), Drop("a0"), Run("F0", 0), *again.steps[4:])
    assert chosen.lifted(again, unsaved=False).steps == again.steps
    assert validate(graph, chosen.lifted(again)).time == validate(chosen.graph, again).time


@frozen
class Interrupt(CopyMove):
    """Ctrl-C in the middle of the search."""

    def improve(self, search):
        raise KeyboardInterrupt


def test_an_interruption_keeps_the_best_plan():
    problem = Problem(graph=layers(), budget=60, link=Link.symmetric(gb_per_s=4))
    outcome = WithCopies(HIlp(), (CopiesAlone(), Interrupt())).solve(problem)
    assert outcome.upper < 421 and "interrupted" in outcome.trail[0]


speeds = st.sampled_from([0.5, 1, 2, 8])


@given(layered_graphs(), st.floats(0.5, 1.2), speeds)
@settings(suppress_health_check=[HealthCheck.filter_too_much])
def test_a_plan_of_the_flat_graph_is_one_of_the_graph_above(graph, share, speed):
    chosen, link = FixedOptions.fastest(graph), Link.symmetric(gb_per_s=speed)
    budget = int(share * store_all_peak(chosen.graph))
    plain = Polish((MultiStart(starts=1),))
    outcome = WithCopies(plain, MOVES).solve(Problem(graph=chosen.graph, budget=budget, link=link))
    assume(outcome.schedule is not None)
    above = validate(graph, chosen.lifted(outcome.schedule, unsaved=False), budget, link)
    assert (above.time, above.peak, above.idle) == (outcome.cost.time, outcome.cost.peak, outcome.cost.idle)
    try:
        validate(graph, chosen.lifted(outcome.schedule), budget, link)
    except BudgetExceeded:
        """A forward that saves nothing may need more workspace."""


@given(layered_graphs(max_layers=2, max_options=2), st.floats(0.75, 1.2), speeds)
@settings(suppress_health_check=[HealthCheck.filter_too_much])
def test_it_is_between_the_optimum_with_copies_and_the_plan_without(graph, share, speed):
    assume(not graph.flat)
    problem = Problem(graph=graph, budget=int(share * store_all_peak(graph)), link=Link.symmetric(gb_per_s=speed))
    outcome = planner.solve(problem)
    without = HIlp().solve(Problem(graph=graph, budget=problem.budget))
    assert outcome.upper <= without.upper
    if outcome.schedule is not None:
        try:
            best, _ = optimum(graph, problem.budget, problem.link, outcome.upper, most=1000)
        except TooLarge:
            return
        assert outcome.lower <= best <= outcome.upper


def test_a_hierarchy_is_where_copies_begin():
    graph = deep(9)
    plain = hierarchical(Intervals(3), lower=HIlp().sweep(peaks=3, saves=3), top=HIlp())
    budget = int(0.5 * store_all_peak(graph))
    without = plain.solve(Problem(graph=graph, budget=budget))
    problem = Problem(graph=graph, budget=budget, link=Link.symmetric(gb_per_s=1))
    assert plain.solve(problem).upper == without.upper  # it knows no copies
    outcome = WithCopies(plain, MOVES).solve(problem)
    assert outcome.upper < without.upper and any(isinstance(step, Offload) for step in outcome.schedule.steps)


def test_with_a_deadline_each_choice_of_options_has_its_turn():
    seen = []

    @frozen
    class Slow(CopyMove):
        """Works until its time is over."""

        def improve(self, search):
            left = search.clock.remaining
            seen.append(left)
            clock.now += left

    class Ticks:
        now = 0.0

    clock = Ticks()
    problem = Problem(graph=layers(), budget=44, link=Link.symmetric(gb_per_s=0.2))
    timed = Clock(10, now=lambda: clock.now)
    outcome = WithCopies(HIlp(), (Slow(),)).solve(problem, clock=timed)
    assert outcome.upper <= 451 and len(seen) >= 2 and clock.now < 10
    assert all(later < earlier for earlier, later in pairwise(seen))
