"""Gradients of outputs that arrive in another layout than the output's: the bits of eager where the backward computes in any."""

import copy
import warnings

import pytest
import torch
from torch import nn
from torch.nn import functional

import remat.exec
from remat.errors import Infeasible
from remat.exec import RematWarning
from remat.exec._plan.costing import SCALARS
from remat.exec._run.tangents import Tangents
from tests.exec.support import LIGHT

BATCH, TIME, WIDTH = 16, 96, 128
HOW = {"cost": "estimate", "rehearse": False, "on_uncapturable": "raise", "loss_reserve": "8MiB"}


class Net(nn.Module):
    """(batch, time) tokens to (batch, time, width), or what `after` makes of it."""

    def __init__(self, last, after=lambda y: y):
        super().__init__()
        torch.manual_seed(0)
        self.embedding, self.hidden, self.last = nn.Embedding(50, 32), nn.Linear(32, 64), last()
        self.after = after

    def forward(self, tokens):
        return self.after(self.last(torch.relu(self.hidden(self.embedding(tokens)))))


class Transposed(nn.Module):
    """(batch, time, width) to (batch, width, time)."""

    def forward(self, y):
        return y.transpose(1, 2)


def with_linear(layer):
    return lambda: nn.Sequential(nn.Linear(64, WIDTH), layer())


LASTS = {
    "linear": lambda: nn.Linear(64, WIDTH),
    "rms norm": with_linear(lambda: nn.RMSNorm(WIDTH)),
    "softplus": with_linear(nn.Softplus),
    "layer norm": with_linear(lambda: nn.LayerNorm(WIDTH)),
    "softmax": with_linear(lambda: nn.Softmax(-1)),
}
LOSSES = {
    "classes second": lambda y: functional.cross_entropy(
        y.transpose(1, 2), torch.arange(BATCH * TIME).view(BATCH, TIME) % WIDTH
    ),
    "time first": lambda y: functional.mse_loss(y.transpose(0, 1), torch.ones(TIME, BATCH, WIDTH)),
    "reversed": lambda y: (y.permute(2, 1, 0) * torch.arange(y.numel()).view(WIDTH, TIME, BATCH).float().sin()).sum(),
    "expanded": lambda y: y.sum(-1).sin().sum(),
    "summed": lambda y: (y * 1.5).sum(),
}


def gradients(module, tokens, loss):
    module.zero_grad()
    loss(module(tokens)).backward()
    return [parameter.grad.clone() for parameter in module.parameters()]


def tokens_and_pair(last, after=lambda y: y, **how):
    bare = Net(last, after)
    tokens = torch.arange(BATCH * TIME).view(BATCH, TIME) * 7 % 50
    return tokens, bare, remat.exec.wrap(copy.deepcopy(bare), tokens, "100%", **HOW | how)


@pytest.mark.parametrize("name", LASTS)
def test_gradients_of_any_layout_give_the_bits_of_eager(name):
    tokens, bare, wrapped = tokens_and_pair(LASTS[name])
    for loss in LOSSES.values():
        for ours, theirs in zip(gradients(wrapped, tokens, loss), gradients(bare, tokens, loss), strict=True):
            assert torch.equal(ours, theirs)
    assert remat.exec.report(wrapped).ran == "plan"


def test_a_transposed_output_takes_a_dense_gradient():
    tokens, bare, wrapped = tokens_and_pair(LASTS["linear"], lambda y: y.flatten(0, 1).t())
    weights = torch.arange(WIDTH * BATCH * TIME).view(WIDTH, -1).float().sin()
    for ours, theirs in zip(
        *(gradients(module, tokens, lambda y: (y * weights).sum()) for module in (wrapped, bare)), strict=True
    ):
        assert torch.equal(ours, theirs)


def answers(monkeypatch, last, loss, after=lambda y: y):
    """What was said of the layouts of a step, and its gradients beside eager's."""
    said = []
    takes = Tangents._takes

    def noted(self, strides):
        said.append(takes(self, strides))
        return said[-1]

    monkeypatch.setattr(Tangents, "_takes", noted)
    tokens, bare, wrapped = tokens_and_pair(last, after)
    return said, gradients(wrapped, tokens, loss), gradients(bare, tokens, loss)


def test_kernels_that_want_dense_gradients_get_them(monkeypatch):
    """Eager copies a gradient before GroupNorm's kernel, which reads memory in order; the trace has no such copy."""

    def grouped():
        return nn.Sequential(nn.Linear(64, WIDTH), Transposed(), nn.GroupNorm(4, WIDTH))

    said, ours, theirs = answers(monkeypatch, grouped, lambda y: LOSSES["time first"](y.transpose(1, 2)))
    assert said == [None]
    assert all(torch.equal(*pair) for pair in zip(ours, theirs, strict=True))


def test_a_layout_is_followed_once(monkeypatch):
    tokens, _, wrapped = tokens_and_pair(LASTS["linear"])
    with pytest.warns(remat.exec.RematWarning, match="planned again"):
        for _ in range(2):
            gradients(wrapped, tokens, LOSSES["classes second"])
    monkeypatch.setattr("remat.exec._run.tangents.computes_in", lambda *_: pytest.fail("it was followed before"))
    gradients(wrapped, tokens, LOSSES["classes second"])


def test_sums_with_a_changed_gradient_are_not_guessed(monkeypatch):
    said, ours, theirs = answers(
        monkeypatch,
        LASTS["linear"],
        lambda parts: sum((part * (n + 1.5)).cos().sum() for n, part in enumerate(parts)),
        lambda y: (y[..., :8], y[..., 8:], y.transpose(0, 2)),
    )
    assert set(said) <= {None}
    for one, two in zip(ours, theirs, strict=True):
        assert torch.allclose(one, two, rtol=1e-4, atol=1e-6)


