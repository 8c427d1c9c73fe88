"""Seventeen ways in which capture and execution go wrong, found while prototyping; each is kept shut by a test named after it."""

import gc
import weakref

import pytest
import torch
from torch import nn
from torch.nn import functional

import remat.exec
from remat.algorithms import StoreAll
from remat.algorithms._search.auto import quick
from remat.exec import StepError
from remat.exec._program.program import Role
from remat.ir import Kind, Phase
from tests.exec.support import SMALL, Rig, differences, evicting, train

EASY = {"cost": "estimate", "solver": quick, "rehearse": False, "on_uncapturable": "raise"}


def wrap(module, sample, budget="100%", **how):
    return remat.exec.wrap(module, sample, budget, **(EASY | how))


def pair(build, sample, dtype=torch.float64):
    """Two modules with the same weights, two equal samples."""
    made = []
    for _ in range(2):
        torch.manual_seed(0)
        module, inputs = build().to(dtype), sample()
        made.append((module, tuple(t.to(dtype) if t.is_floating_point() else t for t in inputs)))
    return made


def trains_the_same(build, sample, schedule=evicting, **how):
    """With every forward value evicted, a module trains as the bare one; returns the rig."""
    (bare, one), (other, two) = pair(build, sample)
    rig = Rig(other, two, cost="estimate", **how)
    assert differences(train(bare, one), train(other, two, call=rig.forward(schedule(rig.graph)))) == []
    return rig


class Net(nn.Module):
    """Wraps a function of (module, x) with a linear layer to have something to train."""

    def __init__(self, function, width=8):
        super().__init__()
        self.linear = nn.Linear(width, width)
        self.function = function

    def forward(self, x):
        return self.function(self, x)


def rows(n=6, width=8):
    return lambda: (torch.randn(n, width),)


