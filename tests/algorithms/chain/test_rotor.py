"""Rotor and rk-Rotor against every persistent schedule written out, value by value."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from remat.algorithms._chain import rotor_kernels
from remat.algorithms._chain.chain_arrays import NEVER
from remat.algorithms._chain.rotor import RkRotor, Rotor, keep_all, rotor_values
from remat.algorithms._core.outcome import IMPOSSIBLE
from remat.algorithms._core.problem import Problem
from remat.errors import BadArgument
from remat.ir import LayerOption, Option, Schedule, validate
from remat.ir.chain import Block, Chain, chain_graph
from tests.algorithms.chain.chains import chains, front, optimum, persistent, replayed


@given(chains(max_stages=3, options=2))
def test_the_oracles_replay_is_the_validators(chain):
    for runs in persistent(chain):
        cost = validate(chain.graph, Schedule.from_runs(chain.graph, runs))
        assert (cost.time, cost.peak) == replayed(chain, runs)


@given(chains(max_stages=6))
def test_rotor_is_optimal_in_its_class_at_every_budget(chain):
    check_all_budgets(chain, keep_all(chain))


@given(chains(max_stages=4, options=3))
def test_rk_rotor_is_optimal_in_its_class_at_every_budget(chain):
    check_all_budgets(chain, None)


@pytest.mark.skipif(settings().max_examples < 1000, reason="minutes: a hundred thousand schedules per chain")
@settings(max_examples=20)
@given(chains(min_stages=5, max_stages=6, options=2))
def test_rk_rotor_is_optimal_on_longer_chains(chain):
    check_all_budgets(chain, None)


@given(chains(max_stages=4, options=2, size=2, time=1))
def test_ties_and_zeros(chain):
    check_all_budgets(chain, None)


def check_all_budgets(chain, choice):
    pairs = front(chain, choice)
    most = pairs[-1][0]
    table = rotor_values(chain, most + 3, choice)
    assert table.floor == pairs[0][0]
    for budget in range(most + 3):
        best = optimum(pairs, budget)
        assert table.value(budget) == best
        schedule = table.schedule(budget)
        if best is None:
            assert schedule is None
        else:
            assert validate(chain.graph, schedule, budget).time == best


@given(chains(max_stages=4, options=2), st.integers(1, 10**18))
def test_below_zero_there_is_no_more_than_below_the_floor(chain, less):
    table = rotor_values(chain, 50)
    assert table.value(-less) is None and table.runs(-less) is None and table.schedule(-less) is None


@pytest.mark.parametrize(
    ("choice", "words"),
    [
        ("xxx", "choice is 'xxx'.*each of the 3 stages"),
        (3, "choice is 3"),
        ([[0]] * 2, "choice is"),
        ([[0]] * 4, "choice is"),
        ([[0], [0], []], r"choice of stage 2 is \(\)"),
        ([[0], [1], [0]], r"choice of stage 1 is \(1,\).*from 0 to 0"),
        ([[-1], [0], [0]], r"choice of stage 0 is \(-1,\)"),
        ([[0], 0, [0]], "choice of stage 1 is 0"),
        ([[True], [0], [0]], "choice of stage 0"),
    ],
)
def test_what_chooses_no_options_is_refused(choice, words):
    block = Block(output=2, gradient=2, options=(LayerOption(forward=1, backward=1, phantom=4),))
    chain = Chain(chain_graph([block] * 3, loss=Option(time=1), loss_gradient=2))
    with pytest.raises(BadArgument, match=f"rotor_values: {words}"):
        rotor_values(chain, 50, choice)
    assert rotor_values(chain, 50, ([0], (0,), [0])).value(50) == rotor_values(chain, 50).value(50)


@given(chains(max_stages=5, options=2))
def test_solvers_replay_what_they_claim(chain):
    for solver, choice in ((RkRotor(), None), (Rotor(), keep_all(chain))):
        pairs = front(chain, choice) if len(chain) < 5 else []
        for budget in {pairs[0][0] - 1, pairs[0][0], pairs[0][0] + 1} if pairs else {0, 20}:
            if budget < 0:
                continue
            found = solver.solve(Problem(graph=chain.graph, budget=budget))
            (bound,) = found.class_bounds
            assert bound.value == found.upper
            if pairs:
                assert found.upper == (optimum(pairs, budget) if budget >= pairs[0][0] else IMPOSSIBLE)


@given(chains(max_stages=5, options=2))
def test_more_options_and_more_memory_never_cost_time(chain):
    most = sum(stage.saves(0) for stage in chain.stages) + 40
    wide, narrow = rotor_values(chain, most), rotor_values(chain, most, keep_all(chain))
    before = None
    for budget in range(0, most, 3):
        many, one = wide.value(budget), narrow.value(budget)
        assert one is None or (many is not None and many <= one)
        assert before is None or (many is not None and many <= before)
        before = many


@given(chains(max_stages=4, options=2, size=10**15, time=10**12))
def test_words_of_64_bits_are_python_integers(chain):
    """The kernel's own source run on Python integers, slot by slot, with sizes of 10^15 on a coarse grid."""
    coarse = chain_of_scaled(chain)
    table = rotor_values(coarse, 60 * 10**15)
    own = table.arrays
    exact = np.full(table.values.shape, NEVER, dtype=object)
    lowest = np.zeros(len(exact), dtype=object)
    arrays = {name: one for name, one in own._asdict().items() if isinstance(one, np.ndarray)}
    words = own._replace(**{name: np.array(one.tolist(), dtype=object) for name, one in arrays.items()})
    rotor_kernels.rotor_table.py_func(words, exact, lowest)
    assert exact.tolist() == table.values.tolist()
    assert lowest.tolist() == table.lowest.tolist()


