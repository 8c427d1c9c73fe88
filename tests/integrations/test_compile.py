"""`torch.compile` around, inside and below a wrapped module, and the door `backend="remat"`."""

import copy
import tomllib
from pathlib import Path

import pytest
import torch
from torch import nn

import remat.exec
from remat.errors import BadArgument
from remat.exec import RematWarning
from remat.exec._module import live
from remat.integrations.compile_backend import backend, regions
from remat.zoo import GPT2
from tests.exec.copying import FAST, CopyAll
from tests.exec.support import LIGHT, SMALL, differences, train

EASY = {"solver": LIGHT, "rehearse": False, "cost": "estimate", "on_uncapturable": "raise"}


class Net(nn.Module):
    def __init__(self, blocks=4):
        super().__init__()
        torch.manual_seed(0)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(16, 16), nn.GELU()) for _ in range(blocks))

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x.square().mean()


X = torch.linspace(-1, 1, 64 * 16).reshape(64, 16)


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    yield
    torch._dynamo.reset()


def trained(module, call=None, steps=3):
    return train(module, (X,), steps, call=None if call is None else call.__call__)


def breaks():
    return sum(torch._dynamo.utils.counters["graph_break"].values())


# -- around and inside -------------------------------------------------------------------------------------------------


def test_a_wrapped_module_that_is_compiled_is_one_opaque_region():
    wrapped = remat.exec.wrap(Net(), X, "80%", **EASY)
    compiled = torch.compile(wrapped, backend="eager")
    assert differences(trained(Net()), trained(wrapped, compiled)) == []
    assert breaks() <= 1 and remat.exec.report(wrapped).ran == "plan"


def test_a_module_that_is_wrapped_in_place_after_it_was_compiled_runs_its_plan():
    model = Net()
    compiled = torch.compile(model, backend="eager")
    remat.exec.wrap_in_place(model, "80%", **EASY)
    assert differences(trained(Net()), trained(model, compiled)) == []
    assert remat.exec.report(model).ran == "plan" and remat.exec.report(model).reruns > 0


def test_a_wrapped_block_of_a_compiled_model_is_one_break():
    class Around(nn.Module):
        def __init__(self, inner):
            super().__init__()
            self.head = inner

        def forward(self, x):
            return self.head(torch.sin(x)) * 2

    bare, model = Around(Net()), Around(remat.exec.wrap(Net(), budget="80%", loss_reserve="1KiB", **EASY))
    compiled = torch.compile(model, backend="eager")
    assert differences(trained(bare), trained(model, compiled)) == []
    assert breaks() == 1 and remat.exec.report(model.head).ran == "plan"


