"""`Corrected`: the top level of a hierarchy by H-ILP with its correction terms (HiRemate, 2024, App. B)."""

from __future__ import annotations

from attrs import field, frozen

from remat.algorithms._core.clock import Clock
from remat.algorithms._core.outcome import Plan
from remat.algorithms._core.problem import Problem
from remat.algorithms._core.solver import Solver, as_plan
from remat.algorithms._hierarchy.condense import Condense
from remat.algorithms._staged.budget_solver import Watch
from remat.algorithms._staged.solver import HIlp
from remat.ir import Graph
from remat.settings import instance


@frozen
class Corrected(Solver):
    """`levels >> top` with the memory of the expanded schedule: a row for each moment of the options' profiles.

    The replay of a level charges an option's workspace for the whole run of its layer, and so does `levels >> top`. Here every
    plan is replayed as a schedule of the flat graph, which fits smaller budgets. Proves nothing about flat schedules.

    Attributes:
        levels: divides the graph, and offers the options of each cluster.
        top: H-ILP; it plans without a warm start here, and where nothing is divided as it is.
    """

    levels: Condense = field(validator=instance(Condense, "Condense(Intervals(12), lower=quick.sweep())"))
    top: HIlp = field(validator=instance(HIlp, "HIlp()"))

    def refuses(self, graph: Graph) -> str | None:
        """Why a graph is refused: the partitioner refuses it."""
        return self.levels.refuses(graph)

    def plan(self, problem: Problem, clock: Clock, seed: int) -> Plan:
        """The best plan of the top level, expanded."""
        level, note = self.levels.level(problem.graph, clock=clock, seed=seed)
        if level is None:
            return as_plan(self.top.solve(problem, clock=clock, seed=seed))
        reason = self.top.refuses(level.graph)
        if reason is not None:
            return Plan(trail=(f"{self.levels!r}: {note}", f"{self.top!r} refused: {reason}"))
        result = self.top.top(level).solve(problem.budget, watch=Watch(clock, self))
        words = f"{self!r}: {note}; {self.top.story(result)}; {'; '.join(result.notes)}"
        return Plan(schedule=result.schedule, trail=(words,))
