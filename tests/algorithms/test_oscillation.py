"""Strategic oscillation: what is accepted on either side of the budget, how the penalty moves, and what the pass brings."""

from itertools import count

import numpy as np
import pytest

from remat.algorithms._arrays.work import RATE
from remat.algorithms._core.clock import Clock
from remat.algorithms._core.outcome import Status
from remat.algorithms._core.problem import Problem
from remat.algorithms._core.warm_started import warm
from remat.algorithms._plugins.expression import parse
from remat.algorithms._search.oscillation import (
    Crossing,
    Evaluated,
    Oscillation,
    Rival,
    Standpoint,
    evaluated,
    oscillate,
)
from remat.algorithms._search.passes import MultiStart, PeakShaving, RuinAndRecreate
from remat.algorithms._search.run_problem import RunProblem
from remat.algorithms._search.state import Search
from remat.algorithms._search.stop import disputed
from tests.algorithms.test_gathering import two_uses
from tests.algorithms.test_runs_liveness import chain
from tests.algorithms.test_runs_moves import side_by_side

CHANGES = (0.3, 0.5, 0.2)
CHAIN = Problem(graph=chain(8), budget=21)
LOWEST = Problem(graph=chain(8), budget=13)
ORDER = Problem(graph=side_by_side(), budget=11)


def of(problem, sequence):
    """The arrays of a problem, and a sequence evaluated."""
    arrays = RunProblem.of(problem)
    runs = arrays.base if sequence is None else arrays.sequence_of(sequence)
    return arrays, evaluated(arrays.flat, runs, problem.budget, np.empty(len(runs), np.int64))


def walk(problem, start, steps, *, over, temperature=0.01):
    """The standpoints after each of `steps` iterations."""
    arrays, current = of(problem, start)
    at, rng = Standpoint(current=current), np.array([7], np.uint64)
    for _ in range(steps):
        at = oscillate(arrays.flat, at, problem.budget, 1, Crossing(CHANGES, 8, temperature, over), rng)
        yield at


def test_a_sequence_is_evaluated_in_times_of_the_captured_order_and_budgets():
    arrays, start = of(CHAIN, None)
    assert start.time == 1.0 and 0 < start.over <= len(arrays.base) * (arrays.base_peak / 21 - 1)
    _, fitting = of(CHAIN, PeakShaving().solve(CHAIN).schedule)
    assert fitting.over == 0 and fitting.time > 1


def test_a_plan_is_found_from_the_captured_order_and_the_best_one_fits_whatever_is_accepted_later():
    before = float("inf")
    for at in walk(CHAIN, None, 300, over=True):
        if at.best is not None:
            assert at.best.over == 0 and at.best.time <= before
            before = at.best.time
    assert before <= PeakShaving().solve(CHAIN).cost.time / chain(8).time


def test_the_budget_is_crossed_only_where_that_is_asked_for():
    start = MultiStart(4).solve(LOWEST).schedule
    crossed = [at.current.over > 0 for at in walk(LOWEST, start, 600, over=True)]
    assert any(crossed) and not all(crossed[crossed.index(True) :])  # out, and back again
    assert not any(at.current.over > 0 for at in walk(LOWEST, start, 600, over=False))


def test_the_penalty_grows_over_the_budget_and_falls_within_it():
    before = Standpoint(current=of(LOWEST, None)[1])
    moved = []
    for at in walk(LOWEST, None, 600, over=True):
        if at.penalty != before.penalty:
            assert (at.penalty > before.penalty) == (at.current.over > 0)
        moved.append(at.penalty > before.penalty)
        before = at
    assert any(moved) and not all(moved)
    assert 1e-3 <= before.penalty <= 1e3


@pytest.mark.parametrize("restart", [True, False])
def test_another_order_is_found_where_it_saves_all_recomputation(restart):
    outcome = Oscillation(seconds=0.02, restart=restart).solve(ORDER)
    assert outcome.cost.peak <= 11 and outcome.cost.recomputation == 0


def test_readers_far_apart_are_brought_together():
    problem = Problem(graph=two_uses(6), budget=15)
    assert PeakShaving().solve(problem).cost.recomputation > 0
    assert Oscillation(seconds=0.1, searches=2).solve(problem).cost.recomputation == 0


def test_it_keeps_a_plan_that_it_is_given():
    best = MultiStart(16).solve(CHAIN)
    for move in (Oscillation(seconds=0.01), Oscillation(seconds=0.01, restart=False)):
        assert warm(move, seed=MultiStart(16)).solve(CHAIN).upper <= best.upper


def test_without_work_or_time_it_finds_nothing_and_ends():
    assert Oscillation(seconds=0).solve(CHAIN).status is Status.NOT_FOUND
    outcome = Oscillation(seconds=1e6).solve(CHAIN, clock=Clock(0.0))
    assert outcome.status in {Status.NOT_FOUND, Status.FEASIBLE}


def test_the_outline_says_how_many_searches_of_how_much_work():
    (line,) = Oscillation(seconds=3.0, searches=2).outline(chain(8))
    assert "2 searches of 1.5 s of work" in line


def test_it_waits_for_others_that_still_gain():
    search = Search(LOWEST, Clock(), 0, "test")
    Oscillation(seconds=0.02, idle=1.0).improve(search)
    assert search.best is None
    search.flat.work[0] += 2 * RATE
    Oscillation(seconds=0.02, idle=1.0).improve(search)
    assert search.best is not None


