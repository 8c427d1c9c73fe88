"""Audits of a loss outside the module: they end by themselves, leave nothing behind, and disturb nobody's profile."""

import gc
import subprocess
import sys
import threading
import warnings

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.optim import optimizer as optimizers

import remat.exec
from remat.exec._torch import recording
from tests.exec.support import LIGHT

EASY = {"cost": "estimate", "solver": LIGHT}


def net():
    return nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 16))


def wrapped(budget="150%", **how):
    sample = torch.randn(64, 16)
    return remat.exec.wrap(net(), sample, budget, **(EASY | how)), sample


def meter_of(module):
    return module.__dict__["_remat"].last.meter


@pytest.fixture(autouse=True)
def nothing_is_left():
    entries = [getattr(torch.autograd.profiler, name) for name in ("_prepare_profiler", "_enable_profiler")]
    hooks = dict(optimizers._global_optimizer_pre_hooks)
    yield
    gc.collect()
    assert not recording.profiling()
    assert [getattr(torch.autograd.profiler, name) for name in ("_prepare_profiler", "_enable_profiler")] == entries
    assert dict(optimizers._global_optimizer_pre_hooks) == hooks


SCRIPT = """
import torch, remat.exec
from torch import nn
x = torch.randn(4, 8)
w = remat.exec.wrap(nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8)), x, "120%")
{}
print("done")
"""


@pytest.mark.parametrize("end", ["w(x).sum().backward()", "y = w(x)", "loss = w(x).sum(); loss.backward()"])
def test_a_script_with_its_loss_outside_ends_well(end):
    result = subprocess.run([sys.executable, "-c", SCRIPT.format(end)], capture_output=True, text=True, timeout=300)
    # Torch says once that it does not know the size of what is freed and was there before; all else would be ours.
    said = [line for line in result.stderr.splitlines() if "CPUAllocator" not in line]
    assert (result.returncode, result.stdout, said) == (0, "done\n", [])


def test_an_audit_ends_with_the_graph_of_its_step():
    module, x = wrapped()
    module(x).sum().backward()
    assert not recording.profiling()
    meter = meter_of(module)
    meter.settle()
    assert meter.audit is not None


def test_an_audit_whose_loss_lives_on_ends_with_the_next_call():
    module, x = wrapped()
    loss = module(x).sum()
    loss.backward()
    assert recording.profiling()
    with torch.no_grad():
        module(x)
    assert not recording.profiling()
    del loss


def test_an_audit_without_a_backward_is_made_again():
    module, x = wrapped()
    module(x)
    assert not recording.profiling()
    assert meter_of(module).audit is None
    module(x).sum().backward()
    module(x)
    assert meter_of(module).audit is not None


def test_two_modules_with_losses_outside_and_one_optimizer_step():
    (first, x), (second, _) = wrapped(), wrapped()
    optimizer = torch.optim.SGD([*first.parameters(), *second.parameters()], lr=0.1)
    with pytest.warns(remat.exec.RematWarning, match="planned again"):  # each audit sees the losses of both
        for _ in range(3):
            loss = first(x).square().mean() + second(x).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()


def test_a_profile_that_starts_while_an_audit_is_on_sees_what_it_should():
    module, x = wrapped()
    loss = module(x).sum()
    assert recording.profiling()
    with torch.profiler.profile() as profile:
        loss.backward()
        torch.ones(3).sin()
    assert "aten::sin" in {event.name for event in profile.events()}


@pytest.mark.filterwarnings("ignore:Warning. Profiler clears events:UserWarning")  # torch says so of every schedule
def test_a_profile_with_a_schedule_runs_through_audits():
    module, x = wrapped()
    ready = []
    schedule = torch.profiler.schedule(wait=1, warmup=1, active=1)
    with torch.profiler.profile(schedule=schedule, on_trace_ready=lambda p: ready.append(len(p.events()))) as profile:
        for _ in range(4):
            loss = module(x).sum()
            loss.backward()
            profile.step()
    assert len(ready) == 1
    assert ready[0] > 0


