"""What a forward reads and writes in Python besides parameters and buffers: attributes, containers, closures, generators.

A `Snapshot` walks from a module (and a loss function) over everything it reaches and remembers the contents of every container.
It serves three ends: what a trace has changed is put back; two traces are compared, so that a counter is told from a flag that is
set once; and a plan knows whether the state it was made in still holds (`token`).
"""

from __future__ import annotations

import collections
import copy
import functools
import itertools
import operator
import random
import sys
import types
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import torch
from attrs import define, field, frozen
from torch import nn

from remat.exec._torch.places import HERE

PLAIN = (type(None), bool, int, float, complex, str, bytes, type(...), slice, range)
_TORCH_PLAIN = (torch.dtype, torch.device, torch.Size, torch.layout, torch.memory_format)
_LARGEST_ARRAY = 1 << 16
"""Bytes of a numpy array up to which its contents count, not only its identity."""
TABLES = ("_parameters", "_buffers")
"""Tables of tensors that are fetched anew for every call."""
_ALWAYS = (
    "_modules", "_parameters", "_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks",
    "_forward_hooks_with_kwargs", "_forward_pre_hooks_with_kwargs", "_forward_hooks_always_called",
)  # fmt: skip
"""Attributes of every module that count whether or not they are seen to be read."""
DERIVED = ("_flat_weights", "_flat_weight_refs")
"""Attributes that recurrent layers make anew of their parameters."""
OWN = "_remat"
"""Name of the attribute that holds what this library keeps of a wrapped module."""
_STANDARD = frozenset(sys.stdlib_module_names)


