"""Containers of Python state: how each kind is read and written, and which of its entries can be replaced."""

from __future__ import annotations

import operator
import random
import types
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from attrs import define, field, frozen
from torch import nn

from remat.exec._torch import torch_private

PLAIN = (type(None), bool, int, float, complex, str, bytes, type(...), slice, range)
TORCH_PLAIN = (torch.dtype, torch.device, torch.Size, torch.layout, torch.memory_format)
TABLES = ("_parameters", "_buffers")
"""Tables of tensors that are read again at every call."""
ALWAYS = (
    "_modules", "_parameters", "_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks",
    "_forward_hooks_with_kwargs", "_forward_pre_hooks_with_kwargs", "_forward_hooks_always_called",
)  # fmt: skip
"""Attributes of every module that count as state even where no read of them is observed."""
DERIVED = ("_flat_weights", "_flat_weight_refs")
"""Attributes that recurrent layers derive from their parameters."""
STATE = "_remat"
"""Name of the attribute that holds the state of this library in a wrapped module."""


@define(eq=False)
class Container:
    """An object whose contents can change.

    Attributes:
        path: how it was reached, for messages.
        holder: the live object.
        kind: how its contents are read: "dict", "list", "deque", "set", "cell", "class", "slots", "globals", "generator" or
            "cache".
        names: for "class", "slots" and "globals": the names that count.
        keys, values: contents when the snapshot was taken.
        module: the module whose `__dict__` this is, or None.
        spare: a copy of an iterator at the time of the snapshot.
    """

    path: str
    holder: Any
    kind: str
    names: tuple[str, ...] = ()
    keys: tuple[Any, ...] = ()
    values: tuple[Any, ...] = ()
    module: nn.Module | None = None
    spare: Any = None

    def read(self) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        """The present keys and values."""
        return _READ[self.kind](self)

    def take(self) -> Container:
        """Remember the contents."""
        self.keys, self.values = self.read()
        return self

    def same(self) -> bool:
        """Whether the contents are, object by object, the remembered ones."""
        keys, values = self.read()
        return keys == self.keys and len(values) == len(self.values) and all(map(_is, values, self.values))

    def write(self, keys: tuple[Any, ...], values: tuple[Any, ...]) -> None:
        """Set the contents."""
        _WRITE[self.kind](self, keys, values)


def _is(first: Any, second: Any) -> bool:
    return first is second or (isinstance(first, _State) and first == second)


@frozen
class _State:
    """State of a generator, in a form that compares."""

    text: str
    value: Any = field(eq=False)


def _read_dict(container: Container) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    holder = container.holder
    return tuple(holder), tuple(holder.values())


def _read_names(container: Container) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    space = container.holder if container.kind == "globals" else container.holder.__dict__
    keys = tuple(name for name in container.names if name in space)
    return keys, tuple(space[name] for name in keys)


def _read_slots(container: Container) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    keys = tuple(name for name in container.names if hasattr(container.holder, name))
    return keys, tuple(getattr(container.holder, name) for name in keys)


def _read_items(container: Container) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    return (), tuple(container.holder)


def _read_cell(container: Container) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    try:
        return ("cell",), (container.holder.cell_contents,)
    except ValueError:  # an empty cell
        return (), ()


def _read_generator(container: Container) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    holder = container.holder
    if isinstance(holder, random.Random):
        value: Any = holder.getstate()
    elif isinstance(holder, np.random.Generator):
        value = holder.bit_generator.state
    elif isinstance(holder, np.random.RandomState):
        value = holder.get_state()
    elif isinstance(holder, torch.Generator):
        with torch_private.no_modes():  # its state is a tensor: no operation of the step
            value = holder.get_state()
            return (), (_State(str(hash(value.numpy().tobytes())), value),)
    elif isinstance(holder, types.GeneratorType):
        value = None if holder.gi_frame is None else (holder.gi_frame.f_lasti, holder.gi_frame.f_lineno)
    else:
        value = holder.__reduce__()
    return (), (_State(repr(value), value),)


def _read_cache(container: Container) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    info = container.holder.cache_info()
    return (), (_State(repr((info.misses, info.currsize)), None),)


_READ: dict[str, Callable[[Container], tuple[tuple[Any, ...], tuple[Any, ...]]]] = {
    "dict": _read_dict,
    "list": _read_items,
    "deque": _read_items,
    "set": _read_items,
    "cell": _read_cell,
    "class": _read_names,
    "slots": _read_slots,
    "globals": _read_names,
    "generator": _read_generator,
    "cache": _read_cache,
}


def _write_ordered(container: Container, keys: tuple[Any, ...], values: tuple[Any, ...]) -> None:
    container.holder.clear()
    for key, value in zip(keys, values, strict=True):
        container.holder[key] = value


def _write_names(container: Container, keys: tuple[Any, ...], values: tuple[Any, ...]) -> None:
    for name, value in zip(keys, values, strict=True):
        if container.kind == "globals":
            container.holder[name] = value
        else:
            setattr(container.holder, name, value)


