"""Moves over run sequences, each usable alone: shaving, deletion, shifting, many starts, ruin and recreate, continuation.

The kernels are in `peak_shaving`, `deletion`, `ordering` and `ruin_recreate`; this module gives them settings, seeds and the
search they work on.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from attrs import field, frozen
from numpy.typing import NDArray

from remat.algorithms._search.deletion import delete
from remat.algorithms._search.peak_shaving import NO_CEILING, Scoring, shave
from remat.algorithms._search.ruin_recreate import Acceptance, relieve, ruin_and_recreate
from remat.algorithms._search.state import RunMove, Search, Sequence
from remat.ir import Graph
from remat.settings import FLAG, instance, number, optional, whole

_DISORDER = 0.3  # share of iterations that change the order where a lower budget finds no plan
_RELIEF = 2  # iterations of relief there, per iteration of ruin and recreate
_SATURATED = 1000  # iterations after which a small graph's search is better begun anew
_PATIENCE = 25  # iterations of ruin and recreate between looks at the gap
_UNASKED = 1.2e6  # work between looks at the clock, as in `RuinAndRecreate`: about a twentieth of a second


@frozen
class Taste:
    """Preferences of one shaving.

    Attributes:
        exponent: weight of the rerun chain's time in a gap's score.
        noise: relative random change of scores.
        share: inputs smaller than this share of the evicted datum are kept rather than made again.
    """

    exponent: float = field(default=1.0, validator=number(0))
    noise: float = field(default=0.0, validator=number(0, 1))
    share: float = field(default=0.0, validator=number(0, 1))

    def scoring(self, search: Search) -> Scoring:
        """As the kernels take it, by the nodes' times."""
        return Scoring(search.price, float(self.exponent), float(self.noise), float(self.share), 0)


