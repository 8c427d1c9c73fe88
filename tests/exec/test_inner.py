"""Plans through a compiler: the same numbers, the same draws, and a peak that is measured and kept within the budget."""

import copy
import functools

import pytest
import torch
from torch import nn

import remat.exec
from remat.errors import BackendMissing, Infeasible
from remat.exec import RematWarning
from remat.exec._module.compiling import compile_plans
from remat.exec._torch.inductor import check_compiler
from remat.integrations.compile_backend import backend
from tests.exec.support import LIGHT, train

NEAR = 1e-9
"""How far apart float64 results may be, relative to the largest entry: decompositions round in their own order."""


def interpreted(graph, inputs, *, is_backward):
    """A compiler that runs the graph as it was given, and frees what is not read again."""
    runner = torch.fx.Interpreter(graph)
    return lambda arguments: runner.boxed_run(arguments)


def holding(size):
    """A compiler whose backward takes more memory than the graph needs [bytes]; `size` is called for each compilation."""

    def compiler(graph, inputs, *, is_backward):
        code, extra = interpreted(graph, inputs, is_backward=is_backward), size() if is_backward else 0

        def run(arguments):
            torch.empty(extra, dtype=torch.uint8)
            return code(arguments)

        return run

    return compiler


def compiled(model, budget, compiler=interpreted, **settings):
    how = {"solver": LIGHT, "cost": "estimate", "on_uncapturable": "raise"}
    wrapped = remat.exec.wrap(model, None, budget, **how | settings)
    compile_plans(wrapped, compiler)
    return wrapped


def gaps(bare, other):
    """The largest gap of each kind of what two trainings left, relative to the largest entry."""
    worst = {}
    for step, again in zip(bare, other, strict=True):
        for kind in ("out", "grad", "buffer", "random"):
            pairs = zip(step[kind], again[kind], strict=True) if kind == "out" else [
                (value, again[kind][name]) for name, value in step[kind].items()
            ]  # fmt: skip
            for value, found in pairs:
                assert (value is None) == (found is None), kind
                if value is not None and value.numel():
                    gap = (value.double() - found.double()).abs().max() / (value.double().abs().max() + 1e-30)
                    worst[kind] = max(worst.get(kind, 0.0), gap.item())
    return worst


class Pictures(nn.Module):
    """Buffers that a step writes, operations in place, convolutions in another layout."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Conv2d(3, 4, 3, bias=False), nn.Conv2d(4, 4, 3)
        self.norm, self.head = nn.BatchNorm2d(4), nn.Linear(4, 2)

    def forward(self, x):
        x = torch.relu_(self.norm(self.first(x)).to(memory_format=torch.channels_last))
        x = nn.functional.dropout(self.second(x), 0.2).add_(1)
        return self.head(x.mean((2, 3))).square().mean()


def test_a_plan_through_a_compiler_computes_what_the_module_computes():
    bare, sample = Pictures().double(), (torch.linspace(-1, 1, 600, dtype=torch.float64).reshape(2, 3, 10, 10),)
    wrapped = compiled(copy.deepcopy(bare), "100%", on_infeasible="best")
    worst = gaps(train(bare, sample, 2), train(wrapped, sample, 2))
    assert max(worst.values()) < NEAR and worst["random"] == 0 and worst["buffer"] >= 0
    assert remat.exec.report(wrapped).ran == "plan" and remat.exec.report(wrapped).inner


class Noise(nn.Module):
    def forward(self, x):
        return x * torch.rand_like(x)


class Chain(nn.Module):
    """Layers whose noise has to be drawn again where they are recomputed."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(
            *(nn.Sequential(nn.Linear(16, 16), nn.GELU(), Noise(), nn.Dropout(0.3)) for _ in range(5))
        )

    def forward(self, x):
        return self.layers(x).square().mean()


def chain():
    return Chain().double(), (torch.linspace(-1, 1, 256 * 16, dtype=torch.float64).reshape(256, 16),)


def test_what_is_recomputed_draws_what_was_drawn_first():
    bare, sample = chain()
    wrapped = compiled(copy.deepcopy(bare), "45%", on_infeasible="best")
    worst = gaps(train(bare, sample, 2), train(wrapped, sample, 2))
    report = remat.exec.report(wrapped)
    assert any(report.graph.node(name).draws for name in reruns(report))
    assert max(worst.values()) < NEAR and worst["random"] == 0


def reruns(report):
    seen, again = set(), set()
    for run in report.schedule.runs:
        (again if run.node in seen else seen).add(run.node)
    return again


def test_code_that_holds_more_than_its_plan_is_planned_again_within_the_budget():
    model, sample = chain()
    plain = remat.exec.wrap(copy.deepcopy(model), sample, "75%", solver=LIGHT, cost="estimate")
    budget = remat.exec.report(plain).budget
    wrapped = compiled(model, budget, holding(lambda: 60_000))
    call = functools.partial(step, wrapped, sample)
    call()
    report = remat.exec.report(wrapped)
    assert report.budget == budget and report.inner.count("planned for") > 1
    assert max(report.predicted_peak, report.measured_peak) <= budget
    for parameter in wrapped.parameters():
        parameter.grad = None
    assert remat.exec.measure_step(call).peak <= budget


