"""The walk over what a module reaches, and what is called with it: attributes, containers, closures, globals, generators."""

from __future__ import annotations

import collections
import copy
import dis
import enum
import functools
import gc
import itertools
import random
import sys
import threading
import types
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.distributions import Distribution
from torch.optim.lr_scheduler import LRScheduler

from remat.exec._torch.ambient import hooks_of_all_modules
from remat.exec._torch.places import HERE
from remat.exec._trace.containers import DERIVED, PLAIN, STATE, TABLES, TORCH_PLAIN, Container, child
from remat.exec._trace.reads import Reads

_STANDARD = frozenset(sys.stdlib_module_names)
_GENERATORS = (random.Random, np.random.Generator, np.random.RandomState, torch.Generator)
_BUILT_IN: tuple[Iterable[Any], ...] = ([], (), "", range(1), {})
_ITERATORS = (itertools.count, itertools.cycle, itertools.islice, *(type(iter(items)) for items in _BUILT_IN))
_CACHE = type(functools.lru_cache(len))
_HOLDERS = (types.SimpleNamespace, threading.local, LRScheduler, Distribution)
"""Of libraries, what holds settings or tensors of the user's."""
_DEEPEST = 40
_MACHINERY = frozenset(
    ("abc", "asyncio", "builtins", "concurrent", "contextlib", "ctypes", "enum", "importlib", "inspect", "io", "logging",
     "pathlib", "re", "socket", "subprocess", "tempfile", "threading", "types", "typing", "warnings", "_io", "_thread")
)  # fmt: skip
"""Modules of the standard library whose objects are no settings of a model: what changes in them is their own."""


