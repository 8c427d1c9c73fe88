"""Gradients of the outputs as they arrive: in the layout that the loss gave them, where the backward computes in it.

Kernels add in the order of the memory, so eager's gradients depend on the layout in which a gradient arrives: that of logits
which the loss transposes is not that of the logits. The trace knows one layout, that of the output. For another one the
operations of the backward are followed as far as the difference reaches: each is run on small tensors of the same layouts. Where
all of them compute by elements or add, the gradient is handed on as it came, as eager does. Else it is copied to the layout of
the trace: some kernels want it dense, and eager's own copies for them are not in the trace. Sums may then be rounded in another
order. Either way there are bytes that the plan does not know: autograd holds the gradient beside its copy, and a view in another
layout may be a copy. They are counted, and the step is planned again with them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

import torch
from attrs import define, field

from remat.exec._program.kernels import copy_to_layout
from remat.exec._program.program import Op, Program, Ref, Role, Spec
from remat.exec._torch.torch_private import OpOverload, storage_key
from remat.exec._torch.wrappers import outside_modes
from remat.ir import Phase
from remat.units import Bytes

logger = logging.getLogger(__name__)

Strides = tuple[int, ...]
Gradients = Sequence[torch.Tensor | None]

MOST_LAYOUTS = 64
"""Combinations of layouts whose answer is kept; more come from losses that never repeat."""

_aten = torch.ops.aten

VIEWS = frozenset(
    (_aten.view.default, _aten._unsafe_view.default, _aten.t.default, _aten.permute.default, _aten.transpose.int,
     _aten.expand.default, _aten.unsqueeze.default, _aten.squeeze.dim, _aten.squeeze.dims, _aten.slice.Tensor,
     _aten.select.int, _aten.alias.default, _aten.detach.default)
)  # fmt: skip
"""Views whose strides follow from those of their base."""

SUMS = frozenset(
    (_aten.sum.dim_IntList, _aten.mean.dim, _aten.mm.default, _aten.bmm.default, _aten.clone.default,
     _aten._softmax_backward_data.default, _aten._log_softmax_backward_data.default)
)  # fmt: skip
"""Operations that add along dimensions, in any layout."""

SLOPES = frozenset(
    (_aten.softplus_backward.default, _aten.elu_backward.default, _aten.leaky_relu_backward.default,
     _aten.hardtanh_backward.default, _aten.hardswish_backward.default, _aten.mish_backward.default,
     _aten.hardsigmoid_backward.default)
)  # fmt: skip
"""Operations by elements that torch has not tagged as such."""


@define(eq=False)
class Tangents:
    """The gradients of the outputs that a backward takes.

    Attributes:
        program: the captured step.
        fixed: whether all are copied to the layout of the trace: the backward was compiled for it.
        taken: what copies the backward makes to compute in these layouts, by the strides that differ from the trace's (None:
            they do not) [bytes]; None: it does not compute in them.
        copied: most bytes that a step has copied, of gradients as they came and in views of them [bytes].
        excess: most bytes that gradients and copies took beyond the tangents of the trace [bytes].
    """

    program: Program
    fixed: bool = False
    taken: dict[tuple[Strides | None, ...], Bytes | None] = field(factory=dict)
    copied: Bytes = 0
    excess: Bytes = 0

    @property
    def specs(self) -> tuple[Spec, ...]:
        """As the trace saw them, in the order in which the backward takes them."""
        return tuple(self.program.values[value].spec for value, _ in self.program.tangents)

    @property
    def places(self) -> tuple[int, ...]:
        """The positions of the outputs that they belong to, in the same order."""
        return tuple(position for _, position in self.program.tangents)

    @property
    def size(self) -> Bytes:
        """Bytes of all, as the plan counts them."""
        return sum(self._sizes)

    @property
    def _sizes(self) -> tuple[Bytes, ...]:
        return tuple(self.program.storage_of(value).size for value, _ in self.program.tangents)

    def missing(self, gradients: tuple[torch.Tensor | None, ...]) -> frozenset[int]:
        """Which of those that the backward takes did not come."""
        return frozenset(at for at, position in enumerate(self.places) if gradients[position] is None)

    def arrived(self, gradients: tuple[torch.Tensor | None, ...]) -> tuple[torch.Tensor | None, ...]:
        """What the backward is given; None where no gradient came.

        Args:
            gradients: those of all outputs, as autograd brings them.
        """
        mine = [gradients[position] for position in self.places]
        specs = self.specs
        strides = tuple(
            None if tensor is None or tensor.stride() == spec.stride or tensor.dtype != spec.dtype else tensor.stride()
            for tensor, spec in zip(mine, specs, strict=True)
        )
        copies = self._takes(strides) if any(strides) and not self.fixed else None
        given = tuple(
            None if tensor is None else _arranged(tensor, spec, as_it_is=copies is not None)
            for tensor, spec in zip(mine, specs, strict=True)
        )
        if any(strides):
            self._count(mine, given, copies or 0)
        return given

    def _takes(self, strides: tuple[Strides | None, ...]) -> Bytes | None:
        if strides in self.taken:
            return self.taken[strides]
        changed = {
            value: step for (value, _), step in zip(self.program.tangents, strides, strict=True) if step is not None
        }
        copies = computes_in(self.program, changed)
        if len(self.taken) < MOST_LAYOUTS:
            self.taken[strides] = copies
        if copies is None:
            logger.info("%s: gradients of the outputs are copied to the layout of the trace", self.program.name)
        return copies

    def _count(self, came: Gradients, given: Gradients, copied: Bytes) -> None:
        """Note what a step holds in other layouts than the trace's; `copied`: by views."""
        storages: dict[int, Bytes] = {}
        total = 0
        for ours, theirs, size in zip(came, given, self._sizes, strict=True):
            if ours is None:
                continue
            copied += size if theirs is not ours else 0
            storage = ours.untyped_storage()
            # an expanded scalar is one of those that any loss is assumed to hold
            left = storages.setdefault(storage_key(ours), storage.nbytes() if storage.nbytes() > ours.itemsize else 0)
            taken = min(left, size)
            storages[storage_key(ours)] -= taken
            total += taken
        self.copied = max(self.copied, copied)
        self.excess = max(self.excess, total + copied - self.size)


