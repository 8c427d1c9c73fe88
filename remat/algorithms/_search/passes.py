"""Passes over run sequences, each usable alone: shaving, deletion, shifting, many starts, ruin and recreate, continuation.

The kernels are in `peak_shaving`, `deletion`, `ordering` and `ruin_recreate`; this module calls them with settings and random
numbers on a search.
"""

from __future__ import annotations

import math
from itertools import count
from typing import NamedTuple

from attrs import field, frozen

from remat.algorithms._arrays.graph_arrays import Seed
from remat.algorithms._search.deletion import delete
from remat.algorithms._search.kernel_prefetch import await_kernels
from remat.algorithms._search.peak_shaving import NO_CEILING, Scoring, shave
from remat.algorithms._search.ruin_recreate import Acceptance, relieve, ruin_and_recreate
from remat.algorithms._search.run_move import RunMove
from remat.algorithms._search.run_problem import Sequence
from remat.algorithms._search.state import Search
from remat.ir import Graph
from remat.settings import FLAG, instance, number, optional, whole

_DISORDER = 0.3  # share of iterations that change the order if no plan is found at a lower budget
_RELIEF = 2  # iterations of `relieve` in that case, per iteration of ruin and recreate
_SATURATED = 1000  # iterations after which a search on a small graph is better restarted
_PATIENCE = 25  # iterations of ruin and recreate between checks of the gap
_WORK_PER_CHECK = 1.2e6  # work between checks of the clock, as in `RuinAndRecreate`: about a twentieth of a second


@frozen
class ShavingParams:
    """Preferences of one shaving.

    Attributes:
        exponent: weight of the rerun chain's time in a gap's score.
        noise: relative random change of scores.
        share: inputs smaller than this share of the evicted datum are kept rather than recomputed.
    """

    exponent: float = field(default=1.0, validator=number(0))
    noise: float = field(default=0.0, validator=number(0, 1))
    share: float = field(default=0.0, validator=number(0, 1))

    def scoring(self, search: Search) -> Scoring:
        """The parameters as the kernels take them, with the nodes' times as prices."""
        return Scoring(search.arrays.price, float(self.exponent), float(self.noise), float(self.share), 0)


