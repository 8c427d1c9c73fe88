"""Many budgets of one graph: the curve of time over memory, and the lowest budget a plan is found for.

Work is shared between budgets: a plan for a smaller budget is offered to every larger one, so that times never rise with the
budget, and a bound or a proof of impossibility for a larger budget holds for every smaller one. Over a link a plan is replayed at
the larger budget first: its copies begin sooner where there is room, which may leave none for a later run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import ClassVar

from attrs import evolve, frozen

from remat.algorithms._arrays.graph_arrays import flatten
from remat.algorithms._bounds.floor import first_run_floor, node_floor, proved_floor
from remat.algorithms._bounds.kept_cut import cut_floor
from remat.algorithms._copies.copy_room import least_room
from remat.algorithms._copies.with_copies import leaves_out
from remat.algorithms._core.clock import A_CLOCK, Clock
from remat.algorithms._core.evidence import Evidence, stronger
from remat.algorithms._core.outcome import IMPOSSIBLE, Outcome, Plan
from remat.algorithms._core.problem import Problem
from remat.algorithms._core.solver import Solver, a_solver
from remat.algorithms._search.auto import auto, probe, prover, quick, swap
from remat.algorithms._search.passes import descended
from remat.algorithms._search.state import Search
from remat.algorithms._whole.baselines import StoreAll, store_all_peak
from remat.ir import Graph, Link, Schedule
from remat.ir.arguments import A_GRAPH, A_LINK
from remat.settings import MANY, SEED, function, number, optional, takes
from remat.units import Bytes

PROBES = 7
"""Budgets that `quick_lowest_budget` tries: enough to come within 1 % of the peak of `StoreAll`."""


@frozen(kw_only=True)
class Point:
    """The outcome at one budget."""

    budget: Bytes
    outcome: Outcome


@frozen(kw_only=True)
class Curve:
    """Outcomes over budgets, ascending; times do not rise and bounds do not rise with the budget."""

    points: tuple[Point, ...]

    @property
    def lowest(self) -> Point | None:
        """The smallest budget with a plan."""
        return next((point for point in self.points if point.outcome.schedule is not None), None)


@frozen(kw_only=True)
class Lowest:
    """How low the budget can go.

    Attributes:
        floor: no schedule exists below this many bytes, exact (`proved_floor`; with a link, the part that holds with copies).
        impossible: the largest budget that a solver, or the floor by cuts, calls impossible: certified or claimed (at least
            `floor - 1`).
        point: the smallest budget a plan was found for, with it.
    """

    floor: Bytes
    impossible: Bytes
    point: Point

    @property
    def limit(self) -> Bytes:
        """Below this no schedule exists, by the exact floor, the floor by cuts or the bound of a solver [bytes]."""
        return max(self.floor, self.impossible + 1)


@takes(graph=A_GRAPH, budgets=MANY, clock=A_CLOCK, listener=optional(function("print")), link=A_LINK)
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
        solver: plans; None: `auto`.
        clock: for all budgets together; an interruption (Ctrl-C) or its end keeps the points reached.
        seed: of every solve.
        listener: called with each point as it is reached.
        link: for copies; None: there is none.
    """
    optional(a_solver).check(solver, "sweep: solver")
    chosen = auto if solver is None else solver
    clock = Clock() if clock is None else clock
    sizes = {Problem(graph=graph, budget=budget, link=link).budget for budget in budgets}
    outcome = Outcome()
    points: list[Point] = []
    try:
        for budget in sorted(sizes):
            if clock.expired:
                break
            problem = Problem(graph=graph, budget=budget, link=link)
            earlier = _at_a_larger_budget(outcome, problem)
            outcome = chosen.solve(problem, clock=clock.nested(), seed=seed).merge(earlier)
            points.append(Point(budget=budget, outcome=outcome))
            if listener is not None:
                listener(points[-1])
    except KeyboardInterrupt:
        clock.stop()
    lower: float = 0
    evidence: Evidence | None = None
    for k in range(len(points) - 1, -1, -1):
        lower = max(lower, points[k].outcome.lower)
        evidence = stronger(points[k].outcome.evidence, evidence)
        points[k] = evolve(points[k], outcome=evolve(points[k].outcome, lower=lower, evidence=evidence))
    return Curve(points=tuple(points))


