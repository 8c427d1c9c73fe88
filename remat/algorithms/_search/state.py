"""What moves over run sequences share: the arrays of the graph, the best sequence, the proved bound, and when to stop.

A *move* (`RunMove`) is a solver that improves a `Search`. Alone it makes a `Search`, improves it and returns its
plan; in a `Polish` many moves work on one. Work is counted in iterations and everything is seeded: the clock can only
cut a search short.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypedDict

import numpy as np
from numpy.typing import NDArray

from remat.algorithms._arrays.graph_arrays import flatten
from remat.algorithms._arrays.liveness import sweep, total_time
from remat.algorithms._core.clock import Clock
from remat.algorithms._core.evidence import Evidence, Written, stronger
from remat.algorithms._core.outcome import IMPOSSIBLE, ClassBound, Plan
from remat.algorithms._core.problem import Problem
from remat.algorithms._core.solver import refuse_unless_flat
from remat.algorithms._core.warm_started import WarmStarted
from remat.algorithms._proving.certificate import grow, step_of
from remat.algorithms._proving.evidence import AllRun
from remat.algorithms._search.kernel_prefetch import await_kernels
from remat.algorithms._search.ordering import shift
from remat.ir import Graph, Schedule
from remat.units import Bytes, Ns

Sequence = NDArray[np.int32]

_POOL = 4  # best distinct sequences kept


class Stage(TypedDict):
    """Where a search is, as `Clock.report` takes it."""

    stage: str
    done: int
    total: int


class Search:
    """The state of a search over run sequences of one problem.

    Attributes:
        flat: the graph as arrays. base: the captured order of the nodes that must run. budget: bytes.
        profile: bytes charged at each node in that order.
        best, best_time: the best sequence within the budget and its time [ns], or None and infinity.
        lower: bound [ns], `IMPOSSIBLE` when no schedule exists. beside: bounds of restricted classes.
        evidence: of the largest bound that can be proved in integers. claims: instants of mixed bounds, with what is claimed.
        pool: the best distinct sequences with their times, best first.
        hardness: bound on the recomputation at each instant (node index) asked so far [ns].
        searches: how many searches were made, so that each has its own random numbers.
        trail: what happened, in words; the same whenever the search is.
        stage, done, total: the pass at work, how many are done and how many there are, for progress.
    """

    def __init__(self, problem: Problem, clock: Clock, seed: int, who: object) -> None:
        self.problem, self.clock, self.seed, self.who = problem, clock, seed, who
        await_kernels()
        self.flat = flatten(problem.graph)
        self.budget = problem.budget
        self.base: Sequence = np.flatnonzero(self.flat.required).astype(np.int32)
        profile = np.zeros(len(self.base), np.int64)
        self.base_peak = int(sweep(self.flat, self.base, len(self.base), profile))
        self.profile = np.zeros(len(problem.graph), np.int64)
        self.profile[self.base] = profile
        # a copy to the host can do what only recomputation can do here: no bound but the base time is proved then
        self.proves = getattr(problem, "link", None) is None
        self.price = self.flat.time.astype(np.float64)
        self.base_time = int(self.flat.time.sum())
        self.best: Sequence | None = None
        self.best_time: float = float("inf")
        self.lower: Ns | float = self.base_time
        self.evidence: Evidence | None = None
        if self.proves:
            self.evidence = AllRun(problem.graph, problem.budget, self.base_time)
        self.claims: list[tuple[Ns | float, tuple[int, ...]]] = []
        self.pool: list[tuple[int, Sequence]] = []
        self._shifted: Sequence | None = None
        self.searches = 0
        self.hardness: dict[int, int] = {}
        self.beside: list[ClassBound] = []
        self.trail: list[str] = []
        self.stage, self.done, self.total = repr(who), 0, 1
        if self.base_peak <= self.budget:
            self.offer(self.base, "the captured order")

    def sequence_of(self, schedule: Schedule) -> Sequence:
        """The run sequence of a schedule of this graph."""
        at = self.problem.graph.node_index
        return np.array([at[run.node] for run in schedule.runs], np.int32)

    def time_of(self, sequence: Sequence) -> Ns:
        """Time of a sequence [ns]."""
        return int(total_time(self.flat, sequence, len(sequence)))

    @property
    def shifted(self) -> Sequence:
        """The captured order with runs moved to where the profile is lower."""
        if self._shifted is None:
            self._shifted = self.shift(self.base, self.budget, 0.8, 10, self.chance(3))
        return self._shifted

    def shift(self, start: Sequence, budget: Bytes, level: float, passes: int, chance: NDArray[np.uint64]) -> Sequence:
        """`start` with runs moved to where the profile is lower, in at most `passes`; the clock is asked between them.

        The peak stays within the larger of the budget and the start's peak; bytes over the share `level` of the budget count.
        """
        roof = max(budget, self.peak_of(start))
        current = start
        for _ in range(passes):
            before = current
            current = shift(self.flat, before, roof, level * budget / max(1, roof), 1, chance)
            if self.clock.expired or np.array_equal(before, current):
                break
        return current

    def chance(self, purpose: int) -> NDArray[np.uint64]:
        """A generator's state for one purpose; the same for the same seed."""
        mixed = (self.seed * 0x9E3779B97F4A7C15 + purpose * 0xBF58476D1CE4E5B9 + 1) % (1 << 64)
        return np.array([mixed], np.uint64)

    def peak_of(self, sequence: Sequence) -> Bytes:
        """Peak of a sequence [bytes]."""
        return int(sweep(self.flat, sequence, len(sequence), np.empty(len(sequence), np.int64)))

    def fits(self, sequence: Sequence) -> bool:
        """Whether a sequence is within the budget."""
        return self.peak_of(sequence) <= self.budget

    def offer(self, sequence: Sequence, how: str) -> bool:
        """Take a sequence as the best when it fits and is faster; returns whether it was taken."""
        took = self.time_of(sequence)
        known = any(took == time for time, _ in self.pool)
        if (known and took >= self.best_time) or not self.fits(sequence):
            return False
        self.pool = sorted([*self.pool, (took, sequence)], key=lambda one: one[0])[:_POOL]
        if took >= self.best_time:
            return False
        self.best, self.best_time = sequence, took
        self.trail.append(f"{how}: time {took / max(1, self.base_time):.5f} of the captured order's")
        self.clock.report(self.who, schedule=self.schedule(), best=took, bound=self.lower, **self._at(), note=how)
        return True

    def prove(
        self,
        lower: Ns | float,
        how: str,
        *,
        evidence: Evidence | None = None,
        claim: tuple[int, ...] = (),
    ) -> None:
        """Raise the bound.

        Args:
            lower: for every schedule [ns].
            how: in words.
            evidence: what it can be proved from.
            claim: instants of a mixed formulation whose solver says so; a tree may prove it.
        """
        if self.proves and evidence is not None:
            self.evidence = stronger(self.evidence, evidence)
        if self.proves and lower > self.lower:
            self.lower = lower
            if claim:
                self.claims.append((lower, claim))
            ratio = "no schedule exists" if lower == IMPOSSIBLE else f"{lower / max(1, self.base_time):.5f}"
            self.trail.append(f"bound by {how}: {ratio}")
            shown = None if self.best is None else int(self.best_time)
            self.clock.report(self.who, best=shown, bound=lower, **self._at(), note=how)

    def _at(self) -> Stage:
        return {"stage": self.stage, "done": self.done, "total": self.total}

    def show(self, lower: Ns | float, assumes: str) -> None:
        """Keep a bound of a restricted class, to be shown beside the proved one."""
        if self.proves:
            self.beside.append(ClassBound(value=lower, assumes=assumes))

    def within(self, gap: float) -> bool:
        """Whether nothing is left to do: the plan is within `gap` of the bound, or none exists."""
        return self.lower == IMPOSSIBLE or self.best_time <= self.lower * (1 + gap)

    def schedule(self) -> Schedule | None:
        """The best sequence as a schedule."""
        return None if self.best is None else Schedule.from_runs(self.problem.graph, self.best.tolist())

    def plan(self) -> Plan:
        """What is to be returned."""
        return Plan(
            schedule=self.schedule(),
            lower=self.lower,
            trail=tuple(self.trail),
            beside=tuple(self.beside),
            evidence=self.evidence,
        )

    @contextmanager
    def charged(self, purpose: str) -> Iterator[None]:
        """Charge the clock with the time of the block for `purpose`, and for no enclosing block."""
        start, inside = self.clock.elapsed, sum(self.clock.spent.values())
        try:
            yield
        finally:
            nested = sum(self.clock.spent.values()) - inside
            self.clock.charge(purpose, self.clock.elapsed - start - nested)


