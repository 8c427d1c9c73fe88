"""Debugging as users expect: anomalies are named, profiles have scopes, and `module.remat` says what was planned."""

import copy
import re
import warnings
from unittest import mock

import pytest
import torch
from torch import nn

import remat.exec
from remat.exec import RematWarning, StepError
from remat.exec._copy.copies import Copier
from remat.exec._copy.cpu import CpuDevice
from remat.exec._run import lowering
from remat.exec._run.scopes import place_of, scoped_source
from tests.exec.copying import CopyRig, copied
from tests.exec.support import LIGHT, Rig, evicting

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


class Masked(nn.Module):
    def forward(self, x):
        return torch.where(x > 1, torch.sqrt(x - 1), x)  # nan that is masked in the forward, and not in the backward


def test_an_anomaly_in_what_is_recomputed_says_so():
    rig = Rig(nn.Sequential(nn.Linear(16, 16), Masked()), (X,), cost="estimate")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with (
            torch.autograd.detect_anomaly(),
            pytest.raises(StepError, match=r"aten\.sqrt\..* in 1, recomputed \(`sqrt = "),
        ):
            rig.forward(evicting(rig.graph))(X)[0].sum().backward()


# -- scopes for profilers ------------------------------------------------------------------------------------------------


def profiled_step(module, x):
    """Gradients of a step under a profiler, and the operations of its plan, each with the name of the scope it ran in."""
    module.zero_grad(set_to_none=True)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        module(x).sum().backward()
    scopes = {event.id: event.name for event in profile.events() if event.name.startswith("remat: ")}
    inside = [
        (scopes[event.cpu_parent.id], event.name)
        for event in profile.events()
        if event.cpu_parent is not None and event.cpu_parent.id in scopes and event.name.startswith("aten::")
    ]
    return [p.grad.clone() for p in module.parameters()], inside


def test_a_profile_names_the_module_of_each_operation_and_what_is_recomputed():
    module, x = block()
    wrapped = remat.exec.wrap(module, x, "90%", loss_reserve="8KiB", **EASY)
    wrapped(x).sum().backward()
    report = remat.exec.report(wrapped)
    expected = [p.grad.clone() for p in module.parameters()]
    grads, inside = profiled_step(wrapped, x)
    assert all(torch.equal(*pair) for pair in zip(grads, expected, strict=True)) and report.reruns > 0
    for at in range(0, 8, 2):
        assert (f"remat: {at}, forward", "aten::addmm") in inside
        assert (f"remat: {at}, backward", "aten::mm") in inside
        assert (f"remat: {at + 1}, forward", "aten::tanh") in inside
    named = {name for name, _ in inside}
    assert named <= {f"remat: {at}, {kind}" for at in range(8) for kind in ("forward", "backward", "recomputed")}
    again = [name for name, op in inside if name.endswith(", recomputed") and op in ("aten::addmm", "aten::tanh")]
    assert len(again) == report.reruns
    heavy = [op for _, op in inside if op in ("aten::addmm", "aten::mm", "aten::tanh", "aten::tanh_backward")]
    runs = [line for line in report.source.splitlines() if re.search(r"= aten_(addmm|mm|tanh|tanh_backward)_", line)]
    assert len(heavy) == len(runs)  # none outside a scope


def test_without_a_profiler_there_are_no_scopes():
    module, x = block()
    wrapped = remat.exec.wrap(module, x, "90%", loss_reserve="8KiB", **EASY)
    with mock.patch.object(lowering, "with_scopes", side_effect=AssertionError):
        wrapped(x).sum().backward()
        remat.exec.measure_step(lambda: wrapped(x).sum().backward())  # our own recording is no profiler of the user's
        with torch.profiler.profile(), pytest.raises(AssertionError):
            wrapped(x)


def test_a_step_with_copies_has_scopes_and_the_same_gradients():
    bare, x = block()
    rig = CopyRig(copy.deepcopy(bare), (x,), cost="estimate")
    rig.copier = Copier.on(CpuDevice())
    forward = rig.forward(copied(rig.graph, chosen=lambda name: True))
    bare(x).sum().backward()
    rig.module.forward = lambda x: forward(x)[0]
    grads, inside = profiled_step(rig.module, x)
    assert all(torch.equal(grad, p.grad) for grad, p in zip(grads, bare.parameters(), strict=True))
    assert rig.copier.last.copies > 0 and ("remat: 6, backward", "aten::mm") in inside


def test_an_anomaly_under_a_profiler_is_named_as_without():
    wrapped = remat.exec.wrap(Net(), X, "90%", **EASY)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with torch.profiler.profile(), torch.autograd.detect_anomaly(), pytest.raises(StepError, match=r"in root.*`"):
            wrapped(X).backward()


def test_the_text_with_scopes_has_every_line_of_the_text_without():
    source = remat.exec.report(remat.exec.wrap(Net(), X, "90%", **EASY)).source
    lines = [line.strip() for line in source.splitlines()]
    scoped = [line.strip() for line in scoped_source(source).splitlines()]
    added = [line for line in scoped if line == "pass" or line.startswith("with _scope(")]
    assert [line for line in scoped if line not in added] == lines
    assert len(added) == 2 * sum(place_of(line) is not None for line in lines) > 0
    assert "with _scope('remat: the module itself, forward'):" in scoped


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