@takes(graph=A_GRAPH, solver=optional(a_solver), clock=A_CLOCK, seed=SEED, link=A_LINK)
def lowest_budget(
    graph: Graph,
    solver: Solver | None = None,
    *,
    accuracy: float = 0.005,
    clock: Clock | None = None,
    seed: int = 0,
    link: Link | None = None,
) -> Lowest:
    """The smallest budget a plan is found for, to about `accuracy` of the peak without recomputation.

    Bisects with `solver` (None: `quick`, which plans flat graphs), then, on flat graphs, goes on down step by step from the
    plan found. Heuristics may fail at a budget and succeed below it: smaller may be possible unless `impossible` says
    otherwise. Over a link, on flat graphs, all but what a run uses and what is kept by then can be away: the least such room
    is tried first.
    """
    number(0, 1).check(accuracy, "lowest_budget: accuracy")
    clock = Clock() if clock is None else clock
    bare = partial(_lowest_without_copies, graph, solver, accuracy, clock, seed)
    return bare() if link is None else over_link(Problem(graph=graph, budget=0, link=link), bare, solver, clock, seed)


def _lowest_without_copies(graph: Graph, solver: Solver | None, accuracy: float, clock: Clock, seed: int) -> Lowest:
    chosen = quick if solver is None else solver
    lowest = _with_floors(graph, _without_search(graph, 0 if graph.flat else node_floor(graph)), clock)
    step = max(1, int(lowest.point.budget * accuracy))
    halving = _Halving(failed=lowest.limit - 1, step=step)
    lowest = _bisected(Problem(graph=graph, budget=0), chosen, lowest, halving, clock, seed)
    if solver is None and graph.flat and lowest.point.budget > lowest.limit and not clock.expired:
        lowest = evolve(lowest, point=_descend(graph, lowest.point, lowest.limit, step, clock, seed))
    return lowest


def quick_lowest_budget(
    graph: Graph, solver: Solver | None = None, *, below: Bytes = 0, clock: Clock | None = None, seed: int = 0
) -> Lowest:
    """The smallest budget that `solver` finds a plan for when it is asked for that budget, to 1 % of the peak of `StoreAll`.

    A few budgets, each with a deadline: for messages, where `lowest_budget` takes too long. Its point is a budget that was asked
    for, not the peak of the plan, so that asking for it again gives a plan again.

    Args:
        graph: the step.
        solver: plans; None: quick planners, and then bounds for the budgets below.
        below: a budget that has no plan, as far as is known [bytes].
        clock: how long it may take; a search that is cut short returns a larger budget and a lower limit.
        seed: of the solver.
    """
    clock = Clock() if clock is None else clock
    lowest = _without_search(graph, node_floor(graph))
    failed, step = max(lowest.floor, below), lowest.point.budget // 100
    halving = _Halving(failed=failed, step=step, probes=PROBES, seconds=5.0, to_peaks=False)
    problem = Problem(graph=graph, budget=0)
    lowest = _bisected(problem, probe if solver is None else solver, lowest, halving, clock, seed)
    if solver is not None:
        return lowest
    return _narrowed(graph, _with_floors(graph, lowest, clock), clock, seed)


