"""Tensors that modules hold outside of their tables, and what a forward asks of tensors besides their values."""

import collections

import pytest
import torch
from torch import nn

import remat.exec
from remat.errors import Uncapturable
from tests.exec.support import LIGHT, twins

State = collections.namedtuple("State", "hidden step")


class Net(nn.Module):
    """Two layers and a buffer; a function makes what it holds besides, another one the activations."""

    def __init__(self, hold, use):
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)
        self.register_buffer("scale", torch.rand(8) + 0.5)
        self.held = hold(self)
        self.use = use

    def forward(self, x):
        return torch.tanh(self.second(self.use(self, self.first(x)))).square().mean()


def pair(hold, use):
    torch.manual_seed(0)
    bare, module = twins(Net(hold, use))
    return bare, module, torch.randn(16, 8)


def wrapped_of(module, x, **options):
    return remat.exec.wrap(module, x, "100%", solver=LIGHT, on_uncapturable="raise", **options)


def tensors_in(value):
    if isinstance(value, torch.Tensor):
        return [value]
    items = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else ()
    return [tensor for item in items for tensor in tensors_in(item)]


def stepped(net, x):
    """Everything that a step gives and leaves, after an update in place."""
    net.zero_grad()
    loss = net(x)
    loss.backward()
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.sub_(0.1 * parameter.grad)
    return [loss, *net.parameters(), *(p.grad for p in net.parameters()), *net.buffers(), *tensors_in(net.held)]


def kept_in_a_tuple(net, y):
    net.held = (y.detach(), net.held[1] * 0.5)
    return y + net.held[1]


def kept_in_a_named_tuple(net, y):
    y = y * net.held.hidden * net.held.step
    net.held = net.held._replace(hidden=y.detach().mean(0))
    return y


def kept_deep(net, y):
    y = y * net.held[0][0][0] * net.held[0][1]["last"][0]
    net.held[0] = ((y.detach().mean(0),), net.held[0][1])
    return y


HELD = {
    "a tuple": (lambda net: (torch.zeros(16, 8), torch.ones(8)), kept_in_a_tuple),
    "a named tuple": (lambda net: State(torch.ones(8), 3), kept_in_a_named_tuple),
    "nested": (lambda net: [((torch.ones(8),), {"last": (torch.ones(8), 2)})], kept_deep),
    "only read": (lambda net: (torch.ones(8),), lambda net, y: y * net.held[0]),
    "parameters": (
        lambda net: [net.first.weight, (net.second.weight,)],
        lambda net, y: y * (net.held[0] * net.held[1][0]).sum(),
    ),
    "a buffer": (lambda net: [net.scale], lambda net, y: y * net.held[0]),
}


@pytest.mark.parametrize("tracer", ["auto", "joint"])
@pytest.mark.parametrize("kind", HELD)
def test_held_tensors_are_those_of_eager_step_after_step(kind, tracer):
    bare, module, x = pair(*HELD[kind])
    wrapped = wrapped_of(module, x, tracer=tracer)
    for _ in range(4):
        assert all(map(torch.equal, stepped(bare, x), stepped(wrapped, x)))


def test_a_state_that_is_none_at_first_and_a_tuple_later():
    def use(net, y):
        y = y if net.held is None else y + net.held[0]
        net.held = (y.detach(),)
        return y

    bare, module, x = pair(lambda net: None, use)
    wrapped = wrapped_of(module, x)
    for _ in range(4):
        assert all(map(torch.equal, stepped(bare, x), stepped(wrapped, x)))


def set_once(net, y):
    if not net.held:
        net.held = (3, 4)
    return y * len(net.held)


def emptied(net, y):
    while net.held:
        net.held.pop()
    return y


@pytest.mark.parametrize(
    ("hold", "use"), [(lambda net: (), set_once), (lambda net: [(1, 2), (3, (4,))], emptied)], ids=["set", "emptied"]
)
def test_tuples_without_tensors_are_set_and_taken_away_as_before(hold, use):
    bare, module, x = pair(hold, use)
    wrapped = wrapped_of(module, x)
    for _ in range(3):
        assert all(map(torch.equal, stepped(bare, x), stepped(wrapped, x)))
        assert wrapped.held == bare.held


def test_another_tensor_under_the_second_name_of_a_buffer_is_seen():
    bare, module, x = pair(*HELD["a buffer"])
    wrapped = wrapped_of(module, x)
    stepped(wrapped, x), stepped(bare, x)
    for net in (bare, wrapped):
        net.held[0] = torch.full((8,), 2.0)
    assert all(map(torch.equal, stepped(bare, x), stepped(wrapped, x)))


ASKED = {
    "isinstance": lambda net: isinstance(net.first.weight, nn.Parameter) and not isinstance(net.scale, nn.Parameter),
    "is_leaf": lambda net: net.first.weight.is_leaf and net.scale.is_leaf,
    "grad_fn": lambda net: net.first.weight.grad_fn is None,
    "grad of a buffer": lambda net: net.scale.grad is None,
}


@pytest.mark.parametrize("tracer", ["auto", "joint"])
@pytest.mark.parametrize("asked", ASKED)
def test_the_real_tensors_answer(asked, tracer):
    bare, module, x = pair(lambda net: None, lambda net, y: y * (2.0 if ASKED[asked](net) else 1.0))
    wrapped = wrapped_of(module, x, tracer=tracer)
    assert ASKED[asked](bare)
    assert all(map(torch.equal, stepped(bare, x), stepped(wrapped, x)))