def taste(k: int) -> Taste:
    """The k-th of a list of tastes; the first is the plain one, from the ninth on there is noise."""
    return Taste((1.0, 0.7, 0.5, 1.4)[k % 4], 0.0 if k < 8 else 0.25, 0.0 if (k // 4) % 2 == 0 else 0.2)


def shaved(
    search: Search, start: Sequence, taste: Taste, chance: NDArray[np.uint64], budget: int, repairs: int = 3
) -> Sequence | None:
    """`start` shaved under `budget` and thinned by deletion; None when shaving gives up.

    Where no gap is left that helps, runs are shifted away from what is over the budget and shaving goes on, up to `repairs`
    times: gradients that wait for each other are often a matter of order, not of recomputation.
    """
    found, plain = start, taste.scoring(search)
    for k in range(repairs + 1):
        scoring = plain._replace(keeping=min(k, 1))
        found, fit = shave(search.flat, scoring, found, budget, chance, NO_CEILING)
        if fit:
            return delete(search.flat, found, budget)
        if search.clock.expired:
            break
        if k < repairs:
            found = search.shift(found, budget, (1.0, 0.9, 0.95)[k % 3], 4, chance)
    return None


@frozen
class PeakShaving(RunMove):
    """Greedy eviction from gaps until the peak is under the budget, then deletion. Proves nothing."""

    taste: Taste = field(default=Taste(), validator=instance(Taste, "Taste(0.7)"))

    def improve(self, search: Search) -> None:
        """One shaving of the captured order."""
        found = shaved(search, search.base, self.taste, search.chance(1), search.budget)
        if found is not None:
            search.offer(found, repr(self))


@frozen
class Delete(RunMove):
    """Take reruns out again, the most expensive first, while the peak stays under the budget. Needs a start."""

    def improve(self, search: Search) -> None:
        """Thin the best sequence."""
        if search.best is not None:
            search.offer(delete(search.flat, search.best, search.budget), repr(self))


@frozen
class Shift(RunMove):
    """Move runs to other legal places while the bytes near the budget fall, then delete. Needs a start.

    Attributes:
        level: share of the budget from which bytes count.
        passes: most passes over the sequence.
    """

    level: float = field(default=0.8, validator=number(0, 1))
    passes: int = field(default=10, validator=whole(1, "passes"))

    def improve(self, search: Search) -> None:
        """Shift the best sequence."""
        if search.best is not None:
            found = search.shift(search.best, search.budget, self.level, self.passes, search.chance(2))
            search.offer(delete(search.flat, found, search.budget), repr(self))


@frozen
class MultiStart(RunMove):
    """Peak shaving many times with other tastes, from the captured order and from a shifted one. Proves nothing.

    Attributes:
        starts: how many; None: 16, on graphs of more than 3000 nodes 4.
    """

    starts: int | None = field(default=None, validator=optional(whole(1, "starts")))

    def outline(self, graph: Graph) -> tuple[str, ...]:
        """How many shavings."""
        return (f"{self!r}: {self._count(len(graph))} shavings, half of them from a shifted order",)

    def _count(self, nodes: int) -> int:
        return self.starts or (16 if nodes <= 3000 else 4)

    def improve(self, search: Search) -> None:
        """The best of all starts; the first is the plain `PeakShaving()`. Later starts come from the shifted order."""
        starts = self._count(len(search.base))
        plain = (starts + 1) // 2
        longest = 0.0
        for k in range(starts):
            began = search.clock.remaining
            if began <= longest / 2:
                return  # on large graphs a start takes a second, and a kernel cannot be stopped
            start, k_taste = (search.base, k) if k < plain else (search.shifted, k - plain)
            found = shaved(search, start, taste(k_taste), search.chance(100 + k), search.budget)
            if found is not None:
                search.offer(found, f"start {k + 1} of {self!r}")
            if math.isfinite(began):
                longest = max(longest, began - search.clock.remaining)


def iterations_for(nodes: int, work: float) -> int:
    """Iterations that take about the same time on graphs of any size: one costs about nodes ** 1.75. May be none."""
    return min(4000, int(work / nodes**1.75))


def _unasked(search: Search) -> int:
    """Iterations between looks at the clock."""
    return max(1, min(_PATIENCE, iterations_for(len(search.base), _UNASKED)))


def _unless(gap: float) -> str:
    """When a move with this gap is made, for outlines."""
    return f", if the plan is still more than {gap:.2%} above the bound" if gap else ""


@frozen
class RuinAndRecreate(RunMove):
    """Large-neighbourhood search: take reruns of a random part out, shave and delete again, keep what is not worse.

    With `disorder`, that share of the iterations also puts a few runs elsewhere: earlier with all they depend on, later with
    all that depends on them, or as early or late as they may stand.

    Without a start it begins with `PeakShaving()`. It begins with each of the best distinct plans known for a share
    of the iterations, and goes on with the best.

    Attributes:
        work: how much, whatever the size of the graph: 5e7 is about two seconds.
        temperature: relative worsening accepted at first; falls to zero.
        gap: stop when plan and bound are this close.
        afresh: begin with new shavings instead, one for every thousand iterations, for another chance where the best plan is
            a dead end.
        disorder: share of the iterations that change the order of runs.
    """

    work: float = field(default=5e7, validator=number(0))
    temperature: float = field(default=0.0005, validator=number(0))
    gap: float = field(default=0.0, validator=number(0))
    afresh: bool = field(default=False, validator=FLAG)
    disorder: float = field(default=0.0, validator=number(0, 1))

    def outline(self, graph: Graph) -> tuple[str, ...]:
        """How many iterations, and when."""
        count = iterations_for(len(graph), self.work)
        return (f"{self!r}: {count} iterations of ruin and recreate{_unless(self.gap)}",)

    def improve(self, search: Search) -> None:
        """Search from the best sequences."""
        if search.best is None:
            PeakShaving().improve(search)
        total = iterations_for(len(search.base), self.work)
        if search.best is None or not total:
            return
        search.searches += 1
        purpose = 10_000 * search.searches
        if self.afresh:
            starts = max(1, total // _SATURATED)
            for k in range(starts):
                if search.clock.expired:
                    return
                chance = search.chance(purpose + 20 * k)
                start = shaved(search, search.shifted, taste(8 + search.searches + k), chance, search.budget)
                self._run(search, search.best if start is None else start, total // starts, purpose + 20 * k + 1)
            return
        others = search.pool[1:3] if total >= 4 * _PATIENCE else []
        for rank, (_, start) in enumerate(others):
            self._run(search, start, total // 5, purpose + 2 + rank)
        self._run(search, search.best, total - len(others) * (total // 5), purpose + 9)

    def _run(self, search: Search, start: Sequence, iterations: int, purpose: int) -> None:
        current, chance = start, search.chance(purpose)
        for done in range(0, iterations, _PATIENCE):
            if search.clock.expired or search.within(self.gap):
                return
            some = min(_PATIENCE, iterations - done)
            heat = self.temperature * (1 - done / iterations)
            best, current = self._stretch(search, current, some, heat, chance)
            if search.time_of(best) < search.best_time:
                search.offer(best, f"iteration {done + some} of {self!r}")

    def _stretch(
        self, search: Search, start: Sequence, iterations: int, heat: float, chance: NDArray[np.uint64]
    ) -> tuple[Sequence, Sequence]:
        """(best, last accepted) sequences after `iterations`, or fewer when the clock expires."""
        best, current, some = start, start, _unasked(search)
        for done in range(0, iterations, some):
            if done and search.clock.expired:
                break
            count = min(some, iterations - done)
            acceptance = Acceptance(heat, self.disorder)
            trial, current = ruin_and_recreate(search.flat, current, search.budget, count, acceptance, chance)
            if not done or search.time_of(trial) < search.time_of(best):
                best = trial
        return best, current


@frozen
class Relieve(RunMove):
    """Where no plan is known: lower the sum of the bytes over the budget by ruin, other orders and shaving. Proves nothing.

    Attributes:
        work: how much, as in `RuinAndRecreate`.
        tries: starts, from the shifted and the captured order in turn.
    """

    work: float = field(default=5e6, validator=number(0))
    tries: int = field(default=4, validator=whole(1, "starts"))

    def outline(self, graph: Graph) -> tuple[str, ...]:
        """How many iterations, and when."""
        rounds = iterations_for(len(graph), self.work)
        return (f"{self!r}: {self.tries} starts of {rounds} iterations, if no plan is known",)

    def improve(self, search: Search) -> None:
        """Nothing when there is a plan."""
        rounds, unasked = iterations_for(len(search.base), self.work), _unasked(search)
        for k in range(self.tries):
            if search.clock.expired or search.best is not None:
                return
            chance = search.chance(400 + k)
            current = search.base if k % 2 else search.shifted
            for done in range(0, rounds, unasked):
                if search.clock.expired or search.best is not None:
                    return
                some = min(unasked, rounds - done)
                current, fit = relieve(search.flat, current, search.budget, some, chance)
                if fit:
                    search.offer(delete(search.flat, current, search.budget), f"start {k + 1} of {self!r}")


@frozen
class Continuation(RunMove):
    """Lower the budget step by step from one that is easier; each step starts from the plan of the last. Proves nothing.

    It finds plans at budgets where shaving the captured order gives up, and other plans than shaving where it does not.

    Attributes:
        step: ratio of one budget to the one before.
        steps: how many at least.
        iterations: of ruin and recreate at each budget; None: by the size of the graph.
        tries: shavings tried at each budget before giving up.
        gap: do nothing when plan and bound are this close; None: when there is any plan.
    """

    step: float = field(default=0.94, validator=number(0.01, 0.9999))
    steps: int = field(default=1, validator=whole(1, "steps"))
    iterations: int | None = field(default=None, validator=optional(whole(1, "iterations")))
    tries: int = field(default=12, validator=whole(1, "shavings"))
    gap: float | None = field(default=None, validator=optional(number(0)))

    def outline(self, graph: Graph) -> tuple[str, ...]:
        """The steps, and when they are taken."""
        when = ", if no plan is known" if self.gap is None else _unless(self.gap)
        steps = "from the tightest budget that is easy" if self.steps == 1 else f"{self.steps} steps or more"
        return (f"{self!r}: the budget lowered by {1 - self.step:.0%} a step, {steps}{when}",)

    def improve(self, search: Search) -> None:
        """Find the tightest easy budget, then step down to the problem's."""
        if search.best is not None and (self.gap is None or search.within(self.gap)):
            return
        budgets = [search.budget]
        current = None
        while (current is None or len(budgets) <= self.steps) and budgets[-1] < search.base_peak:
            if search.clock.expired:
                return
            budgets.append(min(search.base_peak, int(budgets[-1] / self.step) + 1))
            if len(budgets) > self.steps:
                current = shaved(search, search.shifted, taste(0), search.chance(300), budgets[-1])
        if current is None:
            return
        rounds = self.iterations or iterations_for(len(search.base), 5e6)
        for k, (above, budget) in enumerate(zip(budgets[:0:-1], budgets[-2::-1], strict=True)):
            if search.clock.expired:
                return
            current = lowered(search, current, above, budget, Effort(rounds, self.tries), 310 + k)
            if current is None:
                return
        search.offer(current, repr(self))


class Effort(NamedTuple):
    """How much is done at one budget: iterations of ruin and recreate, shavings tried before giving up."""

    iterations: int
    attempts: int


def lowered(
    search: Search, current: Sequence, above: int, budget: int, effort: Effort, purpose: int
) -> Sequence | None:
    """A plan for `budget` from one for the budget `above` it; ruin and recreate comes first and between attempts."""
    iterations, chance = effort.iterations, search.chance(purpose)
    _, current = ruin_and_recreate(search.flat, current, above, iterations, Acceptance(0.002), chance)
    plan = None
    for k in range(effort.attempts):
        if search.clock.expired:
            return plan
        trial = shaved(search, current, taste(k), chance, budget)
        if plan is None or (trial is not None and search.time_of(trial) < search.time_of(plan)):
            plan = trial
        if plan is not None and k >= 3:
            break
        if trial is None:
            _, current = ruin_and_recreate(search.flat, current, above, iterations, Acceptance(0.01, _DISORDER), chance)
    if plan is not None:
        return plan
    relieved, fit = relieve(search.flat, current, budget, _RELIEF * iterations, chance)
    return delete(search.flat, relieved, budget) if fit else None


def descended(search: Search, start: Sequence, floor: int, accuracy: int, purpose: int) -> tuple[Sequence, int]:
    """The plan of the lowest peak reached from `start` by lowering the budget in steps, and that peak [bytes].

    Steps begin at a sixteenth of the peak and are halved where no plan is found, until they are below `accuracy` bytes.
    """
    current, above = start, search.peak_of(start)
    step = max(accuracy, above // 16)
    rounds = iterations_for(len(search.base), 2e6)
    while above > floor and not search.clock.expired:
        budget = max(floor, above - step)
        trial = lowered(search, current, above, budget, Effort(rounds, 6), purpose)
        purpose += 1
        if trial is not None:
            current, above = trial, search.peak_of(trial)
        elif step <= accuracy:
            break
        else:
            step = max(accuracy, step // 2)
    return current, above
