"""Laws of the MILP formulations: forms agree with each other and with brute force, bounds hold, more budget never costs more.

The thorough profile carries the big counts (200 graphs, 1 000 budgets and more).
"""

import math
from functools import cache
from pathlib import Path

import pytest
from attrs import evolve
from hypothesis import given, settings
from hypothesis import strategies as st

from remat.algorithms._bounds.floor import node_floor
from remat.algorithms._core.outcome import IMPOSSIBLE
from remat.algorithms._core.problem import Problem
from remat.algorithms._milp.backend import Limits
from remat.algorithms._milp.backends import Cvxpy, Highs
from remat.algorithms._milp.milp_model import model_of
from remat.algorithms._staged.budget_solver import BudgetSolver
from remat.algorithms._staged.decode import point_of, schedule_of
from remat.algorithms._staged.form_checkmate import OneOutputPerOp, checkmate_form
from remat.algorithms._staged.form_events import events_form
from remat.algorithms._staged.form_published import published_form
from remat.algorithms._staged.knapsack import FullRelaxation, SavedSetKnapsack, TightenedKnapsack
from remat.algorithms._staged.memory_items import StagedGraph
from remat.algorithms._staged.slots import slots_of
from remat.algorithms._staged.solver import HIlp, Ilp
from remat.algorithms._whole.baselines import StoreAll
from remat.algorithms._whole.exhaustive import Exhaustive
from remat.ir import Schedule, load, validate
from remat.testing.strategies import captured, chain_graphs, graphs, layered_graphs, training_graphs
from tests.algorithms.staged.oracle import staged_optimum

BLOCKS = Path(__file__).parent.parent / "tests" / "data" / "blocks"
EIGHT = (
    "cross_attention", "fno_block", "gpt2_attention", "gpt2_mlp", "mixer_block", "resnet_bottleneck", "unet_down", "unet_level",
)  # fmt: skip


@st.composite
def problems(draw, graph=None, low=0.0):
    """A graph and a budget between its floor and the peak of the captured order."""
    one = draw(graphs(max_forward=3) if graph is None else graph)
    peak = validate(one, Schedule.from_runs(one, captured(one))).peak
    floor = max(node_floor(one), int(peak * low))
    return Problem(graph=one, budget=draw(st.integers(min(floor, peak), peak)))


def value(form, budget, *, relaxed=False, backend=None):
    """Optimum of a form [ns], with its point; (None, None) where it has none."""
    model = model_of(form.linear, relaxed=relaxed)
    model.set(budget)
    answer = (backend or Highs()).solve(model, Limits(gap=0))
    if answer.point is None:
        assert answer.infeasible
        return None, None
    return float(form.linear.cost @ answer.point), answer.point


def close(a, b):
    return (a is None) == (b is None) and (a is None or abs(a - b) <= 1e-5 * max(1.0, abs(a)))


@given(problems())
def test_production_and_published_form_have_the_same_optimum_and_relaxation(problem):
    stage = StagedGraph(problem.graph)
    events, published = events_form(stage), published_form(stage)
    assert close(value(events, problem.budget, relaxed=True)[0], value(published, problem.budget, relaxed=True)[0])
    ours, theirs = value(events, problem.budget), value(published, problem.budget)
    assert close(ours[0], theirs[0])
    for form, (time, point) in ((events, ours), (published, theirs)):
        if point is not None:
            assert validate(problem.graph, schedule_of(form, point), problem.budget).time <= time + 1e-5


@given(problems())
def test_both_equal_brute_force_over_their_class(problem):
    exact = staged_optimum(problem)
    for form in (events_form(StagedGraph(problem.graph)), published_form(StagedGraph(problem.graph), tight=False)):
        assert close(value(form, problem.budget)[0], exact)


