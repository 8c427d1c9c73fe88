"""Making plans of a wrapped module: capture, and plan, where nothing that exists is for a call."""

from __future__ import annotations

import functools
import time
from typing import Any

import torch
from attrs import evolve
from torch import nn

from remat._collector import old_objects_apart
from remat._warn import RematWarning, warn
from remat.budget import Share
from remat.errors import Infeasible, RematError, StalePlan, Uncapturable
from remat.exec._capture.capturing import Captured, capture
from remat.exec._dtr.keeping_all import peak_of_everything
from remat.exec._dtr.stepping import device_of
from remat.exec._module import agreeing
from remat.exec._module.after import warn_of_hooks
from remat.exec._module.binding import bound
from remat.exec._module.calls import Arguments, captured_step, chain_tensors, make_opaque, traced_step
from remat.exec._module.compiling import bound_within_budget
from remat.exec._module.entries import Bare, Dynamic, Ready
from remat.exec._module.fitting import Fit, fitted
from remat.exec._module.new_sizes import Filled, at_known_sizes, learn_sizes, planned_from, why_unfilled
from remat.exec._module.saved import file_of, plan_to_save
from remat.exec._module.state import State
from remat.exec._plan.costing import Outside
from remat.exec._plan.families import ALONE
from remat.exec._plan.planned import Planned, above_budget, over_budget
from remat.exec._plan.planning import plan_captured
from remat.exec._plan.progress import Stages, stages_of
from remat.exec._plan.smallest import with_changes
from remat.exec._program.digest import program_digest
from remat.exec._run.runtime import StepError
from remat.exec._torch.ambient import in_cuda_graph, mode_around, transform_around
from remat.exec._torch.exchange import EXCHANGE
from remat.exec._trace.diagnosis import refusal
from remat.exec._trace.tape import Scalar
from remat.units import Bytes, format_bytes

NOT_UNDER_DTR = ("X-DEVICE", "X-MODULE", "X-OP", "X-RETAIN", "X-TENSOR", "X-TRANSFORM")
"""What stops a capture and DTR alike: several devices, scripted code, operations and tensors of other kinds, hidden gradients."""

REFUSED = 2
"""So many forms of calls that cannot be captured, and none that can, and no other is tried: all run under DTR."""


def _refuse_in_cuda_graph(module: nn.Module) -> None:
    """Raise where a CUDA graph records the call: a plan is measured.

    Raises:
        StepError: X-GRAPH.
    """
    if in_cuda_graph():
        what = f"{type(module).__name__}: a CUDA graph records a step that has no plan yet, and planning times kernels."
        raise StepError(
            "X-GRAPH", what, fix="run three steps of these shapes before the graph is recorded, as torch asks."
        )


def captured_and_planned(state: State, call: Arguments, answers: tuple[Scalar, ...]) -> Ready | Bare:
    """Capture and plan a call that there is no plan for.

    Raises:
        StepError: X-GRAPH, within a CUDA graph.
    """
    _refuse_in_cuda_graph(call.module)
    module, began = call.module, time.monotonic()
    if (reason := _why_never_captured(state)) is not None:
        return Dynamic(reason)
    try:
        if transform := transform_around(chain_tensors(call)):
            what = f"the call is under {transform}, and the gradients of a plan are those of `backward` alone."
            raise Uncapturable("X-TRANSFORM", what, fix="call the bare module there.")
        if mode := mode_around():
            what = f"the call is under {mode}, a TorchFunctionMode, which may change every function that the forward calls."
            raise Uncapturable("X-TRACE", what, fix="enter the mode inside the forward, or leave it out.")
        with stages_of(type(module).__name__, state.settings.progress) as stages, old_objects_apart():
            with stages.stage("capture"), EXCHANGE.alone:
                filled = at_known_sizes(state, call) if not answers else None
                captured = _captured(state, call, answers) if filled is None else filled.captured
            if filled is not None:
                if (entry := _filled_in(state, call, filled, stages)) is not None:
                    _charge(state, began)
                    return entry
                with stages.stage("capture"), EXCHANGE.alone:
                    captured = _captured(state, call, answers)
            entry = _ready_for(state, call, captured, stages=stages)
            learn_sizes(state, call, entry.planned)
        _charge(state, began)
    except Uncapturable as unplaced:
        error = refusal(unplaced, module)
        if state.on_uncapturable == "raise" or state.ranks.halfway:
            raise error from unplaced.__cause__
        name = type(module).__name__
        if state.on_uncapturable == "dtr":
            dynamic = _under_dtr(state, call, error)
            agreeing.agree_unplanned(state, call)
            return dynamic
        agreeing.agree_unplanned(state, call)
        return Bare(str(error), f"{name} falls back to the unwrapped module, without a budget: {error}")
    warn_of_hooks(module)
    return entry


