"""The planner of `wrap`: its plan does not wait for bounds that bring none; work is counted, and stops where it brings little."""

import itertools
from pathlib import Path

import numpy as np
import pytest
from attrs import field, frozen

from remat.algorithms import (
    Clock,
    Problem,
    auto,
    gaining,
    nodes_up_to,
    parse,
    plan_first,
    raise_bound,
    store_all_peak,
    worked_up_to,
)
from remat.algorithms._arrays.work import GAIN, RATE, Worked
from remat.algorithms._core.solver import with_start
from remat.algorithms._search.passes import MultiStart, RuinAndRecreate
from remat.algorithms._search.peak_shaving import NO_CEILING, Scoring, shave
from remat.algorithms._search.state import Search
from remat.ir import read_joint_graph
from tests.algorithms.test_runs_liveness import chain

CAPTURED = Path(__file__).parents[1] / "data" / "captured"


@frozen
class Progress:
    """What a condition on work looks at."""

    best_time: float = 100.0
    lower: float = 50.0
    nodes: int = 10
    worked: Worked = field(factory=lambda: worked())


class Arrays:
    """The one array that counts."""

    def __init__(self):
        self.work = np.zeros(1, np.int64)


def worked(gained=0.0, now=0.0):
    arrays = Arrays()
    counted = Worked(arrays)
    arrays.work[0] = round(gained * RATE)
    counted.note(100.0)
    arrays.work[0] = round(now * RATE)
    return counted


@pytest.mark.parametrize(
    "gained, now, goes_on",
    [(0.0, 0.4, True), (0.0, 0.6, False), (1.0, 1.9, True), (1.0, 2.1, False), (0.1, 0.59, True), (0.1, 0.61, False)],
)
def test_a_search_goes_on_for_half_a_second_of_work_or_as_long_again_as_to_its_last_gain(gained, now, goes_on):
    assert gaining(0.5)(Progress(worked=worked(gained, now))) is goes_on
    assert gaining(0.5)(Progress(best_time=float("inf"), worked=worked(gained, now)))


def test_only_gains_count_and_small_ones_add_up():
    arrays = Arrays()
    counted = Worked(arrays)
    for step, (time, gained) in enumerate(((1e6, 0), (1e6 * (1 - 0.6 * GAIN), 0), (1e6 * (1 - 1.2 * GAIN), 2))):
        arrays.work[0] = step * RATE
        counted.note(time)
        assert counted.gained == gained
    assert counted.idle == 0


def test_conditions_on_work_and_size_are_read_back():
    assert nodes_up_to(10)(Progress()) and not nodes_up_to(9)(Progress())
    for condition in (gaining(0.25), nodes_up_to(250), worked_up_to(0.25)):
        assert parse(repr(condition)) == condition
        assert "0.25 s" in str(condition) or "250 nodes" in str(condition)
    assert parse(repr(plan_first)) == plan_first and parse(repr(raise_bound)) == raise_bound


def test_work_is_counted_and_the_same_however_fast_the_machine():
    """A clock whose seconds are a thousand times as long changes nothing: neither plan, nor trail, nor work."""
    problem = Problem(graph=read_joint_graph(CAPTURED / "unet.json.gz"), budget=1)
    problem = Problem(graph=problem.graph, budget=int(store_all_peak(problem.graph) * 0.5))
    ticks = itertools.count(step=1000.0)
    results = []
    for clock in (Clock(), Clock(now=lambda: next(ticks))):
        search = Search(problem, clock, 0, "test")
        MultiStart(4).improve(search)
        RuinAndRecreate(work=1e6).if_(gaining(0.01)).improve(search)
        results.append((search.worked.seconds, search.worked.gained, tuple(search.trail), search.best.tolist()))
    assert results[0] == results[1]
    assert 0 < results[0][1] <= results[0][0] < 1


