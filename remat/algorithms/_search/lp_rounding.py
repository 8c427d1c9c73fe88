"""`SavedSet`: plans from the saved-set formulation at the hardest instants: solve, round, recompute on demand, repair.

The relaxed formulation says which data are resident at one instant and what runs again after it. Rounded at one half it gives
a plan: the other data are dropped at their last read before the instant and recomputed right before their next read.
Such a plan often exceeds the budget elsewhere; shaving repairs it, and deletion removes reruns that are not needed. Source:
this project; at the loss the formulation is the saved-set knapsack.
"""

from __future__ import annotations

import numpy as np
from attrs import field, frozen

from remat.algorithms._arrays.graph_arrays import row_of
from remat.algorithms._bounds.instants import Dependencies, Instant, instant_formulation
from remat.algorithms._milp.direct import solve_relaxed
from remat.algorithms._search.on_demand import recompute_on_demand
from remat.algorithms._search.passes import ShavingParams, offer_shaved
from remat.algorithms._search.run_move import RunMove
from remat.algorithms._search.run_problem import Sequence
from remat.algorithms._search.single_instant import candidate_instants
from remat.algorithms._search.state import Search
from remat.settings import number, tuple_of, whole


def hardest_instants(search: Search, count: int) -> list[int]:
    """The instants of the largest bounds so far; if there are none, instants are scanned in the captured order first."""
    if not search.bounds.hardness:
        dependencies = Dependencies(search.flat)
        for at in candidate_instants(search, 8, 3):
            instant = instant_formulation(search.flat, dependencies, at, search.budget, fixed=True)
            answer = None if instant.impossible else solve_relaxed(instant.linear, clock=search.clock)
            if answer is not None and not answer.infeasible:
                search.bounds.record_instant(at, answer.bound)
            if search.clock.expired:
                break
    return search.bounds.hardest(count)


@frozen
class SavedSet(RunMove):
    """Plans from the saved-set formulation at the hardest instants, repaired by peak shaving. Proves nothing.

    Attributes:
        instants: how many.
        shares: fractions of the budget that the formulation may fill.
        threshold: data of at least this relaxed residency are saved.
    """

    instants: int = field(default=4, validator=whole(1, "instants"))
    shares: tuple[float, ...] = field(default=(1.0, 0.95, 0.88), validator=tuple_of(number(0, 1)))
    threshold: float = field(default=0.5, validator=number(0, 1))

    def improve(self, search: Search) -> None:
        """Shave and thin one start per instant and share."""
        dependencies = Dependencies(search.flat)
        for rank, at in enumerate(hardest_instants(search, self.instants)):
            for k, share in enumerate(self.shares):
                if search.clock.expired:
                    return
                budget = min(search.budget, int(search.budget * share))
                instant = instant_formulation(search.flat, dependencies, at, budget, fixed=True)
                start = None if instant.impossible else self._start(search, instant)
                if start is None:
                    continue
                how = f"{self!r} at {search.problem.graph.computes[at].name}, share {share}"
                offer_shaved(search, start, ShavingParams(), search.streams.spawn("saved set", rank, k), how)

    def _start(self, search: Search, instant: Instant) -> Sequence | None:
        answer = solve_relaxed(instant.linear, clock=search.clock)
        if answer.point is None:
            return None
        saved = np.ones(search.flat.size.size, np.bool_)
        with_column = instant.resident >= 0
        saved[with_column] = answer.point[instant.resident[with_column]] >= self.threshold
        reads = row_of(search.flat.reads, instant.at)
        saved[reads] = True
        at = np.array([instant.at], np.int32)
        start: Sequence = recompute_on_demand(search.flat, search.base, at, saved[None, :])
        return start