def test_equal_searches_are_equal_however_fast_the_clock():
    ticks = count(step=1000.0)
    seen = []
    for clock in (Clock(), Clock(now=lambda: next(ticks))):
        search = Search(CHAIN, clock, 3, "test")
        Oscillation(seconds=0.05, searches=2).improve(search)
        seen.append((search.worked.seconds, tuple(search.trail), search.best.tolist()))
    assert seen[0] == seen[1]
    assert 0.05 <= seen[0][0] < 1


def test_an_iteration_on_a_few_nodes_counts_for_more_than_it_visits():
    """Else a second of work, counted by the nodes visited, would take minutes of calls on small graphs."""
    for problem in (LOWEST, ORDER):
        arrays, current = of(problem, None)
        before = int(arrays.flat.work[0])
        rng = np.array([7], np.uint64)
        oscillate(arrays.flat, Standpoint(current=current), problem.budget, 50, Crossing(CHANGES, 8, 0.001, True), rng)
        assert int(arrays.flat.work[0]) - before >= 50 * 5000


def fitting(time):
    """A plan of a given time."""
    return Evaluated(np.zeros(1, np.int32), time, 0.0)


def test_a_search_far_behind_the_plan_is_given_up_when_it_no_longer_gains():
    rival = Rival(1.2, patience=0.4)
    assert [rival.ahead(None, done) for done in (0.0, 0.39, 0.4)] == [False, False, True]
    rival = Rival(1.2, patience=0.4)
    assert [rival.ahead(fitting(1.26), done) for done in (0.3, 0.5, 0.69, 0.71)] == [False, False, False, True]
    # it gains: there is hope
    assert [rival.ahead(fitting(1.25), done) for done in (0.72, 1.1, 1.13)] == [False, False, True]


def test_a_search_close_behind_goes_on_and_so_does_one_without_a_rival():
    for rival, best in (
        (Rival(1.2, patience=0.4), fitting(1.203)),
        (Rival(1.2, patience=0.4), fitting(1.1)),
        (Rival(float("inf"), patience=0.4), None),
        (Rival(1.2, patience=1), fitting(2.0)),
        (Rival(1.2, patience=1), None),
    ):
        assert not any(rival.ahead(best, done) for done in (0.1, 0.5, 0.99))


def test_a_search_that_comes_to_the_same_time_has_as_much_work_again_to_beat_it():
    rival = Rival(1.2, patience=0.4)
    assert not rival.ahead(fitting(1.21), 0.1)
    assert [rival.ahead(fitting(1.2), done) for done in (0.2, 0.3, 0.39, 0.4)] == [False, False, False, True]
    assert not rival.ahead(fitting(1.19), 0.4)
    assert not Rival(1.2, patience=1).ahead(fitting(1.2), 0.9)


def test_early_ends_save_work_where_the_plan_cannot_be_beaten():
    best = warm(Oscillation(seconds=0.2), seed=MultiStart(8)).solve(CHAIN).schedule

    def worked(patience):
        search = Search(CHAIN, Clock(), 0, "test")
        search.offer(search.arrays.sequence_of(best), "given")
        Oscillation(seconds=0.2, patience=patience).improve(search)
        return search.worked.seconds, search.best_time

    (all_of_it, time), (less, same) = worked(1), worked(0.1)
    assert less < all_of_it / 2 and time == same


def test_two_searches_that_agree_leave_nothing_to_a_longer_one():
    best = warm(Oscillation(seconds=0.2), seed=MultiStart(8)).solve(CHAIN).schedule

    def agreed(**settings):
        search = Search(CHAIN, Clock(), 0, "test")
        search.offer(search.arrays.sequence_of(best), "given")
        Oscillation(seconds=0.2, **settings).improve(search)
        assert disputed(search) != search.worked.agreed
        return search

    search = agreed(patience=0.4)
    assert search.worked.agreed
    assert not agreed(restart=False).worked.agreed  # it began there
    search.worked.note(search.best_time - 1)
    assert disputed(search)  # of a better plan nobody has said anything
    without = Search(LOWEST, Clock(), 0, "test")
    Oscillation(seconds=0).improve(without)
    assert disputed(without)
    assert parse(repr(LONG.if_(disputed))) == LONG.if_(disputed)


def test_a_better_plan_in_the_last_moment_is_no_agreement(monkeypatch):
    best = warm(Oscillation(seconds=0.2), seed=MultiStart(8)).solve(CHAIN).schedule
    worse = MultiStart(1).solve(Problem(graph=chain(8), budget=14)).schedule
    _, better = of(CHAIN, best)
    _, same = of(CHAIN, worse)
    assert better.time < same.time and same.over == 0

    def walked(shares):
        """A search that comes to these plans, each after a third of its work, beside the slower plan."""
        search = Search(CHAIN, Clock(), 0, "test")
        search.offer(search.arrays.sequence_of(worse), "given")
        plans = iter(shares)

        def third(flat, at, *_):
            flat.work[0] += int(0.34 * RATE)
            return Standpoint(current=at.current, best=next(plans))

        monkeypatch.setattr("remat.algorithms._search.oscillation.oscillate", third)
        Oscillation(seconds=1.0).improve(search)
        return search

    assert not disputed(walked((None, same, same)))
    assert disputed(walked((None, same, better)))


LONG = RuinAndRecreate(work=1e6)