def chain_of_scaled(chain):
    """The chain with sizes rounded up to multiples of 10^15: large numbers, few slots."""

    def up(size):
        return -(-size // 10**15) * 10**15

    blocks = [
        Block(
            output=up(stage.output_size),
            gradient=up(stage.output_size),
            options=tuple(
                LayerOption(
                    forward=one.forward,
                    backward=one.backward,
                    phantom=up(one.phantom),
                    forward_workspace=up(one.forward_workspace),
                )
                for one in stage.options
            ),
            no_save=Option(time=stage.no_save.time),
        )
        for stage in chain.stages
    ]
    return Chain(chain_graph(blocks, loss=Option(time=chain.loss_time), loss_gradient=10**15))


def stage(**more):
    fields = {"output": 4, "gradient": 4, "options": (LayerOption(forward=1, backward=2, phantom=4),)}
    return Block(**{**fields, "no_save": Option(time=1), **more})


def test_a_budget_of_zero_is_answered():
    chain = chain_graph([stage()], loss=Option(time=1), loss_gradient=4)
    found = Rotor().solve(Problem(graph=chain, budget=0))
    assert found.schedule is None and found.lower == 0 and found.class_bounds[0].value == IMPOSSIBLE


def test_a_fine_budget_is_refused_with_the_way_out():
    chain = chain_graph([stage(output=10**9 + i) for i in range(50)], loss=Option(time=1), loss_gradient=4)
    found = RkRotor().solve(Problem(graph=chain, budget=10**12))
    assert found.schedule is None and any("Quantise" in line for line in found.trail)


def test_times_beyond_the_words_are_refused():
    slow = (LayerOption(forward=1 << 60, backward=1, phantom=4),)
    chain = chain_graph([stage(options=slow)], loss=Option(time=1), loss_gradient=4)
    found = RkRotor().solve(Problem(graph=chain, budget=100))
    assert found.schedule is None and any("coarser unit" in line for line in found.trail)


def test_ten_thousand_stages_are_answered_or_refused():
    chain = chain_graph([stage() for _ in range(10_000)], loss=Option(time=1), loss_gradient=4)
    found = Rotor().solve(Problem(graph=chain, budget=4 * 30))
    assert found.schedule is None and any("table" in line for line in found.trail)


@pytest.mark.parametrize("solver", [Rotor(), RkRotor(table_limit=5)])
def test_settings_rebuild_the_solver(solver):
    assert eval(repr(solver)) == solver
