"""Revolve, Periodic, Quantise and UnitCost on chains."""

import functools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remat.algorithms._chain.periodic import Periodic, balanced_starts, segmented
from remat.algorithms._chain.quantise import Quantise, UnitCost, unit_budget, unit_chain, work
from remat.algorithms._chain.revolve import Revolve, extra_runs
from remat.algorithms._chain.rotor import RkRotor, Rotor, keep_all, rotor_values
from remat.algorithms._core.problem import Problem
from remat.ir import Kind, LayerOption, Option, validate
from remat.ir.chain import Block, Chain, chain_graph
from tests.algorithms.chain.chains import chains


@functools.cache
def recurrence(n: int, c: int) -> int:
    """Griewank's recurrence for the runs that are not taped, with no closed form."""
    if n == 1:
        return 0
    if c == 1:
        return n * (n - 1) // 2
    return min(k + recurrence(k, c) + recurrence(n - k, c - 1) for k in range(1, n))


def plain(length: int) -> Chain:
    block = Block(
        output=1, gradient=0, options=(LayerOption(forward=1, backward=1, phantom=1),), no_save=Option(time=1)
    )
    return Chain(unit_chain(Chain(chain_graph([block] * length, loss=Option(time=1), loss_gradient=0)).stages, "L"))


def test_the_closed_form_is_the_recurrence():
    assert all(extra_runs(n, c) == recurrence(n, c) for n in range(1, 61) for c in range(1, n + 2))


@pytest.mark.parametrize("n", [1, 2, 3, 5, 8, 13, 34, 89, 144, 200])
def test_revolve_runs_as_often_as_its_closed_form(n):
    chain = plain(n)
    for c in sorted({1, 2, 3, 5, 8, n // 2 or 1, n}):
        found = Revolve().solve(Problem(graph=chain.graph, budget=unit_budget(n, c)))
        assert found.cost.recomputation == extra_runs(n, min(c, n))


@pytest.mark.parametrize("n", range(1, 13))
def test_rotor_with_unit_costs_is_revolve(n):
    chain = plain(n)
    for c in range(1, n + 1):
        problem = Problem(graph=chain.graph, budget=unit_budget(n, c))
        assert Rotor().solve(problem).upper == Revolve().solve(problem).upper == 2 * n + 1 + recurrence(n, c)


def test_ten_thousand_stages_are_planned():
    chain = plain(10_000)
    problem = Problem(graph=chain.graph, budget=unit_budget(10_000, 20))
    assert Revolve().solve(problem).cost.recomputation == extra_runs(10_000, 20)
    assert Periodic().solve(Problem(graph=chain.graph, budget=10**9)).cost.recomputation == 9_900


@given(chains(max_stages=6), st.integers(0, 60))
def test_unit_cost_and_revolve_plan_within_the_true_budget(chain, budget):
    found = (UnitCost() >> Revolve()).solve(Problem(graph=chain.graph, budget=budget))
    room = budget - work(chain)
    if room < 0:
        assert found.schedule is None
    elif room >= len(chain) * max(stage.output_size for stage in chain.stages):
        assert found.schedule is not None
    if found.cost:
        assert found.cost.peak <= budget
        assert rotor_values(chain, budget, keep_all(chain)).value(budget) <= found.upper


@given(chains(max_stages=6, options=2, size=1000), st.integers(0, 12000), st.integers(3, 60))
def test_quantised_plans_fit_and_lose_only_time(chain, budget, slots):
    problem = Problem(graph=chain.graph, budget=budget)
    exact = RkRotor().solve(problem)
    found = (Quantise(slots) >> RkRotor()).solve(problem)
    assert not any("over the budget" in line for line in found.trail)
    assert found.lower == 0 and found.class_bounds == ()
    assert exact.upper <= found.upper


@given(chains(max_stages=5, options=2, size=1000))
def test_with_a_slot_per_byte_nothing_is_lost(chain):
    budget = sum(stage.saves(0) for stage in chain.stages) + 1500
    problem = Problem(graph=chain.graph, budget=budget)
    assert (Quantise(budget + 1) >> RkRotor()).solve(problem).upper == RkRotor().solve(problem).upper


def test_small_gradients_do_not_take_a_slot_each():
    block = Block(output=10, gradient=0, options=(LayerOption(forward=1, backward=1, phantom=0),), param_grad=1)
    graph = chain_graph([block] * 100, loss=Option(time=1), loss_gradient=0)
    applied = Quantise(100).apply(Problem(graph=graph, budget=1000))
    grads = [datum.size for datum in applied.problem.graph.data if datum.kind is Kind.PARAM_GRAD]
    assert sum(grads) == 100 and max(grads) == 10


@given(chains(max_stages=6), st.integers(1, 7))
def test_periodic_replays_every_segment_but_the_last_once(chain, every):
    cost = validate(chain.graph, Periodic(every).solve(Problem(graph=chain.graph, budget=10**6)).schedule)
    held = (len(chain) - 1) // every * every
    assert cost.reruns == held
    assert cost.peak >= rotor_values(chain, 10**6, keep_all(chain)).floor


@given(chains(max_stages=6))
def test_balanced_segments_are_no_slower_where_both_fit(chain):
    whole = validate(chain.graph, segmented(chain, [0]))
    assert Periodic(balanced=True).solve(Problem(graph=chain.graph, budget=whole.peak)).upper <= whole.time


def test_a_segment_closes_before_its_bound():
    assert balanced_starts([3, 3, 3, 3, 3], 6) == [0, 2, 4]
    assert balanced_starts([9, 1, 1, 9], 6) == [0, 1, 3]


@pytest.mark.parametrize(
    "part", [Revolve(), Periodic(), Periodic(3, balanced=True), Quantise(), Quantise(7), UnitCost()]
)
def test_settings_rebuild_the_solver(part):
    assert eval(repr(part)) == part
