"""Decisions at instants: fixed columns, both values tried, and what a tree of them proves."""

from itertools import product
from random import Random

import numpy as np
import pytest
from attrs import evolve
from scipy.optimize import linprog

from remat.algorithms._bounds.decisions import RAN, RESIDENT, Decision, decided, fixings, undecided
from remat.algorithms._bounds.instants import Dependencies
from remat.algorithms._bounds.ordered_instants import ordered_formulation
from remat.algorithms._core.clock import Clock
from remat.algorithms._core.problem import Problem
from remat.algorithms._milp.basis import DualBasis
from remat.algorithms._milp.direct import solve_relaxed
from remat.algorithms._milp.linear import Fixings
from remat.algorithms._milp.probing import Optimum, Probing
from remat.algorithms._milp.pseudocosts import Pseudocosts
from remat.algorithms._search import any_order, instant_choice
from remat.algorithms._search.any_order import AnyOrder
from remat.algorithms._search.branch_and_bound import BranchAndBound
from remat.algorithms._search.passes import MultiStart
from remat.algorithms._search.pipeline import Polish
from remat.algorithms._search.single_instant import SingleInstant
from remat.algorithms._search.state import Search
from remat.algorithms._search.stop import gap
from remat.algorithms._whole.baselines import store_all_peak
from tests.algorithms.test_bounds import branches, knapsack
from tests.algorithms.test_runs_liveness import chain
from tests.benchmarks.tiny import tiny_graph

NONE = Fixings(np.empty(0, np.int64), np.empty(0, np.int64))


def _grown(share=0.6):
    graph = tiny_graph(Random(6), 12, False)
    search = Search(Problem(graph=graph, budget=int(store_all_peak(graph) * share)), Clock(), 0, "test")
    return any_order.grown(search, AnyOrder(), AnyOrder())


def covering(held):
    return knapsack(held, (50, 40, 30))


def fixed(**values):
    return Fixings(np.array([int(name[1:]) for name in values]), np.array(list(values.values())))


def relaxed(linear, given=NONE):
    basis = DualBasis()
    return solve_relaxed(linear, start=basis, fixed=given), basis


@pytest.mark.parametrize("values", list(product((0, 1), repeat=3)))
def test_what_is_given_is_paid_or_held(values):
    linear, given = covering(6), fixed(x3=values[0], x4=values[1], x5=values[2])
    cost = sum(pay for pay, held in zip((50, 40, 30), values, strict=True) if not held)
    fits = sum(size for size, held in zip((4, 3, 2), values, strict=True) if held) <= 6
    answer = solve_relaxed(linear, fixed=given)
    assert answer.infeasible is not fits
    assert answer.bound == (cost if fits else 0)


def test_both_values_of_a_column_bound_what_has_them():
    linear = covering(6)
    answer, basis = relaxed(linear)
    assert answer.bound == 38  # 4 and 2 bytes pay 40 if whole; by the byte, the densest first: 30 + 50 / 4
    probing = Probing(linear=linear, fixed=NONE, target=1e9, effort=1e9)
    branch, gains, effort = probing.branched(Optimum(answer.bound, basis.ended, answer.iterations), np.array([3, 4, 5]))
    assert effort > 0 and linear.integral[branch.column]
    low, high = (kid.bound - answer.bound for kid in branch.answers)
    assert gains[branch.column] == pytest.approx((low, high), abs=1)
    for value, kid in enumerate(branch.answers):
        alone = solve_relaxed(linear, fixed=Fixings(np.array([branch.column]), np.array([value])))
        assert kid.infeasible == alone.infeasible and abs(kid.bound - alone.bound) <= 1
    assert min(kid.bound for kid in branch.answers) > answer.bound


def test_what_raises_nothing_is_no_branch():
    linear = covering(9)  # all fit
    answer, basis = relaxed(linear)
    probing = Probing(linear=linear, fixed=NONE, target=answer.bound, effort=1e9)
    assert answer.bound == 0
    assert probing.branched(Optimum(0, basis.ended, answer.iterations), np.array([3, 4, 5])).branch is None
    assert Probing(linear=linear, fixed=NONE, target=1e9, effort=-1).branched(
        Optimum(0, basis.ended, answer.iterations), np.array([3, 4, 5])
    ) == (None, {}, 10 * len(linear.rhs) * 2)


