"""Ctrl-C in a step under DTR, wherever it comes, and errors in a trace: torch is as before, and the next step right."""

import copy
import signal

import pytest
import torch
from torch import nn
from torch.utils import _python_dispatch

import remat.exec
from remat.algorithms._core.interruption import Uninterrupted
from remat.exec._torch.unwinding import hooks_put_back


class Net(nn.Module):
    """Some layers, with numbers drawn and statistics."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(8, 16), nn.Linear(16, 8)
        self.norm, self.dropout = nn.BatchNorm1d(16), nn.Dropout(0.2)

    def forward(self, x):
        return (x + self.second(self.dropout(torch.relu(self.norm(self.first(x)))))).square().mean()


def state():
    keys = (torch._C._dispatch_tls_local_include_set(), torch._C._dispatch_tls_local_exclude_set())
    hooks = torch._C._autograd._top_saved_tensors_default_hooks(True)
    return torch.is_grad_enabled(), torch._C._len_torch_dispatch_stack(), hooks, *map(str, keys)


def step(module, x):
    module.zero_grad()
    torch.manual_seed(1)
    loss = module(x)
    loss.backward()
    return [loss.detach(), *(p.grad.clone() for p in module.parameters())]


def assert_right(wrapped, x):
    twin = Net()
    twin.load_state_dict(copy.deepcopy(wrapped.state_dict()))
    assert all(torch.equal(a, b) for a, b in zip(step(twin, x), step(wrapped, x), strict=True))


@pytest.fixture
def wrapped():
    torch.manual_seed(0)
    return remat.exec.dtr(Net(), 60000)


def test_ctrl_c_while_a_mode_is_left_leaves_none(wrapped, monkeypatch):
    def stopped(_kind=None):
        monkeypatch.undo()
        raise KeyboardInterrupt

    x, before = torch.randn(32, 8), state()
    step(wrapped, x)
    monkeypatch.setattr(_python_dispatch, "_pop_mode", stopped)
    with pytest.raises(KeyboardInterrupt):
        step(wrapped, x)
    assert state() == before
    assert_right(wrapped, x)


def test_ctrl_c_waits_where_torch_could_not_be_left_half_way():
    trace = []
    with pytest.raises(KeyboardInterrupt), Uninterrupted():
        signal.raise_signal(signal.SIGINT)
        trace.append("end")
    assert trace == ["end"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_hooks_that_an_error_leaves_on_are_taken_off():
    def kept_on():
        with torch.autograd.graph.saved_tensors_hooks(lambda tensor: tensor, lambda tensor: tensor):
            yield

    def fails():
        contexts = [kept_on(), kept_on()]
        for context in contexts:
            next(context)
        raise ValueError

    before = state()
    with pytest.raises(ValueError) as error, hooks_put_back():
        try:
            fails()
        except ValueError as cause:
            raise ValueError("a refusal") from cause
    assert error.value.__cause__ is not None and state() == before
