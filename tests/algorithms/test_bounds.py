"""Bounds: known values, exactness, what is proved impossible, and what is only shown beside."""

from random import Random

import numpy as np
import pytest
from attrs import evolve

from remat.algorithms._arrays.graph_arrays import flatten
from remat.algorithms._bounds import ordered_instants
from remat.algorithms._bounds.fixed_order import spans_of, staged_formulation
from remat.algorithms._bounds.floor import proved_floor
from remat.algorithms._bounds.instants import Dependencies
from remat.algorithms._bounds.ordered_instants import ordered_formulation
from remat.algorithms._bounds.rounded_rows import add_rounded
from remat.algorithms._core.clock import Clock
from remat.algorithms._core.outcome import IMPOSSIBLE, Status
from remat.algorithms._core.problem import Problem
from remat.algorithms._milp.answer import Answer
from remat.algorithms._milp.direct import solve_mixed, solve_relaxed
from remat.algorithms._milp.linear import Builder
from remat.algorithms._search import any_order, chain_bounds
from remat.algorithms._search.any_order import AnyOrder
from remat.algorithms._search.floor import Floor
from remat.algorithms._search.multi_instant import MultiInstant
from remat.algorithms._search.pipeline import Polish
from remat.algorithms._search.precedence import Precedence
from remat.algorithms._search.single_instant import SingleInstant
from remat.algorithms._search.state import Search
from remat.algorithms._whole.baselines import store_all_peak
from remat.algorithms._whole.exhaustive import Exhaustive
from remat.ir import GraphBuilder, Kind
from tests.algorithms.test_runs_liveness import chain
from tests.benchmarks.tiny import tiny_graph


def knapsack(budget, costs=(5, 4, 3)):
    """Cover three needs by holding (4, 3, 2 bytes) or paying."""
    builder = Builder()
    for cost in costs:
        builder.new(1, cost=cost)
    builder.new(3, integral=True)
    builder.row([(3, 4), (4, 3), (5, 2)], budget)
    for k in range(3):
        builder.row([(k, -1), (3 + k, -1)], -1)
    return builder.build()


def test_a_relaxed_bound_is_exact_in_integers():
    # hold the densest first: 3/2, 4/3, 5/4; with 5 bytes all but the last need: 5 to pay
    answer = solve_relaxed(knapsack(5))
    assert answer.finished
    assert answer.bound == 5
    assert solve_relaxed(knapsack(6)).bound == 4  # 5 * (1 - 1/4), rounded up


def test_a_mixed_bound_is_at_most_the_optimum():
    answer = solve_mixed(knapsack(6))
    assert answer.point is not None
    assert answer.bound <= 4 == round(float(np.dot(answer.point, knapsack(6).cost)))


def test_infeasible_rows_are_proved_not_believed():
    builder = Builder()
    builder.new(2, cost=1, integral=True)
    builder.row([(0, 2), (1, 3)], 4)
    builder.row([(0, -1)], -1)
    builder.row([(1, -1)], -1)
    linear = builder.build()
    assert solve_relaxed(linear).infeasible
    assert solve_mixed(linear).infeasible


def test_a_formulation_without_variables():
    builder = Builder()
    builder.row([], -1)
    assert solve_relaxed(builder.build()).infeasible
    answer = solve_mixed(Builder().build())
    assert (answer.bound, answer.infeasible, answer.finished) == (0, False, True)


def test_a_right_hand_side_beyond_64_bits_binds_nothing():
    builder = Builder()
    builder.new(2, cost=1)
    builder.row([(0, -1), (1, -1)], -1)
    builder.row([(0, 3), (1, 3)], 1 << 80)
    assert solve_relaxed(builder.build()).bound == 1


def test_a_row_over_a_column_that_is_not_there_is_no_formulation():
    for column in (-1, 2):
        builder = Builder()
        builder.new(2, cost=1)
        builder.row([(column, 1)], 1)
        with pytest.raises(IndexError, match="of 2 columns"):
            builder.build()


