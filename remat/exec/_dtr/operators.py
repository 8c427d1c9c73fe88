"""Operators as the dispatcher hands them over: what they write, draw and share, and how one is run again.

A run is repeated with the state of the generators at its first run, outside autograd and autocast, and only while what
it reads of the program's tensors was not written in between.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import torch
from attrs import define, field, frozen

from remat.exec._program.kernels import no_autocast
from remat.exec._run.runtime import StepError
from remat.exec._torch import rng
from remat.exec._torch.torch_private import OpOverload, entry
from remat.exec._torch.wrappers import below_autograd, over, storage_copy, view_form


@frozen
class Slot:
    """The place of a tensor among the flat tensors of a call."""

    at: int


SLOTS = [Slot(at) for at in range(64)]


def split(value: Any, tensors: list[torch.Tensor]) -> Any:
    """A value with its tensors moved into a list, slots in their places."""
    if isinstance(value, torch.Tensor):
        tensors.append(value)
        return SLOTS[len(tensors) - 1] if len(tensors) <= len(SLOTS) else Slot(len(tensors) - 1)
    if type(value) in (list, tuple):
        return type(value)(split(item, tensors) for item in value)
    return value


def fill(value: Any, tensors: Sequence[Any]) -> Any:
    """The inverse of `split`."""
    kind = type(value)
    if kind is Slot:
        return tensors[value.at]
    if kind in (list, tuple):
        return kind(fill(item, tensors) for item in value)
    if kind is dict:
        return {name: fill(item, tensors) for name, item in value.items()}
    return value


@frozen
class Facts:
    """What the schema of an operator says.

    Attributes:
        writes: names of arguments that it writes to. order: names of its arguments.
        view: its results are views of its first tensor and it writes nothing.
        same: its result is its argument: nothing is to be recorded.
        draws: it may draw random numbers. reshapes: it changes the form of an argument in place.
        scalar: it returns no tensors. pointwise: it computes element by element.
        once: arguments that it writes to without saying so, at its first run alone.
        unversioned: arguments that it writes to without a new version by torch: autograd saves them before, and reads them
            as they are afterwards.
        lengths: among its results are sizes of batches, which torch reads by a data pointer.
        name: for messages. tensors: places of arguments that are one tensor each, and may come as a number.
    """

    writes: frozenset[str]
    order: tuple[str, ...]
    view: bool
    same: bool
    draws: bool
    reshapes: bool
    scalar: bool
    pointwise: bool
    once: frozenset[str]
    unversioned: frozenset[str]
    lengths: bool
    name: str
    tensors: tuple[int, ...]


_SAME = {"aten::detach", "aten::alias", "aten::lift_fresh", "aten::lift"}
_VIEWS = {"aten::_unsafe_view", "aten::_reshape_alias"}
_STATISTICS = frozenset({"running_mean", "running_var"})
_NOISE = frozenset({"noise"})


@functools.lru_cache(maxsize=4096)
def facts_of(func: OpOverload) -> Facts:
    """What is known of an operator."""
    schema, name = func._schema, func._schema.name
    writes = frozenset(arg.name for arg in schema.arguments if arg.alias_info is not None and arg.alias_info.is_write)
    shares = any(result.alias_info is not None and not result.alias_info.is_write for result in schema.returns)
    names = tuple(arg.name for arg in schema.arguments)
    return Facts(
        writes=writes,
        order=names,
        view=(shares or name in _VIEWS) and not writes,
        same=name in _SAME,
        draws=torch.Tag.nondeterministic_seeded in func.tags or func.namespace not in ("aten", "prims"),
        reshapes=torch.Tag.inplace_view in func.tags,
        scalar=not any("Tensor" in str(result.type) for result in schema.returns),
        pointwise=torch.Tag.pointwise in func.tags,
        once=_STATISTICS if "batch_norm" in name and "backward" not in name and not writes else frozenset(),
        unversioned=_NOISE & writes if "rrelu_with_noise" in name else frozenset(),
        lengths=name == "aten::_pack_padded_sequence",
        name=str(func),
        tensors=tuple(at for at, arg in enumerate(schema.arguments) if str(arg.type) == "Tensor"),
    )


@define(eq=False)
class Times:
    """Time spent in the runtime, kernels included, and in kernels [ns]."""

    spent: int = 0
    kernels: int = 0


class Rereads(Protocol):
    """What runs again, and reads tensors of the program then.

    Attributes:
        once: places of tensors that reruns leave out.
        versions: of the program's tensors that it reads: (place, tensor, version).
    """

    once: frozenset[int]
    versions: list[tuple[int, torch.Tensor, int]]


@define(eq=False, slots=True)
class Operator:
    """An operator with its arguments, as it runs and is run again.

    Attributes:
        func: what is called. args, kwargs: with slots for tensors. device: of the step. times: where its time is noted.
        writes: places of the tensors that it writes to. roots: the storages of these, and the places of their payloads.
        states: of the generators at its first run. once: places of tensors that reruns leave out.
        versions: of the program's tensors that it reads: (place, tensor, version).
        weights: what the states and numbers count for. of_root: places of the tensors in each of the roots.
        count: number of tensors.
        result: of the first run, with slots for tensors; of a write also the places of what is returned as it was given.
    """

    func: Any
    args: Any
    kwargs: Any
    device: torch.device
    times: Times
    writes: tuple[int, ...] = ()
    roots: tuple[tuple[int, int], ...] = ()
    once: frozenset[int] = frozenset()
    states: list[tuple[Any, Any]] = field(factory=list)
    versions: list[tuple[int, torch.Tensor, int]] = field(factory=list)
    of_root: list[list[int]] = field(factory=list)
    weights: list[Any] = field(factory=list)
    result: Any = None
    ran: bool = False
    count: int = 0

    def __call__(self, payloads: list[Any]) -> Sequence[Any]:
        """Run on the payloads of the arguments; the results in order."""
        if self.ran:
            return self._again(payloads)
        self.ran = True
        tensors = self._prepared(payloads)
        out = self._call(tensors)
        results = self._results(payloads, tensors, out, first=True)
        check_strided(self.func, results)  # its shape pass may have said nothing
        return results

    def _call(self, tensors: list[Any]) -> Any:
        began = time.perf_counter_ns()
        out = call(self.func, fill(self.args, tensors), fill(self.kwargs, tensors))
        self.times.kernels += time.perf_counter_ns() - began
        return out

    def _again(self, payloads: list[Any]) -> Sequence[Any]:
        check_unwritten(str(self.func), self.versions)
        with generators_in(self.states):
            tensors = self._prepared(payloads)
            for at in self.once:
                tensors[at] = None
            with torch.no_grad(), below_autograd(), no_autocast(self.device):
                out = self._call(tensors)
            return self._results(payloads, tensors, out, first=False)

    def _prepared(self, payloads: list[Any]) -> list[Any]:
        """The tensors to run on: where the storage of one that is written is needed besides, over a copy of it."""
        tensors = list(payloads[: self.count])
        if not self.roots:
            return tensors
        taken = payloads[-1]
        for number, (key, at) in enumerate(self.roots):
            if key not in taken:
                copied = storage_copy(payloads[at])
                payloads[at] = copied
                for place in self.of_root[number]:
                    tensors[place] = over(copied, view_form(tensors[place]))
        return tensors

    def _results(self, payloads: list[Any], tensors: list[Any], out: Any, *, first: bool) -> Sequence[Any]:
        """Memory of what was written first, then the results of their own."""
        results: list[Any] = []
        form = split(out, results)
        if first:
            self.result = form
        if not self.writes:
            return results
        fresh = [item for item in results if not any(item is tensors[at] for at in self.writes)]
        if first:
            places = [next((at for at in self.writes if item is tensors[at]), -1) for item in results]
            self.result = (form, places)
        return [*(payloads[at] for _, at in self.roots), *fresh]


def call(func: Any, args: Any, kwargs: Any) -> Any:
    """Run an operation; autocast has done its part already."""
    function = entry(func) if isinstance(func, OpOverload) else func
    return function(*args, **kwargs)


def check_strided(func: Any, results: Sequence[torch.Tensor]) -> None:
    """Check that an operation returns tensors that the runtime can keep.

    Raises:
        StepError: X-TENSOR, where one is sparse, say.
    """
    if any(result.layout is not torch.strided for result in results):
        what = f"{func} returns a tensor that is not strided, which DTR's runtime cannot keep."
        raise StepError("X-TENSOR", what, fix="use plain strided tensors (no sparse gradients).")


def version_of(tensor: torch.Tensor) -> int:
    """How often a tensor was written; 0 for those of inference mode, which do not count."""
    return 0 if tensor.is_inference() else tensor._version


def check_unwritten(name: str, versions: Sequence[tuple[int, torch.Tensor, int]]) -> None:
    """Check that tensors of the program, which are read again, are as they were.

    Raises:
        StepError: X-WRITE, where one was written.
    """
    for _, tensor, version in versions:
        if version_of(tensor) != version:
            what = (
                f"{name} is to be computed again, and a tensor of shape {tuple(tensor.shape)} that it reads was "
                "written in place since."
            )
            raise StepError("X-WRITE", what, fix="write to it after the backward, or to a clone.")


@contextmanager
def generators_in(states: Sequence[tuple[Any, Any]]) -> Iterator[None]:
    """Inside, generators are in the states of `states_of`; afterwards as before."""
    now = [(source, _state(source)) for source, _ in states]
    for source, state in states:
        _set_state(source, state)
    try:
        yield
    finally:
        for source, state in now:
            _set_state(source, state)


def _state(source: Any) -> Any:
    return source.get_state() if isinstance(source, torch.Generator) else rng.save(source)


def _set_state(source: Any, state: Any) -> None:
    if isinstance(source, torch.Generator):
        source.set_state(state)
    else:
        rng.restore(source, state)


def states_of(sources: Sequence[Any]) -> list[tuple[Any, Any]]:
    """Generators, or devices for their default ones, with their states."""
    return [(source, _state(source)) for source in sources]
