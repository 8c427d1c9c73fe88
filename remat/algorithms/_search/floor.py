"""`Floor` and `CutFloor`: the floors as passes of the search; the first is certified, the second claimed."""

from __future__ import annotations

from attrs import frozen

from remat.algorithms._bounds.floor import floor_of
from remat.algorithms._bounds.kept_cut import KeptCuts
from remat.algorithms._core.outcome import IMPOSSIBLE
from remat.algorithms._proving.evidence import Needs
from remat.algorithms._search.run_move import RunMove
from remat.algorithms._search.state import Search


@frozen
class Floor(RunMove):
    """Proves that no schedule exists below the floor, the bytes that some step of every schedule needs.

    Its plan is the captured order.
    """

    def improve(self, search: Search) -> None:
        """Compare the budget with the floor."""
        with search.charged("bound"):
            floor, node = floor_of(search.flat, search.clock)
            if search.budget < floor:
                place = "the end of the step" if node < 0 else search.problem.graph.computes[node].name
                evidence = Needs(search.problem.graph, search.budget, search.flat, node)
                search.prove(IMPOSSIBLE, f"the floor of {floor} B at {place}", evidence=evidence)


@frozen
class CutFloor(RunMove):
    """Claims that no schedule exists where no heavy node can be the last: cuts of what must then be resident.

    Its plan is the captured order.
    """

    def improve(self, search: Search) -> None:
        """Look for heavy nodes all of which need more than the budget when they are the last to run."""
        with search.charged("bound"):
            if KeptCuts(search.problem.graph, search.flat).impossible(search.budget, search.clock):
                search.prove(IMPOSSIBLE, "the floor by cuts between heavy nodes and kept data")
