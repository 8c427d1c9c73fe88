"""One run of a step without data, forward and backward, and what it must leave as it was."""

from __future__ import annotations

from typing import Any

import torch
from attrs import frozen

from remat.exec._capture.capturing import Captured
from remat.exec._sizes.calls import Differs
from remat.exec._sizes.outline import Checker, Outlining
from remat.exec._torch import rng
from remat.exec._torch.joint import Correction
from remat.exec._torch.logged import outside_autocast
from remat.exec._torch.outlined import Form, NoOutline, Outlined, tracers_setting, with_tensors
from remat.exec._torch.parametrized import own_parametrizations
from remat.exec._trace import structure
from remat.exec._trace.containers import TABLES
from remat.exec._trace.effects import buffers_of, check_tables, entries
from remat.exec._trace.python_state import Snapshot
from remat.exec._trace.reads import Reads
from remat.exec._trace.tracing import Same, Step, untouched


@frozen(kw_only=True, eq=False)
class Around:
    """What a run needs besides the call.

    Attributes:
        before: the state of Python, which the run must leave as it is.
        captured: a capture whose outputs, tangents and lifted tensors have the forms of this call.
        correction: what kernels return other than their shape functions say.
    """

    before: Snapshot
    captured: Captured
    correction: Correction | None = None


def outlined(step: Step, mode: Outlining, around: Around) -> tuple[tuple[Form, ...], Reads]:
    """Run a step, forward and backward; gives the forms of what it returned, and which attributes it read.

    Args:
        step: the call.
        mode: records or checks.
        around: see there.

    Raises:
        Differs, NoOutline: the run is not as expected, or cannot be judged.
    """
    module, before = step.module, around.before
    states = rng.others()
    with untouched(module, before), torch.enable_grad(), tracers_setting(around.correction):
        inputs, state = _tensors(step, mode, around)
        tables = [(inner, name, entries(inner, name)) for inner in module.modules() for name in TABLES]
        with mode, with_tensors(module, state):
            origins = {id(tensor) for tensor in (*inputs, *state.values())}
            buffers, reads = buffers_of(module), Reads(before.paths)
            with mode.seeding, reads, own_parametrizations():
                out = step.run(inputs[: len(step.tensors)])
                if mode.seeding.seen:
                    raise NoOutline("the forward sets torch's generator")
            if any(buffer.now is not buffer.tensor for buffer in buffers):
                raise NoOutline("the forward replaces buffers")
            check_tables(tables)
            returned = _returned(out, origins, around)
            _backward(mode, returned, [*state.values(), *inputs], around.captured)
        for slot in before.slots():
            if slot.path in around.captured.lifted:
                slot.put(slot.tensor)
        changed = next((container.path for container in before.changed()), None)
    if changed is not None or rng.others() != states:
        raise NoOutline(f"the forward changes {changed or 'a generator of random numbers'}")
    if isinstance(mode, Checker) and mode.at < len(mode.calls):
        raise Differs(f"{mode.calls[mode.at].target} did not run")
    return tuple(map(Form.of, returned)), reads


def _tensors(step: Step, mode: Outlining, around: Around) -> tuple[tuple[torch.Tensor, ...], dict[str, torch.Tensor]]:
    """Tensors without memory in place of arguments and lifted tensors, and of parameters and buffers, each known to the mode."""
    outlines: dict[int, torch.Tensor] = {}

    def of(tensor: torch.Tensor, *, twin: bool = True) -> torch.Tensor:
        if id(tensor) not in outlines or not twin:
            form = Form.of(tensor)
            outlines[id(tensor)] = Outlined(form, tensor.requires_grad)
            mode.know_outside(outlines[id(tensor)], form)
        return outlines[id(tensor)]

    module = step.module
    named = (*module.named_parameters(remove_duplicate=False), *module.named_buffers(remove_duplicate=False))
    state = {name: of(tensor) for name, tensor in named}
    inputs = [of(tensor, twin=False) for tensor in step.tensors]
    slots = {slot.path: slot for slot in around.before.slots()} if around.captured.lifted else {}
    for path in around.captured.lifted:
        inputs.append(of(slots[path].tensor, twin=False))
        slots[path].put(inputs[-1])
    return tuple(inputs), state


def _returned(out: Any, origins: set[int], around: Around) -> list[torch.Tensor]:
    """The tensors that a module returned, where all else that it returned is as in the capture."""
    captured = around.captured
    leaves, layout = structure.flatten(out, opaque=lambda value: id(value) in around.before.paths)
    tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor) and id(leaf) not in origins]
    plain = [leaf for leaf in leaves if not isinstance(leaf, torch.Tensor)]
    expected = [leaf for at, leaf in enumerate(captured.out_leaves) if at not in captured.tensor_leaves]
    expected = [leaf for leaf in expected if not isinstance(leaf, Same)]
    if repr(layout) != repr(captured.layout) or list(map(repr, plain)) != list(map(repr, expected)):
        raise Differs("the module returns other plain values")
    if tuple(tensor.requires_grad for tensor in tensors) != captured.requires_grad:
        raise Differs("other outputs require a gradient")
    return tensors


def _backward(mode: Outlining, returned: list[torch.Tensor], leaves: list[torch.Tensor], captured: Captured) -> None:
    """Derive the outputs that gradients come back through."""
    trained = list({id(leaf): leaf for leaf in leaves if leaf.requires_grad}.values())
    roots = [returned[position] for _, position in captured.program.tangents]
    if not trained or not roots:
        return
    specs = [captured.program.values[value].spec for value, _ in captured.program.tangents]
    if any(tuple(root.shape) != spec.shape for root, spec in zip(roots, specs, strict=True)):
        raise Differs("the module returns tensors of other shapes")
    forms = [Form(spec.shape, spec.stride, 0, spec.dtype, spec.device) for spec in specs]
    tangents = list(map(Outlined, forms))
    for tangent, form in zip(tangents, forms, strict=True):
        mode.know_outside(tangent, form)
    with torch.autograd.set_multithreading_enabled(False), outside_autocast():
        torch.autograd.grad(roots, trained, tangents, allow_unused=True)
