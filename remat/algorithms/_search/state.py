"""The shared state of passes over run sequences: the arrays of the graph, the best sequences, the bound, stop rules.

A *pass* (`RunMove`) is a solver that improves a `Search`. Alone it creates a `Search`, improves it and returns its
plan; in a `Polish` many passes improve the same search. Work is counted in iterations and all random numbers are seeded: the
clock can only end a search early.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import Any, TypedDict

import numpy as np
from attrs import evolve, field, frozen
from numpy.typing import NDArray

from remat._warn import warn
from remat.algorithms._arrays.graph_arrays import Flat, Floats, Longs, Seed, flatten
from remat.algorithms._arrays.liveness import memory_profile, total_time
from remat.algorithms._arrays.streams import Streams
from remat.algorithms._arrays.work import Worked
from remat.algorithms._core.clock import Clock
from remat.algorithms._core.evidence import Evidence, stronger
from remat.algorithms._core.outcome import IMPOSSIBLE, ClassBound, Plan
from remat.algorithms._core.problem import Problem
from remat.algorithms._core.solver import refuse_unless_flat
from remat.algorithms._core.warm_started import WarmStarted
from remat.algorithms._core.wording import operand
from remat.algorithms._proving.certificate import Claim
from remat.algorithms._proving.evidence import AllRun
from remat.algorithms._proving.prover import CAPTURED, MOST_INSTANTS, Prover
from remat.algorithms._search.kernel_prefetch import await_first_kernels, await_kernels
from remat.algorithms._search.shifting import shift
from remat.algorithms._search.stop import CONDITION, Condition
from remat.errors import BackendMissing
from remat.ir import Graph, Schedule
from remat.settings import instance
from remat.units import Bytes, Ns

Sequence = NDArray[np.int32]

_POOL = 4  # best distinct sequences kept
_ORDERS = 2  # of instants whose claim is of the captured order: most for which trees bound every schedule too
_FREE_ORDER_LEAVES = 8  # their leaves


class Stage(TypedDict):
    """The progress of a search, as `Clock.report` takes it: the current pass, how many are done, how many there are."""

    stage: str
    done: int
    total: int


@frozen(eq=False)
class RunProblem:
    """A problem as arrays, and the cost of its run sequences.

    Attributes:
        problem: the problem. flat: its graph as arrays.
        base: the captured order of the nodes that must run. base_peak: its peak [bytes]. base_time: its time [ns].
        profile: bytes charged at each node in that order, by node.
    """

    problem: Problem
    flat: Flat
    base: Sequence
    base_peak: Bytes
    base_time: Ns
    profile: Longs

    @classmethod
    def of(cls, problem: Problem) -> RunProblem:
        """The arrays of a problem; waits for the process that compiles kernels."""
        await_first_kernels()
        flat = flatten(problem.graph)
        base = np.flatnonzero(flat.required).astype(np.int32)
        charged = np.zeros(len(base), np.int64)
        peak = int(memory_profile(flat, base, len(base), charged))
        profile = np.zeros(len(problem.graph), np.int64)
        profile[base] = charged
        return cls(problem, flat, base, peak, int(flat.time.sum()), profile)

    @property
    def budget(self) -> Bytes:
        """Of the problem [bytes]."""
        return self.problem.budget

    @cached_property
    def price(self) -> Floats:
        """The nodes' times, as prices for shaving."""
        return self.flat.time.astype(np.float64)

    def sequence_of(self, schedule: Schedule) -> Sequence:
        """The run sequence of a schedule of this graph, without nodes that need not run: the arrays leave out what they read."""
        nodes = [self.problem.graph.node_index[run.node] for run in schedule.runs]
        return np.array([v for v in nodes if self.flat.required[v]], np.int32)

    def schedule_of(self, sequence: Sequence) -> Schedule:
        """A sequence as a schedule."""
        return Schedule.from_runs(self.problem.graph, sequence.tolist())

    def time_of(self, sequence: Sequence) -> Ns:
        """Time of a sequence [ns]."""
        return int(total_time(self.flat, sequence, len(sequence)))

    def peak_of(self, sequence: Sequence) -> Bytes:
        """Peak of a sequence [bytes]."""
        return int(memory_profile(self.flat, sequence, len(sequence), np.empty(len(sequence), np.int64)))

    def fits(self, sequence: Sequence) -> bool:
        """Whether a sequence is within the budget."""
        return self.peak_of(sequence) <= self.budget


class Incumbents:
    """The best distinct sequences within the budget.

    Attributes:
        best, best_time: the best sequence and its time [ns], or None and infinity.
        pool: the best sequences of distinct times, with their times; best first.
    """

    def __init__(self) -> None:
        self.best: Sequence | None = None
        self.best_time: float = float("inf")
        self.pool: list[tuple[Ns, Sequence]] = []

    def wants(self, time: Ns) -> bool:
        """Whether a sequence of this time would be kept: it is the fastest, or its time differs from those in the pool."""
        return time < self.best_time or all(time != other for other, _ in self.pool)

    def take(self, sequence: Sequence, time: Ns) -> bool:
        """Add a sequence that fits to the pool; returns whether it is the best."""
        self.pool = sorted([*self.pool, (time, sequence)], key=lambda entry: entry[0])[:_POOL]
        if time >= self.best_time:
            return False
        self.best, self.best_time = sequence, time
        return True

    def others(self, count: int) -> list[Sequence]:
        """The sequences after the best one."""
        return [sequence for _, sequence in self.pool[1 : 1 + count]]


