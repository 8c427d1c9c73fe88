"""Operations that write to nothing: each reserves its memory, runs, and is recorded so that it can be run again."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from remat.algorithms._dtr.scores import Score
from remat.algorithms._dtr.values import Call, Out, Run, Value
from remat.exec._dtr.needs import Needs, NeedsTable
from remat.exec._dtr.operators import Facts, Operator, Rereads, call, facts_of, fill, states_of, version_of
from remat.exec._dtr.tensors import Tensors
from remat.exec._dtr.wrapper import RematTensor, wrapper_of
from remat.exec._torch import rng
from remat.exec._torch.torch_private import OpOverload, storage_key
from remat.units import Bytes

VIEW = Needs([], cost=1, measured=True)
"""A view needs nothing."""
NUMBERS, NUMBER = (int, float, bool, complex), 16
"""A Python number in place of a tensor is a tensor of at most so many bytes, which autograd may keep."""


class Given(NamedTuple):
    """What an operation is given: its form with slots for tensors, the tensors, their values, and which are written."""

    form: tuple[Any, Any]
    tensors: list[torch.Tensor]
    values: list[Value]
    written: tuple[int, ...] = ()


def may_be_lengths(tensor: torch.Tensor) -> bool:
    """Whether a tensor may be lengths or sizes of batches, which torch's composite functions read and write by data pointers.

    Such tensors stay plain where they are made of plain ones alone: a wrapper tensor has no memory to point to.
    """
    return tensor.dim() == 1 and tensor.dtype in (torch.int64, torch.int32) and tensor.device.type == "cpu"


class Recorder(Tensors):
    """Runs operations that write to nothing, and records them."""

    def __init__(self, budget: Bytes, score: Score, device: torch.device, *, limit: float, seed: int = 0) -> None:
        super().__init__(budget, score, device, limit=limit, seed=seed)
        self.state_bytes = rng.state_bytes(device)

    def compute(self, func: OpOverload, facts: Facts, given: Given) -> Any:
        """An operation that writes to nothing."""
        values = given.values
        operator = Operator(func, *given.form, self.device, self.times, count=len(values))
        if facts.once and self._training(facts, given.form):
            operator.once = slots(given.form, facts, facts.once)
        if facts.view:
            needs = VIEW
        else:
            needs = self.needs.of(func, facts, given.form, given.tensors)
            if facts.draws:
                self.remember_generators(operator, given)
        if self.in_forward and any(
            at < len(given.form[0]) and type(given.form[0][at]) in NUMBERS for at in facts.tensors
        ):
            self.core.make_room(NUMBER)
            operator.weights.append(self.core.constant(None, NUMBER))
        record = Call(tuple(values), self.learning(operator, needs), cost=needs.cost, name=facts.name)
        record.room = needs.size
        results = self.perform(record, operator, needs)
        wrappers = [self.wrapped(value) for value in results]
        if facts.lengths or not any(isinstance(tensor, RematTensor) for tensor in given.tensors):
            return fill(operator.result, [item.plain() if may_be_lengths(item) else item for item in wrappers])
        return fill(operator.result, wrappers)

    def perform(self, record: Call, operator: Operator, needs: Needs) -> list[Value | None]:
        """The first run of a call, and its results; those that it reads of the program note it."""
        aside = self.state_bytes if operator.states else 0  # a rerun puts the present state aside
        record.work, record.spare = needs.work + aside, needs.estimate

        def describe(results: Sequence[torch.Tensor]) -> list[Out | None]:
            record.work, record.spare = needs.work + aside, needs.estimate  # as they were measured meanwhile
            return self.described(record, results)

        record.describe = describe
        self.core.perform(record)
        self.note_readers(record, operator)
        results, record.values = record.values, []
        return results

    def note_readers(self, record: Call, reader: Rereads) -> None:
        """Note that a call reads tensors of the program, which may be written."""
        for at, value in enumerate(record.args):
            storage = value.storage
            if storage.pinned and at not in reader.once:
                storage.readers.append(weakref.ref(record))
                if (source := self.source_of(value)) is not None:
                    reader.versions.append((at, source, version_of(source)))

    def described(self, record: Call, results: Sequence[Any], kept: Bytes = 0) -> list[Out | None]:
        """What results are, from their payloads: sizes, and whose storages they share; what is no tensor counts for `kept`."""
        keys = [storage_key(value.payload) if isinstance(value.payload, torch.Tensor) else -1 for value in record.args]
        outs: list[Out | None] = [Out(root.storage.size) for root in record.takes]
        fresh: dict[int, int] = {}
        for place, result in enumerate(results[len(outs) :], len(outs)):
            if not isinstance(result, torch.Tensor):
                outs.append(Out(kept))
            elif (key := storage_key(result)) in keys:
                outs.append(Out(0, keys.index(key)))
            elif key in fresh:
                outs.append(Out(0, -1, fresh[key]))
            else:
                fresh[key] = place
                outs.append(Out(self.size_of(result)))
        return outs

    def learning(self, operator: Operator, needs: Needs) -> Run:
        return operator if needs.measured else _Learning(operator, needs, self.needs)

    def wrapped(self, value: Value | None) -> RematTensor:
        assert value is not None
        return wrapper_of(value, self)

    def unrecorded(self, func: OpOverload, given: Given) -> Any:
        """An operation that returns no tensors: it only reads."""
        with self.resident(given.values) as payloads:
            return call(func, fill(given.form[0], payloads), fill(given.form[1], payloads))

    def _training(self, facts: Facts, form: tuple[Any, Any]) -> bool:
        """Whether a batch normalisation uses the batch's own statistics, and updates the others."""
        name = next((name for name in ("training", "train", "use_input_stats") if name in facts.order), None)
        if name is None:
            return False
        at = facts.order.index(name)
        return bool(form[0][at] if at < len(form[0]) else form[1].get(name, False))

    def remember_generators(self, operator: Operator, given: Given) -> None:
        """Note the state of what an operation draws from, for when it is run again."""
        args, kwargs = given.form
        names = facts_of(operator.func).order
        named = dict(zip(names, args, strict=False)) | kwargs
        if named.get("dropout_p", None) == 0.0:
            return
        generator = named.get("generator")
        sources = [generator] if generator is not None else sorted({torch.device("cpu"), self.device}, key=str)
        self.core.make_room(self.state_bytes)
        operator.states = states_of(sources)
        operator.weights.append(self.core.constant(None, self.state_bytes))


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


def operator_of(record: Call) -> Rereads:
    run: Any = record.run
    operator: Rereads = run.operator if isinstance(run, _Learning) else run
    return operator


def slots(form: tuple[Any, Any], facts: Facts, names: frozenset[str]) -> frozenset[int]:
    """Places of the tensors that are arguments of these names."""
    if not names:
        return frozenset()
    tensors = dict(zip(facts.order, form[0], strict=False)) | form[1]
    return frozenset(tensors[name].at for name in names if tensors.get(name) is not None)
