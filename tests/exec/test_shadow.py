"""Branches on values that shapes and constants decide are taken as eager takes them; those on anything else stop the capture."""

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


@pytest.mark.parametrize(
    "function",
    [
        of_an_input, of_a_parameter, of_a_buffer, of_chance, of_what_was_there, of_a_float, overwritten,
        overwritten_through_a_view,
    ],
    ids=lambda f: f.__name__,
)  # fmt: skip
def test_what_another_call_could_decide_otherwise_is_refused(function):
    torch.manual_seed(0)
    module = Net(function)
    module.register_buffer("steps", torch.zeros((), dtype=torch.long))
    with pytest.raises(Uncapturable, match=r"X-TRACE.*_local_scalar_dense"):
        remat.exec.capture(module.double(), (torch.randn(6, 8, dtype=torch.float64),))


def test_a_large_tensor_is_not_computed_alongside():
    def function(self, x):
        return self.linear(x).sum() * torch.arange(1 << 21)[5].item()

    with pytest.raises(Uncapturable, match="X-TRACE"):
        remat.exec.capture(Net(function), (torch.randn(6, 8),))
