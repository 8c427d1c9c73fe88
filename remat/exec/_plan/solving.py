"""The plan of a costed step, or the error that names the smallest budget with a plan and what no plan fits."""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING

from attrs import evolve

from remat.algorithms import IMPOSSIBLE, Clock, Outcome, Problem, Solver, StoreAll
from remat.algorithms._core.startup import importing
from remat.exec._plan.costing import Costed
from remat.exec._plan.known import known_plans
from remat.exec._plan.progress import Stages
from remat.exec._plan.settings import Settings
from remat.exec._plan.smallest import infeasible
from remat.units import Bytes

if TYPE_CHECKING:
    from remat.algorithms._curves.budget_sweep import Lowest

logger = logging.getLogger(__name__)

GRACE = 0.3
"""Seconds of planning that may pass over a deadline; a tenth of the deadline if that is more."""


def solve(
    costed: Costed, asked: Bytes | None, settings: Settings, stages: Stages, overhead: Bytes = 0
) -> tuple[Outcome, Bytes | None]:
    """The plan and the budget it is for: nothing is recomputed where everything fits, else what the solver returns.

    Where the default solver finds nothing, a plan of the step that was found before in this process is taken if it fits; else it
    counts among the budgets that are known to have a plan. A Ctrl-C keeps the best plan so far, if there is one.

    Args:
        costed: the step, with the peak of `StoreAll` and the link.
        asked: the budget, or None.
        settings: solver, deadline and so on.
        stages: told what happens.
        overhead: bytes of the budget that a call holds outside the plan.

    Raises:
        Infeasible: no plan was found, and `settings.on_infeasible` is "raise".
    """
    graph, peak, link = costed.graph, costed.peak, costed.link
    if asked is None:
        return StoreAll().solve(Problem(graph=graph, budget=peak)), None
    budget = max(0, asked - overhead)
    if budget >= peak:
        return StoreAll().solve(Problem(graph=graph, budget=budget)), asked
    stages.base = graph.time
    planner = _with_room(settings.planner(), settings)
    clock = Clock(settings.seconds, listener=stages.hear)
    problem = Problem(graph=graph, budget=budget, link=link, host_budget=None if link is None else settings.host_budget)
    outcome = planner.solve(problem, clock=clock, seed=settings.seed)
    over = clock.expired
    if not outcome.settled and settings.solver is None and not clock.stopped:
        outcome = outcome.merge(_cheap().solve(problem, clock=Clock(), seed=settings.seed))
    needs_one = outcome.schedule is None and settings.solver is None
    earlier = known_plans.replayed(costed.program, graph) if needs_one else None
    if earlier is not None and _peak(earlier) <= budget:
        outcome = outcome.merge(earlier)
    if settings.on_infeasible == "raise":
        outcome = _with_all_room(outcome, planner, problem, clock, settings.seed)
    _note_interruption(clock, outcome)
    if "bound" in clock.spent:
        stages.seconds["bound"] = clock.spent["bound"]
    if outcome.schedule is not None:
        return outcome, asked
    lowest = _lowest(problem, outcome, settings, clock)
    if earlier is not None and _peak(earlier) < lowest.point.budget:
        lowest = evolve(lowest, point=evolve(lowest.point, budget=_peak(earlier), outcome=earlier))
    if settings.on_infeasible == "raise":
        smallest, seconds = lowest.point.budget, settings.seconds if over else None
        raise infeasible(asked, smallest=smallest, floor=lowest.limit, seconds=seconds, overhead=overhead)
    outcome = lowest.point.outcome
    # a plan that copies all that it can is far from the best at its budget
    if link is not None and settings.solver is None and not clock.stopped:
        again = evolve(problem, budget=lowest.point.budget)
        outcome = outcome.merge(planner.solve(again, clock=clock, seed=settings.seed))
    _note_interruption(clock, outcome)
    return outcome, lowest.point.budget + overhead


def _note_interruption(clock: Clock, outcome: Outcome) -> None:
    """After a Ctrl-C, say that the best plan is kept; without a plan, interrupt."""
    if clock.stopped and outcome.schedule is None:
        raise KeyboardInterrupt
    if clock.stopped:
        logger.warning("interrupted: the best plan so far is kept")


def _with_all_room(outcome: Outcome, planner: Solver, problem: Problem, clock: Clock, seed: int) -> Outcome:
    """Without a plan, one whose copies may have more room on the host than there is: its refusal says how much they take."""
    if outcome.schedule is not None or problem.host_budget is None:
        return outcome
    return outcome.merge(planner.solve(evolve(problem, host_budget=None), clock=clock, seed=seed))


def _with_room(planner: Solver, settings: Settings) -> Solver:
    """The planner, for copies that fit where the host has a budget."""
    if settings.host_budget is None:
        return planner
    from remat.exec._plan.host_room import HostRoom  # copies alone need it

    return HostRoom(planner)


def _peak(outcome: Outcome) -> Bytes:
    assert outcome.cost is not None
    return outcome.cost.peak


def _cheap() -> Solver:
    """The solver that runs even when the time is over."""
    from remat.algorithms._search.auto import cheap

    return cheap


def _lowest(problem: Problem, outcome: Outcome, settings: Settings, clock: Clock) -> Lowest:
    """The smallest budget with a plan, in about a second on hundreds of nodes, and within the deadline and its grace."""
    with importing():
        from remat.algorithms._curves.budget_sweep import over_link, quick_lowest_budget  # import compiled kernels
        from remat.algorithms._search.auto import swap

    graph, budget = problem.graph, problem.budget
    left = 1.0 + len(graph) / 1000 if settings.solver is None else None
    if settings.seconds is not None:
        grace = max(GRACE, settings.seconds / 10)
        allowed = max(0.0, settings.seconds + grace - clock.elapsed)
        left = allowed if left is None else min(left, allowed)
    brief = Clock(left)
    bare = partial(quick_lowest_budget, graph, settings.solver, below=budget, clock=brief, seed=settings.seed)
    with_copies = _with_room(swap if settings.solver is None else settings.solver, settings)
    lowest = bare() if problem.link is None else over_link(problem, bare, with_copies, brief, settings.seed)
    if brief.stopped:
        clock.stop()
    if outcome.lower == IMPOSSIBLE:
        lowest = evolve(lowest, impossible=max(lowest.impossible, budget))
    return lowest
