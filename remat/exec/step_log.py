"""`log_step`: the log of a real PyTorch step, in the format of DTR's simulators (Kirisame et al., ICLR 2021, appendix C.6).

A dispatch mode records every operation below autograd. Tensors are told apart by their storages: a storage that no operation
of the step created is a constant; a result that shares the storage of an argument is an alias of it; a storage is released
when torch frees it, whether Python or autograd referred to it. An operation that writes in place creates a new tensor for its
target, as the format requires; later reads of other views of that storage are logged as views of the new tensor, so that they
see the written values.
"""

from __future__ import annotations

import os
import time
import weakref
from collections.abc import Callable
from typing import Any

import torch
from attrs import define, field

from remat.algorithms.dynamic import (
    Alias,
    Annotate,
    Call,
    Constant,
    Instruction,
    Memory,
    Mutate,
    Release,
    write_instructions,
)
from remat.errors import BadArgument
from remat.exec._torch.torch_private import DispatchMode, OpOverload, flatten, storage_key
from remat.ir.json_document import write_whole

Cost = Callable[[OpOverload, list[torch.Tensor], list[torch.Tensor], int], int]
"""Cost of an operation, given the operation, its arguments, its results, and its time [ns]."""


def measured(operation: OpOverload, args: list[torch.Tensor], results: list[torch.Tensor], took: int) -> int:
    """The time of the operation, at least 1 ns."""
    return max(1, took)


def by_bytes(operation: OpOverload, args: list[torch.Tensor], results: list[torch.Tensor], took: int) -> int:
    """Bytes read and written, at least 1: the same in every run. Views cost 1."""
    if not results or all(any(_shares(result, arg) for arg in args) for result in results):
        return 1
    return 1 + sum(tensor.numel() * tensor.element_size() for tensor in (*args, *results))


COSTS: dict[str, Cost] = {"time": measured, "bytes": by_bytes}
"""The costs by name."""


def log_step(
    step: Callable[[], object], path: str | os.PathLike[str] | None = None, *, cost: str | Cost = "time"
) -> list[Instruction]:
    """Run a step once and log it.

    Args:
        step: a function without arguments: forward, loss and backward. Its result counts as referenced at the end, like
            everything that outlives the step (gradients of parameters).
        path: file for the log, one JSON object per line, gzipped when its name ends in `.gz`; None: no file.
        cost: of an operation: `time` (measured), `bytes` (read and written, the same in every run), or a function.

    Raises:
        BadArgument: X-ARG, for another cost.
    """
    if isinstance(cost, str) and cost not in COSTS:
        raise BadArgument("X-ARG", f"cost {cost!r} is not one of {', '.join(COSTS)}.", fix="give one, or a function.")
    mode = StepLog(COSTS[cost] if isinstance(cost, str) else cost)
    with mode:
        kept = step()
    mode.end()
    del kept
    if path is not None:
        write_whole(path, "".join(line + "\n" for line in write_instructions(mode.log)).encode())
    return mode.log


@define
class _Storage:
    """A live storage: the name of the tensor that covers it, and the names of its views by their geometry."""

    root: str
    views: dict[tuple[object, ...], str] = field(factory=dict)


