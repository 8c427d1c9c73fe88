"""Sums of two values as part of the operation that makes the later of them: `c = op(…); c.add_(other)` in place of `op`, `add`.

Autograd adds gradients where a value was used more than once. As a node of its own such a sum holds three tensors of one size;
eager itself adds in place where it may. Here the node that makes the later operand reads the other one and adds it to what it
has just made, so that only two exist at any time, and the graph has a node less. The datum still has one writer: every solver
treats it as any other, and the other operand may have other readers.

The result is the same to the last bit: an addition of two floating-point numbers does not depend on their order, and sums of
three stay two sums of two, in the order of the trace.

What folding takes away is the order: the other operand must exist when the later one is made. Where the later one is computed
from it, or from what is computed from it, it always does; where both are leaves of the backward that a plan may run in either
order, the sum stays a node, unless the step keeps it to its end. See docs/decisions/0011-sums-in-place.md.
"""

from __future__ import annotations

from typing import Any

from attrs import evolve

from remat.exec._program.program import Op, Program, Ref, Role, Value
from remat.ir import Phase
from remat.settings import one_of

FOLDS = ("settled", "all", "none")


def accumulate(program: Program, which: str = "settled") -> Program:
    """The program with sums of gradients folded into the operations that make their later operand, where that is safe.

    Args:
        program: a captured step.
        which: of the sums that could be folded, "all", "none", or those whose order is "settled": the operation that makes the
            later operand depends on the other one anyway, or the sum stays to the end of the step.

    Raises:
        BadArgument: X-ARG, for another word.
    """
    one_of(*FOLDS).check(which, "accumulate: fold_sums", rule="X-ARG")
    return program if which == "none" else _Folding(program, everywhere=which == "all").result()


