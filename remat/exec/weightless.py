"""Capture without weights: the training step of a model too large for this machine, as a graph to plan on.

The model is built under fake tensors, which have shapes and types but no memory, traced as any other, and costed by a model of a
named device (`devices.py`). Nothing is allocated and nothing runs: what depends on the values of tensors cannot be captured so.
"""

from __future__ import annotations

import os
import traceback
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from attrs import frozen
from torch import nn

from remat.errors import RematError, Uncapturable
from remat.exec._capture.capturing import Captured, capture
from remat.exec._cost.cost import estimate
from remat.exec._cost.devices import Device, device_model
from remat.exec._plan.build import build_graph
from remat.exec._plan.costing import outside_of
from remat.exec._plan.settings import Settings
from remat.exec._torch import torch_private
from remat.exec._torch.places import is_user_file
from remat.exec._trace.tape import Tape
from remat.ir import Graph
from remat.settings import function, takes
from remat.units import Bytes

Factory = Callable[[], tuple[Any, ...]]
"""Makes a module and the arguments of one step: `(module, args)` or `(module, args, kwargs)`; one tensor may stand for `args`."""


@frozen(kw_only=True, eq=False)
class Weightless:
    """A captured step whose tensors have no memory.

    Attributes:
        captured: the trace.
        module: what the factory made, of tensors without memory.
        parameters: bytes of the parameters and buffers the real model would have, each once; they are outside any budget.
    """

    captured: Captured
    module: nn.Module
    parameters: int

    def graph(self, device: str | Device = "v100", *, loss_reserve: Bytes | None = None) -> Graph:
        """The step on a device, to plan on.

        Args:
            device: name or model of a device.
            loss_reserve: bytes that a loss outside the module may hold besides its gradients; None: what `wrap` would take.

        Raises:
            RematError: X-DEVICE-MODEL, for an unknown device.
        """
        return graph_on(self.captured, device, loss_reserve=loss_reserve)


def graph_on(captured: Captured, device: str | Device, *, loss_reserve: Bytes | None = None) -> Graph:
    """The graph of a captured step by the model of a device; arguments as for `Weightless.graph`."""
    model = device_model(device)
    program = model.resized(captured.program)
    loss = outside_of(program, captured, Settings(budget=None, loss_reserve=loss_reserve))
    return build_graph(program, model.costs(program), loss_reserve=loss.reserve, loss_retained=loss.retained)


def graph_estimated(captured: Captured) -> Graph:
    """The graph of a captured step with the sizes of the trace, and times for ranking."""
    program = captured.program
    loss = outside_of(program, captured, Settings(budget=None))
    return build_graph(program, estimate(program), loss_reserve=loss.reserve, loss_retained=loss.retained)


@takes(rule="X-ARG", factory=function("remat.zoo.large.gpt24"))
def capture_without_weights(
    factory: Factory, *, differentiable: str = "auto", fold_sums: str = "settled", as_run: bool = False
) -> Weightless:
    """Build and trace one training step without memory for weights, inputs or activations.

    Args:
        factory: builds the module and its sample arguments, without naming a device. Initial values are lost.
        differentiable: as in `remat.exec.capture.capture`.
        fold_sums: likewise.
        as_run: trace what the kernels of this machine run (each kind of operation runs once, on inputs made for it), in place of
            what an accelerator that is not here would run.

    Raises:
        Uncapturable: the step cannot be one graph.
        RematError: X-FACTORY, when the factory fails under fake tensors, or returns something else.
    """
    with torch_private.ShapesOnly(), _Building(_nothing), warnings.catch_warnings():
        # A deep copy asks a tensor without memory where its memory is, and the tensor warns.
        warnings.filterwarnings("ignore", message="Accessing the data pointer of FakeTensor", category=UserWarning)
        try:
            result = factory()
        except _FAILURES as error:
            first = (str(error).strip().splitlines() or [""])[0]
            what = f"the factory failed under fake tensors with {type(error).__name__}: {first:.300} ({_place(error)})."
            fix = "where it works on real tensors, let it read no values of tensors and name no device."
            raise RematError("X-FACTORY", what, fix=fix) from error
    module, args, kwargs = parts_of(result)
    tensors = _tensors(module, args, kwargs)
    _check_fake(tensors)
    captured = capture(module, args, kwargs, differentiable=differentiable, fold_sums=fold_sums, as_run=as_run)
    parameters = _bytes_once([*module.parameters(), *module.buffers()])
    return Weightless(captured=captured, module=module, parameters=parameters)


