"""What a call depends on besides its arguments, as it is now: parameters, buffers, and the state of Python that plans read.

Fetched again for every call; where nothing has changed since the last call, that is a few comparisons of identities.
"""

from __future__ import annotations

import operator
from collections.abc import Hashable, Iterator
from itertools import chain
from typing import Any

import torch
from torch import nn

from remat.exec._trace.containers import Container
from remat.exec._trace.python_state import Snapshot
from remat.exec._trace.reads import Reads

_ON_CPU = torch.empty(0, device="cpu")


class Watch:
    """Whether the state of Python is one that a plan was made for.

    Args:
        tokens: the states.
        reads: attributes of modules that count.
    """

    def __init__(self, tokens: tuple[Any, ...], reads: Reads | None) -> None:
        self.tokens = tokens
        self.reads = reads
        self._snapshot: Snapshot | None = None
        self._watched: tuple[Any, ...] = ()
        self._whole: Snapshot | None = None
        self._moved = False

    def copy(self) -> Watch:
        """The same for a copy of the module."""
        return Watch(self.tokens, self.reads)

    def holds(self, module: nn.Module, watched: tuple[Any, ...]) -> bool:
        """Whether the state is one of the plan's; where nothing has changed, by identities alone."""
        snapshot = self._snapshot
        same = snapshot is not None and snapshot.root is module and len(watched) == len(self._watched)
        if same and all(map(operator.is_, watched, self._watched)) and snapshot.same():  # type: ignore[union-attr]
            return True
        fresh = Snapshot(module, watched, self.reads)
        if fresh.token(self.reads) not in self.tokens:
            return False
        self._snapshot, self._watched, self._whole = fresh, watched, None
        return True

    def whole(self) -> Snapshot:
        """Everything the module reaches, under the paths that the trace knew: one object may be reached by several."""
        assert self._snapshot is not None
        if self._whole is None:
            self._whole = Snapshot(self._snapshot.root, self._watched)
        return self._whole

    def container(self, path: str) -> Container | None:
        """A container by its path, in the state that holds."""
        return next((container for container in self.whole().containers if container.path == path), None)

    def lifted(self, paths: tuple[str, ...]) -> list[torch.Tensor]:
        """The plain tensors at these places."""
        if not paths:
            return []
        slots = {slot.path: slot for slot in self.whole().slots()}
        return [slots[path].get() for path in paths]

    def write(self, container: Container, keys: tuple[Any, ...], values: tuple[Any, ...]) -> None:
        """Set the contents of a container, as an effect of the plan; `renew` when all are done."""
        before = self.whole().frozen(container, self.reads)
        container.write(keys, values)
        container.take()
        self._moved = self._moved or self.whole().frozen(container, self.reads) != before

    def renew(self) -> None:
        """Accept the present contents as the plan's state, after the plan's effects; check again where they lead to another."""
        if self._moved:
            self._snapshot = None
        elif self._snapshot is not None:
            self._snapshot.refresh()
        self._whole, self._moved = None, False


class Tensors:
    """Parameters and buffers of a module, fetched again for every call, and their forms as a key.

    Args:
        module: whose they are.
    """

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self._children = [inner._modules for inner in module.modules()]
        self._shape = self._structure()
        self._param_tables = [table for _, table in tables(module, "_parameters")]
        self._buffer_tables = [table for _, table in tables(module, "_buffers")]
        self._ids: tuple[int, ...] = ()
        self._ties: tuple[int, ...] = ()
        self._key = _Key(())
        self.origins: dict[int, tuple[str, int]] = {}
        self.params: list[torch.Tensor] = []
        self.buffers: list[torch.Tensor] = []

    def _structure(self) -> list[tuple[Any, ...]]:
        return [(*table, *map(id, table.values())) for table in self._children]

    def current(self, module: nn.Module) -> bool:
        """Whether the module still consists of the same modules."""
        return self.module is module and self._structure() == self._shape

    def fetch(self) -> Hashable:
        """Look up the tensors, and give their key: the forms of all, and which of them are one."""
        values = chain.from_iterable(map(dict.values, self._param_tables))
        self.params = [tensor for tensor in values if tensor is not None]
        values = chain.from_iterable(map(dict.values, self._buffer_tables))
        self.buffers = [tensor for tensor in values if tensor is not None]
        tensors = (*self.params, *self.buffers)
        ids = tuple(map(id, tensors))
        if ids != self._ids:
            first: dict[int, int] = {}
            self._ids, self._ties = ids, tuple(first.setdefault(number, at) for at, number in enumerate(ids))
            kinds = (("param", self.params), ("buffer", self.buffers))
            self.origins = {id(tensor): (kind, at) for kind, group in kinds for at, tensor in enumerate(group)}
        forms = (self._ties, *map(form, tensors))
        if forms != self._key.items:
            self._key = _Key(forms)
        return self._key


class _Key:
    """A long tuple whose hash is computed once."""

    __slots__ = ("hashed", "items")

    def __init__(self, items: tuple[Any, ...]) -> None:
        self.items = items
        self.hashed = hash(items)

    def __hash__(self) -> int:
        return self.hashed

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, _Key) and self.items == other.items)


def form(tensor: torch.Tensor) -> tuple[Any, ...]:
    """What a plan depends on of a tensor."""
    stride = tensor.stride() if tensor.layout is torch.strided else tensor.layout
    return tensor.shape, stride, tensor.dtype, tensor.device, tensor.requires_grad


def tables(module: nn.Module, name: str, path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Tables of parameters or buffers of a module and everything inside it; what is shared comes once per place."""
    yield path, module.__dict__[name]
    for key, inner in module._modules.items():
        if inner is not None:
            yield from tables(inner, name, f"{path}{key}.")


def named(module: nn.Module, name: str) -> dict[str, int]:
    """Position of each parameter or buffer in the order in which `Tensors` has them."""
    paths = (path + key for path, table in tables(module, name) for key, tensor in table.items() if tensor is not None)
    return {path: at for at, path in enumerate(paths)}


def autocast(params: list[torch.Tensor], inputs: list[torch.Tensor]) -> tuple[Any, ...]:
    """The state of autocast on the devices of a call."""
    devices = {tensor.device.type for tensor in (*params[:1], *inputs[:1], _ON_CPU)} - {"meta"}
    enabled = tuple(
        (kind, torch.get_autocast_dtype(kind)) for kind in sorted(devices) if torch.is_autocast_enabled(kind)
    )
    return (*enabled, torch.is_autocast_cache_enabled()) if enabled else ()
