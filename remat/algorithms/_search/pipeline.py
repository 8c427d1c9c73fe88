"""`Polish`: runs passes over one search in turn, until a stop rule says that the plan is good enough."""

from __future__ import annotations

import logging

from attrs import field, frozen

from remat.algorithms._core.startup import planning_time
from remat.algorithms._core.wording import indented
from remat.algorithms._search.run_move import RunMove
from remat.algorithms._search.state import Search
from remat.algorithms._search.stop import CONDITION, Condition, gap
from remat.errors import BackendMissing
from remat.ir import Graph
from remat.settings import instance, tuple_of

logger = logging.getLogger(__name__)
"""Logs every pass that ends (DEBUG): its seconds, the time of the best plan and the bound."""


@frozen
class Polish(RunMove):
    """Runs passes over one search in turn; ends as soon as the stop rule holds, also within a pass.

    A pass whose solver is not installed is left out; the trail and one warning say so.

    Attributes:
        moves: the passes, in order.
        stop: the condition under which the search ends.
    """

    moves: tuple[RunMove, ...] = field(validator=tuple_of(instance(RunMove, "MultiStart()")))
    stop: Condition = field(default=gap(0.002), validator=CONDITION)

    def outline(self, graph: Graph) -> tuple[str, ...]:
        """The lines of its passes, and the stop rule."""
        if self.refuses(graph) is not None:
            return super().outline(graph)
        return indented(f"until {self.stop}:", *(move.outline(graph) for move in self.moves))

    def improve(self, search: Search) -> None:
        """Run each pass until the stop rule holds or the clock has expired."""
        with search.until(self.stop):
            for done, move in enumerate(self.moves):
                if search.over:
                    break
                with search.at_stage(repr(move), done, len(self.moves)):
                    self._run(move, search)

    def _run(self, move: RunMove, search: Search) -> None:
        start = planning_time()
        try:
            move.improve(search)
        except BackendMissing as missing:
            search.leave_out(move, missing)
        seconds = planning_time() - start
        logger.debug("%r: %.3f s, time %s ns, bound %s ns", move, seconds, search.best_time, search.lower)
