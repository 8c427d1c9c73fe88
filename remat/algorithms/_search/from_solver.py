"""`From`: plans of other solvers as starts of a search over run sequences, repaired by shaving where they are over the budget."""

from __future__ import annotations

from attrs import field, frozen

from remat.algorithms._core.problem import Problem
from remat.algorithms._core.solver import Solver
from remat.algorithms._search.passes import offer_shaved, variant
from remat.algorithms._search.state import RunMove, Search
from remat.ir import Graph
from remat.settings import instance, number, tuple_of, whole
from remat.units import LARGEST


@frozen
class From(RunMove):
    """Asks a solver at the budget and above it, shaves what it plans under the budget, and offers the result.

    A plan for a larger budget holds what a hurried rule throws away at the true one; shaving takes it out with the whole
    schedule in view. Proves nothing itself.

    Attributes:
        solver: who is asked, e.g. `Dtr("h_msps")`; it plans flat graphs.
        shares: the budgets it is asked for, as multiples of the true one.
        variants: preferences of the shaving tried on each plan.
    """

    solver: Solver = field(validator=instance(Solver, "Dtr()"))
    shares: tuple[float, ...] = field(default=(1.0, 1.15, 1.4), validator=tuple_of(number(1, 1000)))
    variants: int = field(default=2, validator=whole(1, "variants"))

    def refuses(self, graph: Graph) -> str | None:
        """Refuses what is not flat, and what its solver refuses."""
        return super().refuses(graph) or self.solver.refuses(graph)

    def improve(self, search: Search) -> None:
        """Each plan, shaved by each of the variants."""
        graph = search.problem.graph
        if self.solver.refuses(graph) is not None:
            return
        for k, share in enumerate(self.shares):
            if search.over:
                return
            problem = Problem(graph=graph, budget=min(LARGEST, int(search.budget * share)))
            outcome = self.solver.solve(problem, clock=search.clock.nested(), seed=search.seed)
            if outcome.schedule is None:
                continue
            start = search.arrays.sequence_of(outcome.schedule)
            search.offer(start, f"{self!r}, share {share}")
            for j in range(self.variants):
                rng = search.streams.spawn("solver", k, j)
                offer_shaved(search, start, variant(j), rng, f"{self!r}, share {share}, shaved")