@takes(rule="X-ARG", factory=function("remat.zoo.large.gpt24"))
def graph_without_weights(factory: Factory, *, device: str | Device = "v100", differentiable: str = "auto") -> Graph:
    """The graph of one training step of a model that is never built: `capture_without_weights`, then the device's costs."""
    model = device_model(device)  # an unknown name should not cost a trace
    return capture_without_weights(factory, differentiable=differentiable).graph(model)


class _Building(Tape):
    """While a module is built. Its initial values are lost: any random numbers tell how often a draw has to be repeated."""

    any_numbers = True


def _nothing(origin: object) -> torch.Tensor:
    """While a module is built there are no tensors from outside: values that Python asks for follow from constants."""
    raise RematError("X-FACTORY", f"{origin} has no memory.", fix=_FIX)


_FAILURES = (
    RuntimeError, TypeError, ValueError, AttributeError, LookupError, ArithmeticError, AssertionError, ImportError, Uncapturable,
)  # fmt: skip
"""What a factory may raise that is told as its failure; errors of this library that say more pass."""


def _place(error: BaseException) -> str:
    """The last line of the user's that an error passed through, or of this library where the factory is one of its own."""
    library = os.path.dirname(torch.__file__)
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith(library)]
    frames = [frame for frame in frames if is_user_file(frame.filename)] or frames
    return f"{os.path.basename(frames[-1].filename)}, line {frames[-1].lineno}"


_FIX = "return (module, args) or (module, args, kwargs)."


def _form(result: object) -> str:
    """What a factory returned, in words."""
    if isinstance(result, tuple):
        return f"a tuple of {len(result)}"
    return (
        f"{type(result).__name__} alone"
        if isinstance(result, nn.Module)
        else f"an object of type {type(result).__name__}"
    )


def parts_of(result: object) -> tuple[nn.Module, tuple[Any, ...], dict[str, Any]]:
    """Module, arguments and keyword arguments, from what a factory returned.

    Raises:
        RematError: X-FACTORY, when it is something else.
    """
    if not isinstance(result, tuple) or len(result) not in (2, 3) or not isinstance(result[0], nn.Module):
        raise RematError(
            "X-FACTORY", f"the factory returned {_form(result)}, not a module with its arguments.", fix=_FIX
        )
    module, args = result[:2]
    kwargs = result[2] if len(result) == 3 else {}
    args = (args,) if isinstance(args, torch.Tensor) else args
    if not isinstance(args, (tuple, list)) or not isinstance(kwargs, dict):
        raise RematError("X-FACTORY", "the factory's arguments are no tuple, or its keywords no dict.", fix=_FIX)
    return module, tuple(args), kwargs


def _tensors(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[tuple[str, torch.Tensor]]:
    yield from module.named_parameters()
    yield from module.named_buffers()
    leaves, _ = torch_private.flatten((args, kwargs))
    for at, leaf in enumerate(leaves):
        if isinstance(leaf, torch.Tensor):
            yield f"argument {at}", leaf


def _check_fake(tensors: Iterator[tuple[str, torch.Tensor]]) -> None:
    for name, tensor in tensors:
        if not isinstance(tensor, torch_private.FakeTensor):
            fix = "build the module and its arguments inside the factory."
            raise RematError("X-FACTORY", f"{name} is a real tensor: it was made outside the factory.", fix=fix)


def _bytes_once(tensors: list[torch.Tensor]) -> int:
    sizes = {torch_private.storage_key(tensor): tensor.untyped_storage().nbytes() for tensor in tensors}
    return sum(sizes.values())


__all__ = [
    "Factory",
    "Weightless",
    "capture_without_weights",
    "graph_estimated",
    "graph_on",
    "graph_without_weights",
    "parts_of",
]
