"""Tensors of the program as values of the core: what comes in, what is handed out, and what that counts for.

Tensors that the program brings along (parameters, inputs, buffers) are constants: they are never evicted, and cost nothing.
What is handed to the program is never evicted either, and counts until torch frees it.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Self

import torch

from remat.algorithms._dtr.memory import OutOfRoom
from remat.algorithms._dtr.online import Core, Thrashing
from remat.algorithms._dtr.scores import Score
from remat.algorithms._dtr.values import Stored, Value
from remat.errors import Infeasible
from remat.exec._dtr.needs import NeedsTable, bytes_of
from remat.exec._dtr.operators import Times, version_of
from remat.exec._dtr.views import overlap, view_of
from remat.exec._dtr.wrapper import RematTensor, wrapper_of
from remat.exec._program.kernels import copy_to_layout, no_autocast
from remat.exec._run.runtime import StepError
from remat.exec._torch.exchange import EXCHANGE
from remat.exec._torch.torch_private import storage_key
from remat.exec._torch.wrappers import outside_modes
from remat.units import Bytes, format_bytes

TINY = 0.01
"""Storages below this share of the mean size are evicted last."""


class Tensors:
    """The tensors of the program under one budget.

    Args:
        budget: bytes.
        score: what is evicted first.
        device: whose memory counts.
        limit: cost of a step over its cost without recomputation, above which it thrashes.
        seed: of the score `random`.

    Attributes:
        core: storages, scores and counts. needs: of operations, by signature. times: of the step so far.
        worked: the largest peak of a completed step, by the ledger [bytes]; None: none has completed.
        turns: to be taken by a whole forward: several threads may train, one forward at a time.
        failed: whether something did not fit since this was last set to False.
        broken: whether Ctrl-C has ended a piece of work, so that the counts may be off: the next step is to have another runtime.
        doubled: whether gradients of gradients were asked for.
        replaced: tensors of the program that were given other memory after something had read them, by id.
        on_saved: told of the storages that autograd saves, while that is counted.
    """

    def __init__(self, budget: Bytes, score: Score, device: torch.device, *, limit: float, seed: int = 0) -> None:
        self.budget, self.device = budget, device
        self._settings = score, limit, seed
        self.core = Core(budget, score, limit=limit, seed=seed, tiny=TINY)
        self.core.view_of, self.core.overlap = view_of, overlap
        self.needs = NeedsTable(device)
        self.worked: Bytes | None = None
        self.times = Times()
        self.turns = EXCHANGE.turns()
        # never held while a kernel runs, which may wait for a backward of another thread
        self._entering = threading.RLock()
        self._forwards: set[int] = set()
        self.on_gradients_of: Callable[[torch.Tensor], None] = lambda _tensor: None
        self.failed = self.doubled = self.broken = False
        self.replaced: weakref.WeakValueDictionary[int, torch.Tensor] = weakref.WeakValueDictionary()
        self.on_saved: Callable[[Stored], None] | None = None
        self._depth = 0
        self._seen: dict[int, tuple[torch.Tensor, Value]] = {}
        self._sharing: weakref.WeakKeyDictionary[Value, torch.Tensor] = weakref.WeakKeyDictionary()
        self._constants: dict[int, weakref.ref[Stored]] = {}
        self._outside: dict[int, tuple[Any, Bytes]] = {}

    def renewed(self) -> Self:
        """The same without storages, where Ctrl-C has ended a piece of work; else itself. Operations are measured again."""
        if not self.broken:
            return self
        score, limit, seed = self._settings
        fresh = type(self)(self.budget, score, self.device, limit=limit, seed=seed)
        fresh.worked = self.worked
        return fresh

    def was_interrupted(self) -> None:
        """Ctrl-C has ended a forward."""
        self.broken = True

    @property
    def in_forward(self) -> bool:
        """Whether a forward is running in this thread, so that new plain tensors existed before it."""
        return threading.get_ident() in self._forwards

    @contextmanager
    def forward(self) -> Iterator[None]:
        """Inside, a forward is running in this thread."""
        thread = threading.get_ident()
        outermost = thread not in self._forwards
        self._forwards.add(thread)
        try:
            yield
        finally:
            if outermost:
                self._forwards.discard(thread)

    # -- tensors of the program ----------------------------------------------------------------------------------------

    def value_of(self, tensor: torch.Tensor) -> Value:
        """The value that a tensor stands for; plain tensors, and those of other runtimes, are constants."""
        if isinstance(tensor, RematTensor):
            if tensor._runtime is self:
                value: Value = tensor._handle.value
                if value.storage.version >= 0:
                    self._check_unwritten(value.storage)
                return value
            tensor = tensor.plain()
        seen = self._seen.get(id(tensor))
        if seen is not None and seen[0] is tensor:
            return seen[1]
        value = self._constant(tensor)
        if tensor.requires_grad or (tensor.dim() and not self.tracks(value.payload)):
            self._seen[id(tensor)] = (tensor, value)
        else:  # made by the step, or a number of Python's, which torch has just made a tensor of: not kept for longer
            self.track(value.payload)
        return value

    def storage_of(self, tensor: torch.Tensor) -> Stored | None:
        """The storage of a plain tensor; None: nothing has read it yet."""
        ref = self._constants.get(storage_key(tensor))
        return None if ref is None else ref()

    def source_of(self, value: Value) -> torch.Tensor | None:
        """The tensor of the program that counts the writes to what a value looks at: of shards of one block, each its own."""
        storage = value.storage
        while self._sharing and value.call is not None and value.call.args:
            value = next((arg for arg in value.call.args if arg.storage is storage), value.call.args[0])
            if value.storage is not storage:
                break
        source: torch.Tensor | None = storage.source
        return source if source is None else self._sharing.get(value, source)

    def forget(self, tensor: torch.Tensor) -> None:
        """A plain tensor is another view of its storage than it was."""
        self._seen.pop(id(tensor), None)

    def _check_unwritten(self, storage: Stored) -> None:
        """What was handed to the program is as it was."""
        if version_of(storage.source) != storage.version:
            what = (
                f"a tensor in {format_bytes(storage.size)} that was handed out, as an output or a gradient, was written in "
                "place, and the step needs what was there."
            )
            raise StepError("X-WRITE", what, fix="write to it after the backward, or to a clone.")

    def _constant(self, tensor: torch.Tensor) -> Value:
        """A constant; two tensors in one memory are values of one storage."""
        payload = detached(tensor)
        if payload.layout is not torch.strided:
            what = "a tensor that is not strided comes into the step, which this runtime cannot keep."
            raise StepError("X-TENSOR", what, fix="use plain strided tensors.")
        with self._entering:
            storage = self.storage_of(payload)
            if storage is None:
                value = self.core.constant(payload)
                value.storage.source = tensor
                self._constants[storage_key(payload)] = weakref.ref(value.storage)
            else:
                value = Value(storage, None, 0, payload)
                self._sharing[value] = tensor
        if not self.in_forward:
            self.track(payload)
        if tensor.requires_grad:
            self.on_gradients_of(tensor)
        return value

    def standing_for(self, value: Value) -> RematTensor:
        """A wrapper tensor for a value, which is computed again if need be."""
        with self.working("reading a saved tensor"), no_autocast(self.device), outside_modes():
            self.core.get(value)
            return wrapper_of(value, self)

    def enter(self, tensor: torch.Tensor) -> RematTensor:
        """A wrapper tensor for a plain one."""
        return wrapper_of(self.value_of(tensor), self)

    def hand_out(self, value: Value) -> torch.Tensor:
        """A plain tensor with a value, in the same memory, which is not evicted any more."""
        with self.working("reading a tensor"), no_autocast(self.device), outside_modes():
            payload: torch.Tensor = self.core.get(value)
            storage = value.storage
            given = detached(payload)
            if not storage.pinned:
                self.core.pin(storage)
                storage.source = detached(given)
                storage.version = version_of(storage.source)
                self._constants[storage_key(payload)] = weakref.ref(storage)
                size, storage.charged = storage.charged, 0
                self.core.memory -= size
                self._count_outside(payload, size)
        return given

    def copy_out(self, value: Value, stride: tuple[int, ...]) -> torch.Tensor:
        """A plain tensor of its own with a value, with these strides."""
        with (
            self.working("handing out a gradient"),
            outside_modes(),
            self.resident([value]) as payloads,
            torch.no_grad(),
        ):
            (payload,) = payloads
            self.core.make_room(self.needs.rounded(payload.numel() * payload.element_size()))
            copied = copy_to_layout(payload, tuple(payload.shape), stride)
            self.track(copied)
        return copied

    def size_of(self, tensor: torch.Tensor) -> Bytes:
        """Bytes that a storage counts; those of other devices cost nothing here."""
        return self.needs.rounded(bytes_of(tensor)) if tensor.device.type == self.device.type else 0

    @contextmanager
    def resident(self, values: Sequence[Value]) -> Iterator[list[Any]]:
        """The payloads of values, which stay until the end."""
        locked: list[Stored] = []
        self.core.busy += 1
        try:
            for value in values:
                self.core.get(value)
                self.core.lock(value.storage)
                locked.append(value.storage)
            yield [value.payload for value in values]
        finally:
            for storage in locked:
                self.core.unlock(storage)
            self.core.busy -= 1
            self.core.settle()

    def track(self, tensor: torch.Tensor) -> None:
        """Count memory that the step holds outside, until torch frees it."""
        if not self.tracks(tensor):
            self._count_outside(tensor, self.size_of(tensor))

    def tracks(self, tensor: torch.Tensor) -> bool:
        """Whether a plain tensor was made by the step."""
        return storage_key(tensor) in self._outside

    def _count_outside(self, tensor: torch.Tensor, size: Bytes) -> None:
        storage, key = tensor.untyped_storage(), storage_key(tensor)
        self.core.memory += size
        self.core.peak = max(self.core.peak, self.core.memory)
        watch = weakref.finalize(storage, self._freed, key)
        watch.atexit = False
        self._outside[key] = (watch, size)

    def _freed(self, key: int) -> None:
        _, size = self._outside.pop(key, (None, 0))
        self.core.memory -= size

    # -- steps ---------------------------------------------------------------------------------------------------------

    @property
    def outside(self) -> Bytes:
        """Bytes that the program holds of what was handed to it."""
        return sum(size for _, size in self._outside.values())

    def begin(self) -> None:
        """A forward begins; where nothing of a step before it is left, what the program holds lived before the step."""
        self._seen.clear()
        self._constants = {key: ref for key, ref in self._constants.items() if ref() is not None}
        if self.core.memory == self.outside:
            for watch, size in self._outside.values():
                watch.detach()
                self.core.memory -= size
            self._outside.clear()
            self.worked = max(self.worked or 0, self.core.peak) if self.core.calls else self.worked
            self.core.reserve = 0
            self.core.begin_step()
            self.times.spent = self.times.kernels = 0

    def end_forward(self) -> None:
        """A forward ended."""
        self._seen.clear()

    @contextmanager
    def working(self, name: str) -> Iterator[None]:
        """A piece of the runtime's work: its time counts, and what the core cannot do becomes an error of this library."""
        with self.core.mutex:
            began = time.perf_counter_ns()
            self._depth += 1
            try:
                yield
            except OutOfRoom as error:
                self.failed, need = True, error.need + error.kept
                what = (
                    f"{name} needs {format_bytes(error.need)} while {format_bytes(error.kept)} cannot be evicted: "
                    f"{format_bytes(need)} ({need} B) at once, and the budget is {format_bytes(self.budget)} "
                    f"({self.budget} B). {self._what_worked()}"
                )
                fix = "give more, or make the batch smaller."
                raise Infeasible(what, budget=self.budget, smallest=self.worked, floor=need, fix=fix) from None
            except Thrashing:
                self.failed = True
                what = (
                    f"recomputation costs more than {self.core.limit:g} times the step: {self.core.remats} recomputations of "
                    f"{self.core.calls} operations within {format_bytes(self.budget)} ({self.budget} B). {self._what_worked()}"
                )
                fix = "give more, or another score."
                raise Infeasible(what, budget=self.budget, smallest=self.worked, floor=0, fix=fix) from None
            except BaseException as error:
                self.broken = self.broken or not isinstance(error, Exception)
                raise
            finally:
                self._depth -= 1
                if not self._depth:
                    self.times.spent += time.perf_counter_ns() - began

    def _what_worked(self) -> str:
        if self.worked is None:
            return "No step has ended within it yet."
        return f"The smallest budget known to work is that of the steps before: {format_bytes(self.worked)} ({self.worked} B)."


def detached(tensor: torch.Tensor) -> torch.Tensor:
    """Another tensor in the same memory, outside the graph."""
    with torch.no_grad(), outside_modes():
        return tensor.detach()
