"""Bounds after planning: those that bring no plan and take longer than one may wait for a step."""

from __future__ import annotations

from attrs import evolve

from remat.algorithms import Clock, Outcome, Problem
from remat.algorithms._core.evidence import stronger
from remat.algorithms._core.solver import with_start
from remat.algorithms._core.startup import importing
from remat.exec._plan.planned import Planned


def with_raised_bound(planned: Planned, seed: int) -> Outcome:
    """What is known of a plan, with the bounds that `plan_first` leaves out; the schedule stays, faster ones apart."""
    outcome = planned.outcome
    if planned.budget is None or outcome.cost is None:
        return evolve(outcome)
    with importing():
        from remat.algorithms._search.auto import raise_bound, raise_link_bound  # imports compiled kernels
    link = planned.link
    budget = max(0, planned.budget - planned.captured.overhead)
    solver = with_start(raise_bound if link is None else raise_link_bound, outcome.schedule)
    raised = solver.solve(Problem(graph=planned.graph, budget=budget, link=link), clock=Clock(), seed=seed)
    return evolve(
        outcome,
        lower=max(outcome.lower, raised.lower),
        trail=outcome.trail + raised.trail,
        evidence=stronger(outcome.evidence, raised.evidence),
    )