class Walk:
    """Visits everything that can be reached from a module and from what is called with it.

    Args:
        module: where the walk begins.
        others: functions and objects to walk from as well (a loss function).
        reads: of the attributes of modules only those that it names are followed; None: all of them.

    Attributes:
        containers: what was found, in the order of the walk.
        paths: how each object was reached, by its identity.
        back: where the module itself was met again.
    """

    def __init__(self, module: nn.Module, others: tuple[Any, ...], reads: Reads | None) -> None:
        self.root = module
        self.others = others
        self.reads = reads
        self.containers: list[Container] = []
        named = module.named_modules(remove_duplicate=True)
        self.paths = {id(inner): f"self.{path}" if path else "self" for path, inner in named}
        self._registered = frozenset(self.paths)
        self.back: list[str] = []
        self._visited: set[int] = set()
        self._read: set[tuple[int, str]] = set()
        self._names: dict[str, int] = {}
        self._alive: list[Any] = []
        self.visit(module, "self", 0)
        for hook in hooks_of_all_modules().values():
            self.visit(hook, "a hook of all modules", 0)
        for other in others:
            self.visit(other, getattr(other, "__qualname__", type(other).__name__), 0)

    def visit(self, value: Any, path: str, depth: int) -> None:
        """Add a value and what it holds."""
        if isinstance(value, (*PLAIN, *TORCH_PLAIN, torch.Tensor, np.ndarray)) or depth > _DEEPEST:
            return
        if value is self.root and depth:
            self.back.append(path)
        handler = self.handler(value) if id(value) not in self._visited else None
        if handler is not None:
            self.enter(value, path)
            handler(value, self.paths[id(value)], depth + 1)

    def enter(self, value: Any, path: str) -> None:
        """Note that a value is visited; it is kept alive, so that no other gets its id."""
        self._visited.add(id(value))
        self.paths.setdefault(id(value), path)
        self._alive.append(value)

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
            ((types.MethodType, types.BuiltinMethodType), self.method),
            (types.MappingProxyType, self.proxy),
            (weakref.ref, self.reference),
            (functools.partial, self.partial),
            ((*_GENERATORS, types.GeneratorType), self.generator),
            (_ITERATORS, self.iterator),
            (_CACHE, self.cache),
            (type, self.kind),
        )
        for kinds, handler in handlers:
            if isinstance(value, kinds):
                return handler
        return self.instance if is_user_object(value) else None

    def add(self, container: Container, depth: int) -> None:
        """Add a container and visit what it holds."""
        count = self._names[container.path] = self._names.get(container.path, 0) + 1
        if count > 1:
            container.path = f"{container.path} ({count})"
        self.containers.append(container.take())
        keys = container.keys or tuple(range(len(container.values)))
        hooked = container.module is self.root and not self.others
        for key, value in zip(keys, container.values, strict=True):
            tables = TABLES if id(container.module) in self._registered else ()
            skipped = container.module is not None and (
                key in (*tables, STATE, *DERIVED) or (hooked and "_hooks" in key)
            )
            if not skipped and (self.reads is None or self.reads.counts(container, key)):
                self.visit(value, child(container, key), depth)

    def module(self, value: nn.Module, path: str, depth: int) -> None:
        """A module: its attributes, and the functions of its class."""
        self.add(Container(path, value.__dict__, "dict", module=value), depth - 1)
        if slots := _slots(type(value)):
            self.add(Container(path + ".__slots__", value, "slots", names=slots), depth)
        self.visit(type(value), f"class {type(value).__name__}", depth)

    def mapping(self, value: dict[Any, Any], path: str, depth: int) -> None:
        """A dict, and the attributes of one of a class of its own."""
        self.add(Container(path, value, "dict"), depth)
        if isinstance(value, collections.defaultdict):
            self.visit(value.default_factory, f"{path}.default_factory", depth)
        self.own_attributes(value, path, depth)

    def sequence(self, value: Any, path: str, depth: int, kind: str) -> None:
        """A list, deque or set, and the attributes of one of a class of its own."""
        self.add(Container(path, value, kind), depth)
        self.own_attributes(value, path, depth)

    def own_attributes(self, value: Any, path: str, depth: int) -> None:
        """What an object of a class derived from a container has besides its items."""
        if not _is_library(type(value).__module__):
            self.instance(value, path, depth)

    def proxy(self, value: types.MappingProxyType[Any, Any], path: str, depth: int) -> None:
        """A view of a dict: the dict."""
        for behind in gc.get_referents(value):
            self.visit(behind, path, depth)

    def reference(self, value: weakref.ref[Any], path: str, depth: int) -> None:
        """A weak reference: what it refers to."""
        self.visit(value(), path, depth)

    def items(self, value: Any, path: str, depth: int) -> None:
        """What cannot change itself."""
        for at, item in enumerate(value):
            self.visit(item, f"{path}[{at}]", depth)

    def function(self, value: types.FunctionType, path: str, depth: int) -> None:
        """A function: its closure, its defaults and attributes, and the globals that it names."""
        if value.__code__.co_filename.startswith(HERE):  # it may stand around one of the user's (`calls.entry_of`)
            self.visit(getattr(value, "__wrapped__", None), path, depth)
            return
        if _is_library(value.__module__):
            return
        for name, cell in zip(value.__code__.co_freevars, value.__closure__ or (), strict=True):
            if id(cell) not in self._visited:
                self.enter(cell, f"{path}.{name}")
                self.add(Container(f"{name} of {value.__qualname__}", cell, "cell"), depth)
        for defaults in (value.__defaults__, value.__kwdefaults__):
            self.visit(defaults, f"{path}.defaults", depth)
        self.visit(value.__dict__, f"{path}.__dict__", depth)
        self.globals(value, depth)

    def globals(self, value: types.FunctionType, depth: int) -> None:
        """The globals that a function names, and those that functions and classes of its file, or of the user's, name in turn."""
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
            if isinstance(inner, types.FunctionType) and (inner.__globals__ is space or _is_own(inner.__globals__)):
                self.visit(inner, name, depth)
            elif isinstance(inner, type) and (inner.__module__ == space.get("__name__") or _is_own(_space_of(inner))):
                self.visit(inner, f"class {inner.__name__}", depth)
        for name, *attributes in _chains(value.__code__):
            if isinstance(space.get(name), (type, types.ModuleType)):
                self.attribute(space[name], name, attributes, depth)

    def attribute(self, owner: Any, path: str, names: Sequence[str], depth: int) -> None:
        """What a function reads of a global class or of another file: `Settings.scale`, `settings.scale`.

        Args:
            owner: the class or file.
            path: its name.
            names: the attributes that are read, each of the one before.
            depth: of the walk.
        """
        name, *rest = names
        holder = _holder(owner, name)
        space = vars(holder) if holder is not None else {}
        item = space.get(name)
        if isinstance(item, (type, types.ModuleType)):
            if rest:
                self.attribute(item, f"{path}.{name}", rest, depth)
        elif isinstance(item, types.FunctionType) and _is_own(item.__globals__):
            self.visit(item, f"{path}.{name}", depth)
        elif (
            name in space
            and (id(holder), name) not in self._read
            and not callable(item)
            and not hasattr(item, "__get__")
        ):
            self._read.add((id(holder), name))
            if isinstance(holder, type):
                self.add(Container(path, holder, "class", names=(name,)), depth)
            else:
                self.add(Container(path, space, "globals", names=(name,)), depth)

    def method(self, value: types.MethodType | types.BuiltinMethodType, path: str, depth: int) -> None:
        """A bound method: its object and its function; a built-in one (`table.get`) has none, and one of a file no object."""
        if not isinstance(value.__self__, types.ModuleType):
            self.visit(value.__self__, f"{path}.__self__", depth)
        self.visit(getattr(value, "__func__", None), path, depth)

    def partial(self, value: functools.partial[Any], path: str, depth: int) -> None:
        """A partial call: its function and its arguments."""
        for part in (value.func, value.args, value.keywords):
            self.visit(part, path, depth)

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
        """A class: its plain attributes, its objects of classes of the user's, and the closures of its functions."""
        for base in value.__mro__:
            if base in (nn.Module, object) or _is_library(base.__module__):
                continue
            state = tuple(
                name for name, item in vars(base).items() if not name.startswith("__") and _is_state_of_class(item)
            )
            if state and not isinstance(base, enum.EnumMeta):
                self.add(Container(f"class {base.__name__}", base, "class", names=state), depth)
            for name, item in vars(base).items():
                if isinstance(item, _CACHE):
                    self.visit(item, f"{base.__name__}.{name}", depth)
                for function in _functions(item):
                    self.visit(function, f"{base.__name__}.{name}", depth)

    def instance(self, value: Any, path: str, depth: int) -> None:
        """An object of a class of the user's."""
        if getattr(value, "__dict__", None) is not None:
            self.add(Container(path + ".__dict__", value.__dict__, "dict"), depth)
        if slots := _slots(type(value)):
            self.add(Container(path, value, "slots", names=slots), depth)
        self.visit(type(value), f"class {type(value).__name__}", depth)