class RunMove(WarmStarted):
    """A solver that improves a search over run sequences of a flat graph."""

    __slots__ = ()

    def refuses(self, graph: Graph) -> str | None:
        """Flat graphs only."""
        return refuse_unless_flat(graph)

    @abstractmethod
    def improve(self, search: Search) -> None:
        """Offer better sequences or prove better bounds; return when done or when the clock has expired."""

    def plan_from(self, problem: Problem, start: Schedule | None, clock: Clock, seed: int) -> Plan:
        """Search from the captured order, and from `start` when there is one."""
        search = Search(problem, clock, seed, self)
        if start is not None:
            search.offer(search.sequence_of(start), "the start")
        with search.charged("plan"):
            self.improve(search)
        if problem.proof_leaves:
            with search.charged("proof"):
                certify(search)
        return search.plan()


def certify(search: Search) -> None:
    """Prove what is claimed: a tree for each claim that says more than is proved, the largest claim first."""
    graph, budget, clock = search.problem.graph, search.budget, search.clock
    left, step = search.problem.proof_leaves, None
    for claimed, instants in sorted(search.claims, key=lambda one: (-one[0], one[1])):
        certified = 0 if search.evidence is None else search.evidence.bound
        if claimed <= certified or clock.expired:
            break
        step = step_of(graph) if step is None else step
        grown = grow(step, budget, list(instants), claimed, leaves=left, clock=clock)
        evidence = Written(graph, grown.proof)
        names = ", ".join(graph.computes[at].name for at in instants)
        shown = (
            "that no schedule exists"
            if grown.proof.bound is None
            else f"{grown.proof.bound / max(1, search.base_time):.5f}"
        )
        short = "" if grown.closed else f", less than the {claimed / max(1, search.base_time):.5f} that is claimed"
        search.trail.append(f"certified at {names}: {shown}{short} ({grown.leaves} leaves)")
        search.prove(evidence.bound, f"a tree of {grown.leaves} leaves at {names}", evidence=evidence)
        if grown.closed:
            break
