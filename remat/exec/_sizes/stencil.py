"""Stencils: a captured step with its integers as functions of the sizes of a call.

Two captures or more whose operations, names and calls below autograd are equal become one pattern, in which integers are
functions of sizes (`functions.py`). At a new size the pattern is filled, and the step is outlined (`outline.py`): every call,
each of its integers and what Python returned must be as filled in. Each integer of the program is one that the outline shows,
so none is believed; what kernels return is seen when they are measured.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import torch
from attrs import evolve, field, frozen

from remat.exec._capture.agree import returned_by_kernels
from remat.exec._capture.capturing import Captured
from remat.exec._capture.guards import compile_guards
from remat.exec._program.digest import structure_digest
from remat.exec._program.program import Program, Spec
from remat.exec._sizes.calls import Call, Differs, Outline
from remat.exec._sizes.filling import Filler
from remat.exec._sizes.functions import Function, Functions, NoFunction
from remat.exec._sizes.merging import Patterns, Record, Same, Unlike, columns_in
from remat.exec._sizes.outline import Checker, Recorder
from remat.exec._sizes.running import Around, outlined
from remat.exec._sizes.shapes import Shapes
from remat.exec._sizes.templates import Templates
from remat.exec._torch import rng
from remat.exec._torch.cuda_memory import charged
from remat.exec._torch.outlined import Form, NoOutline, Outlined
from remat.exec._torch.torch_private import FakeTensor
from remat.exec._trace.python_state import Snapshot
from remat.exec._trace.reads import Reads
from remat.exec._trace.structure import Plain
from remat.exec._trace.tape import Read, evaluate
from remat.exec._trace.tracing import Step
from remat.ir import Graph
from remat.units import Ns

REFUSALS = (Differs, NoOutline, NoFunction, Unlike)
"""Why a size is captured; the message says where."""


@frozen(kw_only=True, eq=False)
class Sample:
    """A capture at one size, and what it cost.

    Attributes:
        numbers: sizes and integers of the call.
        step: the call, with tensors that have only a form.
        captured: with storages as large as they were measured.
        graph: with times and workspaces.
    """

    numbers: tuple[int, ...]
    step: Step
    captured: Captured
    graph: Graph

    @classmethod
    def of(cls, step: Step, captured: Captured, graph: Graph) -> Sample:
        """Of a capture; numbers of autograd become ranks, which captures have in common."""
        program = captured.program
        numbers = sorted({op.sequence for op in program.ops if op.sequence is not None})
        rank = {number: at for at, number in enumerate(numbers)}
        ops = tuple(evolve(op, sequence=None if op.sequence is None else rank[op.sequence]) for op in program.ops)
        tensors = tuple(Outlined(Form.of(tensor), tensor.requires_grad) for tensor in step.tensors)
        captured = evolve(captured, program=evolve(program, ops=ops))
        return cls(numbers=numbers_of(step), step=evolve(step, tensors=tensors), captured=captured, graph=graph)


def numbers_of(step: Step) -> tuple[int, ...]:
    """The sizes of the tensors of a call, and the integers among its other arguments."""
    plain = [leaf.value for leaf in step.leaves if isinstance(leaf, Plain) and type(leaf.value) is int]
    return (*(size for tensor in step.tensors for size in tensor.shape), *plain)


def _given(sample: Sample) -> tuple[int, ...]:
    """The integers that a call itself has: they are compared with those of the program at each size."""
    return (*sample.numbers, *(step for tensor in sample.step.tensors for step in tensor.stride()))


def why_none(captured: Captured) -> str:
    """Why a capture cannot be part of a stencil; empty: it can."""
    reasons = {
        "the joint export traced it": bool(captured.exported),
        "the forward changes Python state": bool(captured.effects),
        "the forward replaces buffers": bool(captured.replaced),
        "Python reads what differs in every step": bool(captured.late),
        "shapes depend on values": captured.prologue is not None,
        "autocast casts inputs more than once": bool(captured.leaves),
        "an output is a transposed view of another tensor": any(order is not None for order in captured.orders),
    }
    return next((reason for reason, holds in reasons.items() if holds), "")


def recorded(sample: Sample, before: Snapshot) -> Outline:
    """The outline of a sample.

    Args:
        sample: the call.
        before: the state of Python.

    Raises:
        Differs, NoOutline: it has none.
    """
    answers = tuple(read.value for read in sample.captured.asked)
    recorder = Recorder(answers)
    returned, reads = outlined(sample.step, recorder, _around(sample.captured, before, sample.step))
    _check_reads(reads, sample.captured)
    return Outline(tuple(recorder.calls), returned, answers, recorder.outside)


def _around(captured: Captured, before: Snapshot, step: Step) -> Around:
    real = not any(isinstance(tensor, FakeTensor) for tensor in step.module.parameters())
    return Around(before=before, captured=captured, correction=returned_by_kernels if real else None)


def _check_reads(reads: Reads, captured: Captured) -> None:
    """The run may have read only attributes that plans watch."""
    for path, names in reads.names.items():
        watched = None if captured.reads is None else captured.reads.of(path)
        if watched is not None and not names <= watched:
            raise Differs(f"the forward reads {path}.{min(names - watched)} too")


@frozen(kw_only=True, eq=False)
class Stencil:
    """The pattern of some captures.

    Attributes:
        samples: the captures, the last one last.
        functions: of sizes.
        columns: what each number of the pattern is.
        program, asked, calls, returned: patterns of what a capture and its outline have, to be filled.
        answers: what Python reads of tensors.
        shapes: the shape functions of the calls.
        structure: digest of the program without sizes.
        digest: of the whole, for programs that come from it.
        classes: for each node, the first with the same signature at all sizes.
        templates: functions of its schedules.
        times: work and time of nodes at the sizes of the captures, once they were asked for.
    """

    samples: tuple[Sample, ...]
    functions: Functions
    columns: tuple[Function, ...]
    program: Filler
    asked: Filler
    calls: Filler
    returned: Filler
    answers: tuple[Any, ...]
    shapes: Shapes
    structure: str
    digest: str
    classes: dict[str, str] = field(repr=False)
    templates: Templates = field(factory=Templates, repr=False)
    times: dict[str, list[tuple[int, Ns]]] = field(factory=dict, repr=False)

    @classmethod
    def of(cls, samples: Sequence[Sample], outlines: Sequence[Outline]) -> Stencil:
        """The stencil of captures with their outlines.

        Raises:
            Unlike: they differ in more than integers.
            NoFunction: an integer is no function of sizes.
        """
        patterns = Patterns()
        last = samples[-1].captured
        if any(outline.answers != outlines[0].answers for outline in outlines):
            raise Unlike("Python read other values")
        _check_alike([sample.captured for sample in samples])
        calls = patterns.merge([outline.calls for outline in outlines], "the calls")
        returned = patterns.merge([outline.returned for outline in outlines], "the outputs")
        shown = set(range(len(patterns.columns)))
        program = patterns.merge([sample.captured.program for sample in samples], "the program")
        asked = patterns.merge([sample.captured.asked for sample in samples], "what Python reads")
        functions = Functions(tuple(sample.numbers for sample in samples))
        fields = dict(program.fields) if isinstance(program, Record) else {}
        seen = shown | columns_in(fields.get("storages", Same(None)))  # bytes are seen when they are measured
        given = set(zip(*map(_given, samples), strict=True))
        for at, column in enumerate(patterns.columns):
            if at not in seen and column not in given:
                raise NoFunction(f"the outline does not show an integer, {', '.join(map(str, column))}")
        columns = functions.of_all(tuple(patterns.columns))
        structure = structure_digest(last.program)
        digest = hashlib.sha256(repr((structure, calls)).encode()).hexdigest()
        return cls(
            samples=tuple(samples), functions=functions, columns=columns, program=Filler.of(program),
            asked=Filler.of(asked), calls=Filler.of(calls), returned=Filler.of(returned), answers=outlines[0].answers,
            shapes=Shapes.of(outlines), structure=structure, digest=digest, classes=_classes(samples),
        )  # fmt: skip

    def calibrate(self, before: Snapshot) -> None:
        """Find out which operations' shapes do not follow from shapes alone, on the last sample.

        Raises:
            Differs: the sample cannot be confirmed.
        """
        sample, self.shapes.calibrates = self.samples[-1], True
        try:
            self.at(sample.step, before)
        finally:
            self.shapes.calibrates = False

    def integers(self, step: Step) -> list[int]:
        """The numbers of the pattern at the sizes of a call.

        Raises:
            NoFunction: one has no value there.
        """
        variables = self.functions.values(numbers_of(step))
        return [function.at(variables) for function in self.columns]

    def at(self, step: Step, before: Snapshot) -> Captured:
        """The capture of a call, checked.

        Args:
            step: the call, with its real tensors.
            before: the state of Python.

        Raises:
            Differs, NoFunction, NoOutline: the call must be captured.
        """
        template = self.samples[-1].captured
        numbers = self.integers(step)
        program: Program = self.program.at(numbers)
        _check_inputs(program, step)
        _check_bytes(program, template.program)
        asked = self.asked.at(numbers)
        if not self.shapes.calibrates:
            _check_answers(asked, step, before, template.lifted)
        changed = {} if asked is template.asked else {"guards": compile_guards(asked), "asked": asked}
        captured = evolve(template, program=evolve(program, structure=self.structure), **changed)
        calls: tuple[Call, ...] = self.calls.at(numbers)
        checker = Checker(calls, self.answers, self.shapes)
        returned, reads = outlined(step, checker, _around(captured, before, step))
        if returned != self.returned.at(numbers):
            raise Differs("the module returns tensors of other forms")
        _check_reads(reads, captured)
        return captured


def _check_alike(captures: Sequence[Captured]) -> None:
    """What the captures of a stencil must have in common besides patterns."""
    parts = ("out_leaves", "places", "requires_grad", "differentiable", "widened", "lifted", "layout")
    for name in parts:
        if len({repr(getattr(captured, name)) for captured in captures}) > 1:
            raise Unlike(f"the captures differ in {name}")


def _check_answers(asked: Sequence[Read], step: Step, before: Snapshot, lifted: tuple[str, ...]) -> None:
    """What Python reads of tensors must be as in the captures."""
    if not asked:
        return
    slots = {slot.path: slot.tensor for slot in before.slots()} if lifted else {}
    inputs = (*step.tensors, *(slots[path] for path in lifted))
    real: dict[Any, torch.Tensor] = {("input", at): tensor for at, tensor in enumerate(inputs)}
    real.update((("param", name), tensor) for name, tensor in step.module.named_parameters(remove_duplicate=False))
    real.update((("buffer", name), tensor) for name, tensor in step.module.named_buffers(remove_duplicate=False))
    for read in asked:
        tensors = {**read.constants, **{name: real[origin].detach() for name, origin in read.origins.items()}}
        tensors.update((name, tensors[name].clone()) for name in read.copied)
        with torch.no_grad(), rng.kept():
            value = evaluate(read.instructions, tensors)
        if type(value) is not type(read.value) or repr(value) != repr(read.value):
            raise Differs(f"what Python reads at {read.place} is {value!r}")


def _check_inputs(program: Program, step: Step) -> None:
    """The tensors of a call must have the forms that the program has for them."""
    for value, position in program.inputs:
        if position < len(step.tensors) and program.values[value].spec != Spec.of(step.tensors[position]):
            raise Differs(f"input {position} is {Spec.of(step.tensors[position])}")


def _check_bytes(program: Program, template: Program) -> None:
    """A storage that was as large as what lies in it must be so again; what is not so is measured at each size."""
    for storage, before in zip(program.storages.values(), template.storages.values(), strict=True):
        plain = before.size == charged(template.values[storage.roots[0]].spec.extent, template.device)
        if plain and storage.size != charged(program.values[storage.roots[0]].spec.extent, program.device):
            raise NoFunction(f"the bytes of {storage.name} are no function of sizes")
    for value, _ in program.tangents:
        if program.storage_of(value).size != charged(program.values[value].spec.extent, program.device):
            raise NoFunction(f"the bytes of {value} are no function of sizes")


def _classes(samples: Sequence[Sample]) -> dict[str, str]:
    """Nodes whose signatures are equal at every size."""
    first: dict[tuple[str, ...], str] = {}
    nodes = zip(*(sample.graph.computes for sample in samples), strict=True)
    return {same[0].name: first.setdefault(tuple(node.signature for node in same), same[0].name) for same in nodes}