@define(eq=False)
class Container:
    """Something whose contents can change.

    Attributes:
        path: how it was reached, for people.
        holder: the live object.
        kind: how its contents are read: "dict", "list", "deque", "set", "cell", "class", "globals", "generator" or "cache".
        names: for "class" and "globals": which of its names count.
        keys, values: contents when the snapshot was taken.
        module: the module whose `__dict__` this is, or None.
        spare: a copy of an iterator as it was.
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
        """Keys and values now."""
        return _READ[self.kind](self)

    def take(self) -> Container:
        """Remember the contents."""
        self.keys, self.values = self.read()
        return self

    def same(self) -> bool:
        """Whether the contents are, object by object, what was remembered."""
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
    "globals": _write_names,
    "generator": _write_generator,
    "cache": _write_cache,
}


_CONTENTS = operator.attrgetter("cell_contents")


class Snapshot:
    """Contents of every container that a module and what is called with it reach.

    Args:
        module: where the walk begins.
        others: functions and objects to walk from as well (a loss function).
        reads: of the attributes of modules only those that it names are followed and compared; None: all of them.
    """

    def __init__(self, module: nn.Module, others: tuple[Any, ...] = (), reads: Reads | None = None) -> None:
        self.root = module
        self.others = others
        self.reads = reads
        self.containers: list[Container] = []
        named = module.named_modules(remove_duplicate=True)
        self.paths = {id(inner): f"self.{path}" if path else "self" for path, inner in named}
        self.visited: set[int] = set()
        self.names: dict[str, int] = {}
        self._alive: list[Any] = []
        self._tensors = {
            id(tensor) for inner in module.modules() for table in TABLES for tensor in inner.__dict__[table].values()
        }
        _Walk(self).visit(module, "self", 0)
        for other in others:
            _Walk(self).visit(other, getattr(other, "__qualname__", type(other).__name__), 0)
        self._dicts = [one.holder for one in self.containers if one.kind == "dict" and one.module is None]
        self._lists = [one.holder for one in self.containers if one.kind in ("list", "deque", "set")]
        self._cells = [one.holder for one in self.containers if one.kind == "cell" and one.keys]
        named = [one for one in self.containers if one.kind in ("globals", "class") or one.module is not None]
        self._spaces = [one.holder if one.kind != "class" else one.holder.__dict__ for one in named]
        self._getters = [self._getter(one) for one in named]
        self._ids = self._now()

    # -- contents ------------------------------------------------------------------------------------------------------

    def same(self) -> bool:
        """Whether every container holds the very objects it held; generators and caches do not count."""
        return self._now() == self._ids

    def _now(self) -> tuple[int, ...]:
        """Identities of all that dicts and lists hold: what is compared at each call, so no Python runs per container."""
        values = itertools.chain.from_iterable(map(dict.values, self._dicts))
        keys = itertools.chain.from_iterable(self._dicts)
        try:
            attributes = itertools.chain.from_iterable(map(operator.call, self._getters, self._spaces))
            cells = map(_CONTENTS, self._cells)
            lists = itertools.chain.from_iterable(self._lists)
            sizes = map(len, self._spaces)
            return (*sizes, *map(id, itertools.chain(attributes, cells, values, keys, lists)))
        except (KeyError, ValueError):  # an attribute is gone, or a cell is empty
            return ()

    def _getter(self, container: Container) -> Callable[[Any], tuple[Any, ...]]:
        """Fetches the attributes of a module that count."""
        names = [name for name in container.keys if name not in (OWN, *DERIVED) and self.follows(container, name)]
        # two names at least, so that the result is a tuple
        return operator.itemgetter(*names, *(_ALWAYS[:2] if container.module is not None else (*names, *names)[:2]))

    def follows(self, container: Container, key: Any) -> bool:
        """Whether an entry of a container counts."""
        if container.module is None or self.reads is None or key in _ALWAYS:
            return True
        wanted = self.reads.of(container.path)
        return wanted is None or key in wanted

    def refresh(self) -> None:
        """Remember the contents anew; which containers there are stays."""
        for container in self.containers:
            container.take()
        self._ids = self._now()

    def changed(self) -> Iterator[Container]:
        """Containers that hold other objects than they held."""
        return (container for container in self.containers if not container.same())

    def restore(self) -> None:
        """Put back everything that was remembered."""
        for container in self.containers:
            if not container.same():
                container.write(container.keys, container.values)

    def iterators(self) -> dict[int, Any]:
        """A copy of each iterator, as it was, by the iterator's identity: a copy can be moved and thrown away."""
        return {id(one.holder): copy.copy(one.spare) for one in self.containers if one.spare is not None}

    def slots(self) -> Iterator[Slot]:
        """Places of tensors outside the tables of parameters and buffers."""
        return (slot for slot in self.places() if isinstance(slot.tensor, torch.Tensor))

    def places(self) -> Iterator[Slot]:
        """Everything that can be put elsewhere, with its place."""
        for container in self.containers:
            if container.kind in ("generator", "set", "cache"):
                continue
            keys = container.keys or tuple(range(len(container.values)))
            for key, value in zip(keys, container.values, strict=True):
                yield Slot(container, key, value)

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

    def frozen(self, container: Container, reads: Reads | None) -> tuple[Any, ...]:
        """A container's part of the token."""
        pairs = zip(container.keys or (None,) * len(container.values), container.values, strict=True)
        if container.module is not None:
            wanted = None if reads is None else reads.of(container.path)
            items = {
                key: value for key, value in pairs
                if key not in (*TABLES, OWN, *DERIVED) and (wanted is None or key in wanted)
            }  # fmt: skip
            own = _Same(type(container.module))
            return (
                own,
                *((key, self.freeze(value)) for key, value in sorted(items.items(), key=operator.itemgetter(0))),
            )
        if container.kind == "set":
            return (frozenset(self.freeze(value) for _, value in pairs),)
        return tuple((self.freeze(key), self.freeze(value)) for key, value in pairs)

    def freeze(self, value: Any) -> Any:
        """A value in a form that compares."""
        if isinstance(value, PLAIN):
            return type(value).__name__, repr(value) if isinstance(value, (float, complex, slice)) else value
        if isinstance(value, _TORCH_PLAIN):
            return str(value)
        if isinstance(value, torch.Tensor):
            if id(value) in self._tensors:
                return "registered tensor"
            return "tensor", tuple(value.shape), value.stride(), value.dtype, str(value.device), value.requires_grad
        if id(value) in self.paths:
            return "at", self.paths[id(value)]
        if isinstance(value, (tuple, frozenset)):
            return type(value).__name__, tuple(self.freeze(item) for item in value)
        if isinstance(value, np.ndarray):
            small = value.nbytes <= _LARGEST_ARRAY and value.dtype != object
            return "array", value.shape, str(value.dtype), value.tobytes() if small else id(value)
        if isinstance(value, types.MethodType):
            return "method", _Same(value.__func__), self.freeze(value.__self__)
        return _Same(value)


