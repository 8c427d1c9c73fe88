"""A device without streams that finds races between them: every copy ends as late as the events allow.

What the lanes are given waits in queues. The compute lane runs at once, and a queue runs only as far as the compute
lane waits for, or as
far as the caller chooses; so a wait that is missing meets a copy that has not been made. Three detectors look at the same run:

* torch's own (`EventHandler` of its CUDA sanitizer) is told of every kernel, copy, event and wait, and reports accesses
  to one block that no event orders, whatever the queues did;
* memory is poisoned where it is allocated, freed, returned, and while a copy into it is under way, so that what is read
  too early or too late changes numbers;
* memory that goes away counts as written by the compute lane, as the next tensor that gets it would: it must be ordered
  behind copies from and to it. That holds for all memory that is copied, whoever made it.
"""

from __future__ import annotations

import contextlib
import re
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import torch
from attrs import define, frozen

from remat.exec._torch.sanitizer import EventHandler, UnsynchronizedAccessError
from remat.exec._torch.torch_private import (
    DispatchMode,
    OpOverload,
    flatten,
    no_modes,
    storage_key,
    storage_while_alive,
)
from remat.ir import Lane
from remat.testing.report import LawBroken
from remat.units import Bytes

POISON = 0xFF
"""Bytes of it are NaN in every floating-point type, and −1 in signed integers."""
_STREAM = {Lane.COMPUTE: 0, Lane.TO_HOST: 1, Lane.TO_DEVICE: 2}
_MADE_LIKE = re.compile(r"aten::(new_\w+|\w+_like)")
"""Operations that look at the shape and type of their argument alone."""
Choose: TypeAlias = Callable[[int, int], int]


def late(least: int, most: int) -> int:
    """Chooses that copies end as late as they can."""
    return least


@define(eq=False)
class TracedEvent:
    """An event of a `TracingDevice`: its number, its lane, and whether it has happened."""

    number: int
    lane: Lane
    happened: bool = False


@define(eq=False)
class _Copy:
    """A copy in a queue. Memory is not held by it: what goes away meanwhile is a race, not kept alive."""

    name: str
    target: Callable[[], torch.Tensor | None]
    source: Callable[[], torch.Tensor | None]
    size: Bytes
    begun: bool = False


@frozen
class _Await:
    event: TracedEvent


@frozen
class _Happen:
    event: TracedEvent


