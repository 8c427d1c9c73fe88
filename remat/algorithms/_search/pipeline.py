"""`Polish`: moves over one search, in turn, until the plan is within a gap of the proved bound."""

from __future__ import annotations

from attrs import field, frozen

from remat.algorithms._core.wording import indented
from remat.algorithms._search.state import RunMove, Search
from remat.ir import Graph
from remat.settings import instance, number, tuple_of


@frozen
class Polish(RunMove):
    """Moves over one search, in turn; stops as soon as the plan is within `gap` of the proved bound.

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
        head = f"until the plan is within {self.gap:.2%} of the proved bound:"
        return indented(head, *(move.outline(graph) for move in self.moves))

    def improve(self, search: Search) -> None:
        """Ask each move until the gap is met, none can exist, or the clock has expired."""
        for move in self.moves:
            if search.clock.expired or search.within(self.gap):
                return
            move.improve(search)