@frozen
class Slot:
    """A place that holds a plain tensor (or something else)."""

    container: Container
    key: Any
    tensor: Any

    @property
    def path(self) -> str:
        """For people."""
        return _child(self.container, self.key)

    def get(self) -> Any:
        """What is there now."""
        if self.container.kind == "cell":
            return self.container.holder.cell_contents
        if self.container.kind == "class":
            return getattr(self.container.holder, self.key)
        return self.container.holder[self.key]

    def put(self, value: Any) -> None:
        """Put another object there."""
        if self.container.kind == "cell":
            self.container.holder.cell_contents = value
        elif self.container.kind == "class":
            setattr(self.container.holder, self.key, value)
        else:
            self.container.holder[self.key] = value


@frozen(eq=False)
class _Same:
    """Equal to another of the same object; it keeps the object, so that no other gets its id."""

    value: Any

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and self.value is other.value

    def __hash__(self) -> int:
        return id(self.value)


def _child(container: Container, key: Any) -> str:
    if container.kind == "dict" and container.module is None and not container.path.endswith("__dict__"):
        return f"{container.path}[{key!r}]"
    if container.kind in ("list", "deque"):
        return f"{container.path}[{key}]"
    return container.path if container.kind == "cell" else f"{container.path.removesuffix('.__dict__')}.{key}"


_GENERATORS = (random.Random, np.random.Generator, np.random.RandomState, torch.Generator)
_BUILT_IN: tuple[Iterable[Any], ...] = ([], (), "", range(1), {})
_ITERATORS = (itertools.count, itertools.cycle, itertools.islice, *(type(iter(items)) for items in _BUILT_IN))
_CACHE = type(functools.lru_cache(len))
_DEEPEST = 40


