"""`FreeOrder`: plans from the relaxed formulation at single instants, in the order of its solution.

A solution says which data are resident at its instants and in which stage each node first runs, not only in the captured order.
Elsewhere the sequence that it describes does not fit, and shaved at once it is seldom worth anything. A short search on both
sides of the budget makes a plan of it, often of another kind than those from the captured order. Source: this project.
"""

from __future__ import annotations

import numpy as np
from attrs import field, frozen
from numpy.typing import NDArray

from remat.algorithms._arrays.graph_arrays import Seed
from remat.algorithms._bounds.instants import Dependencies
from remat.algorithms._bounds.ordered_instants import Chained, ordered_formulation
from remat.algorithms._milp.direct import solve_relaxed
from remat.algorithms._search.lp_rounding import hardest_instants
from remat.algorithms._search.on_demand import recompute_on_demand
from remat.algorithms._search.oscillation import Oscillation
from remat.algorithms._search.state import RunMove, Search, Sequence
from remat.settings import number, whole

SETTLING = 0.2
"""Seconds of work of the search from the sequence that a solution describes."""

_PER_NODE = 5e-4  # the same for each node, on smaller graphs


@frozen
class FreeOrder(RunMove):
    """Plans from the relaxed formulation at the hardest instants, in the order of its solution. Proves nothing.

    Attributes:
        instants: how many.
        effort: limit on the effort of each solve (see `Answer`). 1e7: about a second.
        settling: seconds of work of the search from the sequence that each solution describes.
    """

    instants: int = field(default=3, validator=whole(1, "instants"))
    effort: float = field(default=1e7, validator=number(0))
    settling: float = field(default=SETTLING, validator=number(0))

    def improve(self, search: Search) -> None:
        """Solve and settle, one instant after the other."""
        dependencies = Dependencies(search.flat)
        for rank, at in enumerate(hardest_instants(search, self.instants)):
            if search.over:
                return
            formulation = ordered_formulation(search.flat, dependencies, (at,), search.budget)
            if formulation.impossible:
                continue
            answer = solve_relaxed(formulation.linear, self.effort, clock=search.clock)
            if answer.point is None:
                continue
            start = planned(search, formulation, answer.point)
            how = f"{self!r} at {search.problem.graph.computes[at].name}"
            settle(search, start, self.settling, search.streams.spawn("free order", rank), how)


def planned(search: Search, formulation: Chained, x: NDArray[np.float64]) -> Sequence:
    """The run sequence that a solution describes: first runs by stage, data resident at each instant, the rest on demand."""
    stage = formulation.stage_of(x)
    rank = {at: k + 1 for k, at in enumerate(formulation.instants)}
    base = sorted(search.base.tolist(), key=lambda v: (rank.get(v, stage[v]), v not in rank, v))
    saved = np.ones(formulation.resident.shape, np.bool_)
    decided = formulation.resident >= 0
    saved[decided] = x[formulation.resident[decided]] >= 0.5
    instants = np.array(formulation.instants, np.int32)
    sequence: Sequence = recompute_on_demand(search.flat, np.array(base, np.int32), instants, saved)
    return sequence


def settle(search: Search, start: Sequence, seconds: float, rng: Seed, how: str) -> None:
    """Offer what a search on both sides of the budget makes of the sequence that a solution describes, in seconds of work.

    It has less on small graphs.
    """
    settling = Oscillation(seconds=min(seconds, _PER_NODE * search.nodes), restart=False)
    settling.search_from(search, start, rng, f"a search from {how}")
