"""Gradients of outputs that arrive in another layout than the output's: the bits of eager where the backward computes in any."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional

import remat.exec
from remat.exec._run.tangents import Tangents

BATCH, TIME, WIDTH = 16, 96, 128
HOW = {"cost": "estimate", "rehearse": False, "on_uncapturable": "raise", "loss_reserve": "8MiB"}


class Net(nn.Module):
    """(batch, time) tokens to (batch, time, width), or what `after` makes of it."""

    def __init__(self, last, after=lambda y: y):
        super().__init__()
        torch.manual_seed(0)
        self.embedding, self.hidden, self.last = nn.Embedding(50, 32), nn.Linear(32, 64), last()
        self.after = after

    def forward(self, tokens):
        return self.after(self.last(torch.relu(self.hidden(self.embedding(tokens)))))


class Transposed(nn.Module):
    """(batch, time, width) to (batch, width, time)."""

    def forward(self, y):
        return y.transpose(1, 2)


def with_linear(layer):
    return lambda: nn.Sequential(nn.Linear(64, WIDTH), layer())


LASTS = {
    "linear": lambda: nn.Linear(64, WIDTH),
    "rms norm": with_linear(lambda: nn.RMSNorm(WIDTH)),
    "softplus": with_linear(nn.Softplus),
    "layer norm": with_linear(lambda: nn.LayerNorm(WIDTH)),
    "softmax": with_linear(lambda: nn.Softmax(-1)),
}
LOSSES = {
    "classes second": lambda y: functional.cross_entropy(
        y.transpose(1, 2), torch.arange(BATCH * TIME).view(BATCH, TIME) % WIDTH
    ),
    "time first": lambda y: functional.mse_loss(y.transpose(0, 1), torch.ones(TIME, BATCH, WIDTH)),
    "reversed": lambda y: (y.permute(2, 1, 0) * torch.arange(y.numel()).view(WIDTH, TIME, BATCH).float().sin()).sum(),
    "expanded": lambda y: y.sum(-1).sin().sum(),
    "summed": lambda y: (y * 1.5).sum(),
}


def gradients(module, tokens, loss):
    module.zero_grad()
    loss(module(tokens)).backward()
    return [parameter.grad.clone() for parameter in module.parameters()]


def tokens_and_pair(last, after=lambda y: y, **how):
    bare = Net(last, after)
    tokens = torch.arange(BATCH * TIME).view(BATCH, TIME) * 7 % 50
    return tokens, bare, remat.exec.wrap(copy.deepcopy(bare), tokens, "100%", **HOW | how)


@pytest.mark.parametrize("name", LASTS)
def test_gradients_of_any_layout_give_the_bits_of_eager(name):
    tokens, bare, wrapped = tokens_and_pair(LASTS[name])
    for loss in LOSSES.values():
        for ours, theirs in zip(gradients(wrapped, tokens, loss), gradients(bare, tokens, loss), strict=True):
            assert torch.equal(ours, theirs)
    assert remat.exec.report(wrapped).ran == "plan"


def test_a_transposed_output_takes_a_dense_gradient():
    tokens, bare, wrapped = tokens_and_pair(LASTS["linear"], lambda y: y.flatten(0, 1).t())
    weights = torch.arange(WIDTH * BATCH * TIME).view(WIDTH, -1).float().sin()
    for ours, theirs in zip(
        *(gradients(module, tokens, lambda y: (y * weights).sum()) for module in (wrapped, bare)), strict=True
    ):
        assert torch.equal(ours, theirs)


def answers(monkeypatch, last, loss, after=lambda y: y):
    """What was said of the layouts of a step, and its gradients beside eager's."""
    said = []
    takes = Tangents._takes

    def noted(self, strides):
        said.append(takes(self, strides))
        return said[-1]

    monkeypatch.setattr(Tangents, "_takes", noted)
    tokens, bare, wrapped = tokens_and_pair(last, after)
    return said, gradients(wrapped, tokens, loss), gradients(bare, tokens, loss)


def test_kernels_that_want_dense_gradients_get_them(monkeypatch):
    """Eager copies a gradient before GroupNorm's kernel, which reads memory in order; the trace has no such copy."""

    def grouped():
        return nn.Sequential(nn.Linear(64, WIDTH), Transposed(), nn.GroupNorm(4, WIDTH))

    said, ours, theirs = answers(monkeypatch, grouped, lambda y: LOSSES["time first"](y.transpose(1, 2)))
    assert said == [False]
    assert all(torch.equal(*pair) for pair in zip(ours, theirs, strict=True))


def test_a_layout_is_followed_once(monkeypatch):
    tokens, _, wrapped = tokens_and_pair(LASTS["linear"])
    gradients(wrapped, tokens, LOSSES["classes second"])
    monkeypatch.setattr("remat.exec._run.tangents.computes_in", lambda *_: pytest.fail("it was followed before"))
    gradients(wrapped, tokens, LOSSES["classes second"])


def test_sums_with_a_changed_gradient_are_not_guessed(monkeypatch):
    said, ours, theirs = answers(
        monkeypatch,
        LASTS["linear"],
        lambda parts: sum((part * (n + 1.5)).cos().sum() for n, part in enumerate(parts)),
        lambda y: (y[..., :8], y[..., 8:], y.transpose(0, 2)),
    )
    assert not any(said)
    for one, two in zip(ours, theirs, strict=True):
        assert torch.allclose(one, two, rtol=1e-4, atol=1e-6)
