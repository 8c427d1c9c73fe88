"""`From`: plans of other solvers as starts of a search over run sequences; shaving repairs those that exceed the budget."""

from __future__ import annotations

from attrs import field, frozen

from remat.algorithms._core.problem import Problem
from remat.algorithms._core.solver import Solver
from remat.algorithms._search.passes import offer_shaved, variant
from remat.algorithms._search.run_move import RunMove
from remat.algorithms._search.state import Search
from remat.ir import Graph
from remat.settings import instance, number, tuple_of, whole
from remat.units import LARGEST


@frozen
class From(RunMove):
    """Runs a solver at the budget and above it, shaves its plans to the budget, and offers the results.

    At the true budget an online rule evicts data without knowledge of later steps. A plan for a larger budget still has these
    data, and shaving evicts by looking at the complete schedule. Proves nothing itself.

    Attributes:
        solver: the solver to run, e.g. `Dtr("h_msps")`; it plans flat graphs.
        shares: the budgets at which it runs, as multiples of the true budget.
        variants: how many preferences of shaving are tried on each plan.
    """

    solver: Solver = field(validator=instance(Solver, "Dtr()"))
    shares: tuple[float, ...] = field(default=(1.0, 1.15, 1.4), validator=tuple_of(number(1, 1000)))
    variants: int = field(default=2, validator=whole(1, "variants"))

    def refuses(self, graph: Graph) -> str | None:
        """Refuses graphs that are not flat, and those that its solver refuses."""
        return super().refuses(graph) or self.solver.refuses(graph)

    def improve(self, search: Search) -> None:
        """Shave each plan with each of the variants."""
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
