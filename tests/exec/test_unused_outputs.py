"""Outputs that the loss does not use: what only they depend on gets no gradient, as without a plan, in any combination."""

import copy

import pytest
import torch
from torch import nn

import remat.exec
from remat.exec._run.runtime import StepError
from tests.exec.support import LIGHT, differences, train

WIDTH = 32


class Both(torch.autograd.Function):
    """Its backward makes ones of a gradient of zeros: zeros stand for what is missing at its door, not behind it."""

    @staticmethod
    def forward(ctx, x):
        return x * 2, x + 1

    @staticmethod
    def backward(ctx, first, second):
        return first * second.cos() + second


class Heads(nn.Module):
    """Outputs that share parts of a trunk; one of them has an infinite derivative, which times zero is nan."""

    def __init__(self):
        super().__init__()
        self.trunk = nn.Sequential(
            nn.Linear(WIDTH, 64), nn.GELU(), nn.Dropout(0.2), nn.Linear(64, 64), nn.GELU(), nn.Linear(64, WIDTH)
        )
        self.words = nn.Embedding(11, WIDTH)
        self.a, self.b, self.c = (nn.Linear(WIDTH, 8) for _ in range(3))

    def forward(self, x):
        hidden = self.trunk(x) + self.words(torch.arange(len(x)) % 11)
        first, second = Both.apply(hidden)
        left, right = hidden.chunk(2, 1)
        root = (self.b(hidden) * 0).sqrt()
        return self.a(first), self.b(second) + self.c(hidden), left.relu() * right, hidden @ self.words.weight.t(), root


SUBSETS = [(0,), (1,), (2,), (3,), (0, 1), (1, 3), (0, 2, 3), (0, 1, 2, 3)]
"""The root is never used."""


def built():
    torch.manual_seed(0)
    return Heads(), (torch.randn(96, WIDTH, requires_grad=True),)


def loss_of(module, used):
    """A function of the sample: a loss of some outputs."""

    def loss(x):
        outputs = module(x)
        return sum((outputs[at] * (at + 1)).square().mean() for at in used)

    return loss


@pytest.mark.parametrize("how", [{"budget": "100%"}, {"budget": "75%"}, {"budget": "75%", "offload": True}], ids=str)
def test_what_only_unused_outputs_depend_on_gets_no_gradient(how):
    bare, sample = built()
    wrapped = remat.exec.wrap(
        copy.deepcopy(bare), sample, solver=LIGHT, on_uncapturable="raise", loss_reserve=1 << 16, **how
    )
    for used in SUBSETS:
        expected, trace = (train(module, sample, 2, call=loss_of(module, used)) for module in (bare, wrapped))
        assert differences(expected, trace) == [], used
        assert any(gradient is None for gradient in expected[0]["grad"].values()) == (not {0, 1} <= {*used})


def test_a_backward_without_some_gradients_stays_within_the_plan():
    module, sample = built()
    wrapped = remat.exec.wrap(module, sample, "75%", solver=LIGHT, on_uncapturable="raise", loss_reserve=1 << 16)
    predicted = remat.exec.report(wrapped).predicted_peak
    for used in SUBSETS[:4]:
        step = loss_of(wrapped, used)
        assert remat.exec.measure_step(lambda step=step: step(*sample).backward(), warm_up=1).peak <= predicted
        wrapped.zero_grad()


def test_what_is_linked_to_no_gradient_is_told_so_by_autograd():
    module, sample = built()
    wrapped = remat.exec.wrap(module, sample, "100%", solver=LIGHT, on_uncapturable="raise")
    with pytest.raises(RuntimeError, match="appears to not have been used"):
        torch.autograd.grad(wrapped(*sample)[0].sum(), [wrapped.b.weight])
    (gradient,) = torch.autograd.grad(wrapped(*sample)[0].sum(), [wrapped.b.weight], allow_unused=True)
    assert gradient is None


def test_hooks_that_would_get_no_gradient_are_refused():
    module, sample = built()
    wrapped = remat.exec.wrap(module, sample, "100%", solver=LIGHT, on_uncapturable="raise")
    wrapped.b.weight.register_hook(lambda gradient: gradient * 2)
    with pytest.raises(StepError, match=r"X-OUTPUT.*hooks.*loss=") as error:
        wrapped(*sample)[0].sum().backward()
    assert error.value.rule == "X-OUTPUT"
    sum(output.sum() for output in wrapped(*sample)[:4]).backward()
