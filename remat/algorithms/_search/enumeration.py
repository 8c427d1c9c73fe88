"""`Enumerate`: the optimum of a tiny problem by exhaustive search, where moves and relaxations would try for seconds."""

from __future__ import annotations

from attrs import evolve, field, frozen

from remat.algorithms._search.run_move import RunMove
from remat.algorithms._search.state import Search
from remat.algorithms._whole.exhaustive import Exhaustive
from remat.settings import whole


@frozen
class Enumerate(RunMove):
    """The optimum by `Exhaustive`, or that none exists, on graphs of a few nodes; does nothing on larger ones.

    Where the limit of states is reached, the bound reached by then stays. With a link it offers the best plan without copies and
    proves nothing. What it proves has no certificate: where one is asked for (`proof=True`), it proves nothing either, so that
    the bounds that have one follow.

    Attributes:
        nodes: graphs with more compute nodes are left alone.
        cells: graphs with more data are left alone: the sets of data that may be dropped are enumerated.
        states: expanded states after which it gives up.
    """

    nodes: int = field(default=12, validator=whole(1, "nodes"))
    cells: int = field(default=24, validator=whole(1, "data"))
    states: int = field(default=500, validator=whole(1, "states"))

    def improve(self, search: Search) -> None:
        """Enumerate, offer the optimum and prove the bound."""
        graph = search.problem.graph
        if len(graph) > self.nodes or len(graph.data) > self.cells:
            return
        exhaustive = Exhaustive(max_nodes=self.nodes, max_states=self.states)
        with search.charged("bound"):
            problem = evolve(search.problem, link=None, host_budget=None)
            plan = exhaustive.plan(problem, search.clock, search.seed)
        if plan.schedule is not None:
            search.offer(search.arrays.sequence_of(plan.schedule), repr(self))
        if not search.problem.proof_leaves:
            search.prove(plan.lower, repr(self))
