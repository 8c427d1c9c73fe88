"""`wrap` of what cannot be captured: with a budget in bytes it runs under DTR, within the budget, and says so."""

import collections
import copy
import pickle
import queue
import warnings

import pytest
import torch
from torch import nn

import remat.exec
from remat.errors import BadArgument, Uncapturable
from remat.exec import RematWarning, StepError
from remat.ir import Link
from tests.exec.dynamic_models import made
from tests.exec.support import LIGHT
from tests.exec.test_dtr_runtime import same, train

BUDGET = 60_000


def test_what_cannot_be_captured_runs_under_dtr_by_default():
    model, sample = made("experts")
    expected, _ = train(model, sample, 3)
    model, sample = made("experts")
    with pytest.warns(RematWarning, match="runs under DTR .* within the budget but without a plan: X-TRACE"):
        wrapped = remat.exec.wrap(model, sample(), BUDGET)
    train(wrapped, made("experts")[1], 1)
    model.load_state_dict(made("experts")[0].state_dict())
    traces, measured = train(wrapped, made("experts")[1], 3, measure=True)
    assert same(traces, expected)
    assert max(measured) <= BUDGET
    report = remat.exec.dtr_report(wrapped)
    assert report.budget == BUDGET and report.reason.startswith("X-TRACE") and "under DTR because" in str(report)
    with pytest.raises(BadArgument, match=r"runs under DTR.*dtr_report"):
        remat.exec.report(wrapped)
    (reason,) = wrapped.remat.fallbacks
    assert reason == wrapped.remat.state.ran and reason.startswith("DTR: X-TRACE")


def test_that_no_copies_are_made_under_dtr_is_said():
    model, sample = made("experts")
    with pytest.warns(RematWarning, match="without a plan, and without copies to the host: X-TRACE"):
        remat.exec.wrap(model, sample(), BUDGET, offload=Link.symmetric(gb_per_s=1))


