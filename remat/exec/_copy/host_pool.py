"""Host buffers that are used again: bounded, and free for the next copy only after the last one has ended."""

from __future__ import annotations

import os
import threading
import weakref
from collections import deque

import torch
from attrs import frozen

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
    copies are, so that a step that is repeated takes no more buffers than in its first time. A process that is forked
    begins with none: those of its parent are memory that both would write into.

    Args:
        device: makes the buffers.
        budget: most bytes of all buffers, used or not; None: what a plan needs or what was in use at once, if that is more.

    Attributes:
        need: the most that a plan takes from an empty pool [bytes].
        peak: the most that were in use at any time [bytes].
    """

    def __init__(self, device: CopyDevice, budget: Bytes | None = None) -> None:
        self.device = device
        self.budget = budget
        self.need: Bytes = 0
        self._begin()
        _pools.add(self)

    def _begin(self) -> None:
        self.peak: Bytes = 0
        self._unused: dict[Bytes, deque[tuple[torch.Tensor, Event]]] = {}
        # by id and without holding them: what an interrupt loses on its way is no longer in use
        self._in_use: weakref.WeakValueDictionary[int, torch.Tensor | _Room] = weakref.WeakValueDictionary()
        self._lock = threading.RLock()

    @property
    def taken(self) -> Bytes:
        """Bytes of the buffers in use."""
        return sum(buffer.numel() for buffer in list(self._in_use.values()))

    @property
    def total(self) -> Bytes:
        """Bytes of all buffers."""
        return self.taken + sum(size * len(buffers) for size, buffers in self._unused.items())

    def expect(self, need: Bytes) -> None:
        """Note what a plan takes from an empty pool."""
        with self._lock:
            self.need = max(self.need, need)

    def take(self, size: Bytes) -> tuple[torch.Tensor, Event]:
        """A buffer of at least `size` bytes that the lane to the host may write into, and the event it waits for; None: none.

        Raises:
            RematError: X-HOST, where the budget is exceeded or the host has no memory; X-DISK.
        """
        room = _Room(rounded(size))  # until the buffer is there
        with self._lock:
            unused = self._unused.get(room.size)
            buffer, event = unused.popleft() if unused else (None, None)
            superfluous = [] if buffer is not None else self._superfluous(room.size)
            self._use(room if buffer is None else buffer)
        self._free(superfluous)
        if buffer is not None:
            self.device.wait(Lane.TO_HOST, event)
            return buffer, event
        buffer = self.device.host_buffer(room.size)
        with self._lock:
            del self._in_use[id(room)]
            self._use(buffer)
        return buffer, None

    def _use(self, space: torch.Tensor | _Room) -> None:
        self._in_use[id(space)] = space
        self.peak = max(self.peak, self.taken)

    def give_back(self, buffer: torch.Tensor, event: Event) -> None:
        """Return a buffer; it may be written into again after the event."""
        with self._lock:
            self._in_use.pop(id(buffer), None)
            self._unused.setdefault(buffer.numel(), deque()).append((buffer, event))

    def clear(self) -> None:
        """Free the buffers that are not in use."""
        with self._lock:
            superfluous = [pair for size in list(self._unused) for pair in self._removed(size)]
        self._free(superfluous)

    def _superfluous(self, size: Bytes) -> list[tuple[torch.Tensor, Event]]:
        """Unused buffers of other sizes that go where there is no room for one more."""
        superfluous: list[tuple[torch.Tensor, Event]] = []
        most = max(self.need, self.peak, self.taken + size) if self.budget is None else self.budget
        for other in sorted(self._unused, reverse=True):
            if self.total + size > most:
                superfluous += self._removed(other)
        if self.budget is not None and self.total + size > self.budget:
            what = (
                f"copies on the host need {format_bytes(self.taken + size)} ({self.taken + size} B) at once, and host_budget is "
                f"{format_bytes(self.budget)} ({self.budget} B)."
            )
            fix = "give a larger host_budget, or a larger budget; several forwards before one backward each have their copies."
            raise RematError("X-HOST", what, fix=fix)
        return superfluous

    def _removed(self, size: Bytes) -> list[tuple[torch.Tensor, Event]]:
        """The unused buffers of a size, which are no longer in the pool."""
        return list(self._unused.pop(size, ()))

    def _free(self, buffers: list[tuple[torch.Tensor, Event]]) -> None:
        """Free buffers behind their copies; outside the lock, because a lane may need it to go on."""
        for buffer, event in buffers:
            self.device.synchronize(event)
            self.device.free_host(buffer)


@frozen(eq=False)
class _Room:
    """Bytes that a buffer is going to take."""

    size: Bytes

    def numel(self) -> Bytes:
        """As of a buffer."""
        return self.size


def _begin_all() -> None:
    for pool in _pools:
        pool._begin()


_pools: weakref.WeakSet[HostPool] = weakref.WeakSet()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin_all)


def rounded(size: Bytes) -> Bytes:
    """Bytes of the buffer that a copy of `size` bytes gets."""
    return -(-size // GRANULE) * GRANULE


__all__ = ["GRANULE", "HostPool", "rounded"]
