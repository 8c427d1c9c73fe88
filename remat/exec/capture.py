"""Capture: one training step of a module, traced under fake tensors into a `Program`.

The trace is one joint graph of forward and backward (see `torch_private.export_joint`). `read_joint` (in `reader.py`) makes
operations over storages of its nodes; `finish` (in `complete.py`) writes out what the trace leaves implicit: writes of buffers,
generator states, copies of gradients, the loss; `accumulate` folds sums into the operations that make what is summed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import Any

import torch
from attrs import field, frozen
from torch import nn

from remat.errors import Uncapturable
from remat.exec import torch_private
from remat.exec.accumulate import accumulate
from remat.exec.agree import Kernels, traced_as_run
from remat.exec.casts import share_casts
from remat.exec.complete import finish
from remat.exec.noise import keep_masks
from remat.exec.program import Program
from remat.exec.reader import read_joint
from remat.exec.refusals import refusing
from remat.exec.shadow import Shadows
from remat.exec.torch_private import Correction, FakeTensor, Joint, TreeSpec

PLAIN = (type(None), bool, int, float, complex, str, torch.dtype, torch.device, torch.Size, slice, type(...))
"""Types of inputs and outputs that may stand beside tensors: their value is part of what was captured."""


@frozen(kw_only=True, eq=False)
class Captured:
    """A captured step and how to call it.

    Attributes:
        program: the operations.
        out_spec, out_leaves: how the flat outputs become what the module returns; tensors stand as None in `out_leaves`.
        places: which of `out_leaves` are tensors.
        requires_grad: for each tensor output, whether the bare module's output requires a gradient.
        differentiable: positions (among the tensor outputs) through which gradients may come back.
        widened: why outputs were cloned: positions of outputs that alias an input or another output.
    """

    program: Program
    out_spec: TreeSpec
    out_leaves: tuple[Any, ...]
    places: tuple[int, ...]
    requires_grad: tuple[bool, ...]
    differentiable: tuple[int, ...]
    widened: frozenset[int] = frozenset()

    @cached_property
    def tensor_leaves(self) -> frozenset[int]:
        """Places of the tensors among the flat outputs."""
        return frozenset(self.places)


class _Step(nn.Module):
    """What is traced: the step as a function of flat tensors, with the module inside so that its parameters are lifted."""

    def __init__(self, call: _Call, cloned: frozenset[int]) -> None:
        super().__init__()
        self.inner = call.module
        self.__dict__["call"] = call
        self.__dict__["cloned"] = cloned
        self.__dict__["seen"] = None

    def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        call: _Call = self.__dict__["call"]
        held = _buffers(self.inner)
        before = {inner: dict(inner.__dict__) for inner in self.inner.modules()}
        with Shadows():
            out = call.run(tensors)
        _check_attributes(before)
        _keep_buffers(held)
        leaves, spec = torch_private.flatten(out)
        for leaf in leaves:
            if not isinstance(leaf, (torch.Tensor, *PLAIN)):
                raise Uncapturable("X-OUTPUT", f"the module returns a {type(leaf).__name__}.", fix=_FIX)
        found = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        wanted = tuple(t.requires_grad for t in found)
        through = call.through(found)
        if self.__dict__["seen"] is None:
            plain = tuple(None if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves)
            places = tuple(i for i, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor))
            self.__dict__["seen"] = (spec, plain, places, wanted, through)
        cloned = self.__dict__["cloned"]
        found = [t if i in through else t.detach() for i, t in enumerate(found)]
        return tuple(t.clone() if i in cloned else t for i, t in enumerate(found))


_FIX = "return tensors and plain values, or leave this module bare."


@frozen(kw_only=True, eq=False)
class _Call:
    """One call of a module: flat tensors in, whatever it returns out.

    Attributes:
        module: the module whose parameters and buffers are lifted.
        step: what is called, with the module first.
        leaves, spec: the arguments, flat; tensors stand as None.
        differentiable: "auto", "loss" or "all" (see `capture`).
    """

    module: nn.Module
    step: Callable[..., Any]
    leaves: tuple[Any, ...]
    spec: TreeSpec
    differentiable: str = field(default="auto")

    def run(self, tensors: tuple[torch.Tensor, ...]) -> Any:
        """Call the step."""
        rest = iter(tensors)
        leaves = [next(rest) if leaf is None else leaf.value for leaf in self.leaves]
        args, kwargs = torch_private.unflatten(leaves, self.spec)
        return self.step(self.module, *args, **kwargs)

    def through(self, outputs: list[torch.Tensor]) -> tuple[int, ...]:
        """Positions of the outputs that gradients may come back through."""
        able = tuple(i for i, t in enumerate(outputs) if t.requires_grad)
        scalars = tuple(i for i in able if outputs[i].dim() == 0)
        if self.differentiable == "all" or (self.differentiable == "auto" and len(scalars) != 1):
            return able
        if len(scalars) != 1:
            what = f"the module returns {len(scalars)} scalars that require a gradient, so which one is the loss is not clear."
            raise Uncapturable("X-LOSS", what, fix='give differentiable="all", or return one loss.')
        return scalars


@frozen
class Plain:
    """A plain value among flat inputs (tensors stand as None there)."""

    value: Any


def capture(
    module: nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any] | None = None,
    *,
    step: Callable[..., Any] | None = None,
    differentiable: str = "auto",
    fold_sums: str = "settled",
) -> Captured:
    """Trace one training step of `module` on arguments like these; nothing of the module or the arguments changes.

    Args:
        module: the module; its parameters and buffers are read for shapes, never for values.
        args: positional arguments of a call, with tensors of the shapes, types and devices to plan for.
        kwargs: keyword arguments of that call.
        step: what is called, as `step(module, *args, **kwargs)`; by default the module's forward.
        differentiable: "loss": gradients come back through the one 0-dim output alone; "all": through every output;
            "auto": through the loss if there is exactly one 0-dim output that requires a gradient, else through all.
        fold_sums: which sums of gradients become part of the operations that make what they add: "settled", "all" or "none"
            (see `remat.exec.accumulate`).

    Raises:
        Uncapturable: the step cannot be one graph; the message names the operation or the reason.
    """
    leaves, spec = torch_private.flatten((args, kwargs or {}))
    tensors = tuple(leaf for leaf in leaves if isinstance(leaf, torch.Tensor))
    for leaf in leaves:
        if not isinstance(leaf, (torch.Tensor, *PLAIN)):
            fix = "pass tensors and plain values, or leave this module bare."
            raise Uncapturable("X-INPUT", f"an input is a {type(leaf).__name__}.", fix=fix)
    flat = tuple(None if isinstance(leaf, torch.Tensor) else Plain(leaf) for leaf in leaves)
    call = _Call(
        module=module, step=step or type(module).forward, leaves=flat, spec=spec, differentiable=differentiable
    )
    _check_plain(module, tensors)
    captured: list[Captured] = []

    def trace(kernels: Kernels | None) -> Program:
        captured[:] = [_captured(call, tensors, None if kernels is None else kernels.returned, fold_sums)]
        return captured[0].program

    if any(isinstance(tensor, FakeTensor) for tensor in (*module.parameters(), *module.buffers(), *tensors)):
        trace(None)
    else:
        traced_as_run(trace)
    return captured[0]


def _captured(
    call: _Call, tensors: tuple[torch.Tensor, ...], correction: Correction | None, fold_sums: str
) -> Captured:
    joint, seen = _trace(call, tensors, frozenset(), correction)
    aliased = joint.aliased
    if aliased:
        # An output that looks at an input or at another output gets no tangent of its own: give it its own storage.
        joint, seen = _trace(call, tensors, aliased, correction)
    out_spec, plain, places, wanted, through = seen
    with refusing("reading the trace"):
        draft = read_joint(joint, call.module)
        if torch.is_autocast_enabled(draft.device.type) and torch.is_autocast_cache_enabled():
            share_casts(draft)
        keep_masks(draft)
        program = accumulate(finish(draft, name=type(call.module).__name__), fold_sums)
    return Captured(
        program=program,
        out_spec=out_spec,
        out_leaves=plain,
        places=places,
        requires_grad=wanted,
        differentiable=through,
        widened=aliased,
    )


def _check_plain(module: nn.Module, tensors: tuple[torch.Tensor, ...]) -> None:
    plain = (torch.Tensor, nn.Parameter, nn.Buffer, FakeTensor)
    state = [*module.parameters(), *module.buffers()]
    for tensor in (*state, *tensors):
        if type(tensor) not in plain or tensor.layout is not torch.strided:
            fix = "leave this module bare."
            raise Uncapturable("X-TENSOR", f"a tensor is a {type(tensor).__name__}, {tensor.layout}.", fix=fix)
    devices = {tensor.device for tensor in state if tensor.numel()}
    if len(devices) > 1:
        names = ", ".join(sorted(map(str, devices)))
        raise Uncapturable("X-DEVICE", f"parameters lie on {names}.", fix="put the module on one device.")


def _trace(
    call: _Call, tensors: tuple[torch.Tensor, ...], cloned: frozenset[int], correction: Correction | None
) -> tuple[Joint, Any]:
    """Trace once; the module's attributes and the generators are as before when this returns."""
    step = _Step(call, cloned)
    paths = {module: name for name, module in call.module.named_modules()}
    with _untouched(call.module), torch.enable_grad():
        try:
            with torch_private.scopes(paths):
                joint = torch_private.export_joint(step, tensors, correction)
        except Uncapturable:
            raise
        except Exception as error:
            raise _stopped(error, call.module) from error
    return joint, step.__dict__["seen"]