def place_of_itself(module: nn.Module) -> str | None:
    """Where something that a module reaches refers to the module: a hook, a child, a closure; None: nothing does.

    A forward set on the instance does not count.
    """
    walk = Walk(module, (None,), None)  # with something beside it, hooks of the module count as well
    return next((path for path in walk.back if path != "self.forward" and not path.startswith("self.forward.")), None)


@functools.lru_cache(maxsize=4096)
def _instructions(code: types.CodeType) -> tuple[tuple[str, Any], ...]:
    """The instructions of a function: names and arguments."""
    return tuple((step.opname, step.argval) for step in dis.get_instructions(code))


@functools.lru_cache(maxsize=4096)
def _names(code: types.CodeType) -> tuple[str, ...]:
    """Global names that a function and the functions inside it use; `co_names` has those of attributes too."""
    names = [argument for name, argument in _instructions(code) if "_GLOBAL" in name or name == "LOAD_NAME"]
    inner = (name for const in code.co_consts if isinstance(const, types.CodeType) for name in _names(const))
    return tuple(dict.fromkeys((*names, *inner)))


@functools.lru_cache(maxsize=4096)
def _chains(code: types.CodeType) -> tuple[tuple[str, ...], ...]:
    """Global names that a function and the functions inside it use, each with the attributes that are read of it in turn."""
    chains: list[list[str]] = []
    current: list[str] = []
    for name, argument in _instructions(code):
        if name in ("LOAD_GLOBAL", "LOAD_NAME"):
            current = [argument]
            chains.append(current)
        elif name in ("LOAD_ATTR", "LOAD_METHOD"):
            current.append(argument)
        else:
            current = []
    inner = (chain for const in code.co_consts if isinstance(const, types.CodeType) for chain in _chains(const))
    return tuple(dict.fromkeys((*(tuple(chain) for chain in chains if len(chain) > 1), *inner)))


