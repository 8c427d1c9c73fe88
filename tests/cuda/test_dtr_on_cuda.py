"""DTR on a CUDA device: what plain torch computes, within the budget, on steps that differ from call to call."""

import pytest
import torch

import remat.exec
from tests.cuda.__main__ import furthest, repeatable
from tests.exec.dynamic_models import made

pytestmark = pytest.mark.cuda


@pytest.fixture(autouse=True, scope="module")
def same_algorithms():
    repeatable()


def on_cuda(given):
    if isinstance(given, torch.Tensor):
        return given.cuda()
    return type(given)(map(on_cuda, given)) if isinstance(given, (tuple, list)) else given


def train(module, sample, steps=3):
    """What the steps leave, flat, and the peaks by the allocator."""
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
        gradients = [p.grad for p in module.parameters() if p.grad is not None]
        traces += [tensor.detach().clone() for tensor in (*losses, *gradients, *module.buffers())]
        traces.append(torch.cuda.get_rng_state())
        optimizer.step()
    return traces, peaks


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