def step(module, sample):
    module(*sample).backward()


def test_a_budget_that_no_code_keeps_is_refused_with_what_was_tried():
    model, sample = chain()
    with pytest.raises(
        Infeasible, match=r"code by Inductor holds at most .*: planned for \d+ B it held \d+ B"
    ) as refused:
        compiled(model, "60%", holding(lambda: 50_000_000))(*sample)
    assert refused.value.smallest > 50_000_000 > refused.value.budget
    wrapped = compiled(model, "60%", holding(lambda: 50_000_000), on_infeasible="best")
    with pytest.warns(RematWarning, match="no plan was found whose code by Inductor holds"):
        wrapped(*sample)
    assert remat.exec.report(wrapped).budget > 50_000_000 > remat.exec.report(wrapped).asked


def test_gradients_of_outputs_come_in_the_layout_that_the_backward_was_compiled_for():
    def strict(graph, inputs, *, is_backward):
        code = interpreted(graph, inputs, is_backward=is_backward)

        def run(arguments):
            assert [a.stride() for a in arguments] == [a.stride() for a in inputs]
            return code(arguments)

        return run

    torch.manual_seed(0)
    bare = nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.Linear(8, 4)).double()
    wrapped = compiled(copy.deepcopy(bare), "100%", strict, loss_reserve="4KiB", on_infeasible="best")
    x, labels = torch.randn(3, 5, 6, dtype=torch.float64), torch.randint(4, (3, 5))
    for module in (bare, wrapped):
        nn.functional.cross_entropy(module(x).transpose(1, 2), labels).backward()
    for one, two in zip(bare.parameters(), wrapped.parameters(), strict=True):
        torch.testing.assert_close(one.grad, two.grad)


class Two(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.body, self.one, self.two = nn.Linear(6, 6), nn.Linear(6, 2), nn.Linear(6, 2)

    def forward(self, x):
        x = torch.tanh(self.body(x))
        return self.one(x), self.two(x).log()


def test_an_output_without_a_gradient_leaves_its_parameters_without():
    bare = Two().double()
    wrapped, x = (
        compiled(copy.deepcopy(bare), "100%", loss_reserve="4KiB", on_infeasible="best"),
        torch.randn(3, 6).double(),
    )
    for module in (bare, wrapped):
        module(x)[0].sum().backward()
    assert wrapped.two.weight.grad is None
    torch.testing.assert_close(bare.body.weight.grad, wrapped.body.weight.grad)


def test_anomaly_detection_names_the_operation_of_the_plan():
    wrapped = compiled(Two().double(), "100%", loss_reserve="4KiB", on_infeasible="best")
    out = wrapped(torch.randn(3, 6).double())[1]
    with (
        torch.autograd.detect_anomaly(check_nan=True),
        pytest.raises(Exception, match=r"X-NAN.*first made by aten.div"),
    ):
        out.backward(torch.full_like(out, torch.nan))


class Attending(nn.Module):
    """A block of attention and a perceptron, with dropout: what the compiler makes takes seconds a block."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.mixer = nn.Linear(32, 96)
        self.layer = nn.Sequential(nn.LayerNorm(32), nn.Linear(32, 64), nn.GELU(), nn.Dropout(0.1), nn.Linear(64, 32))

    def forward(self, x):
        x = x + nn.functional.scaled_dot_product_attention(*self.mixer(x).chunk(3, -1))
        return (x + self.layer(x)).square().mean()


def attending():
    return Attending(), (torch.linspace(-1, 1, 8 * 64 * 32).reshape(8, 64, 32),)


@pytest.mark.slow
def test_inductor_keeps_the_budget_and_computes_what_it_computes_without_a_plan():
    """Of a block with dropout; models are in `bench_peers --inductor`."""
    check_or_skip()
    bare, sample = attending()
    wrapped = remat.exec.wrap(
        copy.deepcopy(bare), None, "75%", solver=LIGHT, on_uncapturable="raise", on_infeasible="best"
    )
    compile_plans(wrapped)
    worst = gaps(train(bare, sample, 2), train(wrapped, sample, 2))
    assert worst["random"] == 0 and max(worst.values()) < 1e-4
    report = remat.exec.report(wrapped)
    assert report.reruns
    for parameter in wrapped.parameters():
        parameter.grad = None
    assert remat.exec.measure_step(functools.partial(step, wrapped, sample)).peak <= report.budget


def check_or_skip():
    try:
        check_compiler(torch.device("cpu"))
    except BackendMissing as missing:
        pytest.skip(str(missing))


def test_without_a_compiler_the_door_says_what_to_install(monkeypatch):
    from torch._inductor import cpp_builder, exc

    def none():
        raise exc.InvalidCxxCompiler

    monkeypatch.setattr(cpp_builder, "get_cpp_compiler", none)
    with pytest.raises(BackendMissing, match=r"X-INNER.*no C\+\+ compiler.*install g\+\+"):
        backend(nn.Identity(), [torch.ones(2)], options={"budget": "80%", "inner": "inductor"})
