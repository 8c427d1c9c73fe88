"""What the two functions of a plan take, by the allocator: run once on tensors of the right forms, outside of any step."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import accumulate
from typing import Any, TypeVar

import torch
from attrs import frozen

from remat.exec._dtr.needs import bytes_of
from remat.exec._program.kernels import no_autocast
from remat.exec._program.refusals import refusing
from remat.exec._run.lowering import Lowered, Tensors
from remat.exec._run.rehearsal import as_before
from remat.exec._torch import recording
from remat.exec._torch.aside import unprofiled
from remat.exec._torch.cuda_memory import charged, rounded, used_by
from remat.exec._torch.torch_private import storage_key
from remat.units import Bytes

T = TypeVar("T")


@frozen(kw_only=True)
class PartNeeds:
    """Bytes of a planned part.

    Attributes:
        results, saved, gradients: of its outputs, of what it keeps between forward and backward, and of its gradients.
        forward_work: beyond results and saved. backward_work: beyond the gradients, while it frees what was saved.
        apart: whether outputs, what is saved and what came in share no memory.
    """

    results: Bytes
    saved: Bytes
    gradients: Bytes
    forward_work: Bytes
    backward_work: Bytes
    apart: bool


def needs_of_part(lowered: Lowered, primals: Tensors) -> PartNeeds:
    """Run forward and backward twice, the second time measured; buffers and generators are as before.

    Raises:
        Uncapturable: X-STAGE, where an operation does not run as it was traced.
    """

    def run() -> PartNeeds:
        with as_before(lowered, primals), torch.no_grad(), no_autocast(lowered.device):
            _measured(lowered, primals)
            return _measured(lowered, primals)

    with refusing("the rehearsal"):
        return unprofiled(run)


def _measured(lowered: Lowered, primals: Tensors) -> PartNeeds:
    device = lowered.device
    (outputs, read_outputs, activations), forward_peak = _peak(lambda: lowered.forward(primals), device)
    came, results, saved = _keys(primals), _keys(outputs), _keys(activations)
    apart = len(results) == len(outputs) and not (came & results or came & saved or results & saved)
    result_bytes, saved_bytes = _bytes(outputs, device), _bytes(activations, device)
    tangents = tuple(
        torch.empty_strided(spec.shape, spec.stride, dtype=spec.dtype, device=spec.device).fill_(1)
        for spec in lowered.tangents.specs
    )
    loose = tuple(primals[at] for at in lowered.loose_primals)
    kept = (*(primals[at] for at in lowered.backward_primals), *read_outputs)
    before = _keys((*primals, *tangents, *read_outputs))
    gradients, backward_peak = _peak(lambda: lowered.backward(loose, kept, tangents, activations), device)
    fresh = [gradient for gradient in gradients if gradient is not None and storage_key(gradient) not in before]
    gradient_bytes = _bytes(fresh, device)
    return PartNeeds(
        results=result_bytes,
        saved=saved_bytes,
        gradients=gradient_bytes,
        forward_work=max(0, forward_peak - result_bytes - saved_bytes),
        backward_work=max(0, backward_peak - gradient_bytes),
        apart=apart,
    )


def _peak(call: Callable[[], T], device: torch.device) -> tuple[T, Bytes]:
    """What a call returns, and the most bytes above those held before."""
    if device.type == "cuda":
        result, use = used_by(call, device)
        return result, rounded(use.asked_peak)
    events: list[recording.Event] = []
    with recording.recorded(events):
        result = call()
    return result, max(0, *accumulate(event.size for event in events), 0)


def _keys(tensors: Iterable[Any]) -> set[int]:
    return {storage_key(tensor) for tensor in tensors}


def _bytes(tensors: Iterable[torch.Tensor], device: torch.device) -> Bytes:
    """Bytes of the memory of some tensors on the device, each once, as its allocator gives them."""
    sizes = {storage_key(tensor): bytes_of(tensor) for tensor in tensors if tensor.device.type == device.type}
    return sum(charged(size, device) for size in sizes.values())


__all__ = ["PartNeeds", "needs_of_part"]