class Branching(nn.Module):
    """The parity of a buffer decides between a branch that has a graph and one that has none."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(16, 16)

    def forward(self, rows):
        hidden = self.linear(rows)
        if (hidden.sum() > 0).item():
            return hidden.sin().square().mean()
        return hidden[(hidden.sum(1) < 0).nonzero().squeeze(1)].square().mean()


def test_the_report_names_dtr_where_a_call_takes_a_branch_without_a_graph():
    torch.manual_seed(0)
    model, rows = Branching(), torch.ones(8, 16)
    with torch.no_grad():
        model.linear.bias.fill_(1.0)
    wrapped = remat.exec.wrap(model, rows, BUDGET, cost="estimate", rehearse=False)
    assert torch.equal(wrapped(rows), model(rows))
    assert remat.exec.report(wrapped).ran == "plan" and wrapped.remat.fallbacks == ()
    with torch.no_grad():
        model.linear.bias.fill_(-1.0)
    with pytest.warns(RematWarning, match="runs under DTR"):
        assert torch.equal(wrapped(rows), model(rows))
    assert wrapped.remat.plans[0].ran.startswith("DTR: X-")
    with pytest.raises(BadArgument, match="runs under DTR"):
        remat.exec.report(wrapped)
    reason = remat.exec.dtr_report(wrapped).reason
    assert reason.startswith("X-") and wrapped.remat.fallbacks == (f"DTR: {reason}",)
    with torch.no_grad():
        wrapped(rows)
    assert remat.exec.dtr_report(wrapped).reason == reason


def test_after_a_few_refusals_nothing_more_is_captured():
    model, _ = made("experts")
    wrapped = remat.exec.wrap(model, budget=BUDGET)
    for rows, expected in ((8, 1), (9, 1), (10, 0), (11, 0)):
        with warnings.catch_warnings(record=True) as said:
            wrapped(torch.randn(rows, 16)).backward()
        assert sum("runs under DTR" in str(warning.message) for warning in said) == expected


def test_a_copy_and_a_pickle_run_under_dtr_too():
    model, sample = made("experts")
    with pytest.warns(RematWarning, match="under DTR"):
        wrapped = remat.exec.wrap(model, sample(), BUDGET)
    (rows,) = sample()
    expected = wrapped(rows)
    expected.backward()
    for other in (copy.deepcopy(wrapped), pickle.loads(pickle.dumps(wrapped))):
        with warnings.catch_warnings(record=True):
            loss = other(rows)
        loss.backward()
        assert torch.equal(loss, expected)
        assert remat.exec.dtr_report(other).operations > 0


class Counting(nn.Module):
    """Selects rows by value; its state changes in every forward: a norm, a buffer, a number and a list."""

    def __init__(self):
        super().__init__()
        self.linear, self.norm, self.head = nn.Linear(16, 64), nn.BatchNorm1d(64), nn.Linear(64, 64)
        self.register_buffer("sum", torch.zeros(64))
        self.calls, self.seen = 0, []

    def forward(self, rows):
        self.calls += 1
        self.seen.append(self.calls)
        hidden = nn.functional.dropout(torch.tanh(self.norm(self.linear(rows))), 0.1)
        self.sum += hidden.detach().sum(0)
        for _ in range(4):
            hidden = torch.tanh(self.head(hidden))
        return hidden[(hidden.sum(1) < 0).nonzero().squeeze(1)].square().mean()


def held_by(model):
    return (
        [*(tensor.clone() for tensor in model.state_dict().values()), torch.get_rng_state()],
        model.calls,
        list(model.seen),
    )


def equal(first, second):
    return all(map(torch.equal, first[0], second[0])) and first[1:] == second[1:]


def assert_trained_alike(bare, model):
    """Both are trained for a few steps, with the same random numbers, to the same gradients and state."""
    rows = torch.linspace(-1, 1, 64 * 16).reshape(64, 16)
    for module in (bare, model):
        torch.manual_seed(1)
        for _ in range(3):
            module(rows).backward()
    assert equal(held_by(model), held_by(bare))
    pairs = zip(model.parameters(), bare.parameters(), strict=True)
    assert all(torch.equal(ours.grad, theirs.grad) for ours, theirs in pairs)


def test_a_share_is_of_what_a_step_holds_that_keeps_everything_which_changes_nothing():
    torch.manual_seed(0)
    bare = Counting()
    model, rows = copy.deepcopy(bare), torch.randn(64, 16)
    before = held_by(model)
    with pytest.warns(
        RematWarning, match=r"within the budget \(.* KiB of the .* KiB that its step holds with everything kept\)"
    ):
        wrapped = remat.exec.wrap(model, rows, "80%")
    assert equal(held_by(wrapped), before)
    assert all(parameter.grad is None for parameter in model.parameters())
    assert_trained_alike(bare, wrapped)
    report, whole = remat.exec.dtr_report(wrapped), remat.exec.dtr(bare, "1GiB")
    whole(rows).backward()
    kept = remat.exec.dtr_report(whole).peak
    assert report.peak <= report.budget == pytest.approx(0.8 * kept, rel=0.05)
    assert report.evictions > 0


def test_a_share_of_a_peak_that_is_not_measured_is_refused_with_the_way_out():
    model, sample = made("experts")
    with pytest.raises(Uncapturable, match=r"X-TRACE.*Or give the budget in bytes: the step then runs under DTR"):
        remat.exec.wrap(model, sample(), "50%", rehearse=False)


class Assigning(Counting):
    """Gives a buffer other memory behind autograd's back."""

    def forward(self, rows):
        self.sum.data = self.sum.data + 1
        return super().forward(rows)


def test_a_step_that_cannot_be_put_back_is_not_measured():
    model, rows = Assigning(), torch.randn(64, 16)
    before = held_by(model)
    with pytest.raises(Uncapturable, match="Or give the budget in bytes: the step then runs under DTR"):
        remat.exec.wrap(model, rows, "60%")
    assert equal(held_by(model), before)


class Picky(Counting):
    def forward(self, rows):
        loss = super().forward(rows)
        if loss.item() < 1e9:
            raise ArithmeticError("a loss of no use")
        return loss


