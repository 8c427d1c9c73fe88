"""Which operations are the same code on the same shapes, and so cost the same."""

from __future__ import annotations

from functools import partial

import torch

from remat.exec._program.program import Op, Program, Ref, Role
from remat.units import Bytes


def signature(program: Program, op: Op) -> str:
    """What two operations share if and only if they are the same code on the same shapes, strides and types."""
    if op.role in (Role.LOSS, Role.RNG):
        return str(op.role.value)

    text = partial(_text, program, op)
    args = ",".join(text(arg) for arg in op.args)
    kwargs = ",".join(f"{key}={text(arg)}" for key, arg in sorted(op.kwargs.items()))
    replayed = "~" if op.draws else ""
    if torch.Tag.dynamic_output_shape in getattr(op.target, "tags", ()):
        args += f"->{text([None if name is None else Ref(name) for name in op.outputs])}"
    added = "".join(f"+{program.position(op, add[0])}({','.join(map(text, map(Ref, add)))})" for add in op.adds)
    return f"{replayed}{target_name(op)}({args}{';' if kwargs else ''}{kwargs}){added}".replace(" ", "")


_CLONES_STORAGE = (
    "aten.copy.",
    "aten.slice_scatter.",
    "aten.select_scatter.",
    "aten.as_strided_scatter.",
    "aten.diagonal_",
)
"""Operations that clone the whole storage of what they read, not only what the view shows."""


def underlying(program: Program, op: Op, value: str) -> Bytes:
    """Bytes of an input that count for what an operation takes: of the view, or of the storage it looks at."""
    if str(op.target).startswith(_CLONES_STORAGE):
        return max(program.values[value].spec.extent, program.storage_of(value).size)
    return program.values[value].spec.extent


def target_name(op: Op) -> str:
    """The name of what an operation calls."""
    return str(op.target) if "." in str(op.target) and "<" not in str(op.target) else getattr(op.target, "__name__", "")


def _text(program: Program, op: Op, tree: object) -> str:
    """An argument in a signature: shapes, strides and types of tensors, all else as it prints."""
    if isinstance(tree, Ref):
        spec = program.values[tree.name].spec
        around = underlying(program, op, tree.name)
        return f"{spec}#{around}" if around > spec.extent else str(spec)
    if isinstance(tree, (tuple, list)):
        return "[" + ",".join(_text(program, op, item) for item in tree) + "]"
    return repr(tree)