def _stopped(error: Exception, module: nn.Module) -> Uncapturable:
    """What to say of a trace that stopped."""
    operation = getattr(error, "func", None)
    first = (str(error).strip().splitlines() or [""])[0]
    fix = "keep values of tensors out of Python (`.item()`, `if tensor:`), or leave this module bare."
    if operation is not None:
        what = f"{operation} depends on the values of tensors ({type(error).__name__})."
    elif (reader := torch_private.reader_of_real(error)) is not None:
        what = f"{reader} reads a tensor that is no parameter, buffer or argument{_such_as(module)}."
        fix = "register it (`self.register_buffer(name, tensor, persistent=False)`), or pass it as an argument."
    else:
        what = f"the trace stopped with {type(error).__name__}: {first:.300}"
    return Uncapturable("X-TRACE", what, fix=fix)


def _such_as(module: nn.Module) -> str:
    """Where the modules hold tensors that are neither parameters nor buffers."""
    found = [
        f"{path + '.' if path else ''}{name}"
        for path, inner in module.named_modules()
        for name, held in vars(inner).items()
        if name not in _TABLES and any(isinstance(one, torch.Tensor) for one in torch_private.flatten(held)[0])
    ]
    named = ", ".join(found[:3]) + (", …" if len(found) > 3 else "")
    return f"; plain attributes that hold tensors: {named}" if found else ""