def _captured(state: State, call: Arguments, answers: tuple[Scalar, ...]) -> Captured:
    make_opaque()  # loads what the tracer loads in any case
    return capture(
        call.module, call.args, call.kwargs, step=functools.partial(traced_step, state.step_of(call.module)),
        differentiable=state.settings.differentiable, watched=state.watched(call.module), answers=answers,
        tracer=state.settings.tracer,
    )  # fmt: skip


def _filled_in(state: State, call: Arguments, filled: Filled, stages: Stages) -> Ready | None:
    """Plan a step that was filled in; None: its operations are not what they were taken for, and it must be captured."""
    try:
        return _ready_for(state, call, filled.captured, stages=stages, filled=filled)
    except Uncapturable as error:
        state.sizes.of(filled.form).failed(str(error))
        return None


def _charge(state: State, began: float) -> None:
    """Add a plan to the bill of new shapes, and say once where that is large."""
    state.bill.add(began, time.monotonic())
    if note := state.bill.note(time.monotonic()):
        warn(note, RematWarning)


def _why_never_captured(state: State) -> str | None:
    """Why steps run under DTR, where the first few could not be captured: further ones are not tried."""
    if state.on_uncapturable != "dtr" or len(state.plans) < REFUSED:
        return None
    reasons = [entry.reason for entry in state.plans if isinstance(entry, Dynamic)]
    return reasons[-1] if len(reasons) == len(state.plans) else None


def _under_dtr(state: State, call: Arguments, error: Uncapturable) -> Dynamic:
    """Have calls of this form run under DTR.

    Raises:
        Uncapturable: what DTR does not run, or a budget that is a share of a peak that cannot be measured.
    """
    if error.rule in NOT_UNDER_DTR:
        raise error from error.__cause__
    device_of(tensor for tensors in call.tensors.values() for tensor in tensors)
    share = state.settings.budget
    of_what = f" ({_share_in_bytes(state, call, error)})" if isinstance(share, Share) else ""
    copies = "" if state.settings.offloading is None else ", and without copies to the host"
    what = (
        f"{type(call.module).__name__} runs under DTR (dynamic rematerialization), within the budget{of_what} but without a "
        f'plan{copies}: {error} on_uncapturable="raise" refuses instead.'
    )
    return Dynamic(str(error), what)


def _share_in_bytes(state: State, call: Arguments, error: Uncapturable) -> str:
    """Make a budget that is a share one in bytes, by a step that keeps everything; returns what it is, in words.

    Raises:
        Uncapturable: there is none to measure: processes would measure different peaks, or it does not run here.
    """
    share = state.settings.budget
    failure: Exception | None = None
    assert isinstance(share, Share)

    def forward() -> Any:
        with EXCHANGE.reading:
            return captured_step(state.step_of(call.module), call.module, *call.args, **call.kwargs)

    if state.rehearse and not state.ranks.shared:
        try:
            with EXCHANGE.alone:  # it writes buffers
                peak = peak_of_everything(
                    call.module, forward, (call.args, call.kwargs), watched=state.watched(call.module),
                    reserve=state.settings.loss_reserve,
                )  # fmt: skip
        except (RematError, torch.OutOfMemoryError) as failed:
            failure = failed
        else:
            state.settings = evolve(state.settings, budget=share.bytes(peak))
            return f"{format_bytes(share.bytes(peak))} of the {format_bytes(peak)} that its step holds with everything kept"
    refused = Uncapturable(
        error.rule, error.what, fix=f"{error.fix} Or give the budget in bytes: the step then runs under DTR."
    )
    refused.where = error.where
    raise refused from failure


def planned_again(state: State, call: Arguments, ready: Ready, outside: Outside) -> Ready:
    """A new plan with the memory of the loss as an audit measured it.

    Raises:
        StepError: X-GRAPH, within a CUDA graph.
    """
    _refuse_in_cuda_graph(call.module)
    with stages_of(type(call.module).__name__, state.settings.progress) as stages, old_objects_apart():
        return _ready_for(state, call, ready.captured, outside=outside, stages=stages)


