"""Deadlines: no piece of work begins after the end, and what cannot be interrupted gets the time that is left."""

import math
from pathlib import Path

import pytest
from attrs import frozen

from remat.algorithms._core import startup as once
from remat.algorithms._core.clock import Clock
from remat.algorithms._core.problem import Problem
from remat.algorithms._core.solver import Solver
from remat.algorithms._milp import direct, probing
from remat.algorithms._milp.direct import solve_mixed, solve_relaxed
from remat.algorithms._milp.linear import Builder
from remat.algorithms._search import passes as moves
from remat.algorithms._search import state as search
from remat.algorithms._search.auto import auto, raise_bound
from remat.algorithms._whole.baselines import StoreAll, store_all_peak
from remat.ir import read_joint_graph, validate
from remat.testing.clock import memory_clock

CAPTURED = Path(__file__).parents[1] / "data" / "captured"
KERNELS = {moves: ("shave", "delete", "ruin_and_recreate", "relieve"), search: ("shift",)}
"""What takes long, where it is called from; `delete` comes after a shaving that was begun in time."""


class Work:
    """Time that moves on by one with each piece of work, and what began when it was over."""

    def __init__(self, end):
        self.done, self.end, self.late = 0, end, []

    def __call__(self):
        return float(self.done)

    def counted(self, name, function):
        def piece(*args, **kwargs):
            if name != "delete":
                if self.done >= self.end:
                    self.late.append(name)
                self.done += 1
            return function(*args, **kwargs)

        return piece


@pytest.fixture(scope="module")
def unet():
    return read_joint_graph(CAPTURED / "unet.json.gz")


@pytest.mark.parametrize("end", [0, 1, 2, 5, 20, 40, 60, 100, 200])
def test_no_piece_of_work_begins_after_the_end(unet, end, monkeypatch):
    work = Work(end)
    for module, names in KERNELS.items():
        for name in names:
            monkeypatch.setattr(module, name, work.counted(name, getattr(module, name)))
    solve = direct.run

    def run(problem, clock, **options):
        work.counted("formulation", lambda: None)()
        return solve(problem, None, **options)  # time stands still inside a formulation here, so it is not cut

    for module in (direct, probing):
        monkeypatch.setattr(module, "run", run)
    problem = Problem(graph=unet, budget=int(store_all_peak(unet) * 0.3))
    outcome = auto.solve(problem, clock=Clock(end, now=work))
    assert work.late in ([], ["shave"])  # what a formulation proposed at the very end is shaved once
    assert work.done == end + len(work.late)
    if outcome.schedule is not None:
        validate(unet, outcome.schedule, problem.budget)
        assert outcome.lower <= outcome.upper


def knapsack():
    builder = Builder()
    for cost in (4, 6, 9):
        builder.new(1, cost=cost, integral=True)
    builder.row([(0, -3), (1, -5), (2, -7)], -8)
    return builder.build()


@pytest.mark.parametrize("solve", [solve_relaxed, solve_mixed])
def test_a_formulation_gets_the_time_that_is_left_and_none_without_an_end(solve, monkeypatch):
    import highspy

    given = []
    real = highspy.Highs.run

    def spy(self):
        given.append(self.getOptionValue("time_limit")[1])
        return real(self)

    monkeypatch.setattr(highspy.Highs, "run", spy)
    free = solve(knapsack())
    assert solve(knapsack(), clock=Clock(60, now=lambda: 0.0)).bound == free.bound > 0
    assert given == [math.inf, 60]
    over = solve(knapsack(), clock=memory_clock(0))
    assert (over.point, over.bound, over.finished) == (None, 0, False)
    assert len(given) == 2


def test_a_clock_of_planning_time_stands_still_while_something_is_imported(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(once.time, "monotonic", lambda: now[0])
    before = once.planning_time()
    now[0] += 2
    with once.importing():
        now[0] += 30
        with once.importing():
            now[0] += 5
    assert once.planning_time() - before == pytest.approx(2)
    assert once.import_seconds() >= 35


def test_a_clock_of_planning_time_stands_still_while_a_kernel_is_compiled(monkeypatch):
    from numba import njit

    now = [0.0]
    monkeypatch.setattr(once.time, "monotonic", lambda: now[0])
    before, compiled = once.planning_time(), once.compile_seconds()

    def slow(x):
        return x + 1

    real = njit(slow)._compiler.__class__.compile

    def compile_slowly(self, *args):
        now[0] += 40
        return real(self, *args)

    kernel = njit(slow)
    monkeypatch.setattr(kernel._compiler.__class__, "compile", compile_slowly)
    assert kernel(1) == 2
    assert once.compile_seconds() - compiled == 40
    assert once.planning_time() == pytest.approx(before)


@frozen
class Interrupted(Solver):
    """Reports a plan, and is interrupted: as Python code is, or as compiled code is at times, `kernels` deep."""

    kernels: int

    def plan(self, problem, clock, seed):
        clock.report(self, schedule=StoreAll().plan(problem, clock, seed).schedule)
        self.run(self.kernels)

    def run(self, kernels):
        if not kernels:
            raise KeyboardInterrupt
        try:
            self.run(kernels - 1)
        except BaseException as cause:
            raise SystemError("a kernel returned a result with an exception set") from cause


@pytest.mark.parametrize("kernels", [0, 1, 2, 3])
def test_an_interruption_keeps_the_plan_reported_and_stops_the_clock(unet, kernels):
    clock = Clock()
    outcome = Interrupted(kernels).solve(Problem(graph=unet, budget=store_all_peak(unet)), clock=clock)
    assert outcome.cost.time == unet.time
    assert clock.stopped and clock.remaining == 0


def test_a_reported_plan_is_written_out_once_when_it_is_asked_for(unet):
    asked = []

    def written():
        asked.append(1)
        return StoreAll().plan(Problem(graph=unet, budget=0), Clock(), 0).schedule

    clock = Clock()
    clock.report("test", schedule=written, best=unet.time)
    clock.report("test", bound=3)
    assert not asked
    assert clock.best is clock.best is not None and len(asked) == 1


def test_another_system_error_is_no_interruption(unet, monkeypatch):
    def plan(self, problem, clock, seed):
        raise SystemError("error return without exception set")

    monkeypatch.setattr(Interrupted, "plan", plan)
    with pytest.raises(SystemError):
        Interrupted(1).solve(Problem(graph=unet, budget=store_all_peak(unet)))


def test_what_work_was_charged_for_reaches_the_clock_it_was_given(unet):
    clock = Clock()
    auto.solve(Problem(graph=unet, budget=int(store_all_peak(unet) * 0.5)), clock=clock)
    assert set(clock.spent) == {"plan", "bound"}
    assert min(clock.spent.values()) > 0


def test_effort_reaches_the_clock_it_was_given_and_is_the_same_in_two_runs(unet):
    clocks = Clock(), Clock()
    for clock in clocks:
        raise_bound.solve(Problem(graph=unet, budget=int(store_all_peak(unet) * 0.7)), clock=clock)
    assert clocks[0].effort == clocks[1].effort > 0