class _Walk:
    """Visits everything that can be reached and adds its containers to a snapshot."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot

    def visit(self, value: Any, path: str, depth: int) -> None:
        """Add a value and what it holds."""
        if isinstance(value, (*PLAIN, *_TORCH_PLAIN, torch.Tensor, np.ndarray)) or depth > _DEEPEST:
            return
        handler = self.handler(value) if id(value) not in self.snapshot.visited else None
        if handler is not None:
            self.enter(value, path)
            handler(value, self.snapshot.paths[id(value)], depth + 1)

    def enter(self, value: Any, path: str) -> None:
        """Note that a value is visited; it is kept alive, so that no other gets its id."""
        self.snapshot.visited.add(id(value))
        self.snapshot.paths.setdefault(id(value), path)
        self.snapshot._alive.append(value)

    def handler(self, value: Any) -> Callable[[Any, str, int], None] | None:
        """How a value is visited, or None where it is opaque."""
        handlers: tuple[tuple[Any, Callable[[Any, str, int], None]], ...] = (
            (nn.Module, self.module),
            (dict, self.mapping),
            (list, functools.partial(self.sequence, kind="list")),
            (collections.deque, functools.partial(self.sequence, kind="deque")),
            (set, functools.partial(self.sequence, kind="set")),
            ((tuple, frozenset), self.items),
            (types.FunctionType, self.function),
            (types.MethodType, self.method),
            (functools.partial, self.partial),
            ((*_GENERATORS, types.GeneratorType), self.generator),
            (_ITERATORS, self.iterator),
            (_CACHE, self.cache),
            (type, self.kind),
        )
        for kinds, handler in handlers:
            if isinstance(value, kinds):
                return handler
        return self.instance if _is_user_object(value) else None

    def add(self, container: Container, depth: int) -> None:
        """Add a container and visit what it holds."""
        count = self.snapshot.names[container.path] = self.snapshot.names.get(container.path, 0) + 1
        if count > 1:
            container.path = f"{container.path} ({count})"
        self.snapshot.containers.append(container.take())
        keys = container.keys or tuple(range(len(container.values)))
        hooked = container.module is self.snapshot.root and not self.snapshot.others
        for key, value in zip(keys, container.values, strict=True):
            skipped = container.module is not None and (key in (*TABLES, OWN, *DERIVED) or (hooked and "_hooks" in key))
            if not skipped and self.snapshot.follows(container, key):
                self.visit(value, _child(container, key), depth)

    def module(self, value: nn.Module, path: str, depth: int) -> None:
        """A module: its attributes, and the functions of its class."""
        self.add(Container(path, value.__dict__, "dict", module=value), depth - 1)
        self.visit(type(value), f"class {type(value).__name__}", depth)

    def mapping(self, value: dict[Any, Any], path: str, depth: int) -> None:
        """A dict."""
        self.add(Container(path, value, "dict"), depth)

    def sequence(self, value: Any, path: str, depth: int, kind: str) -> None:
        """A list, deque or set."""
        self.add(Container(path, value, kind), depth)

    def items(self, value: Any, path: str, depth: int) -> None:
        """What cannot change itself."""
        for at, item in enumerate(value):
            self.visit(item, f"{path}[{at}]", depth)

    def function(self, value: types.FunctionType, path: str, depth: int) -> None:
        """A function: its closure, its defaults and attributes, and the globals that it names."""
        if _is_library(value.__module__) or value.__code__.co_filename.startswith(HERE):
            return
        for name, cell in zip(value.__code__.co_freevars, value.__closure__ or (), strict=True):
            if id(cell) not in self.snapshot.visited:
                self.enter(cell, f"{path}.{name}")
                self.add(Container(f"{name} of {value.__qualname__}", cell, "cell"), depth)
        for held in (value.__defaults__, value.__kwdefaults__):
            self.visit(held, f"{path}.defaults", depth)
        if value.__dict__:
            self.visit(value.__dict__, f"{path}.__dict__", depth)
        self.globals(value, depth)

    def globals(self, value: types.FunctionType, depth: int) -> None:
        """The globals that a function names, and those that the functions of its file name in turn."""
        space = value.__globals__
        names = tuple(
            name for name in _names(value.__code__)
            if name in space and not isinstance(space[name], types.ModuleType)
        )  # fmt: skip
        state = tuple(name for name in names if not isinstance(space[name], (type, types.FunctionType)))
        if state:
            self.add(Container(f"globals of {value.__qualname__}", space, "globals", names=state), depth)
        for name in names:
            inner = space[name]
            if isinstance(inner, types.FunctionType) and inner.__globals__ is space:
                self.visit(inner, name, depth)

    def method(self, value: types.MethodType, path: str, depth: int) -> None:
        """A bound method: whom it is bound to, and its function."""
        self.visit(value.__self__, f"{path}.__self__", depth)
        self.visit(value.__func__, path, depth)

    def partial(self, value: functools.partial[Any], path: str, depth: int) -> None:
        """A partial call: its function and its arguments."""
        for held in (value.func, value.args, value.keywords):
            self.visit(held, path, depth)

    def generator(self, value: Any, path: str, depth: int) -> None:
        """A generator of random numbers, or an iterator that counts."""
        self.add(Container(path, value, "generator"), depth)

    def iterator(self, value: Any, path: str, depth: int) -> None:
        """Something that counts; it cannot be set back, so a copy stands in for it where it was moved."""
        self.add(Container(path, value, "generator", spare=copy.copy(value)), depth)

    def cache(self, value: Any, path: str, depth: int) -> None:
        """What `functools.lru_cache` makes; and the function inside it."""
        self.add(Container(path, value, "cache"), depth)
        self.visit(value.__wrapped__, path, depth)

    def kind(self, value: type, path: str, depth: int) -> None:
        """A class: its plain attributes, and the closures of its functions."""
        for base in value.__mro__:
            if base in (nn.Module, object) or _is_library(base.__module__):
                continue
            state = tuple(
                name for name, item in vars(base).items()
                if not name.startswith("__") and isinstance(item, (*PLAIN, dict, list, set, collections.deque))
            )  # fmt: skip
            if state:
                self.add(Container(f"class {base.__name__}", base, "class", names=state), depth)
            for name, item in vars(base).items():
                if isinstance(item, types.FunctionType):
                    self.visit(item, f"{base.__name__}.{name}", depth)

    def instance(self, value: Any, path: str, depth: int) -> None:
        """An object of a class of the user's."""
        if hasattr(value, "__dict__"):
            self.add(Container(path + ".__dict__", value.__dict__, "dict"), depth)
        self.visit(type(value), f"class {type(value).__name__}", depth)


