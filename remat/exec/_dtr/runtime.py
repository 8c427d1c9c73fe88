"""The runtime under the wrapper tensors: each operation reserves its memory, runs, and can be run again.

Tensors that the program brings along (parameters, inputs, buffers) are constants: they are never evicted, and cost nothing.
What is handed to the program is never evicted either, and counts until torch frees it. A write to a constant is a write; calls
that read what was there before read a copy from then on. A write to anything else makes a new storage of the same memory.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch

from remat.algorithms._dtr.online import Call, Core, Out, OutOfRoom, Run, Stored, Thrashing, Value
from remat.algorithms._dtr.scores import Score
from remat.errors import Infeasible
from remat.exec._dtr.needs import Needs, NeedsTable, bytes_of
from remat.exec._dtr.operators import Facts, Operator, Times, call, facts_of, fill, split, states_of, version_of
from remat.exec._dtr.wrapper import RematTensor, wrapper_of
from remat.exec._program.kernels import copy_to_layout, no_autocast
from remat.exec._run.runtime import StepError
from remat.exec._torch import rng
from remat.exec._torch.torch_private import OpOverload, storage_key
from remat.exec._torch.wrappers import outside_modes, over, storage_copy
from remat.units import Bytes, format_bytes

VIEW = Needs([], cost=1, measured=True)
"""A view needs nothing."""
NUMBERS, NUMBER = (int, float, bool, complex), 16
"""A number of Python's in place of a tensor is a tensor of so many bytes at most, which autograd may keep."""
TINY = 0.01
"""Storages below this share of the mean size are evicted last."""


class Given(NamedTuple):
    """What an operation is given: its form with slots for tensors, the tensors, their values, and which are written."""

    form: tuple[Any, Any]
    tensors: list[torch.Tensor]
    values: list[Value]
    written: tuple[int, ...] = ()


