"""Gradients that are handed on as they are made: the same bits and peak, in a chain of nodes, where somebody waits for them."""

import copy

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import remat.exec
from remat.exec._run.runtime import StepError
from tests.exec.support import LIGHT, SMALL, differences, train

EASY = {"solver": LIGHT, "cost": "estimate", "rehearse": False, "on_uncapturable": "raise"}


class Deep(nn.Module):
    """Layers of equal size, with dropout, a tied weight and a second output."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(32, 32), nn.GELU(), nn.Dropout(0.2)) for _ in range(6))
        self.layers[4][0].weight = self.layers[1][0].weight
        self.other = nn.Linear(32, 2)

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x.square().mean(), self.other(x)


X = torch.linspace(-1, 1, 64 * 32).reshape(64, 32)


def wrapped(model, budget="60%", **settings):
    return remat.exec.wrap(model, X, budget, **EASY | {"loss_reserve": "4KiB"} | settings)


def awaited(model, hook=lambda parameter: None):
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.register_post_accumulate_grad_hook(hook)
    return model


def nodes_of(output):
    """Names of the nodes of a chain, from an output."""
    names, node = [], output.grad_fn
    while node is not None:
        names.append(type(node).__name__)
        node = next((edge for edge, _ in node.next_functions if "Later" in type(edge).__name__), None)
    return names


def test_a_chain_of_nodes_is_made_where_hooks_wait_for_single_gradients():
    model = wrapped(Deep())
    assert nodes_of(model(X)[0]) == ["StepBackward"]
    names = nodes_of(awaited(model)(X)[0])
    assert names[0] == "StepBackward" and 2 < len(names) <= 8 and set(names[1:]) == {"LaterBackward"}


@pytest.mark.parametrize("name", ["mlp", "frozen", "in-place"])
def test_gradients_that_are_handed_on_are_exact(name):
    bare, sample = SMALL[name].instantiate(torch.float32)
    model = remat.exec.wrap(copy.deepcopy(bare), sample, "80%", on_infeasible="best", **EASY)
    assert differences(train(bare, sample, 2), train(awaited(model), sample, 2)) == []


def test_a_tied_weight_gets_one_gradient_and_each_hook_runs_once():
    bare, model, seen = Deep(), wrapped(Deep()), []
    awaited(model, lambda parameter: seen.append(id(parameter)))
    assert differences(train(bare, (X,), 2), train(model, (X,), 2)) == []
    used = [parameter for name, parameter in model.named_parameters() if not name.startswith("other")]
    assert sorted(seen) == sorted(2 * [id(parameter) for parameter in used])


def test_the_backward_goes_on_after_the_first_gradients():
    class Log(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            events.append(str(func))
            return func(*args, **(kwargs or {}))

    events = []
    model = awaited(wrapped(Deep()), lambda parameter: events.append("gradient"))
    loss = model(X)[0]
    with Log():
        loss.backward()
    products = [at for at, event in enumerate(events) if event.startswith("aten.mm")]
    first = events.index("gradient")
    assert products[0] < first < products[len(products) // 2]


def test_the_peak_is_that_of_one_node_and_less_where_gradients_are_used_up():
    def used_up(parameter):
        parameter.grad = None

    peaks, few = {}, X[:4].clone()  # gradients of parameters are most of what such a step holds
    for name, hook in (("one node", None), ("chain", lambda parameter: None), ("used up", used_up)):
        model = wrapped(Deep(), "100%")
        if hook is not None:
            awaited(model, hook)
        for _ in range(2):
            for parameter in model.parameters():
                parameter.grad = None
            peaks[name] = remat.exec.measure_step(lambda model=model: model(few)[0].backward()).peak
    assert peaks["used up"] < peaks["chain"] == peaks["one node"]


def test_an_optimizer_in_the_backward_changes_no_gradient_that_comes_later():
    """Reruns and products of the planned backward read the weights that the forward read."""

    def step(parameter):
        with torch.no_grad():
            parameter.sub_(parameter.grad)
        parameter.grad = None

    torch.manual_seed(0)
    bare, many = nn.Sequential(*(layer for _ in range(6) for layer in (nn.Linear(32, 32), nn.Tanh()))), X.repeat(8, 1)
    for budget in ("100%", "1%"):
        model = remat.exec.wrap(copy.deepcopy(bare), many, budget, on_infeasible="best", **EASY)
        assert (remat.exec.report(model).reruns > 0) == (budget == "1%")
        modules = awaited(copy.deepcopy(bare), step), awaited(model, step)
        for module in modules:
            for _ in range(2):
                module(many).square().mean().backward()
        assert all(map(torch.equal, *(module.parameters() for module in modules)))


def test_the_default_device_may_be_another_one():
    bare, model = Deep(), awaited(wrapped(Deep()))
    with torch.device("meta"):
        assert differences(train(bare, (X,), 2), train(model, (X,), 2)) == []
    with torch.device("meta"):
        loss, _ = model(X)
    loss.backward()


def test_gradients_of_some_parameters_alone():
    bare, model = Deep(), awaited(wrapped(Deep()))
    for parameters in (lambda m: [m.layers[5][0].weight], lambda m: [m.layers[0][0].bias, m.layers[5][0].bias]):
        got = []
        for module in (bare, model):
            torch.manual_seed(1)
            got.append(torch.autograd.grad(module(X)[0], parameters(module)))
        assert all(map(torch.equal, *got))


def test_a_second_backward_and_a_second_derivative_are_refused():
    model = awaited(wrapped(Deep()))
    loss = model(X)[0]
    loss.backward(retain_graph=True)
    with pytest.raises(StepError, match="X-TWICE"):
        loss.backward()
    with pytest.raises(StepError, match="X-DOUBLE"):
        model(X)[0].backward(create_graph=True)


def test_a_hook_that_raises_ends_the_backward_and_the_next_step_is_right():
    def refuse(parameter):
        raise ValueError("no")

    bare, model = Deep(), wrapped(Deep())
    handle = model.layers[5][0].weight.register_post_accumulate_grad_hook(refuse)
    with pytest.raises(ValueError, match="no"):
        model(X)[0].backward()
    handle.remove()
    assert differences(train(bare, (X,), 2), train(awaited(model), (X,), 2)) == []


def test_under_a_profile_and_with_both_outputs_the_gradients_are_the_same():
    bare, model = Deep(), awaited(wrapped(Deep(), differentiable="all"))
    for module in (bare, model):
        torch.manual_seed(1)
        with torch.profiler.profile():
            sum(output.sum() for output in module(X)).backward()
    assert all(torch.equal(one.grad, two.grad) for one, two in zip(bare.parameters(), model.parameters(), strict=True))


def test_anomaly_detection_names_the_operation():
    model = awaited(wrapped(nn.Sequential(nn.Linear(32, 32), nn.GELU(), nn.Linear(32, 32)), "100%"))
    with torch.autograd.detect_anomaly(), pytest.raises(StepError, match=r"X-NAN.*first made by aten.mm"):
        model(X).backward(torch.full((64, 32), torch.nan))
