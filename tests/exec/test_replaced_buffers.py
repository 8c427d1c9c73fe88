"""Buffers that the forward replaces by new tensors (`self.state = …`): as in eager, who has the old tensor keeps what it was."""

import types

import pytest
import torch
from torch import nn

import remat.exec
from remat._warn import RematWarning
from remat.errors import Uncapturable
from tests.exec.support import LIGHT, differences, train, twins


class Replacing(nn.Module):
    """Two layers and two buffers, which a function of them replaces in the forward; for a product autograd saves both."""

    def __init__(self, replace, join=torch.add):
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)
        self.register_buffer("new", torch.randn(64, 8))
        self.register_buffer("old", torch.randn(64, 8))
        self.replace, self.join = replace, join

    def forward(self, x):
        y = torch.tanh(self.join(self.join(self.first(x), self.new), self.old))
        self.replace(self, x, y)
        return torch.tanh(self.second(y)).square().mean()


def shift(net, x, y):
    net.old = net.new
    net.new = y.detach()


def swap(net, x, y):
    net.old, net.new = net.new, net.old
    net.new.mul_(0.9)


def average(net, x, y):
    net.new = 0.9 * net.new + 0.1 * y.detach()


def pair(replace, join=torch.add):
    torch.manual_seed(0)
    bare, module = twins(Replacing(replace, join).double())
    return bare, module, torch.randn(64, 8, dtype=torch.float64)


def first(net, x, y):
    net.new = 2 * x


REPLACED = [(torch.add, shift), (torch.add, swap), (torch.add, average)]
SAVED = [(torch.mul, shift), (torch.mul, average), (torch.mul, first)]


@pytest.mark.parametrize("tracer", ["log", "joint"])
@pytest.mark.parametrize("budget", ["100%", "80%"])
@pytest.mark.parametrize(("join", "replace"), [*REPLACED, *SAVED], ids=lambda function: function.__name__)
def test_buffers_that_take_each_others_place_are_those_of_eager(join, replace, budget, tracer):
    bare, module, x = pair(replace, join)
    wrapped = remat.exec.wrap(
        module, x, budget, solver=LIGHT, tracer=tracer, on_uncapturable="raise", on_infeasible="best"
    )
    assert differences(train(bare, (x,), 4), train(wrapped, (x,), 4)) == []


@pytest.mark.parametrize("join", [torch.add, torch.mul], ids=lambda join: join.__name__)
@pytest.mark.parametrize("replace", [shift, average], ids=lambda replace: replace.__name__)
def test_who_has_the_old_buffer_or_a_view_of_it_keeps_it(replace, join):
    bare, module, x = pair(replace, join)
    wrapped = remat.exec.wrap(module, x, "100%", solver=LIGHT, on_uncapturable="raise")
    kept = []
    for net in (bare, wrapped):
        tensors = []
        for _ in range(3):
            tensors += [net.new, net.new[3:5]]
            net(x).backward()
        kept.append(tensors)
    assert all(map(torch.equal, *kept))


def attached(net, x, y):
    net.new = y


def written(net, x, y):
    net.new.copy_(y)


def tied(net, x, y):
    net.new = net.old


def shared_later(net, x, y):
    net.new = net.old = y.detach()


def argument(net, x, y):
    net.new = x


def transposed(net, x, y):
    net.new = y.detach().t().contiguous().t()


REFUSED = [attached, written, tied, shared_later, argument, transposed]


@pytest.mark.parametrize(
    ("join", "replace"), [(torch.add, one) for one in REFUSED] + [(torch.mul, tied), (torch.mul, shared_later)],
    ids=lambda function: function.__name__,
)  # fmt: skip
def test_what_later_calls_would_see_of_this_one_is_refused(join, replace):
    _, module, x = pair(replace, join)
    with pytest.raises(Uncapturable, match=r"X-STATE|X-WRITE"):
        remat.exec.wrap(module, x, "100%", solver=LIGHT, on_uncapturable="raise")