def _ready_for(
    state: State,
    call: Arguments,
    captured: Captured,
    *,
    outside: Outside | None = None,
    stages: Stages,
    filled: Filled | None = None,
) -> Ready:
    """Plan a captured call, or take the plan that its program has already."""
    digest = program_digest(captured.program) if filled is None else filled.digest
    planned = state.library.get(digest) if outside is None else None
    if planned is None:
        shapes = call.shapes()
        try:
            if filled is None:
                planned = _planned(state, call, captured, outside=outside, stages=stages)
                planned = evolve(planned, unfilled=why_unfilled(state, call))
            else:
                planned = planned_from(state, filled, stages)
        except Infeasible as error:
            raise with_changes(error, state.sample, shapes) if state.sample else error from error
        finally:
            state.forget_costs()
        state.sample = state.sample or shapes
        state.library[digest] = planned
        if isinstance(state.settings.budget, Share):
            # A share refers to the first step only: other shapes get as many bytes, not a share of their own peak.
            state.settings = evolve(state.settings, budget=planned.asked or planned.budget)
        if warning := over_budget(planned):
            warn(warning, RematWarning)
    else:
        planned = evolve(planned, captured=evolve(captured, program=planned.captured.program))
    if state.settings.compiler is not None and planned.lowered is not None and planned.lowered.eager is None:
        ready = bound_within_budget(state, call, planned, digest, outside=outside, stages=stages)
        state.library[digest] = ready.planned
        return ready
    with stages.stage("rehearsal"):
        ready = bound(state, call, planned, digest, None if filled is None else filled.watch)
        if ready.rehearsal is not None:
            stages.bytes["rehearsal"] = ready.rehearsal.peak
    if ready.rehearsal is None:
        return ready
    if _rehearsed_peak(ready) > (planned.budget or _rehearsed_peak(ready)):
        ready = _fitted(state, call, ready, outside=outside, stages=stages)
    estimated = state.settings.cost == "estimate"
    if warning := above_budget(ready.planned, _rehearsed_peak(ready), estimated=estimated):
        warn(warning, RematWarning)
    return ready


def _rehearsed_peak(ready: Ready) -> Bytes:
    """What a step holds by its rehearsal, with what a call holds outside the plan [bytes]."""
    assert ready.rehearsal is not None
    return ready.rehearsal.peak + ready.captured.overhead


LEAST_STEP = 0.001
"""The least share of the budget by which a plan is smaller than the one before it, whose rehearsal was above the budget."""


def _fitted(state: State, call: Arguments, ready: Ready, *, outside: Outside | None, stages: Stages) -> Ready:
    """A plan whose rehearsal keeps the budget, where one is found, else the one that holds least.

    Plans of estimates, of files and of a group of processes stay as they are, whatever their rehearsal holds.
    """
    planned = ready.planned
    alone = not planned.origin and not state.ranks.shared and planned.asked is None
    if state.settings.cost == "estimate" or not alone:
        return ready
    fit = Fit(
        state=state,
        call=call,
        digest=ready.digest,
        outside=outside,
        stages=stages,
        peak_of=_rehearsed_peak,
        least_step=LEAST_STEP,
    )
    trials = fitted(fit, planned, lambda planned: planned, ready)
    assert trials.best is not None
    best = evolve(trials.best, planned=evolve(trials.best.planned, fitted=str(trials)))
    state.library[ready.digest] = best.planned
    return best


def _planned(state: State, call: Arguments, captured: Captured, *, outside: Outside | None, stages: Stages) -> Planned:
    """A plan that another process of the group shares, where there is one and it fits, else one of this process."""
    ranks = state.ranks
    if outside is not None or not ranks.shared:
        before = state.library.get(program_digest(captured.program)) if outside is not None else None
        again = before is not None and before.provenance in ALONE
        return _planned_alone(state, captured, stages, outside=outside, again=again)
    first = not ranks.agreed
    if first:
        agreeing.agree(state, call, captured, stages)
    planned = agreeing.replayed(state, captured, stages)
    if planned is None:
        planned = _planned_alone(state, captured, stages)
        ranks.share(file_of([plan_to_save(planned, state.settings)], captured.program, state.settings))
    else:
        state.families.learn(planned.captured.program, planned.graph, planned.outcome)
    if first:
        ranks.settle()
    return planned


def _planned_alone(
    state: State, captured: Captured, stages: Stages, *, outside: Outside | None = None, again: bool = False
) -> Planned:
    """A plan of the file, where there is one for the step and it fits, else a new one.

    Args:
        state: of the wrapped module.
        captured: the step.
        stages: timed.
        outside: what a loss outside the module holds, where that was measured.
        again: whether the step has a plan that was made for it alone, so that the new one is too.
    """
    families = state.families if state.family and not again and state.settings.solver is None else None
    plan = functools.partial(
        plan_captured, captured, state.settings, known_costs=state.costs, outside=outside, stages=stages
    )
    if state.saved is None or outside is not None:
        return plan(source=families)
    with stages.stage("plan"):
        replay = state.saved.replay_for(captured.program, first=not state.library)
    if replay is None:
        return plan(source=families)
    state.costs = {**state.saved.costs(captured.program.device), **state.costs}
    try:
        planned = plan(known_costs=state.costs, source=replay)
    except StalePlan as error:
        state.saved.refuse(error)
        return plan(known_costs=state.costs, source=families)
    state.families.learn(planned.captured.program, planned.graph, planned.outcome)
    return planned
