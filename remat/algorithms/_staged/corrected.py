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
from remat.settings import instance, optional


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
        reason = self.top.refuses(level.graph)
        if reason is not None:
            return Plan(trail=(f"{self.levels!r}: {note}", f"{self.top!r} refused: {reason}"))
        half = clock.remaining / 2 if math.isfinite(clock.remaining) else None
        layers = Problem(graph=level.graph, budget=problem.budget)
        seed_solver = self.start is not None and self.start.refuses(level.graph) is None and self.start
        first = (warm(self.top, seed=seed_solver) if seed_solver else self.top).solve(
            layers, clock=clock.aside(half), seed=seed
        )
        corrected = self.top.top(level)
        start = None if first.schedule is None else corrected.incumbent(first.schedule, problem.budget)
        result = corrected.solve(problem.budget, incumbent=start, watch=Watch(clock, self))
        words = f"{self!r}: {note}; {self.top.story(result)}; {'; '.join(result.notes)}"
        return Plan(schedule=result.schedule, trail=(words, *(f"start: {line}" for line in first.trail[:1])))
