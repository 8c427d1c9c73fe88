"""Running a planned part again, operation by operation, for its backward: where the planned one would not be that of plain torch.

The forward runs as at first, with its generators, and with parameters and buffers that only this run sees; then autograd goes
through it. Where a tensor has several uses in the part and others outside, its contributions are handed on one by one, so
that they are added in plain torch's order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from remat.exec._dtr.boundary import region
from remat.exec._dtr.operators import generators_in
from remat.exec._dtr.planned import Kept, Running, again_bytes
from remat.exec._program.kernels import no_autocast
from remat.exec._trace import structure


def run_again(running: Running, gradients: Sequence[torch.Tensor | None]) -> tuple[torch.Tensor | None, ...]:
    """The gradients of a call of a part, for each primal that gets one.

    Args:
        running: the call.
        gradients: of the outputs.
    """
    runtime, planned, kept = running.runtime, running.planned, running.kept
    assert kept is not None
    aside = again_bytes(running, kept.written)
    with runtime.working(f"the backward of {planned.name}"):
        runtime.core.make_room(aside)
    weight = runtime.core.constant(None, aside)
    with no_autocast(runtime.device), torch.enable_grad(), generators_in(kept.states), region(runtime):
        ends = _ends(running, kept)
        leaves = _arguments(running, kept, ends)
        replaced = {id(running.primals[at]): end for at, end in ends.items() if at not in planned.inputs}
        replaced |= {id(running.primals[at]): before.clone() for at, before in kept.written.items()}
        with _as_then(running, replaced):
            out = running.forward(*structure.unflatten(leaves, running.layout))
    runtime.end_forward()
    del weight, replaced
    outputs = [leaf for leaf in structure.flatten(out)[0] if isinstance(leaf, torch.Tensor)]
    pairs = [(output, gradient) for output, gradient in zip(outputs, gradients, strict=True) if gradient is not None]
    pairs = [pair for pair in pairs if pair[0].requires_grad]
    roots, arrived = [output for output, _ in pairs], [gradient for _, gradient in pairs]
    pieces: dict[int, list[torch.Tensor]] = {at: [] for at in planned.shared}
    hooks = [hook for at in planned.shared for hook in _hooks(ends[at], roots, pieces[at])]
    try:
        results = torch.autograd.grad(roots, list(ends.values()), arrived, allow_unused=True)
    finally:
        for hook in hooks:
            hook.remove()
    for at, result in zip(ends, results, strict=True):
        if result is not None and len(pieces.get(at, ())) > 1:
            result._pieces = tuple(pieces[at])  # type: ignore[attr-defined]  # a wrapper tensor
    return tuple(results)


def _ends(running: Running, kept: Kept) -> dict[int, torch.Tensor]:
    """By place of the primal, what this run takes for each that gets a gradient: the same values, outside the graph."""
    runtime, planned = running.runtime, running.planned
    ends: dict[int, torch.Tensor] = {}
    for at in planned.lowered.grad_inputs:
        number = planned.inputs.get(at)
        primal = running.primals[at]
        if number is not None:
            ends[at] = runtime.standing_for(kept.inputs[number]).requires_grad_()
        elif primal is not None:
            ends[at] = runtime.enter(primal).requires_grad_()
    return ends


def _arguments(running: Running, kept: Kept, ends: Mapping[int, torch.Tensor]) -> list[Any]:
    """The flat arguments of the call."""
    places = {number: at for at, number in running.planned.inputs.items() if at in ends}
    leaves = list(running.leaves)
    for number, at in enumerate(running.tensors):
        leaves[at] = ends[places[number]] if number in places else running.runtime.standing_for(kept.inputs[number])
    return leaves


@contextmanager
def _as_then(running: Running, replaced: Mapping[int, torch.Tensor]) -> Iterator[None]:
    """Inside, the module has other tensors in place of its parameters and buffers, and is in the mode of the first run."""
    changed: list[tuple[dict[str, Any], str, Any]] = []
    modes: list[tuple[nn.Module, bool]] = []
    try:
        for inner, training in running.modes:
            modes.append((inner, inner.training))
            inner.__dict__["training"] = training
            for table in (inner._parameters, inner._buffers):
                for name, tensor in list(table.items()):
                    if id(tensor) in replaced:
                        changed.append((table, name, tensor))
                        table[name] = replaced[id(tensor)]  # type: ignore[assignment]
        yield
    finally:
        for table, name, tensor in changed:
            table[name] = tensor
        for inner, training in modes:
            inner.__dict__["training"] = training


def _hooks(end: torch.Tensor, roots: Sequence[torch.Tensor], pieces: list[torch.Tensor]) -> Iterator[Any]:
    """Hooks that note, in their order, the contributions to the gradient of `end`."""
    seen: set[Any] = set()
    waiting = [root.grad_fn for root in roots]
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        for place, (following, _) in enumerate(node.next_functions):
            if following is None:
                continue
            if getattr(following, "variable", None) is end:
                yield node.register_hook(_noting(place, pieces))
            waiting.append(following)


def _noting(place: int, pieces: list[torch.Tensor]) -> Callable[..., None]:
    def note(given: Sequence[Any], _: Any) -> None:
        if given[place] is not None:
            pieces.append(given[place])

    return note


__all__ = ["run_again"]