def test_evictions_that_share_a_scan_take_less_work():
    graph = read_joint_graph(CAPTURED / "encdec6.json.gz")
    search = Search(Problem(graph=graph, budget=int(store_all_peak(graph) * 0.35)), Clock(), 0, "test")
    work = []
    for served in (1, 8):
        before, scoring = search.worked.seconds, Scoring(search.arrays.price, 1.0, 0.0, 0.0, 0, served)
        plan, fit = shave(search.flat, scoring, search.base, search.budget, search.streams.spawn("shift"), NO_CEILING)
        assert fit and search.arrays.fits(plan)
        work.append(search.worked.seconds - before)
    assert 0 < work[1] < 0.8 * work[0]


def test_in_haste_a_sequence_that_would_take_too_long_is_given_up_before_it_does():
    graph = read_joint_graph(CAPTURED / "encdec6.json.gz")
    search = Search(Problem(graph=graph, budget=int(store_all_peak(graph) * 0.35)), Clock(), 0, "test")

    def shaved(served, ceiling):
        scoring = Scoring(search.arrays.price, 1.0, 0.0, 0.0, 0, served)
        sequence, fit = shave(search.flat, scoring, search.base, search.budget, search.streams.spawn("shift"), ceiling)
        return search.arrays.time_of(sequence), fit

    time, base = shaved(8, NO_CEILING)[0], search.arrays.base_time
    ceiling = base + (time - base) // 3
    (late, late_fits), (early, early_fits) = shaved(1, ceiling), shaved(8, ceiling)
    assert not late_fits and not early_fits
    assert base < early < ceiling < late
    assert shaved(8, time + (time - base)) == (time, True)


def test_a_search_without_gains_gives_up():
    graph = read_joint_graph(CAPTURED / "unet.json.gz")
    problem = Problem(graph=graph, budget=int(store_all_peak(graph) * 0.35))
    start = RuinAndRecreate(work=3e7, others=0, served=8).solve(problem).schedule
    searches = []
    for patience in (1.0, 0.1):
        search = Search(problem, Clock(), 0, "test")
        search.offer(search.arrays.sequence_of(start), "the start")
        RuinAndRecreate(work=2e7, temperature=0.0, others=0, patience=patience).improve(search)
        searches.append(search)
    whole, given_up = searches
    assert whole.best_time == given_up.best_time, "the longer search gains: take another seed"
    assert 0 < given_up.worked.seconds < 0.5 * whole.worked.seconds


def test_each_kind_of_work_counts():
    search = Search(Problem(graph=chain(24), budget=30), Clock(), 0, "test")
    before = search.worked.seconds
    for work in (
        lambda: MultiStart(1).improve(search),
        lambda: search.shifted,
        lambda: search.arrays.fits(search.base),
    ):
        work()
        assert search.worked.seconds > before
        before = search.worked.seconds


@pytest.fixture(scope="module")
def planned():
    graph = read_joint_graph(CAPTURED / "gpt12.json.gz")
    problem = Problem(graph=graph, budget=int(store_all_peak(graph) * 0.35))
    clock = Clock()
    return problem, plan_first.solve(problem, clock=clock), clock


def test_a_plan_of_hundreds_of_nodes_waits_for_no_integers_and_no_orders(planned):
    problem, outcome, _ = planned
    assert outcome.cost.time <= 1.1944 * problem.graph.time
    assert outcome.word == "certified"
    assert not any("integers" in line or "AnyOrder" in line for line in outcome.trail)


def test_what_was_left_out_raises_the_bound_and_keeps_the_plan(planned):
    problem, outcome, _ = planned
    raised = with_start(raise_bound, outcome.schedule).solve(problem)
    assert raised.cost.time <= outcome.cost.time
    assert outcome.lower < raised.lower <= raised.cost.time
    assert any("integers" in line for line in raised.trail)


def test_the_planner_of_solve_is_as_before():
    """`auto` proves as much as ever; what `wrap` leaves out is not left out there. Only its last search needs gains."""
    moves = [repr(move) for move in auto.plain.solvers[0].moves]
    assert any("HardestInstants" in move for move in moves)
    assert [move for move in moves if "gaining" in move] == moves[-1:]