def test_equations_bound_too():
    builder = Builder()
    builder.new(1, cost=7)
    builder.new(1, cost=4, integral=True)
    builder.row([(0, 2), (1, 2)], 3, equal=True)
    linear = builder.build()  # all of the cheaper, half of the other: 4 + 3.5, rounded up
    assert solve_relaxed(linear).bound == solve_mixed(linear).bound == 8


def test_the_floor_is_the_largest_working_set_with_what_must_be_kept():
    graph = chain(8)
    assert proved_floor(graph) == 13  # a backward: tangent 1, incoming gradient, saved datum, outgoing gradient
    outcome = Floor().solve(Problem(graph=graph, budget=12))
    assert outcome.status is Status.INFEASIBLE
    assert Floor().solve(Problem(graph=graph, budget=13)).lower < IMPOSSIBLE


def branches(heavy):
    """Two gradients that meet: each made by a run that works in `heavy` bytes, and 4 bytes large."""
    b = GraphBuilder("branches")
    b.data("x", 0, Kind.INPUT)
    for name in ("a", "g1", "g2"):
        b.data(name, 4)
    b.data("t", 1, Kind.TANGENT)
    b.data("w", 1, Kind.PARAM_GRAD)
    b.forward("F", reads=["x"], writes=["a"], time=1)
    b.loss("L", reads=["a"], writes=["t"], time=1)
    b.backward("B1", reads=["t"], writes=["g1"], time=1, workspace=heavy)
    b.backward("B2", reads=["t"], writes=["g2"], time=1, workspace=heavy)
    b.backward("A", reads=["g1", "g2"], writes=["w"], time=1)
    return b.build()


def test_the_floor_counts_what_must_be_resident_together_while_the_last_of_it_is_made():
    graph = branches(6)  # the second gradient is made beside the first: tangent 1, 4 resident, 4 made, 6 of workspace
    assert proved_floor(graph) == 15
    assert Exhaustive().solve(Problem(graph=graph, budget=14)).status is Status.INFEASIBLE
    assert Exhaustive().solve(Problem(graph=graph, budget=15)).cost is not None


def sideways():
    """A large gradient S of a side branch is captured before a run C that works in much: the other order needs no rerun."""
    b = GraphBuilder("sideways")
    b.data("x", 0, Kind.INPUT)
    b.data("a", 1)
    b.data("t", 1, Kind.TANGENT)
    b.data("s", 10)
    b.data("c", 1)
    b.data("w", 1, Kind.PARAM_GRAD)
    b.forward("F", reads=["x"], writes=["a"], time=1)
    b.loss("L", reads=["a"], writes=["t"], time=1)
    b.backward("S", reads=["t"], writes=["s"], time=5)
    b.backward("C", reads=["t"], writes=["c"], time=1, workspace=12)
    b.backward("J", reads=["s", "c"], writes=["w"], time=1)
    return b.build()


def test_the_single_instant_bound_counts_what_cannot_be_held():
    graph = chain(8)  # at the loss a0 to a7 and the tangent: 33 bytes; each missing datum costs 2 to make again
    bound = SingleInstant().solve(Problem(graph=graph, budget=21)).lower
    assert bound == graph.time + 3 * 2
    assert SingleInstant().solve(Problem(graph=graph, budget=33)).lower == graph.time


def test_bounds_that_assume_an_order_stay_beside():
    alone = MultiInstant(rounds=4).solve(Problem(graph=chain(8), budget=17))
    assert alone.lower == chain(8).time
    assert [one.assumes for one in alone.class_bounds] == ["first runs in the captured order"]
    outcome = Polish((SingleInstant(), MultiInstant(rounds=4))).solve(Problem(graph=chain(8), budget=17))
    assert outcome.class_bounds[0].value >= outcome.lower > chain(8).time


def test_instants_that_do_not_need_each_other_are_asked_in_every_order():
    search = Search(Problem(graph=branches(6), budget=20), Clock(), 0, "test")
    precedence = Precedence(search.flat)
    loss, first, second, both = (search.problem.graph.node_index[name] for name in ("L", "B1", "B2", "A"))
    assert precedence.orders(frozenset((both, first, loss)), 9) == [(loss, first, both)]
    assert precedence.orders(frozenset((first, second)), 9) == [(first, second), (second, first)]
    assert precedence.orders(frozenset((first, second)), 1) is None  # a bound over some of them would be none
    assert precedence.insertions((loss, both), first) == [(loss, first, both)]
    assert precedence.insertions((first, both), second) == [(second, first, both), (first, second, both)]
    assert precedence.insertions((), loss) == [(loss,)]


