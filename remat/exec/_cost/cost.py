"""What each operation of a step costs: estimated from shapes, or measured (see `measuring.py`), always once per signature.

The estimate is cheap and deterministic: for tests, and for a first look. It reproduces ranks, not times.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attrs import evolve, field, frozen

from remat.exec._program.program import A_PROGRAM, Op, Program, Ref, Role, Spec
from remat.exec._program.refusals import refusing
from remat.settings import Setting, takes
from remat.units import Bytes, Ns

FLOPS_PER_NS = 20.0
BYTES_PER_NS = 5.0
CALL_NS = 2000
"""A plain roofline of one slow core: 20 GFLOP/s, 5 GB/s, 2 us a call."""


@frozen(kw_only=True)
class OpCost:
    """Cost of one operation.

    Attributes:
        time: [ns].
        workspace: memory beyond its outputs [bytes].
        outputs: what the allocator gave for each output, None where it is no tensor of its own; empty: as traced. Some kernels
            return a small result in the large block they worked in.
        host: of the host to queue it, where a device works on its own [ns]; 0: not known, or it does not.
    """

    time: Ns = field(default=0)
    workspace: Bytes = field(default=0)
    outputs: tuple[Bytes | None, ...] = ()
    host: Ns = 0


def _are_costs(value: object) -> bool:
    return isinstance(value, Mapping) and all(isinstance(cost, OpCost) for cost in value.values())


COSTS = Setting("a mapping of names of operations to OpCost, e.g. measure(program)", _are_costs)


@takes(rule="X-ARG", program=A_PROGRAM, costs=COSTS)
def resized(program: Program, costs: Mapping[str, OpCost]) -> Program:
    """The program with storages as large as they were measured."""
    storages = dict(program.storages)
    for op in program.nodes:
        sizes = costs[op.name].outputs if op.name in costs else ()
        for value, size in zip(op.outputs, sizes, strict=False):
            if value is not None and size is not None:
                name = program.values[value].storage
                storages[name] = evolve(storages[name], size=size)
    return evolve(program, storages=storages)


@takes(rule="X-ARG", program=A_PROGRAM)
def estimate(program: Program) -> Mapping[str, OpCost]:
    """Costs of every node by a fixed roofline; workspaces are taken as nothing."""
    with refusing("costing"):
        return {op.name: OpCost(time=estimate_of(program, op)) for op in program.nodes if op.role is not Role.LOSS}


def estimate_of(program: Program, op: Op) -> Ns:
    """A time by a fixed roofline."""
    if op.role is Role.RNG:
        return CALL_NS
    inputs = [program.values[name].spec for name in op.takes]
    outputs = [program.values[name].spec for name in op.outputs if name is not None]
    moved = sum(spec.numel * spec.dtype.itemsize for spec in (*inputs, *outputs))
    added = (program.values[into].spec for into, *_ in op.adds)
    adding = sum(CALL_NS + int(3 * spec.numel * spec.dtype.itemsize / BYTES_PER_NS) for spec in added)
    return CALL_NS + int(max(flops(program, op, outputs) / FLOPS_PER_NS, moved / BYTES_PER_NS)) + adding


def _spec(program: Program, arg: Any) -> Spec:
    return program.values[arg.name].spec


_PRODUCTS = ("aten.mm.default", "aten.bmm.default", "aten.addmm.default", "aten.baddbmm.default")
"""Products of their last two tensors."""


def flops(program: Program, op: Op, outputs: list[Spec]) -> int:
    """Multiply-adds count two; anything that is not a product of matrices or a convolution counts its outputs."""
    tensors = [_spec(program, arg) for arg in op.args if isinstance(arg, Ref)]
    name = str(op.target)
    if name in _PRODUCTS:
        left, right = tensors[-2:]
        return 2 * left.numel * right.shape[-1]
    if name == "aten.convolution.default":
        return 2 * _convolution(tensors[0], tensors[1], outputs[0], transposed=bool(op.args[6]))
    if name == "aten.convolution_backward.default":
        wanted = sum(bool(mask) for mask in op.args[10][:2])
        return 2 * wanted * _convolution(tensors[1], tensors[2], tensors[0], transposed=bool(op.args[7]))
    if "attention" in name:
        scores = tensors[0].numel * tensors[1].shape[-2]
        return (10 if "backward" in name else 4) * scores
    return sum(spec.numel for spec in outputs)


def _convolution(x: Spec, weight: Spec, out: Spec, *, transposed: bool) -> int:
    per_place = weight.numel // max(weight.shape[0], 1)
    places = x if transposed else out
    return places.numel * per_place
