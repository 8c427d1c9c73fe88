"""The copies of one step: what the generated functions call, and all there is of stream logic.

Every block has one rule. *Source of a copy out*: its memory goes back to the compute lane's pool after the compute lane
has waited for the end of the copy. *Target of a copy back*: allocated on the compute lane; the lane to the device waits
for an event of the compute lane, because the block may have been in use until then, and for the end of the copy out;
the compute lane waits for the arrival before it reads. *Host buffer*: returned with the event of the last copy that
used it, for which the next writer waits.
"""

from __future__ import annotations

import logging
import os
from collections import deque
from collections.abc import Iterable

import torch
from attrs import define, field, frozen

from remat.errors import RematError
from remat.exec._copy.device import CopyDevice, Event, as_bytes
from remat.exec._copy.host_pool import HostPool
from remat.exec._torch.wrappers import ViewForm, view_form, with_bits
from remat.ir import Lane
from remat.units import Bytes, Ns

logger = logging.getLogger(__name__)


@frozen(kw_only=True)
class CopyCounts:
    """What the copies of one step were.

    Attributes:
        to_host, to_device: bytes copied [bytes].
        copies: number of copies, both ways.
        idle: how long the compute lane waited for them, each time until the copy had ended [ns]; None: not known on this device.
        busy: how long the lanes copied [ns]; None: not known on this device.
        host_peak: most bytes of host buffers in use so far, those of other steps included [bytes].
    """

    to_host: Bytes
    to_device: Bytes
    copies: int
    idle: Ns | None
    busy: Ns | None
    host_peak: Bytes

    @property
    def overlap(self) -> float | None:
        """The share of the copying during which the compute lane did not wait; None: not known, or nothing was copied."""
        if self.idle is None or not self.busy:
            return None
        return max(0.0, 1 - self.idle / self.busy)


@define(eq=False)
class Copier:
    """What copies for the steps of a wrapped module: a device and a pool; a deep copy of the module shares it.

    Attributes:
        device: where the copies run.
        pool: host buffers.
    """

    device: CopyDevice
    pool: HostPool
    _ended: Copies | None = None

    @classmethod
    def on(cls, device: CopyDevice, host_budget: Bytes | None = None) -> Copier:
        """With a new pool."""
        return cls(device, HostPool(device, host_budget))

    def begin(self) -> Copies:
        """The copies of one step, from the begin of its forward."""
        return Copies(self)

    def end(self, copies: Copies) -> None:
        """Take the copies of a step that ended, the last one so far."""
        self._ended = copies

    @property
    def last(self) -> CopyCounts | None:
        """What the copies of the last step that ended were; waits until they have ended. None: there was no such step."""
        return None if self._ended is None else self._ended.counts()


def _on(block: torch.Tensor, form: ViewForm) -> torch.Tensor:
    """A block of bytes looked at as a tensor, by views alone: `set_` would count as a write before the copy has ended."""
    whole = block.numel() // form.dtype.itemsize * form.dtype.itemsize
    view = block[:whole].view(form.dtype).as_strided(form.shape, form.stride, form.offset)
    return with_bits(view, form.conj, form.neg)


@define(eq=False)
class _HostCopy:
    """A datum on the host.

    Attributes:
        roots: what the datum's tensors look like; or the tensors themselves, where nothing needs to be copied.
        size: of its storage [bytes].
        buffer: host memory; None: nothing needs to be copied.
        whole: when the copy out has ended.
        last: when the last copy that uses the buffer has ended.
    """

    roots: tuple[ViewForm, ...] | tuple[torch.Tensor | None, ...]
    size: Bytes = 0
    buffer: torch.Tensor | None = None
    whole: Event = None
    last: Event = None


