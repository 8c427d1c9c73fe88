"""Steps of a small module under plain torch and under DTR, at budgets that evict: the same bits."""

import copy

import torch
from torch import nn

import remat.exec
from remat.errors import Infeasible
from tests.exec.support import clone

X = torch.randn(64, 24, generator=torch.Generator().manual_seed(0))


class Body(nn.Module):
    """Layers with something in between."""

    def __init__(self, between=lambda module, x: x, layers=4):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(24, 24) for _ in range(layers))
        self.between = between
        self.register_buffer("average", torch.zeros(24))
        self.register_buffer("count", torch.zeros((), dtype=torch.long))
        self.kept = None

    def forward(self, x):
        for layer in self.layers:
            x = self.between(self, torch.tanh(layer(x)))
        return x.square().mean()


def step(module, x):
    loss = module(x)
    loss.backward()
    return loss


def trained(module, run=step, steps=2, x=X):
    torch.manual_seed(1)
    traces = []
    for _ in range(steps):
        given = x.clone().requires_grad_()
        loss = run(module, given)
        tensors = [loss, given.grad, *(p.grad for p in module.parameters()), *module.buffers()]
        assert {type(tensor) for tensor in tensors if tensor is not None} <= {torch.Tensor}
        traces.append([clone(tensor) for tensor in tensors] + [torch.get_rng_state()])
    return traces


def both(build, run=step, x=X, recomputes=True):
    """Two steps (gradients accumulate) under plain torch and under DTR at some budgets: the same bits, with recomputation."""
    torch.manual_seed(0)
    module = build()
    expected = trained(copy.deepcopy(module), run, x=x)
    wrapped = remat.exec.dtr(copy.deepcopy(module), "1MiB")
    traces, remats = trained(wrapped, run, x=x), 0
    peak = remat.exec.dtr_report(wrapped).peak
    for share in (None, 90, 80, 70, 60):
        if share is not None:
            wrapped = remat.exec.dtr(copy.deepcopy(module), peak * share // 100)
            try:
                traces = trained(wrapped, run, x=x)
            except Infeasible:
                break
        for mine, theirs in zip(traces, expected, strict=True):
            assert all(
                (a is None) == (b is None) and (a is None or torch.equal(a, b))
                for a, b in zip(mine, theirs, strict=True)
            )
        remats += remat.exec.dtr_report(wrapped).rematerializations
    assert remats > 0 or not recomputes
    return wrapped
