"""Batch norms as cuDNN has them: a stand-in of its kernels on the CPU; the kernels themselves are run by `make test-cuda`."""

import copy

import pytest
import torch
from torch import nn

import remat.exec
from tests.exec.support import LIGHT, differences, train

aten = torch.ops.aten


@pytest.fixture(autouse=True, scope="module")
def kernels():
    """cuDNN's two kernels by those of torch, on the CPU."""
    library = torch.library.Library("aten", "IMPL")

    def forward(x, weight, bias, mean, var, training, momentum, eps):
        results = aten.native_batch_norm.default(x, weight, bias, mean, var, training, momentum, eps)
        return (*results, torch.full((1,), 7 if training else 0, dtype=torch.uint8))

    def backward(x, grad, weight, mean, var, batch_mean, batch_deviation, eps, reserve):
        assert reserve.numel() == 1 and mean is None and var is None
        return aten.native_batch_norm_backward.default(
            grad, x, weight, None, None, batch_mean, batch_deviation, True, eps, [True, True, True]
        )

    library.impl("cudnn_batch_norm", forward, "CPU")
    library.impl("cudnn_batch_norm_backward", backward, "CPU")
    ours = torch.library.Library("remat", "IMPL")
    ours.impl("cudnn_batch_norm", _run, "CPU")
    yield
    library._destroy()
    ours._destroy()


def _run(*args):
    from remat.exec._torch import cudnn_norm

    return cudnn_norm._run(*args)


class ByCudnn(nn.BatchNorm2d):
    """A batch norm that calls cuDNN's kernel."""

    def forward(self, x):
        if self.training:
            self.num_batches_tracked.add_(1)
        mean, var = self.running_mean, self.running_var
        return aten.cudnn_batch_norm(x, self.weight, self.bias, mean, var, self.training, self.momentum, self.eps)[0]


class Net(nn.Module):
    """Convolutions and batch norms, with the loss inside."""

    def __init__(self, norm, layers=3):
        super().__init__()
        self.layers = nn.ModuleList(nn.Conv2d(4, 4, 3, padding=1) for _ in range(layers))
        self.norms = nn.ModuleList(norm(4) for _ in range(layers))

    def forward(self, x):
        for layer, norm in zip(self.layers, self.norms, strict=True):
            x = torch.tanh(norm(layer(x)))
        return x.square().mean()


def nets(**how):
    torch.manual_seed(0)
    bare, x = Net(nn.BatchNorm2d, **how).double(), torch.randn(5, 4, 6, 6, dtype=torch.float64)
    ours = Net(ByCudnn, **how).double()
    ours.load_state_dict(copy.deepcopy(bare.state_dict()))
    return bare, ours, x


@pytest.mark.parametrize("tracer", ["log", "joint"])
@pytest.mark.parametrize("budget", ["100%", "88%"])
def test_steps_and_statistics_are_those_of_eager(budget, tracer):
    bare, ours, x = nets()
    captured = remat.exec.capture(ours, (x,), tracer=tracer)
    targets = [str(op.target) for op in captured.program.ops]
    assert (
        targets.count("remat.cudnn_batch_norm.default") == targets.count("aten.cudnn_batch_norm_backward.default") == 3
    )
    assert "aten.copy.default" not in targets
    wrapped = remat.exec.wrap(ours, x, budget, solver=LIGHT, on_uncapturable="raise")
    assert differences(train(bare, (x,)), train(wrapped, (x,))) == []
    report = remat.exec.report(wrapped)
    assert (report.reruns > 0) == (budget != "100%")
    assert report.measured_peak <= report.budget


def test_without_training_nothing_is_written():
    bare, ours, x = nets()
    train(bare, (x,))
    ours.load_state_dict(copy.deepcopy(bare.state_dict()))
    bare.eval(), ours.eval()
    wrapped = remat.exec.wrap(ours, x, "100%", solver=LIGHT, on_uncapturable="raise")
    x.requires_grad_()
    assert differences(train(bare, (x,)), train(wrapped, (x,))) == []
    assert "remat.cudnn_batch_norm.default" in {str(op.target) for op in remat.exec.capture(ours, (x,)).program.ops}
