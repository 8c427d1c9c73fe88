"""`Postpone`: orders in which nodes whose outputs must be kept run after a heavy node, where they need not run before it.

Gradients of parameters are kept from their first completion. In the captured order almost all of them are resident when the
last sums of a backward run, and if one of those is heavy (the gradient of a vocabulary that is tied to the first layer), its
working set and the kept data exceed a budget that another order fits. No recomputation helps: kept data cannot be dropped.
"""

from __future__ import annotations

import numpy as np
from attrs import field, frozen

from remat.algorithms._arrays.postponing import postponed_order
from remat.algorithms._search.passes import offer_shaved, variant
from remat.algorithms._search.run_move import RunMove
from remat.algorithms._search.state import Search
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
        tried = [search.base]
        for k, reserve in enumerate(self.reserves):
            room = min(search.budget, int(search.budget * (1 - reserve)))  # a float may round up, past 64 bits
            order = postponed_order(search.flat, search.base, room, self.heaviest)
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
