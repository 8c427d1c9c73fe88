"""Calls of a wrapped module: its arguments, what they are looked up by, and the forward of the bare module."""

from __future__ import annotations

import contextlib
import functools
import inspect
import types
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import numpy as np
import torch
from attrs import define, field
from torch import nn

from remat.exec._module.live import form, tables
from remat.exec._torch.compiled import opaque, running_eagerly
from remat.exec._torch.exchange import EXCHANGE
from remat.exec._torch.wrappers import bits_of
from remat.exec._trace import structure

INSTANCE_FORWARD = "_remat_forward"
"""Attribute that holds a `forward` that was set on a wrapped module."""
ADDED = ("_remat", INSTANCE_FORWARD)
"""Attributes that a wrapped module has besides those of the bare one."""
_bare: ContextVar[bool] = ContextVar("remat_bare", default=False)
"""Set while a wrapped module must behave as the bare one: during capture, in `loss=` functions, where nothing is planned."""
_inside: ContextVar[tuple[int, ...]] = ContextVar("remat_inside", default=())
"""Wrapped modules whose own `forward` (the one that was set on the instance) is running."""


class Wrapped:
    """What every wrapped class has before the module's own class in its order of resolution."""

    def __init_subclass__(cls, **_kwargs: Any) -> None:
        """Keep the hook of the module's class out: a registry of classes already has it, and it may take keywords."""

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "forward":
            set_forward(self, value)
        else:
            super().__setattr__(name, value)

    def __delattr__(self, name: str) -> None:
        if name == "forward":
            for key in (INSTANCE_FORWARD, "forward"):
                self.__dict__.pop(key, None)
        else:
            super().__delattr__(name)

    def __setstate__(self, state: tuple[dict[str, Any], Any]) -> None:
        added, bare = state
        super().__setstate__(bare)  # type: ignore[misc]
        self.__dict__.update(added)
        if INSTANCE_FORWARD in added:
            set_forward(self, added[INSTANCE_FORWARD])

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """That of the module; while another thread captures it, its end is awaited: its tensors are those of the trace."""
        with EXCHANGE.reading:
            return super().state_dict(*args, **kwargs)  # type: ignore[misc]


def set_forward(module: Any, forward: Callable[..., Any]) -> None:
    """Take a `forward` that is set on the instance: it is what is planned, and not called in place of the planned step.

    What is read as `module.forward` afterwards runs the planned step, and, called from within another `forward` that is set
    later, the one that was set before: stacks set them around each other.
    """
    module.__dict__[INSTANCE_FORWARD] = forward
    module.__dict__["forward"] = types.MethodType(entry_of(forward), module)


def entry_of(forward: Callable[..., Any]) -> Callable[..., Any]:
    """What stands in the instance for a `forward` that was set on it."""
    bound = isinstance(forward, types.MethodType)
    function = forward.__func__ if isinstance(forward, types.MethodType) else forward

    def earlier(self: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return function(self, *args, **kwargs) if bound else function(*args, **kwargs)

    def entry(self: nn.Module, /, *args: Any, **kwargs: Any) -> Any:
        return planned_call(self, args, kwargs, earlier)

    functools.update_wrapper(entry, function, assigned=("__name__", "__qualname__", "__doc__"))
    if not bound:  # seen through the method that is read, it takes what `forward` takes
        take_as(entry, function)
    return entry


def take_as(method: Callable[..., Any], function: Callable[..., Any]) -> None:
    """Have a method, seen through an instance, take what a function without an instance takes."""
    with contextlib.suppress(TypeError, ValueError):
        signature = inspect.signature(function)
        owner = inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)
        taken = [p.replace(name="_self") if p.name == "self" else p for p in signature.parameters.values()]
        method.__signature__ = signature.replace(parameters=[owner, *taken])  # type: ignore[attr-defined]


Earlier = Callable[[nn.Module, tuple[Any, ...], dict[str, Any]], Any]


def planned_call(
    module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], earlier: Earlier | None = None
) -> Any:
    """A call of a wrapped module.

    Args:
        module: the wrapped module.
        args: of the call.
        kwargs: of the call.
        earlier: runs the `forward` that was set on the instance before, where it is called from within a later one.
    """
    return _region(module, args, kwargs, earlier)


def _run(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], earlier: Earlier | None) -> Any:
    if earlier is not None and id(module) in _inside.get():
        return earlier(module, args, kwargs)
    return attributes(module)["_remat"].call(module, args, kwargs)


_region = _run
"""What runs a call; `make_opaque` puts the same in its place as the compiler sees it."""

OPAQUE = (
    "a module that remat planned is one opaque region, whose plan runs as it is. Compile it without fullgraph=True, or compile "
    'the bare module with backend="remat" and options={"budget": …}.'
)


