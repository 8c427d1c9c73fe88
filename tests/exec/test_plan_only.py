import resource

import pytest
import torch
from torch import nn
from torch.nn import functional

from remat.errors import RematError, Uncapturable
from remat.exec._capture.capturing import capture
from remat.exec._cost.devices import device_model
from remat.exec._plan.costing import SCALARS
from remat.exec._trace import tape
from remat.exec._trace.tape import evaluate
from remat.exec.weightless import capture_without_weights, graph_without_weights
from remat.ir import Phase, Schedule, validate
from remat.units import GiB
from remat.zoo.catalog import cases
from remat.zoo.gpt2 import GPT2
from remat.zoo.unet import UNet

TERA = 1 << 40


def little_gpt():
    return without_dropout(GPT2(layers=2, width=32, heads=2, context=16)), (
        torch.randint(0, 256, (2, 16)),
        torch.randint(0, 256, (2, 16)),
    )


def little_unet():
    return UNet(levels=2, channels=4), (torch.randn(2, 3, 16, 16), torch.randn(2, 1, 16, 16))


def without_dropout(module):
    """Dropout is what an accelerator runs as one kernel and a CPU as three operations; all else is captured alike."""
    for inner in list(module.modules()):
        for name, child in inner.named_children():
            if isinstance(child, nn.Dropout):
                setattr(inner, name, nn.Identity())
        if isinstance(inner, nn.MultiheadAttention):
            inner.dropout = 0.0
    return module


@pytest.mark.parametrize("case", cases("small"), ids=lambda one: one.name)
def test_every_model_of_the_catalog_is_captured_as_the_real_one_is(case, recwarn):
    def factory():
        return without_dropout(case.build()), case.sample()

    module, args = factory()
    real = capture(module, args).program
    fake = capture_without_weights(factory).captured.program
    assert [(op.name, op.reads) for op in real.ops] == [(op.name, op.reads) for op in fake.ops]
    assert not [one for one in recwarn if "FakeTensor" in str(one.message)]


def test_dropout_without_weights_is_the_kernel_of_an_accelerator():
    def factory():
        return nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.1), nn.Linear(8, 1)), torch.randn(4, 8)

    module, x = factory()
    names = [str(op.target) for op in capture_without_weights(factory).captured.program.nodes]
    assert names.count("aten.native_dropout.default") == 1
    assert "aten.native_dropout.default" not in [str(op.target) for op in capture(module, (x,)).program.nodes]


@pytest.mark.parametrize("factory", [little_gpt, little_unet])
def test_the_graph_is_the_one_of_the_real_model(factory):
    module, args = factory()
    real = capture(module, args).program
    weightless = capture_without_weights(factory)
    fake = weightless.captured.program
    assert [(op.name, op.reads, op.outputs, op.phase, op.scope) for op in real.ops] == [
        (op.name, op.reads, op.outputs, op.phase, op.scope) for op in fake.ops
    ]
    assert {name: one.size for name, one in real.storages.items()} == {
        name: one.size for name, one in fake.storages.items()
    }
    assert weightless.parameters == sum(
        4 * one.numel() if one.dtype is torch.float32 else one.numel() * one.element_size()
        for one in (*module.parameters(), *module.buffers())
    )
    v100 = device_model("v100")
    graph = weightless.graph()
    assert {node.name: node.option.time for node in graph.computes if node.phase is not Phase.LOSS} == {
        name: one.time for name, one in v100.costs(real).items()
    }


def test_a_model_of_a_terabyte_takes_no_memory():
    def factory():
        side = 1 << 19
        return Squared(side), torch.randn(4, side)

    class Squared(nn.Module):
        def __init__(self, side):
            super().__init__()
            self.layer = nn.Linear(side, side, bias=False)

        def forward(self, x):
            return self.layer(x).relu().sum()

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    weightless = capture_without_weights(factory)
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
    assert weightless.parameters == TERA
    graph = weightless.graph()
    peak = validate(graph, Schedule.from_runs(graph, range(len(graph)))).peak
    assert peak >= TERA
    assert grown < GiB // 4


def test_the_generator_stands_where_it_stood():
    before = torch.get_rng_state()
    graph_without_weights(little_gpt)
    assert torch.equal(before, torch.get_rng_state())