_TABLES = ("_parameters", "_buffers", "_modules", "_flat_weights")


@contextmanager
def _untouched(module: nn.Module) -> Iterator[None]:
    """Put everything back that the trace has changed.

    Parameters are put back too: the tracer does not restore those of a module that is registered in two places.
    """
    before = {inner: dict(inner.__dict__) for inner in module.modules()}
    tables = [(table, dict(table)) for inner in before for table in (inner._parameters, inner._buffers, inner._modules)]
    generators = torch.get_rng_state()
    try:
        yield
    finally:
        torch.set_rng_state(generators)
        for inner, held in before.items():
            inner.__dict__.clear()
            inner.__dict__.update(held)
        for table, entries in tables:
            table.clear()
            table.update(entries)


def _check_attributes(before: dict[nn.Module, dict[str, Any]]) -> None:
    """Refuse a forward that sets plain attributes: a captured step would not set them again."""
    for inner, held in before.items():
        names = [name for name in _changes(held, inner.__dict__) if not _derived(inner, name)]
        if names:
            what = f"the forward of {type(inner).__name__} sets the attribute {names[0]!r}, which a captured step would not."
            raise Uncapturable("X-STATE", what, fix="register it as a buffer and change that in place.")


def _derived(module: nn.Module, name: str) -> bool:
    """Whether an attribute is made anew from parameters before each use: by recurrent layers, by norms of weights."""
    own = {*module._parameters, *module._buffers}
    return name in ("_flat_weights", "_flat_weight_refs") or bool(own & {f"{name}_v", f"{name}_orig"})


def _changes(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    missing = object()
    return [name for name in {**before, **after} if before.get(name, missing) is not after.get(name, missing)]


def _buffers(module: nn.Module) -> list[tuple[dict[str, Any], str, torch.Tensor]]:
    return [
        (inner._buffers, name, buffer)
        for inner in module.modules()
        for name, buffer in inner._buffers.items()
        if buffer is not None
    ]


def _keep_buffers(held: list[tuple[dict[str, Any], str, torch.Tensor]]) -> None:
    """A buffer that the forward replaced by a new tensor is written in place instead: same values, same object."""
    for owner, name, buffer in held:
        new = owner.get(name)
        if new is buffer:
            continue
        if new is None or new.shape != buffer.shape or new.dtype != buffer.dtype:
            what = f"the forward replaces the buffer {name!r} by one of another shape or type."
            raise Uncapturable("X-STATE", what, fix="keep its shape and type.")
        buffer.copy_(new.detach())
        owner[name] = buffer


__all__ = ["Captured", "FakeTensor", "Plain", "capture"]
