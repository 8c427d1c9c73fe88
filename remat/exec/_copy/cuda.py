"""Copy streams of a CUDA device: one stream for each direction, events between them, pinned host memory.

Device memory is taken from and given back to the pool of the compute stream alone, always behind an event of the copy that used
it: `record_stream`, which keeps a block until the host asks, is not needed.
"""

from __future__ import annotations

import torch

from remat.errors import RematError
from remat.exec._torch.torch_private import StreamKey, current_stream_key
from remat.ir import Lane
from remat.units import Bytes, Ns, format_bytes


class CudaDevice:
    """See `CopyDevice`. The compute lane is the current stream of the thread that calls: autograd sets it for backwards.

    Args:
        device: a CUDA device.
    """

    blocks = False

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._streams: dict[Lane | StreamKey, torch.cuda.Stream] = {}

    def record(self, lane: Lane) -> torch.cuda.Event:
        """See `CopyDevice`."""
        event = torch.cuda.Event(enable_timing=True)
        event.record(self._stream(lane))
        return event

    def wait(self, lane: Lane, event: torch.cuda.Event) -> None:
        """See `CopyDevice`."""
        self._stream(lane).wait_event(event)

    def copy(self, lane: Lane, target: torch.Tensor, source: torch.Tensor, size: Bytes) -> None:
        """See `CopyDevice`."""
        target, source = (part if part.numel() == size else part[:size] for part in (target, source))
        stream, before = self._stream(lane), self._stream(Lane.COMPUTE)
        if torch.cuda.current_device() != stream.device_index:
            with torch.cuda.stream(stream):
                target.copy_(source, non_blocking=True)
            return
        torch.cuda.set_stream(stream)  # what the context manager does besides costs the host as much as the copy
        try:
            target.copy_(source, non_blocking=True)
        finally:
            torch.cuda.set_stream(before)

    def allocate(self, size: Bytes) -> torch.Tensor:
        """See `CopyDevice`."""
        return torch.empty(size, dtype=torch.uint8, device=self.device)

    def free(self, block: torch.Tensor) -> None:
        """Nothing: the block goes back to the compute stream's pool with its last reference, in the order of that stream."""

    def host_buffer(self, size: Bytes) -> torch.Tensor:
        """See `CopyDevice`; pinned."""
        try:
            return torch.empty(size, dtype=torch.uint8, device="cpu", pin_memory=True)
        except RuntimeError as error:
            what = f"the host has no room for {format_bytes(size)} ({size} B) more of pinned memory: {error}"
            raise RematError("X-HOST", what, fix="give a smaller host_budget or a larger budget.") from error

    def free_host(self, buffer: torch.Tensor) -> None:
        """Nothing: torch's own pool of pinned memory takes it back with its last reference."""

    def synchronize(self, event: torch.cuda.Event) -> None:
        """See `CopyDevice`."""
        event.synchronize()

    def between(self, first: torch.cuda.Event, second: torch.cuda.Event) -> Ns:
        """See `CopyDevice`; the driver counts in steps of half a microsecond."""
        first.synchronize()
        second.synchronize()
        return int(first.elapsed_time(second) * 1e6)

    def _stream(self, lane: Lane) -> torch.cuda.Stream:
        """The stream of a lane; one object for each, since to make one costs the host more than to record an event."""
        key = current_stream_key(self.device) if lane is Lane.COMPUTE else lane
        stream = self._streams.get(key)
        if stream is None:
            stream = torch.cuda.current_stream(self.device) if lane is Lane.COMPUTE else torch.cuda.Stream(self.device)
            self._streams[key] = stream
        return stream


__all__ = ["CudaDevice"]
