"""Operations and modules of many kinds: with every forward value evicted they train as eager does, and peaks hold."""

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils import parametrizations
from torch.utils.checkpoint import checkpoint

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
