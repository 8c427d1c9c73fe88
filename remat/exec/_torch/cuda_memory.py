"""What a call holds on a CUDA device, by the statistics of torch's allocator: what was asked for, and the blocks given for it.

A cached block that is larger than what was asked for by no more than a mebibyte is given whole, unless segments are expandable
(`PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True`). So blocks say what a step holds in the end, and what was asked for, which
repeats to the byte, says what an operation takes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch
from attrs import frozen

from remat.units import Bytes

T = TypeVar("T")
GRANULE: Bytes = 512
"""Blocks are multiples of this."""


@frozen(kw_only=True)
class CudaUse:
    """Memory above what was held before a call [bytes].

    Attributes:
        peak, left: of blocks: the most during the call, and after it, with what it returned.
        asked_peak, asked_left: of what was asked for, to whole small blocks, where the allocator counts it, else of blocks.
    """

    peak: Bytes
    left: Bytes
    asked_peak: Bytes
    asked_left: Bytes

    @property
    def workspace(self) -> Bytes:
        """What the call took beyond what it left, in whole blocks."""
        return rounded(max(0, self.asked_peak - max(0, self.asked_left)))


def rounded(size: Bytes) -> Bytes:
    """Bytes of the block for so many."""
    return -(-size // GRANULE) * GRANULE


def charged(size: Bytes, device: torch.device) -> Bytes:
    """What the allocator of a device takes for a tensor of `size` bytes."""
    return rounded(size) if device.type == "cuda" else size


def used_by(call: Callable[[], T], device: torch.device) -> tuple[T, CudaUse]:
    """What a call returns, and what it held; blocks are counted on the host, so nothing waits for the device.

    The peaks of the device's statistics begin anew. Garbage that is collected meanwhile counts as freed by the call.
    """
    torch.cuda.reset_peak_memory_stats(device)
    before, asked_before = torch.cuda.memory_allocated(device), _asked(device, "current")
    result = call()
    peak, left = torch.cuda.max_memory_allocated(device) - before, torch.cuda.memory_allocated(device) - before
    asked_peak, asked_left = (_asked(device, what) - asked_before for what in ("peak", "current"))
    return result, CudaUse(
        peak=max(0, peak), left=left, asked_peak=max(0, min(peak, asked_peak)), asked_left=asked_left
    )


def _asked(device: torch.device, what: str) -> Bytes:
    """Small blocks, which are never larger than what was asked for, and what was asked for in large ones; else all blocks."""
    statistics = torch.cuda.memory_stats(device)
    small = statistics.get(f"allocated_bytes.small_pool.{what}", 0)
    large = statistics.get(f"requested_bytes.large_pool.{what}", 0)
    size: Bytes = small + large or statistics.get(f"allocated_bytes.all.{what}", 0)
    return size


__all__ = ["GRANULE", "CudaUse", "charged", "rounded", "used_by"]
