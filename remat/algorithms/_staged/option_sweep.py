"""Many budgets of one block by one programme: `HIlp().sweep(peaks=20, saves=20)`.

The programme is built once; a new budget changes its parameters. Budgets fall: a plan that is optimal under a larger pair of
budgets and fits a smaller pair is optimal there too, so that pair is not solved (rising budgets give starts instead, which
save less: most of the time goes into proofs). Within a peak, all saves below the first without a plan are left out. Peaks are
independent of each other otherwise: they go through any `concurrent.futures.Executor`, a process pool by default.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import BrokenExecutor, Executor, Future, ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from typing import Protocol, runtime_checkable

from attrs import evolve, field, frozen

from remat._warn import warn
from remat.algorithms._core.clock import Clock
from remat.algorithms._core.options import OptionSource, undominated
from remat.algorithms._core.outcome import IMPOSSIBLE
from remat.algorithms._core.problem import Problem
from remat.algorithms._milp.backends import Backend
from remat.algorithms._staged.budget_solver import Found, Programme, Watch
from remat.algorithms._staged.warm_start import narrowed, prime
from remat.ir import Graph, LayerOption, Run, Schedule, option_of, validate
from remat.settings import either, instance, optional, tuple_of, whole
from remat.units import Bytes, Ns

Budgets = int | tuple[Bytes, ...]


@runtime_checkable
class StagedSolver(Protocol):
    """What a sweep asks of its solver, an `HIlp`."""

    @property
    def backend(self) -> Backend:
        """Who solves."""

    @property
    def gap(self) -> float:
        """Relative gap at which to stop."""

    @property
    def primes(self) -> bool:
        """Whether it begins with a plan of its own."""

    def refuses(self, graph: Graph) -> str | None:
        """Why it cannot treat the graph, or None."""

    def build(self, graph: Graph, *, save: bool = False) -> Programme:
        """The programme of a graph, for many budgets."""


_budgets = either(whole(1, "budgets"), tuple_of(whole(0, "bytes")))


@frozen(kw_only=True)
class Point:
    """What is known at one pair of budgets.

    Attributes:
        peak: bytes while the block runs. save: bytes held while the loss node runs, beyond what it reads and writes.
        schedule: the plan, or None.
        time: of the plan [ns]. used, held: bytes of its peak and of what it holds.
        bound: proved for every staged schedule under the two budgets [ns]; 0: nothing is.
        notes: the solver's words.
    """

    peak: Bytes
    save: Bytes
    schedule: Schedule | None = None
    time: Ns = 0
    used: Bytes = 0
    held: Bytes = 0
    bound: Ns = 0
    notes: tuple[str, ...] = ()


@frozen(kw_only=True)
class Swept:
    """The outcome of a sweep: the points that were solved, and what went wrong in words."""

    points: tuple[Point, ...]
    lost: tuple[str, ...] = ()

    def options(self, block: Graph) -> tuple[LayerOption, ...]:
        """The options of all plans that none of the others dominates."""
        plans = dict.fromkeys(one.schedule for one in self.points if one.schedule is not None)
        return undominated(option_of(block, plan) for plan in plans)


@frozen
class IlpSweep(OptionSource):
    """One integer programme under many budgets of a block.

    Attributes:
        solver: its settings.
        peaks: how many budgets for the peak, evenly from the block's floor to its peak without recomputation; or bytes.
        saves: how many for what is held in between, evenly from nothing to all that the fastest plan holds; or bytes.
        workers: processes, where no executor is given; None: one per core, 1: this process.
    """

    solver: StagedSolver = field(validator=instance(StagedSolver, "HIlp()"))
    peaks: Budgets = field(default=8, kw_only=True, validator=_budgets)
    saves: Budgets = field(default=6, kw_only=True, validator=_budgets)
    workers: int | None = field(default=None, kw_only=True, validator=optional(whole(1, "processes")))

    def __repr__(self) -> str:
        own = "" if self.workers is None else f", workers={self.workers}"
        return f"{self.solver!r}.sweep(peaks={self.peaks!r}, saves={self.saves!r}{own})"

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
        # spawned, not forked: the caller may hold threads and locks of its own
        with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as own:
            return self._parallel(block, peaks, own, clock, seed)

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
        return Swept(points=tuple(sorted(points, key=lambda one: (one.peak, -one.save))), lost=tuple(lost))


def sweep_peaks(sweep: IlpSweep, block: Graph, peaks: Sequence[Bytes], seconds: float, seed: int = 0) -> list[Point]:
    """The task of a worker: all saves of some peaks."""
    clock = Clock(None if seconds == float("inf") else seconds)
    return _Sweeper(sweep, block, clock, seed).all(peaks)


class _Sweeper:
    def __init__(self, sweep: IlpSweep, block: Graph, clock: Clock, seed: int) -> None:
        self.sweep, self.block, self.clock, self.seed = sweep, block, clock, seed
        self.programme: Programme = sweep.solver.build(block, save=True)
        everything = Schedule.from_runs(block, range(len(block)))
        self.most = held_bytes(block, everything)
        self.saves = even(0, self.most, sweep.saves) if isinstance(sweep.saves, int) else sorted(set(sweep.saves))
        self.known: list[Point] = []

    def all(self, peaks: Sequence[Bytes]) -> list[Point]:
        """All saves of the peaks, both falling."""
        for peak in sorted(peaks, reverse=True):
            for save in sorted(self.saves, reverse=True):
                if self.clock.expired:
                    return self.known
                if self._known(peak, save):
                    continue
                self.known.append(self._solve(peak, save))
                if self.known[-1].schedule is None:
                    break  # nothing fits with less
        return self.known

    def _known(self, peak: Bytes, save: Bytes) -> bool:
        """Whether the plan of a pair at least as large fits this one: then it is optimal here too."""
        return any(
            one.schedule is not None and one.save >= save and one.used <= peak and one.held <= save
            for one in self.known
        )

    def _solve(self, peak: Bytes, save: Bytes) -> Point:
        solver = self.sweep.solver
        bound = max((one.bound for one in self.known if one.peak >= peak and one.save >= save), default=0)
        known = None
        if solver.primes:
            known, lower = self._primed(peak, save, bound)
            if lower == IMPOSSIBLE:
                return Point(peak=peak, save=save, notes=("impossible for every schedule",))
            bound = max(bound, int(lower))
        if known is not None and known.cost is not None and known.cost.time <= bound * (1 + solver.gap):
            found = evolve(known, bound=bound, notes=("no programme was needed: its bound was known",))
        else:
            # half the gap, so that the bound serves the next smaller budgets too
            gap, watch = solver.gap if known is None else solver.gap / 2, Watch(self.clock, self.sweep)
            found = self.programme.solve(peak, save=save, known=known, gap=gap, watch=watch)
        return self._point(peak, save, found, bound)

    def _primed(self, peak: Bytes, save: Bytes, bound: Ns) -> tuple[Found | None, Ns | float]:
        """A plan under both budgets, and a bound of every schedule."""
        graph = narrowed(self.block, peak, save)
        if graph is None:
            return None, 0
        problem = Problem(graph=graph, budget=peak)
        first = prime(problem, self.sweep.solver.gap, self.clock.nested(), self.seed, bound=bound)
        if first.schedule is None or held_bytes(self.block, first.schedule) > save:
            return None, first.lower
        return self.programme.known(first.schedule, peak), first.lower

    def _point(self, peak: Bytes, save: Bytes, found: Found, bound: Ns) -> Point:
        if found.schedule is None or found.cost is None:
            return Point(peak=peak, save=save, notes=found.notes)
        return Point(
            peak=peak,
            save=save,
            schedule=found.schedule,
            time=found.cost.time,
            used=found.cost.peak,
            held=held_bytes(self.block, found.schedule),
            bound=max(bound, int(min(found.bound, found.cost.time))),
            notes=found.notes,
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
        sum(sizes[name] for name in (*node.reads, *node.writes)) + min(one.workspace for one in node.options)
        for node in block.computes
    )


def held_bytes(block: Graph, schedule: Schedule) -> Bytes:
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