def test_an_error_of_the_forward_is_its_own_and_changes_nothing():
    model, rows = Picky(), torch.randn(64, 16)
    before = held_by(model)
    with pytest.raises(ArithmeticError, match="a loss of no use"):
        remat.exec.wrap(model, rows, "60%")
    assert equal(held_by(model), before)


def test_raise_and_bare_are_as_before():
    model, sample = made("experts")
    with pytest.raises(Uncapturable, match="X-TRACE"):
        remat.exec.wrap(model, sample(), BUDGET, on_uncapturable="raise")
    with pytest.warns(RematWarning, match="falls back to the unwrapped module, without a budget"):
        remat.exec.wrap(model, sample(), BUDGET, on_uncapturable="bare")
    with pytest.raises(BadArgument, match=r"X-ARG.*without a budget"):
        remat.exec.wrap(model, sample(), on_uncapturable="dtr")


class Observing(nn.Module):
    """Its buffers get their sizes in the first forward, as those of observers of quantization-aware training."""

    def __init__(self, fused):
        super().__init__()
        torch.manual_seed(0)
        self.body, self.fused = nn.Sequential(nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 16)), fused
        self.register_buffer("scale", torch.ones(0))
        self.register_buffer("zero_point", torch.zeros(0, dtype=torch.int32))
        self.register_buffer("low", torch.zeros(0))
        self.register_buffer("high", torch.zeros(0))
        self.register_buffer("on", torch.ones((), dtype=torch.int64))

    def forward(self, x):
        x = self.body(x)
        if self.fused:
            x = torch.fused_moving_avg_obs_fake_quant(
                x, self.on, self.on, self.low, self.high, self.scale, self.zero_point, 0.1, 0, 127, 0, True, True
            )
        else:
            self.low.resize_(16).copy_(x.detach().amin(0))
            x = x - self.low
        return x.square().mean()


@pytest.mark.parametrize("fused", [False, True])
def test_buffers_that_get_their_sizes_in_the_first_forward(fused):
    x = torch.randn(64, 16)
    with pytest.raises(Uncapturable, match=r"X-STATE.*call the module once|X-TRACE"):
        remat.exec.wrap(Observing(fused), x, "100%", on_uncapturable="raise", solver=LIGHT)
    bare, wrapped = Observing(fused), remat.exec.wrap(Observing(fused), None, "1MiB", solver=LIGHT)
    for step in range(3):
        losses = []
        for module in (bare, wrapped):
            module.zero_grad()
            with warnings.catch_warnings(record=True):
                loss = module(x)
                loss.backward()
            losses.append(loss.detach())
        assert torch.equal(*losses), step
        for expected, actual in zip(bare.parameters(), wrapped.parameters(), strict=True):
            assert torch.equal(expected.grad, actual.grad)
        for expected, actual in zip(bare.buffers(), wrapped.buffers(), strict=True):
            assert torch.equal(expected, actual)


class Writes(nn.Module):
    """Puts what it computes into its batch, a queue and a deque."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(*(layer for _ in range(4) for layer in (nn.Linear(16, 16), nn.GELU())))
        self.log, self.last = queue.Queue(), collections.deque(maxlen=2)

    def forward(self, batch):
        batch["hidden"] = self.layers(batch["x"])
        self.last.append((batch["hidden"].detach(), 1))
        loss = batch["hidden"].square().mean()
        self.log.put(loss.detach())
        return loss


def test_what_a_forward_puts_into_its_arguments_and_objects_is_plain():
    def batch():
        return {"x": torch.linspace(0, 1, 64 * 16).view(64, 16)}

    bare, wrapped = Writes(), remat.exec.wrap(Writes(), None, "1MiB", solver=LIGHT)
    one, two = batch(), batch()
    with pytest.warns(RematWarning, match=r"X-STATE|X-INPUT"):
        loss = wrapped(two)
    assert torch.equal(bare(one), loss)
    kept = (two["hidden"], wrapped.last[0][0], wrapped.log.get())
    assert all(type(tensor) is torch.Tensor for tensor in kept)
    assert all(map(torch.equal, kept, (one["hidden"], bare.last[0][0], bare.log.get())))


def test_a_forward_that_writes_to_its_argument_is_refused_by_name():
    with pytest.raises(Uncapturable, match=r"X-INPUT.*writes to argument 0, a dict"):
        remat.exec.wrap(Batches(), ({"x": torch.ones(64, 16)},), "90%", solver=LIGHT, on_uncapturable="raise")


class Batches(Writes):
    """Puts what it computes into its batch alone."""

    def forward(self, batch):
        batch["hidden"] = self.layers(batch["x"])
        return batch["hidden"].square().mean()


class Choosing(nn.Module):
    """A norm; with `chosen` it selects rows by value, which has no graph."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.linear, self.norm, self.head = nn.Linear(16, 16), nn.BatchNorm1d(16), nn.Linear(16, 1)

    def forward(self, rows, chosen=False):
        hidden = torch.tanh(self.norm(self.linear(rows)))
        return hidden, self.head(hidden[hidden[:, 0] > 0] if chosen else hidden).square().sum()


