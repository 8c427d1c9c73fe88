"""Plans from solutions of a formulation at several instants: the sequence that one describes, and how it settles.

A solution says which data are resident at its instants and in which stage each node first runs, not only in the captured order.
Elsewhere the sequence that it describes does not fit, and shaved at once it is seldom worth anything. A short search on both
sides of the budget makes a plan of it, often of another kind than those from the captured order. Source: this project.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from remat.algorithms._arrays.graph_arrays import Seed
from remat.algorithms._bounds.ordered_instants import Chained
from remat.algorithms._search.on_demand import recompute_on_demand
from remat.algorithms._search.oscillation import Oscillation
from remat.algorithms._search.state import Search, Sequence

_PER_NODE = 5e-4  # seconds of work, on small graphs


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


def settle(search: Search, start: Sequence, seconds: float, rng: Seed, how: str) -> None:
    """Offer what a search on both sides of the budget makes of such a sequence, in seconds of work; on small graphs in less."""
    settling = Oscillation(seconds=min(seconds, _PER_NODE * search.nodes), restart=False)
    settling.search_from(search, start, rng, f"a search from {how}")