class TracingDevice:
    """See `CopyDevice`; tensors are those of the CPU.

    Args:
        choose: `choose(0, n)` says how many of the next `n` pieces of queued work are done now; asked at every call. Draw it with
            hypothesis for other interleavings than the latest.

    Attributes:
        races: what was found, in words.
        copied: bytes given to each lane [bytes].
    """

    blocks = False

    def __init__(self, choose: Choose = late) -> None:
        self.device = torch.device("cpu")
        self.races: list[str] = []
        self.copied: dict[Lane, Bytes] = {Lane.TO_HOST: 0, Lane.TO_DEVICE: 0}
        self._choose = choose
        self._handler = EventHandler()
        for lane in self.copied:
            self._handler._handle_stream_creation(_STREAM[lane])
        self._queues: dict[Lane, deque[_Copy | _Await | _Happen]] = {lane: deque() for lane in self.copied}
        self._events = 0
        self._watched: set[int] = set()  # storages whose end is seen

    # -- the device ----------------------------------------------------------------------------------------------------

    def record(self, lane: Lane) -> TracedEvent:
        """See `CopyDevice`."""
        self._events += 1
        event = TracedEvent(self._events, lane, happened=lane is Lane.COMPUTE)
        self._handler._handle_event_creation(event.number)
        self._handler._handle_event_record(event.number, _STREAM[lane])
        if lane is not Lane.COMPUTE:
            self._queues[lane].append(_Happen(event))
        self._advance()
        return event

    def wait(self, lane: Lane, event: TracedEvent) -> None:
        """See `CopyDevice`."""
        self._handler._handle_event_wait(event.number, _STREAM[lane])
        if lane is Lane.COMPUTE:
            self._run_until(event)
        else:
            self._queues[lane].append(_Await(event))
        self._advance()

    def copy(self, lane: Lane, target: torch.Tensor, source: torch.Tensor, size: Bytes) -> None:
        """See `CopyDevice`."""
        name = f"copy {lane.value} of {size} B"
        self._watch(target)
        self._watch(source)
        self._access(lane, reads=(source,), writes=(target,), what=name)
        self.copied[lane] += size
        self._queues[lane].append(_Copy(name, _while_alive(target), _while_alive(source), size))
        self._advance()

    def allocate(self, size: Bytes) -> torch.Tensor:
        """See `CopyDevice`; poisoned."""
        block = _poisoned(size)
        self._watch(block)
        self._launch(Lane.COMPUTE, set(), {storage_key(block)}, "whatever had this memory before")
        return block

    def free(self, block: torch.Tensor) -> None:
        """See `CopyDevice`: the block is poisoned, and written by whoever gets it next."""
        self._access(Lane.COMPUTE, reads=(), writes=(block,), what="memory that was freed, used again")
        _poison(block, block.numel())

    def host_buffer(self, size: Bytes) -> torch.Tensor:
        """See `CopyDevice`; poisoned."""
        return _poisoned(size)

    def free_host(self, buffer: torch.Tensor) -> None:
        """See `CopyDevice`: whoever gets the memory next may write at once."""
        self._access(Lane.COMPUTE, reads=(), writes=(buffer,), what="host memory that was freed, used again")
        _poison(buffer, buffer.numel())

    def synchronize(self, event: TracedEvent) -> None:
        """See `CopyDevice`."""
        self._handler._handle_event_synchronization(event.number)
        self._run_until(event)

    def between(self, first: TracedEvent, second: TracedEvent) -> None:
        """Not known: here copies take no time."""
        return None

    # -- what was found ------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Inside, operations of torch on this thread are kernels of the compute lane."""
        with _Kernels(self):
            yield

    @property
    def in_flight(self) -> list[str]:
        """Copies that were given to a lane and have not ended."""
        return [work.name for queue in self._queues.values() for work in queue if isinstance(work, _Copy)]

    def check(self) -> None:
        """Look at the end of a step: no race was found, and no copy is in flight.

        Raises:
            LawBroken: L-RACE, with what was found.
        """
        wrong = [*self.races, *(f"{name}: still in flight" for name in self.in_flight)]
        if wrong:
            raise LawBroken("L-RACE", f"{len(wrong)} of the copies race:\n" + "\n".join(dict.fromkeys(wrong)))

    def kernel(self, reads: tuple[torch.Tensor, ...], writes: tuple[torch.Tensor, ...], what: str) -> None:
        """A kernel of the compute lane.

        Args:
            reads: tensors read.
            writes: tensors written or made.
            what: its name.
        """
        self._access(Lane.COMPUTE, reads, writes, what)

    # -- queues --------------------------------------------------------------------------------------------------------

    def _advance(self) -> None:
        """Do some of the work that could be done now, as chosen."""
        for lane, queue in self._queues.items():
            for _ in range(self._choose(0, len(queue)) if queue else 0):
                if not self._step(lane):
                    break

    def _run_until(self, event: TracedEvent) -> None:
        """Do the queued work that an event needs."""
        while not event.happened:
            if self._step(event.lane):
                continue
            work = self._queues[event.lane][0]
            assert isinstance(work, _Await)
            self._run_until(work.event)

    def _step(self, lane: Lane) -> bool:
        """Do half of a copy, or one other piece of work; whether it could be done."""
        queue = self._queues[lane]
        if not queue:
            return False
        work = queue[0]
        if isinstance(work, _Await) and not work.event.happened:
            return False
        if isinstance(work, _Copy) and not work.begun:
            work.begun = True
            if (target := work.target()) is not None:
                _poison(target, work.size)
            return True
        queue.popleft()
        if isinstance(work, _Copy):
            self._finish(work)
        elif isinstance(work, _Happen):
            work.event.happened = True
        return True

    def _finish(self, work: _Copy) -> None:
        target, source = work.target(), work.source()
        if target is None or source is None:
            self.races.append(f"{work.name}: memory went away while it was under way")
            return
        with no_modes():
            target[: work.size].copy_(source[: work.size])

    # -- accesses ------------------------------------------------------------------------------------------------------

    def _access(self, lane: Lane, reads: tuple[torch.Tensor, ...], writes: tuple[torch.Tensor, ...], what: str) -> None:
        """Tell torch's detector; what was found before is known by its text."""
        self._launch(lane, {storage_key(t) for t in reads}, {storage_key(t) for t in writes}, what)

    def _watch(self, block: torch.Tensor) -> None:
        """See the end of a storage."""
        key = storage_key(block)
        if key not in self._watched:
            self._watched.add(key)
            weakref.finalize(block.untyped_storage(), self._gone, key).atexit = False

    def _gone(self, key: int) -> None:
        """A storage has no reference left: the compute lane gives its memory to the next tensor."""
        self._watched.remove(key)
        self._launch(Lane.COMPUTE, set(), {key}, "memory without a reference, used again")

    def _launch(self, lane: Lane, reads: set[int], writes: set[int], what: str) -> None:
        names: dict[int, list[str]] = {key: [] for key in reads | writes}
        errors = self._handler._handle_kernel_launch(_STREAM[lane], reads - writes, writes, set(), what, names)
        for error in errors:
            assert isinstance(error, UnsynchronizedAccessError)
            before = error.previous_access
            self.races.append(
                f"{what} ({error.current_access.type}) is not ordered behind {before.operator} ({before.type})"
            )


