"""POFO against every plan of its class written out, and against Rotor and the offload-only search."""

import functools
import itertools
import os
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from remat.algorithms._chain.offload import all_saved
from remat.algorithms._chain.pofo import Pofo, PofoTables
from remat.algorithms._chain.rotor import Rotor, keep_all, rotor_values
from remat.algorithms._chain.transfers import fluid, place, trace
from remat.algorithms._core.clock import Clock
from remat.algorithms._core.problem import Problem
from remat.ir import LayerOption, Link, Offload, Option, Run, validate
from remat.ir.chain import Block, Chain, chain_graph
from tests.algorithms.chain.chains import chains

BYTE_PER_NS = 10**9

speeds = st.sampled_from((1, 2, 3, None))
links = st.builds(lambda out, back: link_of(out, back), speeds, speeds)


def link_of(out, back):
    return Link(to_host=out and out * BYTE_PER_NS, to_device=back and back * BYTE_PER_NS)


def segments(chain, options):
    """Every persistent way to run stages i..j after the loss."""

    @functools.cache
    def of(i, j):
        stage = chain.stages[i]
        inner = of(i + 1, j) if j > i else ((),)
        found = [(Run(stage.forward, options[i][0]), *rest, Run(stage.backward, options[i][0])) for rest in inner]
        for k in range(i, j):
            bare = tuple(Run(s.forward, len(s.options)) for s in chain.stages[i : k + 1])
            found += [(*bare, *late, *early) for late in of(k + 1, j) for early in of(i, k)]
        return tuple(found)

    return of


def plans(chain, offload=True, recompute=True):
    """Every plan of POFO's class: runs, and the cells that leave with the run from which on they may."""
    options, length = keep_all(chain), len(chain)
    of = segments(chain, options)

    def grow(i, saved, before, after, away):
        if i == length:
            yield (*before, Run(chain.loss), *after), away
            return
        choices = [away]
        if offload and i:
            cells = [chain.stages[i - 1].output] + [chain.stages[i - 1].phantom] * saved
            choices.append({**away, **{cell: len(before) for cell in cells}})
        stage = chain.stages[i]
        for gone in choices:
            first, last = Run(stage.forward, options[i][0]), Run(stage.backward, options[i][0])
            yield from grow(i + 1, True, (*before, first), (last, *after), gone)
            for j in range(i, length) if recompute else ():
                runs = tuple(Run(s.forward, len(s.options)) for s in chain.stages[i : j + 1])
                for back in of(i, j):
                    yield from grow(j + 1, False, (*before, *runs), (*back, *after), gone)

    yield from grow(0, False, (), (), {})


def best(chain, budget, link, **more):
    found = (fluid(trace(chain.graph, runs), away, budget, link) for runs, away in plans(chain, **more))
    times = [one[0] for one in found if one is not None]
    return min(times) if times else None


def searched(chain, budget, link, **more):
    found = PofoTables(chain, budget, link, **more).plan()
    if found is None:
        return None, None
    return found.value, fluid(trace(chain.graph, found.runs), found.away, budget, link)


def same(value, exact):
    return value == exact if None in (value, exact) else abs(value - exact) <= 1e-9 * max(1, exact)


budgets = st.integers(0, 40)

shares = st.integers(35, 100)
"""Per cent of what saving everything needs: most such budgets are met, and few without waiting for copies."""


def tight(chain, share):
    return max(trace(chain.graph, all_saved(chain)).charges) * share // 100


DEEP = 4 + (os.environ.get("HYPOTHESIS_PROFILE") == "thorough")
"""Stages of the chains whose plans are all written out."""


@given(chains(max_stages=DEEP - 1, plain=True), shares, links)
def test_pofo_is_optimal_in_its_class(chain, share, link):
    budget = tight(chain, share)
    value, written = searched(chain, budget, link)
    exact = best(chain, budget, link)
    assert same(value, exact)
    if value is not None:
        assert written[0] == exact


