"""Measuring a training step's memory as the allocator sees it: ground truth, workspaces included.

On the CPU: the allocator's events on this thread, summed in order of time. On CUDA: the peak statistics of the caching allocator.
Only these count as evidence; trackers that watch tensors do not see what a kernel takes for itself.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import accumulate
from typing import Any

import torch
from attrs import field, frozen

from remat._collector import old_objects_apart
from remat.errors import RematError
from remat.exec._torch import recording
from remat.exec._torch.cuda_memory import used_by
from remat.settings import Setting
from remat.units import Bytes


@frozen(kw_only=True)
class StepMemory:
    """Memory of one step above the level it started from.

    Attributes:
        peak: most bytes held at once [bytes].
        left: bytes still held at the end: gradients, the loss, whatever the step returned [bytes].
        reserved: most bytes the caching allocator held from the driver (CUDA), else 0 [bytes].
        requested: most bytes that were asked for, without the allocator's rounding of blocks (CUDA), else 0 [bytes].
        timeline: bytes held after each allocator event, in order; empty on CUDA.
        times: when each of these events happened, by the clock of `time.time_ns` [ns]; empty on CUDA.
    """

    peak: Bytes
    left: Bytes
    reserved: Bytes = 0
    requested: Bytes = 0
    timeline: tuple[Bytes, ...] = field(default=(), repr=False)
    times: tuple[int, ...] = field(default=(), repr=False)


def measure_step(step: Callable[[], Any], *, device: torch.device | str = "cpu", warm_up: int = 0) -> StepMemory:
    """Run `step` and measure its memory.

    What was allocated before and is freed inside is not seen on the CPU: set gradients to None before, not inside, the step.
    Garbage of before is not collected inside (unless the program has frozen objects by `gc.freeze`).

    Args:
        step: runs one training step; what it returns is held until the measurement has ended.
        device: where its tensors are.
        warm_up: calls before the one that is measured.

    Raises:
        BadArgument: X-ARG, where `step` is no function. RematError: X-PROFILE, where a profile of this thread is on (CPU).
    """
    Setting("a function that runs a step", callable).check(step, "measure_step: step", rule="X-ARG")
    for _ in range(warm_up):
        step()
    if torch.device(device).type == "cuda":
        return _measure_cuda(step, torch.device(device))
    recording.profile_begins()
    if recording.profiling():
        what = "a profile is on in this thread, and a thread has room for one."
        raise RematError("X-PROFILE", what, fix="measure before it starts, or after it has ended.")
    recorder = recording.Recording()
    start = time.time_ns()
    with old_objects_apart():  # what was made under an earlier recording would count as taken back by this step
        recorder.start()
        try:
            returned = step()
        finally:
            events = recorder.stop()
    memory = [event for event in events if event.size]
    timeline = tuple(accumulate(event.size for event in memory))
    left = timeline[-1] if timeline else 0
    del returned
    times = tuple(start + event.at for event in memory)
    return StepMemory(peak=max((0, *timeline)), left=left, timeline=timeline, times=times)


def _measure_cuda(step: Callable[[], Any], device: torch.device) -> StepMemory:
    requested_before = torch.cuda.memory_stats(device).get("requested_bytes.all.current", 0)
    returned, use = used_by(step, device)
    statistics = torch.cuda.memory_stats(device)
    requested = statistics.get("requested_bytes.all.peak", requested_before) - requested_before
    del returned
    reserved = torch.cuda.max_memory_reserved(device)
    return StepMemory(peak=use.peak, left=use.left, reserved=reserved, requested=requested)
