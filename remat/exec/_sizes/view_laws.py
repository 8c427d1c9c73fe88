"""Laws of views: shape, strides and offset of a view follow from those of what it is a view of."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from remat.exec._torch.outlined import Form

Shape = tuple[int, ...]
Laid = tuple[Shape, Shape, int]
"""Shape, strides and offset of a tensor [elements]."""


@lru_cache(4096)
def plain_strides(shape: Shape) -> Shape:
    """The strides of a new tensor."""
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(1, size)
    return tuple(reversed(strides))


def new(*shapes: Shape) -> tuple[Laid, ...]:
    """New contiguous tensors."""
    return tuple((shape, plain_strides(shape), 0) for shape in shapes)


def is_true(flag: Any) -> bool:
    """Whether a flag is set, as it is given or as calls are written down."""
    return flag is True or flag == ("bool", "True")


def _detach(x: Form) -> tuple[Laid, ...]:
    return ((x.shape, x.stride, x.offset),)


def _permute(x: Form, dims: Any) -> tuple[Laid, ...]:
    return ((tuple(x.shape[dim] for dim in dims), tuple(x.stride[dim] for dim in dims), x.offset),)


def _transpose(x: Form, first: int, second: int) -> tuple[Laid, ...]:
    dims = list(range(len(x.shape)))
    if dims:
        dims[first], dims[second] = dims[second], dims[first]
    return _permute(x, dims)


def _t(x: Form) -> tuple[Laid, ...] | None:
    return _permute(x, range(len(x.shape) - 1, -1, -1)) if len(x.shape) <= 2 else None


def _unsqueeze(x: Form, dim: int) -> tuple[Laid, ...]:
    at = dim % (len(x.shape) + 1)
    step = x.shape[at] * x.stride[at] if at < len(x.shape) else 1
    return ((*(x.shape[:at] + (1,) + x.shape[at:], x.stride[:at] + (step,) + x.stride[at:]), x.offset),)


def _squeeze(x: Form, dim: int) -> tuple[Laid, ...] | None:
    if not x.shape:
        return None
    at = dim % len(x.shape)
    if x.shape[at] != 1:
        return _detach(x)
    return ((x.shape[:at] + x.shape[at + 1 :], x.stride[:at] + x.stride[at + 1 :], x.offset),)


def _expand(x: Form, sizes: Any) -> tuple[Laid, ...] | None:
    added = len(sizes) - len(x.shape)
    if added < 0 or not x.shape:
        return None
    shape, strides, before = [], [], (0, 0)
    for at in range(len(sizes) - 1, -1, -1):
        inside = at >= added
        size = x.shape[at - added] if inside else 1
        stride = x.stride[at - added] if inside else before[0] * before[1]
        wanted = size if sizes[at] == -1 else sizes[at]
        if wanted != size:
            if size != 1:
                return None
            stride = 0
        shape.append(wanted)
        strides.append(stride)
        before = (wanted, stride)
    return ((tuple(reversed(shape)), tuple(reversed(strides)), x.offset),)


def _view(x: Form, sizes: Any) -> tuple[Laid, ...] | None:
    """Of a tensor whose elements lie in their order; what others give depends on which dimensions can be joined."""
    count, stated = math.prod(x.shape), math.prod(size for size in sizes if size != -1)
    if x.stride != plain_strides(x.shape) or not count or not stated or count % stated:
        return None
    shape = tuple(count // stated if size == -1 else size for size in sizes)
    if math.prod(shape) != count or list(sizes).count(-1) > 1:
        return None
    return ((shape, plain_strides(shape), x.offset),)


def _slice(x: Form, dim: int = 0, start: Any = None, end: Any = None, step: int = 1) -> tuple[Laid, ...] | None:
    if not x.shape or step < 1:
        return None
    at = dim % len(x.shape)
    first, last, _ = slice(start, end).indices(x.shape[at])
    size = max(0, -(-(last - first) // step))
    shape, strides = list(x.shape), list(x.stride)
    shape[at], strides[at] = size, x.stride[at] * step
    return ((tuple(shape), tuple(strides), x.offset + first * x.stride[at]),) if size else None


def _select(x: Form, dim: int, index: int) -> tuple[Laid, ...] | None:
    if not x.shape:
        return None
    at = dim % len(x.shape)
    if not -x.shape[at] <= index < x.shape[at]:
        return None
    offset = x.offset + index % x.shape[at] * x.stride[at]
    return ((x.shape[:at] + x.shape[at + 1 :], x.stride[:at] + x.stride[at + 1 :], offset),)


VIEWS: dict[str, Callable[..., tuple[Laid, ...] | None]] = {
    "aten.detach.default": _detach,
    "aten.alias.default": _detach,
    "aten.permute.default": _permute,
    "aten.transpose.int": _transpose,
    "aten.t.default": _t,
    "aten.unsqueeze.default": _unsqueeze,
    "aten.squeeze.dim": _squeeze,
    "aten.expand.default": _expand,
    "aten.view.default": _view,
    "aten._unsafe_view.default": _view,
    "aten.slice.Tensor": _slice,
    "aten.select.int": _select,
}
"""By operation; results are views of the first argument."""

__all__ = ["VIEWS", "Laid", "Shape", "is_true", "new", "plain_strides"]
