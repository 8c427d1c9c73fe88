"""`Floor`: the floor as a pass of the search; it is certified."""

from __future__ import annotations

from attrs import frozen

from remat.algorithms._bounds.floor import floor_of
from remat.algorithms._core.outcome import IMPOSSIBLE
from remat.algorithms._proving.evidence import Needs
from remat.algorithms._search.state import RunMove, Search


@frozen
class Floor(RunMove):
    """Proves that no schedule exists below the floor, the bytes that some step of every schedule needs. Plans nothing."""

    def improve(self, search: Search) -> None:
        """Compare the budget with the floor."""
        with search.charged("bound"):
            floor, node = floor_of(search.flat, search.clock)
            if search.budget < floor:
                place = "the end of the step" if node < 0 else search.problem.graph.computes[node].name
                evidence = Needs(search.problem.graph, search.budget, search.flat, node)
                search.prove(IMPOSSIBLE, f"the floor of {floor} B at {place}", evidence=evidence)
