"""`Corrected`: the top level of a hierarchy by H-ILP with its correction terms (HiRemate, 2024, App. B)."""

from __future__ import annotations

import math

from attrs import field, frozen

from remat.algorithms._core.clock import Clock
from remat.algorithms._core.outcome import Plan
from remat.algorithms._core.problem import Problem
from remat.algorithms._core.solver import Solver, as_plan
from remat.algorithms._core.warm_started import warm
from remat.algorithms._hierarchy.condense import Condense
from remat.algorithms._staged.budget_solver import Watch
from remat.algorithms._staged.solver import HIlp
from remat.ir import Graph
from remat.ir.hierarchy import Condensed
from remat.settings import instance, optional
from remat.units import Bytes


@frozen
class Corrected(Solver):
    """`levels >> top` with the memory of the expanded schedule: a row for each moment of the options' profiles.

    The replay of a level charges an option's workspace for the whole run of its layer, and so does `levels >> top`. Here every
    plan is replayed as a schedule of the flat graph, which fits smaller budgets. The search starts from the plan of
    `levels >> top`, for which it takes at most half of the time left. Proves nothing about flat schedules.

    Attributes:
        levels: divides the graph, and offers the options of each cluster.
        top: H-ILP; where nothing is divided, it plans the graph itself.
        start: plans the layers before, where it does not refuse them; None: `top` begins without a plan.
    """

    levels: Condense = field(validator=instance(Condense, "Condense(Intervals(12), lower=quick.sweep())"))
    top: HIlp = field(validator=instance(HIlp, "HIlp()"))
    start: Solver | None = field(default=None, kw_only=True, validator=optional(instance(Solver, "rk_rotor")))

    def refuses(self, graph: Graph) -> str | None:
        """Why a graph is refused: the partitioner refuses it."""
        return self.levels.refuses(graph)

    def plan(self, problem: Problem, clock: Clock, seed: int) -> Plan:
        """The best plan of the top level, expanded."""
        level, note = self.levels.level(problem.graph, clock=clock, seed=seed)
        if level is None:
            return as_plan(self.top.solve(problem, clock=clock, seed=seed))
        planned = self.of_level(level, problem.budget, clock, seed)
        return Plan(schedule=planned.schedule, trail=(f"{self!r}: {note}", *planned.trail))

    def of_level(self, level: Condensed, budget: Bytes, clock: Clock, seed: int = 0) -> Plan:
        """The best plan of a level for a budget of the flat graph."""
        reason = self.top.refuses(level.graph)
        if reason is not None:
            return Plan(trail=(f"{self.top!r} refused: {reason}",))
        half = clock.remaining / 2 if math.isfinite(clock.remaining) else None
        layers = Problem(graph=level.graph, budget=budget)
        first = self._first(level.graph).solve(layers, clock=clock.aside(half), seed=seed)
        trail = tuple(f"start: {line}" for line in first.trail[:1])
        if clock.expired and first.schedule is not None:
            return Plan(schedule=level.expand(first.schedule), trail=("stopped before the correction terms", *trail))
        corrected = self.top.top(level)
        start = None if first.schedule is None else corrected.incumbent(first.schedule, budget)
        result = corrected.solve(budget, incumbent=start, watch=Watch(clock, self))
        return Plan(schedule=result.schedule, trail=(f"{self.top.story(result)}; {'; '.join(result.notes)}", *trail))

    def _first(self, layers: Graph) -> Solver:
        """What plans the layers without correction terms."""
        if self.start is None or self.start.refuses(layers) is not None:
            return self.top
        return warm(self.top, seed=self.start)