class StepLog(DispatchMode):
    """The mode that writes the log; call `end` before the result of the step is released."""

    def __init__(self, cost: Cost) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.log: list[Instruction] = [Annotate("START")]
        self._cost = cost
        self._storages: dict[int, _Storage] = {}
        self._watched: list[weakref.finalize[Any, Any]] = []
        self._number = 0

    def end(self) -> None:
        """Stop watching storages."""
        for watch in self._watched:
            watch.detach()
        self._storages.clear()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operation and log it."""
        tensors, written = _arguments(func, args, kwargs or {})
        names = [self._name_of(tensor) for tensor in tensors]
        began = time.perf_counter_ns()
        out = func(*args, **(kwargs or {}))
        took = time.perf_counter_ns() - began
        results = [leaf for leaf in flatten(out)[0] if isinstance(leaf, torch.Tensor)]
        self._operation(func, (tensors, names, written), results, self._cost(func, tensors, results, took))
        return out

    def _operation(self, func: OpOverload, given: tuple[list[torch.Tensor], list[str], list[int]],
                   results: list[torch.Tensor], cost: int) -> None:  # fmt: skip
        tensors, names, written = given
        changed = {storage_key(tensors[place]) for place in written}
        fresh = [result for result in results if storage_key(result) not in changed]
        if fresh or not written:
            self._call(func, tensors, names, fresh, cost)
            cost = 0
        if written:
            self._mutate(func, tensors, names, written, cost)

    def _divided(
        self, tensors: list[torch.Tensor], results: list[torch.Tensor]
    ) -> tuple[list[tuple[str, torch.Tensor, int]], list[torch.Tensor]]:
        """Results with new names and the places of the arguments they are views of (-1: none), and views of earlier results."""
        keys = [storage_key(tensor) for tensor in tensors]
        named: list[tuple[str, torch.Tensor, int]] = []
        late: list[torch.Tensor] = []
        for result in results:
            key = storage_key(result)
            if any(key == storage_key(other) for _, other, place in named if place < 0):
                late.append(result)  # a second result in a new storage: a view of the first
                continue
            named.append((self._new_name(), result, keys.index(key) if key in keys else -1))
        return named, late

    def _call(self, func: OpOverload, tensors: list[torch.Tensor], names: list[str],
              results: list[torch.Tensor], cost: int) -> None:  # fmt: skip
        named, late = self._divided(tensors, results)
        if not named:  # it only reads, `item` for instance: it is logged with a result of no bytes
            nothing = self._new_name()
            self._write(func, names, [(nothing, 0, -1)], cost)
            self.log.append(Release(nothing))
            return
        self._write(func, names, [(name, 0 if at >= 0 else _bytes(result), at) for name, result, at in named], cost)
        for name, result, place in named:
            if place < 0:
                self._watch(result, name)
            self._bind(result, name)
        for result in late:
            self._name_of(result)

    def _write(self, func: OpOverload | str, names: list[str], results: list[tuple[str, int, int]], cost: int) -> None:
        self.log.append(Call(tuple(name for name, *_ in results), str(func), tuple(names), cost))
        for name, size, place in results:
            self.log += (Memory(name, size), Alias(name, place))

    def _mutate(self, func: OpOverload, tensors: list[torch.Tensor], names: list[str],
                written: list[int], cost: int) -> None:  # fmt: skip
        places = list({storage_key(tensors[place]): place for place in reversed(written)}.values())[::-1]
        self.log.append(Mutate(str(func), tuple(names), tuple(places), cost))
        for place in places:  # the name now stands for the whole storage as written; other views are created again
            stored = self._storages[storage_key(tensors[place])]
            for name in dict.fromkeys((stored.root, *stored.views.values())):
                if name != names[place]:
                    self.log.append(Release(name))
            stored.root = names[place]
            stored.views = {_view(tensors[place]): names[place]}

    def _name_of(self, tensor: torch.Tensor) -> str:
        """The name of a tensor; a new storage is a constant, and a new view is a view of the whole storage."""
        stored = self._storages.get(storage_key(tensor))
        if stored is None:
            name = self._new_name()
            self.log += (Constant(name), Memory(name, _bytes(tensor)))
            self._watch(tensor, name)
            self._bind(tensor, name)
            return name
        if _view(tensor) not in stored.views:
            name = self._new_name()
            self._write("view", [stored.root], [(name, 0, 0)], 0)
            self._bind(tensor, name)
        return stored.views[_view(tensor)]

    def _bind(self, tensor: torch.Tensor, name: str) -> None:
        views = self._storages[storage_key(tensor)].views
        before = views.get(_view(tensor))
        if before is not None and before != self._storages[storage_key(tensor)].root:
            self.log.append(Release(before))
        views[_view(tensor)] = name

    def _watch(self, tensor: torch.Tensor, name: str) -> None:
        """Track a storage under the name of its first tensor until torch frees it."""
        storage, key = tensor.untyped_storage(), storage_key(tensor)
        self._storages[key] = _Storage(name)
        watch = weakref.finalize(storage, self._freed, key)
        watch.atexit = False
        self._watched.append(watch)

    def _freed(self, key: int) -> None:
        stored = self._storages.pop(key, None)
        if stored is not None:
            self.log += [Release(name) for name in dict.fromkeys((stored.root, *stored.views.values()))]

    def _new_name(self) -> str:
        self._number += 1
        return f"t{self._number}"


def _arguments(func: OpOverload, args: Any, kwargs: dict[str, Any]) -> tuple[list[torch.Tensor], list[int]]:
    """The tensors among the arguments of an operation, in order, and the places of those that it writes to."""
    tensors: list[torch.Tensor] = []
    written: list[int] = []
    schema = func._schema.arguments
    by_name = {argument.name: argument for argument in schema}
    given = [
        *zip(schema, args, strict=False),
        *((by_name[name], value) for name, value in kwargs.items() if name in by_name),
    ]
    for argument, value in given:
        for leaf in flatten(value)[0]:
            if isinstance(leaf, torch.Tensor):
                if argument.alias_info is not None and argument.alias_info.is_write:
                    written.append(len(tensors))
                tensors.append(leaf)
    return tensors, written


def _view(tensor: torch.Tensor) -> tuple[object, ...]:
    """The geometry of a tensor in its storage."""
    return tensor.storage_offset(), tuple(tensor.shape), tuple(tensor.stride()), tensor.dtype


def _bytes(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage().nbytes())


def _shares(first: torch.Tensor, second: torch.Tensor) -> bool:
    return storage_key(first) == storage_key(second)
