"""Plans from solutions of a formulation at several instants: the sequence that one describes, and how it settles.

A solution says which data are resident at its instants and in which stage each node first runs, not only in the captured order.
Elsewhere the sequence that it describes does not fit, and shaved at once it is seldom worth anything; so that is done in haste,
for all of them. A short search on both sides of the budget makes a plan of the best, often of another kind than those from the
captured order. Source: this project.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from remat.algorithms._bounds.ordered_instants import Chained
from remat.algorithms._search.deletion import delete
from remat.algorithms._search.on_demand import recompute_on_demand
from remat.algorithms._search.oscillation import Oscillation
from remat.algorithms._search.passes import offer_shaved, variant
from remat.algorithms._search.peak_shaving import NO_CEILING, shave
from remat.algorithms._search.run_problem import Sequence
from remat.algorithms._search.state import Search

_PER_NODE = 5e-4  # seconds of work, on small graphs
_SERVED = 8  # evictions from one scan, in haste
_CEILING = 1.1  # time over that of the best plan above which shaving in haste ends: deletion may lower it
_VAIN = 8  # plans that settle and bring nothing, in a row, after which none does: on 21 rows 25 of 27 gains came before


def described(search: Search, formulation: Chained, x: NDArray[np.float64]) -> Sequence:
    """The run sequence of a solution: first runs by stage, data resident at each instant, the rest on demand."""
    stage = formulation.stage_of(x)
    rank = {at: k + 1 for k, at in enumerate(formulation.instants)}
    base = sorted(search.base.tolist(), key=lambda v: (rank.get(v, stage[v]), v not in rank, v))
    saved = np.ones(formulation.resident.shape, np.bool_)
    decided = formulation.resident >= 0
    saved[decided] = x[formulation.resident[decided]] >= 0.5
    instants = np.array(formulation.instants, np.int32)
    sequence: Sequence = recompute_on_demand(search.flat, np.array(base, np.int32), instants, saved)
    return sequence


class SolutionPlans:
    """Offers what solutions describe: shaved, and settled.

    Attributes:
        search: that it is offered to. how: in words. variants: preferences of shaving that are tried on each sequence.
        seconds: of work of the search from each.
        settled: seconds of work of all these searches so far. drawn: of the shavings in haste.
    """

    def __init__(self, search: Search, how: str, variants: int, seconds: float) -> None:
        self.search, self.how, self.variants, self.seconds = search, how, variants, seconds
        self.settled = 0.0
        self._solutions = self._draws = 0
        self.drawn = 0.0
        self._vain = 0  # plans in a row that settled and brought nothing

    def offer(self, start: Sequence, count: int) -> None:
        """Shave the sequence of a solution at `count` instants, then let it settle."""
        search = self.search
        self._solutions += 1
        with search.charged("plan"):
            for j in range(self.variants):
                if j and search.clock.expired:
                    return
                rng = search.streams.spawn("any order", self._solutions, j)
                offer_shaved(search, start, variant(j), rng, f"{self.how} at {count} instants")
        self._settle(start, count)

    def draw(self, start: Sequence, count: int) -> None:
        """Shave the sequence of a solution once, in haste; only if that brings a better plan it settles.

        It takes a hundredth of the time of `offer`, and most solutions are like those before.
        """
        search, began = self.search, self.search.worked.seconds
        self._draws += 1
        with search.charged("plan"):
            scoring = variant(0).scoring(search)._replace(served=_SERVED)
            ceiling = NO_CEILING if search.best is None else int(min(_CEILING * search.best_time, NO_CEILING))
            rng = search.streams.spawn("drawn", self._draws)
            plan, fits = shave(search.flat, scoring, start, search.budget, rng, ceiling)
            how = f"{self.how} at {count} instants, in haste"
            taken = fits and search.offer(delete(search.flat, plan, search.budget), how)
        self.drawn += search.worked.seconds - began
        if taken:
            self._settle(start, count)

    def settle(self, start: Sequence, count: int) -> None:
        """Let the sequence of a solution settle, if few of those before did so in vain."""
        self._solutions += 1
        self._settle(start, count)

    def _settle(self, start: Sequence, count: int) -> None:
        """Search on both sides of the budget; on small graphs for less time."""
        search = self.search
        if self._vain == _VAIN:
            return
        began, before = search.worked.seconds, search.best_time
        with search.charged("plan"):
            rng = search.streams.spawn("settling", self._solutions)
            settling = Oscillation(seconds=min(self.seconds, _PER_NODE * search.nodes), restart=False)
            settling.search_from(search, start, rng, f"a search from {self.how} at {count} instants")
        self.settled += search.worked.seconds - began
        self._vain = 0 if search.best_time < before else self._vain + 1
