"""Operations and modules of many kinds: with every forward value evicted they train as eager does, and peaks hold."""

import copy

import pytest
import torch
import torch._decomp
import torch._functorch.aot_autograd  # and all that registers Python for operations
import torch._refs
from torch import nn
from torch.nn import functional
from torch.nn.utils import parametrizations
from torch.utils.checkpoint import checkpoint

import remat.exec
from remat.exec._torch.cudnn_rnn import MODES
from remat.exec._torch.joint import IN_PYTHON, eager_kernels
from tests.exec.support import Rig, differences, evicting, train

WIDTH = 8


class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return 2 * x * grad


class Net(nn.Module):
    """A linear layer, another module, and a function of (module, x) that uses them."""

    def __init__(self, function, inner):
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)
        self.inner = inner
        self.function = function

    def forward(self, x):
        return self.function(self, x)


def attends(self, x):
    x = x.view(2, 4, WIDTH)
    return self.inner(x, x, x, need_weights=False)[0].square().sum()


def scaled_product(self, x):
    q = self.linear(x).view(2, 1, 4, WIDTH)
    return functional.scaled_dot_product_attention(q, q + 1, q * 2, is_causal=True).square().sum()


def spectral(self, x):
    weights = torch.view_as_complex(torch.stack([self.linear.weight[:, :5], self.linear.weight[:, 3:]], -1))
    return torch.fft.irfft(torch.fft.rfft(self.linear(x)) * weights).sin().sum()


def checkpointed(self, x):
    return checkpoint(lambda y: functional.dropout(self.linear(y).tanh(), 0.3), x, use_reentrant=False).exp().sum()


def indexed(self, x):
    y = self.linear(x).clone()
    y[0] = 3
    y[1:3] *= 2
    y[:, ::2].add_(1)
    y.view(-1)[5:10].mul_(3)
    return y.square().sum() + y[[0, 2, 2, 5]].sum()


def many_drops(self, x):
    y = self.linear(x)
    drops = functional.dropout2d(y.view(2, 4, WIDTH, 1), 0.4).square().sum() + functional.alpha_dropout(y, 0.3).sum()
    chosen = torch.multinomial(y.softmax(-1).detach(), 2) * y[:, :2]
    return drops + functional.rrelu(y, training=True).sum() + chosen.sum()


def resampled(self, x):
    up = functional.interpolate(self.linear(x).view(1, 2, 4, WIDTH), scale_factor=2, mode="bilinear")
    return up.square().sum() + functional.pad(self.linear(x), (1, 1)).sum()


def ordered(self, x):
    y = self.linear(x)
    return y.topk(3)[0].sum() + y.sort(-1)[0].cumsum(-1).square().sum() + torch.einsum("ij,kj->ik", y, x).exp().mean()


def normed(self, x):
    return self.inner(self.linear(x)).square().sum()


def recurrent(self, x):
    return self.inner(x.view(2, 4, WIDTH))[0].sum()


CASES = {
    "recurrent": (recurrent, lambda: nn.LSTM(WIDTH, WIDTH, 2, batch_first=True, dropout=0.3)),
    "attention": (attends, lambda: nn.MultiheadAttention(WIDTH, 2, dropout=0.2, batch_first=True)),
    "scaled product": (scaled_product, nn.Identity),
    "spectral": (spectral, nn.Identity),
    "checkpointed inside": (checkpointed, nn.Identity),
    "own autograd function": (lambda self, x: Square.apply(self.linear(x)).sin().sum(), nn.Identity),
    "assigned to": (indexed, nn.Identity),
    "random of many kinds": (many_drops, nn.Identity),
    "resampled": (resampled, nn.Identity),
    "ordered": (ordered, nn.Identity),
    "group norm": (normed, lambda: nn.GroupNorm(2, WIDTH)),
    "batch norm in eval": (normed, lambda: nn.BatchNorm1d(WIDTH).eval()),
    "weight norm": (normed, lambda: parametrizations.weight_norm(nn.Linear(WIDTH, WIDTH))),
    "spectral norm": (normed, lambda: parametrizations.spectral_norm(nn.Linear(WIDTH, WIDTH))),
}


@pytest.mark.parametrize("name", CASES)
def test_it_trains_as_eager_does_and_its_peak_holds(name):
    function, inner = CASES[name]
    made = []
    for _ in range(2):
        torch.manual_seed(0)
        made.append((Net(function, inner()).double(), (torch.randn(8, WIDTH, dtype=torch.float64),)))
    (bare, one), (other, two) = made
    rig = Rig(other, two)
    forward = rig.forward(evicting(rig.graph))
    assert differences(train(bare, one), train(other, two, call=forward)) == []
    assert rig.measured(rig.step(rig.plan(rig.peak).schedule)).peak <= rig.peak


class Weighted(nn.Module):
    """A function of a parameter and an input."""

    def __init__(self, shape, function):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(shape))
        self.function = function

    def forward(self, *given):
        return self.function(self.weight, *given).square().mean()


def resynthesized(weight, x, window):
    spectra = torch.view_as_complex(x) * torch.view_as_complex(weight)[:, :, None]
    return torch.istft(spectra, 32, hop_length=8, window=window, length=64)


