"""How fast copies are: each way alone and both at once, measured once in a process for each device and kind of host memory."""

from __future__ import annotations

import time

import torch
from attrs import frozen

from remat.exec._copy.device import CopyDevice
from remat.ir import Lane, Link
from remat.units import Bytes, Ns

SMALL: Bytes = 64 << 10
LARGE: Bytes = 8 << 20
ON_CUDA: Bytes = 64 << 20
"""A large copy there: smaller ones do not reach what the link carries."""
BOTH_WAYS = 0.75
"""A link whose directions are at least so fast together, over alone, carries both at once (an H100: .82 and .93)."""
REPEATS = 3
"""The fastest of so many copies counts, of ten times as many small ones: others on the machine only make copies slower."""
_LANES = (Lane.TO_HOST, Lane.TO_DEVICE)
_measured: dict[tuple[torch.device, bool], LinkSpeed] = {}


@frozen(kw_only=True)
class LinkSpeed:
    """What was measured; bandwidths in bytes per second, latencies in ns.

    Attributes:
        alone: bandwidth by lane, when the other lane is idle.
        together: bandwidth by lane, when both copy.
        latency: of a copy, by lane.
    """

    alone: dict[Lane, int]
    together: dict[Lane, int]
    latency: dict[Lane, Ns]

    @property
    def link(self) -> Link:
        """The link to plan with.

        Where both directions at once are nearly as fast as one, as on PCIe, they count as fast as alone: most of a step
        copies one way. Where they share what carries them, as on a disk, each counts as fast as it surely is.
        """
        both_ways = all(self.together[lane] >= BOTH_WAYS * self.alone[lane] for lane in _LANES)
        speed = self.alone if both_ways else {lane: min(self.alone[lane], self.together[lane]) for lane in _LANES}
        return Link(
            to_host=speed[Lane.TO_HOST],
            to_device=speed[Lane.TO_DEVICE],
            to_host_latency=self.latency[Lane.TO_HOST],
            to_device_latency=self.latency[Lane.TO_DEVICE],
        )


def link_speed(device: CopyDevice, *, disk: bool = False) -> LinkSpeed:
    """The speed of a device's copies, measured at the first call for it in this process.

    Args:
        device: makes the copies.
        disk: whether its host memory lies on disk.
    """
    key = (device.device, disk)
    if key not in _measured:
        _measured[key] = measure_speed(device, ON_CUDA if device.device.type == "cuda" else LARGE)
    return _measured[key]


def measure_speed(device: CopyDevice, large: Bytes = LARGE) -> LinkSpeed:
    """Measure a device's copies; the latency of a large copy counts as part of its time, so no bandwidth is too high.

    Args:
        device: makes the copies.
        large: bytes of a large copy [bytes].
    """
    blocks = {lane: (device.allocate(large), device.host_buffer(large)) for lane in _LANES}
    _time(device, blocks, _LANES, large)  # touches the memory, starts the threads
    short = {lane: _time(device, blocks, (lane,), SMALL)[lane] for lane in _LANES}
    long = {lane: _time(device, blocks, (lane,), large)[lane] for lane in _LANES}
    both = _time(device, blocks, _LANES, large)
    for block, buffer in blocks.values():
        device.free(block)
        device.free_host(buffer)
    alone, together = ({lane: _bandwidth(large, taken[lane]) for lane in _LANES} for taken in (long, both))
    latency = {lane: max(0, short[lane] - SMALL * 10**9 // alone[lane]) for lane in _LANES}
    return LinkSpeed(alone=alone, together=together, latency=latency)


def _time(
    device: CopyDevice, blocks: dict[Lane, tuple[torch.Tensor, torch.Tensor]], lanes: tuple[Lane, ...], size: Bytes
) -> dict[Lane, Ns]:
    """The least time of a copy in each lane, when all of `lanes` copy at once [ns]."""
    times: dict[Lane, list[Ns]] = {lane: [] for lane in lanes}
    for _ in range(REPEATS if size > SMALL else 10 * REPEATS):
        ready = device.record(Lane.COMPUTE)
        device.synchronize(ready)
        start = time.perf_counter_ns()
        events = {}
        for lane in lanes:
            block, buffer = blocks[lane]
            source, target = (block, buffer) if lane is Lane.TO_HOST else (buffer, block)
            device.wait(lane, ready)
            device.copy(lane, target, source, size)
            events[lane] = device.record(lane)
        for lane, event in events.items():
            device.synchronize(event)
            times[lane].append(time.perf_counter_ns() - start)
    return {lane: min(taken) for lane, taken in times.items()}


def _bandwidth(size: Bytes, taken: Ns) -> int:
    return max(1, size * 10**9 // max(1, taken))


__all__ = ["LinkSpeed", "link_speed", "measure_speed"]
