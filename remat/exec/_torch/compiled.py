"""What `torch.compile` made, without loading the compiler where nobody has asked for it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from torch import nn

F = TypeVar("F", bound=Callable[..., Any])


def inside_compiled(module: nn.Module) -> nn.Module | None:
    """The module that `torch.compile(module)` stands around; None: it is not compiled."""
    dynamo = sys.modules.get("torch._dynamo")
    if dynamo is None or not isinstance(module, dynamo.OptimizedModule):
        return None
    inner: nn.Module = module._orig_mod
    return inner


def write_code(graph: Callable[..., Any]) -> None:
    """Have a graph of dynamo write its Python code now: else it does so in its first call, as a change of its attributes."""
    from torch.fx._lazy_graph_module import _LazyGraphModule

    if isinstance(graph, torch.fx.GraphModule):
        _LazyGraphModule.force_recompile(graph)


def opaque(function: F, reason: str) -> F:
    """A function that the compiler calls and does not look into; `reason` is what it says where it may not."""
    return torch.compiler.disable(function, reason=reason)  # type: ignore[no-any-return]


@contextmanager
def running_eagerly() -> Iterator[None]:
    """Inside, what was compiled runs as if it had not been: a trace wants its operations."""
    dynamo = sys.modules.get("torch._dynamo")
    if dynamo is None:
        yield
        return
    with torch.compiler.set_stance("force_eager"), dynamo.config.patch(error_on_nested_fx_trace=False):
        yield


def current_frame() -> int | None:
    """A number of the frame that is being compiled: the same when it is compiled again; None: none is."""
    context = torch._guards.CompileContext.try_get()
    return None if context is None or context.compile_id is None else context.compile_id.frame_id


__all__ = ["current_frame", "inside_compiled", "opaque", "running_eagerly", "write_code"]