def test_what_promises_little_is_not_tried():
    """Of the columns of which something is expected only the best, and none where one without brought more."""
    linear = covering(6)
    answer, basis = relaxed(linear)
    optimum, columns = Optimum(answer.bound, basis.ended, answer.iterations), np.array([3, 4, 5])
    best = Probing(linear=linear, fixed=NONE, target=1e9, effort=1e9).branched(optimum, columns)
    expected = {column: (0.0, 0.0) for column in (3, 4, 5) if column != best.branch.column}
    few = Probing(linear=linear, fixed=NONE, target=1e9, effort=1e9, expected=expected).branched(optimum, columns)
    assert set(few.gains) == {best.branch.column} and few.branch == best.branch
    assert few.effort < best.effort
    expected = {3: (0.0, 0.0), 4: (1e9, 1e9), 5: (0.0, 0.0)}
    hoped = Probing(linear=linear, fixed=NONE, target=1e9, effort=1e9, expected=expected).branched(optimum, columns)
    assert next(iter(hoped.gains)) == 4


def test_pseudocosts_are_means_of_gains_per_unit():
    pseudocosts, names = Pseudocosts(), {0: "a", 1: "b"}
    assert pseudocosts.expected(names, np.array([0.5, 0.5])) == {}
    pseudocosts.note(names, np.array([0.5, 0.5]), {0: (10.0, 0.0)})
    pseudocosts.note({7: "a"}, np.full(8, 0.2), {7: (2.0, 8.0)})  # 20 and 10 per unit below; 0 and 10 above
    assert pseudocosts.expected(names, np.array([0.4, 0.4])) == {0: pytest.approx((15 * 0.4, 5 * 0.6))}


def test_a_tree_over_decisions_ends_at_the_optimum_with_integers():
    """Best bound first: no leaf is left out, and the least bound never falls."""
    linear, leaves, least = covering(6), [NONE], 0
    while True:
        answers = [relaxed(linear, given) for given in leaves]
        bounds = [10**9 if answer.infeasible else answer.bound for answer, _ in answers]
        assert min(bounds) >= least
        least = min(bounds)
        at = bounds.index(least)
        answer, basis = answers[at]
        given = leaves.pop(at)
        columns = np.flatnonzero(linear.integral & (np.minimum(answer.point, 1 - answer.point) > 1e-6))
        if not len(columns):
            break
        probing = Probing(linear=linear, fixed=given, target=1e9, effort=1e9)
        branch = probing.branched(Optimum(answer.bound, basis.ended, answer.iterations), columns).branch
        leaves += [Fixings(np.append(given.columns, branch.column), np.append(given.values, value)) for value in (0, 1)]
    assert least == 40


def formulation():
    search = Search(Problem(graph=branches(6), budget=20), Clock(), 0, "test")
    node = search.problem.graph.node_index
    return search, ordered_formulation(search.flat, Dependencies(search.flat), (node["L"], node["B1"]), 20)


def test_each_undecided_column_has_a_decision_and_its_opposite():
    search, chained = formulation()
    columns = undecided(chained, search.flat, np.full(chained.linear.shape[1], 0.5), 10**6)
    assert len(columns) == chained.linear.integral.sum()
    kinds = set()
    for column in columns.tolist():
        no, yes = decided(chained, column)
        assert (no.value, yes.value) == (0, 1) and no[:3] == yes[:3]
        kinds.add(no.kind)
        assert [part.tolist() for part in fixings(chained, [yes])] == [[column], [1]]
    assert kinds == {RESIDENT, RAN}
    assert len(undecided(chained, search.flat, np.ones(chained.linear.shape[1]), 9)) == 0
    with pytest.raises(LookupError, match="decides nothing"):
        decided(chained, chained.linear.shape[1])


def test_what_a_formulation_knows_needs_no_column():
    search, chained = formulation()
    node = search.problem.graph.node_index
    assert len(fixings(chained, [Decision(RAN, node["L"], node["B1"], 0)]).columns) == 0