@given(problems())
def test_the_solver_plans_the_optimum_of_its_class_and_no_bound_overclaims(problem):
    staged = staged_optimum(problem)
    exact = math.inf if staged is None else staged
    every = Exhaustive().solve(problem)
    of_class, warm = HIlp(gap=0, warm_start=False).solve(problem), HIlp(gap=0).solve(problem)
    assert of_class.upper == exact
    assert warm.upper <= exact  # its first plan may lie outside the class
    for outcome in (of_class, warm, HIlp(gap=0.2).solve(problem)):
        assert outcome.lower <= every.upper <= outcome.upper <= exact * 1.2
        assert all(bound.value <= exact for bound in outcome.class_bounds)


@given(problems(), st.floats(0, 0.3))
def test_with_an_incumbent_the_milp_finds_what_beats_it_and_no_bound_overclaims(problem, gap):
    exact, every = staged_optimum(problem), Exhaustive().solve(problem)
    budget_solver = HIlp(gap=gap, warm_start=False).build(problem.graph)
    for schedule in (every.schedule, StoreAll().solve(problem).schedule):
        if schedule is None:
            continue
        known = budget_solver.incumbent(schedule, problem.budget)
        found = budget_solver.solve(problem.budget, incumbent=known)
        least = min(known.cost.time, math.inf if exact is None else exact)
        assert least <= found.cost.time <= known.cost.time or found.cost.time == least
        assert found.cost.time <= least * (1 + gap) * (1 + 1e-6)
        assert found.bound <= (math.inf if exact is None else exact)


@given(problems())
def test_rows_over_what_runs_again_lift_the_relaxation_and_leave_the_optimum(problem):
    stage = StagedGraph(problem.graph)
    plain, cut = events_form(stage), events_form(stage, cuts=True)
    optimum = value(plain, problem.budget)[0]
    assert close(value(cut, problem.budget)[0], optimum)
    low, high = (value(form, problem.budget, relaxed=True)[0] for form in (plain, cut))
    if high is not None:
        assert low <= high * (1 + 1e-6)
    if optimum is not None:
        assert high <= optimum * (1 + 1e-6)


@given(problems(st.one_of(training_graphs(max_forward=3, contributions=False), chain_graphs())))
def test_checkmate_as_published_equals_the_production_form_on_one_output_per_operator(problem):
    small = OneOutputPerOp().apply(problem).problem
    stage = StagedGraph(small.graph)
    if any(len(cell.writers) > 1 for cell in stage.cells):
        assert (OneOutputPerOp() >> Ilp(form="checkmate")).solve(problem).schedule is None
        return
    assert close(value(checkmate_form(stage), small.budget)[0], value(events_form(stage), small.budget)[0])
    lifted = (OneOutputPerOp() >> Ilp(gap=0, form="checkmate")).solve(problem)
    whole = HIlp(gap=0, warm_start=False).solve(problem)
    assert lifted.lower in (0, IMPOSSIBLE) and whole.upper <= lifted.upper


@given(problems(layered_graphs()))
def test_tying_phantoms_to_their_backward_never_helps(problem):
    free, tied = (
        value(published_form(StagedGraph(problem.graph), tied=one), problem.budget)[0] for one in (False, True)
    )
    assert tied is None or (free is not None and free <= tied + 1e-5)


@given(problems(), st.sampled_from(["backward-only", "backward-once"]), st.one_of(st.none(), st.integers(1, 3)))
def test_restrictions_lose_and_never_gain(problem, reruns, window):
    own = HIlp(gap=0, warm_start=False)
    whole, thin = own.solve(problem), evolve(own, reruns=reruns, window=window).solve(problem)
    assert whole.upper <= thin.upper
    assert evolve(own, cuts=True).solve(problem).upper == whole.upper
    assert evolve(own, reruns=reruns, window=window, cuts=True).solve(problem).upper == thin.upper


@given(problems(low=0.5))
def test_bounds_hold_and_order(problem):
    exact, staged = Exhaustive().solve(problem).upper, staged_optimum(problem)
    knapsack, tight = SavedSetKnapsack().solve(problem), TightenedKnapsack().solve(problem)
    relaxed = TightenedKnapsack(nodes=0).solve(problem)
    assert knapsack.lower <= exact and relaxed.lower <= exact and tight.lower <= exact
    assert SavedSetKnapsack(nodes=0).solve(problem).lower <= relaxed.lower
    full = FullRelaxation().solve(problem)
    assert full.lower == 0 and full.schedule is None
    assert all(bound.value <= (math.inf if staged is None else staged) for bound in full.class_bounds)