@define(eq=False)
class Copies:
    """The copies of one step, from the begin of its forward to the end of its backward, in the process that began it.

    Attributes:
        copier: device and pool.
        on_host: copies on the host, by datum.
        leaving: (datum, its memory, end of the copy) of copies out whose memory was not freed yet, in the order of the lane.
        arriving: ends of copies back that the compute lane has not waited for, by datum.
        waits: of the compute lane: events where it began to wait, and for which it waited.
        copying: of each copy what it may have waited for, and its end.
    """

    copier: Copier
    on_host: dict[str, _HostCopy] = field(factory=dict)
    leaving: deque[tuple[str, torch.Tensor | None, Event]] = field(factory=deque)
    arriving: dict[str, Event] = field(factory=dict)
    waits: list[tuple[Event, Event]] = field(factory=list)
    copying: list[tuple[tuple[Event, ...], Event]] = field(factory=list)
    _bytes: dict[Lane, Bytes] = field(factory=lambda: {Lane.TO_HOST: 0, Lane.TO_DEVICE: 0})
    _ended: dict[Lane, Event] = field(factory=dict)
    _host_peak: Bytes = 0
    _closed: bool = False
    _process: int = field(factory=os.getpid)

    def __del__(self) -> None:
        """A step whose backward never ran leaves no copy in flight."""
        if not self._closed:
            self.abort()

    @property
    def device(self) -> CopyDevice:
        """Where the copies run."""
        return self.copier.device

    # -- what generated code calls -------------------------------------------------------------------------------------

    def out(self, datum: str, *roots: torch.Tensor | None) -> None:
        """Start to copy a datum to the host; the caller drops its tensors.

        Args:
            datum: its name.
            roots: its tensors; together they look at one storage. None: an output that its operation was not asked for.
        """
        device, first = self.device, roots[0]
        size = 0 if first is None else first.untyped_storage().nbytes()
        if first is None or first.device != device.device or not size:
            self.on_host[datum] = _HostCopy(roots)
            self.leaving.append((datum, None, None))
            return
        source = as_bytes(first)
        buffer, unused = self.copier.pool.take(size)
        try:
            ended = self._copy(Lane.TO_HOST, buffer, source, size, device.record(Lane.COMPUTE), also=unused)
        except BaseException:
            self.copier.pool.give_back(buffer, device.record(Lane.COMPUTE))
            raise
        looks = tuple(view_form(root) for root in roots if root is not None)
        self.on_host[datum] = _HostCopy(looks, size, buffer, ended, ended)
        self.leaving.append((datum, source, ended))

    def free(self, datum: str) -> None:
        """Free the device memory of the oldest copy out, when it has ended.

        Args:
            datum: whose copy this is.
        """
        name, source, ended = self.leaving[0]
        assert name == datum, f"the oldest copy out is that of {name}, not of {datum}"
        if source is not None:
            self._wait(ended)
            self.device.free(source)
        self.leaving.popleft()

    def back(self, datum: str) -> tuple[torch.Tensor | None, ...]:
        """Start to copy a datum back; its tensors may be read after `arrive`.

        Args:
            datum: its name.
        """
        copy, device = self.on_host[datum], self.device
        if copy.buffer is None:
            return copy.roots  # type: ignore[return-value]
        block = device.allocate(copy.size)
        ready = device.record(Lane.COMPUTE)
        copy.last = self.arriving[datum] = self._copy(Lane.TO_DEVICE, block, copy.buffer, copy.size, ready, copy.whole)
        return tuple(_on(block, root) for root in copy.roots)  # type: ignore[arg-type]

    def arrive(self, datum: str) -> None:
        """Have the compute lane wait until a datum has arrived.

        Args:
            datum: its name.
        """
        event = self.arriving.get(datum)
        if event is not None:
            self._wait(event)
            del self.arriving[datum]

    def forget(self, datum: str) -> None:
        """Give the host memory of a datum back, after the copies that use it.

        Args:
            datum: its name.
        """
        copy = self.on_host.pop(datum)
        if copy.buffer is not None:
            self.copier.pool.give_back(copy.buffer, copy.last)

    # -- the end -------------------------------------------------------------------------------------------------------

    def resume(self) -> None:
        """Go on with the step in its backward.

        Raises:
            RematError: X-HOST, in a process that was forked since the forward: the copies are those of its parent.
        """
        if self._process != os.getpid():
            what = f"the forward ran in process {self._process}, which was forked, and its copies are there."
            raise RematError("X-HOST", what, fix="run forward and backward in one process.")

    def close(self) -> None:
        """End the step: wait for what is under way, and give all host memory back.

        Raises:
            RematError: X-HOST, when a copy failed that nothing has waited for.
        """
        errors = self._finish()
        if errors:
            raise errors[0]
        self._host_peak = self.copier.pool.peak
        self.copier.end(self)

    def counts(self) -> CopyCounts:
        """What the copies of the step were, after its end."""
        return CopyCounts(
            to_host=self._bytes[Lane.TO_HOST],
            to_device=self._bytes[Lane.TO_DEVICE],
            copies=len(self.copying),
            idle=_sum(self._took((began,), ended) for began, ended in self.waits),
            busy=_sum(self._took(behind, ended) for behind, ended in self.copying),
            host_peak=self._host_peak,
        )

    def _took(self, behind: tuple[Event, ...], ended: Event) -> Ns | None:
        """The time from the last of some events to a later one, at least 0; None: not known."""
        times = [self.device.between(event, ended) for event in behind]
        return None if None in times else max(0, min(time for time in times if time is not None))

    def abort(self) -> None:
        """End a step that failed or was given up: as `close`, but an error of a copy is only logged.

        The host waits too: whoever drops a step may compute on another stream than the step, whose memory it was.
        """
        for error in self._finish(host_waits=True):
            logger.warning("a copy of a step that was given up failed: %s", error)

    def _finish(self, *, host_waits: bool = False) -> list[BaseException]:
        """What went wrong on the way is returned: the rest is ended all the same, an interrupt raised at the end."""
        self._closed = True
        errors: list[BaseException] = []
        if self._process != os.getpid():  # nothing ends there what a thread of the parent copies
            self.leaving.clear()
            self.arriving.clear()
            self.on_host.clear()
        while self.leaving:
            _, source, ended = self.leaving.popleft()
            if source is not None:
                self._end(ended, errors, host_waits)
                self.device.free(source)
        for event in self.arriving.values():
            self._end(event, errors, host_waits)
        self.arriving.clear()
        for datum in list(self.on_host):
            self.forget(datum)
        for error in errors:
            if not isinstance(error, Exception):
                raise error
        return errors

    def _end(self, event: Event, errors: list[BaseException], host_waits: bool) -> None:
        """Wait; on a device that keeps the caller waiting, and whose lanes hold what they copy, only until an interrupt."""
        if self.device.blocks and not all(isinstance(error, Exception) for error in errors):
            return
        try:
            self._wait(event)
            if host_waits:
                self.device.synchronize(event)
        except BaseException as error:  # noqa: BLE001 (the rest is ended all the same)
            errors.append(error)

    def _wait(self, event: Event) -> None:
        self.waits.append((self.device.record(Lane.COMPUTE), event))
        self.device.wait(Lane.COMPUTE, event)

    def _copy(
        self, lane: Lane, target: torch.Tensor, source: torch.Tensor, size: Bytes, *behind: Event, also: Event = None
    ) -> Event:
        """Copy, behind some events, and one more that the lane waits for already; returns the end."""
        for event in behind:
            self.device.wait(lane, event)
        self.device.copy(lane, target, source, size)
        ended = self.device.record(lane)
        earlier = (*behind, also, self._ended.get(lane))
        self.copying.append((tuple(event for event in earlier if event is not None), ended))
        self._ended[lane] = ended
        self._bytes[lane] += size
        return ended


def _sum(times: Iterable[Ns | None]) -> Ns | None:
    """None where one is not known."""
    total = 0
    for time in times:
        if time is None:
            return None
        total += time
    return total


__all__ = ["Copier", "Copies", "CopyCounts"]
