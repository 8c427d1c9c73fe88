"""Kernels whose shape functions refuse what they do: captured, exact, and costed on inputs that make them work."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import remat
from remat.exec._torch.shape_functions import results_of

CASES = [
    ((8, 16), (4, 16, 32), 8), ((4, 8, 16), (16, 32), 32), ((8, 16), (16, 32), 16), ((4, 8, 16), (4, 16, 32), None),
]  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize(("left", "right", "reach"), CASES)
def test_products_of_groups_have_the_shapes_of_the_kernel(left, right, reach, dtype):
    grouped = torch.ops.aten._grouped_mm.default
    offs = None if reach is None else torch.tensor([reach * (i + 1) // 4 for i in range(4)], dtype=torch.int32)
    args = (torch.randn(left, dtype=dtype), torch.randn(right, dtype=dtype), offs)
    real, said = grouped(*args), results_of(grouped, args, {})
    assert (said.shape, said.stride(), said.dtype) == (real.shape, real.stride(), real.dtype)


class Speech(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(8, 48), nn.GELU(), nn.Dropout(0.1), nn.Linear(48, 48), nn.GELU(), nn.Linear(48, 12)
        )
        self.loss = nn.CTCLoss(zero_infinity=True)

    def forward(self, x, targets, input_lengths, target_lengths):
        return self.loss(self.net(x).log_softmax(-1), targets, input_lengths, target_lengths)


class Experts(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate, self.norm = nn.Linear(16, 4), nn.LayerNorm(32)
        self.weight = nn.Parameter(torch.randn(4, 16, 32) / 4)

    def forward(self, x):
        expert = self.gate(x).argmax(-1)
        order = expert.argsort()
        offs = torch.histc(expert.float(), 4, 0, 3).cumsum(0).to(torch.int32)
        y = nn.functional.grouped_mm(x[order] * self.gate(x).softmax(-1).amax(-1)[order, None], self.weight, offs=offs)
        return self.norm(nn.functional.gelu(y)).square().mean()


def made(kind):
    torch.manual_seed(1)
    return kind()


def calls(kind):
    torch.manual_seed(2)
    if kind is Experts:
        return [(torch.randn(64, 16),) for _ in range(3)]
    x, targets, full = torch.randn(30, 4, 8), torch.randint(1, 12, (4, 7)), torch.full((4,), 30)
    lengths = ([7, 3, 2, 5], [1, 7, 2, 2], [4, 3, 2, 4])
    return [(x, targets, full, torch.tensor(each)) for each in lengths]


@pytest.mark.parametrize("kind", [Speech, Experts])
def test_their_models_are_planned_and_exact(kind):
    bare, planned = made(kind), remat.wrap(made(kind), budget="70%")
    for seed, args in enumerate(calls(kind)):
        results = []
        for module in (bare, planned):
            module.zero_grad(set_to_none=True)
            torch.manual_seed(seed)
            loss = module(*args)
            loss.backward()
            results.append((loss.detach(), [parameter.grad for parameter in module.parameters()]))
        assert torch.equal(results[0][0], results[1][0])
        assert all(map(torch.equal, results[0][1], results[1][1]))
    report = remat.exec.report(planned)
    planned.zero_grad(set_to_none=True)
    assert remat.exec.measure_step(lambda: planned(*args).backward()).peak <= report.budget
    # the third CTC call has a shorter longest target, which sizes what the loss keeps
    assert report.plans == (2 if kind is Speech else 1)
