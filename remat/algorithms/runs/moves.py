"""Moves over run sequences, each usable alone: shaving, deletion, many starts, ruin and recreate.

The kernels are in `shaving`, `deletion` and `ruin`; this module gives them settings, seeds and the search they work on.
"""

from __future__ import annotations

import numpy as np
from attrs import field, frozen

from remat.algorithms.runs.deletion import delete
from remat.algorithms.runs.liveness import total_time
from remat.algorithms.runs.ruin import ruin_and_recreate
from remat.algorithms.runs.search import RunMove, Search, Sequence
from remat.algorithms.runs.shaving import shave
from remat.ir.checks import at_least

_NO_CEILING = np.int64(1 << 62)
_PATIENCE = 25  # iterations of ruin and recreate between looks at the clock


def shaved(
    search: Search, start: Sequence, exponent: float, noise: float, share: float, chance: np.ndarray
) -> Sequence | None:
    """`start` shaved under the budget and thinned by deletion; None when shaving gives up."""
    found, fit = shave(search.flat, start, search.budget, exponent, noise, share, chance, _NO_CEILING)
    return delete(search.flat, found, search.budget) if fit else None


@frozen
class PeakShaving(RunMove):
    """Greedy eviction from gaps until the peak is under the budget, then deletion. Proves nothing.

    Attributes:
        exponent: weight of the rerun chain's time in a gap's score.
        noise: relative random change of scores.
        share: inputs smaller than this share of the evicted datum are kept rather than made again.
    """

    exponent: float = 1.0
    noise: float = 0.0
    share: float = 0.0

    def improve(self, search: Search) -> None:
        """One shaving of the captured order."""
        found = shaved(search, search.base, self.exponent, self.noise, self.share, search.chance(1))
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
class MultiStart(RunMove):
    """Peak shaving from the captured order, many times with other preferences and a little noise. Proves nothing."""

    starts: int = field(default=20, validator=at_least(1, "starts"))

    def improve(self, search: Search) -> None:
        """The best of all starts; the first is the plain `PeakShaving()`."""
        for k in range(self.starts):
            if search.clock.expired:
                return
            exponent = (1.0, 0.7, 0.5, 1.4)[k % 4]
            noise = 0.0 if k < 8 else 0.25
            share = 0.0 if (k // 4) % 2 == 0 else 0.2
            found = shaved(search, search.base, exponent, noise, share, search.chance(100 + k))
            if found is not None:
                search.offer(found, f"start {k + 1} of {self!r}")


@frozen
class RuinAndRecreate(RunMove):
    """Large-neighbourhood search: take reruns of a random part out, shave and delete again, keep what is not worse.

    Without a start it begins with `PeakShaving()`.

    Attributes:
        iterations: how many.
        temperature: relative worsening accepted at first; falls to zero.
    """

    iterations: int = field(default=300, validator=at_least(1, "iterations"))
    temperature: float = 0.0005

    def improve(self, search: Search) -> None:
        """Search from the best sequence."""
        if search.best is None:
            PeakShaving().improve(search)
        if search.best is None:
            return
        current, chance = search.best, search.chance(7)
        for done in range(0, self.iterations, _PATIENCE):
            if search.clock.expired:
                return
            some = min(_PATIENCE, self.iterations - done)
            heat = self.temperature * (1 - done / self.iterations)
            best, current = ruin_and_recreate(search.flat, current, search.budget, some, heat, chance)
            if total_time(search.flat, best, len(best)) < search.best_time:
                search.offer(best, f"iteration {done + some} of {self!r}")