def test_a_rounded_row_says_how_many_equal_data_fit():
    builder = Builder()
    builder.new(5, integral=True)
    add_rounded(builder, np.arange(5), np.array([7, 7, 7, 7, 2]), 17)
    linear = builder.build()
    row = {col: val for r, col, val in zip(linear.row, linear.col, linear.val, strict=True) if r == 0}
    assert [row[col] / linear.rhs[0] for col in range(4)] == [1 / 2] * 4  # two of seven bytes, in no share a third


def test_several_instants_pay_twice_for_what_must_be_made_twice():
    problem = Problem(graph=chain(8), budget=15)
    one, several = SingleInstant().solve(problem), AnyOrder().solve(problem)
    assert (one.lower, several.lower, several.upper) == (51, 71, 71)
    assert AnyOrder(largest=1).solve(problem).lower == chain(8).time  # no formulation is small enough


def test_formulations_that_are_too_large_are_built_a_few_times_only(monkeypatch):
    problem = Problem(graph=chain(60), budget=24)
    sizes = []

    def counted(*args, **settings):
        formulation = ordered_formulation(*args, **settings)
        sizes.append(formulation.variables)
        return formulation

    monkeypatch.setattr(chain_bounds, "ordered_formulation", counted)
    AnyOrder().solve(problem)
    largest = max(sizes) // 2
    sizes.clear()
    AnyOrder(largest=largest, patience=30).solve(problem)
    assert 0 < sum(size > largest for size in sizes) < 30


def test_a_large_formulation_is_left_after_so_many_checks_with_the_bound_so_far():
    search = Search(Problem(graph=chain(40), budget=24), Clock(), 0, "test")
    instants = tuple(search.base[-30::6].tolist())
    linear = ordered_formulation(search.flat, Dependencies(search.flat), instants, search.budget).linear
    whole, few = solve_mixed(linear), solve_mixed(linear, checks=5)
    assert whole.finished and not few.finished
    assert 0 < few.bound < whole.bound
    assert few.bound == solve_mixed(linear, checks=5).bound  # checks are counted, not seconds
    assert solve_mixed(linear, checks=10_000).bound == whole.bound


def test_a_solution_may_leave_the_captured_order():
    problem = Problem(graph=sideways(), budget=22)
    captured = MultiInstant().solve(problem)
    assert captured.class_bounds[0].value == problem.graph.time + 5
    found = AnyOrder().solve(problem)
    assert found.upper == found.lower == problem.graph.time
    assert [run.node for run in found.schedule.runs] == ["F", "L", "C", "S", "J"]


def test_a_tree_of_orders_is_grown_once_by_equal_passes_and_again_by_others(monkeypatch):
    grown = []
    monkeypatch.setattr(any_order.Growth, "run", lambda self: grown.append(self.settings))
    search = Search(Problem(graph=chain(8), budget=14), Clock(), 0, "test")
    for settings in (AnyOrder(), AnyOrder(), AnyOrder(rounds=3)):
        settings.improve(search)
    assert grown == [AnyOrder(), AnyOrder(rounds=3)]


def test_an_instant_that_bounds_something_may_turn_out_impossible(monkeypatch):
    """Rounded rows may show what its plain relaxation did not."""
    problem = Problem(graph=chain(8), budget=13)
    search = Search(problem, Clock(), 0, "test")
    SingleInstant(mixed=1).improve(search)
    assert search.lower < IMPOSSIBLE
    monkeypatch.setattr(chain_bounds, "solve_relaxed", lambda *_, **__: Answer(infeasible=True, finished=True))
    AnyOrder().improve(search)
    assert search.lower == IMPOSSIBLE
    assert "no order has a schedule" in " ".join(search.trail)