def analyzed(weight, x):
    return torch.view_as_real(torch.stft(weight * x, 32, 8, 24, torch.hann_window(24), return_complex=True))


AS_EAGER = {
    "a vector of data and a bank of matrices": ((3, 32, 6), lambda weight, x: x @ weight, (32,)),
    "a permuted weight and a matrix of data": ((7, 3, 2), lambda weight, x: weight.permute(1, 2, 0) @ x, (7, 4)),
    "short-time spectra": ((4, 256), analyzed, (4, 256)),
    "padded sequences": ((6, 5), lambda weight, x: nn.utils.rnn.pad_sequence([weight[:2] * x, weight]), (2, 5)),
    "broadcast": ((6, 5), lambda weight, x: torch.broadcast_tensors(weight, x)[0] * x, (3, 6, 5)),
}
"""Shapes and functions for which torch's Python does other operations than eager."""


def same_steps(model, calls, tracer):
    """How many steps of the wrapped module have the loss and the gradient of the bare one, bit for bit."""
    bare = copy.deepcopy(model)
    wrapped = remat.exec.wrap(model, calls[0], "100%", tracer=tracer, on_uncapturable="raise")
    count = 0
    for call in calls:
        bare.zero_grad()
        wrapped.zero_grad()
        losses = bare(*call), wrapped(*call)
        for loss in losses:
            loss.backward()
        count += torch.equal(*losses) and torch.equal(bare.weight.grad, wrapped.weight.grad)
    return count


@pytest.mark.parametrize("tracer", ["log", "joint"])
@pytest.mark.parametrize("name", AS_EAGER)
def test_operations_that_torch_takes_apart_in_python_have_the_bits_of_eager(name, tracer):
    shape, function, given = AS_EAGER[name]
    torch.manual_seed(0)
    model, calls = Weighted(shape, function), [(torch.randn(given),) for _ in range(10)]
    assert same_steps(model, calls, tracer) == 10


def inverted_spectra():
    torch.manual_seed(0)
    calls = [(torch.randn(4, 17, 9, 2), torch.hann_window(32)) for _ in range(5)]
    return Weighted((4, 17, 2), resynthesized), calls


@pytest.mark.parametrize("tracer", ["log", "joint"])
def test_inverse_spectra_have_the_bits_of_eager(tracer):
    assert same_steps(*inverted_spectra(), tracer) == 5


def test_inverse_spectra_keep_eagers_check_of_the_window():
    model, calls = inverted_spectra()
    wrapped = remat.exec.wrap(model, calls[0], "100%")
    for module in (model, wrapped):
        with pytest.raises(RuntimeError):
            module(calls[0][0], torch.zeros(32))


def taken_apart_in_python():
    keys = (torch._C.DispatchKey.Autograd, torch._C.DispatchKey.CompositeImplicitAutograd)
    names = (name.partition(".") for name in torch._C._dispatch_get_all_op_names())
    packets = {
        name: getattr(getattr(torch.ops, name.split("::")[0]), name.split("::")[1], None) for name, _, _ in names
    }
    return {
        name
        for name, packet in packets.items()
        if packet is not None
        and any(key in getattr(packet, overload).py_kernels for overload in packet.overloads() for key in keys)
    }


def test_no_operation_is_taken_apart_in_python_but_those_that_must_be():
    before = taken_apart_in_python()
    assert len(before) > 30
    for fused in (True, False):
        with eager_kernels(fused_dropout=fused):
            left = taken_apart_in_python()
        assert (
            left == {f"aten::{name}" for name in IN_PYTHON | MODES.keys() | ({"dropout"} if fused else set())} & before
        )
    assert taken_apart_in_python() == before


def assigned_rows(weight, x, mask):
    out = torch.zeros_like(x)
    out[mask] = x[mask] @ weight
    return out


def assigned_columns(weight, x, mask):
    out = x @ weight
    out[:, mask[0], :3] = out[:, mask[0], 3:6].sin()
    out[mask] += 1
    return out


def assigned_without_gradients(weight, x, mask):
    out = x @ weight
    with torch.no_grad():
        kept = out.clone()
        kept[kept > 0] = weight[0, 0]
    return out * kept


MASKED = {
    "rows": assigned_rows,
    "columns": assigned_columns,
    "without gradients": assigned_without_gradients,
    "put": lambda weight, x, mask: (x @ weight).index_put((mask,), (x[mask] @ weight).sin()),
    "added": lambda weight, x, mask: torch.zeros_like(x).index_put_((mask,), x[mask] @ weight, True),
    "a scalar": lambda weight, x, mask: (x @ weight).index_put((mask,), weight[0, 0]),
}


@pytest.mark.parametrize("tracer", ["log", "joint"])
@pytest.mark.parametrize("name", MASKED)
def test_writes_through_a_mask_of_the_inputs_are_planned(name, tracer):
    torch.manual_seed(0)
    model = Weighted((6, 6), MASKED[name])
    masks = [torch.rand(4, 5) > part for part in (0.3, 0.5, 0.8)] + [torch.zeros(4, 5, dtype=torch.bool)]
    calls = [(torch.randn(4, 5, 6), mask) for mask in masks]
    assert same_steps(model, calls, tracer) == len(calls)
