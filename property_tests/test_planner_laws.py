"""Laws of the planner over run sequences: its kernels see what the validator sees, its plans replay, its claims hold."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numba import njit

from remat.algorithms._arrays import chain_insertion as insertion
from remat.algorithms._arrays import ordering
from remat.algorithms._arrays.graph_arrays import LOSS, flatten
from remat.algorithms._arrays.liveness import memory_profile, overshoot, total_time
from remat.algorithms._core.problem import Problem
from remat.algorithms._curves.budget_sweep import sweep as curve
from remat.algorithms._search import shifting
from remat.algorithms._search.auto import auto, quick
from remat.algorithms._search.deletion import delete
from remat.algorithms._search.lp_rounding import SavedSet
from remat.algorithms._search.oscillation import Oscillation
from remat.algorithms._search.passes import (
    Continuation,
    Delete,
    MultiStart,
    PeakShaving,
    Relieve,
    RuinAndRecreate,
    Shift,
)
from remat.algorithms._search.ruin_recreate import relieve
from remat.algorithms._search.shifting import shift
from remat.algorithms._whole.baselines import least_time, store_all_peak
from remat.algorithms._whole.exhaustive import Exhaustive
from remat.ir import Schedule, validate
from remat.testing.strategies import problems, training_graphs

# as kernels call them: compiled, with a wrapper for Python
uses_in, empty_insertion = njit(insertion.uses_in), njit(insertion.empty_insertion)
fall_of, insert_into = njit(insertion.fall_of), njit(insertion.insert_into)
brought_back, disordered, earliest_place, latest_place = map(
    njit, (ordering.brought_back, ordering.disordered, ordering.earliest_place, ordering.latest_place)
)
linked, effect_of_none, successors_of = map(njit, (shifting.linked, shifting.effect_of_none, shifting.successors_of))
objective_of, latest_of, effect_of_move = map(
    njit, (shifting.objective_of, shifting.latest_of, shifting.effect_of_move)
)
fall_of_move, apply_move = njit(shifting.fall_of_move), njit(shifting.apply_move)

MOVES = [
    PeakShaving(),
    MultiStart(starts=4),
    RuinAndRecreate(work=500.0),
    Relieve(work=500.0),
    Oscillation(seconds=0.003),
    RuinAndRecreate(work=500.0, disorder=1.0),
    Continuation(iterations=10, attempts=4),
    Delete(),
    Shift(),
]


@st.composite
def sequences(draw):
    """A graph, its arrays, and its captured order with random reruns inserted, some taken out again."""
    graph = draw(training_graphs(max_forward=5))
    flat = flatten(graph)
    sequence = np.flatnonzero(flat.required).tolist()
    able = [v for v in sequence if flat.rerun[v]]
    for _ in range(draw(st.integers(0, 8)) if able else 0):
        v = draw(st.sampled_from(able))
        sequence.insert(draw(st.integers(sequence.index(v) + 1, len(sequence))), v)
    for _ in range(draw(st.integers(0, 3))):
        reruns = [i for i, v in enumerate(sequence) if sequence.index(v) != i]
        if reruns:
            del sequence[draw(st.sampled_from(reruns))]
    return graph, flat, sequence


def replayed(graph, sequence, budget=None):
    return validate(graph, Schedule.from_runs(graph, [int(v) for v in sequence]), budget)


@given(sequences())
def test_the_sweep_sees_the_peak_and_the_time_that_the_validator_sees(drawn):
    graph, flat, sequence = drawn
    array = np.array(sequence, np.int32)
    memory = np.empty(len(array), np.int64)
    peak = memory_profile(flat, array, len(array), memory)
    cost = replayed(graph, sequence)
    assert (peak, total_time(flat, array, len(array))) == (cost.peak, cost.time)
    steps = Schedule.from_runs(graph, sequence).steps
    assert memory.tolist() == [cost.timeline[i] for i, step in enumerate(steps) if hasattr(step, "node")]


@given(sequences())
def test_deletion_keeps_a_valid_sequence_within_its_budget_and_is_never_slower(drawn):
    graph, flat, sequence = drawn
    cost = replayed(graph, sequence)
    thin = delete(flat, np.array(sequence, np.int32), cost.peak)
    assert replayed(graph, thin, cost.peak).time <= cost.time


def over(flat, sequence, budget):
    memory = np.empty(len(sequence), np.int64)
    memory_profile(flat, np.array(sequence, np.int32), len(sequence), memory)
    return overshoot(memory, len(sequence), budget)


@given(sequences())
def test_deletion_leaves_no_rerun_that_could_go_alone(drawn):
    graph, flat, sequence = drawn
    budget = replayed(graph, sequence).peak
    thin = delete(flat, np.array(sequence, np.int32), budget).tolist()
    for i, v in enumerate(thin):
        if flat.rerun[v] and v in thin[:i]:
            assert over(flat, thin[:i] + thin[i + 1 :], budget) > 0


@given(sequences(), st.data())
def test_the_fall_of_a_chain_is_what_two_sweeps_say(drawn, data):
    graph, flat, sequence = drawn
    able = [v for v in dict.fromkeys(sequence) if flat.rerun[v]]
    if not able:
        return
    chain = sorted(data.draw(st.sets(st.sampled_from(able), min_size=1, max_size=3)))
    first = max(sequence.index(v) for v in chain) + 1
    if first >= len(sequence):
        return
    at = data.draw(st.integers(first, len(sequence) - 1))
    budget = data.draw(st.integers(0, replayed(graph, sequence).peak))
    array, n = np.array(sequence + [0] * len(chain), np.int32), len(sequence)
    memory, no_masks = np.empty(n + len(chain), np.int64), np.empty(0, np.int64)
    memory_profile(flat, array, n, memory)
    uses = uses_in(flat, array, no_masks, n, len(chain) * insertion.most_uses(flat))
    profile = insertion.Profile(array, no_masks, n, memory, uses, budget)
    inserted = insertion.Chain(np.array(chain, np.int32), no_masks, len(chain))
    scratch = empty_insertion(flat, n, len(chain))
    after = sequence[:at] + chain + sequence[at:]
    assert fall_of(flat, profile, at, inserted, scratch) == over(flat, sequence, budget) - over(flat, after, budget)
    assert insert_into(flat, profile, at, inserted, scratch) == len(after)
    expected = np.empty(len(after), np.int64)
    memory_profile(flat, np.array(after, np.int32), len(after), expected)
    assert (array.tolist(), memory.tolist()) == (after, expected.tolist())
    assert not scratch.is_touched.any() and not scratch.steps.any()


@given(sequences(), st.integers(0, 2**32))
def test_shifting_keeps_a_valid_sequence_and_its_runs(drawn, seed):
    graph, flat, sequence = drawn
    cost = replayed(graph, sequence)
    moved = shift(flat, np.array(sequence, np.int32), cost.peak // 2, 0.8, 3, np.array([seed], np.uint64))
    assert sorted(moved.tolist()) == sorted(sequence)
    assert replayed(graph, moved, cost.peak).time == cost.time


def squares(objective, profile):
    return sum((max(0, int(memory) - objective.level) >> objective.shift) ** 2 for memory in profile)


@given(sequences(), st.data())
def test_legal_moves_change_profile_objective_and_places_as_liveness_analysis_says(drawn, data):
    """Several moves in turn, so that what one leaves behind is what the next begins with."""
    _, flat, sequence = drawn
    count = len(sequence)
    runs, effect = linked(flat, np.array(sequence, np.int32)), effect_of_none(flat, count)
    kept, successors = int(flat.size[flat.keep].sum()), successors_of(flat)
    objective = objective_of(runs.mem, int(runs.mem.max()), data.draw(st.sampled_from((0.0, 0.5, 0.9))))
    loss_node = next(v for v in sequence if flat.phase[v] == LOSS)
    for _ in range(3):
        i, loss = data.draw(st.integers(0, count - 1)), int(runs.first[loss_node])
        if i == loss:
            continue
        lo, hi = earliest_place(flat, runs.seq, i, runs.first, loss), latest_of(runs, successors, i, loss)
        assert hi == latest_place(flat, runs.seq, i, runs.first, loss)
        j = data.draw(st.integers(lo, max(lo, hi)))
        moved = np.insert(np.delete(runs.seq, i), j, runs.seq[i])
        expected, before = np.empty(count, np.int64), squares(objective, runs.mem)
        memory_profile(flat, moved, count, expected)
        move = (i, j, effect_of_move(flat, runs, i, j, kept, effect))
        fall = before - squares(objective, expected)
        legal = fall >= 0 and expected.max() <= objective.ceiling
        assert fall_of_move(flat, runs, objective, move, effect) == (fall if legal else -1)
        apply_move(runs, move, effect)
        assert runs.seq.tolist() == moved.tolist() and runs.mem.tolist() == expected.tolist()
        again = linked(flat, moved)
        assert all(np.array_equal(mine, other) for mine, other in zip(runs, again, strict=True))
        assert not effect.steps.any()


@given(sequences(), st.integers(0, 2**32), st.integers(1, 6))
def test_disorder_keeps_a_valid_sequence_and_its_runs(drawn, seed, count):
    graph, flat, sequence = drawn
    chance = np.array([seed], np.uint64)
    other = disordered(flat, np.array(sequence, np.int32), 0, len(sequence), count, chance)
    assert sorted(other.tolist()) == sorted(sequence)
    assert replayed(graph, other).time == replayed(graph, sequence).time


@given(sequences(), st.integers(0, 2**32), st.integers(20, 40))
def test_putting_postponed_runs_back_keeps_a_valid_sequence_and_postpones_fewer(drawn, seed, count):
    graph, flat, sequence = drawn
    chance, nodes = np.array([seed], np.uint64), len(flat.time)
    other = disordered(flat, np.array(sequence, np.int32), 0, len(sequence), count, chance)
    back = brought_back(flat, other, 0, nodes, 1.0, chance)
    assert sorted(back.tolist()) == sorted(sequence)
    assert replayed(graph, back).time == replayed(graph, sequence).time
    assert postponed(back) < max(1, postponed(other))
    assert np.array_equal(brought_back(flat, other, 0, nodes, 0.0, chance), other)


def postponed(sequence) -> int:
    """How many nodes first run after one of a larger number."""
    first = list(dict.fromkeys(int(v) for v in sequence))
    return sum(any(u > v for u in first[:i]) for i, v in enumerate(first))


@given(sequences(), st.integers(0, 2**32))
def test_relief_never_raises_what_exceeds_the_budget_and_says_whether_it_fits(drawn, seed):
    graph, flat, sequence = drawn
    cost = replayed(graph, sequence)
    budget = cost.peak * 3 // 4
    found, fits = relieve(flat, np.array(sequence, np.int32), budget, 5, np.array([seed], np.uint64))
    peak = replayed(graph, found).peak
    assert fits == (peak <= budget)
    memory = np.empty(max(len(found), len(sequence)), np.int64)
    memory_profile(flat, np.array(sequence, np.int32), len(sequence), memory)
    before = overshoot(memory, len(sequence), budget)
    memory_profile(flat, found, len(found), memory)
    assert overshoot(memory, len(found), budget) <= before


@pytest.mark.parametrize("solver", MOVES, ids=repr)
@given(problem=problems(training_graphs(max_forward=4)))
def test_no_move_beats_the_oracle(solver, problem):
    exact, found = Exhaustive().solve(problem), solver.solve(problem)
    assert exact.lower <= found.upper
    assert found.lower <= exact.upper


@given(problem=problems(training_graphs(max_forward=3)))
def test_auto_never_beats_the_oracle_nor_overclaims(problem):
    exact, found = Exhaustive().solve(problem), auto.solve(problem)
    assert found.lower <= exact.upper
    assert exact.lower <= found.upper


@given(problem=problems(training_graphs(max_forward=3)))
def test_saved_sets_recompute_nothing_where_all_fits_and_claim_nothing_the_oracle_denies(problem):
    graph, solver = problem.graph, SavedSet(instants=2)
    assert solver.solve(Problem(graph=graph, budget=store_all_peak(graph))).upper == least_time(graph)
    exact, outcome = Exhaustive().solve(problem), solver.solve(problem)
    assert exact.lower <= outcome.upper
    assert outcome.lower <= exact.upper


@given(problem=problems(training_graphs(max_forward=4)), seed=st.integers(0, 3))
def test_the_same_problem_and_seed_give_the_same_plan(problem, seed):
    solver = RuinAndRecreate(work=1000.0)
    assert solver.solve(problem, seed=seed) == solver.solve(problem, seed=seed)


@given(training_graphs(max_forward=3), st.lists(st.integers(0, 60), min_size=2, max_size=4))
def test_times_and_bounds_do_not_rise_with_the_budget(graph, budgets):
    points = curve(graph, budgets, quick).points
    assert [one.budget for one in points] == sorted(set(budgets))
    for small, large in pairwise(points):
        assert large.outcome.upper <= small.outcome.upper
        assert large.outcome.lower <= small.outcome.lower


@given(problem=problems(training_graphs(max_forward=4)))
def test_a_move_started_from_a_plan_is_never_worse(problem):
    start = PeakShaving().solve(problem)
    if start.schedule is None:
        start = auto.solve(problem)
    for move in (Delete(), Shift(), RuinAndRecreate(work=500.0)):
        plan = move.plan_from(Problem(graph=problem.graph, budget=problem.budget), start.schedule, _clock(), 0)
        if start.cost is not None:
            assert validate(problem.graph, plan.schedule, problem.budget).time <= start.cost.time


def _clock():
    from remat.algorithms._core.clock import Clock

    return Clock()
