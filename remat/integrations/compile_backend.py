"""`torch.compile(model, backend="remat", options={"budget": "6GiB"})`: dynamo's graphs, planned and run within a budget.

Dynamo takes Python away and gives a graph of operations; the plan is made for it as for a module, at its first call, and runs
operation by operation as eager mode does, or as Inductor's code. Parameters are inputs of the graph, and their gradients come
back through it.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from remat._warn import warn
from remat.errors import BadArgument
from remat.exec import RematWarning, wrap
from remat.exec._module.compiling import compile_plans
from remat.exec._torch.compiled import current_frame, write_code
from remat.exec._torch.devices import one_device
from remat.exec._torch.inductor import check_compiler
from remat.settings import one_of

INNER = ("aot_eager", "inductor")
"""What runs a plan: eager's kernels in its order, or the code that Inductor makes of its forward and its backward."""

_OF_WRAP = (
    "seconds", "loss_reserve", "on_infeasible", "on_uncapturable", "differentiable", "cost", "rehearse", "plan", "on_stale",
    "solver", "progress", "seed", "most_plans", "offload", "host_budget", "family", "tracer", "group",
)  # fmt: skip


class Region(nn.Module):
    """A graph of dynamo's as a module without parameters of its own."""

    def __init__(self, graph: Callable[..., Any]) -> None:
        super().__init__()
        write_code(graph)
        self.graph = graph

    def forward(self, *inputs: Any) -> Any:
        """Run the graph."""
        return self.graph(*inputs)


_compiled: list[tuple[Any, set[int]]] = []
"""Options of each call of `torch.compile`, the object itself, and the frames that were compiled for it."""

_regions: list[weakref.ref[nn.Module]] = []


def regions() -> tuple[nn.Module, ...]:
    """What was compiled in this process and lives, in order: `remat.exec.report` of each says what its plan promises."""
    return tuple(region for region in (reference() for reference in _regions) if region is not None)


def backend(
    graph: Callable[..., Any],
    example_inputs: list[Any],
    *,
    options: Mapping[str, Any] | None = None,
    mode: str | None = None,
) -> Callable[..., Any]:
    """What `torch.compile` calls with each graph.

    Args:
        graph: what dynamo found.
        example_inputs: its inputs, for shapes; the plan is made at the first call.
        options: `budget`, and any other argument of `remat.exec.wrap` but `sample`, `shapes`, `optimizer` and `loss`; `inner`:
            "aot_eager", the default: eager's kernels, exact; or "inductor": Inductor compiles the forward and the backward of
            the plan, and its peak is measured and kept within the budget.
        mode: must be None: modes are Inductor's.

    Returns:
        What runs the graph within the budget.

    Raises:
        BadArgument: X-ARG, for an option that there is not, or without a budget.
        BackendMissing: X-INNER, where Inductor has no compiler.
        Uncapturable: X-DEVICE, with Inductor, where inputs lie on several devices.
    """
    settings = dict(options or {})
    inner = settings.pop("inner", "aot_eager")
    one_of(*INNER).check(inner, 'backend="remat": inner', rule="X-ARG")
    if mode is not None:
        raise BadArgument(
            "X-ARG", f'backend="remat": mode is {mode!r}, which is one of Inductor\'s.', fix="leave it out."
        )
    unknown = sorted(set(settings) - {"budget", *_OF_WRAP})
    if unknown or settings.get("budget") is None:
        what = f"there is no option {unknown[0]!r}" if unknown else "there is no budget"
        fix = 'give options={"budget": "6GiB"}, and any argument of `remat.exec.wrap` besides.'
        raise BadArgument("X-ARG", f'backend="remat": {what}.', fix=fix)
    if inner == "inductor":
        check_compiler(one_device(x for x in example_inputs if isinstance(x, torch.Tensor)))
        settings.setdefault("on_uncapturable", "raise")
    _warn_of_breaks(options)
    region = wrap(Region(graph), None, settings.pop("budget"), **settings)
    if inner == "inductor":
        compile_plans(region)
    _regions.append(weakref.ref(region))
    return region


def _warn_of_breaks(options: Any) -> None:
    """Say that a model is in several graphs: each has the budget for itself, and what they keep adds up."""
    frame = current_frame()
    if frame is None:
        return
    frames = next((frames for compiled, frames in _compiled if compiled is options), None)
    if frames is None:
        frames = set()
        _compiled.append((options, frames))
    frames.add(frame)
    if len(frames) > 1:
        what = (
            f'backend="remat": the model is in {len(frames)} graphs by now, each planned within the budget alone: together '
            "they may hold more. Give fullgraph=True to see where it breaks, or use remat.exec.wrap, which plans it as a whole."
        )
        warn(what, RematWarning)


__all__ = ["Region", "backend", "regions"]
