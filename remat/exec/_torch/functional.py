"""Torch's functional mode, which makes operations in place into operations that give new tensors, with a short way through it.

The mode asks several questions of each operation, most of whose answers are the operation's own. Here they are asked once.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

import torch
from torch._C import DispatchKey, DispatchKeySet
from torch._higher_order_ops.effects import has_effects
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensor
from torch._subclasses.functional_tensor import FunctionalTensor, FunctionalTensorMode
from torch.utils._python_dispatch import get_alias_info, return_and_correct_aliasing

_COMPOSITE = DispatchKey.CompositeImplicitAutograd
_KINDS = {torch.Tensor, FakeTensor, FunctionalTensor}


class Replays(Protocol):
    """Is told which tensor the views that functionalization makes again stem from."""

    replayed: torch.Tensor | None


class Functional(FunctionalTensorMode):
    """The mode.

    Args:
        log: is told about views that are made again.
    """

    def __init__(self, log: Replays) -> None:
        super().__init__(_allow_token_discovery=True)
        self.log = log
        self._ways: dict[Any, tuple[bool, bool, bool]] = {}

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Dynamo's guard around each call costs more than the call; nothing is compiled here."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operation as the mode of torch does."""
        way = self._ways.get(func)
        if way is None:
            way = self._ways[func] = _way(func)
        short, aliases, in_place = way
        if not short or not _KINDS.issuperset(types):
            return super().__torch_dispatch__(func, types, args, kwargs)
        kwargs = kwargs or {}
        self._sync_view_replay_annotations(args, kwargs)
        written = args[0] if in_place and args and isinstance(args[0], FunctionalTensor) else None
        layout = None if written is None else as_it_is(written).stride()
        result = self._functionalized(func, args, kwargs)
        if written is not None and layout is not None:
            _lay_out(written, layout)
        if not aliases or not any(isinstance(part, FunctionalTensor) for part in _tensors((result,))):
            return result
        return return_and_correct_aliasing(func, args, kwargs, result)

    def _functionalized(self, func: OpOverload, args: Any, kwargs: Any) -> Any:
        """The result of torch's own functionalization, which lies in a kernel."""
        active = DispatchKeySet(DispatchKey.Functionalize)
        include = torch._C._dispatch_tls_local_include_set() | active
        exclude = torch._C._dispatch_tls_local_exclude_set().remove(DispatchKey.Functionalize)
        with torch._C._ForceDispatchKeyGuard(include, exclude - FunctionalTensor._extra_dispatch_keys):
            before = torch._functionalize_enable_reapply_views(True)  # type: ignore[attr-defined]
            try:
                inner = [_unwrapped(value) for value in args]
                named = {name: _unwrapped(value) for name, value in kwargs.items()}
                return self._wrapped(func._op_dk(DispatchKey.Functionalize, *inner, **named))
            finally:
                torch._disable_functionalization()
                torch._functionalize_enable_reapply_views(before)  # type: ignore[attr-defined]

    def _wrapped(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return FunctionalTensor(value, self) if torch._is_functional_tensor(value) else value
        if isinstance(value, (tuple, list)):
            return type(value)([self._wrapped(item) for item in value])
        return value

    def _sync_view_replay_annotations(self, args: Any, kwargs: Any) -> None:
        """Bring what an operation reads up to date, as the mode of torch does where proxies are made."""
        for tensor in _tensors((*args, *kwargs.values())):
            if isinstance(tensor, FunctionalTensor):
                self.log.replayed = torch._from_functional_tensor(tensor.elem)
                try:
                    torch._sync(tensor)  # type: ignore[attr-defined, no-untyped-call]
                finally:
                    self.log.replayed = None


def inner(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor that a functional tensor stands for, up to date."""
    if not isinstance(tensor, FunctionalTensor):
        return tensor
    torch._sync(tensor)  # type: ignore[attr-defined, no-untyped-call]
    return torch._from_functional_tensor(tensor.elem)


def as_it_is(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor that a functional tensor stood for when it was last read; nothing is computed."""
    return torch._from_functional_tensor(tensor.elem) if isinstance(tensor, FunctionalTensor) else tensor


def writes(tensor: FunctionalTensor) -> int:
    """How often a functional tensor was written."""
    count: int = torch._functionalize_mutation_counter(tensor.elem)
    return count


def _lay_out(tensor: FunctionalTensor, strides: tuple[int, ...]) -> None:
    """Give a tensor that was written in place the strides that it had: the operation that gives a new one may choose others.

    Only where it had them without gaps; `masked_fill`, for one, gives a contiguous tensor.
    """
    value = inner(tensor)
    shape, others = value.shape, value.stride()
    if all(before == after or size == 1 for size, before, after in zip(shape, strides, others, strict=True)):
        return
    order = sorted(range(len(shape)), key=lambda dim: (-strides[dim], dim))
    dense = torch.empty(0, device="meta").new_empty([shape[dim] for dim in order]).stride()
    if any(strides[dim] != stride and shape[dim] != 1 for dim, stride in zip(order, dense, strict=True)):
        return
    back = [order.index(dim) for dim in range(len(shape))]
    laid = value.permute(order).clone(memory_format=torch.contiguous_format).permute(back)
    torch._functionalize_replace(tensor.elem, laid)
    torch._functionalize_commit_update(tensor.elem)
    torch._sync(tensor)  # type: ignore[attr-defined, no-untyped-call]


def _way(func: Any) -> tuple[bool, bool, bool]:
    """Whether the short way does for an operation, whether it gives views of what it reads, or writes it, and whether it writes.

    The long way is for what runs as other operations (composites), changes shapes in place, or is no operation of ATen.
    """
    if not isinstance(func, OpOverload) or func.namespace != "aten" or func in FunctionalTensor.metadata_fns:
        return False, False, False
    name = func.name()
    composite = _COMPOSITE in func.py_kernels or torch._C._dispatch_has_kernel_for_dispatch_key(name, _COMPOSITE)
    special = torch.Tag.inplace_view in func.tags or func is torch.ops.aten.lift_fresh.default or has_effects(func)
    if composite or special or not torch._C._dispatch_has_kernel(name):
        return False, False, False
    info = get_alias_info(func)
    writes_it = info.outs_write_aliases is not None
    return True, bool(info.read_only_alias_match_indexes) or writes_it, writes_it


def _unwrapped(value: Any) -> Any:
    if isinstance(value, FunctionalTensor):
        return value.elem
    if type(value) in (list, tuple):
        return [_unwrapped(item) for item in value]
    return value


def _tensors(values: Any) -> Iterator[torch.Tensor]:
    """Tensors among arguments or results, in lists too."""
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, (tuple, list)):
            yield from _tensors(value)
