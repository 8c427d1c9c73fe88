"""Plans whose functions Inductor compiles: compiled, measured, and planned again for less until the peak is within the budget.

Inductor fuses and orders anew, so the peak of its code is not that of the plan: some percents more, or less. Only what a
rehearsal measures counts.
"""

from __future__ import annotations

import functools
import logging

from attrs import define, evolve, field
from torch import nn

from remat._warn import RematWarning, warn
from remat.errors import Infeasible
from remat.exec._module.binding import bound
from remat.exec._module.calls import Arguments, attributes
from remat.exec._module.entries import Ready
from remat.exec._module.ranks import Ranks
from remat.exec._module.state import State
from remat.exec._plan.planning import Outside, Planned, plan_captured
from remat.exec._plan.progress import Stages
from remat.exec._run.inner import Compile, through
from remat.exec._torch import inductor
from remat.units import Bytes, format_bytes

logger = logging.getLogger(__name__)

TRIES = 5
"""So many plans are compiled for a step before its budget is refused."""
LEAST_STEP = 0.01
"""The least share of the budget by which the next plan is smaller."""


def compile_plans(module: nn.Module, compiler: Compile = inductor.compile_graph) -> None:
    """Have the plans of a wrapped module compiled; it has none yet. Each step is then planned for itself, by each process."""
    state: State = attributes(module)["_remat"]
    state.settings = evolve(state.settings, compiler=compiler)
    state.rehearse, state.family, state.ranks = True, False, Ranks(None)


@define(eq=False)
class _Trials:
    """The plans that were compiled for a step.

    Attributes:
        budget: that the step must keep [bytes].
        trials: for each, the budget it was planned for, and what a step held [bytes].
        best: of the smallest peak.
    """

    budget: Bytes
    trials: list[tuple[Bytes, Bytes]] = field(factory=list)
    best: Ready | None = None

    def add(self, target: Bytes, ready: Ready) -> Bytes:
        """Note a plan; returns by how much it is over the budget."""
        peak = peak_of(ready)
        if self.best is None or peak < peak_of(self.best):
            self.best = ready
        self.trials.append((target, peak))
        logger.info("compiled by Inductor: planned for %d B, %d B held, budget %d B", target, peak, self.budget)
        return peak - self.budget

    def __str__(self) -> str:
        return "; ".join(f"planned for {target} B it held {peak} B" for target, peak in self.trials)


def peak_of(ready: Ready) -> Bytes:
    """What a step of compiled code holds, with what a call and a loss hold outside the plan [bytes]."""
    assert ready.rehearsal is not None
    return ready.rehearsal.peak + ready.captured.overhead + ready.planned.retained - ready.planned.excess


def bound_within_budget(
    state: State, call: Arguments, planned: Planned, digest: str, *, outside: Outside | None, stages: Stages
) -> Ready:
    """A plan that was compiled and keeps the budget by measurement; arguments as for `bound`.

    Raises:
        Infeasible: no plan that does was found, and `on_infeasible` is "raise"; it says what was tried.
        Uncapturable: X-STAGE, where Inductor does not take the step.
    """
    assert planned.budget is not None
    assert state.settings.compiler is not None
    trials, target = _Trials(planned.budget), planned.budget
    again = functools.partial(plan_captured, planned.captured, known_costs=state.costs, outside=outside, stages=stages)
    current = planned
    for _ in range(TRIES):
        assert current.lowered is not None
        with stages.stage("inner"):
            lowered = through(current.lowered, state.settings.compiler)
        compiled = evolve(current, budget=planned.budget, asked=planned.asked, lowered=lowered, rehearsed=None)
        ready = bound(state, call, compiled, digest)
        over = trials.add(target, ready)
        if over <= 0:
            return _noted(ready, trials)
        assert current.outcome.cost is not None
        predicted = current.outcome.cost.peak + current.captured.overhead
        target = min(target, predicted) - max(over, int(planned.budget * LEAST_STEP))
        try:
            current = again(evolve(state.settings, budget=max(0, target), on_infeasible="raise"))
        except Infeasible as error:
            return _refused(state, trials, "; for less no plan was found", error)
    return _refused(state, trials, "", None)


def _noted(ready: Ready, trials: _Trials) -> Ready:
    return evolve(ready, planned=evolve(ready.planned, inner=f"Inductor: {trials}"))


def _refused(state: State, trials: _Trials, end: str, cause: Infeasible | None) -> Ready:
    """The plan of the smallest peak, with a warning, where that is wanted.

    Raises:
        Infeasible: it is not.
    """
    best = trials.best
    assert best is not None
    peak = peak_of(best)
    what = (
        f"no plan was found whose code by Inductor holds at most {format_bytes(trials.budget)} ({trials.budget} B): "
        f"{trials}{end}."
    )
    if state.settings.on_infeasible == "raise":
        fix = f"give at least {peak} bytes, or leave `inner` out: eager's kernels hold what the plan says."
        raise Infeasible(what, budget=trials.budget, smallest=peak, floor=0 if cause is None else cause.floor, fix=fix)
    warn(f"{what} The step runs in {format_bytes(peak)} ({peak} B).", RematWarning)
    return _noted(evolve(best, planned=evolve(best.planned, asked=trials.budget, budget=peak)), trials)


__all__ = ["bound_within_budget", "compile_plans"]
