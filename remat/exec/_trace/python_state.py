"""Python state of a forward besides parameters and buffers: attributes, containers, closures, generators.

A `Snapshot` walks from a module (and a loss function) over everything it reaches and remembers the contents of every container.
It has three uses: changes of a trace are undone; two traces are compared, which tells a counter from a flag that is
set once; and a plan checks whether the state it was made for still holds (`token`).
"""

from __future__ import annotations

import collections
import copy
import ctypes
import functools
import itertools
import operator
import types
from collections.abc import Callable, Collection, Iterator
from typing import Any

import numpy as np
import torch
from attrs import frozen
from torch import nn

from remat.exec._trace.containers import (
    ALWAYS,
    DERIVED,
    PLAIN,
    STATE,
    TABLES,
    TORCH_PLAIN,
    Container,
    Item,
    Slot,
    with_items,
)
from remat.exec._trace.reads import Reads
from remat.exec._trace.walk import Walk

_LARGEST_ARRAY = 1 << 16
"""Most bytes of a numpy array that is compared by contents; larger ones are compared by identity."""
C_DATA = (ctypes._SimpleCData, ctypes.Array, ctypes.Structure)
"""What `multiprocessing.Value` and `Array` hold."""
_CONTENTS = operator.attrgetter("cell_contents")


class Snapshot:
    """Contents of every container reachable from a module and the functions called with it.

    Args:
        module: where the walk begins.
        others: functions and objects to walk from as well (a loss function).
        reads: of the attributes of modules only those that it names are followed and compared; None: all of them.
    """

    def __init__(self, module: nn.Module, others: tuple[Any, ...] = (), reads: Reads | None = None) -> None:
        self.root = module
        self.reads = reads
        self._walk = Walk(module, others, reads)  # it keeps the objects alive that are identified by their ids
        self.containers, self.paths = self._walk.containers, self._walk.paths
        self._tensors = _registered(module)
        self._open: set[int] = set()  # functions whose defaults are being frozen
        self._dicts = self._holders(lambda container: container.kind == "dict" and container.module is None)
        self._lists = self._holders(lambda container: container.kind in ("list", "deque", "set"))
        self._cells = self._holders(lambda container: container.kind == "cell" and bool(container.keys))
        slotted = [container for container in self.containers if container.kind == "slots" and container.keys]
        self._slotted = [container.holder for container in slotted]
        self._slots = [operator.attrgetter(*container.keys, container.keys[0]) for container in slotted]
        spaces = [container for container in self.containers if _has_space(container)]
        self._spaces = [space.holder if space.kind != "class" else space.holder.__dict__ for space in spaces]
        self._getters = [self._getter(space) for space in spaces]
        self._note()

    # -- contents ------------------------------------------------------------------------------------------------------

    def same(self) -> bool:
        """Whether every container still holds the same objects, and arrays their numbers; generators and caches do not count."""
        return self._now() == self._ids and [array.tobytes() for array in self._arrays] == self._numbers

    def _note(self) -> None:
        """Remember what `same` compares."""
        self._ids = self._now()
        self._arrays = [
            array
            for container in self.containers
            for key, value in zip(container.keys or itertools.repeat(None), container.values, strict=False)
            if self._counts(container, key)
            for array in _arrays(value)
        ]
        self._numbers = [array.tobytes() for array in self._arrays]

    def _now(self) -> tuple[int, ...]:
        """Identities of the contents of dicts and lists. Compared at each call, so it runs no Python code per container."""
        values = itertools.chain.from_iterable(map(dict.values, self._dicts))
        keys = itertools.chain.from_iterable(self._dicts)
        try:
            attributes = itertools.chain.from_iterable(map(operator.call, self._getters, self._spaces))
            slots = itertools.chain.from_iterable(map(operator.call, self._slots, self._slotted))
            cells = map(_CONTENTS, self._cells)
            lists = itertools.chain.from_iterable(self._lists)
            sizes = map(len, self._spaces)
            return (*sizes, *map(id, itertools.chain(attributes, slots, cells, values, keys, lists)))
        except (AttributeError, KeyError, ValueError):  # an attribute is gone, or a cell is empty
            return ()

    def _getter(self, container: Container) -> Callable[[Any], tuple[Any, ...]]:
        """Reads the attributes of a module that count."""
        names = [name for name in container.keys if name not in (STATE, *DERIVED) and self._counts(container, name)]
        # two names at least, so that the result is a tuple
        return operator.itemgetter(*names, *(ALWAYS[:2] if container.module is not None else (*names, *names)[:2]))

    def _counts(self, container: Container, key: Any) -> bool:
        return self.reads is None or self.reads.counts(container, key)

    def refresh(self) -> None:
        """Remember the present contents; the set of containers stays the same."""
        for container in self.containers:
            container.take()
        self._note()

    def changed(self) -> Iterator[Container]:
        """Containers whose contents changed."""
        return (container for container in self.containers if not container.same())

    def restore(self) -> None:
        """Restore the remembered contents."""
        for container in self.containers:
            if not container.same():
                container.write(container.keys, container.values)

    def iterators(self) -> dict[int, Any]:
        """A copy of each iterator, as it was, by the iterator's identity: a copy can be advanced and discarded."""
        containers = (container for container in self.containers if container.spare is not None)
        return {id(container.holder): copy.copy(container.spare) for container in containers}

    def caches(self) -> list[Any]:
        """Caches of functions among the containers."""
        return self._holders(lambda container: container.kind == "cache")

    def slots(self) -> Iterator[Slot | Item]:
        """Places of tensors outside the tables of parameters and buffers."""
        return (slot for slot in self.places() if isinstance(slot.tensor, torch.Tensor))

    def places(self) -> Iterator[Slot | Item]:
        """All replaceable entries, as slots, those of tuples among them."""
        for container in self.containers:
            if container.kind in ("generator", "set", "cache"):
                continue
            keys = container.keys or tuple(range(len(container.values)))
            for key, value in zip(keys, container.values, strict=True):
                yield from with_items(Slot(container, key, value))

    # -- comparison ----------------------------------------------------------------------------------------------------

    def token(self, reads: Reads | None = None) -> tuple[Any, ...]:
        """The contents in a form that compares equal for equal state, also of a copy of the module.

        Args:
            reads: of attributes of modules only those that it names count; None: all of them.
        """
        return tuple(
            (container.path, container.kind, *self.frozen(container, reads))
            for container in self.containers
            if container.kind not in ("cache", "generator")
        )

    def _holders(self, counts: Callable[[Container], bool]) -> list[Any]:
        """What the containers of a sort hold their values in."""
        return [container.holder for container in self.containers if counts(container)]

    def frozen(self, container: Container, reads: Reads | None) -> tuple[Any, ...]:
        """A container's part of the token."""
        pairs = zip(container.keys or (None,) * len(container.values), container.values, strict=True)
        if container.module is not None:
            wanted = None if reads is None else reads.of(container.path)
            counted = ((key, value) for key, value in pairs if _counts(key, wanted))
            items = sorted(dict(counted).items(), key=operator.itemgetter(0))
            return (_Same(type(container.module)), *((key, self.freeze(value)) for key, value in items))
        if container.kind == "set":
            return (frozenset(self.freeze(value) for _, value in pairs),)
        factory = (container.holder.default_factory,) if isinstance(container.holder, collections.defaultdict) else ()
        return (*map(self.freeze, factory), *((self.freeze(key), self.freeze(value)) for key, value in pairs))

    def freeze(self, value: Any) -> Any:
        """A value in a form that compares."""
        if isinstance(value, PLAIN):
            return type(value).__name__, repr(value) if isinstance(value, (float, complex, slice)) else value
        if isinstance(value, TORCH_PLAIN):
            return str(value)
        if isinstance(value, torch.Tensor):
            if id(value) in self._tensors:
                return "registered tensor"
            return "tensor", tuple(value.shape), value.stride(), value.dtype, str(value.device), value.requires_grad
        if isinstance(value, (type, types.BuiltinFunctionType)):
            return _Same(value)
        if isinstance(value, (tuple, frozenset)):  # they are compared by what they hold: no container of their own does
            items = [self.freeze(item) for item in value]
            return _Same(type(value)), frozenset(items) if isinstance(value, frozenset) else tuple(items)
        if isinstance(value, functools.partial):
            return "partial", self.paths.get(id(value)), self.freeze(value.func), self.freeze(value.args)
        if id(value) in self.paths:  # what it holds is in containers of its own
            return "at", self.paths[id(value)], *self._behind(value)
        if isinstance(value, np.ndarray):
            return "array", value.shape, str(value.dtype), value.tobytes() if _is_small(value) else id(value)
        if isinstance(value, C_DATA):
            return "shared memory", bytes(value)
        if isinstance(value, types.MethodType):
            return "method", _Same(value.__func__), self.freeze(value.__self__)
        return _Same(value)

    def _behind(self, value: Any) -> Iterator[Any]:
        """Of what has containers of its own: what they do not have, in a form that compares."""
        if isinstance(value, types.MethodType):
            value = value.__func__
        if not isinstance(value, types.FunctionType):
            yield _Same(type(value))
            return
        yield _Same(value.__code__)
        if value.__defaults__ and id(value) not in self._open:
            self._open.add(id(value))
            yield self.freeze(value.__defaults__)
            self._open.discard(id(value))


