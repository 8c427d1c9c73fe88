"""Writes through masks (`out[mask] = values`): traced as writes to the places where the mask holds.

The backward of a write reads the gradient at the same indices. Through a mask that is as many values as the mask holds, which
follows from values, and no value is known in a trace of a backward. Of a forward it is: there the places of the mask are computed
before the step. The kernels make places of masks as well.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch._subclasses.functional_tensor import FunctionalTensor


@contextmanager
def written_to_places() -> Iterator[None]:
    """Inside, values that require a gradient are written to places instead of through masks."""

    def assigned(tensor: torch.Tensor, key: Any, value: Any) -> None:
        if _trains(value):
            key = _places(key if isinstance(key, tuple) else (key,))
        torch.Tensor.__setitem__(tensor, key, value)

    def put(tensor: torch.Tensor, indices: Any, values: torch.Tensor, accumulate: bool = False) -> torch.Tensor:
        return torch.Tensor.index_put(tensor, _places(indices) if _trains(values) else indices, values, accumulate)

    def put_in_place(
        tensor: torch.Tensor, indices: Any, values: torch.Tensor, accumulate: bool = False
    ) -> torch.Tensor:
        return torch.Tensor.index_put_(tensor, _places(indices) if _trains(values) else indices, values, accumulate)

    methods = {"__setitem__": assigned, "index_put": put, "index_put_": put_in_place}
    for name, method in methods.items():
        setattr(FunctionalTensor, name, method)
    try:
        yield
    finally:
        for name in methods:
            delattr(FunctionalTensor, name)


def _trains(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.requires_grad and torch.is_grad_enabled()


def _places(indices: Any) -> tuple[Any, ...]:
    return tuple(place for index in indices for place in (index.nonzero().unbind(1) if _is_mask(index) else (index,)))


def _is_mask(index: Any) -> bool:
    """Whether an index is a mask; one without dimensions makes a dimension, and has no places."""
    return isinstance(index, torch.Tensor) and index.dtype in (torch.bool, torch.uint8) and index.dim() > 0