def test_fullgraph_says_what_to_do():
    compiled = torch.compile(remat.exec.wrap(Net(), X, "80%", **EASY), backend="eager", fullgraph=True)

    class Around(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = compiled._orig_mod

        def forward(self, x):
            return self.inner(x) * 2

    with pytest.raises(Exception, match=r'opaque region(.|\n)*backend="remat"'):
        torch.compile(Around(), backend="eager", fullgraph=True)(X)


@pytest.mark.parametrize("how", ["around", "in place"])
def test_a_compiled_module_is_planned_in_place_of_its_code_with_a_word(how):
    model = Net()
    if how == "around":
        model = torch.compile(model, backend="eager")
    else:
        model.compile(backend="eager")
    with pytest.warns(RematWarning, match="planned in place of the compiled code"):
        wrapped = remat.exec.wrap(model, X, "80%", **EASY)
    assert isinstance(wrapped, Net)
    assert differences(trained(Net()), trained(wrapped)) == []
    assert remat.exec.report(wrapped).ran == "plan" and remat.exec.report(wrapped).reruns > 0


def test_compiled_blocks_are_planned_as_they_were_written():
    model = Net()
    for at, block in enumerate(model.blocks):
        model.blocks[at] = torch.compile(block, backend="eager")
    wrapped = remat.exec.wrap(model, X, "80%", **EASY)
    one, two = trained(Net()), trained(wrapped)
    for step, other in zip(one, two, strict=True):
        other["grad"] = {name.replace("_orig_mod.", ""): grad for name, grad in other["grad"].items()}
        assert step["grad"].keys() == other["grad"].keys()
    assert differences(one, two) == [] and remat.exec.report(wrapped).reruns > 0


# -- the door ----------------------------------------------------------------------------------------------------------


def compiled(model, budget="80%", **options):
    how = {"solver": LIGHT, "cost": "estimate", "rehearse": False, "loss_reserve": "8KiB"}
    return torch.compile(model, backend=backend, options={"budget": budget} | how | options)


def test_the_door_is_an_entry_point():
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    module, _, name = project["entry-points"]["torch_dynamo_backends"]["remat"].partition(":")
    assert (module, name) == (backend.__module__, backend.__name__)


@pytest.mark.parametrize("name", sorted(SMALL))
def test_a_model_behind_the_door_is_exact(name):
    case = SMALL[name]
    bare, sample = case.instantiate(torch.float64)
    model = copy.deepcopy(bare)
    door = compiled(model, "90%", on_infeasible="best")
    assert differences(train(bare, sample, 2), train(model, sample, 2, call=door.__call__), case.tied) == []
    assert all(remat.exec.report(region).ran == "plan" for region in regions()) and regions()


def test_later_steps_behind_the_door_do_not_walk_over_the_graph_again(monkeypatch):
    model = torch.compile(Net(), backend=backend, options={"budget": "80%", **EASY})
    model(X).backward()
    walks, whole = [], live.Snapshot
    monkeypatch.setattr(live, "Snapshot", lambda *args: walks.append(args) or whole(*args))
    model(X).backward()
    assert walks == [] and remat.exec.report(regions()[-1]).ran == "plan"


def test_plans_behind_the_door_may_copy_to_the_host():
    bare, module = Net(), Net()
    options = {**EASY, "budget": "70%", "offload": FAST, "host_budget": "1MiB", "solver": CopyAll()}
    compiled = torch.compile(module, backend="remat", options=options)
    assert differences(trained(bare), trained(module, compiled)) == []
    assert remat.exec.report(regions()[-1]).copied.copies


def test_the_peak_behind_the_door_is_within_the_budget():
    torch.manual_seed(0)
    model = GPT2(layers=2, width=32, heads=2, vocabulary=64, context=32)
    tokens = torch.randint(64, (4, 32))
    door = compiled(model, "70%", cost="measure")
    for _ in range(2):
        model.zero_grad(set_to_none=True)
        door(tokens, tokens).backward()
    report = remat.exec.report(regions()[-1])
    model.zero_grad(set_to_none=True)
    assert report.reruns > 0
    assert remat.exec.measure_step(lambda: door(tokens, tokens).backward()).peak <= report.budget


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({}, "there is no budget"), ({"budget": "80%", "speed": 3}, "no option 'speed'"),
        ({"budget": "80%", "inner": "eager"}, "inner is 'eager'"),
    ],
)  # fmt: skip
def test_wrong_options_are_refused(options, says):
    with pytest.raises(BadArgument, match=says):
        backend(torch.nn.Identity(), [], options=options)
    with pytest.raises(BadArgument, match="mode"):
        backend(torch.nn.Identity(), [], options={"budget": "80%"}, mode="max-autotune")


def test_a_model_in_several_graphs_is_warned_of():
    class Broken(Net):
        def forward(self, x):
            x = self.blocks[0](x)
            torch._dynamo.graph_break()
            return super().forward(x)

    model = Broken()
    with pytest.warns(RematWarning, match="in 2 graphs"):
        door = compiled(model, "100%")
        door(X).backward()


def test_another_shape_is_no_second_graph(recwarn):
    model = Net()
    door = compiled(model)
    for rows in (64, 48, 32):
        door(X[:rows]).backward()
    assert not [one for one in recwarn if issubclass(one.category, RematWarning)]
