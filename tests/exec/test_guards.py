"""Branches on values of tensors are taken as eager takes them: constants once and for all, inputs by guards, the rest late."""

import pytest
import torch

import remat.exec
from remat.errors import Uncapturable
from tests.exec.support import LIGHT, Rig, differences, evicting, train
from tests.exec.test_pitfalls import Net, pair


def packed_positions(self, x):
    """Are there several sequences in a row? As libraries of language models ask it of the positions they made themselves."""
    positions = torch.arange(x.shape[0]).unsqueeze(0)
    starts = torch.diff(positions, prepend=positions[:, :1] - 1, dim=-1) != 1
    if (starts.cumsum(-1)[:, -1] == 0).all():
        return torch.tanh(self.linear(x)).sum()
    return self.linear(x).exp().sum()


def counted(self, x):
    many = torch.arange(x.shape[0]).sum()
    return torch.tanh(self.linear(x)).sum() if many > 10 else (self.linear(x) * int(many)).exp().sum()


def written_in_place(self, x):
    flags = torch.zeros(4, dtype=torch.long)
    flags[1:].add_(1)
    flags[0] = 7
    return (self.linear(x) * flags.sum().item()).sin().sum()


def like_an_input(self, x):
    return self.linear(x).sin().sum() if torch.ones_like(x, dtype=torch.bool).all() else self.linear(x).sum()


@pytest.mark.parametrize(
    "function", [packed_positions, counted, written_in_place, like_an_input], ids=lambda f: f.__name__
)
def test_what_shapes_and_constants_decide_is_captured(function):
    (bare, one), (other, two) = pair(lambda: Net(function), lambda: (torch.randn(6, 8),))
    rig = Rig(other, two, cost="estimate")
    assert differences(train(bare, one), train(other, two, call=rig.forward(evicting(rig.graph)))) == []


def test_another_shape_takes_its_own_branch():
    torch.manual_seed(0)
    module = Net(counted)
    wrapped = remat.exec.wrap(module, torch.randn(6, 8), "100%", cost="estimate", solver=LIGHT, on_uncapturable="raise")
    for rows in (6, 4, 6):
        x = torch.randn(rows, 8)
        assert torch.equal(wrapped(x), module(x))
    assert remat.exec.report(wrapped).plans == 2


def of_an_input(self, x):
    return self.linear(x).sum() if (x > 0).any() else self.linear(x).sin().sum()


def of_a_parameter(self, x):
    return self.linear(x).sum() if (self.linear.weight > 0).any() else self.linear(x).sin().sum()


def of_a_buffer(self, x):
    return self.linear(x).sum() if self.steps.item() > 3 else self.linear(x).sin().sum()


def of_chance(self, x):
    return self.linear(x).sum() if torch.randint(2, ()).item() else self.linear(x).sin().sum()


def of_what_was_there(self, x):
    return self.linear(x).sum() if torch.empty(3, dtype=torch.long).any() else self.linear(x).sin().sum()


def of_a_float(self, x):
    return self.linear(x).sum() * torch.linspace(0, 1, 3)[1].item()


def overwritten(self, x):
    flags = torch.zeros(4, dtype=torch.long)
    flags[0] = x.sum().long()
    return self.linear(x).sum() if flags.any() else self.linear(x).sin().sum()


def overwritten_through_a_view(self, x):
    flags = torch.zeros(4, dtype=torch.long)
    flags.view(torch.float64)[0] = x.sum()
    return self.linear(x).sum() if flags.any() else self.linear(x).sin().sum()


def steps(module, x, iterations=4, seed=0):
    """Outputs, gradients and generators of several calls on changing inputs."""
    torch.manual_seed(seed)
    trace = []
    for i in range(iterations):
        module.zero_grad(set_to_none=True)
        module.steps.add_(1)
        out = module(x * (-1) ** i)
        out.backward()
        trace.append((out.detach(), [p.grad.clone() for p in module.parameters()], torch.get_rng_state()))
    return trace


def net(function):
    torch.manual_seed(0)
    module = Net(function)
    module.register_buffer("steps", torch.zeros((), dtype=torch.long))
    return module.double()


def assert_alike(function, plans):
    x = torch.randn(6, 8, dtype=torch.float64).abs()
    bare, wrapped = net(function), remat.exec.wrap(net(function), x, "64KiB", cost="estimate", solver=LIGHT)
    for one, two in zip(steps(bare, x), steps(wrapped, x), strict=True):
        assert torch.equal(one[0], two[0]) and torch.equal(one[2], two[2])
        assert all(torch.equal(mine, other) for mine, other in zip(one[1], two[1], strict=True))
    assert remat.exec.report(wrapped).plans == plans


@pytest.mark.parametrize(
    ("function", "plans"), [(of_an_input, 2), (overwritten, 1), (overwritten_through_a_view, 1), (of_a_float, 1)],
    ids=lambda case: getattr(case, "__name__", ""),
)  # fmt: skip
def test_what_inputs_decide_is_a_guard_and_each_branch_has_a_plan(function, plans):
    assert_alike(function, plans)


def test_a_buffer_that_decides_is_looked_at_in_every_call():
    assert_alike(of_a_buffer, 2)


def of_a_parameter_now_and_then(self, x):
    return self.linear(x).sum() if (self.linear(x).sum() > 0).item() else self.linear(x).sin().sum()


def of_chance_compared(self, x):
    return self.linear(x).sum() if torch.rand(()) > 0.5 else torch.dropout(self.linear(x), 0.5, True).sin().sum()