def test_decisions_raise_a_bound_that_instants_do_not(monkeypatch):
    graph = tiny_graph(Random(6), 12, False)
    problem = Problem(graph=graph, budget=int(store_all_peak(graph) * 0.6))
    few = Polish((MultiStart(), AnyOrder(rounds=2, effort=5e6)), stop=gap(0))
    both = Polish((*few.moves, BranchAndBound(effort=2e7)), stop=gap(0))
    lower = few.solve(problem).lower
    assert both.solve(problem).lower >= lower
    monkeypatch.setattr(any_order.Growth, "branched", lambda *_: ([], 0))
    assert few.solve(problem).lower < lower
    assert both.solve(problem).lower < lower


def test_it_begins_a_tree_where_there_is_none():
    problem = Problem(graph=chain(8), budget=15)
    outcome = BranchAndBound().solve(problem)
    assert SingleInstant(mixed=0).solve(problem).lower < outcome.lower <= outcome.upper == 71


def test_instants_are_looked_for_after_it_too(monkeypatch):
    grown = []
    monkeypatch.setattr(any_order.Growth, "run", lambda self: grown.append(self))
    monkeypatch.setattr(any_order.Growth, "branch", lambda *_: None)
    search = Search(Problem(graph=chain(8), budget=14), Clock(), 0, "test")
    for move in (BranchAndBound(), AnyOrder()):
        move.improve(search)
    assert len(grown) == 1


def test_on_small_graphs_steps_are_limited(monkeypatch):
    """They take no effort to speak of, and there may be hundreds of thousands of leaves."""
    steps = []
    step = any_order.Growth._step
    monkeypatch.setattr(any_order.Growth, "_step", lambda *args: steps.append(1) or step(*args))
    BranchAndBound(effort=1e6).solve(Problem(graph=chain(20), budget=18))
    assert 2 < len(steps) <= 11


def test_a_relaxation_that_was_cut_off_is_solved_to_its_end():
    growth = _grown()
    leaf = growth.tree.pop()
    assert growth._completed(leaf) is None
    (again,) = growth._completed(evolve(leaf, basis=None, finished=False, point=None, relaxed=0, bound=0))
    assert (again.relaxed, again.bound) == (leaf.relaxed, leaf.relaxed) and again.basis.ended is not None
    assert [kid.decisions for kid in growth.tree.branched(again)] == [
        kid.decisions for kid in growth.tree.branched(leaf)
    ]


def test_no_instant_is_inserted_whose_relaxation_was_cut_off(monkeypatch):
    """Nothing could follow on such a leaf: it has no solution to divide, and may be the least for good."""
    tree = _grown().tree
    leaf = tree.pop()
    at = next(at for at in leaf.candidates if tree.inserted(leaf, at))
    tree._answers.clear()
    relaxed = any_order.Growth.relaxed
    monkeypatch.setattr(any_order.Growth, "relaxed", lambda *args: evolve(relaxed(*args), finished=False))
    assert tree.inserted(leaf, at) == []


def test_an_instant_inserted_in_vain_is_taken_back(monkeypatch):
    """Formulations without it are smaller; none is taken back where the bound rose after it."""
    growth = _grown()
    root, longest = growth.tree.chains, []
    prove = any_order.Growth._prove
    monkeypatch.setattr(any_order.Growth, "_prove", lambda self: longest.append(max(map(len, self.tree.chains))))
    monkeypatch.setattr(any_order.Growth, "branch", lambda *_: None)
    monkeypatch.setattr(growth.tree, "split", lambda _: [])
    growth.run()
    assert growth.vain == 1 and max(longest) == 2 and growth.tree.chains == root
    monkeypatch.setattr(any_order.Growth, "_prove", prove)
    again = any_order.grown(growth.search, AnyOrder(), AnyOrder(rounds=3))
    again.run()
    assert again.tree.chains != root


