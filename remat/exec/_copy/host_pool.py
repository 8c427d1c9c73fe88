"""Host buffers that are used again: bounded, and free for the next copy only after the last one has ended."""

from __future__ import annotations

import threading
from collections import deque

import torch

from remat.errors import RematError
from remat.exec._copy.device import CopyDevice, Event
from remat.ir import Lane
from remat.units import Bytes, format_bytes

GRANULE: Bytes = 512
"""Buffers are multiples of this, so that almost equal sizes share them."""


class HostPool:
    """Buffers by size, the longest unused first.

    A buffer comes back with the event after which nothing uses it; the lane that copies out waits for that event before
    it writes into the buffer again. Which buffer a copy gets depends on the order of calls alone, never on how fast
    copies are, so that a step that is repeated takes no more buffers than in its first time.

    Args:
        device: makes the buffers.
        budget: most bytes of all buffers, used or not; None: no limit.

    Attributes:
        total: bytes of all buffers [bytes].
        taken: bytes of those in use [bytes].
        peak: the most that were in use at any time [bytes].
    """

    def __init__(self, device: CopyDevice, budget: Bytes | None = None) -> None:
        self.device = device
        self.budget = budget
        self.total: Bytes = 0
        self.taken: Bytes = 0
        self.peak: Bytes = 0
        self._unused: dict[Bytes, deque[tuple[torch.Tensor, Event]]] = {}
        self._lock = threading.RLock()

    def take(self, size: Bytes) -> torch.Tensor:
        """A buffer of at least `size` bytes that the lane to the host may write into.

        Raises:
            RematError: X-HOST, where the budget is exceeded or the host has no memory; X-DISK.
        """
        size = rounded(size)
        with self._lock:
            unused = self._unused.get(size)
            if unused:
                buffer, event = unused.popleft()
                self.device.wait(Lane.TO_HOST, event)
            else:
                self._make_room(size)
                buffer = self.device.host_buffer(size)
                self.total += size
            self.taken += size
            self.peak = max(self.peak, self.taken)
            return buffer

    def give_back(self, buffer: torch.Tensor, event: Event) -> None:
        """Return a buffer; it may be written into again after the event."""
        with self._lock:
            self.taken -= buffer.numel()
            self._unused.setdefault(buffer.numel(), deque()).append((buffer, event))

    def clear(self) -> None:
        """Free the buffers that are not in use."""
        with self._lock:
            for size in list(self._unused):
                self._free_unused(size)

    def _make_room(self, size: Bytes) -> None:
        """Free unused buffers of other sizes where the budget has no room for one more."""
        if self.budget is None:
            return
        for other in sorted(self._unused, reverse=True):
            if self.total + size <= self.budget:
                return
            self._free_unused(other)
        if self.total + size > self.budget:
            what = (
                f"copies on the host need {format_bytes(self.taken + size)} ({self.taken + size} B) at once, and host_budget is "
                f"{format_bytes(self.budget)} ({self.budget} B)."
            )
            fix = "give a larger host_budget, or a larger budget; several forwards before one backward each have their copies."
            raise RematError("X-HOST", what, fix=fix)

    def _free_unused(self, size: Bytes) -> None:
        for buffer, event in self._unused.pop(size, ()):
            self.device.synchronize(event)
            self.device.free_host(buffer)
            self.total -= size


def rounded(size: Bytes) -> Bytes:
    """Bytes of the buffer that a copy of `size` bytes gets."""
    return -(-size // GRANULE) * GRANULE


__all__ = ["GRANULE", "HostPool", "rounded"]