def variant(k: int) -> ShavingParams:
    """The k-th of a list of preferences, from 0; the first has the default values, from the ninth on there is noise."""
    return ShavingParams((1.0, 0.7, 0.5, 1.4)[k % 4], 0.0 if k < 8 else 0.25, 0.0 if (k // 4) % 2 == 0 else 0.2)


def shaved(
    search: Search, start: Sequence, params: ShavingParams, rng: Seed, budget: int, repairs: int = 3
) -> Sequence | None:
    """`start` shaved under `budget` and thinned by deletion; None if shaving gives up.

    If no remaining gap helps, runs are shifted away from the positions over the budget and shaving continues, up to `repairs`
    times: too many resident gradients are often a problem of the order, not of recomputation.
    """
    sequence, plain = start, params.scoring(search)
    for k in range(repairs + 1):
        scoring = plain._replace(keeping=min(k, 1))
        sequence, fit = shave(search.flat, scoring, sequence, budget, rng, NO_CEILING)
        if fit:
            return delete(search.flat, sequence, budget)
        if search.clock.expired:
            break
        if k < repairs:
            sequence = search.shift(sequence, budget, (1.0, 0.9, 0.95)[k % 3], 4, rng)
    return None


def offer_shaved(search: Search, start: Sequence, params: ShavingParams, rng: Seed, how: str) -> None:
    """Offer `start` shaved under the budget, unless shaving gives up."""
    plan = shaved(search, start, params, rng, search.budget)
    if plan is not None:
        search.offer(plan, how)


@frozen
class PeakShaving(RunMove):
    """Greedy eviction from gaps until the peak is under the budget, then deletion. Proves nothing."""

    params: ShavingParams = field(default=ShavingParams(), validator=instance(ShavingParams, "ShavingParams(0.7)"))

    def improve(self, search: Search) -> None:
        """One shaving of the captured order."""
        offer_shaved(search, search.base, self.params, search.streams.spawn("peak shaving"), repr(self))


@frozen
class Delete(RunMove):
    """Remove reruns, the most expensive first, while the peak stays under the budget. Needs a start."""

    def improve(self, search: Search) -> None:
        """Thin the best sequence by deletion."""
        if search.best is not None:
            search.offer(delete(search.flat, search.best, search.budget), repr(self))


@frozen
class Shift(RunMove):
    """Move runs to other legal positions while the bytes near the budget fall, then delete. Needs a start.

    Attributes:
        level: share of the budget above which bytes count.
        passes: largest number of passes over the sequence.
    """

    level: float = field(default=0.8, validator=number(0, 1))
    passes: int = field(default=10, validator=whole(1, "passes"))

    def improve(self, search: Search) -> None:
        """Shift the best sequence."""
        if search.best is not None:
            rng = search.streams.spawn("shift")
            shifted = search.shift(search.best, search.budget, self.level, self.passes, rng)
            search.offer(delete(search.flat, shifted, search.budget), repr(self))


@frozen
class MultiStart(RunMove):
    """Peak shaving many times with different preferences, from the captured order and from a shifted one. Proves nothing.

    Attributes:
        starts: how many; None: 16, or 4 on graphs of more than 3000 nodes.
    """

    starts: int | None = field(default=None, validator=optional(whole(1, "starts")))

    def outline(self, graph: Graph) -> tuple[str, ...]:
        """The number of shavings."""
        return (f"{self!r}: {self._count(len(graph))} shavings, half of them from a shifted order",)

    def _count(self, nodes: int) -> int:
        return self.starts or (16 if nodes <= 3000 else 4)

    def improve(self, search: Search) -> None:
        """The best of all starts; the first is `PeakShaving()`. The second half starts from the shifted order."""
        starts = self._count(len(search.base))
        plain = (starts + 1) // 2
        longest = 0.0
        for k in range(starts):
            began = search.clock.remaining
            if began <= longest / 2:
                return  # on large graphs a start takes a second, and a running kernel cannot be stopped
            start, params = (search.base, variant(k)) if k < plain else (search.shifted, variant(k - plain))
            offer_shaved(search, start, params, search.streams.spawn("start", k), f"start {k + 1} of {self!r}")
            if math.isfinite(began):
                longest = max(longest, began - search.clock.remaining)


def iterations_for(nodes: int, work: float) -> int:
    """Iterations that take about the same time on graphs of any size: the time of one grows as nodes ** 1.75. May be 0."""
    return min(max(4000, int(8e-5 * work)), int(work / nodes**1.75))


def iterations_per_check(search: Search) -> int:
    """Iterations between checks of the clock."""
    return max(1, min(_PATIENCE, iterations_for(len(search.base), _WORK_PER_CHECK)))


@frozen
class RuinAndRecreate(RunMove):
    """Large-neighborhood search: remove the reruns of a random part, shave and delete again, keep plans that are not worse.

    The share `disorder` of the iterations also moves a few runs: earlier together with the nodes that they depend on, later
    together with the nodes that depend on them, or as early or late as is legal; or puts postponed runs back.

    Without a start it begins with `PeakShaving()`. What the others leave of the iterations goes to the best plan.

    Attributes:
        work: amount of work, independent of the size of the graph: 5e7 takes about two seconds.
        temperature: relative worsening accepted at the beginning; falls to zero.
        restart: begin with new shavings instead, one for every thousand iterations, to leave a local optimum.
        disorder: share of the iterations that change the order of runs.
        undone: share of these changes that put runs back which the plan postpones: many of them can serve one rerun of a long
            chain, and moved one by one they bring nothing.
        gathering: share of the iterations that move readers of a datum next to each other, over a gap or a rerun.
        served: evictions made from one scan of the gaps; above 1 it shaves in haste: faster, and each is chosen a little worse.
        others: how many of the best distinct plans, after the best one, get a fifth of the iterations each.
        patience: share of the iterations after which it gives up if none of them brought a better plan.
    """

    work: float = field(default=5e7, validator=number(0))
    temperature: float = field(default=0.0005, validator=number(0))
    restart: bool = field(default=False, validator=FLAG)
    disorder: float = field(default=0.0, validator=number(0, 1))
    undone: float = field(default=0.0, validator=number(0, 1))
    gathering: float = field(default=0.0, validator=number(0, 1))
    served: int = field(default=1, validator=whole(1, "evictions"))
    others: int = field(default=2, validator=whole(0, "plans"))
    patience: float = field(default=1.0, validator=number(0, 1))

    def outline(self, graph: Graph) -> tuple[str, ...]:
        """The number of iterations."""
        return (f"{self!r}: {iterations_for(len(graph), self.work)} iterations of ruin and recreate",)

    def improve(self, search: Search) -> None:
        """Search from the best sequences, or from new ones."""
        if search.best is None:
            PeakShaving().improve(search)
        total = iterations_for(len(search.base), self.work)
        if search.best is None or not total:
            return
        await_kernels()
        if self.restart:
            self._from_new_starts(search, total)
        else:
            self._from_pool(search, search.best, total)

    def _from_new_starts(self, search: Search, total: int) -> None:
        starts, search_number = max(1, total // _SATURATED), search.next_search()
        for k in range(starts):
            best = search.best
            if search.clock.expired or best is None:
                return
            rng = search.streams.spawn("new start", search_number, k)
            start = shaved(search, search.shifted, variant(9 + search_number + k), rng, search.budget)
            rng = search.streams.spawn("from new start", search_number, k)
            self._run(search, best if start is None else start, total // starts, rng)

    def _from_pool(self, search: Search, best: Sequence, total: int) -> None:
        others = search.incumbents.others(self.others) if total >= 4 * _PATIENCE else []
        search_number = search.next_search()
        for rank, start in enumerate(others):
            self._run(search, start, total // 5, search.streams.spawn("pool", search_number, rank))
        best = best if search.best is None else search.best
        rest = total - len(others) * (total // 5)
        self._run(search, best, rest, search.streams.spawn("best", search_number))

    def _run(self, search: Search, start: Sequence, iterations: int, rng: Seed) -> None:
        current, last_gain = start, 0
        for done in range(0, iterations, _PATIENCE):
            if search.over or done - last_gain > self.patience * iterations:
                return
            batch = min(_PATIENCE, iterations - done)
            temperature = self.temperature * (1 - done / iterations)
            best, current = self._batch(search, current, batch, temperature, rng)
            if search.arrays.time_of(best) < search.best_time:
                search.offer(best, f"iteration {done + batch} of {self!r}")
                last_gain = done + batch

    def _batch(
        self, search: Search, start: Sequence, iterations: int, temperature: float, rng: Seed
    ) -> tuple[Sequence, Sequence]:
        """(best, last accepted) sequences after `iterations`, or fewer if the clock expires."""
        best, current, stride = start, start, iterations_per_check(search)
        for done in range(0, iterations, stride):
            if done and search.clock.expired:
                break
            batch = min(stride, iterations - done)
            acceptance = Acceptance(temperature, self.disorder, self.served, self.undone, self.gathering)
            trial, current = ruin_and_recreate(search.flat, current, search.budget, batch, acceptance, rng)
            if not done or search.arrays.time_of(trial) < search.arrays.time_of(best):
                best = trial
        return best, current


@frozen
class Relieve(RunMove):
    """Lower the sum of the bytes over the budget by ruin, reordering and shaving, to find a first plan. Proves nothing.

    Attributes:
        work: amount of work, as in `RuinAndRecreate`.
        attempts: number of starts, alternately from the shifted and the captured order.
    """

    work: float = field(default=5e6, validator=number(0))
    attempts: int = field(default=4, validator=whole(1, "starts"))

    def outline(self, graph: Graph) -> tuple[str, ...]:
        """The number of starts and iterations."""
        return (f"{self!r}: {self.attempts} starts of {iterations_for(len(graph), self.work)} iterations",)

    def improve(self, search: Search) -> None:
        """Relieve each start until it fits."""
        iterations, stride = iterations_for(len(search.base), self.work), iterations_per_check(search)
        await_kernels()
        for k in range(self.attempts):
            if search.over:
                return
            rng = search.streams.spawn("relief", k)
            current = search.base if k % 2 else search.shifted
            for done in range(0, iterations, stride):
                if search.over:
                    return
                batch = min(stride, iterations - done)
                current, fit = relieve(search.flat, current, search.budget, batch, rng)
                if fit:
                    search.offer(delete(search.flat, current, search.budget), f"start {k + 1} of {self!r}")
                    break


@frozen
class Continuation(RunMove):
    """Start from an easier budget and lower it step by step; each step starts from the previous plan. Proves nothing.

    It finds plans at budgets where shaving the captured order gives up, and different plans where it does not. The easier
    budget is the first, after `steps`, at which shaving succeeds. If a plan is known, it is the one after `steps`: where shaving
    fails there, the plan is thinned instead.

    Attributes:
        step: ratio of each budget to the previous one.
        steps: smallest number of steps.
        iterations: of ruin and recreate at each budget; None: by the size of the graph.
        attempts: shavings tried at each budget before giving up.
    """

    step: float = field(default=0.94, validator=number(0.01, 0.9999))
    steps: int = field(default=1, validator=whole(1, "steps"))
    iterations: int | None = field(default=None, validator=optional(whole(1, "iterations")))
    attempts: int = field(default=12, validator=whole(1, "shavings"))

    def outline(self, graph: Graph) -> tuple[str, ...]:
        """The steps."""
        steps = "from the smallest easy budget" if self.steps == 1 else f"{self.steps} steps or more"
        return (f"{self!r}: the budget lowered by {1 - self.step:.0%} a step, {steps}",)

    def improve(self, search: Search) -> None:
        """Find the smallest easy budget, then step down to the budget of the problem."""
        budgets = [search.budget]
        current = None
        while (current is None or len(budgets) <= self.steps) and budgets[-1] < search.arrays.base_peak:
            if search.clock.expired:
                return
            budgets.append(min(search.arrays.base_peak, int(budgets[-1] / self.step) + 1))
            if len(budgets) > self.steps:
                rng = search.streams.spawn("easy budget")
                current = shaved(search, search.shifted, variant(0), rng, budgets[-1])
                if current is None and search.best is not None:
                    current = delete(search.flat, search.best, budgets[-1])
        if current is not None:
            self._step_down(search, current, budgets)

    def _step_down(self, search: Search, current: Sequence, budgets: list[int]) -> None:
        """From a plan for the last of the budgets, which are in ascending order, to a plan for the first."""
        effort = Effort(self.iterations or iterations_for(len(search.base), 5e6), self.attempts)
        for k, (above, budget) in enumerate(zip(budgets[:0:-1], budgets[-2::-1], strict=True)):
            if search.clock.expired:
                return
            plan = lowered(search, current, above, budget, effort, search.streams.spawn("lower budget", k))
            if plan is None:
                return
            current = plan
        search.offer(current, repr(self))


class Effort(NamedTuple):
    """The work at one budget: iterations of ruin and recreate, and shavings tried before giving up."""

    iterations: int
    attempts: int


def lowered(search: Search, current: Sequence, above: int, budget: int, effort: Effort, rng: Seed) -> Sequence | None:
    """A plan for `budget` from a plan for the larger budget `above`; ruin and recreate runs first and between attempts."""
    iterations, time_of = effort.iterations, search.arrays.time_of
    _, current = ruin_and_recreate(search.flat, current, above, iterations, Acceptance(0.002), rng)
    plan = None
    for k in range(effort.attempts):
        if search.clock.expired:
            return plan
        trial = shaved(search, current, variant(k), rng, budget)
        if plan is None or (trial is not None and time_of(trial) < time_of(plan)):
            plan = trial
        if plan is not None and k >= 3:
            break
        if trial is None:
            _, current = ruin_and_recreate(search.flat, current, above, iterations, Acceptance(0.01, _DISORDER), rng)
    return _relieved(search, current, budget, iterations, rng) if plan is None else plan


def _relieved(search: Search, start: Sequence, budget: int, iterations: int, rng: Seed) -> Sequence | None:
    relieved, fit = relieve(search.flat, start, budget, _RELIEF * iterations, rng)
    return delete(search.flat, relieved, budget) if fit else None


def descended(search: Search, start: Sequence, floor: int, accuracy: int) -> tuple[Sequence, int]:
    """The plan of the lowest peak reached from `start` by lowering the budget in steps, and that peak [bytes].

    Steps begin at a sixteenth of the peak and are halved if no plan is found, down to `accuracy` bytes.
    """
    current, above = start, search.arrays.peak_of(start)
    step = max(accuracy, above // 16)
    effort = Effort(iterations_for(len(search.base), 2e6), 6)
    for k in count():
        if above <= floor or search.clock.expired:
            break
        budget = max(floor, above - step)
        trial = lowered(search, current, above, budget, effort, search.streams.spawn("descent", k))
        if trial is not None:
            current, above = trial, search.arrays.peak_of(trial)
        elif step <= accuracy:
            break
        else:
            step = max(accuracy, step // 2)
    return current, above
