"""Python state compared deeply: everything reachable from a module, a call or an output, as a flat table of path and leaf.

Tensors are compared to the last bit with type, strides, `requires_grad` and gradient. Containers, helper objects, closures, class
attributes, the globals that a function names, hook tables and generators are walked. What `wrap` keeps for itself (`_remat…`) is
left out.
"""

import collections
import functools
import itertools
import random
import sys
import threading
import types
import weakref

import numpy as np
import torch
from attrs import frozen
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor
from torch._subclasses.functional_tensor import FunctionalTensor
from torch.utils.hooks import RemovableHandle

PLAIN = (
    type(None),
    bool,
    int,
    float,
    complex,
    str,
    bytes,
    torch.dtype,
    torch.device,
    torch.Size,
    range,
    slice,
    type(...),
)
OPAQUE = (
    types.ModuleType, types.BuiltinFunctionType, RemovableHandle, weakref.ref, torch.jit.ScriptModule, torch.jit.ScriptFunction,
    type(threading.Lock()),
)  # fmt: skip
"""Told apart by type alone."""
OURS = "tests."
"""Where classes and functions are walked for attributes, closures and globals."""
ITERATORS = (itertools.count, itertools.cycle, type(iter([])), type(iter(range(0))), type(iter(())))


@frozen(eq=False)
class Bits:
    """A tensor's value to the last bit, and what else a user can tell apart.

    Strides count where both tensors fill their memory: a view with holes may come back without them.
    """

    kind: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    requires_grad: bool
    data: bytes

    def __eq__(self, other):
        if not isinstance(other, Bits):
            return False
        strides = not (self.stride and other.stride) or self.stride == other.stride
        return strides and all(getattr(self, name) == getattr(other, name) for name in _COUNTED)

    def __hash__(self):
        return hash(self.data)

    def __repr__(self):
        values = np.frombuffer(self.data, np.uint8)
        return (
            f"{self.kind}({self.dtype}, {self.shape}, {self.stride}, {self.requires_grad}, sum of bytes {values.sum()})"
        )


_COUNTED = ("kind", "dtype", "shape", "requires_grad", "data")


@frozen
class Fake:
    """A tensor without values, left behind by a trace."""

    kind: str


def snapshot(**roots):
    """A table of what is reachable: path -> leaf, comparable by `==`."""
    walker = _Walker()
    for name, root in roots.items():
        walker.visit(name, root)
    return walker.table


def changes(before, after, limit=8):
    """What differs between two tables, in words, one line each."""
    lines = [f"{path} is gone" for path in before if path not in after]
    lines += [f"{path} is new: {after[path]!r}" for path in after if path not in before]
    lines += [
        f"{path}: {before[path]!r} became {after[path]!r}"
        for path in before
        if path in after and before[path] != after[path]
    ]
    return lines[:limit]


def fakes(table):
    """Paths of tensors that a trace left behind."""
    return [f"{path}: {leaf.kind}" for path, leaf in table.items() if isinstance(leaf, Fake)]


def generators():
    """The states of the three generators that a program has."""
    return {"torch": torch.get_rng_state(), "python": repr(random.getstate()), "numpy": np.random.get_state()}


def seed_all(seed):
    """Seed the three generators."""
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed)


