"""Operations, fake tensors and nested containers by their private names in torch.

This room is the only user of such names, so that little changes when torch does (tested with 2.11, 2.13 and 2.15). Nothing public
would do for an overload's unchecked entry (it saves 0.3 us a call), the class of fake tensors and the modes of dispatch.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, TypeAlias

import torch
from torch._ops import HigherOrderOperator, OpOverload
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch._subclasses.functional_tensor import FunctionalTensor
from torch.autograd.grad_mode import _unsafe_preserve_version_counter as unseen_writes
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode as DispatchMode
from torch.utils._python_dispatch import _disable_current_modes as no_modes
from torch.utils._pytree import TreeSpec, tree_flatten, tree_unflatten

__all__ = [
    "DispatchMode",
    "FakeTensor",
    "FakeTensorMode",
    "FunctionalTensor",
    "HigherOrderOperator",
    "OpOverload",
    "ShapesOnly",
    "TreeSpec",
    "aliases_an_input",
    "constant_of",
    "entry",
    "flatten",
    "hooks_of_all_modules",
    "no_modes",
    "reader_of_real",
    "same_generator",
    "shapes_depend_on_values",
    "storage_key",
    "storage_while_alive",
    "unflatten",
    "unseen_writes",
]


def entry(overload: OpOverload) -> Callable[..., Any]:
    """What an overload's call goes through after its own checks; for operations of ours without autograd, which takes long."""
    call = overload._op
    if str(overload) in _ASK_WHETHER_GRADIENTS:

        def as_in_training(*args: Any, **kwargs: Any) -> Any:
            with torch.enable_grad(), torch._C._AutoDispatchBelowAutograd():
                return call(*args, **kwargs)

        return as_in_training
    if overload.namespace == "remat":

        def below(*args: Any, **kwargs: Any) -> Any:
            with torch._C._AutoDispatchBelowAutograd():
                return call(*args, **kwargs)

        return below
    return call


_ASK_WHETHER_GRADIENTS = {"aten.mkldnn_rnn_layer.default"}
"""Kernels that make what their backward needs only where gradients are on, whatever their arguments say."""


StreamKey: TypeAlias = tuple[int, int, int]
"""Number of a stream, of its device, and of the type of that."""


def current_stream_key(device: torch.device) -> StreamKey:
    """What tells the current stream of a CUDA device from others."""
    key: StreamKey = torch._C._cuda_getCurrentStream(device.index)
    return key


def hooks_of_all_modules() -> bool:
    """Whether hooks are registered that run at each module of the process."""
    return bool(torch.nn.modules.module._has_any_global_hook())


def storage_key(value: torch.Tensor) -> int:
    """A number that two tensors share if and only if they share their storage."""
    key: int = value.untyped_storage()._cdata
    return key


def storage_while_alive(value: torch.Tensor) -> Callable[[], torch.UntypedStorage | None]:
    """The storage of a tensor, without keeping it alive: None once its last tensor is gone."""
    reference = StorageWeakRef(value.untyped_storage())
    return lambda: torch.UntypedStorage._new_with_weak_ptr(reference.cdata)


def reader_of_real(error: Exception) -> str | None:
    """The operation that stopped a trace because it met a tensor that is not fake, or None if something else did."""
    match = re.search(r"convert all Tensors to FakeTensors.*Found in ([\w.]+)\(", str(error), flags=re.DOTALL)
    return match.group(1) if match else None


def same_generator(first: torch.Generator, second: torch.Generator) -> bool:
    """Whether two objects are one generator: operations get another object for it than the caller has."""
    return first._cdata == second._cdata  # type: ignore[attr-defined, no-any-return]


def shapes_depend_on_values(overload: OpOverload, args: Any) -> bool:
    """Whether the shapes of the results depend on values: by the operation's tag, or because a mask selects."""
    if overload.name() == "aten::index.Tensor":
        return any(index is not None and index.dtype in (torch.bool, torch.uint8) for index in args[1])
    return torch.Tag.dynamic_output_shape in overload.tags or torch.Tag.data_dependent_output in overload.tags


def aliases_an_input(overload: OpOverload) -> bool:
    """Whether the schema says that an output is a view of an input."""
    return any(result.alias_info is not None and not result.alias_info.is_write for result in overload._schema.returns)


def constant_of(value: Any) -> torch.Tensor | None:
    """The real tensor behind a constant that the tracer stored, or None where there is none."""
    if isinstance(value, FakeTensor):
        return value.constant
    return value if isinstance(value, torch.Tensor) else None


class ShapesOnly(FakeTensorMode):
    """Inside, tensors are made without memory. One mode for all of them, also for copies: modules copy their layers deeply."""

    def __deepcopy__(self, memo: dict[int, Any]) -> ShapesOnly:
        return self


def flatten(tree: Any) -> tuple[list[Any], TreeSpec]:
    """Leaves of nested containers, registered classes among them, and what rebuilds them."""
    leaves, spec = tree_flatten(tree, is_leaf=_is_size)
    result = list(leaves)
    leaves.clear()  # torch's own recursive function keeps the list until the garbage collector runs, and with it what is in it
    return result, spec


def _is_size(value: Any) -> bool:
    """`torch.Size` would come back as a tuple."""
    return type(value) is torch.Size


def unflatten(leaves: list[Any], spec: TreeSpec) -> Any:
    """The inverse of `flatten`."""
    return tree_unflatten(leaves, spec)
