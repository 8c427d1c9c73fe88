"""A submodule as a part: whether it can be one, and its plan as an operation of DTR's runtime."""

from __future__ import annotations

from typing import Any

import torch
from attrs import evolve
from torch import nn

from remat.exec._capture.capturing import Captured
from remat.exec._dtr.part_needs import needs_of_part
from remat.exec._dtr.planned import Planned
from remat.exec._module.binding import bound
from remat.exec._module.calls import Arguments, Wrapped
from remat.exec._module.parts import Described, Form, Part
from remat.exec._plan.dividing import BlockOption
from remat.exec._plan.planned import Planned as PlannedStep
from remat.exec._program.digest import program_digest
from remat.exec._program.program import Program, Role, refs
from remat.exec._torch import rng
from remat.exec._torch.exchange import EXCHANGE
from remat.exec._trace import structure
from remat.exec._trace.tracing import Same
from remat.ir import Phase
from remat.units import Bytes


def looked_past(module: nn.Module) -> bool:
    """Whether a submodule runs in a way of its own."""
    return (
        isinstance(module, (Wrapped, torch.jit.ScriptModule))
        or "forward" in module.__dict__
        or module._compiled_call_impl is not None
    )


def shared_parameters(module: nn.Module) -> set[int]:
    """Parameters that are registered in several places."""
    places: dict[int, set[int]] = {}
    for inner in module.modules():
        for parameter in inner._parameters.values():
            if parameter is not None:
                places.setdefault(id(parameter), set()).add(id(inner))
    return {key for key, owners in places.items() if len(owners) > 1}


def lies_inside(parameter: nn.Parameter, part: Part, root: nn.Module) -> bool:
    """Whether all modules that have a parameter lie in a part."""
    inside = {id(inner) for inner in part.module.modules()}
    return all(
        id(inner) in inside
        for inner in root.modules()
        if any(other is parameter for other in inner._parameters.values())
    )


def holds_tensors(module: nn.Module) -> bool:
    """Whether attributes of modules, besides parameters and buffers, are tensors or hold some."""
    return any(
        isinstance(leaf, torch.Tensor)
        for inner in module.modules()
        for name, value in inner.__dict__.items()
        if name not in ("_parameters", "_buffers", "_modules") and isinstance(value, (torch.Tensor, list, tuple, dict))
        for leaf in structure.flatten(value, opaque=lambda item: not isinstance(item, torch.Tensor))[0]
    )


def why_unfit(captured: Captured) -> str:
    """Why a captured submodule cannot be one operation of the runtime; empty: it can."""
    program = captured.program
    buffers = {value for value, _ in program.buffers}
    reasons = {
        "the plan depends on values of tensors": bool(captured.late or captured.guards.reads or captured.prologue),
        "it changes attributes": bool(captured.effects),
        "it replaces buffers": bool(captured.replaced),
        "it reads tensors from plain attributes": bool(captured.lifted),
        "it returns an argument, or one tensor twice": bool(captured.widened)
        or any(isinstance(leaf, Same) for leaf in captured.out_leaves),
        "it returns tensors in another order of dimensions": any(order is not None for order in captured.orders),
        "it writes to an argument": any(target not in buffers for target in program.updates),
        "its backward draws random numbers": any(op.draws and op.phase is Phase.BACKWARD for op in program.ops),
        "it uses a parameter several times": any(
            _reads(program, value) > 1 for value, path in program.params if ("param", path) in program.grads
        ),
        "it has no gradients": not program.grads or not captured.differentiable,
    }
    return next((reason for reason, holds in reasons.items() if holds), "")


def _reads(program: Program, value: str) -> int:
    """How often operations of the forward read the memory of a value; at least as often as autograd does."""
    storage = program.values[value].storage
    return sum(
        program.values[ref.name].storage == storage
        for op in program.ops
        if op.phase is Phase.FORWARD and op.role is not Role.VIEW
        for ref in refs((op.args, op.kwargs))
    )


def sample_of(form: Form) -> tuple[Any, Any]:
    leaves = [leaf.zeros() if isinstance(leaf, Described) else leaf for leaf in form.leaves]
    args, kwargs = structure.unflatten(leaves, form.layout)
    return args, kwargs


def gradient_bytes(module: nn.Module) -> Bytes:
    """Bytes of the gradients of a module's parameters."""
    return sum(p.numel() * p.element_size() for p in module.parameters() if p.requires_grad)


def option_of_part(part: Part, step: PlannedStep, planned: Planned) -> BlockOption:
    """A plan with the bytes that it takes, as measured, beside the gradients of parameters."""
    cost = step.outcome.cost
    assert cost is not None
    forward = planned.results + planned.saved + planned.forward_work
    backward = 2 * planned.results + planned.saved + planned.backward_work
    backward += max(0, planned.gradients - gradient_bytes(part.module))
    # Besides: the states of generators and the buffers that are noted, and once more while it runs again.
    noted = sum(p.numel() * p.element_size() for p in part.module.buffers())
    noted += rng.state_bytes(planned.lowered.device) if planned.draws else 0
    saved = planned.saved + planned.results + noted
    return BlockOption(time=cost.time, peak=max(forward, backward) + 2 * noted, saved=saved, planned=step)


def bound_part(part: Part, form: Form, step: PlannedStep) -> tuple[Any, Planned | None]:
    """A plan bound to the places of a call's tensors, and as an operation of the runtime; None: it cannot be one."""
    args, kwargs = sample_of(form)
    with EXCHANGE.alone, torch.enable_grad(), part.in_modes(form.modes):
        return _bound_in_mode(part, form, step, part.state.arguments(part.module, args, kwargs))


def _bound_in_mode(part: Part, form: Form, step: PlannedStep, call: Arguments) -> tuple[Any, Planned | None]:
    if form.captured is not None:
        step = evolve(step, captured=evolve(form.captured, program=step.captured.program))
    ready = bound(part.state, call, step, program_digest(step.captured.program))
    lowered = step.lowered
    assert lowered is not None and ready.call is not None
    needs = needs_of_part(lowered, call.at(ready.places, []))
    if (
        not needs.apart
        or lowered.inner_outputs
        or lowered.loose_primals
        or lowered.copier is not None
        or ready.same_places
    ):
        return ready, None
    inputs = {at: number for at, (kind, number) in enumerate(ready.places) if kind == "input"}
    program = step.captured.program
    values = [value for value, _ in (*program.params, *program.buffers, *program.inputs)]
    shared = frozenset(at for at in inputs if at in lowered.grad_inputs and _reads(program, values[at]) > 1)
    planned = Planned(
        name=part.path, lowered=lowered, requires_grad=ready.call.requires_grad, differentiable=ready.call.differentiable,
        inputs=inputs, shared=shared, draws=any(op.draws for op in program.ops), cost=form.cost, results=needs.results,
        saved=needs.saved, forward_work=needs.forward_work, backward_work=needs.backward_work, gradients=needs.gradients,
    )  # fmt: skip
    return ready, planned


def bind(form: Form, option: BlockOption) -> None:
    """Have calls of this form run a plan."""
    assert option.planned is not None
    form.ready, form.planned = form.runnable[id(option.planned)]
    form.options, form.captured, form.reason = (), None, ""
    form.runnable.clear()


__all__ = [
    "bind",
    "bound_part",
    "gradient_bytes",
    "holds_tensors",
    "lies_inside",
    "looked_past",
    "option_of_part",
    "sample_of",
    "shared_parameters",
    "why_unfit",
]
