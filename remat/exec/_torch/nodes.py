"""What stands on the nodes of a joint graph: what the tracer writes there, and the paths and autocast regions that we add."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from typing import Any

import torch
import torch.fx.traceback as fx_traceback
from torch import nn
from torch._ops import OpOverload
from torch._subclasses.functional_tensor import FunctionalTensor
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

from remat.exec._torch.places import Running, described

_SCOPE = "remat_scope"
_REGION = "remat_region"


@contextmanager
def scopes(paths: dict[nn.Module, str], running: Running) -> Iterator[None]:
    """Write the path of the running module on every node traced inside; modules without a path keep the enclosing one.

    The hooks are those of the whole process: what other threads call meanwhile is no part of the trace.
    """
    notes: list[Any] = []
    tracing = threading.get_ident()

    def enter(module: nn.Module, _args: Any) -> None:
        if module in paths and threading.get_ident() == tracing:
            note = fx_traceback.annotate({_SCOPE: paths[module]})
            note.__enter__()
            notes.append(note)
            running.names.append(described(paths[module], module))

    def leave(module: nn.Module, _args: Any, _out: Any) -> None:
        if module in paths and notes and threading.get_ident() == tracing:
            notes.pop().__exit__(None, None, None)
            running.names.pop()

    first = register_module_forward_pre_hook(enter)
    last = register_module_forward_hook(leave, always_call=True)
    try:
        yield
    finally:
        first.remove()
        last.remove()
        while notes:  # of modules that an interruption left, which calls no hooks
            with suppress(KeyError):  # the tracer has taken off what stood there
                notes.pop().__exit__(None, None, None)
            running.names.pop()


def scope_of(node: torch.fx.Node) -> str:
    """The module path written on a node, or an empty text."""
    scope: str = (node.meta.get("custom") or {}).get(_SCOPE, "")
    return scope


class Regions:
    """Tells the casts of weights that autocast keeps, and until when, while a forward is traced.

    Eager keeps a cast of a leaf from float32 to autocast's lower precision (`cached_cast` in torch's autocast_mode.cpp) until the
    outermost autocast region ends. The tracer keeps none; here their nodes get the number of the region that eager would keep
    them in.

    Args:
        keeps: whether the forward begins with such casts being kept.
    """

    def __init__(self, keeps: bool) -> None:
        self.keeps = keeps
        self.number = 0
        self.by_user = 0

    def note(self, overload: OpOverload, args: Any, kwargs: Any) -> AbstractContextManager[Any]:
        """What a call below autograd is made in."""
        if overload is not torch.ops.aten._to_copy.default or self.by_user or args[0].dtype is not torch.float32:
            return nullcontext()
        kind = args[0].device.type
        if kwargs.get("dtype") != torch.get_autocast_dtype(kind) or not torch.is_autocast_cache_enabled():
            return nullcontext()
        with torch._C._RestorePythonTLSSnapshot():  # type: ignore[attr-defined]  # here autocast is off; as it was where Python called
            enabled = torch.is_autocast_enabled(kind)
        return fx_traceback.annotate({_REGION: self.number}) if enabled else nullcontext()


@contextmanager
def autocast_regions(regions: Regions) -> Iterator[None]:
    """Count regions and tell the user's own casts while a forward runs; torch has no place to ask for either."""
    keeps, clear = torch.is_autocast_cache_enabled(), torch.clear_autocast_cache
    casts = {name: getattr(FunctionalTensor, name) for name in ("to", "type", "type_as")}
    had = {name for name in casts if name in FunctionalTensor.__dict__}

    def cleared() -> None:
        regions.number += 1
        clear()

    def by_user(cast: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*args: Any, **kwargs: Any) -> Any:
            regions.by_user += 1
            try:
                return cast(*args, **kwargs)
            finally:
                regions.by_user -= 1

        return counted

    torch.clear_autocast_cache = cleared
    torch.set_autocast_cache_enabled(regions.keeps)  # the tracer turns it off; what the forward sets within shows
    for name, cast in casts.items():
        setattr(FunctionalTensor, name, by_user(cast))
    try:
        yield
    finally:
        torch.clear_autocast_cache = clear
        torch.set_autocast_cache_enabled(keeps)
        for name, cast in casts.items():
            if name in had:
                setattr(FunctionalTensor, name, cast)
            else:
                delattr(FunctionalTensor, name)


def region_of(node: torch.fx.Node) -> int | None:
    """The number of the autocast region in which eager would keep the cast that a node is; None: it is no such cast."""
    return (node.meta.get("custom") or {}).get(_REGION)


def sequence_of(node: torch.fx.Node) -> int | None:
    """The number that autograd gave a forward operation and the backward operations it leads to, or None."""
    return node.meta.get("seq_nr")


def is_backward(node: torch.fx.Node) -> bool:
    """Whether the tracer made this node while running the backward."""
    return node.meta.get("partitioner_tag") == "is_backward"


def mark_backward(node: torch.fx.Node) -> None:
    """Say of a node what the tracer says of those that it makes while running the backward."""
    node.meta["partitioner_tag"] = "is_backward"
