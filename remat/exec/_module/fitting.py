"""Plans that keep the budget by measurement: planned again for less until a rehearsal holds no more than the budget.

What a step holds may be more than its plan says: a compiler fuses and orders anew, an allocator gives a block that is larger than
what was asked for, a kernel takes more memory in the step than on its own. Only what a rehearsal measures counts.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import TypeAlias

from attrs import define, evolve, field, frozen

from remat.errors import Infeasible
from remat.exec._module.binding import bound
from remat.exec._module.calls import Arguments
from remat.exec._module.entries import Ready
from remat.exec._module.state import State
from remat.exec._plan.costing import Outside
from remat.exec._plan.planned import Planned
from remat.exec._plan.planning import plan_captured
from remat.exec._plan.progress import Stages
from remat.units import Bytes

logger = logging.getLogger(__name__)

TRIES = 5
"""So many plans are tried for a step."""
Prepare: TypeAlias = Callable[[Planned], Planned]
"""What is done with a plan before it is rehearsed."""


@frozen(kw_only=True, eq=False)
class Fit:
    """How plans are made to fit.

    Attributes:
        state, call, digest, outside, stages: as for `bound` and `plan_captured`.
        peak_of: what a step of a plan holds by its rehearsal, with what a call holds outside the plan [bytes].
        least_step: the least share of the budget by which the next plan is smaller.
    """

    state: State
    call: Arguments
    digest: str
    outside: Outside | None
    stages: Stages
    peak_of: Callable[[Ready], Bytes]
    least_step: float


@define(eq=False)
class Trials:
    """The plans that were tried for a step.

    Attributes:
        budget: that the step must keep [bytes].
        trials: for each, the budget it was planned for, and what a step held [bytes].
        best: of the smallest peak.
        least_peak: that peak [bytes].
        refusal: why there are no more of them: for less no plan was found; None: there were enough.
    """

    budget: Bytes
    trials: list[tuple[Bytes, Bytes]] = field(factory=list)
    best: Ready | None = None
    least_peak: Bytes = 0
    refusal: Infeasible | None = None

    def add(self, target: Bytes, ready: Ready, peak: Bytes) -> Bytes:
        """Note a plan; returns by how much it is over the budget."""
        if self.best is None or peak < self.least_peak:
            self.best, self.least_peak = ready, peak
        self.trials.append((target, peak))
        logger.info("planned for %d B, %d B held, budget %d B", target, peak, self.budget)
        return peak - self.budget

    @property
    def fits(self) -> bool:
        """Whether one of them keeps the budget."""
        return self.best is not None and self.least_peak <= self.budget

    def __str__(self) -> str:
        return "; ".join(f"planned for {target} B it held {peak} B" for target, peak in self.trials)


def fitted(fit: Fit, planned: Planned, prepare: Prepare, first: Ready | None = None) -> Trials:
    """Plans of a step, each for less than the one before, until one keeps the budget by its rehearsal or none is left.

    A plan for less has the bound of the plan for the whole budget: it is a schedule of that problem.

    Args:
        fit: how.
        planned: the first plan.
        prepare: what is done with each plan before it is rehearsed.
        first: the first plan bound and rehearsed, where it is already.
    """
    assert planned.budget is not None
    trials, target, current = Trials(planned.budget), planned.budget, planned
    settings = fit.state.settings
    again = functools.partial(
        plan_captured, planned.captured, known_costs=fit.state.costs, outside=fit.outside, stages=fit.stages
    )
    while True:
        ready = first if first is not None else bound(fit.state, fit.call, prepare(current), fit.digest)
        first = None
        over = trials.add(target, ready, fit.peak_of(ready))
        if over <= 0 or len(trials.trials) == TRIES:
            return trials
        assert current.outcome.cost is not None
        predicted = current.outcome.cost.peak + current.captured.overhead
        target = min(target, predicted) - max(over, int(planned.budget * fit.least_step))
        try:
            current = again(evolve(settings, budget=max(0, target), on_infeasible="raise"))
        except Infeasible as error:
            trials.refusal = error
            return trials
        outcome, less = planned.outcome, current.outcome
        outcome = evolve(outcome, schedule=less.schedule, cost=less.cost, trail=(*outcome.trail, *less.trail))
        current = evolve(current, budget=planned.budget, asked=planned.asked, outcome=outcome)


__all__ = ["Fit", "Trials", "fitted"]
