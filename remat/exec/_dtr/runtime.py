"""The runtime under the wrapper tensors: where operations come in, and those that write.

A write to a constant is a write; calls that read what was there before read a copy from then on. A write to anything else makes a
new storage of the same memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from remat.algorithms._dtr.values import Call, Stored, Value
from remat.exec._dtr.operators import SLOTS, Facts, Operator, call, facts_of, fill, split
from remat.exec._dtr.recorder import Given, Recorder, operator_of, slots
from remat.exec._dtr.wrapper import RematTensor, wrapper_of
from remat.exec._run.runtime import StepError
from remat.exec._torch.torch_private import OpOverload
from remat.exec._torch.wrappers import itself, over, reading_bits, storage_copy, view_form

ADD = torch.ops.aten.add.Tensor
"""What autograd adds gradients with."""
VIEWED = torch.ops.aten.as_strided.default
RESHAPES = {f"aten::{name}" for name in ("as_strided_", "squeeze_", "t_", "transpose_", "unsqueeze_")}
"""What makes of a tensor another view of its storage, in place; functions of torch do so with their results."""


class Runtime(Recorder):
    """One budget, and all storages under it: arguments and attributes as of `Tensors`."""

    def dispatch(self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run an operation below autograd on tensors of any kind; its results as wrapper tensors.

        Raises:
            Infeasible: it does not fit, whatever is evicted, or recomputation passed its limit.
            StepError: X-WRITE, X-TENSOR: it cannot be run here.
        """
        if func is ADD and len(args) == 2 and isinstance(args[1], RematTensor) and args[1]._pieces:
            for piece in args[1]._pieces:
                args = (self.dispatch(func, (args[0], piece), kwargs),)
            return args[0]
        facts = facts_of(func)
        conjugates, negatives = reading_bits()
        with self.working(facts.name), conjugates, negatives:
            return self._dispatch(func, facts, (args, kwargs))

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
        for tensor in tensors:
            if type(tensor) is RematTensor:
                tensor._uses[0] += 1
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
            return self.unrecorded(func, given)
        return self.compute(func, facts, given)

    def _same(self, func: OpOverload, tensor: torch.Tensor) -> torch.Tensor:
        """Another tensor for the same value; of a plain tensor a plain one, which torch may look into (`numpy` asks for one)."""
        if not isinstance(tensor, RematTensor):
            if func._schema.name == "aten::lift_fresh":  # the forward brought it into being
                self.track(tensor)
            return call(func, (tensor,), {})  # type: ignore[no-any-return]
        value = self.value_of(tensor)
        self.core.get(value)
        return wrapper_of(value, self)

    # -- writes --------------------------------------------------------------------------------------------------------

    def _write(self, func: OpOverload, facts: Facts, given: Given) -> Any:
        """An operation that writes to some of its tensors."""
        if facts.reshapes:
            return self._reshape(func, given)
        written = [given.values[at].storage for at in given.written]
        if any(storage.pinned for storage in written):
            for storage in written:
                self._pin(storage, given.values)
            return self._write_for_good(func, facts, given)
        return self._overwrite(func, facts, given)

    def _reshape(self, func: OpOverload, given: Given) -> torch.Tensor:
        """An operation that changes the form of a tensor in place: the tensor is another view of the same storage from now on.

        Not where views are concerned: autograd makes the views of wrapper tensors again from their bases, and would miss it.
        """
        tensor = given.tensors[0]
        if not isinstance(tensor, RematTensor) and func._schema.name == "aten::resize_" and not tensor._is_view():
            with itself():  # a buffer that gets its size in the first call
                call(func, fill(given.form[0], given.tensors), fill(given.form[1], given.tensors))
            self.forget(tensor)
            self.track(tensor)
            return tensor
        if tensor._is_view() or _other_tensors(tensor, given.values[0].storage):
            what = f"{func} changes the form of a view, or of a tensor that has views, in place, which this runtime cannot do."
            raise StepError("X-WRITE", what, fix="use the operation that returns the result.")
        if func._schema.name not in RESHAPES:
            what = f"{func} gives a tensor other memory in place, which this runtime cannot do."
            fix = (
                "use an operation that returns the result; recurrent nets of cuDNN do this where they are given packed "
                "sequences: switch `torch.backends.cudnn` off."
            )
            raise StepError("X-WRITE", what, fix=fix)
        with itself():
            call(func, fill(given.form[0], given.tensors), fill(given.form[1], given.tensors))
        self.forget(tensor)
        if isinstance(tensor, RematTensor):
            args = (SLOTS[0], tensor.size(), tensor.stride(), tensor.storage_offset())
            view = self.compute(VIEWED, facts_of(VIEWED), Given((args, {}), [tensor], given.values[:1]))
            tensor._handle, tensor._runtime = view._handle, self
        return tensor

    def _pin(self, storage: Stored, values: Sequence[Value]) -> None:
        value = next(value for value in values if value.storage is storage)
        self.core.get(value)
        self.core.pin(storage)
        storage.version = -1

    def _write_for_good(self, func: OpOverload, facts: Facts, given: Given) -> Any:
        """A write to what is never evicted: it happens once. Results besides are never evicted either."""
        with self.resident(given.values) as payloads:
            for storage in {id(given.values[at].storage): given.values[at].storage for at in given.written}.values():
                self.preserve(storage, given.values)
            needs = self.needs.of(func, facts, given.form, given.tensors)
            self.core.make_room(needs.work + needs.size, needs.estimate)

            def run() -> Any:
                return call(func, fill(given.form[0], payloads), fill(given.form[1], payloads))

            out = self.needs.measured(needs, run)
            for at in given.written:
                self._resize(func, given.tensors[at], payloads[at])
        results: list[torch.Tensor] = []
        form = split(out, results)
        return fill(form, [self._result(result, payloads, given) for result in results])

    def _resize(self, func: OpOverload, tensor: torch.Tensor, payload: torch.Tensor) -> None:
        """Give a plain tensor the size that an operation has given what stands for it."""
        if isinstance(tensor, RematTensor) or tensor.requires_grad:
            _check_size(func, tensor, payload)
        elif tensor.shape != payload.shape:
            with itself():
                tensor.set_(payload)  # type: ignore[call-overload]
            self.forget(tensor)
            self.track(payload)

    def _result(self, result: torch.Tensor, payloads: list[Any], given: Given) -> torch.Tensor:
        """What the program gets for a result of a write: the tensor that was written, or one of its own."""
        at = next((at for at in given.written if payloads[at] is result), None)
        if at is not None:
            return given.tensors[at]
        return wrapper_of(self.core.constant(result, self.size_of(result)), self)

    def assigned(self, tensor: torch.Tensor, value: Any) -> Any:
        """What a tensor gets the memory of where the program assigns its `.data`: of a plain tensor, which is not evicted.

        Raises:
            StepError: X-WRITE, where it is no tensor of the program.
        """
        if isinstance(tensor, RematTensor):
            what = "the forward assigns `.data` of a tensor that it computed, which this runtime cannot do."
            raise StepError(
                "X-WRITE", what, fix="write in place, `tensor.data.copy_(value)`, or compute another tensor."
            )
        before = self.storage_of(tensor)
        if before is not None and before.readers:
            self._replace(tensor, before)
        self.forget(tensor)
        if not isinstance(value, RematTensor) or value._runtime is not self:
            return value
        plain = value.plain()
        storage: Stored = value._handle.value.storage
        storage.source, storage.version = tensor, -1  # the program may write to it, as to its other tensors
        return plain

    def _replace(self, tensor: torch.Tensor, before: Stored) -> None:
        """A tensor that something has read gets other memory; operations run again on the memory before."""
        self.replaced[id(tensor)] = tensor
        for record in _readers(before):
            operator = operator_of(record)
            if not isinstance(operator, Operator):
                what = f"the forward assigns `.data` of a tensor that {record.name}, which runs by a plan, has read before."
                raise StepError("X-WRITE", what, fix="run the step again: it runs without that plan from now on.")
            operator.versions = [item for item in operator.versions if item[1] is not tensor]

    def preserve(self, storage: Stored, values: Sequence[Value]) -> None:
        """Calls that read a storage which is about to be written read a copy of it from now on."""
        readers = _readers(storage)
        storage.readers.clear()
        if not readers:
            return
        payload = next(value.payload for value in values if value.storage is storage)
        size = self.size_of(payload)
        self.core.make_room(size)
        copied = storage_copy(payload)
        kept = self.core.constant(copied, size)
        again: dict[int, Value] = {}
        for record in readers:
            operator = operator_of(record)
            for arg in record.args:
                if arg.storage is storage and id(arg) not in again:
                    again[id(arg)] = Value(kept.storage, None, 0, over(copied, view_form(arg.payload)))
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
            self.remember_generators(operator, given)
        needs = self.needs.of(func, facts, given.form, given.tensors)
        record = Call((*values, *roots), self.learning(operator, needs), cost=needs.cost, name=facts.name)
        unseen = slots(given.form, facts, facts.unversioned)
        record.takes, record.written = tuple(roots), tuple(values[at] for at in given.written if at not in unseen)
        record.room = needs.size + sum(root.storage.size for root in roots)
        results = self.perform(record, operator, needs)
        record.written = ()
        for at in given.written:
            _check_size(func, given.tensors[at], self.value_of(given.tensors[at]).payload)
        form, at_results = operator.result
        fresh = iter(results[len(roots) :])
        result = fill(form, [given.tensors[at] if at >= 0 else self.wrapped(next(fresh)) for at in at_results])
        core.settle()
        return result


def _readers(storage: Stored) -> list[Call]:
    """The calls that read a storage of the program and may run again."""
    readers = [
        record for ref in storage.readers if (record := ref()) is not None and any(o and o() for o in record.outs)
    ]
    return [record for record in readers if any(arg.storage is storage for arg in record.args)]


def _other_tensors(tensor: torch.Tensor, storage: Stored) -> bool:
    """Whether other wrapper tensors have their values in a storage; what autograd saved is no matter."""
    handles = [handle for ref in list(storage.handles.values()) if (handle := ref()) is not None and not handle.saved]
    return any(handle is not getattr(tensor, "_handle", None) for handle in handles)


def _check_size(func: OpOverload, tensor: torch.Tensor, payload: torch.Tensor) -> None:
    """Check that an operation has not given what it writes to another size, which the tensor in its place would not show.

    Raises:
        StepError: X-WRITE.
    """
    if tensor.shape != payload.shape:
        what = f"{func} resized a tensor that it writes to, from {list(tensor.shape)} to {list(payload.shape)}."
        raise StepError("X-WRITE", what, fix="give out= a tensor of the size of the result, or none.")