class _Folding:
    """The operations of a program while sums are removed from it, one after the other."""

    def __init__(self, program: Program, *, everywhere: bool) -> None:
        self.program = program
        self.everywhere = everywhere
        self.ops: list[Op | None] = list(program.ops)
        self.values = dict(program.values)
        self.storages = dict(program.storages)
        self.grads = dict(program.grads)
        self.renamed: dict[str, str] = {}
        self.kept = {program.values[value].storage for value in (*program.outputs, *program.grads.values())}
        self.makers = {name: at for at, op in enumerate(program.ops) for name in program.written(op)}
        self.looking: dict[str, list[str]] = {}
        for value in program.values.values():
            self.looking.setdefault(value.storage, []).append(value.name)
        self.readers: dict[str, set[str]] = {}
        for op in program.nodes:
            for storage in program.read(op):
                self.readers.setdefault(storage, set()).add(op.name)

    def result(self) -> Program:
        """The program, without the operations that are gone."""
        for at, op in enumerate(self.program.ops):
            op = self._current(at, op)
            pair = self._operands(op)
            if pair is not None:
                self._fold(at, op, *pair)
        ops = tuple(op for op in self.ops if op is not None)
        self._renumber_views(ops)
        return evolve(
            self.program,
            ops=ops,
            values=self.values,
            storages=self.storages,
            grads={key: self.renamed.get(value) or value for key, value in self.grads.items()},
        )

    def _current(self, at: int, op: Op) -> Op:
        """The operation, with each folded sum under the name that its value has now."""
        if not self.renamed.keys().isdisjoint(op.reads):
            op = evolve(op, args=self._named(op.args), kwargs=self._named(op.kwargs))
            self.ops[at] = op
        return op

    def _named(self, tree: Any) -> Any:
        if isinstance(tree, Ref):
            return Ref(self.renamed.get(tree.name, tree.name))
        if isinstance(tree, (tuple, list)):
            return type(tree)(self._named(item) for item in tree)
        if isinstance(tree, dict):
            return {key: self._named(item) for key, item in tree.items()}
        return tree

    def _renumber_views(self, ops: tuple[Op, ...]) -> None:
        """Point the values of views to the places that these have now."""
        for at, op in enumerate(ops):
            if op.role is Role.VIEW:
                self.values |= {name: evolve(self.values[name], view=at) for name in op.outputs if name is not None}

    def _operands(self, op: Op) -> tuple[str, str] | None:
        """Of a sum that can be folded, the operand made later and the other one."""
        if not _is_sum(op) or not _is_plain(op):
            return None
        (total,) = op.outputs
        if total is None or not all(isinstance(argument, Ref) for argument in op.args):
            return None
        later, other = sorted((ref.name for ref in op.args), key=lambda name: -self._maker_of(self.values[name]))
        return (later, other) if self._fits(op, self.values[total], self.values[later], self.values[other]) else None

    def _maker_of(self, value: Value) -> int:
        """Where the storage of a value is made; -1 outside the step."""
        return self.makers.get(value.storage, -1)

    def _fits(self, op: Op, total: Value, later: Value, other: Value) -> bool:
        """Whether adding `other` to `later` right where `later` is made gives `total`, and nothing reads `later` without it."""
        host = self.ops[self._maker_of(later)] if self._maker_of(later) > self._maker_of(other) else None
        if host is None or host.phase is not op.phase or not _may_add(host):
            return False
        same = later.spec == total.spec == evolve(other.spec, stride=later.spec.stride)
        if not same or not self._replaceable(op, later, total):
            return False
        return self.everywhere or self._stays(op) or self._follows(host, self._maker_of(other))

    def _replaceable(self, op: Op, later: Value, total: Value) -> bool:
        """Whether the sum can take the place of `later`: as large, and `later` is read by the sum alone."""
        storage = self.storages[later.storage]
        whole = storage.size == self.storages[total.storage].size and len(storage.roots) == 1
        return whole and later.storage not in self.kept and self.readers[later.storage] == {op.name}

    def _stays(self, op: Op) -> bool:
        """Whether a sum is held to the end of the step, as it is or within a sum that is."""
        while _is_sum(op):
            (total,) = op.outputs
            storage = self.values[total].storage if total is not None else ""
            if storage in self.kept:
                return True
            readers = self.readers.get(storage, set())
            if len(readers) != 1:
                return False
            op = self.program.op_by_name[next(iter(readers))]
        return False

    def _follows(self, host: Op, first: int) -> bool:
        """Whether an operation depends on what the one at `first` makes, so that it comes after it in every order."""
        seen: set[int] = set()
        stack = [host]
        while stack:
            op = stack.pop()
            for at in {self.makers.get(self.values[name].storage, -1) for name in op.reads} - seen:
                if at == first:
                    return True
                before = self.ops[at]
                if at > first and before is not None:
                    seen.add(at)
                    stack.append(before)
        return first < 0

    def _fold(self, at: int, op: Op, later: str, other: str) -> None:
        (total,) = (name for name in op.outputs if name is not None)
        mine, gone = self.values[later].storage, self.values[total].storage
        place = self.makers[mine]
        host = self.ops[place]
        assert host is not None
        self.ops[place] = evolve(host, adds=(*host.adds, (later, *(ref.name for ref in op.args))))
        self.ops[at] = None
        self.renamed[total] = later
        self.readers[mine] = self.readers.pop(gone, set())
        read = self.readers[self.values[other].storage]
        read.discard(op.name)
        read.add(host.name)
        if gone in self.kept:
            self.kept.add(mine)
        del self.values[total], self.storages[gone]
        moved = self.looking.pop(gone)
        for name in moved:
            if name != total:
                self.values[name] = evolve(self.values[name], storage=mine)
                self.looking[mine].append(name)


def _is_plain(op: Op) -> bool:
    """Whether a sum has two terms, no factor, and nothing that it waits for or adds to."""
    return len(op.args) == 2 and op.kwargs.get("alpha", 1) == 1 and not op.needs and not op.adds


def _is_sum(op: Op) -> bool:
    return op.phase is Phase.BACKWARD and str(op.target) == "aten.add.Tensor"


def _may_add(host: Op) -> bool:
    """Whether an operation may add to what it makes: it is called, draws no random numbers, and may run again."""
    return host.role is Role.CALL and not host.draws and not host.run_once