def _names(code: types.CodeType) -> tuple[str, ...]:
    """Global names that a function and the functions inside it use."""
    inner = (name for const in code.co_consts if isinstance(const, types.CodeType) for name in _names(const))
    return tuple(dict.fromkeys((*code.co_names, *inner)))


def _is_library(module: str | None) -> bool:
    """Whether code belongs to torch, numpy or the standard library, whose own state is not the user's."""
    top = (module or "").partition(".")[0]
    return top in ("torch", "numpy", "builtins") or top in _STANDARD or (module or "").startswith("remat.exec")


def _is_user_object(value: Any) -> bool:
    kind = type(value)
    return isinstance(value, types.SimpleNamespace) or (
        not _is_library(kind.__module__) and not isinstance(value, types.ModuleType)
    )


# -- which attributes are read ---------------------------------------------------------------------------------------------


_MODULE_FILE = nn.Module.__getattr__.__code__.co_filename


class Reads:
    """While entered, notes which attributes of modules are read before they are written.

    Args:
        paths: path of each module in the snapshot that the reads are for.
    """

    def __init__(self, paths: dict[int, str]) -> None:
        self.paths = paths
        self.names: dict[str, set[str]] = {}
        self._written: set[tuple[int, str]] = set()

    def of(self, path: str) -> set[str] | None:
        """Attributes of a module that were read; None: possibly all of them."""
        names = self.names.get(path, set())
        return None if "__dict__" in names else names

    def merge(self, other: Reads) -> None:
        """Add what another trace has read."""
        for path, names in other.names.items():
            self.names.setdefault(path, set()).update(names)

    def __enter__(self) -> Reads:
        plain, write = object.__getattribute__, nn.Module.__setattr__

        def read(module: nn.Module, name: str) -> Any:
            path = self.paths.get(id(module))
            if name == "__dict__" and sys._getframe(1).f_code.co_filename == _MODULE_FILE:
                return plain(module, name)
            if path is not None and (id(module), name) not in self._written:
                self.names.setdefault(path, set()).add(name)
            return plain(module, name)

        def assign(module: nn.Module, name: str, value: Any) -> None:
            if name not in self.names.get(self.paths.get(id(module), ""), ()):
                self._written.add((id(module), name))
            write(module, name, value)

        self._write = write
        nn.Module.__getattribute__ = read  # type: ignore[method-assign, assignment]
        nn.Module.__setattr__ = assign  # type: ignore[method-assign, assignment]
        return self

    def __exit__(self, *_error: object) -> None:
        del nn.Module.__getattribute__
        nn.Module.__setattr__ = self._write  # type: ignore[method-assign]


__all__ = ["PLAIN", "TABLES", "Container", "Reads", "Slot", "Snapshot"]