class Runtime:
    """One budget, and all storages under it.

    Args:
        budget: bytes.
        score: what is evicted first.
        device: whose memory counts.
        limit: cost of a step over its cost without recomputation, above which it thrashes.
        seed: of the score `random`.

    Attributes:
        core: storages, scores and counts. needs: by signature. times: of the step so far.
        worked: the largest peak of a step that ended, by the ledger [bytes]; None: none has.
        in_forward: whether a forward is under way, so that plain tensors are such as lived before.
    """

    def __init__(self, budget: Bytes, score: Score, device: torch.device, *, limit: float, seed: int = 0) -> None:
        self.budget, self.device = budget, device
        self.core = Core(budget, score, limit=limit, seed=seed, tiny=TINY)
        self.core.view_of, self.core.overlap = _view_of, overlap
        self.needs = NeedsTable(device)
        self._state_bytes = rng.state_bytes(device)
        self.worked: Bytes | None = None
        self.times = Times()
        self.in_forward = False
        self.on_gradients_of: Callable[[torch.Tensor], None] = lambda _tensor: None
        self._seen: dict[int, tuple[torch.Tensor, Value]] = {}
        self._constants: dict[int, weakref.ref[Stored]] = {}
        self._outside: dict[int, tuple[Any, Bytes]] = {}
        self._depth = 0

    # -- operations ----------------------------------------------------------------------------------------------------

    def dispatch(self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run an operation below autograd on tensors of any kind; its results as wrapper tensors.

        Raises:
            Infeasible: it does not fit, whatever is evicted, or recomputation passed its limit.
            StepError: X-WRITE, X-TENSOR: it cannot be run here.
        """
        began = time.perf_counter_ns()
        self._depth += 1
        try:
            facts = facts_of(func)
            with self.errors(facts.name):
                return self._dispatch(func, facts, (args, kwargs))
        finally:
            self._depth -= 1
            if not self._depth:
                self.times.spent += time.perf_counter_ns() - began

    def _dispatch(self, func: OpOverload, facts: Facts, arguments: tuple[tuple[Any, ...], dict[str, Any]]) -> Any:
        args, kwargs = arguments
        tensors: list[torch.Tensor] = []
        written: list[int] = []
        places = dict(zip(facts.order, args, strict=False)) | kwargs
        parts: dict[str, Any] = {}
        for name, value in places.items():
            first = len(tensors)
            parts[name] = split(value, tensors)
            if name in facts.writes:
                written += range(first, len(tensors))
        form = (tuple(parts[name] for name in facts.order[: len(args)]), {name: parts[name] for name in kwargs})
        if any(tensor.layout is not torch.strided for tensor in tensors):
            what = f"{func} is given a tensor that is not strided, which this runtime cannot keep."
            raise StepError("X-TENSOR", what, fix="use plain strided tensors (no sparse gradients).")
        given = Given(form, tensors, [self.value_of(tensor) for tensor in tensors], tuple(written))
        if facts.same and len(tensors) == 1:
            return self._same(func, tensors[0])
        if written:
            return self._write(func, facts, given)
        if facts.scalar:
            return self._unrecorded(func, given)
        return self._compute(func, facts, given)

    def _same(self, func: OpOverload, tensor: torch.Tensor) -> torch.Tensor:
        """Another tensor for the same value; of a plain tensor a plain one, which torch may look into (`numpy` asks for one)."""
        if not isinstance(tensor, RematTensor):
            if func._schema.name == "aten::lift_fresh":  # the forward brought it into being
                self.track(tensor)
            return call(func, (tensor,), {})  # type: ignore[no-any-return]
        value = self.value_of(tensor)
        self.core.get(value)
        return wrapper_of(value, self)

    def _compute(self, func: OpOverload, facts: Facts, given: Given) -> Any:
        """An operation that writes to nothing."""
        values = given.values
        operator = Operator(func, *given.form, self.device, self.times, count=len(values))
        if facts.once and self._training(facts, given.form):
            operator.once = frozenset(_slots(given.form, facts))
        if facts.view:
            needs = VIEW
        else:
            needs = self.needs.of(func, facts, given.form, given.tensors)
            if facts.draws:
                self._remember_generators(operator, given)
        if self.in_forward and any(
            at < len(given.form[0]) and type(given.form[0][at]) in NUMBERS for at in facts.tensors
        ):
            self.core.make_room(NUMBER)
            operator.weights.append(self.core.constant(None, NUMBER))
        record = Call(tuple(values), self._learning(operator, needs), cost=needs.cost, name=facts.name)
        record.room = needs.size
        results = self._perform(record, operator, needs)
        return fill(operator.result, [self._wrapped(value) for value in results])

    def _perform(self, record: Call, operator: Operator, needs: Needs) -> list[Value | None]:
        """The first run of a call, and its results; those that it reads of the program note it."""
        aside = self._state_bytes if operator.states else 0  # a rerun puts the present state aside
        record.work, record.spare = needs.work + aside, needs.estimate

        def describe(results: Sequence[torch.Tensor]) -> list[Out | None]:
            record.work, record.spare = needs.work + aside, needs.estimate  # as they were measured meanwhile
            return self._described(record, results)

        record.describe = describe
        self.core.perform(record)
        for at, value in enumerate(record.args):
            storage = value.storage
            if storage.pinned and at not in operator.once:
                storage.readers.append(weakref.ref(record))
                if storage.source is not None:
                    operator.versions.append((at, storage.source, version_of(storage.source)))
        results, record.values = record.values, []
        return results

    def _described(self, record: Call, results: Sequence[torch.Tensor]) -> list[Out | None]:
        """What results are, from their payloads: sizes, and whose storages they share."""
        keys = [storage_key(value.payload) for value in record.args]
        outs: list[Out | None] = [Out(root.storage.size) for root in record.takes]
        fresh: dict[int, int] = {}
        for place, result in enumerate(results[len(outs) :], len(outs)):
            key = storage_key(result)
            if key in keys:
                outs.append(Out(0, keys.index(key)))
            elif key in fresh:
                outs.append(Out(0, -1, fresh[key]))
            else:
                fresh[key] = place
                outs.append(Out(self.size_of(result)))
        return outs

    def size_of(self, tensor: torch.Tensor) -> Bytes:
        """Bytes that a storage counts; those of other devices cost nothing here."""
        return self.needs.rounded(bytes_of(tensor)) if tensor.device.type == self.device.type else 0

    def _learning(self, operator: Operator, needs: Needs) -> Run:
        return operator if needs.measured else _Learning(operator, needs, self.needs)

    def _wrapped(self, value: Value | None) -> RematTensor:
        assert value is not None
        return wrapper_of(value, self)

    def _unrecorded(self, func: OpOverload, given: Given) -> Any:
        """An operation that returns no tensors: it only reads."""
        with self.resident(given.values) as payloads:
            return call(func, fill(given.form[0], payloads), fill(given.form[1], payloads))

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

    def _training(self, facts: Facts, form: tuple[Any, Any]) -> bool:
        """Whether a batch normalisation uses the batch's own statistics, and updates the others."""
        name = next((name for name in ("training", "train", "use_input_stats") if name in facts.order), None)
        if name is None:
            return False
        at = facts.order.index(name)
        return bool(form[0][at] if at < len(form[0]) else form[1].get(name, False))

    def _remember_generators(self, operator: Operator, given: Given) -> None:
        """Note the state of what an operation draws from, for when it is run again."""
        args, kwargs = given.form
        names = facts_of(operator.func).order
        named = dict(zip(names, args, strict=False)) | kwargs
        if named.get("dropout_p", None) == 0.0:
            return
        generator = named.get("generator")
        sources = [generator] if generator is not None else sorted({torch.device("cpu"), self.device}, key=str)
        self.core.make_room(self._state_bytes)
        operator.states = states_of(sources)
        operator.weights.append(self.core.constant(None, self._state_bytes))

    # -- writes --------------------------------------------------------------------------------------------------------

    def _write(self, func: OpOverload, facts: Facts, given: Given) -> Any:
        """An operation that writes to some of its tensors."""
        if facts.reshapes:
            what = f"{func} changes the form of a tensor in place, which this runtime cannot do."
            raise StepError("X-WRITE", what, fix="use the operation that returns the result.")
        written = [given.values[at].storage for at in given.written]
        if any(storage.pinned for storage in written):
            for storage in written:
                self._pin(storage, given.values)
            return self._write_for_good(func, facts, given)
        return self._overwrite(func, facts, given)

    def _pin(self, storage: Stored, values: Sequence[Value]) -> None:
        value = next(value for value in values if value.storage is storage)
        self.core.get(value)
        self.core.pin(storage)
        storage.version = -1

    def _write_for_good(self, func: OpOverload, facts: Facts, given: Given) -> Any:
        """A write to what is never evicted: it happens once. Results besides are never evicted either."""
        with self.resident(given.values) as payloads:
            for storage in {id(given.values[at].storage): given.values[at].storage for at in given.written}.values():
                self._preserve(storage, given.values)
            needs = self.needs.of(func, facts, given.form, given.tensors)
            self.core.make_room(needs.work + needs.size, needs.estimate)

            def run() -> Any:
                return call(func, fill(given.form[0], payloads), fill(given.form[1], payloads))

            out = self.needs.measured(needs, run)
        results: list[torch.Tensor] = []
        form = split(out, results)
        return fill(form, [self._result(result, payloads, given) for result in results])

    def _result(self, result: torch.Tensor, payloads: list[Any], given: Given) -> torch.Tensor:
        """What the program gets for a result of a write: the tensor that was written, or one of its own."""
        at = next((at for at in given.written if payloads[at] is result), None)
        if at is not None:
            return given.tensors[at]
        return wrapper_of(self.core.constant(result, self.size_of(result)), self)

    def _preserve(self, storage: Stored, values: Sequence[Value]) -> None:
        """Calls that read a storage which is about to be written read a copy of it from now on."""
        readers = [
            record for ref in storage.readers if (record := ref()) is not None and any(o and o() for o in record.outs)
        ]
        storage.readers.clear()
        readers = [record for record in readers if any(arg.storage is storage for arg in record.args)]
        if not readers:
            return
        payload = next(value.payload for value in values if value.storage is storage)
        size = self.size_of(payload)
        self.core.make_room(size)
        copied = storage_copy(payload)
        kept = self.core.constant(copied, size)
        again: dict[int, Value] = {}
        for record in readers:
            operator = _operator_of(record)
            for arg in record.args:
                if arg.storage is storage and id(arg) not in again:
                    again[id(arg)] = Value(kept.storage, None, 0, over(copied, arg.payload))
            operator.versions = [item for item in operator.versions if record.args[item[0]].storage is not storage]
            record.args = tuple(again.get(id(arg), arg) for arg in record.args)

    def _overwrite(self, func: OpOverload, facts: Facts, given: Given) -> Any:
        """A write to memory of the step: the storage as it is afterwards is a new one in the same memory."""
        values, core = given.values, self.core
        places = list({id(values[at].storage): at for at in reversed(given.written)}.values())
        roots = [values[at].storage.live_values()[0] for at in places]
        count = len(values)
        operator = Operator(func, *given.form, self.device, self.times, count=count)
        operator.writes = given.written
        operator.roots = tuple((id(root.storage), count + number) for number, root in enumerate(roots))
        operator.of_root = [[at for at, value in enumerate(values) if value.storage is root.storage] for root in roots]
        if facts.draws:
            self._remember_generators(operator, given)
        needs = self.needs.of(func, facts, given.form, given.tensors)
        record = Call((*values, *roots), self._learning(operator, needs), cost=needs.cost, name=facts.name)
        record.takes, record.written = tuple(roots), tuple(values[at] for at in given.written)
        record.room = needs.size + sum(root.storage.size for root in roots)
        results = self._perform(record, operator, needs)
        record.written = ()
        form, at_results = operator.result
        fresh = iter(results[len(roots) :])
        result = fill(form, [given.tensors[at] if at >= 0 else self._wrapped(next(fresh)) for at in at_results])
        core.settle()
        return result

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
        if tensor.dim() or tensor.requires_grad:
            self._seen[id(tensor)] = (tensor, value)
        else:  # a number of Python's, most often, which torch has just made a tensor of
            self.track(value.payload)
        return value

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
        key = storage_key(payload)
        ref = self._constants.get(key)
        storage = None if ref is None else ref()
        if storage is None:
            value = self.core.constant(payload)
            value.storage.source = tensor
            self._constants[key] = weakref.ref(value.storage)
        else:
            value = Value(storage, None, 0, payload)
        if not self.in_forward:
            self.track(payload)
        if tensor.requires_grad:
            self.on_gradients_of(tensor)
        return value

    def standing_for(self, value: Value) -> RematTensor:
        """A wrapper tensor for a value, which is computed again if need be."""
        with self.errors("reading a saved tensor"), no_autocast(self.device), outside_modes():
            self.core.get(value)
            return wrapper_of(value, self)

    def enter(self, tensor: torch.Tensor) -> RematTensor:
        """A wrapper tensor for a plain one."""
        return wrapper_of(self.value_of(tensor), self)

    def hand_out(self, value: Value) -> torch.Tensor:
        """A plain tensor with a value, in the same memory, which is not evicted any more."""
        with self.errors("reading a tensor"), no_autocast(self.device), outside_modes():
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
            self.errors("handing out a gradient"),
            outside_modes(),
            self.resident([value]) as payloads,
            torch.no_grad(),
        ):
            (payload,) = payloads
            self.core.make_room(self.needs.rounded(payload.numel() * payload.element_size()))
            copied = copy_to_layout(payload, tuple(payload.shape), stride)
            self.track(copied)
        return copied

    def track(self, tensor: torch.Tensor) -> None:
        """Count memory that the step holds outside, until torch frees it."""
        if storage_key(tensor) not in self._outside:
            self._count_outside(tensor, self.size_of(tensor))

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
    def errors(self, name: str) -> Iterator[None]:
        """What the core cannot do, as errors of this library."""
        try:
            yield
        except OutOfRoom as error:
            need = error.need + error.kept
            what = (
                f"{name} needs {format_bytes(error.need)} while {format_bytes(error.kept)} cannot be evicted: "
                f"{format_bytes(need)} ({need} B) at once, and the budget is {format_bytes(self.budget)} "
                f"({self.budget} B). {self._what_worked()}"
            )
            fix = "give more, or make the batch smaller."
            raise Infeasible(what, budget=self.budget, smallest=self.worked, floor=need, fix=fix) from None
        except Thrashing:
            what = (
                f"recomputation costs more than {self.core.limit:g} times the step: {self.core.remats} recomputations of "
                f"{self.core.calls} operations within {format_bytes(self.budget)} ({self.budget} B). {self._what_worked()}"
            )
            fix = "give more, or another score."
            raise Infeasible(what, budget=self.budget, smallest=self.worked, floor=0, fix=fix) from None

    def _what_worked(self) -> str:
        if self.worked is None:
            return "No step has ended within it yet."
        return f"The smallest budget known to work is that of the steps before: {format_bytes(self.worked)} ({self.worked} B)."


