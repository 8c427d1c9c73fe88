"""`warm(main, seed=…)`: a solver that starts from the schedule of another."""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar

from attrs import field, frozen

from remat.algorithms._core.clock import Clock
from remat.algorithms._core.outcome import Plan
from remat.algorithms._core.problem import Problem
from remat.algorithms._core.solver import Solver, a_solver, all_refuse, as_plan
from remat.algorithms._core.wording import indented
from remat.ir import Graph, Schedule
from remat.settings import instance


class WarmStarted(Solver):
    """A solver that can start from a validated schedule. Authors write `plan_from`; without a start `plan` runs cold."""

    __slots__ = ()

    def plan(self, problem: Problem, clock: Clock, seed: int) -> Plan:
        """Plan without a start."""
        return self.plan_from(problem, None, clock, seed)

    @abstractmethod
    def plan_from(self, problem: Problem, start: Schedule | None, clock: Clock, seed: int) -> Plan:
        """Plan, with `start` (validated, under the budget) as the incumbent."""


@frozen
class Warm(Solver):
    """`main`, started from the seed's schedule. Never worse than the seed."""

    models_link: ClassVar[bool] = True  # its parts were asked one by one

    main: WarmStarted = field(validator=instance(WarmStarted, "HIlp(), or write best(seed, main)"))
    seed_solver: Solver = field(validator=a_solver)

    def __repr__(self) -> str:
        return f"warm({self.main!r}, seed={self.seed_solver!r})"

    def refuses(self, graph: Graph) -> str | None:
        """Refuses when both do."""
        return all_refuse((self.main, self.seed_solver), graph)

    def outline(self, graph: Graph) -> tuple[str, ...]:
        """Those of the seed, then those of the main solver."""
        return indented("first for a start, then from it:", self.seed_solver.outline(graph), self.main.outline(graph))

    def plan(self, problem: Problem, clock: Clock, seed: int) -> Plan:
        """The better of the seed's and the main solver's schedules."""
        start = self.seed_solver.solve(problem, clock=clock, seed=seed)
        if start.schedule is not None:
            best = int(start.upper)
            clock.report(
                self.seed_solver, schedule=start.schedule, best=best, bound=start.lower, stage="start", total=2
            )
        if clock.expired or self.main.refuses(problem.graph) is not None:
            return as_plan(start)
        found = _Started(self.main, start.schedule).solve(problem, clock=clock, seed=seed)
        return as_plan(start.merge(found))


@frozen
class _Started(Solver):
    """A warm-started solver bound to its start, so that its plan passes through the one `solve`."""

    main: WarmStarted
    start: Schedule | None

    def __repr__(self) -> str:
        return repr(self.main)

    @property
    def models_link(self) -> bool:  # type: ignore[override]
        return self.main.models_link

    def plan(self, problem: Problem, clock: Clock, seed: int) -> Plan:
        return self.main.plan_from(problem, self.start, clock, seed)


def warm(main: WarmStarted, *, seed: Solver) -> Solver:
    """`main` with the schedule of `seed` as its incumbent."""
    return Warm(main, seed)
