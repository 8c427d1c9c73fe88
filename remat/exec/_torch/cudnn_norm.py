"""Batch normalisation by cuDNN as an operation that says what it writes: eager's kernel, with the new statistics as results.

The schema of `aten::cudnn_batch_norm` hides that it writes the running statistics, and torch traces another kernel in its place,
whose bits are others. Here statistics come in and new ones go out, and a write of the module's buffers stands behind.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch._prims_common import suggest_memory_format

_SCHEMA = (
    "cudnn_batch_norm(Tensor input, Tensor weight, Tensor? bias, Tensor? running_mean, Tensor? running_var, bool training, "
    "float momentum, float eps) -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)"
)
"""Output, mean and inverse deviation of the batch, what the backward of cuDNN needs besides, new running mean and variance."""

_library = torch.library.Library("remat", "FRAGMENT")
_library.define(_SCHEMA)
_aten: Any = torch.ops.aten


def _run(
    x: Tensor, weight: Tensor, bias: Tensor | None, mean: Tensor | None, var: Tensor | None, *how: Any
) -> tuple[Tensor, ...]:
    training = how[0]
    if not training or mean is None or var is None:
        results = _aten.cudnn_batch_norm.default(x, weight, bias, mean, var, *how)
        return (*results, *_none(x))
    mean, var = mean.clone(), var.clone()
    return (*_aten.cudnn_batch_norm.default(x, weight, bias, mean, var, *how), mean, var)


_library.impl("cudnn_batch_norm", _run, "CUDA")


def _shapes(
    x: Tensor, weight: Tensor, bias: Tensor | None, mean: Tensor | None, var: Tensor | None, *how: Any
) -> tuple[Tensor, ...]:
    training = how[0]
    batch = [weight.new_empty(x.shape[1] if training else 0) for _ in range(2)]
    native: Any = torch._C
    size = native._get_cudnn_batch_norm_reserve_space_size(x, training) if training and x.device.type == "cuda" else 0
    reserve = torch.empty(size, dtype=torch.uint8, device=x.device)
    kept = mean is not None and var is not None and training
    new = (torch.empty_like(mean), torch.empty_like(var)) if kept else _none(x)  # type: ignore[arg-type]
    return (torch.empty_like(x), *batch, reserve, *new)


torch.library.register_fake("remat::cudnn_batch_norm", _shapes, lib=_library)


def _none(x: Tensor) -> tuple[Tensor, Tensor]:
    return x.new_empty(0), x.new_empty(0)


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    x, weight, _, mean, var, ctx.training, _, ctx.eps = inputs
    _, batch_mean, batch_deviation, reserve, *_ = output
    ctx.mark_non_differentiable(*output[1:])
    ctx.set_materialize_grads(False)
    running = (None, None) if ctx.training else (mean, var)  # in training the kernel takes those of the batch
    ctx.save_for_backward(x, weight, batch_mean, batch_deviation, reserve, *running)


def _backward(ctx: Any, grad: Tensor | None, *_none_of_these: Any) -> tuple[Tensor | None, ...]:
    if grad is None:
        return (None,) * 8
    x, weight, batch_mean, batch_deviation, reserve, mean, var = ctx.saved_tensors
    if ctx.training:
        grad = grad.contiguous(memory_format=suggest_memory_format(x))
        grads = _aten.cudnn_batch_norm_backward.default(
            x, grad, weight, None, None, batch_mean, batch_deviation, ctx.eps, reserve
        )
    else:
        wanted = list(ctx.needs_input_grad[:3])
        grads = _aten.native_batch_norm_backward.default(
            grad, x, weight, mean, var, batch_mean, batch_deviation, False, ctx.eps, wanted
        )
    return (*grads, *(None,) * 5)


torch.library.register_autograd("remat::cudnn_batch_norm", _backward, setup_context=_save, lib=_library)


def _traced(
    x: Tensor, weight: Tensor, bias: Tensor | None, mean: Tensor | None, var: Tensor | None, *how: Any
) -> tuple[Tensor, ...]:
    *results, new_mean, new_var = torch.ops.remat.cudnn_batch_norm(x, weight, bias, mean, var, *how)
    if how[0] and mean is not None and var is not None:
        mean.copy_(new_mean)
        var.copy_(new_var)
    return tuple(results)


@contextmanager
def traced_as_it_is() -> Iterator[None]:
    """In the block traces take down this operation where eager calls cuDNN."""
    overload, key = _aten.cudnn_batch_norm.default, torch._C.DispatchKey.Autograd
    before = overload.py_kernels[key]
    overload.py_kernels[key] = _traced
    overload._dispatch_cache.clear()
    try:
        yield
    finally:
        overload.py_kernels[key] = before
        overload._dispatch_cache.clear()


__all__ = ["traced_as_it_is"]