def _arranged(gradient: torch.Tensor, spec: Spec, *, as_it_is: bool) -> torch.Tensor:
    """A gradient for the backward, copied to the trace's layout unless the backward takes its own."""
    if gradient.dtype == spec.dtype and (as_it_is or gradient.stride() == spec.stride):
        return gradient
    return copy_to_layout(gradient.to(spec.dtype), spec.shape, spec.stride)


def called(program: Program, op: Op) -> Any:
    """What is called for an operation: `reshape` for a view in a backward that gradients of any layout reach.

    Autograd reshapes where it takes a view back, and in another layout than the trace's that can be a copy. What a sum is
    added to must be a view.
    """
    is_view = op.phase is Phase.BACKWARD and op.target is _aten.view.default
    if is_view and layouts_vary(program) and program.summed_into.isdisjoint(op.outputs):
        return _aten.reshape.default
    return op.target


def layouts_vary(program: Program) -> bool:
    """Whether the gradient of an output can have another layout."""
    return any(program.values[value].spec.numel > 1 for value, _ in program.tangents)


def computes_in(program: Program, changed: dict[str, Strides]) -> Bytes | None:
    """What views copy where operations meet other layouts than the trace's; None: some are not known to take them.

    Operations that take them make nothing larger. A copy lives as long as what it is a view of, at most to the end.

    Args:
        program: the captured step.
        changed: the strides of gradients of outputs, by value, where they differ from the trace's.
    """
    live, copied = dict(changed), 0
    with outside_modes(), torch.no_grad():
        for op in program.ops:
            if op.phase is not Phase.BACKWARD or live.keys().isdisjoint(op.reads):
                continue
            further = None if op.adds else _changed_outputs(program, op, live)
            if further is None:
                return None
            copied += _copied(program, op, live)
            live |= further
    return copied


