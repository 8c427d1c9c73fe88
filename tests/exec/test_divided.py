"""Models under DTR of which parts run by plans: the bits of plain torch, within the budget, and a report of what ran how."""

import copy
import gc
import pickle
import warnings

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import remat.exec
from remat.algorithms._dtr.memory import OutOfRoom
from remat.errors import Infeasible
from remat.exec import StepError
from remat.exec._dtr import planned
from remat.exec._dtr.planned import has_room
from remat.exec._module import parts
from tests.exec.divided_models import made
from tests.exec.support import LIGHT, clone
from tests.exec.test_dtr_runtime import same, train


def wrapped_of(model, budget, **how):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return remat.exec.wrap(model, budget=budget, **({"cost": "estimate", "solver": LIGHT} | how))


@pytest.mark.parametrize("name, budgets, paths", [
    ("detector", (450_000,), ["backbone"]),
    ("mixture", (90_000,), ["blocks.0", "blocks.1"]),
    ("parsed", (150_000,), ["encoder"]),
])  # fmt: skip
@pytest.mark.filterwarnings("ignore")
def test_steps_are_those_of_plain_torch_within_the_budget(name, budgets, paths):
    model, sample = made(name)
    expected, _ = train(model, sample, 4)
    for budget in budgets:
        model, sample = made(name)
        wrapped = wrapped_of(model, budget)
        first, _ = train(wrapped, sample, 4)  # kinds of operations are measured, and the model is divided
        model.load_state_dict(made(name)[0].state_dict())
        reports = []

        def after(wrapped=wrapped, reports=reports):
            reports.append(remat.exec.dtr_report(wrapped))

        traces, measured = train(wrapped, made(name)[1], 4, measure=True, after=after)
        assert same(first, expected) and same(traces, expected)
        assert all(peak <= report.peak <= budget for peak, report in zip(measured, reports, strict=True))
        report = reports[-1]
        assert [part.path for part in report.parts] == paths
        assert all(part.forms == 1 and part.planned == 6 and part.saved > 0 for part in report.parts)
        text = str(report)
        assert all(f"part {path}" in text for path in paths) and f"all but {', '.join(paths)}" in text


class Body(nn.Module):
    """A part: its input has one use, or (`residual`) two."""

    def __init__(self, residual=False, width=12):
        super().__init__()
        self.first, self.second = nn.Linear(width, width), nn.Linear(width, width)
        self.norm, self.dropout = nn.BatchNorm1d(width), nn.Dropout(0.25)
        self.residual = residual

    def forward(self, x):
        hidden = self.dropout(torch.tanh(self.norm(self.first(x))))
        return x + self.second(hidden) if self.residual else torch.sin(self.second(hidden))


class Net(nn.Module):
    """A layer, what `use` does with the part, and rows that are chosen by their values."""

    def __init__(self, use, residual=False):
        super().__init__()
        self.use = use
        self.enter, self.body, self.leave = nn.Linear(12, 12), Body(residual), nn.Linear(12, 12)

    def forward(self, x):
        out = self.use(self, torch.tanh(self.enter(x)))
        rows = out[(out.sum(1) > -1).nonzero().squeeze(1)]
        return self.leave(rows).square().mean() + out.square().mean()


def built(use, residual=False):
    torch.manual_seed(0)
    return Net(use, residual)


def rows(count=20):
    return torch.randn(count, 12, generator=torch.Generator().manual_seed(count))


def backward(module, x):
    loss = module(x)
    loss.backward()
    return loss


def trained(module, steps, run=backward, sizes=(20,)):
    """What steps leave; gradients accumulate."""
    torch.manual_seed(1)
    traces = []
    for number in range(steps):
        loss = run(module, rows(sizes[number % len(sizes)]))
        tensors = [loss, *(p.grad for p in module.parameters()), *module.buffers()]
        assert {type(tensor) for tensor in tensors if tensor is not None} <= {torch.Tensor}
        traces.append([clone(tensor) for tensor in tensors] + [torch.get_rng_state()])
    return traces