@pytest.mark.parametrize("first", ["planned", "chosen", "bare"])
def test_a_planned_call_and_another_in_one_backward(first):
    bare, rows = Choosing(), torch.linspace(-1, 1, 512).reshape(32, 16)
    model = copy.deepcopy(bare)
    wrapped = remat.exec.wrap(model, budget="1MiB", differentiable="all", progress=False)

    def step(module):
        if first == "bare":
            return module.norm(module.linear(rows)).mean() + module(rows)[1]
        hidden, loss = module(rows, chosen=first == "chosen")
        return loss + module(hidden, chosen=first != "chosen")[1]

    for module in (bare, wrapped):
        with warnings.catch_warnings(record=True):
            step(module).backward()
    assert all(
        torch.equal(ours.grad, theirs.grad) for ours, theirs in zip(model.parameters(), bare.parameters(), strict=True)
    )
    assert all(map(torch.equal, model.buffers(), bare.buffers()))


class Skipping(nn.Module):
    """Sets a buffer and an attribute, and raises for some batches."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(16, 16)
        self.register_buffer("mean", torch.zeros(16))
        self.last = None

    def forward(self, rows):
        hidden = self.linear(rows).tanh()
        self.mean = self.mean * 0.9 + hidden.detach().mean(0)
        self.last = [hidden.detach() * 2]
        if not torch.isfinite(hidden).all():
            raise ArithmeticError("a batch to skip")
        return hidden.square().mean()


def test_what_a_forward_has_set_before_its_error_are_plain_tensors():
    module = remat.exec.dtr(Skipping(), "1MiB")
    with pytest.raises(ArithmeticError):
        module(torch.full((8, 16), float("nan")))
    assert type(module.mean) is torch.Tensor and type(module.last[0]) is torch.Tensor
    module.mean.zero_()
    bare = Skipping()
    bare.load_state_dict(module.state_dict())
    assert torch.equal(module(torch.ones(8, 16)), bare(torch.ones(8, 16)))


class Directional(nn.Module):
    """A directional derivative beside the value."""

    def __init__(self):
        super().__init__()
        self.norm, self.linear = nn.LayerNorm(16), nn.Linear(16, 16)

    def forward(self, rows):
        value, slope = torch.func.jvp(lambda rows: self.linear(self.norm(rows)), (rows,), (torch.ones_like(rows),))
        return (value + slope).square().mean()


def test_derivatives_in_forward_mode_are_refused_by_name():
    rows = torch.randn(8, 16)
    with pytest.raises(Uncapturable, match=r"X-TRANSFORM: at norm \(LayerNorm\).*forward mode"):
        remat.exec.wrap(Directional(), rows, BUDGET)
    with pytest.raises(StepError, match=r"X-TRANSFORM: the forward computes .* and its derivative together"):
        remat.exec.dtr(Directional(), BUDGET)(rows)


def test_a_share_is_of_the_first_call_where_everything_runs_under_dtr():
    bare = Counting()
    module = remat.exec.dtr(copy.deepcopy(bare), "80%")
    assert_trained_alike(bare, module)
    report = remat.exec.dtr_report(module)
    assert report.peak <= report.budget and report.evictions > 0
