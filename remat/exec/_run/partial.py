"""Backwards of steps of which some outputs got no gradient.

Autograd does not visit what only an unused output depends on: parameters there keep no gradient, and an infinite factor makes no
nan of a zero. A captured step has a gradient for every output. So where some are missing, the backward is lowered again from the
same schedule without what depends on them alone: it reads what the forward has saved, and holds no more.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from attrs import evolve, frozen

from remat.exec._program.kernels import copy_to_layout
from remat.exec._program.program import Op, Program
from remat.exec._program.source import zeros_of
from remat.exec._run.copying import Arrive, CopyBack, CopyOut, Forget, Free
from remat.exec._run.lowering import Lowered, Lowering
from remat.ir import Phase

SUM = torch.ops.aten.add.Tensor


def without(lowered: Lowered, missing: frozenset[int]) -> Lowered:
    """The plan with a backward for steps in which some outputs got no gradient; made once for each set of them.

    Eager's kernels run it, also where the plan was compiled.

    Args:
        lowered: the plan.
        missing: positions among its tangents; its backward gets None there.
    """
    if not missing:
        return lowered
    if missing not in lowered.variants:
        partial = _Partial(lowered, missing).result()
        lowered.variants[missing] = evolve(
            lowered, forward=partial.forward, backward=partial.backward, source=partial.source, eager=None
        )
    return lowered.variants[missing]


@frozen
class Absence:
    """What of a backward depends on missing tangents alone.

    Attributes:
        values: names of values, views among them.
        skipped: names of operations; what is added to their outputs may be present.
        sums: names of the operations by which autograd adds gradients of one value.
    """

    values: frozenset[str]
    skipped: frozenset[str]
    sums: frozenset[str]


def absence(program: Program, missing: Iterable[str]) -> Absence:
    """See `Absence`.

    What a node of autograd computes it computes as a whole, with zeros for gradients that are missing beside others: an
    operation is skipped only where nothing of its node is reached by a gradient.

    Args:
        program: the step.
        missing: names of tangents.
    """
    forward = {op.sequence for op in program.ops if op.phase is Phase.FORWARD}
    backward = [op for op in program.ops if op.phase is Phase.BACKWARD]
    sums = {op.name for op in backward if op.target is SUM and op.sequence not in forward}
    tangents = {value for value, _ in program.tangents}
    dependent, _ = _reached(backward, tangents, {})
    node_of = _nodes([op for op in backward if op.name not in sums], dependent)
    present, reached = _reached(backward, tangents - set(missing), node_of)
    skipped = {op.name for op in backward if op.name not in reached and dependent.intersection(op.takes)}
    return Absence(frozenset(dependent - present), frozenset(skipped), frozenset(sums))


def _nodes(ops: Sequence[Op], dependent: set[str]) -> dict[str, str]:
    """For each operation, the first one of its node: connected operations of one sequence number."""
    first: dict[str, str] = {op.name: op.name for op in ops}
    maker = {value: op for op in ops for value in op.outputs if value in dependent}

    def root(name: str) -> str:
        while first[name] != name:
            name = first[name] = first[first[name]]
        return name

    for op in ops:
        for value in op.takes:
            source = maker.get(value)
            if source is not None and op.sequence is not None and source.sequence == op.sequence:
                first[root(op.name)] = root(source.name)
    return {name: root(name) for name in first}


def _reached(backward: Sequence[Op], start: set[str], node_of: dict[str, str]) -> tuple[set[str], set[str]]:
    """Values and operations that gradients reach from some tangents; what is added to an output reaches that output."""
    values, ops, nodes = set(start), set[str](), set[str]()
    before = -1
    while before != len(values) + len(ops):
        before = len(values) + len(ops)
        for op in backward:
            node = node_of.get(op.name, op.name)
            if node in nodes or not values.isdisjoint(op.takes):
                nodes.add(node)
                ops.add(op.name)
                values.update(output for output in op.outputs if output is not None)
            elif not values.isdisjoint(op.reads):
                values.update(_added_to(op, values))
    return values, ops


def _added_to(op: Op, values: set[str]) -> Iterable[str]:
    """Outputs of an operation, and views of them, to which one of some values is added."""
    for into, *pair in op.adds:
        if not values.isdisjoint(pair):
            yield into
            yield from (output for output in op.outputs if output is not None)


class _Partial(Lowering):
    """Lowers a schedule without the operations of its backward that depend on missing tangents alone."""

    def __init__(self, whole: Lowered, missing: frozenset[int]) -> None:
        super().__init__(*whole.lowered_from)
        self.whole = whole
        tangents = [value for value, _ in self.program.tangents]
        self.absence = absence(self.program, [tangents[at] for at in missing])

    def begin(self, bound: Iterable[str]) -> None:
        super().begin(value for value in bound if value not in self.absence.values)

    def used_primals(self) -> tuple[list[str], list[str]]:
        """Those of the whole step: what the forward has saved is unpacked as it was saved."""
        watched, loose = self.whole.backward_primals, self.whole.loose_primals
        return [self.primals[at] for at in watched], [self.primals[at] for at in loose]

    def results(self) -> list[str | None]:
        return [None if value in self.absence.values else value for value in super().results()]

    def bind(self, value: str) -> None:
        """An absent value is zeros where an operation reads it beside others, as in autograd."""
        if value not in self.absence.values or value in self.bound:
            super().bind(value)
            return
        spec = self.names.constant(self.program.values[value].spec)
        self.line(f"{value} = {self.names.entry(zeros_of)}({spec})")
        self.bound.add(value)

    def run(self, op: Op, *, replay: bool = False) -> None:
        if op.name in self.absence.skipped:
            self.add_alone(op, self.remade(op) if op.name in self.ran else op.outputs)
            self.ran.add(op.name)
        elif not (op.name in self.absence.sums and self.copied(op)):
            super().run(op, replay=replay)

    def copied(self, op: Op) -> bool:
        """The sum of a gradient and a missing one is a copy; False: it has to be written as a sum."""
        values = self.program.values
        (output,), terms = op.outputs, [value for value in op.takes if value not in self.absence.values]
        if output is None or len(terms) != 1 or len(op.takes) != 2 or values[terms[0]].spec != values[output].spec:
            return False
        again = op.name in self.ran
        self.ran.add(op.name)
        if again and self.returned(output):
            return True
        if again:
            self.unbind_views(op)
        self.bind(terms[0])
        self.copy_of(output, terms[0])
        self.add_in_place(op, op.outputs)
        return True

    def copy_of(self, name: str, value: str) -> None:
        """A line that copies a value."""
        spec = self.program.values[name].spec
        self.line(f"{name} = {self.names.entry(copy_to_layout)}({value}, {spec.shape}, {spec.stride})")
        self.bound.add(name)

    def add_in_place(self, op: Op, outputs: Sequence[str | None]) -> None:
        """Missing terms are left out."""
        absent = self.absence.values
        adds = tuple(add for add in op.adds if absent.isdisjoint(add[1:]))
        super().add_in_place(evolve(op, adds=adds), outputs)

    def add_alone(self, op: Op, outputs: Sequence[str | None]) -> None:
        """What is added to outputs that are themselves missing: the first term is copied, the rest added."""
        begun: set[str] = set()
        for add in op.adds:
            into, *pair = add
            root = outputs[self.program.position(op, into)]
            (other,) = (value for value in pair if value != into)
            if root is None or other in self.absence.values:
                continue
            if root in begun:
                super().add_in_place(evolve(op, adds=(add,)), outputs)
                continue
            begun.add(root)
            spec = self.program.values[root].spec
            self.line(f"{root} = {self.names.text(spec)}")
            self.bound.add(root)
            self.bind_all((into, other))
            self.line(f"{self.names.entry(torch.ops.aten.copy_.default)}({into}, {other})")

    def copy(self, action: CopyOut | Free | CopyBack | Arrive | Forget) -> None:
        """Nothing is copied of a datum that is missing as a whole."""
        roots = self.program.storages[action.datum].roots
        if self.absence.values.issuperset(roots):
            self.free(action.datum)
            return
        if isinstance(action, CopyOut):
            self.bind_all(roots)
        super().copy(action)


__all__ = ["without"]
