"""Laws of what kernels return: shapes that follow from those of the arguments, for the operations that most steps consist of.

torch's shape functions of these are written in Python and take a millisecond each, more than all else of an outline. A law
speaks of new, contiguous results alone: of pointwise operations and softmax on contiguous tensors of one shape, of products, of
layer norm and of the negative log likelihood. It counts for a call only where it has told what was recorded at every captured
size (`Shapes.of`); types and devices are those of the captures, since they depend on types and devices alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from remat.exec._torch.outlined import Form
from remat.exec._torch.torch_private import OpOverload

Shape = tuple[int, ...]
_PLAIN = (None, torch.contiguous_format, torch.preserve_format)


def result_shapes(target: OpOverload, given: Any, named: dict[str, Any]) -> tuple[Shape, ...] | None:
    """The shapes of the results of a call, which are new and contiguous; None: no law speaks of it.

    Args:
        target: the operation.
        given: its arguments, tensors as forms.
        named: likewise, by keyword.
    """
    law = _LAWS.get(str(target))
    if law is None and torch.Tag.pointwise in target.tags and not target._schema.is_mutable:
        law = _pointwise
    if law is None or named.keys() - {"memory_format"} or named.get("memory_format") not in _PLAIN:
        return None
    return law(*given)


def agrees(shapes: tuple[Shape, ...], results: tuple[Form | str | None, ...]) -> bool:
    """Whether results are new contiguous tensors of these shapes, but for those that are not asked for."""
    return len(shapes) == len(results) and all(
        result is None or (isinstance(result, Form) and result.shape == shape and _contiguous(result))
        for shape, result in zip(shapes, results, strict=True)
    )


def _contiguous(form: Form) -> bool:
    """Whether strides are those of a new tensor, also where a size is 1, and it begins at the beginning of its memory."""
    step = 1
    for size, stride in zip(reversed(form.shape), reversed(form.stride), strict=True):
        if stride != step:
            return False
        step *= max(1, size)
    return form.offset == 0


def _alike(*forms: Any) -> tuple[Shape, ...] | None:
    """One shape, where all are contiguous tensors of it."""
    first = forms[0]
    same = all(isinstance(form, Form) and form.shape == first.shape and _contiguous(form) for form in forms)
    return (first.shape,) if same else None


def _pointwise(*given: Any) -> tuple[Shape, ...] | None:
    if any(isinstance(argument, (tuple, list)) for argument in given):
        return None
    forms = [argument for argument in given if isinstance(argument, Form)]
    large = [form for form in forms if form.shape]
    return _alike(*large) if large else None


def _softmax(x: Any, _dim: Any, _converted: Any) -> tuple[Shape, ...] | None:
    return _alike(x)


def _softmax_backward(grad: Any, output: Any, _dim: Any, _dtype: Any) -> tuple[Shape, ...] | None:
    return _alike(grad, output)


def _mm(left: Form, right: Form) -> tuple[Shape, ...] | None:
    fits = len(left.shape) == len(right.shape) == 2 and left.shape[1] == right.shape[0]
    return ((left.shape[0], right.shape[1]),) if fits else None


def _addmm(added: Form, left: Form, right: Form) -> tuple[Shape, ...] | None:
    product = _mm(left, right)
    return product if product is not None and added.shape in (product[0], product[0][1:]) else None


def _bmm(left: Form, right: Form) -> tuple[Shape, ...] | None:
    if not len(left.shape) == len(right.shape) == 3:
        return None
    fits = left.shape[0] == right.shape[0] and left.shape[2] == right.shape[1]
    return ((*left.shape[:2], right.shape[2]),) if fits else None


def _layer_norm(x: Form, normalized: Any, *_rest: Any) -> tuple[Shape, ...] | None:
    lead, inner = x.shape[: len(x.shape) - len(normalized)], tuple(normalized)
    if x.shape != (*lead, *inner) or not _contiguous(x):
        return None
    statistics = (*lead, *(1 for _ in inner))
    return x.shape, statistics, statistics


def _layer_norm_backward(grad: Form, x: Form, normalized: Any, *_rest: Any) -> tuple[Shape, ...] | None:
    inner = tuple(normalized)
    if _alike(grad, x) is None or x.shape[len(x.shape) - len(inner) :] != inner:
        return None
    return x.shape, inner, inner


def _nll_loss(x: Form, target: Form, _weight: Any, reduction: Any, _ignored: Any) -> tuple[Shape, ...] | None:
    if len(x.shape) != 2 or target.shape != x.shape[:1] or reduction not in (1, 2):
        return None
    return (), ()


def _nll_loss_backward(
    _grad: Form, x: Form, target: Form, _weight: Any, reduction: Any, *_rest: Any
) -> tuple[Shape, ...] | None:
    return (x.shape,) if _nll_loss(x, target, None, reduction, None) is not None else None


_LAWS: dict[str, Callable[..., tuple[Shape, ...] | None]] = {
    "aten.mm.default": _mm,
    "aten.addmm.default": _addmm,
    "aten.bmm.default": _bmm,
    "aten._softmax.default": _softmax,
    "aten._log_softmax.default": _softmax,
    "aten._softmax_backward_data.default": _softmax_backward,
    "aten._log_softmax_backward_data.default": _softmax_backward,
    "aten.native_layer_norm.default": _layer_norm,
    "aten.native_layer_norm_backward.default": _layer_norm_backward,
    "aten.nll_loss_forward.default": _nll_loss,
    "aten.nll_loss_backward.default": _nll_loss_backward,
}

__all__ = ["agrees", "result_shapes"]