def over_link(problem: Problem, bare: Callable[[], Lowest], solver: Solver | None, clock: Clock, seed: int) -> Lowest:
    """The smallest budget of a problem with a link, whatever its own budget.

    Tries the least room first, where copies take away all that they can. Where `solver` (None: `swap`) finds no plan there, as if
    the host has no room, it bisects from there on; where that room is not the floor, a plan without copies may need less.

    Args:
        problem: the problem.
        bare: the smallest budget without copies. None of its bounds holds with them.
        solver: plans, with the link.
        clock: how long it may take.
        seed: of the solver.
    """
    graph, chosen = problem.graph, swap if solver is None else solver
    link = problem.link if leaves_out(graph) is None else None
    floor = first_run_floor(flatten(graph))[0] if graph.flat else 0
    planned, least = None, floor
    if link is not None:
        least = least_room(graph, link, floor)
        outcome = chosen.solve(evolve(problem, budget=least), clock=clock.nested(), seed=seed)
        planned = None if outcome.schedule is None else Point(budget=least, outcome=outcome)
    if planned is not None and least == floor:
        return Lowest(floor=floor, impossible=floor - 1, point=planned)
    point = bare().point
    point = evolve(point, outcome=evolve(point.outcome, lower=0, class_bounds=(), evidence=None))
    if planned is not None and planned.budget <= point.budget:
        point = planned
    lowest = Lowest(floor=floor, impossible=floor - 1, point=point)
    if planned is not None or link is None:
        return lowest
    halving = _Halving(failed=least, step=max(1, point.budget // 100), probes=PROBES, to_peaks=False)
    return _bisected(problem, chosen, lowest, halving, clock, seed)


def _without_search(graph: Graph, floor: Bytes) -> Lowest:
    peak, first_options = store_all_peak(graph), Schedule.from_runs(graph, range(len(graph)))
    plain: Solver = StoreAll() if graph.flat else _GivenSchedule(first_options, ("every node once, first options",))
    point = Point(budget=peak, outcome=plain.solve(Problem(graph=graph, budget=peak)))
    return Lowest(floor=floor, impossible=floor - 1, point=point)


def _with_floors(graph: Graph, lowest: Lowest, clock: Clock) -> Lowest:
    """With the floors that need a search of their own, as far as time allows; they are of flat graphs."""
    if not graph.flat:
        return lowest
    floor = max(lowest.floor, proved_floor(graph, clock))
    return evolve(lowest, floor=floor, impossible=max(lowest.impossible, cut_floor(graph, floor, clock) - 1))


@frozen(kw_only=True)
class _Halving:
    """How to look for the smallest budget.

    Attributes:
        failed: the largest budget that is taken to have no plan; below the limit: the limit is tried first.
        step: bytes between a budget with a plan and one without at which to stop.
        probes: how many budgets to try; None: until then.
        seconds: deadline of each; None: none.
        to_peaks: whether a plan counts for its peak, not for the budget that was asked for.
    """

    failed: Bytes
    step: Bytes
    probes: int | None = None
    seconds: float | None = None
    to_peaks: bool = True


def _bisected(problem: Problem, solver: Solver, lowest: Lowest, halving: _Halving, clock: Clock, seed: int) -> Lowest:
    """Halve what lies between the largest budget without a plan and the smallest with one."""
    failed, probes = halving.failed, 0
    while lowest.point.budget - failed > halving.step and probes != halving.probes and not clock.expired:
        # the limit is asked once: each proof that it has no plan raises it by a byte
        first = not probes and failed < lowest.limit
        budget = lowest.limit if first else (failed + lowest.point.budget) // 2
        outcome = solver.solve(evolve(problem, budget=budget), clock=clock.nested(halving.seconds), seed=seed)
        probes += 1
        if outcome.cost is not None:
            lowest = evolve(
                lowest, point=Point(budget=outcome.cost.peak if halving.to_peaks else budget, outcome=outcome)
            )
            continue
        failed = budget
        if outcome.lower == IMPOSSIBLE:
            lowest = evolve(lowest, impossible=max(lowest.impossible, budget))
    return lowest


def _narrowed(graph: Graph, lowest: Lowest, clock: Clock, seed: int) -> Lowest:
    """Narrow the range between the limit and the smallest budget: budgets in it are impossible, planned, or left open."""
    high = lowest.point.budget
    for _ in range(PROBES):
        if high - lowest.limit <= lowest.point.budget // 100 or clock.expired:
            break
        budget = (lowest.limit + high) // 2
        outcome = prover.solve(Problem(graph=graph, budget=budget), clock=clock.nested(), seed=seed)
        if outcome.lower == IMPOSSIBLE:
            lowest = evolve(lowest, impossible=budget)
            continue
        high = budget
        if outcome.schedule is not None:
            lowest = evolve(lowest, point=Point(budget=budget, outcome=outcome))
    return lowest


@frozen
class _GivenSchedule(Solver):
    """Proposes a given schedule, so that it passes through `solve`."""

    models_link: ClassVar[bool] = True

    schedule: Schedule
    trail: tuple[str, ...] = ("lowered step by step",)

    def plan(self, problem: Problem, clock: Clock, seed: int) -> Plan:
        del problem, clock, seed
        return Plan(schedule=self.schedule, trail=self.trail)


def _at_a_larger_budget(outcome: Outcome, problem: Problem) -> Outcome:
    """The plan of a smaller budget; its bound may not hold. With copies it is replayed: they begin sooner where there is room."""
    if problem.link is None or outcome.schedule is None:
        return evolve(outcome, lower=0, class_bounds=(), evidence=None)
    return _GivenSchedule(outcome.schedule, outcome.trail).solve(problem)


def _descend(graph: Graph, point: Point, floor: Bytes, accuracy: Bytes, clock: Clock, seed: int) -> Point:
    """The plan of the lowest peak reached from the point's plan by lowering the budget in steps."""
    search = Search(Problem(graph=graph, budget=floor), clock.nested(), seed, "lowest_budget")
    start = point.outcome.schedule
    if start is None:
        return point
    low, budget = descended(search, search.arrays.sequence_of(start), floor, accuracy)
    if budget >= point.budget:
        return point
    schedule = Schedule.from_runs(graph, low.tolist())
    return Point(budget=budget, outcome=_GivenSchedule(schedule).solve(Problem(graph=graph, budget=budget)))
