"""Effects: changes to Python state that every call makes alike, which a captured step makes too, and changes that are refused.

Attributes and containers are compared before and after a pass. Buffers that the forward replaces are written in place,
after a call has given them new memory.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import torch
from attrs import frozen
from torch import nn

from remat.errors import Uncapturable
from remat.exec._torch.torch_private import storage_key
from remat.exec._trace import structure
from remat.exec._trace.containers import DERIVED, STATE, Container
from remat.exec._trace.structure import Layout


@frozen(kw_only=True)
class Effect:
    """A change that a forward makes to Python state, the same in every call.

    Attributes:
        path: of the changed container.
        keys: the keys that are set; None: the whole contents.
        layout, leaves: the values; tensors stand as None in `leaves`.
        removed: the keys that are removed.
    """

    path: str
    keys: tuple[Any, ...] | None
    layout: Layout
    leaves: tuple[Any, ...]
    removed: tuple[Any, ...] = ()

    @property
    def tensors(self) -> int:
        """The number of tensors it sets."""
        return sum(leaf is None for leaf in self.leaves)


def holds_tensor(value: Any) -> bool:
    """Whether there is a tensor in a value that can be taken apart."""
    try:
        leaves, _ = structure.flatten(value)
    except (Uncapturable, RecursionError):
        return False
    return any(isinstance(leaf, torch.Tensor) for leaf in leaves)


def take_back_tensors(container: Container) -> None:
    """Undo changes of a pass that hold tensors of the trace."""
    keys, values = container.read()
    old = dict(zip(container.keys, container.values, strict=True)) if container.keys else {}
    if not keys:
        if any(holds_tensor(value) for value in values):
            container.write(container.keys, container.values)
        return
    new: dict[Any, Any] = {}
    for key, value in zip(keys, values, strict=True):
        if old.get(key) is not value and holds_tensor(value):
            if key in old:
                new[key] = old[key]
        else:
            new[key] = value
    container.write(tuple(new), tuple(new.values()))


def _change_of_names(
    container: Container, old: dict[Any, Any], new: dict[Any, Any], tensors: list[torch.Tensor]
) -> Effect | None:
    """The effect on a container with names: entries set or removed."""
    same = {key for key, value in new.items() if key in old and old[key] is value}
    changed = {key: value for key, value in new.items() if key not in same and not _derived(container, key)}
    removed = tuple(key for key in old if key not in new and not _derived(container, key))
    if not changed and not removed:
        return None
    return _packed(container, tuple(changed), list(changed.values()), tensors, removed)


def effect_on(container: Container, tensors: list[torch.Tensor], placed: dict[int, Any]) -> Effect | None:
    """What a pass changed in a container, with its tensors apart; None: nothing that counts.

    Args:
        container: as it was before the call.
        tensors: the tensors of the effects of this pass so far; those of this one are added.
        placed: the stand-in of each real tensor or iterator during the pass, by its identity.
    """
    if container.kind == "generator":
        return None
    keys, values = container.read()
    before = tuple(placed.get(id(value), value) for value in container.values)
    if container.keys or keys:
        old = dict(zip(container.keys, before, strict=True))
        new = dict(zip(keys, values, strict=True))
        return _change_of_names(container, old, new, tensors)
    if list(map(id, before)) == list(map(id, values)):
        return None
    if len(before) != len(values) and any(holds_tensor(value) for value in values):
        what = f"the forward adds a tensor to {container.path} (or takes one away), which holds more after every call."
        raise Uncapturable("X-STATE", what, fix="return the tensor instead, or keep the last one as an attribute.")
    return _packed(container, None, list(values), tensors, ())


def _packed(
    container: Container,
    keys: tuple[Any, ...] | None,
    values: list[Any],
    tensors: list[torch.Tensor],
    removed: tuple[Any, ...],
) -> Effect:
    for key, value in zip(keys or (), values, strict=False):
        if isinstance(value, nn.Module) and any(True for _ in value.parameters()):
            what = f"the forward makes the module {key!r} with parameters of its own."
            fix = "make it in `__init__`, or call the module once (under torch.no_grad()) before you wrap it."
            raise Uncapturable("X-STATE", what, fix=fix)
    leaves, layout = structure.flatten(values, opaque=lambda value: not holds_tensor(value))
    tensors += [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    flat = tuple(None if isinstance(leaf, torch.Tensor) else structure.Plain(leaf) for leaf in leaves)
    return Effect(path=container.path, keys=keys, layout=layout, leaves=flat, removed=removed)


def _derived(container: Container, name: Any) -> bool:
    """Whether an attribute is no state of its own: what recurrent layers make of their parameters, what this library keeps."""
    if container.module is None:
        return False
    if name == STATE:
        return True
    return name in DERIVED


def entries(module: nn.Module, table: str) -> tuple[str, ...]:
    """The names of the parameters or buffers of a module that are there; some are registered as None."""
    return tuple(name for name, tensor in module.__dict__[table].items() if tensor is not None)


def check_tables(tables: list[tuple[nn.Module, str, tuple[str, ...]]]) -> None:
    """Refuse a forward that registers or removes parameters and buffers."""
    for module, table, names in tables:
        now = entries(module, table)
        if now != names:
            changed = sorted(set(names) ^ set(now))
            what = f"the forward of {type(module).__name__} registers (or removes) {', '.join(map(repr, changed))}."
            fix = "register it in `__init__`, or call the module once (under torch.no_grad()) before you wrap it."
            raise Uncapturable("X-STATE", what, fix=fix)


@frozen
class Registered:
    """A buffer before a pass, and where it is registered.

    Attributes:
        path: its name in the module that is traced.
        table, name: the table that holds it, and its name there.
        tensor: the buffer.
    """

    path: str
    table: dict[str, Any]
    name: str
    tensor: torch.Tensor

    @property
    def now(self) -> torch.Tensor | None:
        """What is registered in its place now."""
        return self.table.get(self.name)


def buffers_of(module: nn.Module) -> list[Registered]:
    """Buffers with the tables that hold them."""
    return [
        Registered(f"{path}.{name}".lstrip("."), inner._buffers, name, buffer)
        for path, inner in module.named_modules()
        for name, buffer in inner._buffers.items()
        if buffer is not None
    ]


def copy_first(buffers: list[Registered], paths: Collection[str]) -> None:
    """Put copies in the place of some buffers, so that the backward has their values after the buffers are written."""
    for buffer in buffers:
        if buffer.path in paths:
            buffer.table[buffer.name] = buffer.tensor.clone()


def new_memory(buffers: list[Registered]) -> dict[Any, str]:
    """The paths of buffers that the forward replaced, by the memory of what is in their place."""
    now = ((buffer, buffer.now) for buffer in buffers)
    return {storage_key(new): buffer.path for buffer, new in now if new is not None and new is not buffer.tensor}


def write_in_place(buffers: list[Registered], others: Iterable[torch.Tensor]) -> tuple[str, ...]:
    """Write buffers in place that the forward replaced by new tensors; gives the paths of those that get new memory in each call.

    Args:
        buffers: as before the pass.
        others: parameters and inputs.
    """
    changed = [buffer for buffer in buffers if buffer.now is not buffer.tensor]
    if not changed:
        return ()
    stay = [buffer.tensor for buffer in buffers if buffer.now is buffer.tensor]
    elsewhere = {storage_key(tensor) for tensor in (*others, *stay)}
    before = [storage_key(buffer.tensor) for buffer in changed]
    values = []
    for buffer, old in zip(changed, before, strict=True):
        new = _replacement(buffer)
        key = storage_key(new)
        if old in elsewhere or before.count(old) > 1 or key in elsewhere:
            what = f"the forward replaces the buffer {buffer.name!r}, before or after which it shares its memory with another."
            raise Uncapturable("X-STATE", what, fix="replace it by a clone, or write it in place (`copy_`).")
        if key not in before:
            elsewhere.add(key)
        # what is a buffer itself is read before any of them is written
        values.append(new.detach().clone() if key in before else new.detach())
    for buffer, value in zip(changed, values, strict=True):
        buffer.tensor.copy_(value)
        buffer.table[buffer.name] = buffer.tensor
    return tuple(buffer.path for buffer in changed)


def _replacement(buffer: Registered) -> torch.Tensor:
    """What a forward has put in the place of a buffer, in whose form it must be."""
    old, new = buffer.tensor, buffer.now
    if new is None or new.shape != old.shape or new.dtype != old.dtype:
        what = f"the forward replaces the buffer {buffer.name!r} by one of another shape or type."
        raise Uncapturable("X-STATE", what, fix="keep its shape and type.")
    if any(n != 1 and a != b for n, a, b in zip(new.shape, new.stride(), old.stride(), strict=True)):
        what = f"the forward replaces the buffer {buffer.name!r} by one of other strides."
        raise Uncapturable("X-STATE", what, fix="call the module once before you wrap it, or keep its strides.")
    if new.requires_grad:
        what = f"the forward replaces the buffer {buffer.name!r} by a tensor through which a later call may pass gradients back."
        raise Uncapturable("X-STATE", what, fix="replace it by `tensor.detach()`, or keep it as a plain attribute.")
    return new