def of_a_drawn_number(self, x):
    return self.linear(x).sum() if 0.25 < torch.rand(1).item() <= 0.75 else self.linear(x).sin().sum()


def of_a_draw_into_unset_memory(self, x):
    return self.linear(x).sum() if torch.empty(1).uniform_(0, 1).item() < 0.5 else self.linear(x).sin().sum()


def of_a_drawn_integer(self, x):
    return self.linear(x).sum() if torch.randint(0, 3, (1,)).item() == 1 else self.linear(x).sin().sum()


def of_the_largest_activation(self, x):
    y = self.linear(x)
    return y.sum() if y.abs().max().item() > 1.5 else y.sin().sum()


def as_a_size(self, x):
    return self.linear(x)[: torch.randint(1, 4, (1,)).item()].sum()


def rounded(self, x):
    return self.linear(x).sum() if round(torch.rand(()).item()) else self.linear(x).sin().sum()


def picked_by_a_draw(self, x):
    kinds = [torch.sin, torch.cos, torch.tanh]
    return kinds[int(torch.empty(1).uniform_(0.0, 3.0).item())](self.linear(x)).sum()


def counted_with(self, x):
    return (self.linear(x) * (torch.randint(0, 2, ()).item() + 1)).sum()


COMPARED = [
    of_a_parameter, of_a_parameter_now_and_then, of_chance, of_chance_compared, of_a_drawn_number, of_a_draw_into_unset_memory,
    of_a_drawn_integer, of_the_largest_activation, as_a_size, rounded, picked_by_a_draw, counted_with,
]  # fmt: skip


@pytest.mark.parametrize("function", COMPARED, ids=lambda f: f.__name__)
def test_what_parameters_and_chance_decide_is_compared_after_the_forward(function):
    x = torch.randn(6, 8, dtype=torch.float64)
    wrapped = remat.exec.wrap(net(function), x, "64KiB", cost="estimate", solver=LIGHT)
    for one, two in zip(steps(net(function), x, 8), steps(wrapped, x, 8), strict=True):
        assert torch.equal(one[0], two[0]) and torch.equal(one[2], two[2])
        assert all(torch.equal(mine, other) for mine, other in zip(one[1], two[1], strict=True))
    assert remat.exec.report(wrapped).plans <= (
        3 if function in (of_a_drawn_number, as_a_size, picked_by_a_draw) else 2
    )


def as_a_factor(self, x):
    return self.linear(x).sum() * torch.rand(()).item()


def as_an_operand(self, x):
    return torch.clamp(self.linear(x), max=self.linear.weight.max().item()).sum()


def in_a_text(self, x):
    assert f"{self.linear(x).mean().item():.3f}"
    return self.linear(x).sum()


def as_an_attribute(self, x):
    self.last = self.linear(x).mean().item()
    return self.linear(x).sum()


def as_a_key(self, x):
    assert {torch.rand(()).item(): 1}
    return self.linear(x).sum()


def as_an_output(self, x):
    return self.linear(x).sum(), self.linear(x).mean().item()


USED = [of_what_was_there, as_a_factor, as_an_operand, in_a_text, as_an_attribute, as_a_key, as_an_output]


@pytest.mark.parametrize("function", USED, ids=lambda f: f.__name__)
def test_numbers_that_differ_in_every_step_are_refused_with_their_line(function):
    with pytest.raises(Uncapturable, match=rf"X-READ.*test_guards\.py:\d+ in {function.__name__}"):
        remat.exec.capture(net(function), (torch.randn(6, 8, dtype=torch.float64),))


def of_ones_like_an_input(self, x):
    return self.linear(x).sum() if (torch.ones_like(x) * x.sum() > 0).all() else self.linear(x).sin().sum()


def test_a_guard_may_look_at_the_shape_of_a_tensor_alone():
    assert_alike(of_ones_like_an_input, 2)


def of_one_size_many_times(self, x):
    many = (x > -9).sum(0).max()
    assert many == len(x) and x.new_zeros(many, 2).sum() == x.new_ones(many).sum() - many
    return self.linear(x[:many]).sum() if many > 3 else self.linear(x).sin().sum()


def test_what_is_asked_several_times_is_checked_once():
    bare, x = Net(of_one_size_many_times), torch.randn(6, 8)
    wrapped = remat.exec.wrap(bare, x, "100%", cost="estimate", solver=LIGHT, on_uncapturable="raise")
    assert torch.equal(wrapped(x), bare(x))
    questions = wrapped._remat.last.captured.guards.source.count("return False")
    assert questions == len(
        {line for line in wrapped._remat.last.captured.guards.source.splitlines() if "value =" in line}
    )


class Config:
    kind = None


class Shares(torch.nn.Module):
    """Reaches its config by two paths, of which the forward reads one."""

    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(8, 8)
        config = Config()
        self.linear.config = config
        self.config = config

    def forward(self, x):
        if self.config.kind is None:
            self.config.kind = "regression"
        return self.linear(x).sum()


def test_an_effect_finds_its_object_by_whichever_path():
    wrapped = remat.exec.wrap(Shares(), torch.randn(6, 8), "64KiB", cost="estimate", solver=LIGHT)
    assert wrapped.config.kind is None
    wrapped(torch.randn(6, 8)).backward()
    assert wrapped.linear.config.kind == "regression"
    wrapped(torch.randn(6, 8)).backward()
    assert remat.exec.report(wrapped).plans == 1
