"""What copies need of a device: three lanes, events between them, memory on both sides.

A *lane* is a stream: the compute lane, which is the caller's, and one for each direction of the link. Work given to a
lane runs in the order in which it was given; work of different lanes is ordered by events alone. The three
implementations are `CpuDevice`, `CudaDevice` and, for tests, `remat.testing.TracingDevice`.
"""

from __future__ import annotations

from typing import Any, Protocol, TypeAlias

import torch

from remat.ir import Lane
from remat.units import Bytes, Ns

Event: TypeAlias = Any
"""What `CopyDevice.record` returns; only the device that made it looks inside."""


class CopyDevice(Protocol):
    """Streams, events, copies and memory; every block is a flat tensor of bytes (`uint8`).

    Attributes:
        device: whose tensors are copied.
        blocks: whether `wait` on the compute lane keeps the caller waiting.
    """

    device: torch.device
    blocks: bool

    def record(self, lane: Lane) -> Event:
        """An event that happens when all that the lane was given so far has ended."""

    def wait(self, lane: Lane, event: Event) -> None:
        """What the lane is given from now on begins after the event."""

    def copy(self, lane: Lane, target: torch.Tensor, source: torch.Tensor, size: Bytes) -> None:
        """Give the lane a copy of the first `size` bytes; source and target must stay until it has ended."""

    def allocate(self, size: Bytes) -> torch.Tensor:
        """Device memory, in the order of the compute lane: another lane may use it after an event of that lane."""

    def free(self, block: torch.Tensor) -> None:
        """Give device memory back, in the order of the compute lane; the caller drops its reference then."""

    def host_buffer(self, size: Bytes) -> torch.Tensor:
        """Host memory that the lanes can copy to and from.

        Raises:
            RematError: X-HOST or X-DISK, where there is no room.
        """

    def free_host(self, buffer: torch.Tensor) -> None:
        """Give host memory back, at once; the caller drops its reference then."""

    def synchronize(self, event: Event) -> None:
        """Keep the caller waiting until the event has happened."""

    def between(self, first: Event, second: Event) -> Ns | None:
        """The time from one event to another, below 0 where the second happened first [ns]; None: not known.

        Both are on their way, and the caller waits for them.
        """


def as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """The whole storage of a tensor as bytes; it holds the storage and no other view of it."""
    return torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(tensor.untyped_storage())


__all__ = ["CopyDevice", "Event", "as_bytes"]
