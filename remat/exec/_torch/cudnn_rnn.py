"""Recurrent nets of cuDNN as operations that a trace and DTR can take: `nn.LSTM`, `nn.GRU` and `nn.RNN` on a CUDA device.

Eager gives cuDNN its weights as one block, and looks into their memory to see whether they lie in one; in a trace there is no
memory, and under DTR none that may be exchanged. Here the block is made of the weights in the operation, and gradients of
weights come back in one. Under autocast all that goes to cuDNN is cast to float16, as eager does whatever type autocast has.
Dropout between layers has a state that is cuDNN's own and cannot be put back, so such nets are refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch._subclasses.functional_tensor import FunctionalTensor
from torch.overrides import TorchFunctionMode

from remat.errors import Uncapturable

_HOW = (
    "int weight_stride0, int mode, int hidden_size, int proj_size, int num_layers, bool batch_first, float dropout, bool train, "
    "bool bidirectional"
)
_FORWARD = f"cudnn_rnn(Tensor input, Tensor[] weight, Tensor hx, Tensor? cx, {_HOW}) -> (Tensor, Tensor, Tensor, Tensor, Tensor)"
"""Output, last hidden and cell states, what the backward of cuDNN needs besides, and the weights in one block."""
_BACKWARD = (
    "cudnn_rnn_backward(Tensor input, Tensor[] weight, Tensor hx, Tensor? cx, Tensor output, Tensor weight_buf, Tensor reserve, "
    f"Tensor? grad_output, Tensor? grad_hy, Tensor? grad_cy, {_HOW}) -> (Tensor, Tensor, Tensor, Tensor)"
)
"""Gradients of input, hidden and cell states, and of all weights one behind the other."""
MODES = {"rnn_relu": 0, "rnn_tanh": 1, "lstm": 2, "gru": 3}
"""What cuDNN calls the kinds of nets, by the name of torch's operation."""

_library = torch.library.Library("remat", "FRAGMENT")
_library.define(_FORWARD)
_library.define(_BACKWARD)
_aten: Any = torch.ops.aten


def _run(x: Tensor, weight: Sequence[Tensor], hx: Tensor, cx: Tensor | None, *how: Any) -> tuple[Tensor, ...]:
    stride0, mode, hidden, proj, layers, batch_first, dropout, train, both = how
    flat = _aten._cudnn_rnn_flatten_weight.default(
        [part.detach() for part in weight], stride0, x.size(-1), mode, hidden, proj, layers, batch_first, both
    )
    output, hy, cy, reserve, _ = _aten._cudnn_rnn.default(
        x, weight, stride0, flat, hx, cx, mode, hidden, proj, layers, batch_first, dropout, train, both, [], None
    )
    return output, hy, cy, reserve, flat


def _run_backward(x: Tensor, weight: Sequence[Tensor], hx: Tensor, cx: Tensor | None, *rest: Any) -> tuple[Tensor, ...]:
    output, flat, reserve, *grads = rest[:6]
    stride0, mode, hidden, proj, layers, batch_first, dropout, train, both = rest[6:]
    wanted = [True, True, cx is not None, True]
    reserve = reserve.clone()  # the kernel writes there
    dx, dhx, dcx, dweight = _aten._cudnn_rnn_backward.default(
        x, weight, stride0, flat, hx, cx, output, *grads, mode, hidden, proj, layers, batch_first, dropout, train, both, [],
        None, reserve, wanted,
    )  # fmt: skip
    return dx, dhx, x.new_empty(0) if cx is None else dcx, torch.cat([part.reshape(-1) for part in dweight])


_library.impl("cudnn_rnn", _run, "CUDA")
_library.impl("cudnn_rnn_backward", _run_backward, "CUDA")


def _shapes(x: Tensor, weight: Sequence[Tensor], hx: Tensor, cx: Tensor | None, *how: Any) -> tuple[Tensor, ...]:
    *_, batch_first, _, _, both = how
    width = hx.size(2) * (2 if both else 1)
    time, batch = (x.size(1), x.size(0)) if batch_first else (x.size(0), x.size(1))
    output = x.new_empty(time, batch, width)
    output = output.transpose(0, 1) if batch_first else output
    state = torch.empty_like(hx)
    cell = x.new_empty(0) if cx is None else torch.empty_like(cx)
    bytes_besides = torch.empty(0, dtype=torch.uint8, device=x.device)
    return output, state, cell, bytes_besides, x.new_empty(sum(part.numel() for part in weight))


def _shapes_backward(
    x: Tensor, weight: Sequence[Tensor], hx: Tensor, cx: Tensor | None, *_rest: Any
) -> tuple[Tensor, ...]:
    cell = x.new_empty(0) if cx is None else torch.empty_like(cx)
    return torch.empty_like(x), torch.empty_like(hx), cell, x.new_empty(sum(part.numel() for part in weight))


torch.library.register_fake("remat::cudnn_rnn", _shapes, lib=_library)
torch.library.register_fake("remat::cudnn_rnn_backward", _shapes_backward, lib=_library)


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    x, weight, hx, cx, *ctx.how = inputs
    out, _, _, reserve, flat = output
    ctx.mark_non_differentiable(reserve, flat, *(output[2:3] if cx is None else ()))
    ctx.set_materialize_grads(False)
    ctx.count = len(weight)
    ctx.save_for_backward(x, hx, cx, out, reserve, flat, *weight)


