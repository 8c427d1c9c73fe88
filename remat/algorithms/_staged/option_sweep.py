"""Many budgets of one block by one formulation: `HIlp().sweep(peaks=20, saves=20)`.

The formulation is built once; a new budget changes its parameters. Budgets go from large to small: a plan that is optimal under a
larger pair of budgets and fits a smaller pair is optimal there too, so that pair is not solved (budgets from small to large would
give starts instead, which save less: most of the time goes into proofs). Within a peak, all saves below the first without a plan
are left out. Peaks are otherwise independent: they go through any `concurrent.futures.Executor`, or processes on request.

With a deadline, each pair may take a share of the time that is left (`SHARE`): the small budgets come last, and their options
are those that fit where memory is scarce.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from concurrent.futures import BrokenExecutor, Executor, Future, ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from typing import Protocol, runtime_checkable

from attrs import evolve, field, frozen

from remat._warn import warn
from remat.algorithms._core.clock import A_CLOCK, Clock
from remat.algorithms._core.options import SHARE, OptionSource, both_halves, undominated
from remat.algorithms._core.outcome import IMPOSSIBLE
from remat.algorithms._core.problem import Problem
from remat.algorithms._milp.backend import Backend
from remat.algorithms._staged.budget_solver import BudgetResult, BudgetSolver, Watch
from remat.algorithms._staged.warm_start import narrowed, starting_plan
from remat.ir import Graph, LayerOption, Run, Schedule, option_of, validate
from remat.ir.arguments import A_GRAPH
from remat.settings import SEED, either, instance, optional, takes, tuple_of, whole
from remat.units import Bytes, Ns

Budgets = int | tuple[Bytes, ...]


@runtime_checkable
class StagedSolver(Protocol):
    """What a sweep needs of its solver, an `HIlp`."""

    @property
    def backend(self) -> Backend:
        """The back end."""

    @property
    def gap(self) -> float:
        """Relative gap at which to stop."""

    @property
    def warm_starts(self) -> bool:
        """Whether it begins with a plan of its own search."""

    def refuses(self, graph: Graph) -> str | None:
        """Why it cannot treat the graph, or None."""

    def build(self, graph: Graph, *, save: bool = False) -> BudgetSolver:
        """The formulation of a graph, for many budgets."""


_executor = optional(instance(Executor, "ProcessPoolExecutor(4)"))
_budgets = either(whole(1, "budgets"), tuple_of(whole(0, "bytes")))


@frozen(kw_only=True)
class Point:
    """The result at one pair of budgets.

    Attributes:
        peak: bytes while the block runs. save: bytes saved while the loss node runs, beyond what it reads and writes.
        schedule: the plan, or None.
        time: of the plan [ns]. used, saved: bytes of its peak, and bytes that it saves.
        bound: claimed for every staged schedule under the two budgets [ns]; 0: none.
        notes: the solver's notes.
    """

    peak: Bytes
    save: Bytes
    schedule: Schedule | None = None
    time: Ns = 0
    used: Bytes = 0
    saved: Bytes = 0
    bound: Ns = 0
    notes: tuple[str, ...] = ()


@frozen(kw_only=True)
class Swept:
    """The outcome of a sweep: the points that were solved, and a sentence for each failure."""

    points: tuple[Point, ...]
    lost: tuple[str, ...] = ()

    def options(self, block: Graph) -> tuple[LayerOption, ...]:
        """The options of all plans that none of the others dominates."""
        plans = dict.fromkeys(point.schedule for point in self.points if point.schedule is not None)
        return undominated(option_of(block, plan) for plan in plans if both_halves(block, plan))


@frozen
class IlpSweep(OptionSource):
    """One MILP formulation under many budgets of a block.

    Attributes:
        solver: its settings.
        peaks: how many budgets for the peak, evenly from the block's floor to its peak without recomputation; or bytes.
        saves: how many for what is saved in between, evenly from nothing to all that the fastest plan saves; or bytes.
        workers: processes, where no executor is given; 1: this process; None: one per core. Scripts that use more than one need
            the usual `if __name__ == "__main__":`.
    """

    solver: StagedSolver = field(validator=instance(StagedSolver, "HIlp()"))
    peaks: Budgets = field(default=8, kw_only=True, validator=_budgets)
    saves: Budgets = field(default=6, kw_only=True, validator=_budgets)
    workers: int | None = field(default=1, kw_only=True, validator=optional(whole(1, "processes")))

    def __repr__(self) -> str:
        workers = "" if self.workers == 1 else f", workers={self.workers}"
        return f"{self.solver!r}.sweep(peaks={self.peaks!r}, saves={self.saves!r}{workers})"

    @takes(block=A_GRAPH, clock=A_CLOCK, seed=SEED, executor=_executor)
    def options(
        self, block: Graph, *, clock: Clock | None = None, seed: int = 0, executor: Executor | None = None
    ) -> tuple[LayerOption, ...]:
        """The Pareto set of options; none when the solver refuses the block or no budget has a plan.

        Warns when budgets were lost with a worker.
        """
        if self.solver.refuses(block) is not None:
            return ()
        swept = self.run(block, clock=clock, seed=seed, executor=executor)
        for words in swept.lost:
            warn(words, RuntimeWarning)
        return swept.options(block)

    @takes(block=A_GRAPH, clock=A_CLOCK, seed=SEED, executor=_executor)
    def run(
        self, block: Graph, *, clock: Clock | None = None, seed: int = 0, executor: Executor | None = None
    ) -> Swept:
        """Solve all budgets; with an executor, one task per peak.

        Raises:
            BackendMissing: when the back end is not installed.
        """
        self.solver.backend.check()
        clock = Clock() if clock is None else clock
        peaks = self._peaks(block)
        workers = min(len(peaks), self.workers or os.cpu_count() or 1)
        if executor is not None:
            return self._parallel(block, peaks, executor, clock, seed)
        if workers == 1:
            return Swept(points=tuple(_Sweeper(self, block, clock, seed).all(peaks)))
        # spawned, not forked: the caller may have threads and locks
        with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
            return self._parallel(block, peaks, pool, clock, seed)

    def _peaks(self, block: Graph) -> list[Bytes]:
        if isinstance(self.peaks, tuple):
            return sorted(set(self.peaks))
        high = validate(block, Schedule.from_runs(block, range(len(block)))).peak
        return even(min(working_set(block), high), high, self.peaks)

    def _parallel(self, block: Graph, peaks: Sequence[Bytes], executor: Executor, clock: Clock, seed: int) -> Swept:
        tasks: dict[Future[list[Point]], Bytes] = {}
        lost: list[str] = []
        try:
            for peak in peaks:
                tasks[executor.submit(sweep_peaks, self, block, (peak,), clock.remaining, seed)] = peak
        except BrokenExecutor as error:
            lost.append(f"the pool broke: {error}")
        points: list[Point] = []
        for task in as_completed(tasks):
            try:
                points.extend(task.result())
            except BrokenExecutor as error:
                lost.append(f"a worker died with the budgets of peak {tasks[task]} B: {error}")
        return Swept(points=tuple(sorted(points, key=lambda point: (point.peak, -point.save))), lost=tuple(lost))


def sweep_peaks(sweep: IlpSweep, block: Graph, peaks: Sequence[Bytes], seconds: float, seed: int = 0) -> list[Point]:
    """The task of a worker: all saves of some peaks."""
    clock = Clock(None if seconds == float("inf") else seconds)
    return _Sweeper(sweep, block, clock, seed).all(peaks)


class _Sweeper:
    def __init__(self, sweep: IlpSweep, block: Graph, clock: Clock, seed: int) -> None:
        self.sweep, self.block, self.clock, self.seed = sweep, block, clock, seed
        self.budget_solver: BudgetSolver = sweep.solver.build(block, save=True)
        everything = Schedule.from_runs(block, range(len(block)))
        self.most = saved_bytes(block, everything)
        self.saves = even(0, self.most, sweep.saves) if isinstance(sweep.saves, int) else sorted(set(sweep.saves))
        self.points: list[Point] = []

    def all(self, peaks: Sequence[Bytes]) -> list[Point]:
        """All saves of the peaks, both falling."""
        saves = sorted(self.saves, reverse=True)
        for done, peak in enumerate(sorted(peaks, reverse=True)):
            left = (len(peaks) - done) * len(saves)
            for place, save in enumerate(saves):
                if self.clock.expired:
                    return self.points
                if self._covered(peak, save):
                    continue
                self.points.append(self._solve(peak, save, self._share(left - place)))
                if self.points[-1].schedule is None:
                    break  # nothing fits with less
        return self.points

    def _share(self, pairs: int) -> Clock:
        """The clock of one of the pairs of budgets that are left."""
        remaining = self.clock.remaining
        return self.clock.nested(None if math.isinf(remaining) else SHARE * remaining / pairs)

    def _covered(self, peak: Bytes, save: Bytes) -> bool:
        """Whether the plan of a pair at least as large fits this one: then it is optimal here too."""
        return any(
            point.schedule is not None and point.save >= save and point.used <= peak and point.saved <= save
            for point in self.points
        )

    def _solve(self, peak: Bytes, save: Bytes, clock: Clock) -> Point:
        solver = self.sweep.solver
        bound = max((point.bound for point in self.points if point.peak >= peak and point.save >= save), default=0)
        incumbent = None
        if solver.warm_starts:
            incumbent, lower = self._warm_start(peak, save, bound, clock)
            if lower == IMPOSSIBLE:
                return Point(peak=peak, save=save, notes=("impossible for every schedule",))
            bound = max(bound, int(lower))
        if incumbent is not None and incumbent.cost is not None and incumbent.cost.time <= bound * (1 + solver.gap):
            result = evolve(incumbent, bound=bound, notes=("no MILP solve was needed: the bound was known",))
        else:
            # half the gap, so that the bound serves the next smaller budgets too
            gap, watch = solver.gap if incumbent is None else solver.gap / 2, Watch(clock, self.sweep)
            result = self.budget_solver.solve(peak, save=save, incumbent=incumbent, gap=gap, watch=watch)
        return self._point(peak, save, result, bound)

    def _warm_start(self, peak: Bytes, save: Bytes, bound: Ns, clock: Clock) -> tuple[BudgetResult | None, Ns | float]:
        """A plan under both budgets, and a bound of every schedule."""
        graph = narrowed(self.block, peak, save)
        if graph is None:
            return None, 0
        problem = Problem(graph=graph, budget=peak)
        first = starting_plan(problem, self.sweep.solver.gap, clock.nested(), self.seed, bound=bound)
        if first.schedule is None or saved_bytes(self.block, first.schedule) > save:
            return None, first.lower
        return self.budget_solver.incumbent(first.schedule, peak), first.lower

    def _point(self, peak: Bytes, save: Bytes, result: BudgetResult, bound: Ns) -> Point:
        if result.schedule is None or result.cost is None:
            return Point(peak=peak, save=save, notes=result.notes)
        return Point(
            peak=peak,
            save=save,
            schedule=result.schedule,
            time=result.cost.time,
            used=result.cost.peak,
            saved=saved_bytes(self.block, result.schedule),
            bound=max(bound, int(min(result.bound, result.cost.time))),
            notes=result.notes,
        )


def even(low: Bytes, high: Bytes, count: int) -> list[Bytes]:
    """`count` values from low up to high, the low one left out where there is more than one and they differ."""
    if count == 1 or low >= high:
        return [high]
    return sorted({low + (high - low) * i // count for i in range(1, count + 1)})


def working_set(block: Graph) -> Bytes:
    """Bytes that the heaviest node needs alone: what it reads and writes, and its workspace."""
    sizes = {datum.name: 0 if datum.outside else datum.size for datum in block.data}
    return max(
        sum(sizes[name] for name in (*node.reads, *node.writes)) + min(option.workspace for option in node.options)
        for node in block.computes
    )


def saved_bytes(block: Graph, schedule: Schedule) -> Bytes:
    """Bytes resident while the loss node runs, beyond what it reads and writes, and beyond kept data."""
    loss = block.computes[block.loss]
    border = {*loss.reads, *loss.writes, *(datum.name for datum in block.data if datum.keep)}
    now: dict[str, Bytes] = {}
    for step in schedule.steps:
        if not isinstance(step, Run):
            now.pop(getattr(step, "datum", ""), None)
        elif step.node == loss.name:
            break
        else:
            now.update(block.touched(step).makes)
    return sum(size for name, size in now.items() if name not in border)