@pytest.mark.skipif(settings().max_examples < 1000, reason="minutes: tens of thousands of plans per chain")
@settings(max_examples=20)
@given(chains(min_stages=5, max_stages=6, plain=True), shares, links)
def test_pofo_is_optimal_on_longer_chains(chain, share, link):
    budget = tight(chain, share)
    value, _ = searched(chain, budget, link)
    assert same(value, best(chain, budget, link))


@given(chains(max_stages=DEEP + 1, plain=True), shares, links)
def test_offload_only_is_optimal_in_its_class(chain, share, link):
    budget = tight(chain, share)
    value, written = searched(chain, budget, link, recompute=False)
    exact = best(chain, budget, link, recompute=False)
    assert same(value, exact) and (value is None or written[0] == exact)


@given(chains(max_stages=6, plain=True), st.integers(0, 80))
def test_without_a_link_pofo_is_rotor(chain, budget):
    value, _ = searched(chain, budget, None)
    assert value == rotor_values(chain, budget, keep_all(chain)).value(budget)
    problem = Problem(graph=chain.graph, budget=budget)
    assert Pofo(slots=None).solve(problem).upper == Rotor().solve(problem).upper


@given(chains(max_stages=6, plain=True), budgets)
def test_a_link_of_no_use_is_rotor(chain, budget):
    """One byte a second: an hour per transfer."""
    value, _ = searched(chain, budget, Link(to_host=1, to_device=1))
    rotor = rotor_values(chain, budget, keep_all(chain)).value(budget)
    assert value == rotor or (rotor is None and value > 10**8)


@given(chains(max_stages=6, plain=True), budgets)
def test_an_unbounded_link_costs_nothing(chain, budget):
    value, written = searched(chain, budget, Link())
    only, _ = searched(chain, budget, Link(), recompute=False)
    if only is not None:
        assert value == only == chain.time and written[0] == chain.time


@given(chains(max_stages=6, plain=True), shares, links)
def test_never_worse_than_rotor_and_than_offloading_alone(chain, share, link):
    budget = tight(chain, share)
    value, _ = searched(chain, budget, link)
    for other in (
        rotor_values(chain, budget, keep_all(chain)).value(budget),
        searched(chain, budget, link, recompute=False)[0],
    ):
        assert other is None or (value is not None and value <= other + 1e-6)


@given(chains(max_stages=6, plain=True), shares, links)
def test_whole_transfers_fit_and_are_never_below_the_fluid(chain, share, link):
    """But for two freedoms of a replay: copies out may end behind the loss, and a phantom may come back after its output."""
    budget = tight(chain, share)
    found = PofoTables(chain, budget, link).plan()
    if found is None:
        return
    traced = trace(chain.graph, found.runs)
    time, at_the_loss = fluid(traced, found.away, budget, link)
    free, at_the_loss_apart = fluid(traced, found.away, budget, link, apart=True)
    cost = validate(chain.graph, place(traced, found.away, budget, link), budget, link)
    assert same(found.value, time)
    assert free <= time and at_the_loss == at_the_loss_apart
    assert cost.time >= free - at_the_loss


@given(chains(max_stages=5, plain=True, size=9, time=40), st.integers(10, 60), st.integers(5, 30), links)
def test_coarse_slots_plan_within_the_true_budget(chain, budget, slots, link):
    found = Pofo(slots=slots).solve(Problem(graph=chain.graph, budget=budget, link=link))
    assert not any("does not fit:" in line for line in found.trail)
    exact = PofoTables(chain, budget, link).plan()
    if found.cost is not None:
        assert exact is not None and found.cost.peak <= budget