def _copied(program: Program, op: Op, live: dict[str, Strides]) -> Bytes:
    """The bytes of a view that is a copy, because the layout of its base has no such view."""
    if called(program, op) is not _aten.reshape.default:
        return 0
    (base,), (name,) = op.reads, op.outputs
    assert name is not None
    spec, view = program.values[base].spec, program.values[name].spec
    tensor = torch.empty_strided(spec.shape, live[base], dtype=spec.dtype, device="meta")
    return 0 if storage_key(tensor.reshape(view.shape)) == storage_key(tensor) else view.numel * spec.dtype.itemsize


def _changed_outputs(program: Program, op: Op, live: dict[str, Strides]) -> dict[str, Strides] | None:
    """The strides of an operation's outputs that are not those of the trace; None: that is not known, or one is larger."""
    sizes: Callable[[int], int] = _same
    if op.role is Role.VIEW and op.target in VIEWS:
        device = "meta"
    elif op.role is Role.CALL and not op.draws and _takes_any_layout(op.target):
        sizes, device = _small_sizes(program, op), str(program.device)
    else:
        return None
    try:
        outputs = _returned(program, op, live, (sizes, device))
    except (RuntimeError, ValueError) as error:
        logger.debug("%s does not take another layout: %s", op.target, error)
        return None
    changed: dict[str, Strides] = {}
    for name, output in zip(op.outputs, outputs, strict=True):
        if name is None:
            continue
        spec = program.values[name].spec
        strides = output.stride() if device == "meta" else _grown(output, spec.shape)
        if strides is None or tuple(output.shape) != tuple(sizes(n) for n in spec.shape) or output.dtype != spec.dtype:
            return None
        if strides != spec.stride:
            changed[name] = strides
    return changed


def _takes_any_layout(target: Any) -> bool:
    """Whether an operation computes by elements, or sums, and has no arguments that are sizes."""
    return isinstance(target, OpOverload) and (torch.Tag.pointwise in target.tags or target in SUMS or target in SLOPES)


def _returned(
    program: Program, op: Op, live: dict[str, Strides], how: tuple[Callable[[int], int], str]
) -> tuple[torch.Tensor, ...]:
    """What an operation returns for tensors of other sizes, in the layouts that its arguments have."""
    sizes, device = how

    def built(tree: Any) -> Any:
        if isinstance(tree, Ref):
            spec = program.values[tree.name].spec
            strides = live.get(tree.name, spec.stride)
            shape = tuple(map(sizes, spec.shape))
            steps = strides if sizes is _same else _shrunk(strides, shape)
            return torch.empty_strided(shape, steps, dtype=spec.dtype, device=device)
        if isinstance(tree, (tuple, list)):
            return type(tree)(built(item) for item in tree)
        return tree

    target = called(program, op)
    assert target is not None
    result = target(*built(op.args), **{key: built(value) for key, value in op.kwargs.items()})
    return tuple(result) if op.unpack else (result,)


def _same(size: int) -> int:
    return size


def _small_sizes(program: Program, op: Op) -> Callable[[int], int]:
    """Small sizes in place of those of an operation's tensors, equal where they are equal, in the same order; 0 and 1 stay."""
    names = (*op.reads, *(name for name in op.outputs if name is not None))
    distinct = sorted({size for name in names for size in program.values[name].spec.shape if size > 1})
    small = {size: at + 2 for at, size in enumerate(distinct)}
    return lambda size: small.get(size, size)


def _shrunk(strides: Strides, shape: Strides) -> Strides:
    """Dense strides in the order of others; 0 stays."""
    steps, step = list(strides), 1
    for dim in sorted(range(len(shape)), key=lambda dim: (strides[dim], shape[dim])):
        if strides[dim] != 0:
            steps[dim] = step
            step *= max(shape[dim], 1)
    return tuple(steps)


def _grown(output: torch.Tensor, shape: Strides) -> Strides | None:
    """The strides of a dense output in its full size; None where it is not dense."""
    small = _shrunk(output.stride(), tuple(output.shape))
    if 0 in output.stride() or any(
        n > 1 and ours != theirs for n, ours, theirs in zip(output.shape, small, output.stride(), strict=True)
    ):
        return None
    return _shrunk(output.stride(), shape)
