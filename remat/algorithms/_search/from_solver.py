"""`From`: plans of other solvers as starts of a search over run sequences, repaired by shaving where they are over the budget."""

from __future__ import annotations

from attrs import field, frozen

from remat.algorithms._core.problem import Problem
from remat.algorithms._core.solver import Solver
from remat.algorithms._search.passes import shaved, taste
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
        tastes: preferences of the shaving tried on each plan.
        gap: do nothing when plan and bound are this close.
    """

    solver: Solver = field(validator=instance(Solver, "Dtr()"))
    shares: tuple[float, ...] = field(default=(1.0, 1.15, 1.4), validator=tuple_of(number(1, 1000)))
    tastes: int = field(default=2, validator=whole(1, "tastes"))
    gap: float = field(default=0.0, validator=number(0))

    def refuses(self, graph: Graph) -> str | None:
        """Refuses what is not flat, and what its solver refuses."""
        return super().refuses(graph) or self.solver.refuses(graph)

    def improve(self, search: Search) -> None:
        """Each plan, shaved by each taste."""
        graph = search.problem.graph
        if self.solver.refuses(graph) is not None:
            return
        for k, share in enumerate(self.shares):
            if search.clock.expired or search.within(self.gap):
                return
            problem = Problem(graph=graph, budget=min(LARGEST, int(search.budget * share)))
            outcome = self.solver.solve(problem, clock=search.clock.nested(), seed=search.seed)
            if outcome.schedule is None:
                continue
            start = search.sequence_of(outcome.schedule)
            search.offer(start, f"{self!r}, share {share}")
            for j in range(self.tastes):
                found = shaved(search, start, taste(j), search.chance(5000 + 10 * k + j), search.budget)
                if found is not None:
                    search.offer(found, f"{self!r}, share {share}, shaved")
