"""Shapes of the results of kernels whose own shape functions refuse what the kernels do."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch

_LONGEST: ContextVar[int] = ContextVar("longest target")


@contextmanager
def longest_target(length: int) -> Iterator[None]:
    """Give CTC losses that are traced inside the length of the longest target, which sizes one of their results."""
    token = _LONGEST.set(length)
    try:
        yield
    finally:
        _LONGEST.reset(token)


def results_of(
    func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> torch.Tensor | tuple[torch.Tensor, ...] | None:
    """What a kernel returns, as tensors (inside a fake mode: without memory), or None: torch's own shape function knows."""
    function = _FUNCTIONS.get(func)
    return None if function is None else function(*args, **kwargs)


def _ctc_loss(
    log_probs: torch.Tensor,
    targets: Any,
    input_lengths: Any,
    target_lengths: torch.Tensor,
    *_settings: Any,
    **_kwargs: Any,
) -> tuple[torch.Tensor, torch.Tensor] | None:
    """Losses (batch), and forward variables (batch, time, 2 * longest target + 1); torch leaves their size open."""
    longest = _LONGEST.get(None)
    if longest is None:
        return None
    time, batch = (log_probs.shape[0], log_probs.shape[1]) if log_probs.dim() == 3 else (log_probs.shape[0], 1)
    losses = log_probs.new_empty((batch,) if log_probs.dim() == 3 else ())
    return losses, log_probs.new_empty((batch, time, 2 * longest + 1))


def _grouped_mm(
    left: torch.Tensor, right: torch.Tensor, offs: torch.Tensor | None = None, bias: Any = None, out_dtype: Any = None
) -> torch.Tensor | None:
    """Products of groups of rows or of matrices; torch's shape function takes bfloat16 alone, the CPU's kernel others too."""
    if left.device.type != "cpu" or left.dtype is torch.bfloat16:
        return None
    batch: tuple[int, ...] = (left.shape[0],) if left.dim() == 3 and right.dim() == 3 else ()
    if left.dim() == 2 and right.dim() == 2 and offs is not None:
        batch = (offs.shape[0],)
    return left.new_empty((*batch, left.shape[-2], right.shape[-1]), dtype=out_dtype or left.dtype)


_FUNCTIONS: dict[Any, Callable[..., Any]] = {
    torch.ops.aten._ctc_loss.Tensor: _ctc_loss,
    torch.ops.aten._grouped_mm.default: _grouped_mm,
}
