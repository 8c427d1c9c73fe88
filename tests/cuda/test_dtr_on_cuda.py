"""DTR on a CUDA device: what plain torch computes, within the budget, on steps that differ from call to call."""

import pytest
import torch
from torch import nn

import remat.exec
from tests.cuda.__main__ import repeatable
from tests.exec.dynamic_models import made
from tests.exec.support import clone

pytestmark = pytest.mark.cuda


@pytest.fixture(autouse=True, scope="module")
def same_algorithms():
    repeatable()


def on_cuda(given):
    if isinstance(given, torch.Tensor):
        return given.cuda()
    return type(given)(map(on_cuda, given)) if isinstance(given, (tuple, list)) else given


def train(module, sample, steps=3):
    """What each step leaves, and the peaks by the allocator."""
    torch.manual_seed(0)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.01)
    traces, peaks = [], []
    for _ in range(steps):
        call, losses = on_cuda(sample()), []
        module.zero_grad()

        def step(call=call, losses=losses):
            losses.append(module(*call))
            losses[0].backward()

        peaks.append(remat.exec.measure_step(step, device="cuda").peak)
        gradients = [p.grad for p in module.parameters()]
        traces.append([clone(t) for t in (*losses, *gradients, *module.buffers())] + [torch.cuda.get_rng_state()])
        optimizer.step()
    return traces, peaks


def furthest(first, second):
    """The largest relative difference; 0.0: all the same bits."""
    worst = 0.0
    for one, other in zip(first, second, strict=True):
        for x, y in zip(one, other, strict=True):
            assert (x is None) == (y is None)
            if x is not None and not torch.equal(x, y):
                worst = max(
                    worst, float((x.double() - y.double()).abs().max() / x.double().abs().max().clamp_min(1e-30))
                )
    return worst


@pytest.mark.parametrize("share", [120, 95])
@pytest.mark.parametrize("name", ["mlp", "gpt2", "lstm", "tree-lstm", "experts", "resnet", "detector"])
def test_steps_are_those_of_plain_torch_within_the_budget(name, share):
    runs, peaks = [], []
    for _ in range(2):
        model, sample = made(name)
        trace, held = train(model.cuda(), sample)
        runs.append(trace)
        peaks += held
    model, sample = made(name)
    budget = max(peaks) * share // 100
    wrapped = remat.exec.dtr(model.cuda(), budget)
    traces, measured = train(wrapped, sample)
    assert furthest(runs[0], traces) <= 10 * furthest(*runs)
    assert max(measured[1:]) <= budget


class Recurrent(nn.Module):
    """A recurrent net of cuDNN with the loss inside."""

    def __init__(self, kind):
        super().__init__()
        self.net, self.head = kind(16, 32, num_layers=2, batch_first=True), nn.Linear(32, 1)

    def forward(self, x):
        return self.head(self.net(x)[0]).square().mean()


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_recurrent_nets_of_cudnn_train_the_same(kind):
    torch.manual_seed(0)
    bare, x = Recurrent(kind).cuda(), torch.randn(8, 20, 16, device="cuda")
    other = Recurrent(kind).cuda()
    other.load_state_dict(bare.state_dict())
    runs = [train(bare, lambda: (x,))[0]]
    wrapped = remat.exec.wrap(other, x, "100%", on_uncapturable="raise")
    assert furthest(runs[0], train(wrapped, lambda: (x,))[0]) == 0.0
    assert remat.exec.report(wrapped).ran == "plan"