@pytest.mark.parametrize(
    ("ask", "words"),
    [
        (lambda net, x: net.first.weight.grad is None, r"`grad` of the parameter first\.weight"),
        (lambda net, x: x.is_leaf, "`is_leaf` of the argument 0"),
        (lambda net, x: x.storage_offset() == 0, r"`storage_offset\(\)` of the argument 0"),
    ],
)
def test_what_may_be_another_in_each_call_is_refused(ask, words):
    class Asks(Net):
        def forward(self, x):
            return super().forward(x) * (2.0 if ask(self, x) else 1.0)

    x = torch.randn(16, 8, requires_grad=True)
    with pytest.raises(Uncapturable, match=f"X-READ.*test_held_tensors.py.*{words}"):
        wrapped_of(Asks(lambda net: None, lambda net, y: y), x)


def test_an_argument_without_gradients_is_a_leaf():
    class Asks(Net):
        def forward(self, x):
            return super().forward(x) * (2.0 if x.is_leaf and x.grad_fn is None and x.grad is None else 1.0)

    torch.manual_seed(0)
    bare, module = twins(Asks(lambda net: None, lambda net, y: y))
    x = torch.randn(16, 8)
    assert all(map(torch.equal, stepped(bare, x), stepped(wrapped_of(module, x), x)))


def puts_a_parameter(net, y):
    net.held = [net.first.weight]
    return y


def sets_what_was_none(net, y):
    net.empty = y.detach()
    return y


@pytest.mark.parametrize(
    ("use", "words"),
    [(puts_a_parameter, "the parameter 'first.weight' itself"), (sets_what_was_none, "registers .* 'empty'")],
)
def test_refusals_say_what_the_forward_does(use, words):
    module = Net(lambda net: None, use)
    module.register_buffer("empty", None)
    with pytest.raises(Uncapturable, match=f"X-STATE.*{words}"):
        wrapped_of(module, torch.randn(16, 8))


class Distilled(nn.Module):
    """A student, and a teacher that no table has: in a list, or set past `nn.Module`."""

    def __init__(self, place, *, trained):
        super().__init__()
        torch.manual_seed(0)
        self.student = nn.Linear(8, 8)
        layers = [layer for _ in range(20) for layer in (nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Tanh())]
        teacher = nn.Sequential(*layers).requires_grad_(trained)
        self.place = place
        if place == "a list":
            self.hidden = [teacher]
        else:
            object.__setattr__(self, "hidden", teacher)

    @property
    def teacher(self):
        return self.hidden[0] if self.place == "a list" else self.hidden

    def forward(self, x):
        return (self.student(x) - self.teacher(x)).square().mean()


@pytest.mark.parametrize("trained", [False, True])
@pytest.mark.parametrize("place", ["a list", "an attribute"])
def test_a_module_that_is_not_registered_is_part_of_the_step(place, trained):
    nets, x = [Distilled(place, trained=trained) for _ in range(2)], torch.randn(16, 8)
    both = [nets[0], wrapped_of(nets[1], x)]
    for _ in range(2):
        for net, called in zip(nets, both, strict=True):
            called(x).backward()
            with torch.no_grad():
                for parameter in net.teacher.parameters():
                    parameter.mul_(0.5)
    tensors = [
        [*net.teacher.parameters(), *net.teacher.buffers(), *(p.grad for p in net.parameters()), called(x)]
        + [p.grad for p in net.teacher.parameters() if trained]
        for net, called in zip(nets, both, strict=True)
    ]
    assert all(map(torch.equal, *tensors))
    assert remat.exec.report(both[1]).ran == "plan"


class Prior(nn.Module):
    """A divergence from a distribution that it holds."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.encode = nn.Linear(8, 8)
        self.prior = torch.distributions.Normal(torch.zeros(4), torch.ones(4))

    def forward(self, x):
        mean, log_scale = self.encode(x).chunk(2, 1)
        return torch.distributions.kl_divergence(torch.distributions.Normal(mean, log_scale.exp()), self.prior).mean()


def test_the_tensors_of_a_distribution_are_those_of_the_call():
    bare, x = Prior(), torch.randn(16, 8)
    wrapped = wrapped_of(Prior(), x)
    for scale in (1.0, 2.0):
        wrapped.prior = bare.prior = torch.distributions.Normal(torch.zeros(4), torch.full((4,), scale))
        assert torch.equal(wrapped(x), bare(x))


class Reversed(torch.autograd.Function):
    """Turns gradients around, by a strength that it keeps on `ctx`."""

    @staticmethod
    def forward(ctx, x, strength):
        ctx.strength = strength
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        return -ctx.strength * gradient, None


def test_what_a_backward_keeps_on_ctx_may_be_an_attribute():
    def reversed_by(net, y):
        return Reversed.apply(y, net.held)

    bare, module, x = pair(lambda net: torch.tensor(0.3), reversed_by)
    wrapped = wrapped_of(module, x)
    for strength in (0.3, 0.7):
        for net in (bare, wrapped):
            net.held = torch.tensor(strength)
        assert all(map(torch.equal, stepped(bare, x), stepped(wrapped, x)))
