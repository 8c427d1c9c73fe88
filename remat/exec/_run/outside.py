"""The audit of a loss outside the module: what it holds between a forward and its backward, seen once on a real step.

A `Watch` records the thread from the end of a forward until its backward has begun and is over. It ends by itself: when the graph
of the step is freed, when any planned module is called again, when a profile is started, or at exit, whatever is first.
Autograd puts back the thread's state after a backward, so that a watch cannot end inside one.

What comes after a *part* of a larger net is no loss, and does not count for the part: gradients of other parameters are
accumulated before its own backward, or another planned module runs, or its inputs come out of trained operations.
"""

from __future__ import annotations

import threading
import weakref
from itertools import accumulate, takewhile

import torch
from attrs import frozen

from remat.exec._torch import recording
from remat.exec._torch.recording import Event
from remat.units import Bytes

_MARK = "remat.backward"
_ACCUMULATE = "torch::autograd::AccumulateGrad"
"""The backward operation of a parameter; before the module's own backward it is a sign of parameters behind the outputs."""


@frozen(kw_only=True)
class LossAudit:
    """What was held between a forward and its backward, above the level at the forward's end.

    Attributes:
        peak: most bytes [bytes].
        left: bytes still held when the backward began, the gradients of the outputs among them [bytes].
    """

    peak: Bytes
    left: Bytes


class Token:
    """Lives as long as the graph of the step that is watched.

    Attributes:
        watch: that watches the step.
    """

    def __init__(self, watch: Watch) -> None:
        self.watch = watch


class Watch:
    """One audit, from the end of a forward on.

    Attributes:
        owner: for whom it watches.
        marked: whether the backward of the step has begun, so that all there is to see was seen.
        over: whether it has ended.
        part: whether the module turned out to be a part of a larger net.
        audit: what the loss held, once that is seen.
    """

    def __init__(self, owner: object, device: torch.device) -> None:
        self.owner = owner
        self.marked = False
        self.over = False
        self.part = False
        self.audit: LossAudit | None = None
        self._device = device
        self._thread = threading.get_ident()
        self._levels = _CudaLevels(device) if device.type == "cuda" else None
        self._recording = recording.Recording()
        self._recording.start()
        self._take_back = recording.before_profiles(self.end)
        self._finalizer: weakref.finalize[[], Token] | None = None

    def token(self) -> Token:
        """What the graph of the step holds: the watch ends with it, or with the process."""
        token = Token(self)
        self._finalizer = weakref.finalize(token, self.end)
        return token

    def backward_begins(self) -> None:
        """The backward of the watched step begins."""
        if not self.marked and not self.over:
            self.marked = True
            recording.mark(_MARK)
            if self._levels is not None:
                self._levels.take()

    def end(self) -> None:
        """Stop recording and clean up, where that is possible now: on the thread of the watch, outside a backward."""
        if self.over or threading.get_ident() != self._thread or recording.in_backward():
            return
        self.over = True
        self._take_back()
        if self._finalizer is not None:
            self._finalizer.detach()
        events = self._recording.stop()
        if not self.marked:
            return
        before = list(takewhile(lambda event: event.name != _MARK, events))
        if len(before) == len(events):
            return  # The backward ran on another thread: the time before it was not recorded.
        self.part = self.part or any(event.name == _ACCUMULATE for event in before)
        if not self.part:
            self.audit = _levels(before) if self._levels is None else self._levels.audit


def _levels(events: list[Event]) -> LossAudit:
    levels = [0, *accumulate(event.size for event in events)]
    return LossAudit(peak=max(levels), left=max(0, levels[-1]))


class _CudaLevels:
    """Peak statistics of the caching allocator from the end of a forward to the begin of its backward."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.before = torch.cuda.memory_allocated(device)
        self.audit: LossAudit | None = None
        torch.cuda.reset_peak_memory_stats(device)

    def take(self) -> None:
        peak = torch.cuda.max_memory_allocated(self.device) - self.before
        left = torch.cuda.memory_allocated(self.device) - self.before
        self.audit = LossAudit(peak=max(0, peak), left=max(0, left))


_running: Watch | None = None
"""The watch that may still be on; there is one at a time, on the main thread, so that it can always be ended."""


def begin(owner: object, device: torch.device) -> Watch | None:
    """Watch from here on, or None where that would disturb a profile, another watch or another thread."""
    global _running
    main = threading.current_thread() is threading.main_thread()
    busy = _running is not None and not _running.over
    if busy or not main or recording.profiling() or recording.in_backward():
        return None
    _running = Watch(owner, device)
    return _running


def passed_by(owner: object) -> None:
    """A planned step runs forward or backward: the watch of another one, before its own backward, saw a part of a net."""
    if _running is not None and not _running.over and _running.owner is not owner:
        _running.part = _running.part or not _running.marked


def end(*, seen: bool = False) -> None:
    """End the watch that is on, where there is one; `seen`: only if it has seen all there is to see."""
    if _running is not None and (_running.marked or not seen):
        _running.end()
