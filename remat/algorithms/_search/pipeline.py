"""`Polish`: moves over one search, in turn, until the plan is within a gap of the bound."""

from __future__ import annotations

import logging

from attrs import field, frozen

from remat.algorithms._core.startup import planning_time
from remat.algorithms._core.wording import indented
from remat.algorithms._search.state import RunMove, Search
from remat.ir import Graph
from remat.settings import instance, number, tuple_of

logger = logging.getLogger(__name__)
"""Hears of every pass that ends (DEBUG): its seconds, the time of the best plan and the bound."""


@frozen
class Polish(RunMove):
    """Moves over one search, in turn; stops as soon as the plan is within `gap` of the bound.

    Attributes:
        moves: what to try, in order.
        gap: plan over bound less one that is good enough.
    """

    moves: tuple[RunMove, ...] = field(validator=tuple_of(instance(RunMove, "MultiStart()")))
    gap: float = field(default=0.002, validator=number(0))

    def outline(self, graph: Graph) -> tuple[str, ...]:
        """Those of its moves, and when they stop."""
        if self.refuses(graph) is not None:
            return super().outline(graph)
        head = f"until the plan is within {self.gap:.2%} of the bound:"
        return indented(head, *(move.outline(graph) for move in self.moves))

    def improve(self, search: Search) -> None:
        """Ask each move until the gap is met, none can exist, or the clock has expired."""
        outer = search.stage, search.done, search.total
        for done, move in enumerate(self.moves):
            if search.clock.expired or search.within(self.gap):
                break
            search.stage, search.done, search.total = repr(move), done, len(self.moves)
            start = planning_time()
            move.improve(search)
            seconds = planning_time() - start
            logger.debug("%s: %.3f s, time %s ns, bound %s ns", search.stage, seconds, search.best_time, search.lower)
        search.stage, search.done, search.total = outer
