"""Arguments and outputs of any structure as flat leaves and a layout that rebuilds them.

Containers and classes that torch's pytree knows are taken apart by it; other objects (caches, dataclasses, distributions) by
their attributes. What is rebuilt is a new object of the same class with the same attributes; two places that held one object
hold one object again.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping
from datetime import date, time, timedelta
from decimal import Decimal
from enum import Enum
from fractions import Fraction
from typing import Any

import numpy as np
import torch
from attrs import frozen
from torch import nn

from remat.errors import Uncapturable
from remat.exec._torch import torch_private
from remat.exec._torch.torch_private import TreeSpec

PLAIN = (
    type(None), bool, int, float, complex, str, bytes, range, slice, type(...), Enum, date, time, timedelta, Decimal, Fraction,
    np.generic, torch.dtype, torch.device, torch.layout, torch.memory_format, torch.Size,
)  # fmt: skip
"""Types of plain leaves: their values are part of what was captured."""


@frozen
class Plain:
    """A plain value among flat leaves, or an object that is kept as it is."""

    value: Any


@frozen
class Whole:
    """An object taken apart: its class, its attributes, and its items where it is a list or a dict."""

    kind: type
    parts: Layout


@frozen
class Again:
    """The object that was taken apart as number `index`."""

    index: int


@frozen
class Layout:
    """How a structure is rebuilt from its flat leaves.

    Attributes:
        spec: of the outermost containers.
        leaves: for each of their leaves: None (a leaf of the result), `Whole` or `Again`.
    """

    spec: TreeSpec
    leaves: tuple[Whole | Again | None, ...]


@frozen
class Repeated:
    """A leaf that is a tensor which the call has already: as a parameter, as a buffer or as an earlier argument.

    Attributes:
        origin: which one: its kind, and its name or its number.
    """

    origin: tuple[str, Any]


Opaque = Callable[[Any], bool]


def flatten(tree: Any, opaque: Opaque = lambda _value: False) -> tuple[list[Any], Layout]:
    """The leaves of a structure, and the layout that rebuilds it.

    Args:
        tree: arguments or outputs of a call.
        opaque: whether an object is kept as it is, as one leaf.
    """
    leaves: list[Any] = []
    numbers: dict[int, int] = {}

    def take(part: Any) -> Layout:
        inner, spec = torch_private.flatten(part)
        forms: list[Whole | Again | None] = []
        for leaf in inner:
            if not _apart(leaf) or opaque(leaf):
                leaves.append(leaf)
                forms.append(None)
            elif id(leaf) in numbers:
                forms.append(Again(numbers[id(leaf)]))
            else:
                numbers[id(leaf)] = len(numbers)
                forms.append(Whole(type(leaf), take(_parts(leaf))))
        return Layout(spec, tuple(forms))

    layout, result = take(tree), list(leaves)
    leaves.clear()  # `take` refers to itself, and would keep them until the garbage collector runs
    return result, layout


def unflatten(leaves: list[Any], layout: Layout) -> Any:
    """The inverse of `flatten`."""
    if all(form is None for form in layout.leaves):
        return torch_private.unflatten(leaves, layout.spec)
    rest = iter(leaves)
    objects: list[Any] = []

    def build(part: Layout) -> Any:
        items = []
        for form in part.leaves:
            if form is None:
                items.append(next(rest))
            elif isinstance(form, Again):
                items.append(objects[form.index])
            else:
                value = form.kind.__new__(form.kind)  # type: ignore[call-overload]  # it may be a class of classes to mypy
                objects.append(value)
                _fill(value, build(form.parts))
                items.append(value)
        return torch_private.unflatten(items, part.spec)

    return build(layout)


def _apart(value: Any) -> bool:
    """Whether an object is taken apart by its attributes."""
    if isinstance(value, (torch.Tensor, *PLAIN, nn.Module, type, types.ModuleType, torch.Generator)):
        return False
    if isinstance(value, (types.FunctionType, types.MethodType, types.BuiltinFunctionType)):
        return False
    return hasattr(value, "__dict__") or hasattr(type(value), "__slots__")


def _parts(value: Any) -> tuple[Any, ...]:
    attributes = dict(getattr(value, "__dict__", {}))
    slots = {
        name: getattr(value, name)
        for kind in type(value).__mro__ for name in _slots(kind) if hasattr(value, name)
    }  # fmt: skip
    items: Any = None
    if isinstance(value, dict):
        items = dict(value)
    elif isinstance(value, (list, set)):
        items = list(value)
    elif isinstance(value, tuple):
        raise Uncapturable("X-OUTPUT", f"a {type(value).__name__} cannot be rebuilt.", fix="use a plain tuple.")
    return attributes, slots, items


def _slots(kind: type) -> tuple[str, ...]:
    slots = kind.__dict__.get("__slots__", ())
    names = (slots,) if isinstance(slots, str) else tuple(slots)
    return tuple(name for name in names if name not in ("__dict__", "__weakref__"))


def _fill(value: Any, parts: tuple[dict[str, Any], dict[str, Any], Any]) -> None:
    attributes, slots, items = parts
    if attributes:
        value.__dict__.update(attributes)
    for name, item in slots.items():
        object.__setattr__(value, name, item)
    if isinstance(items, dict):
        value.update(items)
    elif items is not None:
        (value.extend if isinstance(value, list) else value.update)(items)


def distinct(leaves: list[Any], state: Mapping[int, tuple[str, Any]]) -> tuple[list[torch.Tensor], dict[int, Repeated]]:
    """The tensors among the leaves of arguments, and the places of those that the call has already.

    Autograd adds the gradients of all uses of a tensor in one place. Arguments without a gradient stay apart: a sample may have
    one tensor for tokens and targets, and a training two.

    Args:
        leaves: of the arguments.
        state: parameters and buffers, by identity.
    """
    tensors: list[torch.Tensor] = []
    origins: dict[int, tuple[str, Any]] = {}
    repeated: dict[int, Repeated] = {}
    for at, leaf in enumerate(leaves):
        if isinstance(leaf, torch.Tensor):
            origin = state.get(id(leaf)) or origins.get(id(leaf))
            if origin is not None:
                repeated[at] = Repeated(origin)
            else:
                if leaf.requires_grad:
                    origins[id(leaf)] = ("input", len(tensors))
                tensors.append(leaf)
    return tensors, repeated
