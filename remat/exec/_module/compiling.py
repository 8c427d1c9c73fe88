"""Plans whose functions Inductor compiles: compiled, measured, and planned again for less until the peak is within the budget.

Inductor fuses and orders anew, so the peak of its code is not that of the plan: some percents more, or less. Only what a
rehearsal measures counts.
"""

from __future__ import annotations

from attrs import evolve
from torch import nn

from remat._warn import RematWarning, warn
from remat.errors import Infeasible
from remat.exec._module.calls import Arguments, attributes
from remat.exec._module.entries import Ready
from remat.exec._module.fitting import Fit, Trials, fitted
from remat.exec._module.ranks import Ranks
from remat.exec._module.state import State
from remat.exec._plan.costing import Outside
from remat.exec._plan.planned import Planned
from remat.exec._plan.progress import Stages
from remat.exec._run.inner import Compile, through
from remat.exec._torch import inductor
from remat.units import Bytes, format_bytes

LEAST_STEP = 0.01
"""The least share of the budget by which the next plan is smaller."""


def compile_plans(module: nn.Module, compiler: Compile = inductor.compile_graph) -> None:
    """Have the plans of a wrapped module compiled; it has none yet. Each step is then planned for itself, by each process."""
    state: State = attributes(module)["_remat"]
    state.settings = evolve(state.settings, compiler=compiler)
    state.rehearse, state.family, state.ranks = True, False, Ranks(None)


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
    compiler = state.settings.compiler
    assert compiler is not None

    def prepare(planned: Planned) -> Planned:
        assert planned.lowered is not None
        with stages.stage("inner"):
            return evolve(planned, lowered=through(planned.lowered, compiler), rehearsed=None)

    fit = Fit(
        state=state, call=call, digest=digest, outside=outside, stages=stages, peak_of=peak_of, least_step=LEAST_STEP
    )
    trials = fitted(fit, planned, prepare)
    if trials.fits:
        assert trials.best is not None
        return _noted(trials.best, trials)
    return _refused(state, trials)


def _noted(ready: Ready, trials: Trials) -> Ready:
    return evolve(ready, planned=evolve(ready.planned, inner=f"Inductor: {trials}"))


def _refused(state: State, trials: Trials) -> Ready:
    """The plan of the smallest peak, with a warning, where that is wanted.

    Raises:
        Infeasible: it is not.
    """
    best, peak, cause = trials.best, trials.least_peak, trials.refusal
    assert best is not None
    end = "" if cause is None else "; for less no plan was found"
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
