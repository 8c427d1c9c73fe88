"""A joint trace as operations, on its way to a program: what the passes of the capture read and change."""

from __future__ import annotations

from typing import Any

import torch
from attrs import field, frozen

from remat.exec._program.program import Op, Spec, Storage, Value


@frozen(kw_only=True, eq=False)
class Draft:
    """A joint trace as operations, not yet complete.

    Attributes:
        ops: operations in the order of the trace.
        values, storages: by name.
        inputs: value by (kind, path or position) for kinds param, buffer, input, tangent.
        ends: value by ("output", position), ("grad", (kind, path)) or ("update", (kind, path)).
        constants: tensors by value.
        device: where it runs.
        saved: what autograd holds for its backward, as (number of a node of autograd, storage).
    """

    ops: list[Op]
    values: dict[str, Value]
    storages: dict[str, Storage]
    inputs: dict[tuple[str, Any], str]
    ends: dict[tuple[str, Any], str]
    constants: dict[str, torch.Tensor] = field(factory=dict)
    device: torch.device = field(factory=lambda: torch.device("cpu"))
    saved: tuple[tuple[int, str], ...] = ()

    def of(self, kind: str) -> tuple[tuple[Any, str], ...]:
        """Inputs of a kind, as (path or position, value)."""
        return tuple((about, value) for (role, about), value in self.inputs.items() if role == kind)

    def ended(self, kind: str) -> tuple[tuple[Any, str], ...]:
        """Ends of a kind, as (what it is of, value)."""
        return tuple((about, value) for (role, about), value in self.ends.items() if role == kind)

    def make(self, name: str, spec: Spec, size: int) -> str:
        """A new value in a storage of its own."""
        storage = f"{name}.out"
        self.values[name] = Value(name=name, spec=spec, storage=storage)
        self.storages[storage] = Storage(name=storage, size=size, roots=(name,))
        return name