def test_a_link_leaves_no_bound_but_the_time_of_the_nodes():
    from remat.ir import Link

    problem = Problem(graph=chain(8), budget=12, link=Link(to_host=10**9, to_device=10**9))
    search = Search(problem, Clock(), 0, "test")
    Floor().improve(search)
    SingleInstant().improve(search)
    assert search.lower == chain(8).time


@pytest.mark.parametrize("order", ["captured", "any"])
def test_another_instant_lowers_the_relaxed_bound_of_plain_rows_and_never_that_of_coarse_ones(order):
    rng, falls = Random(3), 0
    for _ in range(14):
        graph = tiny_graph(rng, 5, False)
        flat, budget = flatten(graph), int(0.7 * store_all_peak(graph))
        at = sorted(graph.required)
        plain, coarse = ([relaxed(flat, at[: n + 1], budget, order, c) for n in range(len(at))] for c in (False, True))
        assert coarse == sorted(coarse)
        assert all(c >= p for p, c in zip(plain, coarse, strict=True))
        falls += plain != sorted(plain)
    assert falls


def test_an_instant_lowers_no_relaxed_bound_where_the_stage_that_it_divides_keeps_its_rows():
    rng, falls = Random(3), 0
    for _ in range(14):
        graph = tiny_graph(rng, 5, False)
        flat, budget = flatten(graph), int(0.7 * store_all_peak(graph))
        at = list(graph.required)
        rng.shuffle(at)
        together, kept, plain = set(), [], []
        for n in range(1, len(at) + 1):
            chain = tuple(sorted(at[:n]))
            ends = (*chain, None)
            i = ends.index(at[n - 1])
            together |= {(ends[i - 1], ends[i + 1])} if i else set()
            for bounds, stages in ((kept, together), (plain, set())):
                coarse = numbered(chain, stages)
                bounds.append(
                    relaxed_bound(ordered_formulation(flat, Dependencies(flat), chain, budget, coarse=coarse))
                )
        assert kept == sorted(kept)
        falls += plain != sorted(plain)
    assert falls


def numbered(chain, together):
    number = {at: k for k, at in enumerate((*chain, None))}
    return [(number[begin], number[end]) for begin, end in together]


def relaxed(flat, instants, budget, order, coarse):
    """The relaxed bound of the recomputation at some instants."""
    if order == "captured":
        formulation = staged_formulation(flat, tuple(instants), budget, coarse=coarse)
    else:
        spans = spans_of(len(instants), 2) if coarse else None
        formulation = ordered_formulation(flat, Dependencies(flat), tuple(instants), budget, coarse=spans)
    return relaxed_bound(formulation)


def relaxed_bound(formulation):
    answer = None if formulation.impossible else solve_relaxed(formulation.linear)
    return IMPOSSIBLE if answer is None or answer.infeasible else answer.bound


def test_the_smallest_data_are_resident_for_nothing(monkeypatch):
    """A bound without them holds, and is next to that with them."""
    rng, fewer = Random(5), 0
    for _ in range(12):
        graph = tiny_graph(rng, 5, False)
        tiny = {datum.name for datum in graph.data if rng.random() < 0.5}
        sized = [evolve(datum, size=1 if datum.name in tiny else 10**6 * datum.size) for datum in graph.data]
        graph = evolve(graph, data=tuple(sized))
        flat, budget = flatten(graph), int(0.7 * store_all_peak(graph))
        small = ordered_instants.smallest_data(flat)
        assert flat.size[small].sum() <= 1e-4 * flat.size.sum()
        instants = (sorted(graph.required)[-1],)
        without = ordered_formulation(flat, Dependencies(flat), instants, budget)
        with monkeypatch.context() as patch:
            patch.setattr(ordered_instants, "_SMALL", -1.0)
            whole = ordered_formulation(flat, Dependencies(flat), instants, budget)
        assert (without.resident[:, small] < 0).all()
        fewer += without.linear.shape[1] < whole.linear.shape[1]
        assert relaxed_bound(without) <= relaxed_bound(whole)
        best = Exhaustive().solve(Problem(graph=graph, budget=budget))
        assert best.schedule is None or graph.time + relaxed_bound(without) <= best.cost.time
    assert fewer
