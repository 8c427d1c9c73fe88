"""Copies between a CUDA device and the host: the bits of the bare module, whatever is copied, rerun and dropped, in any order.

Also what `TORCH_CUDA_SANITIZER=1` is to watch.
"""

import gc
import random
from functools import cache

import pytest
import torch
from torch import nn

import remat.exec
from remat.exec._copy.copies import Copier
from remat.exec._copy.cuda import CudaDevice
from remat.exec._torch.torch_private import no_modes
from remat.ir import Lane, validate
from remat.testing.walks import Walk
from tests.cuda.__main__ import repeatable
from tests.exec.copying import FAST, CopyAll, CopyRig, copied
from tests.exec.support import SMALL, FailAt, differences, loss_of, train

pytestmark = pytest.mark.cuda


@pytest.fixture(autouse=True, scope="module")
def same_algorithms():
    repeatable()


@cache
def rig_of(name):
    with no_modes():  # a sanitizer's would look into the memory of traced tensors
        return CopyRig(*SMALL[name].instantiate(torch.float64, "cuda"), cost="estimate")


def assert_same_steps(name, schedule):
    """Three steps of a schedule leave what three of the bare module do; no host buffer stays taken."""
    case, rig = SMALL[name], rig_of(name)
    rig.copier = Copier.on(CudaDevice(torch.device("cuda", torch.cuda.current_device())))
    bare, sample = case.instantiate(torch.float64, "cuda")
    rig.module, rig.sample = case.instantiate(torch.float64, "cuda")
    forward, loss = rig.forward(schedule), rig.captured.differentiable[0]
    planned = train(rig.module, rig.sample, call=lambda *given: forward(*given)[loss])
    assert differences(train(bare, sample, call=lambda *given: loss_of(bare(*given))), planned, case.tied) == []
    assert rig.copier.pool.taken == 0
    return rig.copier.last


@pytest.mark.parametrize("name", SMALL)
def test_all_that_can_be_copied(name):
    rig = rig_of(name)
    schedule = copied(rig.graph)
    cost = validate(rig.graph, schedule, None, FAST)
    counts = assert_same_steps(name, schedule)
    sizes = [rig.graph.datum(copy.what).size for copy in cost.copies if copy.lane is Lane.TO_HOST]
    assert counts.to_host == counts.to_device > 0 and counts.copies == len(cost.copies)
    assert counts.to_host <= sum(sizes)


@pytest.mark.parametrize("seed", range(1, 5))
@pytest.mark.parametrize("name", ["mlp", "resnet", "frozen", "gpt2"])
def test_copies_reruns_and_drops_in_any_order(name, seed):
    graph = rig_of(name).graph
    assert_same_steps(name, Walk(graph, random.Random(seed).randint, copies=True).schedule())


@pytest.mark.parametrize("budget", ["80%", "60%"])
@pytest.mark.parametrize("solver", [CopyAll(), None], ids=["copies alone", "the default planner"])
def test_a_wrapped_module(budget, solver):
    case = SMALL["mlp"]
    bare, sample = case.instantiate(torch.float64, "cuda")
    module, same = case.instantiate(torch.float64, "cuda")
    how = {} if solver is None else {"solver": solver}
    wrapped = remat.exec.wrap(module, same, budget, offload=True, on_uncapturable="raise", **how)
    assert differences(train(bare, sample), train(wrapped, same), case.tied) == []
    report = remat.exec.report(wrapped)
    assert report.measured_peak <= report.budget and report.ran == "plan"
    if solver is not None:
        assert report.copied.to_host == report.copied.to_device > 0


class Wrong(Exception):
    """Planted."""


class Wide(nn.Module):
    """Layers of tanh with a loss, large enough that copies take a while."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(512, 512) for _ in range(6))

    def forward(self, x):
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return x.square().mean()


def wide():
    torch.manual_seed(0)
    module, x = Wide().cuda(), torch.randn(8192, 512, device="cuda")
    return module, x, remat.exec.wrap(module, (x,), "60%", offload=True, solver=CopyAll(), on_uncapturable="raise")


def gradients(module, x):
    module.zero_grad()
    loss = module(x)
    loss.backward()
    return [loss.detach().clone(), *(p.grad.clone() for p in module.parameters())]


@pytest.mark.parametrize("at", [3, 9, 25, 35])
def test_an_exception_leaves_no_host_memory_taken_and_the_module_usable(at):
    module, x, wrapped = wide()
    expected = gradients(module, x)
    assert all(map(torch.equal, gradients(wrapped, x), expected))
    with pytest.raises(Wrong), FailAt(at, Wrong):
        gradients(wrapped, x)
    assert all(map(torch.equal, gradients(wrapped, x), expected))


def test_five_hundred_steps_take_no_more_memory_than_five():
    module, x, wrapped = wide()
    expected = gradients(module, x)
    taken = []
    for at in range(500):
        assert all(map(torch.equal, gradients(wrapped, x), expected)) or at % 50
        if at in (4, 499):
            gc.collect()
            host = remat.exec.report(wrapped).copied.host_peak
            taken.append((host, torch.cuda.memory_allocated(), torch.cuda.memory_reserved()))
    assert taken[0] == taken[1]


def test_steps_on_another_stream():
    module, x, wrapped = wide()
    expected = gradients(module, x)
    torch.cuda.synchronize()
    with torch.cuda.stream(torch.cuda.Stream()):
        for _ in range(5):
            assert all(map(torch.equal, gradients(wrapped, x), expected))
    torch.cuda.synchronize()


def test_a_forward_whose_backward_never_comes_gives_its_host_memory_back():
    module, x, wrapped = wide()
    expected = gradients(module, x)
    for _ in range(3):
        wrapped(x)
    assert all(map(torch.equal, gradients(wrapped, x), expected))
