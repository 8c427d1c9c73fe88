"""The comparison sees one changed bit in everything that a step leaves, and nothing where nothing changed."""

import random
from types import SimpleNamespace

import numpy
import pytest
import torch
from torch import nn

from tests.models.exact import STEPS, differences, train


class Step(nn.Module):
    """Returns an object with a cache; does one more thing where it is told to."""

    def __init__(self, also=lambda module, out: None):
        super().__init__()
        self.inner = nn.Linear(3, 3)
        self.register_buffer("count", torch.zeros(()))
        self.also = also

    def forward(self, x):
        y = self.inner(x)
        out = SimpleNamespace(loss=y.square().mean(), cache=[y.detach().clone()], words="same", own=None)
        out.own = out
        self.also(self, out)
        return out


def trace(also=lambda module, out: None):
    torch.manual_seed(0)
    return train(Step(also), (torch.ones(2, 3),), {}, lambda out: out.loss)


def nudge(module, out):
    flat = out.cache[0].view(torch.int32)
    flat[0, 0] ^= 1


PLANTED = {
    "out.cache[0] off": nudge,
    "out.words is 'other'": lambda module, out: setattr(out, "words", "other"),
    "out.extra is new": lambda module, out: setattr(out, "extra", 1),
    "out.cache:class is 'tuple'": lambda module, out: setattr(out, "cache", tuple(out.cache)),
    "buffer.count": lambda module, out: module.count.add_(1),
    "grad.inner.weight": lambda module, out: setattr(out, "loss", out.loss * 2),
    "random.torch differs": lambda module, out: torch.rand(1),
    "random.python": lambda module, out: random.random(),
    "random.numpy": lambda module, out: numpy.random.rand(),
    "param.inner.bias": lambda module, out: module.inner.bias.data.add_(1),
}


def test_equal_steps_have_no_differences():
    assert len(trace()) == STEPS
    assert differences(trace(), trace()) == []


@pytest.mark.parametrize("line", PLANTED)
def test_a_planted_difference_is_told(line):
    lines = differences(trace(), trace(PLANTED[line]))
    assert any(line in told for told in lines), lines


def test_the_sign_of_zero_and_nan_are_compared_by_their_bits():
    zeros = [trace(lambda module, out, sign=sign: out.cache.append(torch.tensor(sign))) for sign in (0.0, -0.0)]
    assert differences(*zeros) == [f"step {at}: out.cache[1] differs in the signs of zeros" for at in range(STEPS)]
    nans = [trace(lambda module, out: out.cache.append(torch.tensor(float("nan")))) for _ in range(2)]
    assert differences(*nans) == []