def test_multi_output_operations_are_unpacked_at_once():
    class Pool(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(3, 8, 3)

        def forward(self, x):
            x = self.conv(x)
            for _ in range(3):
                x = functional.max_pool2d(torch.relu(x), 2)
            return torch.var_mean(x, dim=0)[0].sum()

    torch.manual_seed(0)
    rig = Rig(Pool(), (torch.randn(8, 3, 64, 64),))
    for budget in (rig.peak, rig.smallest):
        plan = rig.plan(budget)
        assert rig.measured(rig.step(plan.schedule)).peak == plan.cost.peak


def test_the_trace_takes_the_branch_that_eager_takes():
    def forward(self, x):
        compiling = torch.compiler.is_compiling() or torch.compiler.is_dynamo_compiling()
        return (self.linear(x) * (3.0 if compiling else 1.0)).sum()

    trains_the_same(lambda: Net(forward), rows())


def test_a_replay_reads_a_buffer_as_it_was_before_the_write():
    class Drift(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(8, 8)
            self.register_buffer("mean", torch.ones(8))

        def forward(self, x):
            hidden = torch.tanh(self.linear(x) - self.mean.view(1, 8)) + self.mean
            self.mean.mul_(0.5).add_(hidden.detach().mean(0))
            return (hidden * self.mean).sin().sum()

    rig = trains_the_same(Drift, rows())
    roles = [op.role for op in rig.program.nodes]
    assert roles.count(Role.SNAPSHOT) == roles.count(Role.UPDATE) == 1


def test_a_buffer_that_the_forward_replaces_is_written():
    class Count(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(8, 8)
            self.register_buffer("count", torch.zeros(()))

        def forward(self, x):
            self.count = self.count + 1
            return (self.linear(x) * self.count).sum()

    trains_the_same(Count, rows())


def test_a_module_registered_in_two_places_is_captured_and_left_as_it_was():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.first = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8))
            self.second = self.first
            self.third = nn.Linear(8, 8, bias=False)
            self.third.bias = self.first[0].bias

        def forward(self, x):
            return self.third(self.second(self.first(x))).square().sum()

    rig = trains_the_same(Twice, rows())
    assert all(p.is_leaf and p.grad_fn is None for p in rig.module.parameters())


def test_random_numbers_of_a_replay_are_those_of_the_first_run():
    class Drops(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(8, 8)

        def forward(self, x):
            x = functional.dropout(self.linear(x).sin(), 0.4)
            x = functional.dropout(x.exp(), 0.3) + torch.rand_like(x)
            return (functional.dropout(x, 0.5) * torch.randn(8, dtype=x.dtype)).tanh().sum()

    rig = trains_the_same(Drops, rows())
    lowered = remat.exec.lower(rig.program, evicting(rig.graph))
    assert lowered.source.count("_replay(") >= 3


def test_a_state_is_saved_only_where_a_draw_is_replayed():
    rig = Rig(*SMALL["mlp"].instantiate(), cost="estimate")
    keeping = remat.exec.lower(rig.program, rig.plan(rig.peak).schedule)
    assert "_save_state" not in keeping.source
    assert "_save_state" in remat.exec.lower(rig.program, evicting(rig.graph)).source


def test_outputs_that_look_at_inputs_or_at_each_other_get_their_gradients():
    def forward(self, x):
        hidden = self.linear(x).tanh()
        return (hidden * hidden).sum(), hidden, hidden.view(-1), x, self.linear.weight, hidden

    (bare, one), (other, two) = pair(lambda: Net(forward), rows())
    for sample in (one, two):
        sample[0].requires_grad_()
    wrapped = wrap(other, two, differentiable="all")
    results = []
    for module, sample in ((bare, one), (wrapped, two)):
        loss, hidden, flat, same, weight, again = module(*sample)
        (
            loss + hidden.sin().sum() + 2 * flat.sum() + (same * 3).sum() + weight.cos().sum() + again.exp().sum()
        ).backward()
        results.append([sample[0].grad, *(p.grad for p in module.parameters())])
    for x, y in zip(*results, strict=True):
        torch.testing.assert_close(x, y, rtol=1e-15, atol=1e-15)


def test_outputs_beside_the_loss_get_no_gradients_of_zeros():
    def forward(self, x):
        logits = self.linear(x)
        return logits.square().mean(), logits

    (bare, one), (other, two) = pair(lambda: Net(forward), rows())
    wrapped = wrap(other, two)
    loss, logits = wrapped(*two)
    assert torch.equal(logits, bare(*one)[1])
    assert len(remat.exec.capture(bare, one).program.tangents) == 1
    with pytest.raises(StepError, match="output 1"):
        (loss + logits.sum()).backward()


def test_a_parameter_edited_between_forward_and_backward_is_noticed():
    (_, _), (other, sample) = pair(lambda: Net(lambda self, x: self.linear(self.linear(x)).sum()), rows())
    loss = wrap(other, sample)(*sample)
    with torch.no_grad():
        other.linear.weight.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_an_input_that_is_written_before_the_backward_is_named():
    (_, _), (other, sample) = pair(lambda: Net(lambda self, x: self.linear(x).sum()), rows())
    loss = wrap(other, sample)(*sample)
    sample[0].detach().zero_()
    with pytest.raises(
        StepError, match=r"X-WRITE: .*Net.* of shape \[\d+, \d+\] has been modified by an inplace operation"
    ):
        loss.backward()


def test_an_output_edited_before_the_backward_is_noticed():
    def forward(self, x):
        return torch.exp(self.linear(x))

    (_, _), (other, sample) = pair(lambda: Net(forward), rows())
    out = wrap(other, sample, differentiable="all")(*sample)
    loss = out.sum()
    with torch.no_grad():
        out.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_a_second_derivative_is_refused_clearly():
    (_, _), (other, sample) = pair(lambda: Net(lambda self, x: self.linear(x).sin().sum()), rows())
    loss = wrap(other, sample)(*sample)
    with pytest.raises(StepError, match="create_graph=True"):
        torch.autograd.grad(loss, other.linear.weight, create_graph=True)


def test_a_second_backward_is_refused_clearly_and_other_shapes_are_planned_for():
    (bare, _), (other, sample) = pair(lambda: Net(lambda self, x: self.linear(x).sin().sum()), rows())
    wrapped = wrap(other, sample)
    loss = wrapped(*sample)
    loss.backward(retain_graph=True)
    with pytest.raises(StepError, match="second time"):
        loss.backward()
    for n in (3, 6, 3):
        x = torch.randn(n, 8, dtype=torch.float64)
        assert torch.equal(wrapped(x), bare(x))
    assert remat.exec.report(wrapped).plans == 2


def test_gradients_of_parameters_are_charged_to_the_end():
    layers = [nn.Linear(128, 128) for _ in range(8)]
    rig = Rig(_sum_of(nn.Sequential(*layers)), (torch.randn(4, 128),))
    plan = rig.plan(rig.peak)
    assert plan.cost.peak >= 8 * 128 * 128 * 4
    step = rig.step(plan.schedule)
    assert rig.measured(step).peak == plan.cost.peak
    step()
    # with gradients there already, autograd adds the new ones only after all of them are made
    assert remat.exec.measure_step(step).peak == plan.cost.peak


def _sum_of(module):
    class Sum(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = module

        def forward(self, x):
            return self.inner(x).square().sum()

    return Sum()


def test_autocast_is_part_of_the_plan():
    build = lambda: _sum_of(nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8)))  # noqa: E731
    (bare, one), (other, two) = pair(build, rows(), torch.float32)
    wrapped = wrap(other, two)
    for enabled in (False, True, False):
        grads = []
        for module, sample in ((bare, one), (wrapped, two)):
            module.zero_grad()
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=enabled):
                hidden = module(*sample)
            hidden.backward()
            grads.append([hidden.detach(), *(p.grad.clone() for p in module.parameters())])
        for x, y in zip(*grads, strict=True):
            assert x.dtype == y.dtype
            assert torch.equal(x, y)
    assert remat.exec.report(wrapped).plans == 2


