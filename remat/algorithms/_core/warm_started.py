"""`warm(main, seed=…)`: a solver that starts from the schedule of another."""

from __future__ import annotations

from typing import ClassVar

from attrs import field, frozen

from remat.algorithms._core.clock import Clock
from remat.algorithms._core.outcome import Plan
from remat.algorithms._core.problem import Problem
from remat.algorithms._core.solver import FromStart, Solver, a_solver, all_refuse, as_plan, with_start
from remat.algorithms._core.wording import indented
from remat.ir import Graph, Schedule
from remat.settings import Setting


class WarmStarted(FromStart):
    """A solver that can start from a validated schedule. Authors write `plan_from`; `plan` has no start."""

    __slots__ = ()

    @property
    def takes_start(self) -> bool:
        """It does."""
        return True


_TAKES_START = Setting(
    "a Solver that takes a start, e.g. HIlp() or HIlp().within(60), or write best(seed, main)",
    lambda value: isinstance(value, Solver) and value.takes_start,
)


@frozen
class Warm(FromStart):
    """`main`, started from the seed's schedule. Never worse than the seed.

    A start passes through `within`, `when`, `|`, `best` and `warm`, and through transforms that can carry it.
    """

    models_link: ClassVar[bool] = True  # each part was asked separately

    main: Solver = field(validator=_TAKES_START)
    seed_solver: Solver = field(validator=a_solver)

    def __repr__(self) -> str:
        return f"warm({self.main!r}, seed={self.seed_solver!r})"

    def refuses(self, graph: Graph) -> str | None:
        """Refuses when both do."""
        return all_refuse((self.main, self.seed_solver), graph)

    def outline(self, graph: Graph) -> tuple[str, ...]:
        """Those of the seed, then those of the main solver."""
        return indented("first for a start, then from it:", self.seed_solver.outline(graph), self.main.outline(graph))

    @property
    def takes_start(self) -> bool:
        """Whether its seed does; it has a start for its main solver."""
        return self.seed_solver.takes_start

    def plan_from(self, problem: Problem, start: Schedule | None, clock: Clock, seed: int) -> Plan:
        """The better of the seed's and the main solver's schedules; the start is one for the seed."""
        first = with_start(self.seed_solver, start).solve(problem, clock=clock, seed=seed)
        if first.schedule is not None:
            best = int(first.upper)
            clock.report(
                self.seed_solver, schedule=first.schedule, best=best, bound=first.lower, stage="start", total=2
            )
        if clock.expired or self.main.refuses(problem.graph) is not None:
            return as_plan(first)
        outcome = with_start(self.main, first.schedule).solve(problem, clock=clock, seed=seed)
        return as_plan(first.merge(outcome))


def warm(main: Solver, *, seed: Solver) -> Solver:
    """`main` with the schedule of `seed` as its incumbent."""
    return Warm(main, seed)