class _Learning:
    """The first run of an operation whose workspace is not known; afterwards the operation."""

    __slots__ = ("needs", "operator", "table")

    def __init__(self, operator: Operator, needs: Needs, table: NeedsTable) -> None:
        self.operator, self.needs, self.table = operator, needs, table

    def __call__(self, payloads: list[Any]) -> Sequence[Any]:
        if self.operator.ran:
            return self.operator(payloads)
        results: Sequence[Any] = self.table.measured(self.needs, lambda: self.operator(payloads))
        return results


def _operator_of(record: Call) -> Operator:
    run: Any = record.run
    operator: Operator = run.operator if isinstance(run, _Learning) else run
    return operator


def _slots(form: tuple[Any, Any], facts: Facts) -> list[int]:
    """Places of the tensors that an operation writes to without saying so."""
    tensors = dict(zip(facts.order, form[0], strict=False)) | form[1]
    return [tensors[name].at for name in facts.once if tensors.get(name) is not None]


def _view_of(value: Value) -> Run:
    """What looks at a storage that was overwritten as a value looked at the storage before."""
    form = value.payload

    shape, stride, offset, dtype = form.shape, form.stride(), form.storage_offset(), form.dtype

    def run(payloads: list[Any]) -> Sequence[Any]:
        (root,) = payloads
        empty = torch.empty(0, dtype=dtype, device=root.device)
        return [empty.set_(root.untyped_storage(), offset, shape, stride)]

    return run


def overlap(first: Value, second: Value) -> bool:
    """Whether two values in one storage have elements in common; True where that is not clear from their strides."""
    mine, theirs = first.payload, second.payload
    if mine is None or theirs is None or mine.dtype != theirs.dtype or mine.stride() != theirs.stride():
        return True
    shapes = [mine.shape, theirs.shape]
    order = sorted((stride, at) for at, stride in enumerate(mine.stride()) if max(shape[at] for shape in shapes) > 1)
    begin, end, room = mine.storage_offset(), theirs.storage_offset(), None
    for stride, at in reversed(order):
        if stride == 0:
            return True
        places = (begin // stride, end // stride)
        begin, end = begin % stride, end % stride
        if room is not None and any(
            place + shape[at] > room // stride for place, shape in zip(places, shapes, strict=True)
        ):
            return True
        if places[0] + shapes[0][at] <= places[1] or places[1] + shapes[1][at] <= places[0]:
            return False
        room = stride
    return True


def detached(tensor: torch.Tensor) -> torch.Tensor:
    """Another tensor in the same memory, outside the graph."""
    with torch.no_grad(), outside_modes():
        return tensor.detach()
