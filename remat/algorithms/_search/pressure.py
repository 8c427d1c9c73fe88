"""How much another instant at a node promises to raise a bound, for nothing solved.

Dependencies leave open what has run when a node first runs, and a formulation decides that so that the instant says least. Two
figures stand for what is left. What its first run takes if only what must run before it has run, and nothing runs again, says how
hard the instant is where nothing is postponed; the share of the backward that dependencies put before or after it says how little
can be. The gradient of a weight may be as hard by the first as the node that goes on, and bounds nothing. Source: this
project; figures in docs/decisions/0075-instants-that-a-solution-breaks.md.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from remat.algorithms._arrays.graph_arrays import BACKWARD, Flags, Flat, pairs_of, rows_of
from remat.algorithms._arrays.kept_data import permanent
from remat.units import Bytes


def pressures(flat: Flat, budget: Bytes) -> NDArray[np.float64]:
    """Of each backward node the bytes over the budget at its earliest, times the nodes that are certain; of others 0.

    Its earliest is its first run if only its ancestors and the forward have run, and nothing runs again. Certain are the backward
    nodes that dependencies put before or after it.
    """
    late = (flat.phase == BACKWARD) & flat.required
    before = _before(flat)
    certain = before[:, late].sum(axis=1) + before[late].sum(axis=0) + 1
    kept, (data, readers) = permanent(flat), pairs_of(flat.users)
    pressure = np.zeros(flat.time.size)
    for at in np.flatnonzero(late).tolist():
        ran = before[at] | ~late
        resident = kept.copy()
        resident[data[~ran[readers]]] = True
        resident &= (flat.producer >= 0) & ran[flat.producer]
        needed = sum(flat.size[resident].tolist()) + int(flat.charge[at])
        pressure[at] = max(0, needed - budget) * int(certain[at])
    return pressure


def _before(flat: Flat) -> Flags:
    """Of each node (row) the nodes that come before it in every schedule."""
    before = np.zeros((flat.time.size, flat.time.size), np.bool_)
    for v, row in enumerate(rows_of(flat.predecessors)):
        before[v, row] = True
        before[v] |= before[row].any(axis=0)
    return before
