"""Many budgets of a block: the Pareto set, early stops, executors, workers that die."""

import os
import signal
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import pytest

from remat.algorithms._core.clock import Clock
from remat.algorithms._core.options import dominates
from remat.algorithms._staged import option_sweep
from remat.algorithms._staged.option_sweep import IlpSweep, even, saved_bytes, sweep_peaks, working_set
from remat.algorithms._staged.solver import HIlp
from remat.algorithms._staged.warm_start import narrowed
from remat.algorithms.named import hiremate, rockmate
from remat.errors import BackendMissing, RematError
from remat.ir import Schedule, load, validate

BLOCKS = Path(__file__).parent.parent.parent / "data" / "blocks"


@pytest.fixture(scope="module")
def mlp():
    return load(BLOCKS / "gpt2_mlp.json")


@pytest.fixture(scope="module")
def here(mlp):
    """The sweep in this process, which others are compared with."""
    return HIlp(gap=0, warm_start=False).sweep(peaks=4, saves=4, workers=1).run(mlp)


def curve(swept, block):
    """The least time at each pair of budgets: plans of equal time may differ, and the known ones are not solved again."""
    high = validate(block, Schedule.from_runs(block, range(len(block)))).peak
    everything = saved_bytes(block, Schedule.from_runs(block, range(len(block))))
    plans = [one for one in swept.points if one.schedule is not None]
    return {
        (peak, save): min((one.time for one in plans if one.used <= peak and one.saved <= save), default=None)
        for peak in even(working_set(block), high, 4)
        for save in even(0, everything, 4)
    }


def test_every_plan_keeps_both_budgets_and_is_optimal_under_them(mlp, here):
    budget_solver = HIlp(gap=0).build(mlp, save=True)
    assert here.points
    for one in here.points:
        assert not here.lost
        alone = budget_solver.solve(one.peak, save=one.save)
        assert (alone.cost is None) == (one.schedule is None)
        if one.schedule is not None:
            cost = validate(mlp, one.schedule, one.peak)
            assert cost.time == one.time == alone.cost.time and cost.peak == one.used
            assert saved_bytes(mlp, one.schedule) == one.saved <= one.save


def test_budgets_that_are_known_already_are_not_solved_again(mlp, here):
    high = validate(mlp, Schedule.from_runs(mlp, range(len(mlp)))).peak
    peaks = even(working_set(mlp), high, 4)
    saves = even(0, saved_bytes(mlp, Schedule.from_runs(mlp, range(len(mlp)))), 4)
    solved = {(one.peak, one.save) for one in here.points}
    assert len(solved) == len(here.points) < len(peaks) * len(saves)
    budget_solver = HIlp(gap=0).build(mlp, save=True)
    for peak in peaks:
        for save in saves:
            if (peak, save) in solved:
                continue
            alone = budget_solver.solve(peak, save=save)
            fitting = [one.time for one in here.points if one.schedule and one.used <= peak and one.saved <= save]
            assert alone.cost is None or alone.cost.time == min(fitting)


@pytest.mark.parametrize("name", ["gpt2_mlp", "resnet_bottleneck"])
@pytest.mark.parametrize("gap", [0, 0.02])
def test_warm_started_plans_keep_both_budgets_and_the_gap_and_their_bounds_hold(name, gap):
    block = load(BLOCKS / f"{name}.json")
    swept = HIlp(gap=gap).sweep(peaks=3, saves=3, workers=1).run(block)
    budget_solver = HIlp(gap=0, warm_start=False).build(block, save=True)
    assert any(one.schedule is not None for one in swept.points)
    for one in swept.points:
        alone = budget_solver.solve(one.peak, save=one.save)
        if one.schedule is None:
            assert alone.cost is None
            continue
        cost = validate(block, one.schedule, one.peak)
        assert cost.time == one.time and saved_bytes(block, one.schedule) == one.saved <= one.save
        if alone.cost is not None:
            assert one.bound <= alone.cost.time and one.time <= alone.cost.time * (1 + gap)


@pytest.mark.parametrize("name", ["gpt2_mlp", "resnet_bottleneck", "gpt2_attention"])
def test_a_narrowed_block_has_room_for_what_may_be_held_and_no_more(name):
    block = load(BLOCKS / f"{name}.json")
    high = validate(block, Schedule.from_runs(block, range(len(block)))).peak
    plans = {one.schedule for one in HIlp(gap=0.05).sweep(peaks=3, saves=3, workers=1).run(block).points} - {None}
    plans.add(Schedule.from_runs(block, range(len(block))))
    told = set()
    for peak in even(working_set(block), high, 5):
        for save in even(0, saved_bytes(block, Schedule.from_runs(block, range(len(block)))), 5):
            narrow = narrowed(block, peak, save)
            for plan in plans:
                fits = validate(block, plan).peak <= peak and saved_bytes(block, plan) <= save
                assert fits == (validate(narrow, plan).peak <= peak)
                told.add(fits)
    assert told == {True, False}


