"""Plans of dynamo's graphs, whose parameters are inputs, and steps in CUDA graphs; skipped where there is no CUDA device."""

import pytest
import torch
from torch import nn

import remat.exec
from remat.exec._run.runtime import StepError
from remat.integrations.compile_backend import backend, regions
from remat.zoo import GPT2
from tests.cuda.__main__ import furthest, repeatable, step, steps
from tests.cuda.test_cuda import twins

pytestmark = pytest.mark.cuda


@pytest.fixture(autouse=True)
def afresh():
    repeatable()
    torch.compiler.reset()


def small():
    return GPT2(layers=4, width=256, heads=8, context=128)


TOKENS = (torch.arange(2 * 8 * 128) % 251).reshape(2, 8, 128)


def sample():
    return tuple(TOKENS.cuda())


@pytest.mark.parametrize(("inner", "off"), [("aot_eager", 0.0), ("inductor", 1e-3)])
def test_the_backend_plans_for_the_device_of_the_inputs(inner, off):
    """With dropout, which is drawn again from the device's generator."""
    bare, module = twins(small)
    compiled = torch.compile(module, backend=backend, options={"budget": "50%", "inner": inner})
    assert furthest(steps(bare, sample()), steps_through(module, compiled)) <= off
    region = regions()[-1]
    report = remat.exec.report(region)
    assert report.ran == "plan" and report.reruns
    for parameter in module.parameters():
        parameter.grad = None
    x = sample()
    assert remat.exec.measure_step(lambda: step(compiled, x), device="cuda").peak <= report.budget


def steps_through(module, compiled):
    """As `steps`, with the module's parameters, and the compiled module called."""

    class Through(nn.Module):
        def __init__(self):
            super().__init__()
            self.module = module

        def forward(self, *inputs):
            return compiled(*inputs)

    return steps(Through(), sample())


class Net(nn.Module):
    """Convolutions and batch norms, with dropout or without, and the loss."""

    def __init__(self, dropout):
        super().__init__()
        parts = (
            (nn.Conv2d(16, 16, 3, padding=1), nn.BatchNorm2d(16), nn.GELU(), nn.Dropout(dropout)) for _ in range(6)
        )
        self.body = nn.Sequential(
            *(part for layer in parts for part in layer if dropout or type(part) is not nn.Dropout)
        )

    def forward(self, x):
        return self.body(x).square().mean()


def recorded(module, x):
    """A graph of a step, after three steps on another stream, as torch asks; the weights are as they were."""
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            step(module, (x,))
    torch.cuda.current_stream().wait_stream(stream)
    module.load_state_dict(before)
    for parameter in module.parameters():
        parameter.grad = None
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss = module(x)
        loss.backward()
    return graph, loss


@pytest.mark.parametrize("budget", ["100%", "50%"])
def test_a_cuda_graph_of_a_step_repeats_it(budget):
    (bare, module), x = twins(lambda: Net(0.0)), torch.randn(16, 16, 32, 32, device="cuda")
    wrapped = remat.exec.wrap(module, x, budget, on_uncapturable="raise")
    graph, loss = recorded(wrapped, x)
    for _ in range(3):
        x.copy_(torch.randn_like(x))
        graph.replay()
        torch.cuda.synchronize()
        assert torch.equal(loss, step(bare, (x,)))
        for mine, theirs in zip(wrapped.parameters(), bare.parameters(), strict=True):
            assert torch.equal(mine.grad, theirs.grad)
        for mine, theirs in zip(wrapped.buffers(), bare.buffers(), strict=True):
            assert torch.equal(mine, theirs)


def test_a_graph_of_draws_that_run_again_is_refused_and_the_module_is_usable():
    module, x = Net(0.2).cuda(), torch.randn(16, 16, 32, 32, device="cuda")
    wrapped = remat.exec.wrap(module, x, "35%", on_uncapturable="raise")
    with pytest.raises(StepError, match=r"X-GRAPH.*draws run again"):
        recorded(wrapped, x)
    torch.cuda.synchronize()
    assert torch.isfinite(step(wrapped, (x,)))


def test_a_step_without_a_plan_is_refused_in_a_graph():
    wrapped = remat.exec.wrap(Net(0.0).cuda(), None, "60%", on_uncapturable="raise")
    x = torch.randn(16, 16, 32, 32, device="cuda")
    with pytest.raises(StepError, match=r"X-GRAPH.*no plan"), torch.cuda.graph(torch.cuda.CUDAGraph()):
        wrapped(x)
    assert torch.isfinite(step(wrapped, (x,)))
