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


class Pressures:
    """The pressures of the nodes of a graph, each computed when it is first asked for."""

    def __init__(self, flat: Flat, dependencies: Dependencies, budget: Bytes) -> None:
        self._flat, self._dependencies, self._budget = flat, dependencies, budget
        self._kept, (self._data, self._readers) = permanent(flat), pairs_of(flat.users)
        self._values: dict[int, int] = {}

    def of(self, nodes: NDArray[np.integer]) -> NDArray[np.float64]:
        """Of each node, see `at`."""
        return np.array([self.at(node) for node in nodes.tolist()], np.float64)

    def at(self, node: int) -> int:
        """Of a backward node the bytes over the budget at its earliest, times the nodes that are certain; of the loss 0.

        Its earliest is its first run if only its ancestors and the forward have run, and nothing runs again. Certain are the
        nodes of its phase that dependencies put before or after it. Of a forward node all bytes count.
        """
        if node not in self._values:
            self._values[node] = self._pressure(node)
        return self._values[node]

    def _pressure(self, node: int) -> int:
        flat, phase = self._flat, self._flat.phase[node]
        if phase == LOSS or not flat.required[node]:
            return 0
        ancestors = self._dependencies.ancestors(node)
        alike = (flat.phase == phase) & flat.required
        certain = int((ancestors | self._dependencies.descendants(node))[alike].sum()) + 1
        ran = ancestors | (flat.phase < phase) | ~flat.required
        resident = self._kept.copy()
        resident[self._data[~ran[self._readers]]] = True
        resident &= (flat.producer >= 0) & ran[flat.producer]
        needed = sum(flat.size[resident].tolist()) + int(flat.charge[node])
        spare = self._budget if phase == BACKWARD else 0
        return max(0, int(needed) - spare) * certain