def test_keywords_and_a_single_tensor_are_arguments_too():
    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(8, 8)

        def forward(self, x, *, scale=None):
            out = self.layer(x)
            return out.sum() if scale is None else (out * scale).sum()

    alone = graph_without_weights(lambda: (Scaled(), torch.randn(2, 8)))
    scaled = graph_without_weights(lambda: (Scaled(), [torch.randn(2, 8)], {"scale": torch.randn(8)}))
    assert len(scaled) == len(alone) + 2  # the product, and its backward


def test_a_loss_outside_the_module_is_reserved_for():
    def factory():
        return nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 64)), torch.randn(32, 64)

    weightless = capture_without_weights(factory)
    (guessed,), (said,) = (
        [node.option.workspace for node in graph.computes if node.phase is Phase.LOSS]
        for graph in (weightless.graph(), weightless.graph(loss_reserve=12345))
    )
    assert guessed == 2 * 4 * 32 * 64
    assert said == 12345 - SCALARS


def test_an_unknown_device_is_refused_before_anything_is_built():
    def never():
        raise AssertionError("the factory was called")

    with pytest.raises(RematError, match="X-DEVICE-MODEL"):
        graph_without_weights(never, device="abacus")


@pytest.mark.parametrize(
    ("factory", "says"),
    [
        (lambda: nn.Linear(2, 2), "returned Linear alone"),
        (lambda: (nn.Linear(2, 2),), "returned a tuple of 1"),
        (lambda: (nn.Linear(2, 2), 3), "no tuple"),
        (lambda: (nn.Linear(2, 2), (torch.randn(3, 2),), 5), "no dict"),
        (lambda: (nn.Linear(int(torch.randint(2, (1,)).item()), 2), torch.randn(2, 2)), "failed under fake tensors"),
        (lambda: (nn.Linear(2, 2), torch.randn(-1, 2)), "test_plan_only.py, line"),
    ],
    ids=["module", "short", "arguments", "keywords", "values", "negative"],
)
def test_a_factory_that_gives_something_else_is_refused(factory, says):
    with pytest.raises(RematError, match=says) as caught:
        capture_without_weights(factory)
    assert caught.value.rule == "X-FACTORY"


def test_real_tensors_from_outside_the_factory_are_named():
    module, sample = nn.Linear(2, 2), torch.randn(3, 2)
    with pytest.raises(RematError, match="weight is a real tensor"):
        capture_without_weights(lambda: (module, torch.randn(3, 2)))
    with pytest.raises(RematError, match="argument 0 is a real tensor"):
        capture_without_weights(lambda: (nn.Linear(2, 2), sample))


def test_a_step_that_reads_values_cannot_be_captured_without_them():
    class Branching(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(2, 2)

        def forward(self, x):
            out = self.layer(x)
            return functional.relu(out).sum() if out.sum() > 0 else out.sum()

    with pytest.raises(Uncapturable):
        capture_without_weights(lambda: (Branching(), torch.randn(3, 2)))


class Placed(nn.Module):
    """Keeps a constant tensor as a plain attribute."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 8)
        self.place = torch.randn(4, 8)

    def forward(self, x):
        return self.layer(x + self.place).square().mean()


def test_plain_tensors_in_attributes_have_no_memory_either():
    weightless = capture_without_weights(lambda: (Placed(), torch.randn(4, 8)))
    assert weightless.captured.lifted == capture(Placed(), (torch.randn(4, 8),), {}).lifted
    assert len(weightless.captured.lifted) == 1


def test_draws_that_a_factory_reads_are_not_all_drawn_again(monkeypatch):
    lengths = []

    def evaluated(instructions, tensors):
        lengths.append(len(instructions))
        return evaluate(instructions, tensors)

    def factory():
        layers = nn.Sequential(*(nn.Linear(8, 8) for _ in range(20)))
        for layer in layers:
            nn.init.trunc_normal_(layer.weight)
            assert not layer.weight.isnan().any()
        return layers, torch.randn(4, 8)

    monkeypatch.setattr(tape, "evaluate", evaluated)
    capture_without_weights(factory)
    assert len(lengths) >= 20 and max(lengths) < 40
