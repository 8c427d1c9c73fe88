"""Steps that a CUDA graph records, with a stand-in for torch's answer whether one does; `make test-cuda` records real ones."""

import pytest
import torch
from torch import nn

import remat.exec
from remat.exec._module import making
from remat.exec._run import runtime
from remat.exec._run.runtime import StepError
from remat.ir import Link
from tests.exec.copying import CopyAll
from tests.exec.support import LIGHT


class Net(nn.Module):
    """Layers with dropout, or without, and the loss."""

    def __init__(self, dropout):
        super().__init__()
        parts = [(nn.Linear(64, 64), nn.GELU(), *([nn.Dropout(0.2)] if dropout else [])) for _ in range(4)]
        self.body = nn.Sequential(*(part for layer in parts for part in layer))

    def forward(self, x):
        return self.body(x).square().mean()


@pytest.fixture
def recording(monkeypatch):
    """Has the library believe from now on that a graph records."""

    def begin():
        for module in (making, runtime):
            monkeypatch.setattr(module, "in_cuda_graph", lambda: True)

    return begin


X = torch.randn(256, 64, generator=torch.Generator().manual_seed(0))


def test_a_plan_runs_unmetered(recording):
    wrapped = remat.exec.wrap(Net(dropout=False), X, budget="60%", solver=LIGHT)
    wrapped(X).backward()
    counted = len(wrapped._remat.last.meter.times)
    grads = [parameter.grad.clone() for parameter in wrapped.parameters()]
    wrapped.zero_grad()
    recording()
    wrapped(X).backward()
    assert all(torch.equal(mine.grad, before) for mine, before in zip(wrapped.parameters(), grads, strict=True))
    assert remat.exec.report(wrapped).ran == "plan" and len(wrapped._remat.last.meter.times) == counted


def test_draws_that_run_again_are_refused_before_anything_runs(recording):
    wrapped = remat.exec.wrap(Net(dropout=True), X, budget="35%", solver=LIGHT)
    wrapped(X)
    recording()
    before = torch.get_rng_state()
    with pytest.raises(StepError, match=r"X-GRAPH.*draws run again.*not recomputed"):
        wrapped(X)
    assert torch.equal(torch.get_rng_state(), before)


def test_draws_that_run_once_are_recorded(recording):
    wrapped = remat.exec.wrap(Net(dropout=True), X, budget="100%", solver=LIGHT)
    wrapped(X).backward()
    recording()
    wrapped(X).backward()


def test_copies_are_refused(recording):
    link = Link.symmetric(gb_per_s=1000)
    wrapped = remat.exec.wrap(Net(dropout=False), X, budget="60%", offload=link, solver=CopyAll())
    wrapped(X).backward()
    recording()
    with pytest.raises(StepError, match=r"X-GRAPH.*copies.*offload"):
        wrapped(X)


def test_planning_is_refused(recording):
    wrapped = remat.exec.wrap(Net(dropout=False), X, budget="60%", solver=LIGHT)
    recording()
    with pytest.raises(StepError, match=r"X-GRAPH.*no plan yet.*three steps"):
        wrapped(X[:128])
