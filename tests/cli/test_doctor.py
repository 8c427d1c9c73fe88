"""`remat doctor`: what is installed works, and what does not repeat is named."""

import pytest
import torch

from remat.algorithms import HIlp, StoreAll, least_time
from remat.algorithms._milp.backends import Cvxpy, Highs
from remat.algorithms._whole.exhaustive import Exhaustive
from remat.cli import doctor, main
from remat.errors import BackendMissing

MODELS = """
import torch
from torch import nn

calls = iter(range(1 << 30))

@torch.library.custom_op("remat_doctor::wobble", mutates_args=())
def wobble(x: torch.Tensor) -> torch.Tensor:
    return x + next(calls)

@wobble.register_fake
def _(x):
    return torch.empty_like(x)

class Net(nn.Module):
    def __init__(self, wobbling):
        super().__init__()
        self.inner, self.drop, self.wobbling = nn.Linear(4, 4), nn.Dropout(0.5), wobbling
    def forward(self, x):
        y = self.drop(self.inner(x))
        return (y * wobble(x) * wobble(x) if self.wobbling else y).sum()

def net(wobbling=False):
    return Net(wobbling), torch.ones(2, 4)
"""


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    (tmp_path / "doctored_models.py").write_text(MODELS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)


def test_the_tiny_problem_needs_a_rerun_and_its_least_time_is_known():
    problem = doctor.tiny()
    best = Exhaustive().solve(problem)
    assert best.cost.time == best.lower == doctor.LEAST > least_time(problem.graph)
    assert StoreAll().solve(problem).schedule is None


def test_an_installation_that_works(capsys):
    assert main(["doctor"]) == 0
    out = capsys.readouterr().out
    assert f"torch {torch.__version__}" in out and "HiGHS: works (13 ns" in out and "kernels    " in out


def test_a_back_end_that_is_missing_is_no_failure_and_one_that_lies_is(capsys, monkeypatch):
    def missing(_self):
        raise BackendMissing("A-BACKEND", "the solver is not installed.", fix="pip install it")

    monkeypatch.setattr(Cvxpy, "check", missing)
    monkeypatch.setattr(doctor, "kernels", lambda: ())
    assert main(["doctor"]) == 0
    assert "SCIP: not installed (pip install it)" in capsys.readouterr().out

    def broken(*_, **__):
        raise RuntimeError("no licence")

    monkeypatch.setattr(Highs, "solve", broken)
    assert main(["doctor"]) == 1
    assert "HiGHS: failed: " in capsys.readouterr().out
    assert doctor.verdict(StoreAll()).startswith("failed: None ns where 13")
    assert doctor.verdict(HIlp(warm_start=False)).startswith("failed: ")


def test_an_operation_that_does_not_repeat_is_named(capsys, monkeypatch):
    monkeypatch.setattr(doctor, "back_ends", lambda: ())
    state = torch.get_rng_state()
    assert main(["doctor", "doctored_models:net"]) == 0
    assert "repeats    all of them" in capsys.readouterr().out
    assert main(["doctor", "doctored_models:net", "--set", "wobbling=True"]) == 1
    out = capsys.readouterr().out
    assert "differs    remat_doctor.wobble.default in the model (forward), and 1 more" in out and "repeats" not in out
    assert torch.equal(torch.get_rng_state(), state)
