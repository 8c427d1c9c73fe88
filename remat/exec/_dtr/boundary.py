"""Where plain tensors become wrapper tensors and come back: the mode of a forward, what autograd saves, outputs, gradients."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from attrs import frozen

from remat.algorithms._dtr.values import Handle, Value
from remat.exec._dtr.operators import version_of
from remat.exec._dtr.recorder import may_be_lengths
from remat.exec._dtr.runtime import Runtime
from remat.exec._dtr.wrapper import RematTensor
from remat.exec._run.runtime import StepError, check_single
from remat.exec._torch import cudnn_rnn
from remat.exec._torch.ambient import FORWARD_FIX, forward_level
from remat.exec._torch.torch_private import DispatchMode
from remat.exec._torch.wrappers import assigning_data, modes_on, saving_with


class _Region(DispatchMode):
    """Hands every operation of a forward to the runtime, those on plain tensors too."""

    def __init__(self, runtime: Runtime) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.runtime, self.level = runtime, forward_level()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if forward_level() > self.level:
            what = f"the forward computes {func} and its derivative together (torch.func.jvp, forward_ad)."
            raise StepError("X-TRANSFORM", what, fix=FORWARD_FIX)
        return self.runtime.dispatch(func, args, kwargs or {})


@contextmanager
def region(runtime: Runtime) -> Iterator[None]:
    """Inside, what the forward makes is under the runtime, and so is what autograd saves."""
    runtime.on_gradients_of = hand_out_gradients
    try:
        with (
            runtime.forward(),
            torch.autograd.graph.saved_tensors_hooks(_Saver(runtime), unpacked),
            assigning_data(runtime.assigned),
            cudnn_rnn.run_in_one(runtime.device, lambda error: StepError(error.rule, error.what, fix=error.fix)),
            _Region(runtime),
        ):
            yield
    except RuntimeError as error:
        _refuse(error)
        raise


def _refuse(error: RuntimeError) -> None:
    """Say of errors of torch that a forward has under DTR alone what to do about them.

    Raises:
        StepError: X-TRANSFORM, X-TENSOR.
    """
    message = str(error)
    if "support saved tensor hooks" in message:
        what = "the forward calls a transform of torch.func, which torch does not run where saved tensors have hooks."
        fix = "use torch.autograd.grad(…, create_graph=True) there, or call the transform outside of the module."
        raise StepError("X-TRANSFORM", what, fix=fix) from error
    if "data is not allocated yet" in message:
        what = (
            "a function of torch reads lengths by a data pointer, which a tensor that was computed here does not have."
        )
        fix = "give it a plain tensor at the line of the traceback: torch.tensor(lengths.tolist()) in place of lengths."
        raise StepError("X-TENSOR", what, fix=fix) from error


# -- what autograd saves ---------------------------------------------------------------------------------------------------


@frozen(eq=False)
class _Saved:
    """A saved tensor: the value as it was then; of one in memory of the program, how often that had been written."""

    handle: Handle
    version: int
    shape: tuple[int, ...]
    runtime: Runtime


@frozen(eq=False)
class _SavedPlain:
    """A saved plain tensor, how often it had been written, and whether the backward reads it by a data pointer."""

    tensor: torch.Tensor
    version: int
    runtime: Runtime
    pointed: bool


@frozen(eq=False)
class _Saver:
    """What autograd calls with each tensor that it saves in a forward."""

    runtime: Runtime

    def __call__(self, tensor: torch.Tensor) -> _Saved | _SavedPlain:
        return packed(self.runtime, tensor)


def saves_alone(runtime: Runtime) -> bool:
    """Whether nothing of the program stands between the forward and its runtime: no hooks for saved tensors, no other mode."""
    saver = saving_with()
    return isinstance(saver, _Saver) and saver.runtime is runtime and modes_on() == 1


def packed(runtime: Runtime, tensor: torch.Tensor) -> _Saved | _SavedPlain:
    """What is kept of a tensor that autograd saves."""
    if isinstance(tensor, RematTensor):
        handle = Handle(tensor._handle.value, saved=True)
        if runtime.on_saved is not None:
            runtime.on_saved(handle.value.storage)
        return _Saved(handle, _version(handle, tensor._runtime), tuple(tensor.shape), tensor._runtime)
    return _SavedPlain(tensor, version_of(tensor), runtime, runtime.tracks(tensor) and may_be_lengths(tensor))


def unpacked(saved: _Saved | _SavedPlain) -> torch.Tensor:
    """A saved tensor, for the backward.

    Raises:
        RuntimeError: it was written since, as torch says it.
    """
    saved.runtime.doubled = saved.runtime.doubled or torch.is_grad_enabled()
    if isinstance(saved, _Saved):
        if saved.handle.stale or _version(saved.handle, saved.runtime) != saved.version:
            raise RuntimeError(_modified(saved.shape))
        return saved.runtime.standing_for(saved.handle.value)
    if version_of(saved.tensor) != saved.version:
        raise RuntimeError(_modified(tuple(saved.tensor.shape)))
    if saved.pointed:
        return saved.tensor
    with saved.runtime.forward():
        return saved.runtime.enter(saved.tensor)


def _version(handle: Handle, runtime: Runtime) -> int:
    source = runtime.source_of(handle.value)
    return 0 if source is None else version_of(source)


def _modified(shape: tuple[int, ...]) -> str:
    return (
        "one of the variables needed for gradient computation has been modified by an inplace operation: a tensor of shape "
        f"{list(shape)} was written after it was saved."
    )


# -- outputs and gradients -------------------------------------------------------------------------------------------------


class Leave(torch.autograd.Function):
    """From a wrapper tensor to a plain one; its gradient goes the other way."""

    @staticmethod
    def forward(ctx: Any, wrapper: RematTensor) -> torch.Tensor:
        """The plain tensor."""
        ctx.runtime = wrapper._runtime
        wrapper._uses[0] += 1
        ctx.set_materialize_grads(False)
        return ctx.runtime.hand_out(wrapper._handle.value)  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> Any:
        """The gradient comes into the step."""
        (gradient,) = gradients
        if gradient is None or isinstance(gradient, RematTensor):
            return gradient
        check_single("the module under DTR", [gradient])
        ctx.runtime.core.reserve = 0
        if torch.is_grad_enabled() and gradient.requires_grad:
            return Enter.apply(gradient, ctx.runtime)  # type: ignore[no-untyped-call]
        return ctx.runtime.enter(gradient)


class Enter(torch.autograd.Function):
    """From a plain tensor to a wrapper tensor; its gradient goes the other way."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, runtime: Runtime) -> RematTensor:
        """The wrapper tensor."""
        ctx.set_materialize_grads(False)
        return runtime.enter(tensor.detach())

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> Any:
        """The gradient comes out of the step."""
        (gradient,) = gradients
        return (plain_gradient(gradient) if isinstance(gradient, RematTensor) else gradient), None


