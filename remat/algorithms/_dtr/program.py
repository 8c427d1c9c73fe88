"""A log as arrays: operators, tensors and storages by number, and the steps the program makes.

Which tensors share a storage, and who depends on whom, follows from the log alone; only *when* a dependency arises
does not, so each carries the operator that creates it (`since`). All numbers are in the order of creation.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from attrs import define, field, frozen
from numpy.typing import NDArray

from remat.algorithms._arrays.graph_arrays import Ints
from remat.algorithms._dtr.log import MOST, malformed
from remat.errors import MalformedFile

COMPUTE, PIN, GET, RELEASE = range(4)
"""Steps: run an operator for the first time; pin a tensor; add or remove a reference to it."""


Records: TypeAlias = Any
"""An array of records, whose fields kernels read as `ops[o].cost`: one argument where an array for each field would be ten."""

OP = np.dtype([("cost", np.int64), ("size", np.int64), ("work", np.int64), ("args", np.int64), ("outs", np.int64)])
"""An operator: its cost, bytes of all its outputs, bytes of workspace; where its arguments and outputs begin.
Tables with such offsets have one record more than entries, so that each range ends where the next begins."""

ARG = np.dtype([("tensor", np.int64), ("storage", np.int64), ("first", np.int64)])
"""An argument of an operator, in order, repeated as it is: its tensor and storage, the first argument in the same storage."""

TENSOR = np.dtype(
    [("op", np.int64), ("size", np.int64), ("storage", np.int64), ("uses", np.int64), ("waits", np.int64)]
)
"""A tensor: its operator, bytes (an alias has 0), storage; where its readers begin, and its (tensor, argument) pairs."""

STORAGE = np.dtype(
    [("size", np.int64), ("members", np.int64), ("up", np.int64), ("down", np.int64), ("near", np.int64)]
)
"""A storage: bytes; where its tensors and its neighbors begin."""

EDGE = np.dtype([("storage", np.int64), ("since", np.int64)])
"""A neighbor of a storage, and the operator that made it one."""

STEP = np.dtype([("kind", np.int64), ("arg", np.int64)])
"""A step of the program: the operator of a COMPUTE, the tensor of the others."""


class Flat(NamedTuple):
    """Tables of one program; costs in units of the clock, sizes in bytes.

    Attributes:
        ops, args, tensors, storages, steps: records of the types above.
        uses: operators that read each tensor, once per argument. members: tensors of each storage; the first is its root.
        up, down, near: distinct storages that each depends on; that depend on it; both. Each in the order of `since`.
    """

    ops: Records
    args: Records
    tensors: Records
    uses: Ints
    storages: Records
    members: Ints
    up: Records
    down: Records
    near: Records
    steps: Records


@frozen(eq=False)
class Program:
    """A parsed log.

    Attributes:
        flat: its arrays. compute: cost of all operators together, each run once.
        constants: bytes of the constants.
        op_names, tensor_names: for messages and pictures. op_lines: line of the log of each operator, 0 where there is none.
    """

    flat: Flat = field(repr=False)
    compute: int
    constants: int
    op_names: tuple[str, ...] = field(repr=False)
    tensor_names: tuple[str, ...] = field(repr=False)
    op_lines: tuple[int, ...] = field(repr=False)

    @property
    def calls(self) -> int:
        """Number of operators, constants not counted."""
        return sum(name != CONSTANT for name in self.op_names)


CONSTANT = ""
"""Name of the operator that creates a constant; operators in logs have other names."""


@define
class _Tensor:
    op: int
    size: int
    storage: int
    refs: int = 1


@define
class ProgramBuilder:
    """Builds a `Program`, one instruction at a time; `line` is the line named by errors.

    Names follow the log: a name stays in use after its release; `mutate` and `copy_from` rebind it.
    """

    line: int = 0
    _tensors: list[_Tensor] = field(factory=list)
    _names: list[str] = field(factory=list)
    _storages: list[tuple[int, list[int]]] = field(factory=list)  # bytes, tensors
    _refs: list[int] = field(factory=list)  # of each storage, all its tensors together
    _args: list[tuple[int, ...]] = field(factory=list)
    _ops: list[tuple[str, int, int, int]] = field(factory=list)  # name, cost, bytes beside the outputs, line
    _bound: dict[str, int] = field(factory=dict)
    _steps: list[tuple[int, int]] = field(factory=list)
    _compute: int = 0
    _memory: int = 0
    _constants: int = 0

    def constant(self, name: str, size: int) -> None:
        """A tensor that is never evicted."""
        if name in self._bound:
            raise self._taken(name)
        tensor = self._operator(CONSTANT, (), 0, [(name, size, -1)])
        self._steps.append((PIN, tensor))
        self._bound[name] = tensor
        self._constants += size

    def call(
        self, name: str, args: Iterable[str], time: int, outputs: list[tuple[str, int, int]], *, work: int = 0
    ) -> None:
        """An operator.

        Args:
            name: of the operator.
            args: names of the tensors it reads.
            time: its cost.
            outputs: for each result: name, bytes, and the place of the argument it is an alias of, or -1.
            work: bytes of workspace.

        Raises:
            MalformedFile: F-LOG, for an unknown argument, a name that is taken, or no result.
        """
        tensors = tuple(self._tensor(arg) for arg in args)
        if not outputs:
            raise malformed(self.line, f"{name!r:.100} has no result.", "leave the call out.")
        for k, (result, _, alias) in enumerate(outputs):
            if result in self._bound or any(result == other for other, *_ in outputs[:k]):
                raise self._taken(result)
            if not -1 <= alias < len(tensors):
                what = f"{result!r:.100} is an alias of argument {alias}, and there are {len(tensors)}."
                raise malformed(self.line, what, "give the place of an argument, from 0, or -1.")
        first = self._operator(name, tensors, time, outputs, work)
        for k, (result, *_) in enumerate(outputs):
            self._bound[result] = first + k

    def mutate(self, name: str, args: tuple[str, ...], time: int, mutated: tuple[int, ...]) -> None:
        """An operator that writes in place: it creates a new tensor for each written argument, and binds its name to it."""
        tensors = tuple(self._tensor(arg) for arg in args)
        if not mutated or not all(0 <= place < len(args) for place in mutated):
            what = f"{name!r:.100} mutates the places {list(mutated)!r:.100} of {len(args)} arguments."
            raise malformed(self.line, what, "give one place or more, counted from 0.")
        outputs = [
            (self._names[tensors[place]] + "$", self._storages[self._tensors[tensors[place]].storage][0], -1)
            for place in mutated
        ]
        first = self._operator(name, tensors, time, outputs)
        for k, place in enumerate(mutated):
            old = self._bound[args[place]]
            self._bound[args[place]] = first + k
            self._unbind(old, args[place])

    def copy(self, dst: str, src: str) -> None:
        """A new name for a tensor."""
        tensor = self._tensor(src)
        if dst in self._bound:
            raise self._taken(dst)
        self._get(tensor, src)
        self._bound[dst] = tensor

    def copy_from(self, dst: str, src: str) -> None:
        """Rebind a name to another tensor."""
        old, new = self._tensor(dst), self._tensor(src)
        if old == new:
            return
        self._unbind(old, dst)
        self._get(new, src)
        self._bound[dst] = new

    def release(self, name: str) -> None:
        """Release a name; an unknown name is ignored."""
        if name in self._bound:
            self._unbind(self._bound[name], name)

    def build(self, *, keep: bool = True) -> Program:
        """The program; with `keep`, what is referenced at its end is recomputed if necessary, and kept (the output condition)."""
        steps = list(self._steps)
        if keep:
            steps += [(PIN, tensor) for tensor in self._bound.values() if self._tensors[tensor].refs > 0]
        return Program(
            flat=_flat(self._tensors, self._storages, self._args, self._ops, steps),
            compute=self._compute,
            constants=self._constants,
            op_names=tuple(name for name, *_ in self._ops),
            tensor_names=tuple(self._names),
            op_lines=tuple(line for *_, line in self._ops),
        )

    def _tensor(self, name: str) -> int:
        if name not in self._bound:
            raise malformed(self.line, f"{name!r:.100} is not known.", "make it by a CALL, CONSTANT or COPY before.")
        return self._bound[name]

    def _taken(self, name: str) -> MalformedFile:
        return malformed(self.line, f"the name {name!r:.100} is taken.", "give each tensor a name of its own.")

    def _operator(
        self, name: str, args: tuple[int, ...], time: int, outputs: list[tuple[str, int, int]], work: int = 0
    ) -> int:
        """Add an operator and its first run; returns its first output."""
        op, first = len(self._ops), len(self._tensors)
        for result, size, alias in outputs:
            tensor = len(self._tensors)
            if alias >= 0:
                storage, size = self._tensors[args[alias]].storage, 0
                self._refs[storage] += 1
            else:
                storage = len(self._storages)
                self._storages.append((size, []))
                self._refs.append(1)
            self._storages[storage][1].append(tensor)
            self._tensors.append(_Tensor(op, size, storage))
            self._names.append(result)
            self._memory += size
        self._compute += time
        self._memory += work
        if max(self._compute, self._memory) > MOST:
            raise malformed(self.line, "times or sizes add up to more than 2^62 - 1.", "give them in larger units.")
        self._args.append(args)
        self._ops.append((name, time, work, self.line))
        self._steps.append((COMPUTE, op))
        return first

    def _get(self, tensor: int, name: str) -> None:
        if self._refs[self._tensors[tensor].storage] == 0:
            raise malformed(self.line, f"{name!r:.100} was released and is copied.", "copy it before its last release.")
        self._refs[self._tensors[tensor].storage] += 1
        self._tensors[tensor].refs += 1
        self._steps.append((GET, tensor))

    def _unbind(self, tensor: int, name: str) -> None:
        if self._refs[self._tensors[tensor].storage] == 0:
            raise malformed(self.line, f"{name!r:.100} is released more often than it is bound.", "release it once.")
        self._refs[self._tensors[tensor].storage] -= 1
        self._tensors[tensor].refs -= 1
        self._steps.append((RELEASE, tensor))


def records(size: int, kind: np.dtype[Any]) -> Records:
    """A table of records, all zero."""
    return np.zeros(size, kind).view(np.recarray)


def _starts(counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Offsets of consecutive ranges of these lengths, and the end of the last."""
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])