class Bounds:
    """The bounds of a problem, certified or claimed.

    Attributes:
        lower: bound for every schedule [ns], `IMPOSSIBLE` if none exists.
        class_bounds: bounds for the schedules of a restricted class.
        hardness: bound on the recomputation from each scanned instant (node index) [ns]. integral: instants solved with integers.
        grown: trees of orders by the passes that have grown them (see `AnyOrder`).
        evidence: of the largest bound that can be proved in integers.
        claims: bounds of mixed formulations, with their instants (node indices).
        class_claims: instants, by the number of a class bound of the captured order.
    """

    def __init__(self, lower: Ns) -> None:
        self.lower: Ns | float = lower
        self.class_bounds: list[ClassBound] = []
        self.hardness: dict[int, Ns] = {}
        self.integral: set[int] = set()
        self.grown: dict[RunMove, Any] = {}
        self.evidence: Evidence | None = None
        self.claims: list[tuple[Ns | float, tuple[int, ...]]] = []
        self.class_claims: dict[int, tuple[int, ...]] = {}

    @property
    def certified(self) -> Ns | float:
        """What can be proved in integers, 0 where nothing can."""
        return 0 if self.evidence is None else self.evidence.bound

    def raises(self, lower: Ns | float) -> bool:
        """Take a bound for every schedule; returns whether it is better than the previous one."""
        if lower <= self.lower:
            return False
        self.lower = lower
        return True

    def of_classes(self) -> tuple[ClassBound, ...]:
        """The class bounds; what is certified of every schedule is so of each class."""
        return tuple(
            evolve(bound, value=max(bound.value, self.certified), evidence=stronger(bound.evidence, self.evidence))
            for bound in self.class_bounds
        )

    def record_instant(self, at: int, bound: Ns) -> None:
        """Keep the bound of an instant."""
        self.hardness[at] = bound

    def hardest(self, count: int) -> list[int]:
        """The instants of the largest bounds."""
        return sorted(self.hardness, key=lambda at: (-self.hardness[at], at))[:count]


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


class RunMove(WarmStarted):
    """A solver that improves a search over run sequences of a flat graph: a pass."""

    __slots__ = ()

    def refuses(self, graph: Graph) -> str | None:
        """Flat graphs only."""
        return refuse_unless_flat(graph)

    @abstractmethod
    def improve(self, search: Search) -> None:
        """Offer better sequences or prove better bounds; return when done, or when the search is over."""

    def if_(self, condition: Condition) -> If:
        """This pass if a condition holds, and for as long as it holds."""
        return If(self, condition)

    def plan_from(self, problem: Problem, start: Schedule | None, clock: Clock, seed: int) -> Plan:
        """Search from the captured order, and from `start` if there is one."""
        search = Search(problem, clock, seed, self)
        if start is not None:
            search.offer(search.arrays.sequence_of(start), "the start")
        with search.charged("plan"):
            self.improve(search)
        clock.count(search.worked.seconds)
        if problem.proof_leaves:
            with search.charged("proof"):
                certify(search)
        return search.plan()


@frozen(repr=False)
class If(RunMove):
    """`move.if_(condition)`: does nothing if the condition does not hold; the pass ends when it no longer holds.

    Attributes:
        move: the pass. condition: on plan and bound.
    """

    move: RunMove = field(validator=instance(RunMove, "MultiStart()"))
    condition: Condition = field(validator=CONDITION)

    def __repr__(self) -> str:
        return f"{operand(self.move)}.if_({self.condition!r})"

    def refuses(self, graph: Graph) -> str | None:
        """What the pass refuses."""
        return self.move.refuses(graph)

    def outline(self, graph: Graph) -> tuple[str, ...]:
        """The lines of the pass, with the condition."""
        first, *more = self.move.outline(graph)
        return (f"{first}, if {self.condition}", *more)

    def improve(self, search: Search) -> None:
        """The pass, under the condition."""
        if self.condition(search):
            with search.while_(self.condition):
                self.move.improve(search)


def certify(search: Search) -> None:
    """Prove the claims: a branch-and-bound tree for each claim above the certified bound, the largest claim first."""
    bounds, leaves = search.bounds, search.problem.proof_leaves
    prover = Prover(search.problem.graph, search.arrays.base_time, search.clock)
    for claimed, instants in sorted(bounds.claims, key=lambda claim: (-claim[0], claim[1])):
        if claimed <= bounds.certified or search.clock.expired:
            break
        if len(instants) <= MOST_INSTANTS and prove_claim(
            search, prover, Claim(search.budget, instants, claimed), leaves
        ):
            break
    for number, instants in bounds.class_claims.items():
        if not search.clock.expired:
            certify_class_bound(search, prover, number, instants)


def prove_claim(search: Search, prover: Prover, claim: Claim, leaves: int) -> bool:
    """Grow trees for a claim of every schedule and take what they prove; whether that is all of it."""
    proved = prover.proved(claim, leaves)
    search.trail.append(proved.note)
    search.prove(proved.evidence.bound, proved.how, evidence=proved.evidence)
    return proved.closed


def certify_class_bound(search: Search, prover: Prover, number: int, instants: tuple[int, ...]) -> None:
    """Prove what is claimed of the captured order; and, by a few leaves at the same instants, a bound for every schedule."""
    bound = search.bounds.class_bounds[number]
    proved = prover.proved(Claim(search.budget, instants, bound.value, captured=True), search.problem.proof_leaves)
    search.trail.append(proved.note)
    value = max(bound.value, proved.evidence.bound)
    search.bounds.class_bounds[number] = evolve(bound, value=value, evidence=proved.evidence)
    if search.bounds.certified < value and not search.clock.expired and prover.orders(instants) <= _ORDERS:
        prove_claim(search, prover, Claim(search.budget, instants, value), _FREE_ORDER_LEAVES)
