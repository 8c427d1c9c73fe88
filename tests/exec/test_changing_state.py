"""State of Python that changes between steps is seen, whatever holds it; and what changes in every step is named."""

import collections
import functools
import warnings

import pytest
import torch
from torch import nn

import remat.exec
from remat.exec import RematWarning
from tests.exec.support import LIGHT

X = torch.linspace(-1, 1, 64).reshape(8, 8)
Pair = collections.namedtuple("Pair", "weight other")
WEIGHTS = (1.0, 2.0)


class Weighted(nn.Module):
    """Its loss is weighted by what a function finds in something held."""

    shared = (1.0,)

    def __init__(self, held, use):
        super().__init__()
        torch.manual_seed(0)
        self.linear, self.held, self.use = nn.Linear(8, 8), held, use

    def forward(self, x):
        return torch.tanh(self.linear(x)).square().mean() * self.use(self.held)


def with_default(weight):
    def weighted(scale=weight):
        return scale

    return weighted


def with_keyword(weight):
    def weighted(*, scale=weight):
        return scale

    return weighted


class Settings(dict):
    __getattr__ = dict.__getitem__


def wrapped_of(module, **options):
    return remat.exec.wrap(module, X, "1MiB", solver=LIGHT, on_uncapturable="raise", **options)


HELD = {
    "a tuple": (lambda weight: (weight, 2.0), lambda held: held[0]),
    "a tuple in a tuple": (lambda weight: (1.0, (weight,)), lambda held: held[1][0]),
    "a tuple in a dict": (lambda weight: {"key": (weight,)}, lambda held: held["key"][0]),
    "a named tuple": (lambda weight: Pair(weight, 1.0), lambda held: held.weight),
    "a frozen set": (lambda weight: frozenset(range(int(weight))), len),
    "a frozen set in a list": (lambda weight: [frozenset(range(int(weight)))], lambda held: len(held[0])),
    "a default": (with_default, lambda held: held()),
    "a default by keyword": (with_keyword, lambda held: held()),
    "an argument of a partial call": (lambda weight: functools.partial(max, weight), lambda held: held(-1.0)),
    "a factory": (lambda weight: collections.defaultdict(with_default(weight)), lambda held: held.default_factory()),
    "an attribute of a dict": (lambda weight: Settings(weight=weight), lambda held: held.weight),
}


@pytest.mark.parametrize("held", HELD)
def test_what_is_held_may_change(held):
    hold, use = HELD[held]
    wrapped = wrapped_of(Weighted(hold(1.0), use))
    for weight in (1.0, 3.0, 2.0, 1.0):
        wrapped.held = hold(weight)
        bare = Weighted(hold(weight), use)(X)
        assert torch.equal(wrapped(X), bare)
    assert len(wrapped.remat.plans) == 3


def test_tuples_of_a_class_and_of_a_file_may_change(monkeypatch):
    wrapped = wrapped_of(Weighted(None, lambda _: Weighted.shared[0] * WEIGHTS[1]))
    bare = Weighted(None, lambda _: Weighted.shared[0] * WEIGHTS[1])
    for weight in (1.0, 3.0):
        monkeypatch.setattr(Weighted, "shared", (weight,))
        monkeypatch.setitem(globals(), "WEIGHTS", (0.0, weight))
        assert torch.equal(wrapped(X), bare(X))


def test_settings_of_layers_may_change():
    conv = nn.Conv1d(8, 8, 3, padding=1)
    wrapped = wrapped_of(nn.Sequential(conv, nn.Tanh()))
    for dilation, padding in (((1,), (1,)), ((2,), (2,)), ((1,), (1,))):
        conv.dilation, conv.padding = dilation, padding
        assert torch.equal(wrapped(X), torch.tanh(conv(X)))


@pytest.mark.parametrize(
    "held, path", [(lambda step: step / 10, "self.held"), (lambda step: (step / 10,), "self.held"),
                   (lambda step: {"key": step / 10}, "self.held.key")]
)  # fmt: skip
def test_what_changes_in_every_step_is_named_once(held, path):
    wrapped = wrapped_of(
        Weighted(
            held(0),
            lambda held: held["key"] if isinstance(held, dict) else held[0] if isinstance(held, tuple) else held,
        )
    )
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for step in range(10):
            wrapped.held = held(step)
            wrapped(X)
    told = [str(warning.message) for warning in said if issubclass(warning.category, RematWarning)]
    assert [f"because {path} differs. Make it a tensor" in what for what in told] == [True]
