"""Offloading alone and the heuristics."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remat.algorithms._chain.offload import Autocapper, OffloadOnly, Opportunist, all_saved, capped, grouped
from remat.algorithms._chain.pofo import Pofo
from remat.algorithms._chain.rotor import Rotor
from remat.algorithms._chain.transfers import place, trace
from remat.algorithms._core.problem import Problem
from remat.ir import LayerOption, Link, Offload, Option, validate
from remat.ir.chain import Block, Chain, chain_graph
from tests.algorithms.chain.chains import chains
from tests.algorithms.chain.test_pofo import link_of, links

SOLVERS = [OffloadOnly(slots=None), Autocapper(), Opportunist(), Pofo(slots=None)]


def peak_of(chain):
    return max(trace(chain.graph, all_saved(chain)).charges)


@given(chains(max_stages=6, options=2), st.integers(0, 60), links)
def test_every_plan_replays_within_the_budget(chain, budget, link):
    for solver in SOLVERS:
        found = solver.solve(Problem(graph=chain.graph, budget=budget, link=link))
        assert not any("over the budget" in line for line in found.trail)
        if found.cost is not None:
            assert found.cost.peak <= budget and found.cost.time >= chain.time


@given(chains(max_stages=6, options=2), st.integers(0, 60), links, st.integers(0, 60))
def test_no_plan_holds_more_on_the_host_than_it_may(chain, budget, link, host):
    for solver in SOLVERS:
        outcome = solver.solve(Problem(graph=chain.graph, budget=budget, link=link, host_budget=host))
        assert not any("proposed a schedule with" in line for line in outcome.trail)
        assert outcome.cost is None or outcome.cost.host_peak <= host


@pytest.mark.parametrize("solver", [Pofo(slots=None), Autocapper()])
def test_a_small_host_makes_them_recompute_more_instead_of_finding_nothing(solver):
    chain = layers(10)
    problem = {"graph": chain.graph, "budget": peak_of(chain) // 2, "link": Link.symmetric(gb_per_s=1)}
    free = solver.solve(Problem(**problem))
    held = free.cost.host_peak
    times = [solver.solve(Problem(**problem, host_budget=limit)).upper for limit in (held, held // 2, 0)]
    assert times[0] == free.upper
    assert times[0] < times[2] < float("inf")
    assert times[0] <= times[1] <= times[2]


@pytest.mark.parametrize("solver", SOLVERS)
def test_a_host_with_more_room_than_a_bandwidth_can_say_is_a_limit_like_any_other(solver):
    graph = layers(4).graph
    problem = Problem(graph=graph, budget=peak_of(layers(4)) // 2, link=Link(), host_budget=2**60)
    free = Problem(graph=graph, budget=problem.budget, link=Link())
    assert solver.solve(problem).upper == solver.solve(free).upper


@given(chains(max_stages=6, options=2), links)
def test_with_enough_memory_nothing_is_copied(chain, link):
    for solver in SOLVERS:
        found = solver.solve(Problem(graph=chain.graph, budget=peak_of(chain) + 200, link=link))
        assert found.upper == chain.time
        assert not any(isinstance(step, Offload) for step in found.schedule.steps) or found.cost.idle == 0


@given(chains(max_stages=6, plain=True), st.integers(0, 60))
def test_offloading_alone_runs_everything_once(chain, budget):
    found = OffloadOnly().solve(Problem(graph=chain.graph, budget=budget, link=link_of(2, 3)))
    assert found.cost is None or found.cost.reruns == 0


@given(chains(max_stages=6, plain=True), st.integers(0, 60), links)
def test_autocapper_is_no_worse_than_rotor_where_slots_are_bytes(chain, budget, link):
    rotor = Rotor().solve(Problem(graph=chain.graph, budget=budget))
    found = Autocapper().solve(Problem(graph=chain.graph, budget=budget, link=link))
    assert found.upper <= rotor.upper


@given(chains(max_stages=5), st.integers(0, 60), links)
def test_a_placed_copy_leaves_once_and_comes_back_once(chain, budget, link):
    traced = trace(chain.graph, all_saved(chain))
    cells = [stay.cell for stay in traced.stays if stay.size]
    assert max(traced.charges) == validate(chain.graph, place(traced, (), 10**6, link)).peak
    schedule = place(traced, cells, budget, link)
    assert (schedule is None) == (max(traced.without(cells)) > budget)
    if schedule is not None:
        cost = validate(chain.graph, schedule, budget, link)
        assert cost.peak <= budget and sum(isinstance(step, Offload) for step in schedule.steps) == len(cells)


def layers(count, phantom=8):
    option = LayerOption(forward=10, backward=10, phantom=phantom)
    one = Block(output=2, gradient=2, options=(option,), no_save=Option(time=10))
    return Chain(chain_graph([one] * count, loss=Option(time=1), loss_gradient=2))


def test_the_capper_lets_the_first_idle_activation_leave():
    traced = trace(layers(4).graph, all_saved(layers(4)))
    time, peak, schedule = capped(
        traced, Problem(graph=layers(4).graph, budget=max(traced.charges) - 1, link=link_of(1, 1))
    )
    assert [step for step in schedule.steps if isinstance(step, Offload)] == [Offload("p0")]
    assert time == layers(4).time and peak <= max(traced.charges) - 1


def test_the_opportunist_runs_bare_while_copies_last():
    # at 1 byte per ns, 10 bytes leave with the first stage, 12 (its input too) with the next; a stage takes 10 ns
    chain = layers(10)
    groups, rest = grouped(chain, 60, link_of(1, 1))
    assert groups == [(0, 2), (2, 5)] and rest == 5
    assert grouped(chain, 10**6, link_of(1, 1)) == ([], 0)


@pytest.mark.parametrize("solver", [Autocapper(), Opportunist()])
def test_without_a_link_the_way_out_is_named(solver):
    found = solver.solve(Problem(graph=layers(3).graph, budget=20))
    assert found.schedule is None and "link=" in found.trail[0]


@pytest.mark.parametrize(
    "solver", [*SOLVERS, Autocapper(limits=3, slots=9), Opportunist(slots=7), OffloadOnly(slots=3)]
)
def test_settings_rebuild_the_solver(solver):
    assert eval(repr(solver)) == solver


def test_latency_counts_in_the_replay():
    slow = Link(to_host=10**9, to_device=10**9, to_host_latency=1000, to_device_latency=1000)
    found = OffloadOnly().solve(Problem(graph=layers(4).graph, budget=30, link=slow))
    assert found.cost is not None and found.cost.idle > 1000
