"""What real steps take: the time of every step, and what a loss outside the module held in the first one."""

from __future__ import annotations

import statistics
import time
from collections import deque
from itertools import accumulate
from typing import Any, Protocol

import torch
from attrs import define, field, frozen
from torch.optim.optimizer import register_optimizer_step_pre_hook

from remat.exec import torch_private
from remat.units import Bytes, Ns

KEPT_TIMES = 50


@frozen(kw_only=True)
class LossAudit:
    """What was held between a forward and its backward, above the level at the forward's end.

    Attributes:
        peak: most bytes [bytes].
        left: bytes still held when the backward began, the gradients of the outputs among them [bytes].
    """

    peak: Bytes
    left: Bytes


@define(eq=False)
class StepMeter:
    """Times steps, and audits a loss outside the module once.

    Attributes:
        device: where the step runs.
        wanted: whether a loss outside is still to be audited.
        audit: what it held, once that is known.
        times: of the last steps, forward and backward without what lies between [ns].
    """

    device: torch.device
    wanted: bool = False
    audit: LossAudit | None = None
    times: deque[Ns] = field(factory=lambda: deque(maxlen=KEPT_TIMES))
    _probe: _Probe | None = None
    _start: Ns = 0
    _forward: Ns = 0

    def forward_begins(self) -> None:
        """Note the time."""
        self.settle()
        self._start = self._now()

    def forward_ended(self) -> None:
        """Note the time, and begin to audit if this is the step for it."""
        self._forward = self._now() - self._start
        if self.wanted and not torch_private.profiling():
            self._probe = _CudaProbe(self.device) if self.device.type == "cuda" else _CpuProbe(self)

    def backward_begins(self) -> None:
        """Note the time and that the loss is over."""
        if self._probe is not None:
            self._probe.loss_ended()
        self._start = self._now()

    def backward_ended(self) -> None:
        """Add up the step."""
        if self._forward and self._probe is None:
            self.times.append(self._forward + self._now() - self._start)
        self._forward = 0

    def settle(self) -> None:
        """End an audit: autograd's thread state forbids to end a profile inside the backward where its result is known."""
        if self._probe is not None:
            self.audit = self._probe.result()
            self.wanted = self.audit is None
            self._probe = None

    def _now(self) -> Ns:
        # CUDA runs behind the host: the first steps wait for it, and later ones are not kept.
        if self.device.type == "cuda" and len(self.times) < 5:
            torch.cuda.synchronize(self.device)
        return time.perf_counter_ns()

    @property
    def time(self) -> Ns | None:
        """Median time of a step [ns]; on CUDA of the first five, which wait for the device."""
        times = list(self.times)[:5] if self.device.type == "cuda" else list(self.times)
        return int(statistics.median(times)) if times else None


class _Probe(Protocol):
    def loss_ended(self) -> None: ...

    def result(self) -> LossAudit | None: ...


class _CpuProbe:
    """A profile from the end of a forward until the next optimizer step or call, with a mark where the backward began."""

    def __init__(self, meter: StepMeter) -> None:
        self.profiler = torch_private.memory_profile()
        self.profiler.start()
        self.began: int | None = None
        self.hook: Any = register_optimizer_step_pre_hook(lambda *_: meter.settle())

    def loss_ended(self) -> None:
        if self.began is None:
            self.began = time.time_ns()

    def result(self) -> LossAudit | None:
        self.profiler.stop()
        self.hook.remove()
        if self.began is None:
            return None
        events = torch_private.allocator_events(self.profiler)
        levels = [0, *accumulate(size for at, size in events if at <= self.began)]
        return LossAudit(peak=max(levels), left=max(0, levels[-1]))


class _CudaProbe:
    """Peak statistics from the end of a forward to the begin of its backward."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.before = torch.cuda.memory_allocated(device)
        self.found: LossAudit | None = None
        torch.cuda.reset_peak_memory_stats(device)

    def loss_ended(self) -> None:
        peak = torch.cuda.max_memory_allocated(self.device) - self.before
        left = torch.cuda.memory_allocated(self.device) - self.before
        self.found = LossAudit(peak=max(0, peak), left=max(0, left))

    def result(self) -> LossAudit | None:
        return self.found
