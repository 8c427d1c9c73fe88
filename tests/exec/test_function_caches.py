"""What a trace leaves in caches of functions: nothing that stands for a tensor."""

import functools
import importlib
import sys

import pytest
import torch
from torch import nn

import remat.exec
from tests.exec.support import LIGHT

X = torch.linspace(-1, 1, 64).reshape(8, 8)


@functools.lru_cache(None)
def lower_triangle(size):
    return torch.tril(torch.ones(size, size))


@functools.lru_cache(2)
def places(size):
    return {"places": (torch.arange(size).float()[:, None], size)}


def attribute(size):
    if not hasattr(attribute, "kept"):
        attribute.kept = torch.ones(size, 1)
    return attribute.kept


class Cached(nn.Module):
    def __init__(self, kind):
        super().__init__()
        torch.manual_seed(0)
        self.linear, self.kind = nn.Linear(8, 8), kind

    @functools.lru_cache(None)  # noqa: B019
    def mask(self, size):
        return torch.linspace(0, 1, size)[:, None]

    def forward(self, x):
        if self.kind == "function":
            x = lower_triangle(len(x)) @ x
        elif self.kind == "nested":
            x = x + places(len(x))["places"][0]
        elif self.kind == "attribute":
            x = x * attribute(len(x))
        else:
            x = x * self.mask(len(x))
        return torch.tanh(self.linear(x)).square().mean()


@pytest.fixture(autouse=True)
def empty():
    for cache in (lower_triangle, places, Cached.mask):
        cache.cache_clear()
    vars(attribute).pop("kept", None)


@pytest.mark.parametrize("filled", [False, True])
@pytest.mark.parametrize("kind", ["function", "nested", "method", "attribute"])
def test_caches_hold_plain_tensors_after_a_trace(kind, filled):
    module, bare = Cached(kind), Cached(kind)
    if filled:
        with torch.no_grad():
            module(X)
    wrapped = remat.exec.wrap(module, X, "100%", solver=LIGHT, on_uncapturable="raise")
    for tensor in (lower_triangle(8), places(8)["places"][0], module.mask(8), attribute(8)):
        assert type(tensor) is torch.Tensor
    for model in (wrapped, bare, module):
        loss = model(X)
        loss.backward()
        assert torch.equal(loss, bare(X))
    assert remat.exec.report(wrapped).ran == "plan"


def test_other_caches_keep_what_they_hold():
    lower_triangle(3)
    remat.exec.wrap(Cached("nested"), X, "100%", solver=LIGHT)
    assert lower_triangle.cache_info().currsize == 1


class Importing(nn.Module):
    """Imports a file in its forward, whose function has a cache."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x):
        module = importlib.import_module("imported_by_a_forward")
        return torch.tanh(self.linear(x * module.scale(len(x)))).square().mean()


def test_a_cache_that_the_forward_imports_holds_plain_tensors(tmp_path, monkeypatch):
    source = "import functools, torch\n\n@functools.lru_cache(None)\ndef scale(size):\n    return torch.ones(size, 1)\n"
    (tmp_path / "imported_by_a_forward.py").write_text(source)
    monkeypatch.syspath_prepend(str(tmp_path))
    module = Importing()
    try:
        wrapped = remat.exec.wrap(module, X, "100%", solver=LIGHT, on_uncapturable="raise")
        assert type(sys.modules["imported_by_a_forward"].scale(8)) is torch.Tensor
        assert torch.equal(wrapped(X), module(X))
    finally:
        sys.modules.pop("imported_by_a_forward", None)
