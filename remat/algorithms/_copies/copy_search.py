"""The shared state of passes over run sequences with copies: arrays, the best plan, the bound."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from functools import cached_property
from typing import ClassVar

import numpy as np
from attrs import evolve, frozen

from remat.algorithms._arrays.graph_arrays import Flat, Floats, Ints, Longs, Seed, flatten, row_of
from remat.algorithms._arrays.postponing import postponed_order
from remat.algorithms._arrays.streams import Streams
from remat.algorithms._arrays.work import RATE
from remat.algorithms._copies.copy_arrays import LARGE, NO_LIMIT, Lanes, lanes_of
from remat.algorithms._copies.copy_moves import Prices
from remat.algorithms._copies.copy_polish import polished
from remat.algorithms._copies.copy_replay import FAILED
from remat.algorithms._copies.copy_schedule import schedule_with_copies
from remat.algorithms._copies.copy_shaving import shaved
from remat.algorithms._core.clock import Clock
from remat.algorithms._core.evidence import Evidence, stronger
from remat.algorithms._core.outcome import IMPOSSIBLE
from remat.algorithms._core.problem import Problem
from remat.algorithms._core.solver import Solver
from remat.algorithms._proving.evidence import AllRun
from remat.errors import InvalidSchedule
from remat.ir import Prefetch, Run, Schedule, validate
from remat.units import Ns

_CLOSE, _CLOSE_PER_NODE = 5e-4, 6e-7
_SERVED = 8  # moves made from one list then
_LITTLE = 2.0  # seconds of effort
_TIMES = 3.5  # as much effort as the plan without copies took, and as at least `_LEAST` s, may go into copies
_LEAST = 0.6
_ALONE = 96.0  # seconds of effort, where there is no plan without copies that has a bound

logger = logging.getLogger(__name__)
"""Logs plans that the validator does not confirm (INFO)."""


@frozen(eq=False)
class CopyPlan:
    """A run sequence with copies.

    Attributes:
        seq: nodes in order. mask: per run, its reads that come by a copy.
        issue: per copy, the position before which its prefetch is issued.
        time: of the replay [ns]; `FAILED`: it does not fit.
        settled: polishing all of it once more would bring nothing.
    """

    seq: Ints
    mask: Longs
    issue: Ints
    time: Ns
    settled: bool = False

    @property
    def copies(self) -> int:
        """Number of reads that come by a copy."""
        return len(self.issue)

    @property
    def fits(self) -> bool:
        """Whether the replay found it within the budget."""
        return self.time != FAILED


class CopySearch:
    """A search over plans with copies of one problem.

    Attributes:
        problem, clock, seed, who: of the solve. flat, lanes: the graph, the link and the budgets as arrays.
        base: the captured order of the nodes that must run. base_time: its time [ns].
        start: the order that shavings begin with: the captured one, with heavy nodes relieved where a working set and what is
            kept by then, which copies cannot take away, exceed the budget.
        best: the best plan; None: there is none. lower: a bound for every schedule with copies [ns].
        evidence: what the largest bound can be proved from that has any.
        pool: the best plans of distinct times, best first. trail: a line per event.
        marks_of_bound: (bound, masks of `start`) per instant. other_starts: plans unlike the best ones.
        rough: plans without copies for larger budgets; None: there is no such solver.
        plain_gap: gap of the plan without copies; infinite without one.
        plain_effort: what it took (see `Clock`) [s]. rough_effort: what the plans of `rough` took [s].
    """

    def __init__(self, problem: Problem, clock: Clock, seed: int, who: object, rough: Solver | None = None) -> None:
        assert problem.link is not None
        self.problem, self.clock, self.seed, self.who = problem, clock, seed, who
        self.flat: Flat = flatten(problem.graph)
        self.lanes: Lanes = lanes_of(self.flat, problem.link, problem.budget, problem.host_budget)
        self.base: Ints = np.flatnonzero(self.flat.required).astype(np.int32)
        self.base_time: Ns = int(self.flat.time.sum())
        self.start: Ints = postponed_order(self.flat, self.base, problem.budget)
        self.streams = Streams(seed)
        self.best: CopyPlan | None = None
        self.pool: list[CopyPlan] = []
        self.lower: Ns | float = self.base_time
        self.evidence: Evidence | None = AllRun(problem.graph, problem.budget, self.base_time, problem.link)
        self._taken: list[CopyPlan] = []
        self.trail: list[str] = []
        self.marks_of_bound: list[tuple[Ns, Longs]] = []
        self.other_starts: list[CopyPlan] = []
        self.rough, self.plain_gap = rough, float("inf")
        self.plain_effort, self.rough_effort = 0.0, 0.0
        self._searches = 0

    def next_search(self) -> int:
        """The number of the search that begins now, from 0: each uses other random numbers."""
        self._searches += 1
        return self._searches - 1

    # -- plans ---------------------------------------------------------------------------------------------------------

    def replayed(self, seq: Ints, mask: Longs) -> CopyPlan:
        """The plan of a sequence with copies, replayed."""
        return self.polished(seq, mask, (0, 0), 0)

    def polished(self, seq: Ints, mask: Longs, span: tuple[int, int], passes: int, *, most: Ns = NO_LIMIT) -> CopyPlan:
        """The sequence, polished between two positions, and replayed; as if it did not fit where it takes more than `most` ns."""
        runs, masks, issue, time, settled = polished(self.flat, self.lanes, (seq, mask), span, passes, most=most)
        return CopyPlan(runs, masks, issue, int(time), settled and span == (0, len(seq)))

    def shaved(self, seq: Ints, mask: Longs, prices: Prices, rng: Seed) -> tuple[Ints, Longs] | None:
        """The sequence with reruns and copies added until its profile is within the budget; None if shaving gives up."""
        # whole numbers among the settings would be other types to the kernel
        lane, exponent, capacity = float(prices.lane), float(prices.exponent), float(prices.capacity)
        served = _SERVED if self.large else 1
        prices = prices._replace(lane=lane, exponent=exponent, capacity=capacity, served=served)
        runs, masks, fit = shaved(self.flat, self.lanes, prices, seq, mask, rng)
        return (runs, masks) if fit else None

    @cached_property
    def time_prices(self) -> Floats:
        """The nodes' times, as prices."""
        return self.flat.time.astype(np.float64)

    def bare(self, seq: Ints) -> Longs:
        """A mask without copies."""
        return np.zeros(len(seq), np.int64)

    def settle(self, plan: CopyPlan) -> None:
        """Note that a plan of the pool is polished now: once more would bring the same again."""
        self.pool = [evolve(other, settled=True) if other is plan else other for other in self.pool]

    def schedule_of(self, plan: CopyPlan) -> Schedule:
        """The plan as a schedule."""
        return schedule_with_copies(self.problem.graph, self.flat, plan.seq, plan.mask, plan.issue)

    def runs_of(self, schedule: Schedule) -> tuple[Ints, Longs]:
        """(runs, masks) of a schedule, of nodes that must run: copies keep their readers, their times are of the replay."""
        at, data = self.problem.graph.node_index, self.problem.graph.data_index
        fetched: set[int] = set()
        seq: list[int] = []
        mask: list[int] = []
        for step in schedule.steps:
            if isinstance(step, Prefetch):
                fetched.add(data[step.datum])
            elif isinstance(step, Run) and self.flat.required[at[step.node]]:
                v, bits = at[step.node], 0
                for k, d in enumerate(row_of(self.flat.reads, v).tolist()):
                    if d in fetched:
                        bits |= 1 << k
                        fetched.discard(d)
                seq.append(v)
                mask.append(bits)
        return np.array(seq, np.int32), np.array(mask, np.int64)

    def offer(self, plan: CopyPlan, how: str) -> bool:
        """Take a plan as the best one if it fits and is faster; whether it was taken."""
        if not plan.fits or any(plan.time == other.time for other in self.pool):
            return False
        if self.best is not None and plan.time >= self.best.time:
            self.pool = sorted([*self.pool, plan], key=lambda other: other.time)[:4]
            return False
        self.best = plan
        self._taken.append(plan)
        self.pool = [plan, *self.pool][:4]
        reruns = len(plan.seq) - len(self.base)
        ratio = plan.time / max(1, self.base_time)
        self.trail.append(
            f"{how}: {ratio:.5f} of the time without recomputation, {reruns} reruns, {plan.copies} copies"
        )
        self.clock.report(self.who, schedule=self.schedule, best=plan.time, bound=self.lower, note=how)
        return True

    def schedule(self) -> Schedule | None:
        """The best plan as a schedule; one that the validator does not confirm gives way to the best before it."""
        while self._taken:
            schedule = self.schedule_of(self._taken[-1])
            if self._confirmed(schedule, self._taken[-1].time):
                return schedule
            self._taken.pop()
            self.best = self._taken[-1] if self._taken else None
        return None

    def _confirmed(self, schedule: Schedule, time: Ns) -> bool:
        problem = self.problem
        try:
            cost = validate(problem.graph, schedule, problem.budget, problem.link)
        except InvalidSchedule as error:
            logger.info("a plan of %d ns is not valid: %s", time, error)
            return False
        if cost.time != time:
            logger.info("a plan takes %d ns, not %d ns", cost.time, time)
        return cost.time == time

    # -- bounds and stops ----------------------------------------------------------------------------------------------

    def prove(self, lower: Ns | float, how: str, evidence: Evidence | None = None) -> None:
        """Raise the bound for every schedule with copies; keep what it can be proved from."""
        self.evidence = stronger(self.evidence, evidence)
        if lower > self.lower:
            self.lower = lower
            ratio = "no schedule exists" if lower == IMPOSSIBLE else f"{lower / max(1, self.base_time):.5f}"
            self.trail.append(f"bound with copies by {how}: {ratio}")
            best = None if self.best is None else self.best.time
            self.clock.report(self.who, best=best, bound=lower, note=how)

    @property
    def overhead(self) -> Ns | None:
        """Time of the best plan beyond that of the nodes; None without a plan."""
        return None if self.best is None else self.best.time - self.base_time

    @property
    def close(self) -> float:
        """The gap at which the search ends: .05 %, and more on graphs of more than 800 nodes, where all takes longer."""
        return max(_CLOSE, _CLOSE_PER_NODE * len(self.base))

    @property
    def large(self) -> bool:
        """Whether the graph has more than 2,000 nodes: passes are shorter then."""
        return len(self.base) > LARGE

    def at_once(self, gap: float) -> bool:
        """Whether the plan without copies was within a gap with little effort: long passes would take many times as much."""
        return self.plain_gap < gap and self.plain_effort < _LITTLE

    @property
    def effort(self) -> float:
        """Effort for plans with copies so far, as `Clock` counts it [s]."""
        return int(self.flat.work[0]) / RATE + self.rough_effort

    @property
    def effort_left(self) -> float:
        """Effort that long passes may still take [s]; infinite where that of the plan without copies is not counted.

        That of solvers that are not passes of a search (`HIlp`, chain programs) is not.
        """
        if self.plain_gap == float("inf"):
            return max(0.0, _ALONE - self.effort)
        if not self.plain_effort:
            return float("inf")
        return max(0.0, _TIMES * max(self.plain_effort, _LEAST) - self.effort)

    def within(self, gap: float) -> bool:
        """Whether the best plan is within a gap of the bound, or none exists."""
        time = float("inf") if self.best is None else self.best.time
        return time <= self.lower * (1 + gap)


class CopyMove(ABC):
    """A pass over plans with copies: frozen settings, and `improve`."""

    __slots__ = ()

    purpose: ClassVar[str] = "plan"
    """What the clock is charged for."""

    @abstractmethod
    def improve(self, search: CopySearch) -> None:
        """Offer better plans or prove better bounds; return when done, or when the clock has expired."""
