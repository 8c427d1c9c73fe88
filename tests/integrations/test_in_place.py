"""Wrapping in place: the module stays the same object, trains as a wrapped one, and can be made what it was."""

import copy
import functools
import inspect
import pickle
import types

import pytest
import torch
from torch import nn

import remat.exec
from remat.errors import BadArgument
from remat.integrations import RematArguments
from tests.exec.support import LIGHT

EASY = {"solver": LIGHT, "rehearse": False, "cost": "estimate", "on_uncapturable": "raise"}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(*(layer for _ in range(4) for layer in (nn.Linear(16, 16), nn.GELU())))

    def forward(self, x, scale=1.0):
        return self.layers(x).square().mean() * scale


def twice(self, x, scale=1.0):
    return Net.forward(self, x, scale) * 2


X = torch.linspace(-1, 1, 64 * 16).reshape(64, 16)


def grads(module, *args):
    module.zero_grad(set_to_none=True)
    module(*args).backward()
    return [p.grad.clone() for p in module.parameters()]


def same(one, two):
    return all(torch.equal(*pair) for pair in zip(one, two, strict=True))


def test_the_module_itself_trains_within_the_budget_and_is_made_what_it_was():
    model = Net()
    before, attributes = grads(model, X), dict(vars(model))
    assert remat.exec.wrap_in_place(model, "80%", **EASY) is model
    assert isinstance(model, Net) and type(model).__name__ == "Net"
    assert same(before, grads(model, X)) and remat.exec.report(model).reruns > 0
    assert remat.exec.unwrap(model) is model and type(model) is Net
    assert vars(model).keys() == attributes.keys() and same(before, grads(model, X))
    with pytest.raises(BadArgument, match="X-ARG"):
        remat.exec.unwrap(model)


def test_what_holds_the_module_already_calls_the_planned_one():
    model = Net()
    around = nn.Sequential(model)
    remat.exec.wrap_in_place(model, "80%", **EASY)
    around(X).backward()
    assert remat.exec.report(around[0]).ran == "plan"


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_forward_set_on_the_instance_stays(when):
    bare = Net()
    bare.forward = types.MethodType(twice, bare)
    model = Net()
    if when == "before":
        model.forward = types.MethodType(twice, model)
    remat.exec.wrap_in_place(model, "80%", **EASY)
    if when == "after":
        model.forward = types.MethodType(twice, model)
    assert same(grads(bare, X), grads(model, X)) and remat.exec.report(model).ran == "plan"
    remat.exec.unwrap(model)
    assert vars(model)["forward"].__func__ is twice and same(grads(bare, X), grads(model, X))


def test_a_forward_that_is_read_has_the_signature_of_the_one_that_was_set():
    model = remat.exec.wrap(Net(), X, "80%", **EASY)
    assert list(inspect.signature(model.forward).parameters) == ["x", "scale"]
    model.forward = types.MethodType(twice, model)
    assert list(inspect.signature(model.forward).parameters) == ["x", "scale"]
    model.forward = functools.partial(twice, model)
    assert list(inspect.signature(model.forward).parameters) == ["x", "scale"]
    del model.forward
    assert "forward" not in vars(model) and same(grads(Net(), X), grads(model, X))


@pytest.mark.parametrize("kind", [types.MethodType, functools.partial])
@pytest.mark.parametrize("copied", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
def test_copies_keep_a_forward_that_was_set(kind, copied):
    if kind is types.MethodType and copied is not copy.deepcopy:
        pytest.skip("Python pickles a method by its name in the class")
    model = remat.exec.wrap(Net(), X, "80%", **EASY)
    model.forward = kind(twice, model)
    expected, other = grads(model, X), copied(model)
    assert other.forward.__self__ is other
    model.layers = nn.Identity()  # what the copy runs is its own
    assert same(expected, grads(other, X)) and remat.exec.report(other).ran == "plan"


def test_plans_are_given_to_what_is_wrapped_already(tmp_path):
    model = remat.exec.wrap(Net(), X, "80%", **EASY)
    remat.exec.save_plan(model, tmp_path / "plan.json")
    other = remat.exec.wrap_in_place(Net(), "80%", **EASY)
    remat.exec.give_plans(other, tmp_path / "plan.json")
    other(X).backward()
    assert remat.exec.report(other).origin
    with pytest.raises(BadArgument, match="X-ARG"):
        remat.exec.give_plans(Net(), tmp_path / "plan.json")


def test_a_training_script_has_the_defaults_of_wrap():
    defaults = inspect.signature(remat.exec.wrap).parameters
    settings = RematArguments("80%").settings()
    assert "on_uncapturable" in settings
    assert settings == {name: defaults[name].default for name in settings}


class Rebuilt(nn.Linear):
    """Says by which call it is copied."""

    copies = 0

    def __reduce__(self):
        return _rebuilt, (self.in_features, self.state_dict())


def _rebuilt(width, state):
    module = Rebuilt(width, 1)
    module.load_state_dict(state)
    module.copies = 1
    return module


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
def test_a_class_that_says_how_it_is_copied_is_heeded(copied):
    wrapped = remat.exec.wrap(Rebuilt(3, 1), None, 10**6)
    twin = copied(wrapped)
    assert (twin.copies, twin.remat.plans, type(twin)) == (1, (), type(wrapped))
    assert torch.equal(twin.weight, wrapped.weight)


class Scaled(nn.Linear):
    """Its forward needs no module."""

    @staticmethod
    def forward(x, scale=2.0):
        return (x * scale).sum()


def test_a_forward_without_a_module_takes_what_it_took():
    bare = Scaled(3, 1)
    assert inspect.signature(remat.exec.wrap(bare).forward) == inspect.signature(bare.forward)


def test_a_module_under_dtr_alone_says_whom_to_ask():
    with pytest.raises(BadArgument, match=r"X-REPORT.*dtr_report"):
        _ = remat.exec.dtr(nn.Linear(3, 1), 10**6).remat.plans


def test_a_sample_is_refused_with_what_to_give_instead():
    with pytest.raises(BadArgument, match="shapes="):
        remat.exec.wrap_in_place(nn.Linear(2, 2), "50%", sample=torch.ones(1, 2))
