"""Parameters that lie in one block of memory, as shards, fused optimizers and cuDNN have them: each has its own gradient."""

import copy

import pytest
import torch
from torch import nn

import remat.exec
from tests.exec.support import LIGHT, differences, train


class Chain(nn.Module):
    """Products with square matrices of one size, the first used twice under two names, and a buffer beside them."""

    def __init__(self):
        super().__init__()
        self.matrices = nn.ParameterList(nn.Parameter(torch.randn(8, 8)) for _ in range(4))
        self.biases = nn.ParameterList(nn.Parameter(torch.randn(8)) for _ in range(4))
        self.first = self.matrices[0]
        self.register_buffer("scale", torch.rand(8))

    def forward(self, x):
        for matrix, bias in zip(self.matrices, self.biases, strict=True):
            x = torch.tanh(x @ matrix + bias) * self.scale
        return (x @ self.first).square().sum()


def flattened(module):
    """All parameters and buffers one behind the other in one block."""
    tensors = [*module.parameters(), *module.buffers()]
    block, at = torch.cat([tensor.detach().flatten() for tensor in tensors]), 0
    for tensor in tensors:
        tensor.data = block[at : at + tensor.numel()].view(tensor.shape)
        at += tensor.numel()
    return module


@pytest.mark.parametrize("tracer", ["log", "joint"])
@pytest.mark.parametrize("budget", ["100%", "70%"])
def test_every_one_gets_the_gradient_of_eager(budget, tracer):
    torch.manual_seed(0)
    bare, x = Chain().double(), torch.randn(64, 8, dtype=torch.float64)
    module = flattened(copy.deepcopy(bare))
    assert len(remat.exec.capture(module, (x,), tracer=tracer).program.params) == 8
    wrapped = remat.exec.wrap(module, x, budget, solver=LIGHT, tracer=tracer, on_uncapturable="raise")
    assert differences(train(bare, (x,)), train(wrapped, (x,)), ("matrices.0", "first")) == []


def test_parameters_that_look_at_the_same_memory_have_gradients_of_their_own():
    torch.manual_seed(0)
    bare = Chain().double()
    module = copy.deepcopy(bare)
    for net in (bare, module):
        net.matrices[2] = nn.Parameter(net.matrices[1].detach())
    x = torch.randn(64, 8, dtype=torch.float64)
    wrapped = remat.exec.wrap(module, x, "100%", solver=LIGHT, on_uncapturable="raise")
    assert differences(train(bare, (x,)), train(wrapped, (x,)), ("matrices.0", "first")) == []


@pytest.mark.parametrize("tracer", ["log", "joint"])
def test_an_optimizer_in_the_backward_writes_no_shard_that_is_still_read(tracer):
    torch.manual_seed(0)
    x, steps = torch.randn(64, 16, dtype=torch.float64), []
    layers = [layer for _ in range(4) for layer in (nn.Linear(16, 16), nn.Tanh())]
    bare = nn.Sequential(*layers).double()
    module = flattened(copy.deepcopy(bare))
    wrapped = remat.exec.wrap(
        module, x, "80%", solver=LIGHT, tracer=tracer, on_infeasible="best", on_uncapturable="raise"
    )
    for net in (bare, module):
        for parameter in net.parameters():
            parameter.register_post_accumulate_grad_hook(descended)
    for net in (bare, wrapped):
        for _ in range(3):
            net(x).square().mean().backward()
        steps.append([parameter.detach().clone() for parameter in net.parameters()])
    assert all(map(torch.equal, *steps))


@pytest.mark.parametrize("written", [1, 2, 3])
def test_what_dtr_computes_again_from_a_shard_that_was_written_is_refused(written):
    torch.manual_seed(0)
    layers = [layer for _ in range(4) for layer in (nn.Linear(16, 16), nn.Tanh())]
    module, x = flattened(nn.Sequential(*layers).double()), torch.randn(64, 16, dtype=torch.float64)
    wrapped = remat.exec.dtr(module, 64 << 10)
    wrapped(x).square().mean().backward()
    loss = wrapped(x).square().mean()
    with torch.no_grad():
        module[2 * written].weight.mul_(2)
    with pytest.raises(RuntimeError, match=r"X-WRITE|modified by an inplace"):
        loss.backward()


def descended(parameter):
    with torch.no_grad():
        parameter.sub_(parameter.grad, alpha=0.1)
    parameter.grad = None