def plain_output(tensor: torch.Tensor) -> torch.Tensor:
    """An output of a forward as a plain tensor with the same place in the graph."""
    if not isinstance(tensor, RematTensor):
        return tensor
    if tensor.requires_grad:
        return Leave.apply(tensor)  # type: ignore[no-any-return, no-untyped-call]
    return tensor.plain()


def plain_gradient(gradient: RematTensor, stride: tuple[int, ...] | None = None) -> torch.Tensor:
    """A gradient as a plain tensor, in memory of its own; `stride`: of the leaf that keeps it."""
    if torch.is_grad_enabled() and gradient.requires_grad:
        return Leave.apply(gradient)  # type: ignore[no-any-return, no-untyped-call]
    runtime: Runtime = gradient._runtime
    value: Value = gradient._handle.value
    shape = tuple(gradient.shape)
    if not value.storage.pinned and (stride is None or _same_layout(shape, tuple(gradient.stride()), stride)):
        return runtime.hand_out(value)
    return runtime.copy_out(value, _contiguous(shape) if stride is None else stride)


def _same_layout(shape: tuple[int, ...], first: tuple[int, ...], second: tuple[int, ...]) -> bool:
    return all(size == 1 or mine == theirs for size, mine, theirs in zip(shape, first, second, strict=True))


def _contiguous(shape: tuple[int, ...]) -> tuple[int, ...]:
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(1, size)
    return tuple(reversed(strides))


class _GradientHook:
    """Gives gradients of a plain tensor out as plain tensors, of a leaf in the layout in which they are kept."""

    keeps_the_gradient = True
    """It changes nothing: other code need not look out for it."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self._stride = tuple(tensor.stride()) if tensor.is_leaf else None

    def __call__(self, gradient: torch.Tensor) -> torch.Tensor | None:
        return plain_gradient(gradient, self._stride) if isinstance(gradient, RematTensor) else None


_HOOKED: dict[int, weakref.ref[torch.Tensor]] = {}
"""Plain tensors that have the hook, by id."""


def hand_out_gradients(tensor: torch.Tensor) -> None:
    """Have gradients of a plain tensor come out of the step as plain tensors."""
    key = id(tensor)
    ref = _HOOKED.get(key)
    if ref is None or ref() is not tensor:
        _HOOKED[key] = weakref.ref(tensor, lambda _: _HOOKED.pop(key, None))
        tensor.register_hook(_GradientHook(tensor))
