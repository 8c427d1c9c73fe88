"""`Postpone`: orders in which nodes whose outputs must be kept run after a heavy node, where they need not run before it.

Gradients of parameters are kept from their first completion. In the captured order almost all of them are resident when the
last sums of a backward run, and if one of those is heavy (the gradient of a vocabulary that is tied to the first layer), its
working set and the kept data exceed a budget that another order fits. No recomputation helps: kept data cannot be dropped.
"""

from __future__ import annotations

import numpy as np
from attrs import field, frozen
from numpy.typing import NDArray

from remat.algorithms._arrays.graph_arrays import BACKWARD, Flat, Longs
from remat.algorithms._arrays.kept_data import kept_by_node, working_sets
from remat.algorithms._bounds.instants import Dependencies
from remat.algorithms._search.passes import offer_shaved, variant
from remat.algorithms._search.state import RunMove, Search, Sequence
from remat.settings import number, tuple_of, whole


@frozen
class Postpone(RunMove):
    """Shavings of orders in which nodes that make kept data run after a heavy node instead of before it. Proves nothing.

    A node is heavy if its working set and the data kept by then exceed a share of the budget. Of the backward nodes before it on
    which it does not depend, the last ones are moved behind it, as many as it takes.

    Attributes:
        reserves: shares of the budget that each heavy node must leave free; one order for each, unless it is like an earlier one.
        heaviest: largest number of heavy nodes relieved for one order.
    """

    reserves: tuple[float, ...] = field(default=(0.0, 0.05, 0.1, 0.15, 0.2), validator=tuple_of(number(0, 1)))
    heaviest: int = field(default=8, validator=whole(1, "nodes"))

    def improve(self, search: Search) -> None:
        """Shave each order until one fits."""
        needs = working_sets(search.flat)
        dependencies = Dependencies(search.flat)
        tried = [search.base]
        for k, reserve in enumerate(self.reserves):
            room = int(search.budget * (1 - reserve))
            order = self._order(search.flat, dependencies, search.base, needs, room)
            if any(np.array_equal(order, other) for other in tried):
                continue
            if search.over:
                return
            tried.append(order)
            before = search.best_time
            offer_shaved(
                search, order, variant(0), search.streams.spawn("postpone", k), f"{self!r}, {reserve} left free"
            )
            if search.best_time < before:
                return

    def _order(self, flat: Flat, dependencies: Dependencies, base: Sequence, needs: Longs, room: int) -> Sequence:
        """`base` with the heavy nodes relieved, the heaviest first."""
        order = base
        relieved: set[int] = set()
        for _ in range(self.heaviest):
            excess = needs[order] + kept_before_positions(flat, order) - room
            excess[np.isin(order, list(relieved))] = 0
            at = int(np.argmax(excess))
            if excess[at] <= 0:
                break
            relieved.add(int(order[at]))
            order = relieved_order(flat, dependencies, order, at, int(excess[at]))
        return order


def kept_before_positions(flat: Flat, order: Sequence) -> Longs:
    """Bytes kept by the time each position of an order of first runs is reached."""
    kept = kept_by_node(flat)[order]
    return np.cumsum(kept) - kept


def relieved_order(flat: Flat, dependencies: Dependencies, order: Sequence, at: int, excess: int) -> Sequence:
    """The order with the last backward nodes before position `at` that its node does not depend on moved right behind it.

    As many as make `excess` bytes of kept data, or all. Legal: a node that depends on a moved one is behind it in the order, the
    node at `at` does not depend on it, and so it is moved too.
    """
    node = int(order[at])
    needed: NDArray[np.bool_] = dependencies.ancestors(node)
    kept = kept_by_node(flat)
    moved = np.zeros(len(order), np.bool_)
    for position in range(at - 1, -1, -1):
        if excess <= 0:
            break
        v = int(order[position])
        if flat.phase[v] == BACKWARD and not needed[v]:
            moved[position] = True
            excess -= int(kept[v])
    head, tail = order[: at + 1], order[at + 1 :]
    return np.concatenate([head[~moved[: at + 1]], head[moved[: at + 1]], tail])
