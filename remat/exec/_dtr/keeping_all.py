"""What a step holds that evicts nothing, where no trace says it: the step runs once, and everything is as before afterwards."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn

from remat.algorithms._dtr.online import LIMIT
from remat.algorithms._dtr.scores import h_dtr_eq
from remat.exec._dtr.operators import Facts
from remat.exec._dtr.recorder import Given
from remat.exec._dtr.runtime import Runtime
from remat.exec._dtr.stepping import device_of, run_forward
from remat.exec._dtr.wrapper import RematTensor
from remat.exec._run.runtime import StepError
from remat.exec._torch.compiled import running_eagerly
from remat.exec._torch.torch_private import OpOverload, storage_key
from remat.exec._torch.unwinding import hooks_put_back
from remat.exec._torch.wrappers import storage_copy
from remat.exec._trace import structure
from remat.exec._trace.python_state import Snapshot
from remat.exec._trace.tracing import untouched
from remat.units import Bytes

_NO_LIMIT = 1 << 60  # bytes that no step holds


def peak_of_everything(
    module: nn.Module,
    forward: Callable[[], Any],
    arguments: Any,
    *,
    watched: tuple[Any, ...] = (),
    reserve: Bytes | None = None,
) -> Bytes:
    """The most bytes that forward and backward of a call hold above what lived before, by the count of the runtime.

    Parameters, gradients, buffers, arguments, generators and the state of Python are as before afterwards. Hooks of gradients
    that autograd accumulates do not run.

    Args:
        module: whose step it is.
        forward: its call, without arguments.
        arguments: of the call.
        watched: functions besides the module whose state counts.
        reserve: bytes for a loss outside; None: twice the outputs that require a gradient.

    Raises:
        Uncapturable, StepError: what the runtime cannot run, or put back.
    """
    tensors = [*module.parameters(), *_tensors(arguments)]
    runtime = _Trial(_NO_LIMIT, h_dtr_eq, device_of(tensors), limit=LIMIT)
    for buffer in module.buffers():  # norms write to theirs without saying so
        runtime.note(buffer)
    try:
        with hooks_put_back(), untouched(module, Snapshot(module, watched)), torch.enable_grad(), running_eagerly():
            out = run_forward(runtime, forward, module, arguments, reserve)
            losses, trained = _trained(_tensors(out)), _trained(tensors)
            if losses and trained:
                torch.autograd.grad(losses, trained, [torch.ones_like(loss) for loss in losses], allow_unused=True)
            return runtime.core.peak
    finally:
        runtime.put_back()


def _tensors(tree: Any) -> list[torch.Tensor]:
    leaves, _ = structure.flatten(tree, opaque=lambda value: isinstance(value, nn.Module))
    return [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]


def _trained(tensors: Iterable[torch.Tensor]) -> list[torch.Tensor]:
    return [tensor for tensor in tensors if tensor.requires_grad]


class _Trial(Runtime):
    """A runtime that can put back what the program's own tensors were before it wrote to them."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._written: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def _write_for_good(self, func: OpOverload, facts: Facts, given: Given) -> Any:
        for at in given.written:
            self.note(given.values[at].payload)
        return super()._write_for_good(func, facts, given)

    def _reshape(self, func: OpOverload, given: Given) -> torch.Tensor:
        if not isinstance(given.tensors[0], RematTensor):
            raise StepError("X-WRITE", f"{func} gives a tensor another form in place.", fix="give the budget in bytes.")
        return super()._reshape(func, given)

    def assigned(self, tensor: torch.Tensor, value: Any) -> Any:
        """Refused: nothing keeps what the tensor was.

        Raises:
            StepError: X-WRITE.
        """
        raise StepError("X-WRITE", "the forward assigns `.data` of a tensor.", fix="give the budget in bytes.")

    def note(self, tensor: torch.Tensor) -> None:
        """Keep the values that a strided tensor has now, unless there are earlier ones: no other kind can be written here."""
        if tensor.layout is torch.strided and (key := storage_key(tensor)) not in self._written:
            self._written[key] = tensor, storage_copy(tensor)

    def put_back(self) -> None:
        """Give all tensors that were written the values from before."""
        for payload, before in self._written.values():
            payload.untyped_storage().copy_(before.untyped_storage())
        self._written.clear()
