"""`CoarseToFine`: a search on a smaller graph, and one on the graph from where that ended.

Changes of a sequence move runs of single nodes, so on large graphs a search keeps the structure that it began with: which part of
a block is kept, in what order towers run. Where small nodes are merged (`Merge`) a change moves a whole group, and as many
iterations visit a fraction of the runs. The plan that is reached there is worse, and the search from it, which takes sequences
over the budget too, often ends at better ones than a search of the same work from elsewhere. Source of the scheme: as of `Merge`.
"""

from __future__ import annotations

from attrs import field, frozen

from remat.algorithms._hierarchy.merge import Merge
from remat.algorithms._search.oscillation import Oscillation
from remat.algorithms._search.run_move import RunMove
from remat.algorithms._search.run_problem import Sequence
from remat.algorithms._search.state import Search
from remat.ir import Graph
from remat.settings import instance

_SMALLER = 0.8
"""Share of the nodes that may be left at most: where little is merged, the first search would be one on the graph itself."""


@frozen(kw_only=True)
class CoarseToFine(RunMove):
    """A search on the graph with small nodes merged, one on the graph from its plan, and one from the best. Proves nothing.

    Attributes:
        merge: what is merged.
        coarse: the search on the smaller graph, from its captured order.
        fine: the one that follows on the graph.
        last: the one after that, from the best plan, whether that is its own or was there before.
    """

    merge: Merge = field(default=Merge(), validator=instance(Merge, "Merge()"))
    coarse: Oscillation = field(
        default=Oscillation(seconds=6.0, temperature=0.003), validator=instance(Oscillation, "Oscillation()")
    )
    fine: Oscillation = field(
        default=Oscillation(seconds=12.0, temperature=0.003), validator=instance(Oscillation, "Oscillation()")
    )
    last: Oscillation = field(
        default=Oscillation(seconds=12.0, restart=False, temperature=0.003),
        validator=instance(Oscillation, "Oscillation()"),
    )

    def outline(self, graph: Graph) -> tuple[str, ...]:
        """The work of the searches."""
        fine = self.fine.seconds + self.last.seconds
        return (f"{self!r}: {self.coarse.seconds:g} s of work on merged nodes, {fine:g} s on the graph",)

    def improve(self, search: Search) -> None:
        """Search on the smaller graph, and on the graph from its plan, if it has one.

        Where it is hardly smaller, a plan that is there stays; without one the searches on the graph begin from its own order.
        """
        applied = self.merge.apply(search.problem)
        if len(applied.problem.graph) > _SMALLER * len(search.problem.graph):
            if search.best is None:
                self._search_from(search, search.base)
            return
        number_of_search, how = search.next_search(), type(self).__name__
        below = Search(applied.problem, search.clock.aside(), search.seed, self)
        self.coarse.search_from(below, below.base, below.streams.spawn("oscillation", number_of_search), how)
        search.flat.work[0] += below.flat.work[0]
        if search.over or below.best is None:
            return
        start = search.arrays.sequence_of(applied.lift(below.arrays.schedule_of(below.best)))
        search.offer(start, f"the coarse plan of {how}")
        self._search_from(search, start)

    def _search_from(self, search: Search, start: Sequence) -> None:
        how = type(self).__name__
        self.fine.search_from(search, start, search.streams.spawn("oscillation", search.next_search()), how)
        self.last.improve(search)
