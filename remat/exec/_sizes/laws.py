"""Laws of what kernels return: forms that follow from those of the arguments, for the operations that most steps consist of.

torch's shape functions take a tenth of a millisecond to a whole one each, more than all else of an outline. A law counts for a
call only where it has told what was recorded at every captured size (`Shapes.of`), and speaks only of arguments of which it
knows what they give; types and devices are those of the captures, since they depend on types and devices alone. Views have laws
of their own (`view_laws.py`), and so have convolutions (`convolution_laws.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from remat.exec._sizes.convolution_laws import CONVOLUTIONS
from remat.exec._sizes.view_laws import VIEWS, Laid, Shape, is_true, new, plain_strides
from remat.exec._torch.outlined import Form
from remat.exec._torch.torch_private import OpOverload

_COPIES = ("aten.clone.default", "aten.empty_like.default")
_ABOUT = {"memory_format", "dtype", "layout", "device", "pin_memory"}
"""Keywords that decide nothing but type, device and layout; of the last only plain ones have laws."""
_RESIZES = (torch.ops.aten.resize_as_.default, torch.ops.aten.resize_as_sparse_.default)
"""They change shapes in place without saying so by a tag."""
ITSELF = ((), (), -1)
"""The result is the first argument."""


def laid_out(target: OpOverload, given: Any, named: dict[str, Any]) -> tuple[Laid, ...] | None:
    """Shape, strides and offset of each result of a call; None: no law speaks of it.

    Args:
        target: the operation.
        given: its arguments, tensors as forms.
        named: likewise, by keyword.
    """
    law, layout = _law_of(target), named.get("memory_format")
    if layout is torch.contiguous_format and str(target) in _COPIES:
        return new(given[0].shape)
    if layout not in (None, torch.preserve_format) or named.get("layout") not in (None, torch.strided):
        return None
    if law is None or named.keys() - _ABOUT:
        return None
    try:
        return law(*given)
    except (TypeError, IndexError, ZeroDivisionError):  # arguments that the operation refuses, or the law does not know
        return None


def agrees(laid: tuple[Laid, ...], results: tuple[Form | str | None, ...], first: Any) -> bool:
    """Whether results are laid out so, but for those that are not asked for.

    Args:
        laid: what a law tells.
        results: as expected.
        first: the name of the first argument.
    """
    if len(laid) != len(results):
        return False
    for layout, result in zip(laid, results, strict=True):
        if layout is ITSELF:
            same = type(result) is str and result == first
        else:
            same = result is None or (
                isinstance(result, Form) and (result.shape, result.stride, result.offset) == layout
            )
        if not same:
            return False
    return True


def _law_of(target: OpOverload) -> Callable[..., tuple[Laid, ...] | None] | None:
    if target not in _LAWS:
        law = _BY_NAME.get(str(target))
        if law is None and torch.Tag.pointwise in target.tags and not target._schema.is_mutable:
            law = _pointwise
        elif law is None and _returns_what_it_writes(target):
            law = _in_place
        _LAWS[target] = law
    return _LAWS[target]


def _returns_what_it_writes(target: OpOverload) -> bool:
    """Whether an operation writes its first argument in place and returns it in its old shape (torch 2.11 has no tag for it)."""
    arguments, returns = target._schema.arguments, target._schema.returns
    if len(returns) != 1 or not arguments or torch.Tag.inplace_view in target.tags or target in _RESIZES:
        return False
    read, returned = arguments[0].alias_info, returns[0].alias_info
    return read is not None and returned is not None and read.is_write and read.before_set == returned.before_set


def _contiguous(form: Any) -> bool:
    """Whether strides are those of a new tensor, also where a size is 1, and it begins at the beginning of its memory."""
    return isinstance(form, Form) and form.offset == 0 and form.stride == plain_strides(form.shape)


def _dense(form: Form) -> bool:
    """Whether its elements fill a piece of memory, each once, whatever their order."""
    step = 1
    for stride, size in sorted(zip(form.stride, form.shape, strict=True)):
        if size == 1:
            return False  # its stride says nothing, so that nothing is told by it
        if stride != step:
            return False
        step *= size
    return step > 0


def _alike(*forms: Any) -> tuple[Laid, ...] | None:
    """New and contiguous, where all are contiguous tensors of one shape."""
    first = forms[0]
    return new(first.shape) if all(_contiguous(form) and form.shape == first.shape for form in forms) else None


def _pointwise(*given: Any) -> tuple[Laid, ...] | None:
    if any(
        isinstance(argument, (tuple, list)) and any(isinstance(part, Form) for part in argument) for argument in given
    ):
        return None
    large = [argument for argument in given if isinstance(argument, Form) and argument.shape]
    if not large:
        return None
    first = large[0]
    if all(_contiguous(form) for form in large):
        shape = _broadcast([form.shape for form in large])
        return None if shape is None else new(shape)
    kinds = {argument.dtype for argument in given if isinstance(argument, Form)}
    same = all(form.shape == first.shape and form.stride == first.stride for form in large)
    if same and len(kinds) == 1 and first.dtype.is_floating_point and _dense(first):
        return ((first.shape, first.stride, 0),)  # some kernels convert to another type first, and then lay out anew
    return None


def _broadcast(shapes: list[Shape]) -> Shape | None:
    """The shape of all together; None: they do not fit, or nothing is in them."""
    rank = max(map(len, shapes))
    padded = [(1,) * (rank - len(shape)) + shape for shape in shapes]
    sizes = [{size for size in column if size != 1} for column in zip(*padded, strict=True)]
    if any(len(column) > 1 or 0 in column for column in sizes):
        return None
    return tuple(column.pop() if column else 1 for column in sizes)


def _in_place(x: Form, *others: Any) -> tuple[Laid, ...] | None:
    """Where all others are numbers or fit the first as they are."""
    forms = [other for other in others if isinstance(other, Form)]
    return (ITSELF,) if all(_broadcast([x.shape, form.shape]) == x.shape for form in forms) else None


def _softmax(x: Any, _dim: Any, _converted: Any = None) -> tuple[Laid, ...] | None:
    return _alike(x)


def _softmax_backward(grad: Any, output: Any, _dim: Any, _dtype: Any) -> tuple[Laid, ...] | None:
    return _alike(grad, output)


def _mm(left: Form, right: Form) -> tuple[Laid, ...] | None:
    fits = len(left.shape) == len(right.shape) == 2 and left.shape[1] == right.shape[0]
    return new((left.shape[0], right.shape[1])) if fits else None


def _addmm(added: Form, left: Form, right: Form) -> tuple[Laid, ...] | None:
    product = _mm(left, right)
    return product if product is not None and added.shape in (product[0][0], product[0][0][1:]) else None


def _bmm(left: Form, right: Form) -> tuple[Laid, ...] | None:
    if not len(left.shape) == len(right.shape) == 3:
        return None
    fits = left.shape[0] == right.shape[0] and left.shape[2] == right.shape[1]
    return new((*left.shape[:2], right.shape[2])) if fits else None


def _layer_norm(x: Form, normalized: Any, *_rest: Any) -> tuple[Laid, ...] | None:
    lead, inner = x.shape[: len(x.shape) - len(normalized)], tuple(normalized)
    if x.shape != (*lead, *inner) or not _contiguous(x):
        return None
    statistics = (*lead, *(1 for _ in inner))
    return new(x.shape, statistics, statistics)


def _layer_norm_backward(grad: Form, x: Form, normalized: Any, *_rest: Any) -> tuple[Laid, ...] | None:
    inner = tuple(normalized)
    if _alike(grad, x) is None or x.shape[len(x.shape) - len(inner) :] != inner:
        return None
    return new(x.shape, inner, inner)


def _nll_loss(x: Form, target: Form, _weight: Any, reduction: Any, _ignored: Any) -> tuple[Laid, ...] | None:
    if len(x.shape) != 2 or target.shape != x.shape[:1] or reduction not in (1, 2):
        return None
    return new((), ())


def _nll_loss_backward(
    _grad: Form, x: Form, target: Form, _weight: Any, reduction: Any, *_rest: Any
) -> tuple[Laid, ...] | None:
    return new(x.shape) if _nll_loss(x, target, None, reduction, None) is not None else None


def _reduced(x: Form, dims: Any, keepdim: Any = False) -> tuple[Laid, ...] | None:
    """A sum or mean over some dimensions of a contiguous tensor."""
    if not dims or not _contiguous(x):
        return None
    over = {dim % len(x.shape) for dim in dims}
    if is_true(keepdim):
        return new(tuple(1 if at in over else size for at, size in enumerate(x.shape)))
    return new(tuple(size for at, size in enumerate(x.shape) if at not in over))


def _embedding(weight: Form, indices: Form, *_rest: Any) -> tuple[Laid, ...] | None:
    return new((*indices.shape, weight.shape[1])) if len(weight.shape) == 2 and _contiguous(indices) else None


def _embedding_backward(grad: Form, indices: Form, rows: Any, *_rest: Any) -> tuple[Laid, ...] | None:
    if type(rows) is not int or grad.shape[:-1] != indices.shape:
        return None
    return new((rows, grad.shape[-1]))


def _filled(x: Form, _value: Any = None) -> tuple[Laid, ...] | None:
    """A new tensor of the form of another one."""
    return _alike(x)


def _of_size(size: Any, _value: Any = None) -> tuple[Laid, ...] | None:
    sizes = isinstance(size, (tuple, list)) and all(type(part) is int and part >= 0 for part in size)
    return new(tuple(size)) if sizes else None


def _new_of_size(_x: Form, size: Any, _value: Any = None) -> tuple[Laid, ...] | None:
    return _of_size(size)


def _arange(*bounds: Any) -> tuple[Laid, ...] | None:
    first, end = (0, *bounds) if len(bounds) == 1 else bounds
    return new((end - first,)) if type(first) is type(end) is int and end >= first else None


_BY_NAME: dict[str, Callable[..., tuple[Laid, ...] | None]] = {
    **VIEWS,
    **CONVOLUTIONS,
    "aten.mm.default": _mm,
    "aten.addmm.default": _addmm,
    "aten.bmm.default": _bmm,
    "aten._softmax.default": _softmax,
    "aten._safe_softmax.default": _softmax,
    "aten._log_softmax.default": _softmax,
    "aten._softmax_backward_data.default": _softmax_backward,
    "aten._log_softmax_backward_data.default": _softmax_backward,
    "aten.native_layer_norm.default": _layer_norm,
    "aten.native_layer_norm_backward.default": _layer_norm_backward,
    "aten.nll_loss_forward.default": _nll_loss,
    "aten.nll_loss_backward.default": _nll_loss_backward,
    "aten.sum.dim_IntList": _reduced,
    "aten.mean.dim": _reduced,
    "aten.embedding.default": _embedding,
    "aten.embedding_dense_backward.default": _embedding_backward,
    "aten._to_copy.default": _filled,
    "aten.empty_like.default": _filled,
    "aten.full_like.default": _filled,
    "aten.ones_like.default": _filled,
    "aten.zeros_like.default": _filled,
    "aten.full.default": _of_size,
    "aten.ones.default": _of_size,
    "aten.zeros.default": _of_size,
    "aten.new_ones.default": _new_of_size,
    "aten.new_zeros.default": _new_of_size,
    "aten.arange.default": _arange,
    "aten.arange.start": _arange,
}
_LAWS: dict[OpOverload, Callable[..., tuple[Laid, ...] | None] | None] = {}
"""By operation, once it was looked up."""

__all__ = ["agrees", "laid_out"]