def divided(use, residual=False, run=backward, sizes=(20,), steps=5):
    """The report and the wrapped module after steps that are those of plain torch."""
    expected = trained(built(use, residual), steps, run, sizes)
    wrapped = wrapped_of(built(use, residual), 200_000)
    assert same(trained(wrapped, steps, run, sizes), expected)
    return remat.exec.dtr_report(wrapped), wrapped


def once(net, h):
    return net.body(h)


def twice(net, h):
    return net.body(net.body(h)) + net.body(h.flip(0))


def quiet(net, h):
    with torch.no_grad():
        aside = net.body(h)
    return net.body(h) + aside


def read_before(net, h):
    sine = h.sin()
    return net.body(h) + sine


def read_after(net, h):
    out = net.body(h)
    return out * h.cos() + h.exp()


def summed(net, h):
    return net.body(h).sum(0, keepdim=True) * 0.01 + h


def checkpointed(net, h):
    return checkpoint(net.body, h, use_reentrant=False)


@pytest.mark.parametrize(
    "use, residual, planned, apart",
    [
        (once, True, 3, 0),
        (twice, False, 9, 0),
        (quiet, False, 3, 5),
        (read_before, True, 3, 0),
        (read_after, False, 3, 0),
        (checkpointed, False, 0, 3),
    ],
)
def test_calls_of_a_part(use, residual, planned, apart):
    report, _ = divided(use, residual)
    (part,) = report.parts
    assert part.planned == planned and part.again == ()
    assert sum(count for _, count in part.apart) == apart


def test_an_input_with_several_uses_inside_that_is_read_afterwards_too():
    report, _ = divided(read_after, residual=True)
    assert report.parts[0].again == (("an input that is read elsewhere too", 1),)
    assert report.parts[0].planned == 1 and report.parts[0].forms == 0
    report, _ = divided(twice, residual=True)
    assert report.parts[0].again == (("an input that is read elsewhere too", 1),)


def test_a_gradient_of_another_layout_than_was_planned_for():
    report, _ = divided(summed)
    assert [reason for reason, _ in report.parts[0].again] == ["a gradient of another layout than was planned for"]


def penalized(module, x):
    x = x.requires_grad_()
    loss = module(x)
    (slope,) = torch.autograd.grad(loss, x, create_graph=True)
    loss = loss + slope.square().sum()
    loss.backward()
    return loss


def test_gradients_of_gradients():
    wrapped = wrapped_of(built(once), 200_000)
    assert same(trained(wrapped, 4, penalized), trained(built(once), 4, penalized))
    assert "gradients of gradients" in remat.exec.dtr_report(wrapped).rest
    _, wrapped = divided(once)
    with pytest.raises(StepError, match=r"X-DOUBLE.*body runs by a plan"):
        penalized(wrapped, rows())
    plain = built(once)
    plain.load_state_dict(wrapped.state_dict())
    for module in (wrapped, plain):
        module.zero_grad()
    assert same(trained(wrapped, 1, penalized), trained(plain, 1, penalized))


def test_a_backward_that_runs_twice_and_two_forwards_before_it():
    def run(module, x):
        loss, other = module(x), module(2 * x)
        loss.backward(retain_graph=True)
        loss.backward()
        other.backward()
        return loss

    report, _ = divided(once, run=run, steps=3)
    assert report.parts[0].planned > 0 and report.parts[0].again == ()


def test_other_shapes_are_planned_once_they_came_twice():
    report, _ = divided(once, sizes=(20, 20, 20, 16, 20, 16, 16), steps=8)
    (part,) = report.parts
    assert part.forms == 2 and part.apart == (("its form is new", 2),) and part.planned == 8 - 2 - 2
    report, _ = divided(once, sizes=(20, 21, 22, 23, 20, 21, 25), steps=7)
    assert report.parts == () and ("body", "its calls differ from step to step") in report.refused


