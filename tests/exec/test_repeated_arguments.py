"""Calls that are given one tensor several times, a parameter as an argument, or arguments that share memory."""

import copy

import pytest
import torch
from torch import nn

import remat.exec
from tests.exec.support import LIGHT

EASY = {"cost": "estimate", "solver": LIGHT, "rehearse": False}


class Three(nn.Module):
    """Three uses of what may be one tensor."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(7, 7, bias=False) for _ in range(3))

    def forward(self, x, y, z):
        first, second, third = self.layers
        return (torch.tanh(first(x)) * torch.sin(second(y)) + third(z).exp()).sum()


class Product(nn.Module):
    """A layer whose weight may be an argument too."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(7, 7, bias=False)

    def forward(self, x, weight):
        hidden = torch.tanh(self.layer(x))
        return (torch.sin(self.layer(hidden)) @ weight + hidden @ weight.t()).exp().sum()


class Doubles(nn.Module):
    """Writes its first argument before it reads the second."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(7, 7)

    def forward(self, x, y):
        x.mul_(2.0)
        return (torch.tanh(self.layer(y)) * y).sum()


class DoublesLate(Doubles):
    """Writes it after what the backward needs of the second."""

    def forward(self, x, y):
        loss = (torch.tanh(self.layer(y)) * y).sum()
        x.mul_(2.0)
        return loss


def pair(kind):
    torch.manual_seed(0)
    bare = kind()
    return bare, remat.exec.wrap(copy.deepcopy(bare), None, 10**6, **EASY)


def bits(tensors):
    return [None if tensor is None else tensor.detach().clone() for tensor in tensors]


def rows(seed, *, requires_grad=False):
    return torch.randn(5, 7, generator=torch.Generator().manual_seed(seed), requires_grad=requires_grad)


def assert_same(first, second):
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


@pytest.mark.parametrize("leaf", [True, False])
def test_one_tensor_given_three_times_gets_the_sum_of_eager(leaf):
    results = []
    for module in pair(Three):
        x = rows(1, requires_grad=True)
        given = x if leaf else x * 1.1
        loss = module(given, given, given)
        loss.backward()
        results.append(bits([loss, x.grad, *(p.grad for p in module.parameters())]))
        module(rows(2, requires_grad=True), given.detach(), given.detach())  # another pattern has a plan of its own
    assert module.remat.report().plans == 2
    assert_same(*results)


def test_arguments_without_gradients_that_are_one_tensor_have_the_plan_of_two():
    _, wrapped = pair(Three)
    x = rows(1)
    wrapped(x, x, x).backward()
    wrapped(x, rows(2), rows(3)).backward()
    assert wrapped.remat.report().plans == 1


def test_a_parameter_given_as_an_argument_gets_the_sum_of_eager():
    results = []
    for module in pair(Product):
        loss = module(rows(1), module.layer.weight)
        loss.backward()
        results.append(bits([loss, module.layer.weight.grad]))
    assert_same(*results)


@pytest.mark.parametrize("share", [lambda x: x, lambda x: x.detach()], ids=["one-tensor", "one-memory"])
@pytest.mark.filterwarnings("ignore:.*runs under DTR")
def test_a_write_reaches_an_argument_that_shares_the_memory_in_a_later_step_too(share):
    results = []
    for module in pair(Doubles):
        trace = []
        for step, given in enumerate((torch.clone, share, torch.clone)):
            x = rows(step)
            loss = module(x, given(x))
            loss.backward()
            trace += bits([loss, x, *(p.grad for p in module.parameters())])
        results.append(trace)
    assert_same(*results)


@pytest.mark.parametrize("share", [lambda x: x, lambda x: x.detach(), lambda x: x[:]], ids=["one", "detached", "view"])
@pytest.mark.filterwarnings("ignore:.*runs under DTR")
def test_a_write_that_eager_refuses_is_refused_in_a_later_step_too(share):
    for module in pair(DoublesLate):
        x = rows(1)
        module(x, x.clone()).backward()
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            module(x, share(x)).backward()


class Tied(nn.Module):
    """Three uses of one weight."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(7, 7, dtype=torch.float64)

    def forward(self, x):
        return self.layer(torch.tanh(self.layer(torch.tanh(self.layer(x)))))


def test_uses_in_several_calls_are_added_call_by_call():
    results = []
    for module in pair(Tied):
        (module(rows(1).double()) * module(rows(2).double())).sum().backward()
        results.append(module.layer.weight.grad)
    torch.testing.assert_close(*results, rtol=0, atol=1e-15 * results[0].abs().max().item() * 4)