@pytest.mark.parametrize("seconds", range(12))
def test_tables_and_searches_end_with_the_clock(seconds):
    """Each look at this clock takes a second: it ends in the tables, in the search, or after it."""
    one = Block(
        output=2,
        gradient=2,
        options=(LayerOption(forward=10, backward=10, phantom=4),),
        no_save=Option(time=10, workspace=2),
    )
    graph = chain_graph([one] * 3, loss=Option(time=1), loss_gradient=2)
    problem = Problem(graph=graph, budget=20, link=link_of(1, 1))
    assert PofoTables(Chain(graph), 20, problem.link).plan() is not None
    looks = itertools.count()
    tables = PofoTables(Chain(graph), 20, problem.link, clock=Clock(seconds, now=lambda: next(looks)))
    assert tables.plan() is None and next(looks) <= seconds + 4
    looks = itertools.count()
    found = Pofo(slots=None).plan(problem, Clock(seconds, now=lambda: next(looks)), 0)
    assert found.schedule is None and "stopped without a plan" in found.trail[0] and next(looks) <= seconds + 12


def test_a_transfer_behind_a_computation_is_free():
    """Two large stages and one that takes as long as their copies: by hand."""
    one = Block(
        output=0,
        gradient=0,
        options=(LayerOption(forward=10, backward=10, phantom=8),),
        no_save=Option(time=10, workspace=8),
    )
    graph = chain_graph([one, one, one], loss=Option(time=1), loss_gradient=0)
    found = Pofo().solve(Problem(graph=graph, budget=16, link=link_of(1, 1)))
    # 24 bytes are saved, 16 fit: the first phantom leaves while stage 1 runs and comes back while its backward does
    assert found.cost.time == 61 and found.cost.recomputation == 0 and found.cost.idle == 0
    assert Offload("p0") in found.schedule.steps
    slow = Pofo().solve(Problem(graph=graph, budget=16))
    assert slow.cost.time == 71 and slow.cost.recomputation == 10


def test_fluid_by_hand():
    """One stage whose 8 bytes leave at 2 bytes per ns during a 3 ns run: 1 ns is waited for the rest, at the loss."""
    first = Block(output=0, gradient=0, options=(LayerOption(forward=1, backward=1, phantom=8),))
    second = Block(output=0, gradient=0, options=(LayerOption(forward=3, backward=5, phantom=1),))
    chain = Chain(chain_graph([first, second], loss=Option(time=0), loss_gradient=0))
    runs = (Run("F0"), Run("F1"), Run("L"), Run("B1"), Run("B0"))
    assert fluid(trace(chain.graph, runs), {"p0": 1}, 9, link_of(2, 1)) == (Fraction(1 + 3 + 1 + 3 + 5 + 1), 1)
    assert fluid(trace(chain.graph, runs), {"p0": 1}, 8, link_of(2, 1)) is None
    assert fluid(trace(chain.graph, runs), {}, 9, None) == (10, 0)


@pytest.mark.parametrize("solver", [Pofo(), Pofo(slots=None), Pofo(table_limit=7)])
def test_settings_rebuild_the_solver(solver):
    assert eval(repr(solver)) == solver


def test_fine_slots_are_refused_with_the_way_out():
    one = Block(output=10**6 + 1, gradient=1, options=(LayerOption(forward=1, backward=1, phantom=10**6),))
    graph = chain_graph([one] * 20, loss=Option(time=1), loss_gradient=0)
    found = Pofo(slots=None).solve(Problem(graph=graph, budget=10**8, link=Link()))
    assert found.schedule is None and any("slots=" in line for line in found.trail)


def test_copies_out_overlap_the_loss_by_hand():
    """8 bytes leave at 1 byte per ns: 1 while F1 runs, 1 while F2 does, 5 during the loss, and 1 is waited for behind it."""
    times = ((30, 1, 8), (1, 1, 0), (1, 10, 1))
    blocks = [
        Block(output=0, gradient=0, options=(LayerOption(forward=f, backward=b, phantom=p),), no_save=Option(time=f))
        for f, b, p in times
    ]
    chain = Chain(chain_graph(blocks, loss=Option(time=5), loss_gradient=0))
    value, written = searched(chain, 8, link_of(1, 1))
    # the forward 32, the loss 5, 1 at the loss; B2 10, 1 until its phantom is gone and the last byte is back, B1 and B0
    assert value == 32 + 5 + 1 + 10 + 1 + 2
    assert written == (value, 1)
