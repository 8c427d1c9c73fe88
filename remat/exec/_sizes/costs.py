"""Costs of a filled program: bytes are exact, times are interpolated between the sizes that were measured.

The bytes of an operation follow from a law of its kind, or it is called once on inputs of its new size, which also shows whether
it returns what the program says. Times decide only how good a plan is: over the estimated work of an operation they are taken
to be monotone and straight between two measured sizes, and proportional to the work beyond these.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Set

import torch

from remat.exec._cost.cost import OpCost, estimate_of
from remat.exec._cost.measuring import weighed
from remat.exec._program.kernels import drawn_mask, no_autocast, noise_of
from remat.exec._program.program import Op, Program, Role, Spec
from remat.exec._program.refusals import refusing
from remat.exec._program.signatures import signature
from remat.exec._sizes.stencil import Stencil
from remat.exec._torch import rng, torch_private
from remat.exec._torch.aside import unprofiled
from remat.ir import Graph, Option
from remat.units import Bytes, Ns

_PRODUCTS = ("aten.mm.default", "aten.addmm.default", "aten.bmm.default", "aten.baddbmm.default")
"""Products of float32 and float64 on a CPU: what BLAS works in is none of the allocator's, and operands are copied or not by
their strides alone."""
_NUMBERS = 16
"""A number among the arguments becomes a tensor, and once more in the type of the operation [bytes]."""
_COPIES = ("aten.clone.default", "aten._to_copy.default", "aten.copy_.default", "aten.masked_fill.Scalar")


def costs_at(
    stencil: Stencil, program: Program, measured: dict[str, OpCost], *, estimated: bool
) -> tuple[dict[str, OpCost], dict[str, str]]:
    """Costs and signatures of the nodes of a program, by name.

    Args:
        stencil: that the program comes from.
        program: at its new sizes.
        measured: costs by signature that this process has measured.
        estimated: whether times are estimated and workspaces nothing; operations are called all the same, for what they return.

    Raises:
        Uncapturable: X-MEASURE, where an operation does not return what the program says.
    """
    signatures: dict[str, str] = {}
    costs: dict[str, OpCost] = {}
    lacking: dict[str, Op] = {}
    for op in program.nodes:
        first = stencil.classes[op.name]
        if first == op.name:
            signatures[first] = signature(program, op)
            if op.role is Role.LOSS:
                continue
            workspace = 0 if op.role is Role.RNG else known_workspace(stencil, program, op)
            if workspace is not None:
                costs[first] = OpCost(time=_time(stencil, program, op), workspace=workspace)
            elif signatures[first] in measured:
                costs[first] = measured[signatures[first]]
            else:
                lacking[first] = op
    costs.update(_weighed(stencil, program, lacking))
    if estimated:
        costs = {name: OpCost(time=estimate_of(program, program.op_by_name[name])) for name in costs}
    names = [op.name for op in program.nodes]
    everywhere = {name: costs[stencil.classes[name]] for name in names if stencil.classes[name] in costs}
    return everywhere, {name: signatures[stencil.classes[name]] for name in names}


def known_workspace(stencil: Stencil, program: Program, op: Op) -> Bytes | None:
    """What an operation holds besides its outputs, by a law of its kind that held at every measured size; None: there is none."""
    specs = [program.values[name].spec for name in (*op.takes, *op.outputs) if name is not None]
    kinds = {spec.dtype for spec in specs if spec.dtype is not torch.bool}
    outputs = [(program.values[value].spec.extent, program.storage_of(value).size) for value in op.outputs if value]
    if program.device.type != "cpu" or any(extent != size for extent, size in outputs):
        return None
    measured = {_node(sample.graph, op.name).workspace for sample in stencil.samples}
    if op.target is drawn_mask:
        programs = [sample.captured.program for sample in stencil.samples]
        agrees_everywhere = all(
            _drawn_bytes(other.op_by_name[op.name]) == _node(sample.graph, op.name).workspace
            for other, sample in zip(programs, stencil.samples, strict=True)
        )
        return _drawn_bytes(op) if agrees_everywhere else None
    lawful = len(kinds) <= 1 and (op.target is noise_of or _needs_nothing(op, kinds))
    return measured.pop() if lawful and len(measured) == 1 and max(measured) <= _NUMBERS else None


def _needs_nothing(op: Op, kinds: Set[torch.dtype]) -> bool:
    """Whether its kernel works in its outputs alone."""
    if not isinstance(op.target, torch_private.OpOverload):
        return False
    name = str(op.target)
    law = torch.Tag.pointwise in op.target.tags or name in _COPIES
    return law or (name in _PRODUCTS and kinds <= {torch.float32, torch.float64})


def _drawn_bytes(op: Op) -> Bytes:
    """Of a mask: the noise that it is drawn from, and the saved state of the generator."""
    shape, stride, dtype, device, _ = op.args
    return Spec(tuple(shape), tuple(stride), dtype, device).extent + rng.state_bytes(device)


def _weighed(stencil: Stencil, program: Program, ops: Mapping[str, Op]) -> dict[str, OpCost]:
    """One call of each."""

    def run() -> dict[str, tuple[Bytes, tuple[Bytes | None, ...]]]:
        with rng.kept(), torch.no_grad(), no_autocast(program.device):
            return {name: weighed(program, op) for name, op in ops.items()}

    with refusing("measuring"):
        weights = unprofiled(run) if ops else {}
    costs = {}
    for name, (peak, sizes) in weights.items():
        state = rng.state_bytes(program.device) if ops[name].draws else 0
        workspace = max(0, peak - sum(filter(None, sizes))) + state
        costs[name] = OpCost(time=_time(stencil, program, ops[name]), workspace=workspace, outputs=sizes)
    return costs


def _node(graph: Graph, name: str) -> Option:
    (option,) = graph.node(name).options
    return option


def _time(stencil: Stencil, program: Program, op: Op) -> Ns:
    """The time of an operation from those at other sizes."""
    points = stencil.times.get(op.name)
    if points is None:
        programs = [sample.captured.program for sample in stencil.samples]
        works = [estimate_of(other, other.op_by_name[op.name]) for other in programs]
        times = [_node(sample.graph, op.name).time for sample in stencil.samples]
        points = stencil.times[op.name] = sorted(zip(works, times, strict=True))
    return interpolated(points, estimate_of(program, op))


def interpolated(points: list[tuple[int, Ns]], at: int) -> Ns:
    """The time at an amount of work, from times by work in ascending order; of equal amounts the smallest time counts.

    Args:
        points: work and time [ns].
        at: work, above zero.
    """
    best: dict[int, Ns] = {}
    for work, time in points:
        best[work] = min(time, best.get(work, time))
    works, times = list(best), list(best.values())
    for place in range(len(times) - 2, -1, -1):
        times[place] = min(times[place], times[place + 1])  # less work takes no longer
    place = bisect_left(works, at)
    if place < len(works) and works[place] == at:
        return times[place]
    if place == 0 or place == len(works):
        nearest = min(place, len(works) - 1)
        return max(1, times[nearest] * at // works[nearest])
    left, right = works[place - 1], works[place]
    return times[place - 1] + (times[place] - times[place - 1]) * (at - left) // (right - left)


__all__ = ["costs_at", "interpolated", "known_workspace"]
