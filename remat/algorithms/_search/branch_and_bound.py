"""`BranchAndBound`: a bound for every schedule by decisions at instants, in the trees that `AnyOrder` has grown.

The relaxation at several instants lets halves of large data be resident. Where another instant brings nothing any more, a leaf
is divided by a decision: a datum is resident at an instant or not, or a node has run by then or not. Strong branching chooses it,
and the least bound of all leaves holds for every schedule. A solver of mixed-integer programs does the same, with cuts and
heuristics that take most of its time on these formulations. Source of the scheme: Land and Doig, *An automatic method of solving
discrete programming problems*, 1960.
"""

from __future__ import annotations

from attrs import field, frozen

from remat.algorithms._search.any_order import AnyOrder, grown
from remat.algorithms._search.run_move import RunMove
from remat.algorithms._search.state import Search
from remat.settings import number


@frozen
class BranchAndBound(RunMove):
    """A bound for every schedule: branches in the trees of `AnyOrder`, or in one that begins with the hardest instant.

    Attributes:
        effort: limit on the effort of all solves in a tree (see `Answer`). 1e7: about a second.
    """

    effort: float = field(default=2.5e7, validator=number(0))

    def improve(self, search: Search) -> None:
        """Refine the leaf of the least bound, until the search may end or it brings too little."""
        trees = list(search.bounds.grown.values())
        if not trees and (growth := grown(search, AnyOrder(), self)) is not None:
            trees = [growth]
        with search.charged("bound"):
            for growth in trees:
                if not search.over:
                    growth.branch(self.effort)
