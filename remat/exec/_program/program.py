"""A captured training step as a list of operations: what the joint trace becomes before it is measured, planned and lowered.

A *value* is a tensor that an operation names; a *storage* is what the allocator gives, held by the value that owns it and by
every view of it. The graph of the IR has one datum per storage; views cost nothing and are recomputed where they are read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from enum import Enum
from functools import cached_property
from typing import Any

import torch
from attrs import field, frozen

from remat.exec._torch.wrappers import bits_of
from remat.ir import Phase
from remat.settings import instance


class Role(Enum):
    """What an operation does for the step; all but `CALL` and `VIEW` are made by capture."""

    CALL = "call"
    VIEW = "view"
    SNAPSHOT = "snapshot"
    UPDATE = "update"
    RNG = "rng"
    LAYOUT = "layout"
    LOSS = "loss"


@frozen(repr=False)
class Ref:
    """A value, by name, in the arguments of an operation."""

    name: str

    def __repr__(self) -> str:
        # texts of operations are compared; that of attrs says "..." ever after a Ctrl-C came at its end
        return f"Ref(name={self.name!r})"


@frozen
class Spec:
    """Shape, strides, type and device of a value; what two operations must share to be the same code on the same shapes.

    Attributes:
        bits: whether it stands for the conjugate of its memory, and for the negative: most kernels make a copy of that first.
    """

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    bits: tuple[bool, bool] = (False, False)

    @classmethod
    def of(cls, tensor: torch.Tensor) -> Spec:
        """The spec of a real or fake tensor."""
        return cls(tuple(tensor.shape), tuple(tensor.stride()), tensor.dtype, tensor.device, bits_of(tensor))

    @property
    def extent(self) -> int:
        """Bytes from the first to the last element."""
        if 0 in self.shape:
            return 0
        last = sum((n - 1) * step for n, step in zip(self.shape, self.stride, strict=True))
        return (last + 1) * self.dtype.itemsize

    @property
    def in_order(self) -> bool:
        """Whether its dimensions are in the order of the memory, each element once: nothing is transposed or expanded."""
        strides = [step for n, step in zip(self.shape, self.stride, strict=True) if n > 1]
        return all(step > after for step, after in zip(strides, [*strides, 0][1:], strict=True))

    @property
    def numel(self) -> int:
        """Number of elements."""
        count = 1
        for n in self.shape:
            count *= n
        return count

    def __str__(self) -> str:
        kind = str(self.dtype).removeprefix("torch.")
        place = "" if self.device.type == "cpu" else f"@{self.device}"
        conj, neg = self.bits
        marks = f"{'*' if conj else ''}{'-' if neg else ''}"
        return f"{kind}{list(self.shape)}/{list(self.stride)}{marks}{place}".replace(" ", "")


@frozen(kw_only=True)
class Value:
    """A tensor of the step.

    Attributes:
        name: unique, a Python identifier.
        spec: shape, strides, type, device.
        storage: name of the storage it lives in.
        view: index of the operation that makes it as a view; None: it is made with its storage, or comes from outside.
    """

    name: str
    spec: Spec
    storage: str
    view: int | None = None


@frozen(kw_only=True)
class Storage:
    """What the allocator gives: the bytes of one datum.

    Attributes:
        name: name of the datum.
        size: bytes.
        roots: the values that come with it (usually one); views are made from them.
        outside: it lives outside the step (a parameter, buffer, input or constant).
    """

    name: str
    size: int
    roots: tuple[str, ...]
    outside: bool = False


@frozen(kw_only=True, eq=False)
class Op:
    """An operation.

    Attributes:
        name: unique.
        role: what it does for the step.
        target: what is called; None for a loss.
        args, kwargs: its arguments; values stand as `Ref`.
        outputs: names of the values it makes; None where an output is not a tensor or is not used.
        unpack: it returns a tuple or list, which is unpacked.
        phase, scope, draws, run_once: as in `remat.ir.Compute`.
        subject: what it is about, for the roles made by capture: the input it writes or copies, the node that draws.
        needs: values it needs besides its arguments: the saved generator state, the copy of an input it will write.
        sequence: what a forward operation and its backward ones share; None: not known.
        region: of a cast that autocast makes, the region for which eager keeps it; None: it is none, or is not kept.
        adds: (into, first, second): after the call, `add(first, second, out=into)`, where `into` is one of the two, and an
            output of the call or a view that covers one.
    """

    name: str
    role: Role
    target: Callable[..., Any] | None
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(factory=dict)
    outputs: tuple[str | None, ...] = ()
    unpack: bool = False
    phase: Phase = Phase.FORWARD
    scope: str = ""
    draws: bool = False
    run_once: bool = False
    subject: str = ""
    needs: tuple[str, ...] = ()
    sequence: int | None = None
    region: int | None = None
    adds: tuple[tuple[str, str, str], ...] = ()

    @cached_property
    def takes(self) -> tuple[str, ...]:
        """Names of the values that the call itself reads, in order, each once."""
        return tuple(dict.fromkeys((*(ref.name for ref in refs((self.args, self.kwargs))), *self.needs)))

    @cached_property
    def reads(self) -> tuple[str, ...]:
        """Names of the values it reads, in order, each once: what the call reads, then what is added to its outputs."""
        added = (value for into, *pair in self.adds for value in pair if value != into)
        return tuple(dict.fromkeys((*self.takes, *added)))


def refs(tree: Any) -> Iterator[Ref]:
    """The `Ref`s in nested tuples, lists and dicts."""
    if isinstance(tree, Ref):
        yield tree
    elif isinstance(tree, (tuple, list)):
        for item in tree:
            yield from refs(item)
    elif isinstance(tree, dict):
        for item in tree.values():
            yield from refs(item)


@frozen(kw_only=True, eq=False)
class Program:
    """A training step: operations in a topological order, forward, loss, backward.

    Attributes:
        name: the class of the module, for messages.
        ops: all operations, views among them.
        values, storages: by name.
        params, buffers, inputs: names of values from outside: (value, path) for the first two, (value, position) for inputs.
        constants: tensors that the trace found in the code, by value name.
        outputs: values the step returns, in the order of the module's flat outputs.
        tangents: (value, position of the output it belongs to).
        grads: value of the gradient by ("param", path) or ("input", position).
        updates: value of an input (buffer or user input) that is written, to the operation that writes it.
        device: where it runs.
        structure: its digest without sizes, where that is known already (`structure_digest`).
    """

    name: str
    ops: tuple[Op, ...]
    values: dict[str, Value]
    storages: dict[str, Storage]
    params: tuple[tuple[str, str], ...]
    buffers: tuple[tuple[str, str], ...]
    inputs: tuple[tuple[str, int], ...]
    constants: dict[str, torch.Tensor]
    outputs: tuple[str, ...]
    tangents: tuple[tuple[str, int], ...]
    grads: dict[tuple[str, Any], str]
    updates: dict[str, str]
    device: torch.device
    structure: str = ""

    @cached_property
    def nodes(self) -> tuple[Op, ...]:
        """The operations that are nodes of the graph: all but views."""
        return tuple(op for op in self.ops if op.role is not Role.VIEW)

    @cached_property
    def op_by_name(self) -> dict[str, Op]:
        """Operations by name."""
        return {op.name: op for op in self.ops}

    @cached_property
    def inner_outputs(self) -> tuple[int, ...]:
        """Positions of outputs from which others are computed that get gradients."""
        maker = {value: op for op in self.ops for value in op.outputs if value is not None}

        def source(value: str) -> str:
            """What an output was cloned from: where outputs share memory, all but one are copies."""
            op = maker.get(value)
            return op.takes[0] if op is not None and op.target is torch.ops.aten.clone.default else value

        outputs, towards = [source(value) for value in self.outputs], {position for _, position in self.tangents}
        inner = []
        for position, value in enumerate(outputs):
            reached = {value}
            for op in self.ops:
                if op.phase is Phase.FORWARD and not reached.isdisjoint(op.takes):
                    reached.update(output for output in op.outputs if output is not None)
            if any(other != position and outputs[other] in reached for other in towards):
                inner.append(position)
        return tuple(inner)

    @cached_property
    def summed_into(self) -> frozenset[str]:
        """The values that sums are added to where they are made."""
        return frozenset(into for op in self.ops for into, _, _ in op.adds)

    def storage_of(self, value: str) -> Storage:
        """The storage a value lives in."""
        return self.storages[self.values[value].storage]

    def written(self, op: Op) -> tuple[str, ...]:
        """Names of the storages an operation makes, in order."""
        storages = (self.values[name].storage for name in op.outputs if name is not None)
        return tuple(dict.fromkeys(storages)) if op.role is not Role.VIEW else ()

    def position(self, op: Op, value: str) -> int:
        """Which of an operation's outputs a value is or looks at."""
        storage = self.values[value].storage
        return next(
            i for i, output in enumerate(op.outputs) if output is not None and self.values[output].storage == storage
        )

    def read(self, op: Op) -> tuple[str, ...]:
        """Names of the storages an operation reads, in order."""
        return tuple(dict.fromkeys(self.values[name].storage for name in op.reads))


A_PROGRAM = instance(Program, "capture(module, args).program")
