"""Debugging as users expect: anomalies are named, and `module.remat` says what was planned."""

import warnings

import pytest
import torch
from torch import nn

import remat.exec
from remat.exec import RematWarning, StepError
from tests.exec.support import LIGHT

EASY = {"solver": LIGHT, "rehearse": False, "cost": "estimate"}
X = torch.linspace(0.5, 1, 64 * 16).reshape(64, 16)


class Root(nn.Module):
    def forward(self, x):
        return torch.sqrt(x - 0.5)  # its derivative is infinite where x is .5


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.scale = nn.Parameter(torch.ones(16))
        self.root = Root()
        self.layers = nn.Sequential(*(layer for _ in range(3) for layer in (nn.Linear(16, 16), nn.Tanh())))

    def forward(self, x):
        return (self.layers(self.root(x * self.scale)) * 0).sum() + self.root(x * self.scale).mean() * 0


def test_an_anomaly_names_the_operation_and_the_module():
    wrapped = remat.exec.wrap(Net(), X, "90%", **EASY)
    wrapped(X).backward()  # without detection nan goes through, as ever
    assert torch.isnan(wrapped.scale.grad).any()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with torch.autograd.detect_anomaly(), pytest.raises(StepError) as caught:
            wrapped(X).backward()
    assert caught.value.rule == "X-NAN" and "in root" in str(caught.value) and "aten." in str(caught.value)


def test_without_nan_detection_changes_nothing():
    torch.manual_seed(0)
    bare = nn.Sequential(*(layer for _ in range(4) for layer in (nn.Linear(16, 16), nn.Tanh())))
    wrapped = remat.exec.wrap(bare, X, "90%", loss_reserve="8KiB", **EASY)
    bare(X).sum().backward()
    expected = [p.grad.clone() for p in bare.parameters()]
    bare.zero_grad(set_to_none=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with torch.autograd.detect_anomaly():
            wrapped(X).sum().backward()
    assert all(torch.equal(p.grad, grad) for p, grad in zip(bare.parameters(), expected, strict=True))


def block(rows=64):
    torch.manual_seed(0)
    return nn.Sequential(*(layer for _ in range(4) for layer in (nn.Linear(16, 16), nn.Tanh()))), X[:rows]


def test_a_wrapped_module_says_what_it_planned(tmp_path):
    pytest.importorskip("matplotlib")
    module, x = block()
    wrapped = remat.exec.wrap(module, x, "90%", loss_reserve="8KiB", **EASY)
    wrapped(x[:32]).sum().backward()
    assert wrapped.remat.report() == remat.exec.report(wrapped) and "budget" in str(wrapped.remat)
    assert len(wrapped.remat.plans) == 2 and wrapped.remat.plans[0] != wrapped.remat.plans[1]
    wrapped.remat.draw(tmp_path / "memory.png")
    assert (tmp_path / "memory.png").read_bytes()[:4] == b"\x89PNG"
    wrapped.remat.save(tmp_path / "plan.json")
    assert len(remat.exec.load_plan(tmp_path / "plan.json").plans) == 2
    assert wrapped.remat.fallbacks == ()
    with torch.no_grad():
        wrapped(x)
    assert wrapped.remat.fallbacks == ("no gradients are recorded (torch.no_grad)",)


def test_it_says_why_a_module_runs_bare():
    class Counting(nn.Linear):
        calls = 0

        def forward(self, x):
            self.calls += 1
            return super().forward(x).sum()

    wrapped = remat.exec.wrap(Counting(16, 16), budget="90%", on_uncapturable="bare", **EASY)
    with pytest.warns(RematWarning):
        wrapped(X)
    (reason,) = wrapped.remat.fallbacks
    assert reason.startswith("X-STATE")


def test_a_submodule_of_that_name_stays():
    class Named(nn.Module):
        def __init__(self):
            super().__init__()
            self.remat = nn.Linear(16, 16)

        def forward(self, x):
            return self.remat(x).sum()

    model = Named()
    wrapped = remat.exec.wrap(model, X, "100%", **EASY)
    wrapped(X).backward()
    assert wrapped.remat is model.remat
