"""How long calls take on a CUDA device, apart from how long the host takes to queue them."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch

from remat.units import Ns

_CYCLES_PER_NS = 2
"""At least as many as a device makes, so that what is asked to take some time takes that or more."""


def timed_row(call: Callable[[], Any], device: torch.device, *, count: int, head_start: Ns) -> tuple[Ns, Ns]:
    """The device's time of some calls one behind the other, and the host's time to queue them [ns].

    Args:
        call: one call.
        device: a CUDA device.
        count: how many calls.
        head_start: for so long the device is kept busy before, so that it never waits for the host [ns].
    """
    begins, ends = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda.synchronize(device)
    with torch.cuda.device(device):
        if head_start:
            sleep: Any = torch.cuda._sleep
            sleep(head_start * _CYCLES_PER_NS)
        begins.record()
        start = time.perf_counter_ns()
        for _ in range(count):
            call()
        host = time.perf_counter_ns() - start
        ends.record()
    ends.synchronize()
    return int(begins.elapsed_time(ends) * 1e6), host


__all__ = ["timed_row"]
