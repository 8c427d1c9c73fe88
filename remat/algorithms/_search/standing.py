"""What a search has come to: the best sequences, and the bounds."""

from __future__ import annotations

from typing import Any

from attrs import evolve

from remat.algorithms._core.evidence import Evidence, stronger
from remat.algorithms._core.outcome import ClassBound
from remat.algorithms._search.run_problem import Sequence
from remat.units import Ns

_POOL = 4  # best distinct sequences kept


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
        hardness: bound on the recomputation from each scanned instant (node index) [ns].
        grown: trees of orders by the passes that have grown them (see `AnyOrder`).
        evidence: of the largest bound that can be proved in integers.
        claims: bounds of mixed formulations, with their instants (node indices).
        class_claims: instants, by the number of a class bound of the captured order.
    """

    def __init__(self, lower: Ns) -> None:
        self.lower: Ns | float = lower
        self.class_bounds: list[ClassBound] = []
        self.hardness: dict[int, Ns] = {}
        self.grown: dict[object, Any] = {}
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