class _Kernels(DispatchMode):
    """Reports operations to a device."""

    def __init__(self, device: TracingDevice) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.tracing = device

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operation; one that makes a view, or makes its argument one, touches nothing."""
        kwargs = kwargs or {}
        reads, writes = _touched(func, args, kwargs)
        results = func(*args, **kwargs)
        if all(returned.alias_info is None for returned in func._schema.returns):
            writes += tuple(leaf for leaf in flatten(results)[0] if isinstance(leaf, torch.Tensor))
        if reads or writes:
            self.tracing.kernel(reads, writes, str(func))
        return results


def _touched(
    func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[torch.Tensor, ...], tuple[torch.Tensor, ...]]:
    """The tensors whose memory an operation reads, and those among its arguments whose memory it writes."""
    schema = func._schema
    if torch.Tag.inplace_view in func.tags or _MADE_LIKE.fullmatch(schema.name):
        return (), ()
    named = [(argument, value) for argument, value in zip(schema.arguments, args, strict=False)]
    named += [(argument, kwargs[argument.name]) for argument in schema.arguments if argument.name in kwargs]
    reads: list[torch.Tensor] = []
    writes: list[torch.Tensor] = []
    for argument, value in named:
        tensors = [leaf for leaf in flatten(value)[0] if isinstance(leaf, torch.Tensor)]
        if argument.alias_info is None:
            reads += tensors
        elif argument.alias_info.is_write:
            writes += tensors
    return tuple(reads), tuple(writes)


def _while_alive(block: torch.Tensor) -> Callable[[], torch.Tensor | None]:
    """A block for as long as somebody else holds its memory."""
    storage, offset, size = storage_while_alive(block), block.storage_offset(), block.numel()

    def again() -> torch.Tensor | None:
        alive = storage()
        if alive is None:
            return None
        with no_modes():
            return torch.empty(0, dtype=torch.uint8, device=alive.device).set_(alive, offset, (size,), (1,))

    return again


def _poisoned(size: Bytes) -> torch.Tensor:
    with no_modes():
        return torch.full((size,), POISON, dtype=torch.uint8, device="cpu")


def _poison(tensor: torch.Tensor, size: Bytes) -> None:
    with no_modes():
        tensor[:size].fill_(POISON)


__all__ = ["POISON", "TracedEvent", "TracingDevice", "late"]
