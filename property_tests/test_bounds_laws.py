"""Laws of the bounds: none exceeds the oracle's optimum, none calls a feasible problem impossible, whatever the order."""

from itertools import product
from random import Random

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from remat.algorithms._arrays.graph_arrays import flatten
from remat.algorithms._bounds.decisions import decided, fixings
from remat.algorithms._bounds.floor import proved_floor
from remat.algorithms._bounds.instants import Dependencies, instant_formulation
from remat.algorithms._bounds.kept_cut import cut_floor
from remat.algorithms._bounds.ordered_instants import ordered_formulation
from remat.algorithms._bounds.rounded_rows import add_rounded
from remat.algorithms._core.clock import Clock
from remat.algorithms._core.outcome import IMPOSSIBLE
from remat.algorithms._core.problem import Problem
from remat.algorithms._curves.budget_sweep import lowest_budget
from remat.algorithms._milp.answer import Answer
from remat.algorithms._milp.direct import solve_mixed, solve_relaxed
from remat.algorithms._milp.linear import Builder
from remat.algorithms._search.any_order import AnyOrder
from remat.algorithms._search.branch_and_bound import BranchAndBound
from remat.algorithms._search.floor import Floor
from remat.algorithms._search.multi_instant import MultiInstant
from remat.algorithms._search.order_tree import Limits, OrderTree
from remat.algorithms._search.precedence import Precedence
from remat.algorithms._search.single_instant import SingleInstant
from remat.algorithms._search.solution_starts import described
from remat.algorithms._search.state import Search
from remat.algorithms._whole.baselines import store_all_peak
from remat.algorithms._whole.exhaustive import Exhaustive
from remat.ir import Schedule, validate
from remat.testing.strategies import legal_graphs, problems, training_graphs, valid_schedules
from tests.benchmarks.bench_plan import tiny_graph

SMALL = problems(training_graphs(max_forward=3))


BOUNDS = {
    "floor": Floor(),
    "relaxed": SingleInstant(mixed=0),
    "mixed": SingleInstant(),
    "any order": AnyOrder(rounds=3, orders=4),
    "decisions": BranchAndBound(effort=3e6),
}


@pytest.mark.parametrize("bound", BOUNDS.values(), ids=BOUNDS)
@given(problem=SMALL)
def test_no_bound_exceeds_the_optimum(bound, problem):
    assert bound.solve(problem).lower <= Exhaustive().solve(problem).upper


@given(problem=SMALL)
def test_every_instant_bounds_the_optimum(problem):
    exact = Exhaustive().solve(problem)
    assume(exact.cost is not None)
    flat = flatten(problem.graph)
    spare = exact.upper - int(flat.time.sum())
    dependencies = Dependencies(flat)
    for at in range(len(problem.graph)):
        if flat.required[at]:
            instant = instant_formulation(flat, dependencies, at, problem.budget)
            assert not instant.impossible
            relaxed, mixed = solve_relaxed(instant.linear), solve_mixed(instant.linear)
            assert not relaxed.infeasible and relaxed.bound <= spare
            assert not mixed.infeasible and mixed.bound <= spare


