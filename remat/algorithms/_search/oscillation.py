"""Strategic oscillation: ruin and recreate on both sides of the budget.

Near the smallest budgets most changed sequences cannot be shaved until they fit, and the plans that a search can reach one from
another are few. Here a sequence over the budget is taken too, at a penalty for its bytes over the budget. The penalty grows
while sequences are over the budget and falls while they fit, so that the search crosses the budget again and again, and comes
back to it elsewhere. Sources of the scheme: Glover, Heuristics for integer programming using surrogate constraints, 1977;
Gendreau, Hertz and Laporte, A tabu search heuristic for the vehicle routing problem, 1994 (the penalty that adapts).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from attrs import evolve, field, frozen

from remat.algorithms._arrays.graph_arrays import Flat, Longs, Seed
from remat.algorithms._arrays.liveness import LARGEST_TIME, memory_profile, overshoot, total_time
from remat.algorithms._arrays.rng import fraction
from remat.algorithms._search.deletion import delete
from remat.algorithms._search.kernel_prefetch import await_kernels
from remat.algorithms._search.passes import iterations_per_check
from remat.algorithms._search.peak_shaving import LONGEST, Scoring, shave
from remat.algorithms._search.ruin_recreate import perturbed, perturbed_near_peak
from remat.algorithms._search.run_move import RunMove
from remat.algorithms._search.run_problem import Sequence
from remat.algorithms._search.state import Search
from remat.ir import Graph
from remat.settings import FLAG, number, whole

_GROWTH = 1.01  # of the penalty for each iteration over the budget; it falls as fast where the sequence fits
_FIRST, _LEAST, _LARGEST = 0.3, 1e-3, 1e3  # penalties, per budget of bytes over the budget during one run
_NEAR = 0.5  # share of the iterations over the budget that change the sequence there
_CEILING = 1.1  # time of a shaved sequence over that of the current one above which shaving ends
_CEILING_OVER = 1.3  # the same where the current one is over the budget: what it lacks is reruns
_LEAST_WORK = 5000  # units that an iteration counts for at least: on small graphs calls take longer than visits
_LONGEST = 8  # runs per node above which a sequence is left
_BEHIND = 0.005  # relative distance from the plan that was there, beyond which a search is given up


class Crossing(NamedTuple):
    """How a number of iterations crosses the budget.

    Attributes:
        changes: shares of the iterations that change the order, as in `perturbed`. served: as in `Scoring`.
        temperature: the largest relative worsening that is accepted; each iteration draws a random share of it.
        over: whether a sequence over the budget may follow one that fits.
    """

    changes: tuple[float, float, float]
    served: int
    temperature: float
    over: bool


class Evaluated(NamedTuple):
    """A sequence with its cost.

    Attributes:
        time: over that of the captured order.
        over: bytes over the budget, as a share of the budget, summed over runs; 0: it fits.
    """

    sequence: Sequence
    time: float
    over: float


@frozen(kw_only=True)
class Standpoint:
    """Where a search stands: the sequence that the next iteration changes, the best one that fits, the penalty."""

    current: Evaluated
    best: Evaluated | None = None
    penalty: float = _FIRST


class Rival:
    """The plan that was there before a search, for the question whether to give the search up.

    Args:
        time: of the plan, over that of the captured order; infinite without one.
        patience: as of `Oscillation`.
        start: whether the search begins from it.
    """

    def __init__(self, time: float, patience: float, *, start: bool = False) -> None:
        self._time, self._patience, self._start = time, patience, start
        # of the search: its best time, the share of its work by then
        self._best, self._gained = time if start else float("inf"), 0.0

    @property
    def level(self) -> bool:
        """Whether the search has come to just the time of the plan, and to no better one."""
        return self._best == self._time < float("inf")

    def ahead(self, best: Evaluated | None, done: float) -> bool:
        """Whether the search, with this best plan after a share of its work, is unlikely to bring more than there is."""
        if best is not None and best.time < self._best:
            self._best, self._gained = best.time, done
        if self._start and self._patience < 1:
            return done - self._gained >= self._patience
        if self._patience == 1 or self._best < self._time:
            return False
        if self.level:
            return done >= 2 * self._gained
        return done - self._gained >= self._patience and self._best > self._time * (1 + _BEHIND)


def evaluated(g: Flat, sequence: Sequence, budget: int, mem: Longs) -> Evaluated:
    """`sequence` with its time and bytes over the budget; `mem` becomes its profile."""
    g.work[0] += sequence.size
    time = total_time(g, sequence, sequence.size) / max(1, g.time.sum())
    memory_profile(g, sequence, sequence.size, mem)
    return Evaluated(sequence, time, overshoot(mem, sequence.size, budget) / max(1, budget))


def oscillate(
    g: Flat, standpoint: Standpoint, budget: int, iterations: int, crossing: Crossing, rng: Seed
) -> Standpoint:
    """Where the search stands after `iterations`. Plain Python around kernels, as `ruin_and_recreate`."""
    current, best, penalty = standpoint.current, standpoint.best, standpoint.penalty
    unit, price = max(1, int(g.time.sum())), np.empty(g.time.size, np.float64)
    longest = max(_LONGEST * g.time.size + LONGEST, current.sequence.size)
    mem = np.empty(longest, np.int64)
    for _ in range(iterations):
        worked = int(g.work[0])
        if current.over and fraction(rng) < _NEAR:
            memory_profile(g, current.sequence, current.sequence.size, mem)
            changed, preferences = perturbed_near_peak(g, current.sequence, mem, budget, rng, price)
        else:
            changed, preferences = perturbed(g, current.sequence, crossing.changes, rng, price)
        ceiling = min(int(current.time * (_CEILING_OVER if current.over else _CEILING) * unit), LARGEST_TIME)
        shaved, fits = shave(g, Scoring(price, *preferences, crossing.served), changed, budget, rng, ceiling)
        if shaved.size > longest:
            g.work[0] += _LEAST_WORK
            continue
        trial = evaluated(g, delete(g, shaved, budget) if fits else shaved, budget, mem)
        g.work[0] = max(int(g.work[0]), worked + _LEAST_WORK)
        allowed = current.time * (1 + crossing.temperature * fraction(rng)) + penalty * current.over
        if (fits or current.over or crossing.over) and trial.time + penalty * trial.over <= allowed:
            current = trial
        if fits and (best is None or trial.time < best.time):
            best = trial
        penalty = min(max(penalty * (_GROWTH if current.over else 1 / _GROWTH), _LEAST), _LARGEST)
    return Standpoint(current=current, best=best, penalty=penalty)


@frozen
class Oscillation(RunMove):
    """Ruin and recreate that also takes sequences over the budget, at a penalty, for budgets near the smallest. Proves nothing.

    It needs no plan: the first sequence within the budget is found with the time of the plan in view, where `Relieve` has the
    bytes alone.

    Attributes:
        seconds: of work of all searches together, at a stated rate: the same plan on any machine, busy or not.
        searches: how many.
        idle: seconds of work since the last gain below which it does nothing: while other searches gain, they are better.
        restart: begin each anew, by turns from the shifted and the captured order, even if a plan is known.
        temperature: relative worsening accepted at the beginning; falls to zero.
        patience: share of the work without a better plan of its own after which a search ends early: one from the best plan
            in any case, another if it is more than .5 % behind the plan that was there before it; it also ends if it came to
            exactly that plan's time, and to no better one in as much work again. 1: it never does.
        over: share of the iterations in which a sequence over the budget may follow one that fits; then the search goes on from
            the best one that fits.
        disorder, undone, gathering, served: as in `RuinAndRecreate`.
    """

    seconds: float = field(default=3.0, validator=number(0))
    searches: int = field(default=1, validator=whole(1, "searches"))
    idle: float = field(default=0.0, validator=number(0))
    restart: bool = field(default=True, validator=FLAG)
    temperature: float = field(default=0.001, validator=number(0))
    patience: float = field(default=1.0, validator=number(0, 1))
    over: float = field(default=0.7, validator=number(0, 1))
    disorder: float = field(default=0.3, validator=number(0, 1))
    undone: float = field(default=0.5, validator=number(0, 1))
    gathering: float = field(default=0.2, validator=number(0, 1))
    served: int = field(default=8, validator=whole(1, "evictions"))

    def outline(self, graph: Graph) -> tuple[str, ...]:
        """The number of searches and their work."""
        return (f"{self!r}: {self.searches} searches of {self._each:g} s of work",)

    @property
    def _each(self) -> float:
        return self.seconds / self.searches

    def improve(self, search: Search) -> None:
        """Search from new starts, or from the best plan."""
        if search.worked.idle < self.idle:
            return
        for _ in range(self.searches):
            if search.over:
                return
            number_of_search = search.next_search()
            rng = search.streams.spawn("oscillation", number_of_search)
            fresh = search.base if number_of_search % 2 else search.shifted
            start = fresh if self.restart or search.best is None else search.best
            level = self.search_from(search, start, rng, repr(self))
            search.worked.agreed |= self.restart and level

    def search_from(self, search: Search, start: Sequence, rng: Seed, how: str) -> bool:
        """Search from a sequence, which need not fit, and offer better plans.

        Returns whether it came to just the time of the plan that was there before, and to no better one.
        """
        if not self.seconds:
            return False
        await_kernels()
        at = Standpoint(current=evaluated(search.flat, start, search.budget, np.empty(start.size, np.int64)))
        began, batch, crosses, done = search.worked.seconds, iterations_per_check(search), True, 0.0
        before_it = search.best_time / max(1, int(search.flat.time.sum()))
        rival, given_up = Rival(before_it, self.patience, start=start is search.best), False
        while done < 1 and not (given_up or search.over or (done and search.clock.expired)):
            if crosses and done >= self.over:
                crosses = False
                at = at if at.best is None else evolve(at, current=at.best)
            crossing = Crossing(
                (float(self.disorder), float(self.undone), float(self.gathering)),
                self.served,
                self.temperature * (1 - done),
                crosses,
            )
            before = at.best
            at = oscillate(search.flat, at, search.budget, batch, crossing, rng)
            done = (search.worked.seconds - began) / self._each
            if at.best is not None and at.best is not before:
                search.offer(at.best.sequence, f"{done:.0%} of {how}")
            given_up = rival.ahead(at.best, done)
        return rival.level
