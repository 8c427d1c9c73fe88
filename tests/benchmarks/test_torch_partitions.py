"""PyTorch's partitions as the validator replays them: the same step, more runs and less memory the smaller their budget."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from remat.algorithms._whole.baselines import store_all_peak
from remat.exec.weightless import capture_without_weights
from remat.ir import Phase, validate

_module = pytest.importorskip(
    "tests.benchmarks.torch_partitions",
    reason="partitioners of this torch take no estimates of others",
    exc_type=ImportError,
)
partitioned, partitions = _module.partitioned, _module.partitions


class Layers(nn.Module):
    """Layers with dropout, a norm that writes its buffers, and a parameter that is used twice: its gradients are summed."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(64, 64) for _ in range(6))
        self.norm, self.dropout = nn.BatchNorm1d(64), nn.Dropout(0.1)

    def forward(self, x):
        for layer in [*self.layers, self.layers[0]]:
            x = x + self.dropout(torch.tanh(layer(x)))
        return self.norm(x).square().mean()


@pytest.fixture(scope="module")
def step():
    """The graph with folded sums, and the program without."""

    def factory():
        return Layers(), (torch.randn(512, 64),)

    return (
        capture_without_weights(factory).captured.program,
        capture_without_weights(factory, fold_sums="none").captured.program,
        capture_without_weights(factory).graph(),
    )


def test_each_budget_is_a_legal_schedule_that_runs_every_node(step):
    _, program, graph = step
    replayed = list(partitions(program, graph))
    assert {partition.budget for partition in replayed if partition.solver == "dp"} > {0.0, 0.5, 1.0}
    assert all(partition.time >= graph.time for partition in replayed)
    assert min(partition.peak for partition in replayed) < store_all_peak(graph)
    assert max(partition.time for partition in replayed) > graph.time


def test_no_more_than_the_forward_runs_again(step):
    folded, program, graph = step
    assert any(op.adds for op in folded.ops)  # sums wait for their terms
    schedule = partitioned(program, graph, 0.0, "dp")
    runs = [item.node for item in schedule.runs]
    again = {name for name in runs if runs.count(name) > 1}
    assert set(runs) == {node.name for node in graph.computes}
    assert again and all(graph.node(name).phase is Phase.FORWARD for name in again)
    assert not any(graph.node(name).run_once for name in again)
    validate(graph, schedule)