def test_modes_are_planned_apart():
    def run(module, x):
        loss = backward(module.eval(), x)
        return loss + backward(module.train(), x).detach()

    report, _ = divided(once, run=run, steps=4)
    assert report.parts[0].forms == 2 and report.parts[0].apart == ()


def test_what_is_kept_is_evicted_and_computed_again():
    expected = trained(built(twice), 5)
    wrapped = wrapped_of(built(twice), 200_000)
    again, run = [], planned._Forward.__call__

    def noted(self, payloads):
        again.append(self.ran)
        return run(self, payloads)

    def tight(module, x):
        loss = module(x)
        core = module.remat.state.runtime.core
        if module.remat.state.division.step > 3:
            core.make_room(core.budget - core.memory - core.reserve)  # all that can be evicted is
            for table in (core.pool, core.small):
                for storage in [ref() for ref in table.values()]:
                    core.evict(storage)
        loss.backward()
        return loss

    planned._Forward.__call__ = noted
    try:
        assert same(trained(wrapped, 5, tight), expected)
    finally:
        planned._Forward.__call__ = run
    assert any(again) and remat.exec.dtr_report(wrapped).parts[0].again == ()


@pytest.mark.parametrize("kind", [planned._Forward, planned._Backward])
def test_without_room_a_part_runs_operation_by_operation(kind, monkeypatch):
    perform = planned._perform

    def tight(runtime, record, operator, bundle):
        if isinstance(operator, kind):
            raise OutOfRoom(1, 1)
        return perform(runtime, record, operator, bundle)

    monkeypatch.setattr(planned, "_perform", tight)
    report, _ = divided(twice)
    (part,) = report.parts
    reasons = dict(part.apart if kind is planned._Forward else part.again)
    assert f"no room for the planned {kind.__name__[1:].lower()}" in reasons


def test_a_part_that_would_not_fit_is_not_begun(monkeypatch):
    monkeypatch.setattr(parts, "has_room", lambda runtime, planned, primals: has_room(runtime, planned, primals, 2**20))
    report, _ = divided(once)
    assert report.parts[0].apart == (("no room for the planned forward", 3),)
    assert report.parts[0].planned == 0


def test_after_a_step_that_did_not_fit_everything_runs_under_dtr():
    wrapped = wrapped_of(built(once), 200_000)
    trained(wrapped, 3)
    core = wrapped.remat.state.runtime.core
    core.budget = 1000
    with pytest.raises(Infeasible):
        wrapped(rows())
    core.budget = 200_000
    wrapped.zero_grad()
    gc.collect()
    x, plain = rows(), built(once)
    plain.load_state_dict(wrapped.state_dict())
    torch.manual_seed(2)
    expected = backward(plain, x)
    torch.manual_seed(2)
    assert torch.equal(backward(wrapped, x), expected)
    assert "ran out of memory" in remat.exec.dtr_report(wrapped).rest


def test_an_exception_in_the_middle_of_a_step():
    wrapped = wrapped_of(built(once), 200_000)
    trained(wrapped, 3)
    forward, raised = wrapped.leave.forward, []

    def fail(self, args):
        raised.append(True)
        raise ValueError("no")

    handle = wrapped.leave.register_forward_pre_hook(fail)
    with pytest.raises(ValueError, match="no"):
        wrapped(rows())
    handle.remove()
    assert raised and "forward" not in wrapped.body.__dict__ and wrapped.leave.forward == forward
    plain = built(once)
    plain.load_state_dict(wrapped.state_dict())
    for module in (wrapped, plain):
        module.zero_grad()
    assert same(trained(wrapped, 2), trained(plain, 2))
    assert remat.exec.dtr_report(wrapped).parts[0].planned == 4


def test_hooks_of_a_part_run_and_hooks_inside_make_it_none():
    seen = []

    def hooked(place):
        def use(net, h):
            module = place(net)
            handle = module.register_forward_hook(lambda module, args, out: seen.append(type(module)) or 2 * out)
            out = net.body(h)
            handle.remove()
            return out

        return use

    report, _ = divided(hooked(lambda net: net.body))
    assert report.parts[0].planned == 3 and seen == [Body] * 10
    seen.clear()
    report, _ = divided(hooked(lambda net: net.body.first))
    assert report.parts[0].planned == 0 and report.parts[0].apart == (("hooks inside", 3),) and len(seen) == 10