# -- what gradients in other layouts take ----------------------------------------------------------------------------------


class Deep(nn.Module):
    """Layers before a last one, on rows, on tokens of sequences, or on images in channels_last."""

    def __init__(self, layers, last):
        super().__init__()
        self.layers, self.last = nn.ModuleList(layers), last

    def forward(self, x):
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return self.last(x)


class Halves(nn.Module):
    def forward(self, x):
        return x.chunk(2, -1)


def images():
    torch.manual_seed(0)
    layers = (nn.Conv2d(8 if at == 0 else 16, 16, 3, padding=1) for at in range(6))
    return Deep(layers, nn.Conv2d(16, 8, 1)).to(memory_format=torch.channels_last), torch.randn(2, 8, 24, 24).to(
        memory_format=torch.channels_last
    )


def sequences():
    torch.manual_seed(0)
    return Deep((nn.Linear(64, 64) for _ in range(6)), nn.Linear(64, 48)), torch.randn(8, 40, 64)


def halves():
    torch.manual_seed(0)
    layers = [nn.Linear(64, 64) for _ in range(6)]
    return Deep(layers, nn.Sequential(nn.LayerNorm(64), Halves())), torch.randn(256, 64)


WEIGHTS = torch.linspace(-1e-4, -5e-5, 32 * 256).view(32, 256).t()
"""Gradients get its layout, which is neither that of a half nor a contiguous one: torch traces them in the one or the other."""


def divergence(parts):
    mean, log_variance = parts
    return (WEIGHTS * (1 + log_variance - mean.pow(2) - log_variance.exp())).sum()


def second_classes(y):
    return functional.cross_entropy(y.transpose(1, 2), torch.arange(8 * 40).view(8, 40) % 48)


STEPS = {
    "copied": (images, lambda y: y.square().mean()),
    "copied in two parts": (halves, divergence),
    "copied by a view": (sequences, second_classes),
}


def wrapped_deep(build, budget, **how):
    module, x = build()
    return remat.exec.wrap(module, x, budget, **{"solver": LIGHT, "on_uncapturable": "raise"} | how), x


def step_of(wrapped, x, loss):
    """An ordinary one, which holds the outputs to its end."""

    def step():
        outputs = wrapped(x)
        loss(outputs).backward()

    return step


def peak_without_warnings(wrapped, step, count=3):
    peaks = []
    with warnings.catch_warnings():
        warnings.simplefilter("error", RematWarning)
        for _ in range(count):
            wrapped.zero_grad()
            peaks.append(remat.exec.measure_step(step).peak)
    return max(peaks)


@pytest.mark.parametrize("name", STEPS)
@pytest.mark.parametrize("how", [{}, {"loss_reserve": "1MiB"}], ids=["audited", "stated"])
def test_what_another_layout_takes_is_planned_after_the_first_step(name, how):
    build, loss = STEPS[name]
    wrapped, x = wrapped_deep(build, "85%", **how)
    step = step_of(wrapped, x, loss)
    with pytest.warns(RematWarning, match="another memory layout than traced.*planned again"):
        for _ in range(2):
            step()
    peak, report = peak_without_warnings(wrapped, step), remat.exec.report(wrapped)
    assert peak <= report.predicted_peak <= report.budget
    assert report.measured_peak <= peak <= report.measured_peak + SCALARS


def test_where_no_plan_has_room_for_a_copy_the_second_step_says_so():
    build, loss = STEPS["copied in two parts"]
    with pytest.raises(Infeasible) as refused:
        wrapped_deep(build, "20%", loss_reserve=SCALARS)
    wrapped, x = wrapped_deep(build, refused.value.smallest, loss_reserve=SCALARS)
    with pytest.warns(RematWarning, match="planned again"), pytest.raises(Infeasible) as refused:
        for _ in range(2):
            step_of(wrapped, x, loss)()
    wrapped, x = wrapped_deep(build, refused.value.smallest, loss_reserve=SCALARS)
    with pytest.warns(RematWarning, match="planned again"):
        for _ in range(2):
            step_of(wrapped, x, loss)()
    assert peak_without_warnings(wrapped, step_of(wrapped, x, loss)) <= refused.value.smallest


def test_a_layout_that_comes_later_is_planned_for_then_and_stays():
    wrapped, x = wrapped_deep(sequences, "85%")
    plain, transposed = step_of(wrapped, x, torch.sum), step_of(wrapped, x, second_classes)
    peak_without_warnings(wrapped, plain)
    with pytest.warns(RematWarning, match="planned again"):
        for _ in range(2):
            transposed()
    for step in (transposed, plain, transposed):
        assert peak_without_warnings(wrapped, step) <= remat.exec.report(wrapped).budget


def test_the_gradient_of_a_sum_takes_nothing_beside_its_copy():
    wrapped, x = wrapped_deep(images, "85%", loss_reserve="64KiB")
    assert peak_without_warnings(wrapped, step_of(wrapped, x, torch.sum)) <= remat.exec.report(wrapped).budget


def test_a_saved_plan_has_room_for_copies(tmp_path):
    build, loss = STEPS["copied"]
    wrapped, x = wrapped_deep(build, "85%")
    with pytest.warns(RematWarning, match="planned again"):
        for _ in range(2):
            step_of(wrapped, x, loss)()
    remat.exec.save_plan(wrapped, tmp_path / "plan.json")
    budget = remat.exec.report(wrapped).budget
    again, x = wrapped_deep(build, budget, plan=tmp_path / "plan.json")
    assert peak_without_warnings(again, step_of(again, x, loss)) <= budget
    assert remat.exec.report(again).origin