@pytest.mark.parametrize("cost", ["measure", "estimate"])
def test_planning_within_a_profile_leaves_it_alone_and_measures(cost):
    alone = remat.exec.report(wrapped(cost=cost)[0]).measured_peak
    with torch.profiler.profile(profile_memory=True) as profile:
        torch.ones(3).sin()
        module, x = wrapped(cost=cost)
        module(x).sum().backward()
        torch.ones(3).cos()
    names = {event.name for event in profile.events()}
    assert {"aten::sin", "aten::cos"} <= names
    report = remat.exec.report(module)
    assert report.measured_peak == alone
    module(x).sum().backward()
    module(x)
    assert meter_of(module).audit is not None


def test_measuring_a_step_within_a_profile_is_refused():
    with torch.profiler.profile(), pytest.raises(remat.errors.RematError, match="X-PROFILE"):
        remat.exec.measure_step(lambda: None)


def test_measuring_a_step_ends_an_audit_whose_loss_lives():
    module, x = nn.Sequential(nn.Linear(16, 16), nn.Tanh()), torch.randn(8, 16)
    wrapped = remat.exec.wrap(module, x, "100%")
    loss = wrapped(x).square().mean()
    loss.backward()
    assert remat.exec.measure_step(lambda: wrapped(x).square().mean().backward()).peak > 0


def test_an_audit_sees_nothing_of_other_threads_and_does_not_run_on_them():
    module, x = wrapped()
    states = []

    def step():
        module(x).sum().backward()
        states.append(recording.profiling())

    thread = threading.Thread(target=step)
    thread.start()
    thread.join()
    assert states == [False]
    assert meter_of(module).audit is None


def deep_loss(y):
    for _ in range(12):
        y = (y * 1.5).sin()
    return y.sum()


def test_a_loss_that_holds_much_is_seen():
    module, x = wrapped("600%")
    deep_loss(module(x)).backward()
    with pytest.warns(remat.exec.RematWarning, match="planned again"):
        module(x)
    assert meter_of(module).audit is None
    assert remat.exec.report(module).loss_reserve >= 12 * x.numel() * 4


class Larger(nn.Module):
    def __init__(self, block, position):
        super().__init__()
        before = [nn.Linear(16, 16)] if position != "first" else []
        after = [nn.Sequential(nn.Linear(16, 256), nn.Tanh(), nn.Linear(256, 16)) for _ in range(4)]
        self.layers = nn.Sequential(*before, block, *(after if position != "last" else []))

    def forward(self, x):
        return deep_loss(self.layers(x))


@pytest.mark.parametrize("position", ["first", "middle", "last"])
def test_a_block_of_a_larger_net_answers_for_its_own_memory_alone(position):
    block, x = wrapped("100%")
    whole = Larger(block, position)
    with warnings.catch_warnings():
        warnings.simplefilter("error", remat.exec.RematWarning)
        for _ in range(3):
            whole(x).backward()
    assert meter_of(block).audit is None
    assert not meter_of(block).wanted


def test_blocks_wrapped_each_answer_for_themselves():
    (first, x), (second, _) = wrapped("100%"), wrapped("100%")
    with warnings.catch_warnings():
        warnings.simplefilter("error", remat.exec.RematWarning)
        for _ in range(3):
            deep = second(first(x)).square().mean()
            deep.backward()
    assert not meter_of(first).wanted


def test_another_forward_before_the_backward_starts_the_audit_anew():
    module, x = wrapped("300%")
    for _ in range(2):
        loss = functional.mse_loss(module(x), x) + functional.mse_loss(module(x + 1), x)
        loss.backward()
        del loss
    module(x)
    assert meter_of(module).audit is not None


def garbage():
    """A tensor in a cycle, made under a recording: one that comes later sees when it is taken back."""
    cycle = []
    remat.exec.measure_step(lambda: cycle.extend((torch.zeros(1 << 20), cycle)))


def test_garbage_of_before_does_not_lower_what_a_step_holds():
    def step():
        gc.collect()  # as it may come at any time
        return torch.zeros(1 << 18)

    gc.disable()
    try:
        garbage()
        assert remat.exec.measure_step(step).peak == 1 << 20
    finally:
        gc.enable()


def test_garbage_of_before_does_not_lower_what_an_operation_holds():
    events = []
    gc.disable()
    garbage()
    gc.enable()
    with recording.recorded(events):
        objects = [[] for _ in range(20_000)]  # as many as have the collector run
        kept = torch.zeros(1 << 18)
    assert len(objects) == 20_000 and gc.isenabled()
    assert sum(event.size for event in events) == kept.nbytes