@pytest.mark.parametrize("backend", [Highs(), Highs(implied=False), Cvxpy(solver="SCIP")], ids=repr)
@settings(settings(), max_examples=max(5, settings().max_examples // 8))
@given(graphs(max_forward=4), st.data())
def test_the_optimum_never_rises_with_the_budget(backend, graph, data):
    peak = validate(graph, Schedule.from_runs(graph, captured(graph))).peak
    floor = min(node_floor(graph), peak)
    budgets = sorted(data.draw(st.lists(st.integers(floor, peak), min_size=6, max_size=6)))
    budget_solver = HIlp(gap=0, warm_start=False, backend=backend).build(graph)
    times = [math.inf if (found := budget_solver.solve(one)).cost is None else found.cost.time for one in budgets]
    assert times == sorted(times, reverse=True)


@given(problems())
def test_a_plan_survives_the_way_to_a_point_and_back(problem):
    budget_solver = HIlp(gap=0).build(problem.graph)
    found = budget_solver.solve(problem.budget)
    if found.schedule is None:
        return
    point = point_of(budget_solver.form, found.schedule)
    assert point is not None
    assert schedule_of(budget_solver.form, point).runs == found.schedule.runs
    assert budget_solver.start(found.schedule, problem.budget) is not None


@cache
def block(name):
    graph = load(BLOCKS / f"{name}.json")
    return graph, validate(graph, Schedule.from_runs(graph, captured(graph))).peak


def lowest(budget_solver, floor, peak):
    """The smallest budget with a plan, to 1 % of the peak."""
    low, high = floor, peak
    while high - low > peak // 100:
        middle = (low + high) // 2
        low, high = (low, middle) if budget_solver.solve(middle, gap=0.5).cost is not None else (middle, high)
    return high


def agree(graph, budgets, slots, published):
    """Both forms have one relaxation and one optimum (to a gap of 1e-3, and beyond it by each other's bounds)."""
    stage = StagedGraph(graph)
    forms = {"events": events_form(stage, slots), "published": published_form(stage, slots)}
    ours = BudgetSolver(events_form(stage, slots, cuts=True), Highs(), 1e-3)
    theirs = BudgetSolver(forms["published"] if published is None else published, Highs(), 1e-3)
    for budget in budgets:
        values = [value(form, budget, relaxed=True)[0] for form in forms.values()]
        assert close(*values), (budget, values)
        one, two = ours.solve(budget), theirs.solve(budget)
        assert (one.cost is None) == (two.cost is None)
        if one.cost is not None:
            assert abs(one.cost.time - two.cost.time) <= 1e-3 * one.cost.time + 1
            assert max(one.bound, two.bound) <= min(one.cost.time, two.cost.time)


@pytest.mark.parametrize("name", EIGHT)
def test_forms_agree_on_captured_blocks(name):
    graph, peak = block(name)
    thin = slots_of(StagedGraph(graph), "backward-once")
    low = lowest(HIlp(reruns="backward-once").build(graph), node_floor(graph), peak)
    count = 2 if settings().max_examples < 100 else 8
    first = 1 if settings().max_examples < 100 else 0  # the lowest are the hard ones
    agree(graph, [low + (peak - low) * i // count for i in range(first, count + 1)], thin, None)


FULL = ("fno_block", "gpt2_mlp", "resnet_bottleneck", "unet_down")


@pytest.mark.parametrize("name", FULL if settings().max_examples < 100 else EIGHT)
def test_forms_agree_on_captured_blocks_with_every_rerun(name):
    graph, peak = block(name)
    low = lowest(HIlp().build(graph), node_floor(graph), peak)
    count = 2 if settings().max_examples < 100 else 6
    # the published form has every slot, also those where a rerun cannot matter
    whole = published_form(StagedGraph(graph), tight=False)
    agree(graph, [low + (peak - low) * i // count for i in range(count)], slots_of(StagedGraph(graph)), whole)
