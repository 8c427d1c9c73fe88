"""What a captured step calls besides operations of torch: dropout drawn as eager draws it, copies in a layout; and autocast off.

The masks of dropout take one byte an element; see docs/decisions/0013-dropout-as-eager-draws-it.md.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from remat.exec._torch import torch_private


def no_autocast(device: torch.device) -> AbstractContextManager[Any]:
    """The trace already holds every cast; autocast must not add others."""
    if torch.is_autocast_enabled(device.type):
        return torch.autocast(device.type, enabled=False)
    return nullcontext()


def copy_to_layout(tensor: torch.Tensor, shape: tuple[int, ...], stride: tuple[int, ...]) -> torch.Tensor:
    """A copy of `tensor` with the strides given."""
    return torch.empty_strided(shape, stride, dtype=tensor.dtype, device=tensor.device).copy_(tensor)


def write_unseen(into: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """Write without autograd taking note, as kernels of batch norms write their running statistics."""
    with torch_private.unseen_writes(into):
        return into.copy_(value)


def drawn_mask(
    shape: tuple[int, ...], stride: tuple[int, ...], dtype: torch.dtype, device: torch.device, keep: float
) -> torch.Tensor:
    """True where an element is kept, drawn as eager's dropout draws for a tensor of that type and layout."""
    return torch.empty_strided(shape, stride, dtype=dtype, device=device).bernoulli_(keep).to(torch.bool)


def noise_of(mask: torch.Tensor, dtype: torch.dtype, keep: float) -> torch.Tensor:
    """What eager's dropout multiplies with."""
    return mask.to(dtype).div_(keep)


def drawn_noise(
    shape: tuple[int, ...], stride: tuple[int, ...], dtype: torch.dtype, device: torch.device, keep: float
) -> torch.Tensor:
    """The noise at once, for a plan that needs the mask for nothing else; the same draws, the same bits."""
    return torch.empty_strided(shape, stride, dtype=dtype, device=device).bernoulli_(keep).div_(keep)


def drawn(
    shape: tuple[int, ...], stride: tuple[int, ...], dtype: torch.dtype, device: torch.device, keep: float
) -> torch.Tensor:
    """Ones with the probability `keep`, else zeros, drawn in place: a draw out of place fills other layouts in another order."""
    return torch.empty_strided(shape, stride, dtype=dtype, device=device).bernoulli_(keep)
