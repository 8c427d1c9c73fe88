"""Values that a forward computes from nothing but constants, known while it is traced.

Under fake tensors no value is known, so that `if mask.all():` stops the trace, even where `mask` comes from `torch.arange` and is
the same in every call of these shapes. Here small tensors of integers and flags that depend on shapes and constants alone are
computed alongside, and answer `.item()`, `bool()` and `int()`. What depends on an input, a parameter, a buffer or random
numbers has no shadow, and stops the trace as before: a plan never holds a branch that another call could take otherwise.
"""

from __future__ import annotations

from typing import Any

import torch

from remat.exec import torch_private
from remat.exec.torch_private import DispatchMode, OpOverload

LARGEST = 1 << 20
"""Elements of the largest tensor that is computed alongside."""

_BY_SHAPE = ("zeros_like", "ones_like", "full_like", "new_zeros", "new_ones", "new_full")
"""Operations that read of their first argument its shape and type only."""


class Shadows(DispatchMode):
    """While entered, sees every operation below autograd and keeps what is known beside its fake results."""

    def __init__(self) -> None:
        super().__init__()
        # the fake tensor is held, so that no other gets its id
        self.known: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the operation as ever; answer for a value if it is known, and remember it if it can be."""
        kwargs = kwargs or {}
        if str(func) == "aten._local_scalar_dense.default" and id(args[0]) in self.known:
            with torch_private.no_modes():
                return self.known[id(args[0])][1].item()
        result = func(*args, **kwargs)
        if isinstance(func, OpOverload):
            self.follow(func, args, kwargs, result)
        return result

    def follow(self, func: OpOverload, args: Any, kwargs: dict[str, Any], result: Any) -> None:
        """Compute the result alongside where all that it depends on is known; else forget what it may overwrite, now or later."""
        leaves, spec = torch_private.flatten((args, kwargs))
        tensors = _tensors(leaves)
        outputs = _tensors(torch_private.flatten(result)[0])
        by_shape = func._schema.name.removeprefix("aten::") in _BY_SHAPE
        literal = str(func) == "aten.lift_fresh.default" and type(tensors[0]) is torch.Tensor
        known = by_shape or literal or all(id(one) in self.known for one in tensors)
        if known and outputs and _repeatable(func) and all(map(_small, outputs)):
            with torch_private.no_modes():
                real_args, real_kwargs = torch_private.unflatten([self.real(leaf) for leaf in leaves], spec)
                values = _tensors(torch_private.flatten(func(*real_args, **real_kwargs))[0])
            self.known |= {id(fake): (fake, value) for fake, value in zip(outputs, values, strict=True)}
        elif any(id(one) in self.known for one in tensors) and _may_write(func):
            self.known.clear()

    def real(self, leaf: Any) -> Any:
        """An argument of the computation alongside, on the CPU; a tensor that is not known lends its shape, or is a literal."""
        if isinstance(leaf, torch.device):
            return torch.device("cpu")
        if not isinstance(leaf, torch.Tensor):
            return leaf
        if id(leaf) in self.known:
            return self.known[id(leaf)][1]
        return leaf.clone() if type(leaf) is torch.Tensor else torch.empty(leaf.shape, dtype=leaf.dtype)


def _tensors(leaves: list[Any]) -> list[torch.Tensor]:
    return [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]


def _may_write(func: OpOverload) -> bool:
    """Whether an operation writes what it is given, or returns a view of it that others may write."""
    return func._schema.is_mutable or torch_private.aliases_an_input(func)


def _small(tensor: torch.Tensor) -> bool:
    return not tensor.is_floating_point() and not tensor.is_complex() and tensor.numel() <= LARGEST


def _repeatable(func: OpOverload) -> bool:
    """Whether an operation gives the same result every time: it draws no random numbers, and sets all that it returns."""
    return torch.Tag.nondeterministic_seeded not in func.tags and "empty" not in func._schema.name