def _write_slots(container: Container, keys: tuple[Any, ...], values: tuple[Any, ...]) -> None:
    for name in container.names:
        if name not in keys and hasattr(container.holder, name):
            object.__delattr__(container.holder, name)
    for name, value in zip(keys, values, strict=True):
        object.__setattr__(container.holder, name, value)  # that of a frozen class refuses


def _write_list(container: Container, _keys: tuple[Any, ...], values: tuple[Any, ...]) -> None:
    container.holder[:] = values


def _write_deque(container: Container, _keys: tuple[Any, ...], values: tuple[Any, ...]) -> None:
    container.holder.clear()
    container.holder.extend(values)


def _write_set(container: Container, _keys: tuple[Any, ...], values: tuple[Any, ...]) -> None:
    container.holder.clear()
    container.holder.update(values)


def _write_cell(container: Container, keys: tuple[Any, ...], values: tuple[Any, ...]) -> None:
    if keys:
        container.holder.cell_contents = values[0]
    else:
        del container.holder.cell_contents


def _write_generator(container: Container, _keys: tuple[Any, ...], values: tuple[Any, ...]) -> None:
    holder, value = container.holder, values[0].value
    if isinstance(holder, random.Random):
        holder.setstate(value)
    elif isinstance(holder, np.random.Generator):
        holder.bit_generator.state = value
    elif isinstance(holder, (np.random.RandomState, torch.Generator)):
        holder.set_state(value)


def _write_cache(container: Container, _keys: tuple[Any, ...], _values: tuple[Any, ...]) -> None:
    container.holder.cache_clear()


_WRITE: dict[str, Callable[[Container, tuple[Any, ...], tuple[Any, ...]], None]] = {
    "dict": _write_ordered,
    "list": _write_list,
    "deque": _write_deque,
    "set": _write_set,
    "cell": _write_cell,
    "class": _write_names,
    "slots": _write_slots,
    "globals": _write_names,
    "generator": _write_generator,
    "cache": _write_cache,
}


@frozen
class Slot:
    """A place that holds a plain tensor (or something else)."""

    container: Container
    key: Any
    tensor: Any

    @property
    def path(self) -> str:
        """For people."""
        return child(self.container, self.key)

    def get(self) -> Any:
        """What is there now."""
        if self.container.kind == "cell":
            return self.container.holder.cell_contents
        if self.container.kind in ("class", "slots"):
            return getattr(self.container.holder, self.key)
        return self.container.holder[self.key]

    def now(self) -> Any:
        """What is there now; None where the place is gone."""
        try:
            return self.get()
        except (KeyError, IndexError, AttributeError, ValueError):
            return None

    def put(self, value: Any) -> None:
        """Put another object there."""
        if self.container.kind == "cell":
            self.container.holder.cell_contents = value
        elif self.container.kind == "class":
            setattr(self.container.holder, self.key, value)
        elif self.container.kind == "slots":
            object.__setattr__(self.container.holder, self.key, value)
        else:
            self.container.holder[self.key] = value


@frozen
class Item:
    """A place in a tuple, which is made anew in its own place where another object is put there.

    Attributes:
        outer: where the tuple is.
        at: the position in it.
        tensor: what is there.
    """

    outer: Slot | Item
    at: int
    tensor: Any

    @property
    def path(self) -> str:
        """For people."""
        return f"{self.outer.path}[{self.at}]"

    def get(self) -> Any:
        """What is there now; None where there is no such tuple."""
        items = self.outer.now()
        return items[self.at] if isinstance(items, tuple) and self.at < len(items) else None

    now = get

    def put(self, value: Any) -> None:
        """Put another object there, in the tuple before where it is gone; a tuple of the same objects as before is that one."""
        before, now = self.outer.tensor, self.outer.now()
        items = list(now if type(now) is type(before) and len(now) == len(before) else before)
        items[self.at] = value
        kind = type(before)
        same = all(map(operator.is_, items, before))
        self.outer.put(before if same else kind._make(items) if hasattr(kind, "_make") else kind(items))


def with_items(slot: Slot | Item) -> Iterator[Slot | Item]:
    """A place, and where it holds a tuple with tensors, the places in it; a tuple comes after its items."""
    if isinstance(slot.tensor, tuple) and not isinstance(slot.tensor, torch.Size):
        for at, item in enumerate(slot.tensor):
            if isinstance(item, (torch.Tensor, tuple)):
                yield from with_items(Item(slot, at, item))
    yield slot


def child(container: Container, key: Any) -> str:
    """The path of an entry of a container."""
    if container.kind == "dict" and container.module is None and not container.path.endswith("__dict__"):
        return f"{container.path}[{key!r}]"
    if container.kind in ("list", "deque"):
        return f"{container.path}[{key}]"
    return container.path if container.kind == "cell" else f"{container.path.removesuffix('.__dict__')}.{key}"
