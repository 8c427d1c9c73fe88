"""The shared state of passes over run sequences: the arrays of the graph, the best sequences, the bound, stop rules.

Work is counted in iterations and all random numbers are seeded: the clock can only end a search early.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import TypedDict

import numpy as np

from remat._warn import warn
from remat.algorithms._arrays.graph_arrays import Flat, Seed
from remat.algorithms._arrays.streams import Streams
from remat.algorithms._arrays.work import Worked
from remat.algorithms._core.clock import Clock
from remat.algorithms._core.evidence import Evidence, stronger
from remat.algorithms._core.outcome import IMPOSSIBLE, ClassBound, Plan
from remat.algorithms._core.problem import Problem
from remat.algorithms._proving.evidence import AllRun
from remat.algorithms._proving.prover import CAPTURED
from remat.algorithms._search.kernel_prefetch import await_kernels
from remat.algorithms._search.run_problem import RunProblem, Sequence
from remat.algorithms._search.shifting import shift
from remat.algorithms._search.standing import Bounds, Incumbents
from remat.algorithms._search.stop import Condition
from remat.errors import BackendMissing
from remat.ir import Schedule
from remat.units import Bytes, Ns


class Stage(TypedDict):
    """The progress of a search, as `Clock.report` takes it: the current pass, how many are done, how many there are."""

    stage: str
    done: int
    total: int


class Search:
    """A search over run sequences of one problem: the arrays, the incumbents, the bounds, the clock and the seed.

    Attributes:
        arrays: the problem as arrays. incumbents: the best sequences. bounds: certified or claimed.
        worked: planning work, and how much of it since the last gain.
        clock, seed: of the solve. streams: random numbers by purpose. who: the solver named in reports.
        proves: whether bounds for every schedule may be claimed.
        trail: a text line per event; equal searches have equal trails.
    """

    def __init__(self, problem: Problem, clock: Clock, seed: int, who: object) -> None:
        self.problem, self.clock, self.seed, self.who = problem, clock, seed, who
        self.arrays = RunProblem.of(problem)
        self.incumbents = Incumbents()
        self.bounds = Bounds(self.arrays.base_time)
        self.worked = Worked(self.arrays.flat)
        self.streams = Streams(seed)
        # with a link, a copy to the host can replace recomputation: no bound but the base time holds then
        self.proves = problem.link is None
        if self.proves:
            self.bounds.evidence = AllRun(problem.graph, problem.budget, self.arrays.base_time)
        self.trail: list[str] = []
        self._searches = 0
        self._warned = False
        self._stage = Stage(stage=repr(who), done=0, total=1)
        self._rules: list[tuple[Condition, bool]] = []
        if self.arrays.base_peak <= self.budget:
            self.offer(self.base, "the captured order")

    # -- the problem ---------------------------------------------------------------------------------------------------

    @property
    def flat(self) -> Flat:
        """The graph as arrays."""
        return self.arrays.flat

    @property
    def budget(self) -> Bytes:
        """Of the problem [bytes]."""
        return self.problem.budget

    @property
    def base(self) -> Sequence:
        """The captured order of the nodes that must run."""
        return self.arrays.base

    @property
    def nodes(self) -> int:
        """Nodes that must run."""
        return len(self.base)

    @cached_property
    def shifted(self) -> Sequence:
        """The captured order with runs moved to positions where the profile is lower."""
        return self.shift(self.base, self.budget, 0.8, 10, self.streams.spawn("shifted order"))

    def shift(self, start: Sequence, budget: Bytes, level: float, passes: int, rng: Seed) -> Sequence:
        """`start` with runs moved to positions where the profile is lower, in `passes`; the clock is checked between them.

        The peak stays within the larger of the budget and the start's peak; bytes over the share `level` of the budget count.
        """
        await_kernels()
        ceiling = max(budget, self.arrays.peak_of(start))
        current = start
        for _ in range(passes):
            before = current
            current = shift(self.flat, before, ceiling, level * budget / max(1, ceiling), 1, rng)
            if self.clock.expired or np.array_equal(before, current):
                break
        return current

    def next_search(self) -> int:
        """The number of the search that begins now, from 0: each uses different random numbers."""
        self._searches += 1
        return self._searches - 1

    # -- plans and bounds ----------------------------------------------------------------------------------------------

    @property
    def best(self) -> Sequence | None:
        """The best sequence within the budget."""
        return self.incumbents.best

    @property
    def best_time(self) -> float:
        """Its time, infinite without one [ns]."""
        return self.incumbents.best_time

    @property
    def lower(self) -> Ns | float:
        """The bound, certified or claimed [ns]."""
        return self.bounds.lower

    def offer(self, sequence: Sequence, how: str) -> bool:
        """Take a sequence as the best one if it fits and is faster; returns whether it was taken."""
        time = self.arrays.time_of(sequence)
        if (
            not self.incumbents.wants(time)
            or not self.arrays.fits(sequence)
            or not self.incumbents.take(sequence, time)
        ):
            return False
        self.worked.note(time)
        self.trail.append(f"{how}: time {time / max(1, self.arrays.base_time):.5f} of the captured order's")
        self.clock.report(self.who, schedule=self.schedule, best=time, bound=self.lower, **self._stage, note=how)
        return True

    def prove(
        self, lower: Ns | float, how: str, *, evidence: Evidence | None = None, claim: tuple[int, ...] = ()
    ) -> None:
        """Raise the bound.

        Args:
            lower: the bound for every schedule [ns].
            how: its source, for the trail.
            evidence: from which it can be proved in integers.
            claim: instants of the mixed formulation whose solver claims the bound; a branch-and-bound tree may prove it.
        """
        if not self.proves:
            return
        self.bounds.evidence = stronger(self.bounds.evidence, evidence)
        if self.bounds.raises(lower):
            if claim:
                self.bounds.claims.append((lower, claim))
            ratio = "no schedule exists" if lower == IMPOSSIBLE else f"{lower / max(1, self.arrays.base_time):.5f}"
            self.trail.append(f"bound by {how}: {ratio}")
            best = None if self.best is None else int(self.best_time)
            self.clock.report(self.who, best=best, bound=lower, **self._stage, note=how)

    def show(self, lower: Ns | float, instants: tuple[int, ...]) -> None:
        """Record a bound of the captured order, which is reported separately; trees at the instants may prove it."""
        if self.proves:
            if instants:
                self.bounds.class_claims[len(self.bounds.class_bounds)] = instants
            self.bounds.class_bounds.append(ClassBound(value=lower, assumes=CAPTURED))

    def leave_out(self, who: object, missing: BackendMissing) -> None:
        """Continue without a pass whose solver is not installed: plan and bound may be worse than with it."""
        self.trail.append(f"{who!r} left out: {missing.what}")
        if not self._warned:
            self._warned = True
            warn(f"the plan is made without {who!r} and similar: {missing.what} Fix: {missing.fix}", RuntimeWarning)

    def schedule(self) -> Schedule | None:
        """The best sequence as a schedule."""
        return None if self.best is None else self.arrays.schedule_of(self.best)

    def plan(self) -> Plan:
        """The result of the search."""
        bounds = self.bounds
        return Plan(
            schedule=self.schedule(),
            lower=bounds.lower,
            trail=tuple(self.trail),
            class_bounds=bounds.of_classes(),
            evidence=bounds.evidence,
        )

    # -- when to stop --------------------------------------------------------------------------------------------------

    @property
    def enough(self) -> bool:
        """Whether the search may end: the plan is optimal, none exists, or an active condition says so."""
        return self.best_time <= self.lower or any(condition(self) == end for condition, end in self._rules)

    @property
    def over(self) -> bool:
        """Whether to stop: the search may end, or the clock has expired."""
        return self.clock.expired or self.enough

    @contextmanager
    def until(self, condition: Condition) -> Iterator[None]:
        """Within the block, the search may end when the condition holds."""
        yield from self._under((condition, True))

    @contextmanager
    def while_(self, condition: Condition) -> Iterator[None]:
        """Within the block, the search may end when the condition no longer holds."""
        yield from self._under((condition, False))

    def _under(self, rule: tuple[Condition, bool]) -> Iterator[None]:
        self._rules.append(rule)
        try:
            yield
        finally:
            self._rules.pop()

    # -- reports -------------------------------------------------------------------------------------------------------

    @contextmanager
    def at_stage(self, stage: str, done: int, total: int) -> Iterator[None]:
        """Within the block, reports name this stage."""
        outer, self._stage = self._stage, Stage(stage=stage, done=done, total=total)
        try:
            yield
        finally:
            self._stage = outer

    @contextmanager
    def charged(self, purpose: str) -> Iterator[None]:
        """Charge the clock with the time of the block for `purpose`, which enclosing blocks then do not count."""
        start, inside = self.clock.elapsed, sum(self.clock.spent.values())
        try:
            yield
        finally:
            nested = sum(self.clock.spent.values()) - inside
            self.clock.charge(purpose, self.clock.elapsed - start - nested)