@pytest.mark.parametrize("ended", [True, False])
def test_where_integers_close_the_gap_instants_of_integral_solutions_follow(monkeypatch, ended):
    """By turns with solves; decisions come in between where a solve did not end. What nothing rises after is taken back."""
    growth, rises, inserted, branched = _grown(), iter((1, 1, 0)), [], []

    def insert(leaf, at):
        inserted.append(at)
        return [evolve(leaf, chain=(*leaf.chain, at), worst=None, ended=False, checked=0)]

    def solve(self, leaf, most):
        if leaf.checked:
            return None
        worst = leaf.candidates[-len(leaf.chain)]
        return [evolve(leaf, checked=most, ended=ended, worst=worst, bound=leaf.bound + next(rises))]

    monkeypatch.setattr(any_order.Growth, "_with_integers", solve)
    monkeypatch.setattr(any_order.Growth, "branch", lambda *_: branched.append(1))
    monkeypatch.setattr(growth.tree, "inserted", insert)
    (leaf,) = growth.tree.leaves
    growth._alternate()
    assert inserted == [*leaf.candidates[-1:-3:-1]] and len(branched) == (0 if ended else 3)
    assert growth.tree.chains == [(*leaf.chain, leaf.candidates[-1])] and growth.tree.bound == leaf.bound + 2


def test_integers_are_asked_once_for_each_leaf_and_further_where_that_is_worth_while():
    growth = _grown()
    leaf = evolve(growth.tree.pop(), iterations=0)
    (brief,) = growth._solved(leaf)
    assert brief.checked and brief.bound >= leaf.bound and growth._solved(brief) is None
    (further,) = growth._solved_further(evolve(brief, ended=False, checked=5))
    assert further.ended and further.bound >= brief.bound and growth._solved_further(further) is None
    assert growth._solved_further(evolve(brief, ended=False, each=growth.tree.left)) is None


def test_little_rises_are_left_out_where_integers_close_the_gap(monkeypatch):
    """There relaxed bounds say little, and formulations without such an instant are smaller."""
    growth, solves = _grown(), []
    monkeypatch.setattr(any_order.Growth, "branch", lambda *_: None)
    monkeypatch.setattr(any_order.Growth, "_alternate", lambda _: None)
    firm = growth.tree.leaves
    for integral in (True, False):
        longer = growth.tree.inserted(firm[0], firm[0].candidates[1])
        growth.tree.restore(longer)
        monkeypatch.setattr(any_order.Growth, "_insert", lambda _: firm)
        monkeypatch.setattr(any_order.Growth, "_solve", lambda _, integral=integral: solves.append(1) or integral)
        growth.run()
        assert growth.tree.leaves == (firm if integral else longer)
    assert len(solves) == 3


def test_a_plan_drawn_from_a_relaxed_solution_counts_if_it_is_faster(monkeypatch):
    settled = []
    monkeypatch.setattr(any_order.SolutionPlans, "_settle", lambda *_: settled.append(1))
    growth = _grown(0.7)  # draws from the first relaxation
    plans, search = growth.plans, growth.search
    worked, time = plans.drawn, search.best_time
    assert worked > 0 and time == 232 and settled == [1]
    plans.draw(search.base, 1)
    assert plans.drawn > worked and search.best_time == time and settled == [1]


def test_draws_end_where_they_take_much_beside_the_solves(monkeypatch):
    growth, drawn = _grown(), []
    monkeypatch.setattr(type(growth.plans), "draw", lambda *args: drawn.append(args))
    leaf = growth.tree.leaves[0]
    answers = [growth.relaxed(leaf.chain, leaf.together, 1e6, None)] * 2
    assert len(drawn) == 1
    growth.plans.drawn = growth.settings.effort
    growth._draw(growth.bounds.of(leaf), answers)
    assert len(drawn) == 1
    growth.plans.drawn = 0
    growth._draw(growth.bounds.of(leaf), answers)
    assert len(drawn) == 3


@pytest.mark.parametrize("excess", [1, 7, 20, 10**6])
def test_what_must_run_again_is_a_knapsack_of_shares(excess):
    flat = Search(Problem(graph=tiny_graph(Random(6), 12, False), budget=10**6), Clock(), 0, "test").flat
    resident = flat.producer >= 0
    sizes = np.bincount(flat.producer[resident], flat.size[resident], minlength=flat.time.size) * flat.replay
    least = linprog(flat.time, A_ub=[-sizes], b_ub=[-excess], bounds=(0, 1))
    assert instant_choice._freed(flat, resident, excess) == (pytest.approx(least.fun) if least.success else np.inf)