def test_parameters_shared_with_the_rest_make_it_no_part():
    class Tied(Net):
        def __init__(self):
            super().__init__(once)
            self.leave.weight = self.body.first.weight

    torch.manual_seed(0)
    plain = Tied()
    wrapped = wrapped_of(copy.deepcopy(plain), 200_000)
    assert same(trained(wrapped, 7), trained(plain, 7))
    report = remat.exec.dtr_report(wrapped)
    assert report.parts == () and ("body", "it shares parameters with the rest") in report.refused
    assert report.rest.startswith("all of it: ")


def scaled_meanwhile(net, h):
    weights = list(net.body.parameters())
    before = [weight.data for weight in weights]
    for weight in weights:
        weight.data = weight.data * 1.5
    out = net.body(h)
    for weight, data in zip(weights, before, strict=True):
        weight.data = data
    return out


def test_parameters_that_get_other_data_after_they_were_read_make_it_no_part():
    report, _ = divided(scaled_meanwhile, steps=7)
    assert report.parts == ()
    assert ("body", "the forward assigns `.data` of its tensors after it has read them") in report.refused
    _, wrapped = divided(once)
    wrapped.use = scaled_meanwhile
    before = [weight.data for weight in wrapped.parameters()]
    with pytest.raises(
        StepError, match=r"X-WRITE.*`.data` of a tensor that body, which runs by a plan, has read before"
    ):
        wrapped(rows())
    for weight, data in zip(wrapped.parameters(), before, strict=True):
        weight.data = data
    plain = built(scaled_meanwhile)
    plain.load_state_dict(wrapped.state_dict())
    plain.zero_grad()
    wrapped.zero_grad()
    assert same(trained(wrapped, 2), trained(plain, 2))
    assert remat.exec.dtr_report(wrapped).rest.startswith("all of it: the forward assigns `.data`")


def test_autocast_runs_operation_by_operation():
    def run(module, x):
        with torch.autocast("cpu", torch.bfloat16):
            loss = module(x)
        loss.backward()
        return loss

    _, wrapped = divided(once)
    plain = built(once)
    plain.load_state_dict(wrapped.state_dict())
    for module in (wrapped, plain):
        module.zero_grad()
    assert same(trained(wrapped, 1, run), trained(plain, 1, run))
    assert ("autocast", 1) in remat.exec.dtr_report(wrapped).parts[0].apart


def test_a_budget_that_leaves_no_room_for_plans_is_that_of_dtr():
    wrapped = wrapped_of(built(once), 18_000)
    assert same(trained(wrapped, 4), trained(built(once), 4))
    report = remat.exec.dtr_report(wrapped)
    assert report.parts == () and "with the smallest plans of body" in report.rest


def test_copies_and_pickles_divide_anew():
    _, wrapped = divided(once)
    plain = built(once)
    plain.load_state_dict(wrapped.state_dict())
    for module in (copy.deepcopy(wrapped), pickle.loads(pickle.dumps(wrapped))):
        for other in (module, plain):
            other.zero_grad()
        other = copy.deepcopy(plain)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            assert same(trained(module, 3), trained(other, 3))
        assert remat.exec.dtr_report(module).parts[0].planned == 1


def test_nothing_grows():
    _, wrapped = divided(twice)
    runtime = wrapped.remat.state.runtime

    def held():
        """Bytes, living constants, and tensors held outside; how many entries the dead ones make hangs on addresses."""
        gc.collect()
        living = sum(ref() is not None for ref in runtime._constants.values())
        return runtime.core.memory, living, len(runtime._outside)

    trained(wrapped, 2)
    before, entries = held(), len(runtime._constants)
    trained(wrapped, 2 * entries)  # entries that nothing lets go of would be three times as many
    assert held() == before
    assert len(runtime._constants) < 2 * entries
