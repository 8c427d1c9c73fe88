"""Tensors that stand for others, and running below autograd: torch's private names that wrapper tensors need."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeVar

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import _disable_current_modes as no_modes
from torch.utils.flop_counter import flop_registry

T = TypeVar("T", bound=torch.Tensor)

PLAIN_FUNCTIONS: Any = torch._C._disabled_torch_function_impl
"""`__torch_function__` of a class whose functions are those of plain tensors."""


def like(kind: type[T], tensor: torch.Tensor) -> T:
    """A tensor of another class without memory, with the shape, strides, type and device of `tensor`."""
    result: T = torch.Tensor._make_wrapper_subclass(
        kind,
        tensor.shape,
        strides=tensor.stride(),
        storage_offset=tensor.storage_offset(),
        dtype=tensor.dtype,
        layout=tensor.layout,
        device=tensor.device,
        requires_grad=False,
    )
    return result


def outside_modes() -> AbstractContextManager[Any]:
    """A context in which no dispatch mode sees what runs; where there is none, it costs nothing."""
    return no_modes() if torch._C._len_torch_dispatch_stack() else nullcontext()


def modes_on() -> int:
    """How many dispatch modes see what runs."""
    return int(torch._C._len_torch_dispatch_stack())


def saving_with() -> Any:
    """What autograd calls now with each tensor that it saves; None: nothing."""
    hooks = torch._C._autograd._top_saved_tensors_default_hooks(True)
    return None if hooks is None else hooks[0]


def below_autograd() -> Any:
    """A context in which operations are not recorded by autograd."""
    return torch._C._AutoDispatchBelowAutograd()


def fake_mode() -> FakeTensorMode:
    """A mode in which operations compute shapes alone; it adds nothing to the cache that all fake modes of a process share."""
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    mode.cache_enabled = False
    return mode


def arithmetic(func: Any) -> Callable[..., Any] | None:
    """The formula for the multiplications and additions of an operation, or None."""
    return flop_registry.get(func.overloadpacket)


def storage_copy(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor over a copy of its whole storage."""
    storage = tensor.untyped_storage()
    copied = torch.empty(storage.nbytes(), dtype=torch.uint8, device=tensor.device)
    copied.copy_(torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(storage))
    return over(copied, tensor)


def over(base: torch.Tensor, form: torch.Tensor) -> torch.Tensor:
    """The storage of `base` looked at as `form` looks at its own."""
    empty = torch.empty(0, dtype=form.dtype, device=form.device)
    return empty.set_(base.untyped_storage(), form.storage_offset(), form.shape, form.stride())


__all__ = [
    "PLAIN_FUNCTIONS",
    "arithmetic",
    "below_autograd",
    "fake_mode",
    "like",
    "modes_on",
    "outside_modes",
    "over",
    "saving_with",
    "storage_copy",
]
