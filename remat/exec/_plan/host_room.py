"""A planner whose copies have room on the host as they are run: in buffers of whole granules, which the replay does not know."""

from __future__ import annotations

from typing import ClassVar

from attrs import evolve, field, frozen

from remat.algorithms import Clock, Outcome, Plan, Problem, Solver
from remat.algorithms._core.solver import a_solver, as_plan
from remat.exec._run.copying import actions_of, host_need
from remat.ir import Graph
from remat.units import Bytes

_TRIES = 3  # with less room each time, before the plan is made without copies


@frozen
class HostRoom(Solver):
    """The plan of a solver; where its copies take more than the host's budget, that for a smaller one, or without copies."""

    models_link: ClassVar[bool] = True

    solver: Solver = field(validator=a_solver)

    def __repr__(self) -> str:
        return repr(self.solver)

    def refuses(self, graph: Graph) -> str | None:
        """What its solver refuses."""
        return self.solver.refuses(graph)

    def plan(self, problem: Problem, clock: Clock, seed: int) -> Plan:
        """Plan, with less and less room on the host; the bounds are those of the first time."""
        first = outcome = self.solver.solve(problem, clock=clock, seed=seed)
        most = room = problem.host_budget
        if problem.link is None or most is None or room is None:
            return as_plan(first)
        for _ in range(_TRIES):
            excess = buffers_of(problem.graph, outcome) - most
            if excess <= 0:
                break
            room = max(0, room - excess)
            outcome = self.solver.solve(evolve(problem, host_budget=room), clock=clock, seed=seed)
        lost = outcome.schedule is None and first.schedule is not None
        if lost or buffers_of(problem.graph, outcome) > most:
            outcome = self.solver.solve(evolve(problem, link=None, host_budget=None), clock=clock, seed=seed)
        return as_plan(_with_bounds_of(first, outcome))


def buffers_of(graph: Graph, outcome: Outcome) -> Bytes:
    """The most that the copies of a plan take on the host at any time, in buffers; 0 without a plan."""
    if outcome.schedule is None or outcome.cost is None or not outcome.cost.host_peak:
        return 0
    return host_need(graph, actions_of(graph, outcome.schedule, outcome.cost))


def _with_bounds_of(first: Outcome, outcome: Outcome) -> Outcome:
    return evolve(outcome, lower=first.lower, class_bounds=first.class_bounds, evidence=first.evidence)


__all__ = ["HostRoom", "buffers_of"]