def test_replaced_parameters_modes_and_requires_grad_are_seen():
    build = lambda: _sum_of(nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5), nn.Linear(8, 8)))  # noqa: E731
    (bare, one), (other, two) = pair(build, rows())
    wrapped = wrap(other, two)
    for module in (bare, wrapped):
        torch.manual_seed(3)
        module.inner[0].weight = nn.Parameter(torch.randn(8, 8, dtype=torch.float64))
    assert differences(train(bare, one), train(wrapped, two)) == []
    for module in (bare, wrapped):
        module.inner[2].requires_grad_(False)
        module.inner[1].eval()
    assert differences(train(bare, one), train(wrapped, two)) == []
    assert wrapped.inner[2].weight.grad is None
    for module in (bare, wrapped):
        module.inner[1] = nn.Tanh()
    assert differences(train(bare, one), train(wrapped, two)) == []
    assert remat.exec.report(wrapped).plans == 3


def test_constants_in_the_code_are_bound_and_detach_disappears():
    def forward(self, x):
        scale = torch.tensor([1.0, 2.0, 3.0, 4.0, 1.0, 2.0, 3.0, 4.0], dtype=x.dtype)
        hidden = self.linear(x) * scale
        return (hidden * hidden.detach()).sum()

    rig = trains_the_same(lambda: Net(forward), rows())
    assert rig.program.constants
    assert not any("detach" in op.name for op in rig.program.ops)


def test_tangents_are_charged_to_the_end_of_the_backward():
    rig = Rig(nn.Sequential(nn.Linear(64, 512), nn.Tanh(), nn.Linear(512, 512)), (torch.randn(256, 64),))
    plan = rig.plan(rig.peak)
    (tangent,) = (datum for datum in rig.graph.data if datum.kind is Kind.TANGENT)
    assert tangent.size == 256 * 512 * 4 and tangent.keep
    forward = rig.forward(plan.schedule)

    def step():
        out = forward(*rig.sample)
        torch.autograd.backward(out, tuple(torch.ones_like(one) for one in out))
        return out

    assert rig.measured(step).peak == plan.cost.peak


def test_activations_die_as_the_backward_passes_them():
    rig = Rig(*SMALL["mlp"].instantiate(), cost="estimate")
    step = rig.forward(rig.plan(rig.peak).schedule)
    for finish in (lambda out: out[0].backward(), lambda out: None):
        out = step(*rig.sample)
        alive = [weakref.ref(one) for one in out[0].grad_fn.activations]
        assert len(alive) > 5
        gc.disable()
        finish(out)
        if out[0].grad_fn.activations is not None:
            del out
        assert not any(one() is not None for one in alive)
        gc.enable()


def test_gradients_come_in_the_layout_of_their_parameters():
    class Layouts(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.randn(8, 16).t())
            self.conv = nn.Conv2d(4, 4, 3).to(memory_format=torch.channels_last)

        def forward(self, x):
            return (x @ self.weight).sum() + self.conv(x.view(2, 4, 6, 16)).square().sum()

    rig = trains_the_same(Layouts, lambda: (torch.randn(48, 16),))
    forward = rig.forward(StoreAll().solve(_problem(rig)).schedule)
    rig.clear()
    forward(*rig.sample)[0].backward()
    for parameter in rig.module.parameters():
        assert parameter.grad.stride() == parameter.stride()
    shared = Net(lambda self, x: (self.linear(x) + self.linear.bias).sum())
    shared.other = nn.Parameter(torch.zeros(8))
    shared.function = lambda self, x: (self.linear(x) + self.other).sum()
    rig = Rig(shared, (torch.randn(6, 8),), cost="estimate")
    storages = [rig.program.values[value].storage for value in rig.program.grads.values()]
    assert len(set(storages)) == len(storages)


def _problem(rig):
    from remat.algorithms import Problem

    return Problem(graph=rig.graph, budget=rig.peak)


def test_a_saved_generator_state_is_data_of_its_size():
    rig = Rig(*SMALL["mlp"].instantiate(), cost="estimate")
    states = [datum for datum in rig.graph.data if datum.kind is Kind.RNG_STATE]
    draws = [node for node in rig.graph.computes if node.draws and not node.run_once]
    assert len(states) == len(draws) == 4
    assert all(datum.size == torch.get_rng_state().numel() == 5056 for datum in states)
    for datum in states:
        (writer,) = (rig.graph.node(name) for name in datum.writers)
        assert writer.run_once and writer.draws and writer.phase is Phase.FORWARD
