"""What `make test-cuda` prints, as tests: skipped where there is no CUDA device."""

import pytest
import torch
from torch import nn

import remat.exec
from remat.zoo import cases
from tests.cuda.__main__ import attempt, exactness, furthest, peak, repeatable, steps
from tests.exec.copying import CopyAll
from tests.exec.support import SMALL

pytestmark = pytest.mark.cuda


@pytest.fixture(autouse=True, scope="module")
def same_algorithms():
    repeatable()


@pytest.mark.parametrize("budget", ["100%", "70%"])
@pytest.mark.parametrize("case", cases("small"), ids=lambda case: case.name)
def test_three_steps_are_those_of_the_bare_module(case, budget):
    row = attempt(exactness, case, budget)
    assert row["good"], row


@pytest.mark.parametrize("budget", ["100%", "80%", "65%"])
@pytest.mark.parametrize("case", cases("medium"), ids=lambda case: case.name)
def test_the_peak_keeps_to_the_budget_and_the_prediction(case, budget):
    row = attempt(peak, case, budget)
    assert row["good"], row


@pytest.mark.parametrize("budget", ["80%", "60%"])
def test_copies_to_the_host_change_nothing_and_keep_to_the_budget(budget):
    """Also what `TORCH_CUDA_SANITIZER=1` is to watch."""
    case = SMALL["mlp"]
    runs = [steps(*case.instantiate(torch.float64, "cuda")) for _ in range(2)]
    module, sample = case.instantiate(torch.float64, "cuda")
    wrapped = remat.exec.wrap(module, sample, budget, offload=True, solver=CopyAll(), on_uncapturable="raise")
    assert furthest(runs[0], steps(wrapped, sample)) <= 10 * furthest(*runs)
    report = remat.exec.report(wrapped)
    assert report.copied.to_host == report.copied.to_device > 0
    assert report.measured_peak <= report.budget


class Recurrent(nn.Module):
    """A recurrent net of cuDNN with the loss inside."""

    def __init__(self, kind):
        super().__init__()
        self.net, self.head = kind(16, 32, num_layers=2, batch_first=True), nn.Linear(32, 1)

    def forward(self, x):
        return self.head(self.net(x)[0]).square().mean()


def twins(make):
    """Two modules with the same weights."""
    torch.manual_seed(0)
    bare, module = make().cuda(), make().cuda()
    module.load_state_dict(bare.state_dict())
    return bare, module


def assert_trains_the_same(make):
    (bare, module), x = twins(make), torch.randn(8, 20, 16, device="cuda")
    wrapped = remat.exec.wrap(module, x, "100%", on_uncapturable="raise")
    assert furthest(steps(bare, (x,)), steps(wrapped, (x,))) == 0.0
    assert remat.exec.report(wrapped).ran == "plan"


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_recurrent_nets_of_cudnn_train_the_same(kind):
    assert_trains_the_same(lambda: Recurrent(kind))


class Autocast(nn.Module):
    """A module under autocast; its loss times a factor, so that gradients are no subnormal numbers of half precision."""

    def __init__(self, module, dtype):
        super().__init__()
        self.module, self.dtype = module, dtype

    def forward(self, x):
        with torch.autocast("cuda", self.dtype):
            return self.module(x) * 1024


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_recurrent_nets_of_cudnn_under_autocast_train_the_same(kind, dtype):
    assert_trains_the_same(lambda: Autocast(Recurrent(kind), dtype))


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_recurrent_nets_of_cudnn_train_the_same_under_dtr(kind):
    (bare, module), x = twins(lambda: Recurrent(kind)), torch.randn(64, 200, 16, device="cuda")
    bare(x).backward()
    peak = remat.exec.measure_step(lambda: bare(x).backward(), device="cuda").peak
    # twice: what cuDNN keeps for its backward is copied before, since that writes there
    wrapped = remat.exec.dtr(module, 2 * peak)
    assert furthest(steps(bare, (x,)), steps(wrapped, (x,))) == 0.0
