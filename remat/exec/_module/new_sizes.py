"""Calls of new sizes: filled in from captures at other sizes where these tell all, and what is learned for that."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Hashable
from typing import Any

import torch
from attrs import frozen

from remat.exec._capture.capturing import Captured, step_of
from remat.exec._module.calls import Arguments, leaf_key, traced_step
from remat.exec._module.live import Watch
from remat.exec._module.state import State
from remat.exec._plan.costing import Alike, with_costs
from remat.exec._plan.planned import Planned
from remat.exec._plan.planning import plan_costed
from remat.exec._plan.progress import Stages
from remat.exec._program.program import Program
from remat.exec._run.lowering import Lowered
from remat.exec._sizes.costs import costs_at
from remat.exec._sizes.stencil import REFUSALS, Sample, Stencil, numbers_of
from remat.exec._torch.wrappers import bits_of
from remat.exec._trace.tracing import Step
from remat.ir import Schedule


@frozen(kw_only=True, eq=False)
class Filled:
    """A step that was filled in and checked.

    Attributes:
        captured: the step.
        stencil: where it comes from.
        digest: of its program.
        form: of the call.
        watch: what all steps of the stencil watch of the state of Python; they have no effects on it.
        numbers: the integers of its pattern.
    """

    captured: Captured
    stencil: Stencil
    digest: str
    form: Hashable
    watch: Watch
    numbers: tuple[int, ...]


def at_known_sizes(state: State, call: Arguments) -> Filled | None:
    """The step of a call, from captures at other sizes; None: it must be captured."""
    if not _may_fill(state):
        return None
    form = _form(call)
    captures = state.sizes.of(form)
    if len(captures.samples) < 2 or captures.hopeless:
        return None
    step = _step(state, call)
    watched = state.watched(call.module)
    before = captures.snapshot(call.module, watched)
    for stencil in captures.patterns(before):
        template = stencil.samples[-1].captured
        watch = state.watches.setdefault(stencil, Watch(template.tokens, template.reads))
        try:
            if not watch.holds(call.module, watched):
                captures.failed("Python is in another state")
                continue
            captured = stencil.at(step, before)
        except REFUSALS as error:
            captures.failed(str(error))
            continue
        except Exception as error:  # noqa: BLE001 - the module's own code may raise anything where a tensor has no values
            captures.failed(f"{type(error).__name__}: {error}")
            continue
        captures.why, captures.failures = "", 0
        digest = hashlib.sha256(f"{stencil.digest} {numbers_of(step)}".encode()).hexdigest()
        numbers = tuple(stencil.integers(step))
        return Filled(captured=captured, stencil=stencil, digest=digest, form=form, watch=watch, numbers=numbers)
    captures.failures += 1
    return None


def planned_from(state: State, filled: Filled, stages: Stages) -> Planned:
    """Cost and plan a step that was filled in.

    Raises:
        Infeasible: no plan within the budget was found.
    """
    with stages.stage("cost"):
        estimated = state.settings.cost == "estimate"
        costs, signatures = costs_at(filled.stencil, filled.captured.program, state.costs, estimated=estimated)
        alike = Alike(filled.stencil.samples[-1].graph, signatures)
        costed = with_costs(filled.captured, state.settings, costs, alike=alike)
        stages.bytes["cost"] = costed.peak
    stencil, numbers = filled.stencil, filled.numbers

    def lowered(program: Program, schedule: Schedule) -> Lowered:
        return stencil.templates.lowered(stencil.program, numbers, program, schedule)

    return plan_costed(filled.captured, costed, state.settings, stages=stages, source=state.families, lowering=lowered)


def learn_sizes(state: State, call: Arguments, planned: Planned) -> None:
    """Keep a capture for calls of other sizes."""
    if _may_fill(state):
        sample = Sample.of(_step(state, call), planned.captured, planned.graph)
        state.sizes.of(_form(call)).learn(sample)


def why_unfilled(state: State, call: Arguments) -> str:
    """Why a call had to be captured, where captures at other sizes were there; else empty."""
    return state.sizes.of(_form(call)).why if _may_fill(state) else ""


def _may_fill(state: State) -> bool:
    """Whether plans of other sizes count at all: not those of files or of other processes, nor with copies."""
    settings = state.settings
    alone = state.saved is None and not state.ranks.shared and settings.offloading is None
    return (
        state.family
        and alone
        and settings.solver is None
        and settings.budget is not None
        and settings.tracer != "joint"
    )


def _step(state: State, call: Arguments) -> Step:
    """A call as it is traced."""
    function = functools.partial(traced_step, state.step_of(call.module))
    return step_of(call.module, call.args, call.kwargs, function, state.settings.differentiable)


def _form(call: Arguments) -> Hashable:
    """What calls have in common that differ in sizes alone."""
    key: Any = call.key
    return key[0], tuple(map(_leaf_form, call.leaves)), *key[2:]


def _leaf_form(leaf: Any) -> Any:
    if isinstance(leaf, torch.Tensor):
        return leaf.dim(), leaf.dtype, leaf.device, leaf.requires_grad, *bits_of(leaf)
    return int if type(leaf) is int else leaf_key(leaf)


__all__ = ["Filled", "at_known_sizes", "learn_sizes", "planned_from"]
