"""Gradients of the outputs as they arrive: in the layout that the loss gave them, where the backward computes in it.

Kernels add in the order of the memory, so eager's gradients depend on the layout in which a gradient arrives: that of logits which the
loss transposes is not that of the logits. The trace knows one layout, that of the output. For another one the operations of
the backward are run on shapes alone, as far as the difference reaches. Where all of them take it, and nothing becomes larger, the
gradient is handed on as it came. Else it is copied to the layout of the trace, and sums may be rounded in another order.
"""

from __future__ import annotations

import logging
from typing import Any

import torch
from attrs import define, field

from remat.exec._program.kernels import copy_to_layout
from remat.exec._program.program import Op, Program, Ref, Role, Spec
from remat.exec._torch.wrappers import fake_mode, outside_modes
from remat.ir import Phase

logger = logging.getLogger(__name__)

Strides = tuple[int, ...]

MOST_LAYOUTS = 64
"""Combinations of layouts whose answer is kept; more come from losses that never repeat."""

FIXED = ("as_strided", "as_strided_scatter", "set_", "view.dtype")
"""Operations whose arguments speak of the memory of the trace."""


@define(eq=False)
class Tangents:
    """The gradients of the outputs that a backward takes.

    Attributes:
        program: the captured step.
        taken: whether the backward computes in these layouts, by the strides that differ from the trace's; None: they do not.
    """

    program: Program
    taken: dict[tuple[Strides | None, ...], bool] = field(factory=dict)

    @property
    def specs(self) -> tuple[Spec, ...]:
        """As the trace saw them, in the order in which the backward takes them."""
        return tuple(self.program.values[value].spec for value, _ in self.program.tangents)

    def arrived(self, gradients: tuple[torch.Tensor | None, ...]) -> tuple[torch.Tensor, ...]:
        """What the backward is given; zeros where no gradient came.

        Args:
            gradients: those of all outputs, as autograd brings them.
        """
        mine = [gradients[position] for _, position in self.program.tangents]
        specs = self.specs
        strides = tuple(
            None if tensor is None or tensor.stride() == spec.stride or tensor.dtype != spec.dtype else tensor.stride()
            for tensor, spec in zip(mine, specs, strict=True)
        )
        as_they_are = any(strides) and self._takes(strides)
        return tuple(_arranged(tensor, spec, as_it_is=as_they_are) for tensor, spec in zip(mine, specs, strict=True))

    def _takes(self, strides: tuple[Strides | None, ...]) -> bool:
        answer = self.taken.get(strides)
        if answer is None:
            changed = {
                value: step for (value, _), step in zip(self.program.tangents, strides, strict=True) if step is not None
            }
            answer = computes_in(self.program, changed)
            if len(self.taken) < MOST_LAYOUTS:
                self.taken[strides] = answer
            if not answer:
                logger.info("%s: gradients of the outputs are copied to the layout of the trace", self.program.name)
        return answer


def _arranged(gradient: torch.Tensor | None, spec: Spec, *, as_it_is: bool) -> torch.Tensor:
    """A gradient for the backward: zeros where none came, and copied to the trace's layout unless the backward takes its own."""
    if gradient is None:
        return torch.empty_strided(spec.shape, spec.stride, dtype=spec.dtype, device=spec.device).zero_()
    if gradient.dtype == spec.dtype and (as_it_is or gradient.stride() == spec.stride):
        return gradient
    return copy_to_layout(gradient.to(spec.dtype), spec.shape, spec.stride)


def computes_in(program: Program, changed: dict[str, Strides]) -> bool:
    """Whether the backward runs on values in other layouts than the trace's, and makes nothing larger.

    Args:
        program: the captured step.
        changed: the strides of gradients of outputs, by value, where they differ from the trace's.
    """
    with outside_modes(), torch.no_grad(), fake_mode():
        live = {name: _empty(program.values[name].spec, strides) for name, strides in changed.items()}
        for op in program.ops:
            if op.phase is not Phase.BACKWARD or live.keys().isdisjoint(op.reads):
                continue
            if not _plain(op, live) or not _run(program, op, live):
                return False
    return True


def _plain(op: Op, live: dict[str, torch.Tensor]) -> bool:
    """Whether an operation computes from what it is given, in any layout: it is a call or a view, and adds nothing changed."""
    name = str(op.target).removeprefix("aten.")
    added = {value for add in op.adds for value in add}
    return (
        op.role in (Role.CALL, Role.VIEW)
        and live.keys().isdisjoint(added)
        and not any(name == fixed or name.startswith(f"{fixed}.") for fixed in FIXED)
    )


def _run(program: Program, op: Op, live: dict[str, torch.Tensor]) -> bool:
    """Run an operation on shapes and note which of its outputs have other layouts; False: it fails, or makes something larger."""

    def built(tree: Any) -> Any:
        if isinstance(tree, Ref):
            return live[tree.name] if tree.name in live else _empty(program.values[tree.name].spec)
        if isinstance(tree, (tuple, list)):
            return type(tree)(built(item) for item in tree)
        return tree

    assert op.target is not None
    try:
        result = op.target(*built(op.args), **{key: built(value) for key, value in op.kwargs.items()})
    except (RuntimeError, ValueError, NotImplementedError) as error:
        logger.debug("%s does not take another layout: %s", op.target, error)
        return False
    for name, output in zip(op.outputs, result if op.unpack else (result,), strict=True):
        if name is None:
            continue
        value = program.values[name]
        made = Spec.of(output)
        if made == value.spec:
            continue
        if (made.shape, made.dtype) != (value.spec.shape, value.spec.dtype) or op.adds:
            return False
        if op.role is Role.CALL and made.extent > program.storage_of(name).size:
            return False
        live[name] = output
    return True


def _empty(spec: Spec, strides: Strides | None = None) -> torch.Tensor:
    stride = spec.stride if strides is None else strides
    return torch.empty_strided(spec.shape, stride, dtype=spec.dtype, device=spec.device)