@given(data=st.data(), seed=st.integers(0, 10**9), summed=st.booleans())
def test_the_least_bound_over_the_orders_of_any_instants_bounds_the_optimum(data, seed, summed):
    graph = tiny_graph(Random(seed), 3, summed)
    peak = store_all_peak(graph)
    problem = Problem(graph=graph, budget=data.draw(st.integers(peak * 2 // 3, peak)))
    search = Search(problem, Clock(), 0, "laws")
    precedence = Precedence(search.flat)
    after = st.sampled_from(np.flatnonzero(search.flat.required).tolist())
    instants = data.draw(st.frozensets(after, min_size=1, max_size=3))
    least = IMPOSSIBLE
    for order in precedence.orders(instants, 6):
        formulation = ordered_formulation(search.flat, precedence.dependencies, order, problem.budget)
        answer = None if formulation.impossible else solve_mixed(formulation.linear)
        if answer is None or answer.infeasible:
            continue
        least = min(least, search.arrays.base_time + answer.bound)
        if answer.point is not None:
            validate(graph, Schedule.from_runs(graph, described(search, formulation, answer.point).tolist()))
    assert least <= Exhaustive().solve(problem).upper


@given(data=st.data(), seed=st.integers(0, 10**9))
def test_no_decision_of_a_solution_is_bounded_above_it(data, seed):
    graph = tiny_graph(Random(seed), 6, False)
    peak = store_all_peak(graph)
    problem = Problem(graph=graph, budget=data.draw(st.integers(peak // 2, peak * 4 // 5)))
    search = Search(problem, Clock(), 0, "laws")
    precedence = Precedence(search.flat)
    at = data.draw(st.sampled_from(np.flatnonzero(search.flat.required).tolist()))
    formulation = ordered_formulation(search.flat, precedence.dependencies, (at,), problem.budget, coarse=[])
    whole = solve_mixed(formulation.linear, gap=0)
    assume(whole.finished and whole.point is not None)
    best = round(float(formulation.linear.cost @ np.round(whole.point)))
    for column in np.flatnonzero(formulation.linear.integral).tolist():
        no, yes = (fixings(formulation, [decision]) for decision in decided(formulation, column))
        side = yes if whole.point[column] > 0.5 else no
        answer = solve_relaxed(formulation.linear, fixed=side)
        assert not answer.infeasible and answer.bound <= best


@given(data=st.data(), graph=training_graphs(max_forward=5))
def test_no_valid_schedule_fits_below_the_floor(data, graph):
    schedule = data.draw(valid_schedules(graph))
    assert validate(graph, schedule).peak >= max(proved_floor(graph), cut_floor(graph, 0))


@given(graph=legal_graphs(layers=False, options=False))
def test_nothing_is_feasible_below_the_floor_by_cuts(graph):
    if (floor := cut_floor(graph, 0)) > 0:
        assert Exhaustive().solve(Problem(graph=graph, budget=floor - 1)).lower == IMPOSSIBLE


@given(seed=st.integers(0, 10**9), forward=st.integers(3, 4), summed=st.booleans())
def test_nothing_is_feasible_below_the_floor_of_graphs_whose_gradients_meet(seed, forward, summed):
    graph = tiny_graph(Random(seed), forward, summed)
    assert Exhaustive().solve(Problem(graph=graph, budget=proved_floor(graph) - 1)).lower == IMPOSSIBLE


@given(problem=SMALL)
def test_the_multi_instant_bound_stays_beside_and_bounds_the_captured_order(problem):
    outcome = MultiInstant(rounds=3).solve(problem)
    exact = Exhaustive().solve(problem)
    assert outcome.lower <= exact.upper
    for one in outcome.class_bounds:
        assert "captured order" in one.assumes
        if exact.cost is not None and _keeps_the_order(problem, exact.schedule):
            assert one.value <= exact.upper


def _keeps_the_order(problem, schedule):
    firsts = list(dict.fromkeys(run.node for run in schedule.runs))
    return firsts == sorted(firsts, key=lambda name: problem.graph.node_index[name])


@given(graph=training_graphs(max_forward=3))
def test_the_lowest_budget_has_a_plan_and_nothing_proved_impossible_has_one(graph):
    lowest = lowest_budget(graph)
    assert lowest.point.outcome.cost.peak <= lowest.point.budget
    assert lowest.floor - 1 <= lowest.impossible < lowest.point.budget
    if lowest.impossible >= 0:
        assert Exhaustive().solve(Problem(graph=graph, budget=lowest.impossible)).lower == IMPOSSIBLE


class ByChance:
    """Grows a tree whose bounds are drawn."""

    def __init__(self, random):
        self.random = random

    def relaxed(self, chain, together, effort, leaf):
        return Answer(bound=self.random.randrange(1, 9), finished=True, effort=1)

    def ranked(self, leaf):
        return leaf.candidates


@given(data=st.data(), graph=training_graphs(max_forward=5), seed=st.integers(0, 10**9))
def test_every_schedule_belongs_to_exactly_one_order_of_a_tree(data, graph, seed):
    flat, random = flatten(graph), Random(seed)
    after = np.flatnonzero(flat.required).tolist()
    random.shuffle(after)
    root = (after[0],)
    tree = OrderTree(root, tuple(after), Precedence(flat), Limits(5, 60, 1e9), ByChance(random))
    for _ in range(6):
        leaf = tree.pop()
        split = tree.split(leaf) if random.random() < 0.5 else []
        kids = split or next(filter(None, (tree.inserted(leaf, at) for at in after)), None)
        for kid in kids or [leaf]:
            tree.push(kid)
        if kids is None:
            break
    assert len(graph.computes) < 3 or tree.chains != [root]
    runs = [graph.node_index[run.node] for run in data.draw(valid_schedules(graph)).runs]
    first = {v: runs.index(v) for v in set(runs)}
    assert sum(list(chain) == sorted(chain, key=first.__getitem__) for chain in tree.chains) == 1


@given(
    sizes=st.lists(st.integers(0, 30), min_size=1, max_size=7),
    room=st.integers(-5, 100),
)
def test_rounded_rows_hold_at_every_choice_that_fits(sizes, room):
    builder = Builder()
    builder.new(len(sizes), integral=True)
    add_rounded(builder, np.arange(len(sizes)), np.array(sizes), room)
    linear = builder.build()
    for point in product((0, 1), repeat=len(sizes)):
        if sum(x * size for x, size in zip(point, sizes, strict=True)) <= room:
            left = np.bincount(linear.row, linear.val * np.array(point)[linear.col], len(linear.rhs))
            assert (left <= linear.rhs).all()