class _Walker:
    """Fills the table; every object once, later places refer to the first."""

    def __init__(self):
        self.table = {}
        self.seen = {}
        self.alive = []

    def visit(self, path, value):
        if isinstance(value, torch.Tensor) and not isinstance(value, nn.Parameter):
            self.tensor(path, value)  # by value: that two places hold the same tensor object is not promised
            return
        if type(value) in PLAIN:
            self.table[path] = (type(value).__name__, repr(value))
            return
        if id(value) in self.seen:
            self.table[path] = ("as", self.seen[id(value)])
            return
        self.seen[id(value)] = path
        self.alive.append(value)
        if isinstance(value, torch.Tensor):
            self.tensor(path, value)
        else:
            self.table[path] = ("a", _class_name(value))
            self.inside(path, value)

    def inside(self, path, value):
        for kinds, visit in _VISITS:
            if isinstance(value, kinds):
                visit(self, path, value)
                return
        self.instance(path, value)

    # -- tensors and generators

    def tensor(self, path, value):
        if _is_fake(value):
            self.table[path] = Fake(type(value).__name__)
            return
        if isinstance(value, nn.parameter.UninitializedTensorMixin):
            self.table[path] = ("uninitialized", type(value).__name__)
            return
        self.table[path] = bits(value)
        grad = value.grad if value.is_leaf else None
        if grad is not None:
            self.tensor(f"{path}.grad", grad)

    def generator(self, path, value):
        self.tensor(f"{path}.state", value.get_state())

    def random(self, path, value):
        self.table[f"{path}.state"] = hash(value.getstate())

    def numpy_generator(self, path, value):
        self.table[f"{path}.state"] = repr(value.bit_generator.state)

    def numpy_state(self, path, value):
        self.table[f"{path}.state"] = repr(value.get_state())

    def array(self, path, value):
        self.table[path] = (value.dtype.str, value.shape, value.tobytes())

    # -- containers

    def mapping(self, path, value):
        self.table[f"{path}.keys"] = tuple(_key(key) for key in value)
        for key, inner in value.items():
            self.visit(f"{path}[{_key(key)}]", inner)
        if hasattr(value, "__dict__"):
            self.instance(path, value)

    def hooks(self, path, value):
        # Keys count the hooks of a whole process, so that twins differ in them.
        self.sequence(path, list(value.values()))

    def sequence(self, path, value):
        self.table[f"{path}.length"] = len(value)
        for i, inner in enumerate(value):
            self.visit(f"{path}[{i}]", inner)

    def set(self, path, value):
        self.sequence(path, sorted(value, key=repr))

    def iterator(self, path, value):
        self.table[f"{path}.at"] = repr(value) if isinstance(value, itertools.count) else repr(value.__reduce__())

    # -- objects, functions, classes

    def module(self, path, value):
        for name, inner in vars(value).items():
            if name.startswith("_remat"):
                continue
            if name.endswith("hooks") and isinstance(inner, dict):
                self.hooks(f"{path}.{name}", inner)
            elif name in ("_parameters", "_buffers", "_modules"):
                self.table[f"{path}.{name}"] = tuple(inner)
                for key, part in inner.items():
                    self.visit(f"{path}.{key}", part)
            else:
                self.visit(f"{path}.{name}", inner)
        self.classes(value)

    def instance(self, path, value):
        for name in _slots(type(value)):
            if hasattr(value, name):
                self.visit(f"{path}.{name}", getattr(value, name))
        for name, inner in vars(value).items() if hasattr(value, "__dict__") else ():
            self.visit(f"{path}.{name}", inner)
        self.classes(value)

    def classes(self, value):
        order = type(value).__mro__
        for at, kind in enumerate(order):
            wrapped = any(kind.__qualname__ == later.__qualname__ for later in order[at + 1 :])
            if kind.__module__.startswith(OURS) and not wrapped:
                self.visit(f"class {kind.__qualname__}", kind)

    def type(self, path, value):
        if value.__module__.startswith(OURS):
            for name, inner in vars(value).items():
                if not name.startswith("__") or name in ("__call__", "__init__"):
                    self.visit(f"{path}.{name}", inner)

    def function(self, path, value):
        self.table[path] = ("function", value.__module__, value.__qualname__)
        if not (value.__module__ or "").startswith(OURS):
            return
        for name, cell in zip(value.__code__.co_freevars, value.__closure__ or (), strict=True):
            if name != "__class__" and cell != types.CellType():
                self.visit(f"{path}.<{name}>", cell.cell_contents)
        for name in _names(value.__code__):
            if name in value.__globals__:
                self.visit(f"global {value.__module__}.{name}", value.__globals__[name])
        self.visit(f"{path}.defaults", (value.__defaults__, value.__kwdefaults__))

    def method(self, path, value):
        self.visit(f"{path}.__self__", value.__self__)
        self.visit(f"{path}.__func__", value.__func__)

    def partial(self, path, value):
        self.visit(f"{path}.func", value.func)
        self.visit(f"{path}.args", value.args)
        self.visit(f"{path}.keywords", value.keywords)

    def cached(self, path, value):
        self.visit(f"{path}.wrapped", value.__wrapped__)

    def descriptor(self, path, value):
        self.visit(f"{path}.get", getattr(value, "fget", None) or getattr(value, "func", None) or value.__func__)

    def opaque(self, path, value):
        pass


_VISITS = (
    (OPAQUE, _Walker.opaque),
    (nn.Module, _Walker.module),
    (type, _Walker.type),
    (torch.Generator, _Walker.generator),
    (random.Random, _Walker.random),
    (np.random.Generator, _Walker.numpy_generator),
    (np.random.RandomState, _Walker.numpy_state),
    (np.ndarray, _Walker.array),
    ((dict, types.MappingProxyType), _Walker.mapping),
    ((list, tuple, collections.deque), _Walker.sequence),
    ((set, frozenset), _Walker.set),
    (ITERATORS, _Walker.iterator),
    (types.FunctionType, _Walker.function),
    (types.MethodType, _Walker.method),
    (functools.partial, _Walker.partial),
    (functools._lru_cache_wrapper, _Walker.cached),
    ((property, staticmethod, classmethod, functools.cached_property), _Walker.descriptor),
)


def bits(tensor):
    """A tensor to the last bit."""
    dense = tensor.detach()
    if tensor.layout is torch.sparse_coo:
        parts = (dense._indices(), dense._values())
        strides = ()
    else:
        parts = (dense,)
        filled = torch.ops.aten.is_non_overlapping_and_dense(dense.as_subclass(torch.Tensor))
        strides = tuple(s if n > 1 else 1 for n, s in zip(tensor.shape, tensor.stride(), strict=True)) if filled else ()
    data = b"".join(bytes(_raw(part)) for part in parts)
    return Bits(_class_name(tensor), tensor.dtype, tuple(tensor.shape), strides, tensor.requires_grad, data)


def _raw(tensor):
    if type(tensor) is not torch.Tensor:
        tensor = tensor.as_subclass(torch.Tensor)
    return tensor.resolve_conj().resolve_neg().contiguous().reshape(-1).view(torch.uint8).cpu().numpy().tobytes()


def _is_fake(tensor):
    return (
        isinstance(tensor, (FakeTensor, FunctionalTensor))
        or torch._is_functional_tensor(tensor)
        or torch._C._functorch.is_functorch_wrapped_tensor(tensor)
    )


def _class_name(value):
    return f"{type(value).__module__}.{type(value).__qualname__}"


def _key(key):
    if type(key) in PLAIN or (isinstance(key, tuple) and all(type(part) in PLAIN for part in key)):
        return repr(key)
    return _class_name(key)


def _slots(kind):
    for base in kind.__mro__:
        slots = base.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if name not in ("__dict__", "__weakref__") and base.__module__ not in sys.builtin_module_names:
                yield name


def _names(code):
    yield from code.co_names
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            yield from _names(inner)