def make_opaque() -> None:
    """Have `torch.compile` not look into wrapped modules; this loads the compiler's front, which every capture loads too.

    A call is opaque as a whole, and its `forward` besides: what was compiled before the module was wrapped in place calls the
    `__call__` that it had then.
    """
    global _region
    if "__call__" in Wrapped.__dict__:
        return
    _region = opaque(_run, OPAQUE)

    def __call__(self: Any, *args: Any, **kwargs: Any) -> Any:
        return super(Wrapped, self).__call__(*args, **kwargs)

    type.__setattr__(Wrapped, "__call__", opaque(__call__, OPAQUE))


def attributes(module: nn.Module) -> dict[str, Any]:
    """The attributes of a module, read without being recorded as reads."""
    return object.__getattribute__(module, "__dict__")  # type: ignore[no-any-return]


def bare_forward(module: nn.Module, /, *args: Any, **kwargs: Any) -> Any:
    """The forward of the bare module: the one set on the instance, else that of its class."""
    instance = attributes(module).get(INSTANCE_FORWARD)
    running = _inside.get()
    if instance is None or id(module) in running:
        return super(Wrapped, module).forward(*args, **kwargs)  # type: ignore[misc]
    token = _inside.set((*running, id(module)))
    try:
        return instance(*args, **kwargs)
    finally:
        _inside.reset(token)


@contextmanager
def running_bare() -> Iterator[None]:
    """Inside, wrapped modules behave as the bare ones."""
    token = _bare.set(True)
    try:
        yield
    finally:
        _bare.reset(token)


def is_bare() -> bool:
    """Whether wrapped modules behave as the bare ones now."""
    return _bare.get()


def traced_step(step: Callable[..., Any] | None, module: nn.Module, /, *args: Any, **kwargs: Any) -> Any:
    """`captured_step` where it is traced: what is compiled inside the module runs as it was written."""
    with running_eagerly():
        return captured_step(step, module, *args, **kwargs)


def captured_step(step: Callable[..., Any] | None, module: nn.Module, /, *args: Any, **kwargs: Any) -> Any:
    """What is traced: the bare forward, or the loss function with the module bare inside it."""
    with running_bare():
        return bare_forward(module, *args, **kwargs) if step is None else step(module, *args, **kwargs)


@define(kw_only=True, eq=False)
class Arguments:
    """One call.

    Attributes:
        module: the wrapped module.
        args, kwargs: of the call.
        layout: how its flat leaves become these.
        leaves: tensors and plain values.
        key: what plans are looked up by.
        tensors: "param", "buffer" and "input"; arguments with a gradient that are one tensor, or one of the module's, stand once.
        repeated: places of the leaves that are such tensors.
        extra: inputs besides the arguments, for the plan that fits: lifted tensors, then results of its prologue.
    """

    module: nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    layout: structure.Layout
    leaves: list[Any]
    key: Hashable
    tensors: dict[str, list[torch.Tensor]]
    repeated: tuple[int, ...] = ()
    extra: list[torch.Tensor] = field(factory=list)

    def shapes(self) -> tuple[tuple[str, tuple[int, ...]], ...]:
        """Names and shapes of the tensors among the arguments."""
        named = [(f"argument {at}", value) for at, value in enumerate(self.args)] + list(self.kwargs.items())
        return tuple((name, tuple(value.shape)) for name, value in named if isinstance(value, torch.Tensor))

    def at(self, places: tuple[tuple[str, int], ...], extra: list[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        """The tensors at some places; extra ones count as inputs after the arguments."""
        tensors = {**self.tensors, "input": [*self.tensors["input"], *extra]} if extra else self.tensors
        return tuple(tensors[kind][at] for kind, at in places)

    def renew_buffers(self, places: tuple[int, ...]) -> None:
        """Give buffers new memory with the same values; who has the old ones, or views of them, keeps them as they are."""
        buffers = self.tensors["buffer"]
        renewed = {id(buffers[at]): buffers[at].detach().clone() for at in places}
        for _, table in tables(self.module, "_buffers"):
            table.update({name: renewed[id(tensor)] for name, tensor in table.items() if id(tensor) in renewed})
        self.tensors = {**self.tensors, "buffer": [renewed.get(id(tensor), tensor) for tensor in buffers]}


def chain_tensors(call: Arguments) -> list[torch.Tensor]:
    """Parameters and inputs of a call."""
    return [*call.tensors["param"], *call.tensors["input"]]


@functools.lru_cache(maxsize=64)
def order_of(function: Callable[..., Any]) -> dict[str, int]:
    """Place of each parameter of a function."""
    return {name: at for at, name in enumerate(inspect.signature(function).parameters)}


def leaf_key(leaf: Any) -> Any:
    """What of a leaf of the arguments decides which plan a call runs."""
    if isinstance(leaf, torch.Tensor):
        return *form(leaf), *bits_of(leaf)
    if isinstance(leaf, structure.PLAIN):
        return type(leaf), repr(leaf) if isinstance(leaf, (slice, float, complex, np.generic)) else leaf
    return type(leaf)
