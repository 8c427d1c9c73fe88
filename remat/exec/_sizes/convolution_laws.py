"""Laws of convolutions and batch normalization of contiguous tensors; in another memory format shape functions are asked."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from remat.exec._sizes.view_laws import Laid, is_true, new, plain_strides
from remat.exec._torch.outlined import Form


def _plain(*forms: Any) -> bool:
    """Whether all are new tensors with channels, and nothing in them is empty."""
    return all(
        isinstance(form, Form)
        and len(form.shape) >= 2
        and 0 not in form.shape
        and form.offset == 0
        and form.stride == plain_strides(form.shape)
        for form in forms
    )


def _convolution(x: Form, weight: Form, _bias: Any, *settings: Any) -> tuple[Laid, ...] | None:
    stride, padding, dilation, transposed = settings[:4]
    dims = len(x.shape) - 2
    if not _plain(x, weight) or is_true(transposed) or len(weight.shape) != len(x.shape):
        return None
    if not len(stride) == len(padding) == len(dilation) == dims:
        return None
    spans = [step * (size - 1) + 1 for step, size in zip(dilation, weight.shape[2:], strict=True)]
    moves = zip(x.shape[2:], padding, spans, stride, strict=True)
    sizes = [(size + 2 * pad - span) // step + 1 for size, pad, span, step in moves]
    return new((x.shape[0], weight.shape[0], *sizes)) if all(size > 0 for size in sizes) else None


def _convolution_backward(grad: Form, x: Form, weight: Form, _bias: Any, *settings: Any) -> tuple[Laid, ...] | None:
    transposed = settings[3]
    ranks = {len(x.shape), len(grad.shape), len(weight.shape)}
    if not _plain(grad, x, weight) or is_true(transposed) or len(ranks) > 1:
        return None
    return new(x.shape, weight.shape, (grad.shape[1],))


def _batch_norm(
    x: Form, _weight: Any, _bias: Any, _mean: Any, _variance: Any, training: Any, *_rest: Any
) -> tuple[Laid, ...] | None:
    """With the statistics of the batch; the mean and the variance that are kept are written in place."""
    return new(x.shape, (x.shape[1],), (x.shape[1],)) if _plain(x) and is_true(training) else None


def _batch_norm_backward(grad: Form, x: Form, *_rest: Any) -> tuple[Laid, ...] | None:
    same = _plain(grad, x) and grad.shape == x.shape
    return new(x.shape, (x.shape[1],), (x.shape[1],)) if same else None


CONVOLUTIONS: dict[str, Callable[..., tuple[Laid, ...] | None]] = {
    "aten.convolution.default": _convolution,
    "aten.convolution_backward.default": _convolution_backward,
    "aten._native_batch_norm_legit.default": _batch_norm,
    "aten.native_batch_norm.default": _batch_norm,
    "aten.native_batch_norm_backward.default": _batch_norm_backward,
}
"""By the operation's name."""

__all__ = ["CONVOLUTIONS"]