def test_no_option_dominates_another_and_all_come_from_replays(mlp, here):
    options = here.options(mlp)
    assert len(options) >= 2
    assert not any(dominates(a, b) for a in options for b in options if a is not b)
    assert min(one.forward + one.backward for one in options) == mlp.time
    again = HIlp(gap=0, warm_start=False).sweep(peaks=4, saves=4, workers=1)
    assert again.options(mlp) == options  # the same settings give the same options


def test_executors_give_what_this_process_gives(mlp, here):
    sweep = HIlp(gap=0, warm_start=False).sweep(peaks=4, saves=4, workers=None)
    with ThreadPoolExecutor(1) as threads:
        assert curve(sweep.run(mlp, executor=threads), mlp) == curve(here, mlp)
    assert curve(sweep.run(mlp), mlp) == curve(here, mlp)  # a process pool of its own


def test_a_sweep_starts_no_process_unless_it_is_asked_to(mlp, monkeypatch):
    """So that a plain script without a `__main__` guard can plan with `rockmate` and `hiremate`."""
    monkeypatch.setattr(option_sweep, "ProcessPoolExecutor", None)
    assert HIlp().sweep(peaks=2, saves=1).run(mlp).points
    with pytest.raises(TypeError):
        HIlp().sweep(peaks=2, saves=1, workers=2).run(mlp)
    assert "workers" not in repr(rockmate) + repr(hiremate)


def test_a_deadline_leaves_time_for_the_small_budgets(mlp):
    ticks = iter(range(10**7))
    swept = HIlp(gap=0).sweep(peaks=3, saves=3).run(mlp, clock=Clock(3000, now=lambda: next(ticks)))
    assert len({point.peak for point in swept.points}) == 3


def test_budgets_may_be_given_in_bytes(mlp):
    high = validate(mlp, Schedule.from_runs(mlp, range(len(mlp)))).peak
    swept = HIlp().sweep(peaks=(high, high // 2), saves=(high,), workers=1).run(mlp)
    assert {one.peak for one in swept.points} == {high, high // 2}
    for wrong in (0, (), (1.5,), "8"):
        with pytest.raises(RematError, match="A-SETTING"):
            HIlp().sweep(peaks=wrong)
    with pytest.raises(RematError, match="A-SETTING"):
        HIlp().sweep(workers=0)


def test_the_time_limit_keeps_what_was_found(mlp):
    over = Clock(0.0)
    assert HIlp().sweep(workers=1).run(mlp, clock=over).points == ()
    ticks = iter(range(10**6))
    some = Clock(40, now=lambda: next(ticks))
    swept = HIlp().sweep(peaks=4, saves=4, workers=1).run(mlp, clock=some)
    assert 0 < len(swept.points) < 16


class Killing(ProcessPoolExecutor):
    """Kills its worker with the second task."""

    def __init__(self):
        super().__init__(1, mp_context=get_context("spawn"))
        self.count = 0

    def submit(self, task, /, *args, **more) -> Future:
        self.count += 1
        if self.count == 2:
            first = self._pending_work_items and next(iter(self._pending_work_items.values())).future
            if first:
                first.result(timeout=60)  # the first task comes through
            return super().submit(_die)
        return super().submit(task, *args, **more)


def _die():
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_killed_worker_leaves_the_plans_of_the_others_and_says_what_was_lost(mlp):
    sweep = HIlp().sweep(peaks=3, saves=2)
    with Killing() as pool:
        swept = sweep.run(mlp, executor=pool)
    assert swept.lost and "peak" in swept.lost[0]
    assert swept.points and all(one.schedule is None or validate(mlp, one.schedule, one.peak) for one in swept.points)
    with Killing() as pool, pytest.warns(RuntimeWarning, match="worker died"):
        sweep.options(mlp, executor=pool)


def test_a_missing_back_end_is_an_error_before_any_work(mlp):
    from remat.algorithms._milp.backends import Cvxpy

    with pytest.raises(BackendMissing):
        HIlp(backend=Cvxpy(solver="NOPE")).sweep().options(mlp)


def test_a_refused_block_has_no_options():
    assert HIlp(entries=1).sweep().options(load(BLOCKS / "gpt2_layer.json")) == ()


def test_tasks_travel_to_a_dask_cluster(mlp, here):
    distributed = pytest.importorskip("distributed")
    with (
        distributed.LocalCluster(n_workers=1, threads_per_worker=1, processes=False, dashboard_address=None) as cluster,
        distributed.Client(cluster) as client,
    ):
        found = HIlp(gap=0, warm_start=False).sweep(peaks=4, saves=4).run(mlp, executor=client.get_executor())
    assert curve(found, mlp) == curve(here, mlp)


def test_the_task_of_a_worker_is_a_plain_function(mlp):
    points = sweep_peaks(IlpSweep(HIlp(), peaks=1, saves=1), mlp, (10**12,), float("inf"))
    assert [one.time for one in points] == [mlp.time]