class Holding(nn.Module):
    """Replaces a buffer and a counter; a function says what else is done with the old one."""

    def __init__(self, use):
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)
        self.register_buffer("mean", torch.randn(8))
        self.register_buffer("count", torch.zeros(()))
        self.use = use

    def forward(self, x):
        self.count = self.count + 1
        y, old = self.use(self, self.first(x), self.mean)
        self.mean = 0.9 * self.mean + 0.1 * y.detach().mean(0)
        return torch.tanh(self.second(y)).square().mean(), old


class Scaled(torch.autograd.Function):
    """Holds a tensor without a check of its version."""

    @staticmethod
    def forward(ctx, x, by):
        ctx.by = by
        return x * by

    @staticmethod
    def backward(ctx, gradient):
        return gradient * ctx.by, None


def returned(net, y, old):
    return y + old, old


def viewed(net, y, old):
    return y * old, old[2:4]


def in_a_hook(net, y, old):
    y.register_hook(lambda gradient: gradient * old)
    return y + old, None


def in_a_function(net, y, old):
    return Scaled.apply(y, old), None


def in_an_attribute(net, y, old):
    net.before = old
    return y * old, None


def counted(net, y, old):
    return (y * old if net.count > 2 else y + old), None


USES = [returned, viewed, in_a_hook, in_a_function, in_an_attribute, counted]


@pytest.mark.parametrize("tracer", ["auto", "joint"])
@pytest.mark.parametrize("use", USES, ids=lambda use: use.__name__)
def test_who_has_the_old_buffer_in_the_step_has_its_values_when_the_new_one_is_written(use, tracer):
    torch.manual_seed(0)
    bare, module = twins(Holding(use).double())
    x = torch.randn(16, 8, dtype=torch.float64)
    wrapped = remat.exec.wrap(module, x, "100%", solver=LIGHT, tracer=tracer, on_uncapturable="raise")
    for _ in range(4):
        seen = []
        for net in (bare, wrapped):
            net.zero_grad()
            loss, old = net(x)
            loss.backward()
            before = getattr(net, "before", net.mean)
            seen.append(
                [loss, before, *net.buffers(), *(p.grad for p in net.parameters())] + ([] if old is None else [old])
            )
        assert all(map(torch.equal, *seen))


def anew(net, y, old):
    net.mean = net.other[0] = 2 * old
    return y * old, None


@pytest.mark.parametrize(
    ("use", "words"), [(returned, r"self.other\[0\] keeps the old one"), (anew, "in another place, too")]
)
def test_a_buffer_that_is_replaced_and_in_another_place_is_refused(use, words):
    module = Holding(use)
    module.other = [module.mean]
    if use is anew:
        module.forward = types.MethodType(lambda net, x: anew(net, net.first(x), net.mean)[0].square().mean(), module)
    with pytest.raises(Uncapturable, match=f"X-STATE.*'mean'.*{words}"):
        remat.exec.wrap(module, torch.randn(16, 8), "100%", solver=LIGHT, on_uncapturable="raise")


def test_a_buffer_under_two_names_of_which_one_is_replaced_is_refused():
    _, module, x = pair(average)
    module.old = module.new
    with pytest.raises(Uncapturable, match="X-STATE"):
        remat.exec.wrap(module, x, "100%", solver=LIGHT, on_uncapturable="raise")


def test_gradients_through_a_replaced_buffer_reach_the_call_before_under_dtr():
    bare, module, x = pair(attached)
    with pytest.warns(RematWarning, match="X-STATE"):
        wrapped = remat.exec.wrap(module, x, 1 << 26)
    for net in (bare, wrapped):
        (net(x) + net(2 * x)).backward()
    assert all(torch.equal(a.grad, b.grad) for a, b in zip(bare.parameters(), module.parameters(), strict=True))


def test_the_new_memory_is_within_the_budget():
    _, module, x = pair(shift)
    wrapped = remat.exec.wrap(module, x, "100%", solver=LIGHT, on_uncapturable="raise")
    report = remat.exec.report(wrapped)
    assert report.overhead == 2 * 64 * 8 * 8

    def step():
        wrapped(x).backward()

    step()
    module.zero_grad()
    assert remat.exec.measure_step(step).peak <= report.budget
