"""How much another instant at a node promises to raise a bound, for nothing solved.

Dependencies leave open what has run when a node first runs, and a formulation decides that so that the instant says least. Two
figures stand for what is left. What its first run takes if only what must run before it has run, and nothing runs again, says how
hard the instant is where nothing is postponed; the share of the backward that dependencies put before or after it says how little
can be. The gradient of a weight may be as hard by the first as the node that goes on, and bounds nothing. In the forward no tower
may be over the budget that early, and yet not all of them can be first: all that the first run takes counts there. Source: this
project; figures in docs/decisions/0075-instants-that-a-solution-breaks.md and 0099-instants-in-the-forward.md.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from remat.algorithms._arrays.graph_arrays import BACKWARD, LOSS, Flat, pairs_of
from remat.algorithms._arrays.kept_data import permanent
from remat.algorithms._bounds.instants import Dependencies
from remat.units import Bytes


def pressures(flat: Flat, dependencies: Dependencies, budget: Bytes) -> NDArray[np.float64]:
    """Of each backward node the bytes over the budget at its earliest, times the nodes that are certain; of the loss 0.

    Its earliest is its first run if only its ancestors and the forward have run, and nothing runs again. Certain are the nodes of
    its phase that dependencies put before or after it. Of a forward node all bytes count.
    """
    kept, (data, readers) = permanent(flat), pairs_of(flat.users)
    pressure = np.zeros(flat.time.size)
    for at in np.flatnonzero((flat.phase != LOSS) & flat.required).tolist():
        ancestors, phase = dependencies.ancestors(at), flat.phase[at]
        alike = (flat.phase == phase) & flat.required
        certain = int((ancestors | dependencies.descendants(at))[alike].sum()) + 1
        ran = ancestors | (flat.phase < phase) | ~flat.required
        resident = kept.copy()
        resident[data[~ran[readers]]] = True
        resident &= (flat.producer >= 0) & ran[flat.producer]
        needed = sum(flat.size[resident].tolist()) + int(flat.charge[at])
        pressure[at] = max(0, needed - (budget if phase == BACKWARD else 0)) * certain
    return pressure