@frozen(eq=False)
class _Same:
    """Compares equal for the same object; keeps the object alive, so that its id is not reused."""

    value: Any

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and self.value is other.value

    def __hash__(self) -> int:
        return id(self.value)


def _registered(module: nn.Module) -> set[int]:
    """The identities of all parameters and buffers."""
    tables = (inner.__dict__[table] for inner in module.modules() for table in TABLES)
    return {id(tensor) for table in tables for tensor in table.values()}


def _is_small(array: np.ndarray[Any, Any]) -> bool:
    """Whether an array is compared by contents."""
    return array.nbytes <= _LARGEST_ARRAY and array.dtype != object


def _arrays(value: Any) -> Iterator[np.ndarray[Any, Any]]:
    """Small arrays in a value of a container, in tuples too."""
    if isinstance(value, np.ndarray) and _is_small(value):
        yield value
    elif isinstance(value, C_DATA):
        yield np.frombuffer(value, np.uint8)  # type: ignore[call-overload]
    elif isinstance(value, tuple):
        for item in value:
            yield from _arrays(item)


def _has_space(container: Container) -> bool:
    """Whether a container is the attributes of something, or the globals of a file."""
    return container.kind in ("globals", "class") or container.module is not None


def _counts(key: Any, wanted: Collection[Any] | None) -> bool:
    """Whether an attribute of a module is part of its state: torch's tables are not, nor what the forward does not read."""
    return key not in (*TABLES, STATE, *DERIVED) and (wanted is None or key in wanted)