def _edges(count: int, source: NDArray[np.int64], target: NDArray[np.int64], since: NDArray[np.int64]) -> Any:
    """Distinct pairs (source, target), each since the first of its operators; where those of each source begin, and the table."""
    _, first = np.unique(source * max(1, count) + target, return_index=True)
    first = first[np.lexsort((target[first], since[first], source[first]))]  # by source, then by age
    table = records(len(first), EDGE)
    table["storage"], table["since"] = target[first], since[first]
    return _starts(np.bincount(source[first], minlength=count)), table


def _flat(
    created: list[_Tensor],
    stores: list[tuple[int, list[int]]],
    reads: list[tuple[int, ...]],
    named: list[tuple[str, int, int, int]],
    taken: list[tuple[int, int]],
) -> Flat:
    ops, tensors = records(len(named) + 1, OP), records(len(created) + 1, TENSOR)
    storages, steps = records(len(stores) + 1, STORAGE), records(len(taken), STEP)
    args = records(sum(map(len, reads)), ARG)
    tensors["op"][:-1] = [tensor.op for tensor in created]
    tensors["size"][:-1] = [tensor.size for tensor in created]
    tensors["storage"][:-1] = [tensor.storage for tensor in created]
    storages["size"][:-1] = [size for size, _ in stores]
    storages["members"] = _starts(np.array([len(members) for _, members in stores], np.int64))
    steps["kind"] = [kind for kind, _ in taken]
    steps["arg"] = [arg for _, arg in taken]
    args["tensor"] = [tensor for row in reads for tensor in row]
    args["storage"] = tensors["storage"][args["tensor"]]
    args["first"] = _first_in_storage(reads, tensors["storage"].tolist())
    arg_count = np.array([len(row) for row in reads], np.int64)
    out_count = np.bincount(tensors["op"][:-1], minlength=len(named))
    ops["cost"][:-1] = [cost for _, cost, _, _ in named]
    ops["work"][:-1] = [work for _, _, work, _ in named]
    np.add.at(ops["size"], tensors["op"][:-1], tensors["size"][:-1])
    ops["args"], ops["outs"] = _starts(arg_count), _starts(out_count)
    arg_op = np.repeat(np.arange(len(named)), arg_count)
    tensors["uses"] = _starts(np.bincount(args["tensor"], minlength=len(created)))
    tensors["waits"] = _starts(arg_count[tensors["op"][:-1]])

    # Every (output, argument) pair, output after output, as storages.
    pairs = arg_count[tensors["op"][:-1]]
    begin = np.repeat(ops["args"][tensors["op"][:-1]] - tensors["waits"][:-1], pairs)
    place = begin + np.arange(len(begin))
    child, parent, since = np.repeat(tensors["storage"][:-1], pairs), args["storage"][place], arg_op[place]
    differ = child != parent
    child, parent, since = child[differ], parent[differ], since[differ]
    age = np.argsort(np.concatenate([since, since]), kind="stable")
    storages["up"], up = _edges(len(stores), child, parent, since)
    storages["down"], down = _edges(len(stores), parent, child, since)
    ends = np.concatenate([parent, child])[age], np.concatenate([child, parent])[age]
    storages["near"], near = _edges(len(stores), *ends, np.concatenate([since, since])[age])
    uses = arg_op[np.argsort(args["tensor"], kind="stable")].astype(np.int32)
    members = np.array([tensor for _, row in stores for tensor in row], np.int32)
    return Flat(ops, args, tensors, uses, storages, members, up, down, near, steps)


def _first_in_storage(reads: list[tuple[int, ...]], storage: list[int]) -> list[int]:
    """For each argument, the place of the first argument of its operator in the same storage."""
    firsts: list[int] = []
    for row in reads:
        places: dict[int, int] = {}
        firsts += [places.setdefault(storage[tensor], place) for place, tensor in enumerate(row)]
    return firsts