def _backward(
    ctx: Any, grad_output: Tensor | None, grad_hy: Tensor | None, grad_cy: Tensor | None, *_none: Any
) -> tuple[Any, ...]:
    x, hx, cx, output, reserve, flat, *weight = ctx.saved_tensors
    grads = (grad_output, grad_hy, None if cx is None else grad_cy)
    if all(grad is None for grad in grads):
        return (None, [None] * ctx.count, *(None,) * (2 + len(ctx.how)))
    dx, dhx, dcx, dflat = torch.ops.remat.cudnn_rnn_backward(x, weight, hx, cx, output, flat, reserve, *grads, *ctx.how)
    parts = dflat.split([part.numel() for part in weight])
    dweight = [part.view(like.shape) for part, like in zip(parts, weight, strict=True)]
    return (dx, dweight, dhx, None if cx is None else dcx, *(None,) * len(ctx.how))


torch.library.register_autograd("remat::cudnn_rnn", _backward, setup_context=_save, lib=_library)


def by_cudnn(
    mode: int, x: Tensor, states: Sequence[Tensor], weight: Sequence[Tensor], *how: Any
) -> tuple[Tensor, Tensor, Tensor]:
    """What a recurrent net of cuDNN returns: output, last hidden and cell states.

    Args:
        mode: of cuDNN.
        x: input.
        states: hidden, and cell where there is one.
        weight: as `nn.RNNBase` has them.
        how: has_biases, num_layers, dropout, train, bidirectional, batch_first.

    Raises:
        Uncapturable: X-OP, with dropout between layers.
    """
    biases, layers, dropout, train, both, batch_first = how
    if dropout and train and layers > 1:
        what = (
            f"dropout={dropout} inside a recurrent net of cuDNN has a state of its own, which no replay can put back."
        )
        fix = 'give dropout=0 and put `nn.Dropout` between nets of one layer, or leave the module bare (on_uncapturable="bare").'
        raise Uncapturable("X-OP", what, fix=fix)
    if torch.is_autocast_enabled(x.device.type):
        x, states, weight = _half(x), [_half(state) for state in states], [_half(part) for part in weight]
    hx, cx = (states[0], states[1]) if len(states) > 1 else (states[0], None)
    hidden = hx.size(2) if cx is None else cx.size(2)
    proj = 0 if hx.size(2) == hidden else hx.size(2)
    stride0 = (4 if biases else 2) + bool(proj)
    output, hy, cy, *_ = torch.ops.remat.cudnn_rnn(
        x, weight, hx, cx, stride0, mode, hidden, proj, layers, batch_first, 0.0, train, both
    )
    return output, hy, cy


def _half(tensor: Tensor) -> Tensor:
    """What autocast gives to cuDNN for a tensor."""
    return tensor if tensor.dtype == torch.float64 else tensor.to(torch.float16)


def takes(x: Tensor) -> bool:
    """Whether eager gives a net with this input to cuDNN."""
    return x.is_cuda and bool(torch.cudnn_is_acceptable(x))


def _traced(name: str) -> Any:
    """What stands for `aten::lstm` and its like in a trace."""
    overload = getattr(_aten, name).input

    def call(x: Tensor, states: Any, *rest: Any) -> Any:
        if not takes(x):
            return overload._op_dk(torch._C.DispatchKey.CompositeImplicitAutograd, x, states, *rest)
        output, hy, cy = by_cudnn(MODES[name], x, states if name == "lstm" else [states], *rest)
        return (output, hy, cy) if name == "lstm" else (output, hy)

    return call


@contextmanager
def traced_in_one() -> Iterator[None]:
    """In the block traces take down recurrent nets of cuDNN as one operation each, and leave weights without memory apart."""
    key, flatten = torch._C.DispatchKey.CompositeImplicitAutograd, nn.RNNBase.flatten_parameters
    overloads = {name: getattr(_aten, name).input for name in MODES}
    before = {name: overload.py_kernels.get(key) for name, overload in overloads.items()}

    def unless_traced(module: nn.RNNBase) -> None:
        if not any(isinstance(part, (FakeTensor, FunctionalTensor)) for part in module._flat_weights):
            flatten(module)

    nn.RNNBase.flatten_parameters = unless_traced  # type: ignore[method-assign, assignment]
    for name, overload in overloads.items():
        overload.py_kernels[key] = _traced(name)
        overload._dispatch_cache.clear()
    try:
        yield
    finally:
        nn.RNNBase.flatten_parameters = flatten  # type: ignore[method-assign]
        for name, overload in overloads.items():
            if before[name] is None:
                del overload.py_kernels[key]
            else:
                overload.py_kernels[key] = before[name]
            overload._dispatch_cache.clear()


class _InOne(TorchFunctionMode):
    """Calls nets of cuDNN as one operation each; those of packed sequences run as they are.

    Args:
        refused: what is raised for a net that is refused.
    """

    def __init__(self, refused: Callable[[Uncapturable], Exception]) -> None:
        super().__init__()
        self.refused = refused

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        mode = _FUNCTIONS.get(func)
        if mode is None or len(args) != 9 or not isinstance(args[3], bool) or not takes(args[0]):
            return func(*args, **(kwargs or {}))
        x, states, *rest = args
        lstm = mode == MODES["lstm"]
        try:
            output, hy, cy = by_cudnn(mode, x, states if lstm else [states], *rest)
        except Uncapturable as error:
            raise self.refused(error) from error
        return (output, hy, cy) if lstm else (output, hy)


_FUNCTIONS = {getattr(torch, name): mode for name, mode in MODES.items()}
DEVICES = ("cuda",)
"""Types of devices that have such nets."""


def run_in_one(device: torch.device, refused: Callable[[Uncapturable], Exception]) -> AbstractContextManager[object]:
    """In the block recurrent nets of cuDNN run as one operation each.

    Args:
        device: of the step; on others than CUDA there are none.
        refused: what is raised for a net that is refused.
    """
    return _InOne(refused) if device.type in DEVICES else nullcontext()


__all__ = ["MODES", "by_cudnn", "run_in_one", "traced_in_one"]
