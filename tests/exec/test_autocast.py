"""Casts that autocast keeps: one for each leaf and region, whoever enters the region; casts of the user's are not kept.

Eager adds the gradients of a kept cast in bfloat16 and those of several casts in float32, so that each module below differs from
eager if one cast too many, or one too few, is shared.
"""

import copy
from contextlib import nullcontext

import pytest
import torch
from torch import nn

import remat.exec
from tests.exec.support import LIGHT

WIDTH, BF16 = 16, torch.bfloat16


def region(**how):
    return torch.autocast("cpu", dtype=BF16, **how)


class Casts(nn.Module):
    """A layer and a weight, in a forward that is a function."""

    def __init__(self, forward):
        super().__init__()
        self.layer, self.weight = nn.Linear(WIDTH, WIDTH), nn.Parameter(torch.randn(WIDTH, WIDTH) / 4)
        self.function = forward

    def forward(self, x):
        return self.function(self, x).float().square().mean()


def one_region(m, x):
    with region():
        return m.layer(m.layer(torch.tanh(m.layer(x))))


def two_regions_and_none(m, x):
    with region():
        x = m.layer(torch.tanh(m.layer(x)))
    x = m.layer(x.float())
    with region():
        return m.layer(torch.tanh(m.layer(x)))


def regions_in_a_region(m, x):
    with region():
        x = m.layer(x)
        with torch.autocast("cpu", enabled=False):
            x = m.layer(torch.tanh(x.float()))
        with region():
            x = m.layer(x)
        return m.layer(x)


def casts_by_the_user(m, x):
    with region():
        x = torch.tanh(x @ m.weight.to(BF16)) @ m.weight.bfloat16()
        return torch.tanh(x) @ m.weight.type(BF16) + x @ m.weight.type_as(x)


def casts_by_the_user_and_by_autocast(m, x):
    x = torch.tanh(x @ m.weight.to(x.dtype)) @ m.weight
    with region():
        return torch.tanh(x @ m.weight.bfloat16()) @ m.weight + x @ m.weight


def no_cast_is_kept(m, x):
    with region(cache_enabled=False):
        return m.layer(m.layer(torch.tanh(m.layer(x))))


def a_part_without_gradients(m, x):
    with region():
        with torch.no_grad():
            x = m.layer(x)
        return m.layer(torch.tanh(m.layer(x)))


FORWARDS = (
    one_region, two_regions_and_none, regions_in_a_region, casts_by_the_user, casts_by_the_user_and_by_autocast,
    no_cast_is_kept, a_part_without_gradients,
)  # fmt: skip
AROUND = {"outside": nullcontext, "within": region, "within-keeping-none": lambda: region(cache_enabled=False)}


def wrapped(module):
    how = {"budget": "100%", "solver": LIGHT, "loss_reserve": 2**16, "cost": "estimate", "on_uncapturable": "raise"}
    return remat.exec.wrap(copy.deepcopy(module), **how)


def assert_alike(bare, planned, call):
    """Three steps leave the same loss and gradients."""
    for step in range(3):
        left = []
        for module in (bare, planned):
            x = torch.randn(8, WIDTH, generator=torch.Generator().manual_seed(step), requires_grad=True)
            loss = call(module, x)
            loss.backward()
            left.append([loss, x.grad, *(parameter.grad for parameter in module.parameters())])
            module.zero_grad()
        for one, two in zip(*left, strict=True):
            assert (one is None and two is None) or torch.equal(one, two)
    assert remat.exec.report(planned).ran == "plan"


@pytest.mark.parametrize("around", AROUND)
@pytest.mark.parametrize("forward", FORWARDS, ids=lambda forward: forward.__name__)
def test_casts_are_shared_where_eager_keeps_them(forward, around):
    torch.manual_seed(0)
    bare = Casts(forward)

    def call(module, x):
        with AROUND[around]():
            return module(x)

    assert_alike(bare, wrapped(bare), call)


def test_casts_of_an_input_are_kept_where_it_is_a_leaf():
    torch.manual_seed(0)
    bare = Casts(lambda m, x: m.layer(x) + x @ m.weight)
    planned = wrapped(bare)

    def of_leaf(module, x):
        with region():
            return module(x)

    def of_result(module, x):
        with region():
            return module(x * 1.5)

    for call in (of_leaf, of_result, of_leaf):
        assert_alike(bare, planned, call)
    assert remat.exec.report(planned).plans == 2