def _holder(owner: Any, name: str) -> type | types.ModuleType | None:
    """Where an attribute of a class or file of the user's lies; members of enumerations do not change."""
    if isinstance(owner, types.ModuleType):
        return None if _is_library(owner.__name__) else owner
    if isinstance(owner, enum.EnumMeta):
        return None
    base = next((base for base in owner.__mro__ if name in vars(base)), object)
    return None if _is_library(base.__module__) else base


def _is_library(module: str | None) -> bool:
    """Whether code belongs to torch, numpy or the standard library, whose own state is not the user's."""
    top = (module or "").partition(".")[0]
    return top in ("torch", "numpy", "builtins") or top in _STANDARD or (module or "").startswith("remat.exec")


def _is_own(space: dict[str, Any]) -> bool:
    """Whether a file, given by its globals, is of the user's own code: not of an installed package."""
    file = space.get("__file__") or ""
    return not _is_library(space.get("__name__")) and "site-packages" not in file and "dist-packages" not in file


def _space_of(kind: type) -> dict[str, Any]:
    """The globals of the file of a class."""
    return vars(sys.modules[kind.__module__]) if kind.__module__ in sys.modules else {"__name__": "builtins"}


def _slots(kind: type) -> tuple[str, ...]:
    """The attributes of objects of a class that lie in no `__dict__`."""
    bases = (base for base in kind.__mro__ if "__slots__" in vars(base) and not _is_library(base.__module__))
    items = (item for base in bases for item in vars(base).items())
    return tuple(dict.fromkeys(name for name, item in items if isinstance(item, types.MemberDescriptorType)))


def is_user_object(value: Any) -> bool:
    """Whether an object is of a class of the user's, or may hold settings of the user's (`argparse.Namespace`, `UserDict`)."""
    kind = type(value)
    if isinstance(value, (types.ModuleType, type)):
        return False
    if not _is_library(kind.__module__) or isinstance(value, _HOLDERS):
        return True
    top = kind.__module__.partition(".")[0]
    return top in _STANDARD and top not in _MACHINERY and hasattr(value, "__dict__")


def _is_state_of_class(item: Any) -> bool:
    """Whether an attribute of a class is state: something plain, a container, or an object of a class of the user's."""
    if isinstance(item, (*PLAIN, tuple, frozenset, dict, list, set, collections.deque)):
        return True
    return is_user_object(item) and not callable(item) and not hasattr(type(item), "__get__")


def _functions(item: Any) -> Iterator[types.FunctionType]:
    """The functions in an attribute of a class: a method of any kind, or those of a property."""
    inner: tuple[Any, ...] = (item,)
    if isinstance(item, property):
        inner = (item.fget, item.fset)
    elif isinstance(item, (staticmethod, classmethod)):
        inner = (item.__func__,)
    elif isinstance(item, (functools.cached_property, functools.partialmethod)):
        inner = (item.func,)
    return (function for function in inner if isinstance(function, types.FunctionType))
