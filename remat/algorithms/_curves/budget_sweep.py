"""Many budgets of one graph: the curve of time over memory, and the lowest budget a plan is found for.

Work is shared between budgets: a plan for a smaller budget is offered to every larger one, so that times never rise with the
budget, and a bound or a proof of impossibility for a larger budget holds for every smaller one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from attrs import evolve, frozen

from remat.algorithms._bounds.floor import proved_floor
from remat.algorithms._core.clock import Clock
from remat.algorithms._core.outcome import IMPOSSIBLE, Outcome, Plan
from remat.algorithms._core.problem import Problem
from remat.algorithms._core.solver import Solver, a_solver
from remat.algorithms._search.auto import auto, quick
from remat.algorithms._search.passes import descended
from remat.algorithms._search.state import Search
from remat.algorithms._whole.baselines import StoreAll, store_all_peak
from remat.ir import Graph, Link, Schedule
from remat.settings import number, optional
from remat.units import Bytes


@frozen(kw_only=True)
class Point:
    """What is known at one budget."""

    budget: Bytes
    outcome: Outcome


@frozen(kw_only=True)
class Curve:
    """Outcomes over budgets, ascending; times do not rise and bounds do not rise with the budget."""

    points: tuple[Point, ...]

    @property
    def lowest(self) -> Point | None:
        """The smallest budget with a plan."""
        return next((one for one in self.points if one.outcome.schedule is not None), None)


@frozen(kw_only=True)
class Lowest:
    """How low the budget can go.

    Attributes:
        floor: no schedule exists below this many bytes: proved.
        impossible: the largest budget for which a solver proved that there is no schedule (at least `floor - 1`).
        point: the smallest budget a plan was found for, with it.
    """

    floor: Bytes
    impossible: Bytes
    point: Point


def sweep(
    graph: Graph,
    budgets: Iterable[Bytes],
    solver: Solver | None = None,
    *,
    clock: Clock | None = None,
    seed: int = 0,
    listener: Callable[[Point], None] | None = None,
    link: Link | None = None,
) -> Curve:
    """Plan `graph` for every budget, smallest first.

    Args:
        graph: the training step.
        budgets: bytes, in any order.
        solver: who plans; None: `auto`.
        clock: for all budgets together; an interruption (Ctrl-C) or its end keeps what was found.
        seed: of every solve.
        listener: called with each point as it is reached.
        link: for copies; None: there is none.
    """
    optional(a_solver).check(solver, "sweep: solver")
    chosen = auto if solver is None else solver
    clock = Clock() if clock is None else clock
    outcome = Outcome()
    points: list[Point] = []
    try:
        for budget in sorted(set(budgets)):
            if clock.expired:
                break
            # what a smaller budget proved may not hold here; its plan does
            kept = evolve(outcome, lower=0, beside=())
            outcome = chosen.solve(
                Problem(graph=graph, budget=budget, link=link), clock=clock.nested(), seed=seed
            ).merge(kept)
            points.append(Point(budget=budget, outcome=outcome))
            if listener is not None:
                listener(points[-1])
    except KeyboardInterrupt:
        clock.stop()
    lower: float = 0
    for k in range(len(points) - 1, -1, -1):
        lower = max(lower, points[k].outcome.lower)
        points[k] = evolve(points[k], outcome=evolve(points[k].outcome, lower=lower))
    return Curve(points=tuple(points))


def lowest_budget(
    graph: Graph, solver: Solver | None = None, *, accuracy: float = 0.005, clock: Clock | None = None, seed: int = 0
) -> Lowest:
    """The smallest budget a plan is found for, to about `accuracy` of the peak without recomputation.

    Bisects with `solver` (None: `quick`), then, on flat graphs, goes on down step by step from the plan found. Heuristics may
    fail at a budget and succeed below it: smaller may be possible unless `impossible` says otherwise.
    """
    number(0, 1).check(accuracy, "lowest_budget: accuracy")
    chosen = quick if solver is None else solver
    clock = Clock() if clock is None else clock
    peak, floor = store_all_peak(graph), proved_floor(graph)
    step = max(1, int(peak * accuracy))
    impossible, failed = floor - 1, floor - 1
    point = Point(budget=peak, outcome=StoreAll().solve(Problem(graph=graph, budget=peak)))
    while point.budget - failed > step and not clock.expired:
        budget = floor if failed < floor else (failed + point.budget) // 2
        outcome = chosen.solve(Problem(graph=graph, budget=budget), clock=clock.nested(), seed=seed)
        if outcome.cost is not None:
            point = Point(budget=outcome.cost.peak, outcome=outcome)
            continue
        failed = budget
        if outcome.lower == IMPOSSIBLE:
            impossible = max(impossible, budget)
    if solver is None and point.budget > impossible + 1 and not clock.expired:
        point = _descend(graph, point, impossible + 1, step, clock, seed)
    return Lowest(floor=floor, impossible=impossible, point=point)


@frozen
class _Given(Solver):
    """Proposes a schedule that is already there, so that it passes through the one `solve`."""

    schedule: Schedule

    def plan(self, problem: Problem, clock: Clock, seed: int) -> Plan:
        del problem, clock, seed
        return Plan(schedule=self.schedule, trail=("lowered step by step",))


def _descend(graph: Graph, point: Point, floor: Bytes, accuracy: Bytes, clock: Clock, seed: int) -> Point:
    """The plan of the lowest peak reached from the point's plan by lowering the budget in steps."""
    search = Search(Problem(graph=graph, budget=floor), clock.nested(), seed, "lowest_budget")
    start = point.outcome.schedule
    if start is None:
        return point
    low, budget = descended(search, search.sequence_of(start), floor, accuracy, 4000)
    if budget >= point.budget:
        return point
    schedule = Schedule.from_runs(graph, low.tolist())
    return Point(budget=budget, outcome=_Given(schedule).solve(Problem(graph=graph, budget=budget)))
