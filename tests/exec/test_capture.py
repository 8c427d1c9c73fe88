"""Capture, cost and lowering taken one by one: what becomes a node, what it costs, what the code looks like."""

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

import remat.exec
from remat.algorithms import StoreAll
from remat.errors import RematError, Uncapturable
from remat.exec._capture.complete import fits_layout
from remat.exec._program.inputs import make
from remat.exec._program.program import Role, Spec
from remat.exec._torch.devices import one_device
from remat.ir import Kind, Phase
from tests.exec.support import SMALL, Rig


def graph_of(name, **how):
    module, sample = SMALL[name].instantiate()
    captured = remat.exec.capture(module, sample, **how)
    return captured, remat.exec.build_graph(captured.program, remat.exec.estimate(captured.program))


def test_views_join_their_storage_and_cost_nothing():
    captured, graph = graph_of("gpt2")
    program = captured.program
    views = [op for op in program.ops if op.role is Role.VIEW]
    assert len(views) > 50
    assert not {op.name for op in views} & set(graph.node_index)
    for op in views:
        for name in op.outputs:
            assert program.values[name].storage not in {f"{op.name}.out", f"{op.name}.0"}


def test_nodes_know_their_module_their_twins_scope_and_signature():
    _, graph = graph_of("gpt2")
    scopes = {node.scope for node in graph.computes if node.phase is Phase.FORWARD}
    assert {"blocks.0.attention", "blocks.1.feed.0", "norm"} <= scopes
    late = [node for node in graph.computes if node.phase is Phase.BACKWARD]
    assert sum(node.scope.startswith("blocks.") for node in late) > len(late) / 2
    first = [node.signature for node in graph.computes if node.scope.startswith("blocks.0") and not node.run_once]
    second = [node.signature for node in graph.computes if node.scope.startswith("blocks.1") and not node.run_once]
    assert set(first) == set(second)


def test_kinds_say_what_lives_how_long():
    _, graph = graph_of("in-place")
    kinds = {kind: [datum for datum in graph.data if datum.kind is kind] for kind in Kind}
    assert len(kinds[Kind.PARAM_GRAD]) == 12
    assert len(kinds[Kind.TANGENT]) == 1 and kinds[Kind.TANGENT][0].size == 4
    assert len(kinds[Kind.UPDATED_BUFFER]) == 2 and all(datum.size == 0 for datum in kinds[Kind.UPDATED_BUFFER])
    assert len(kinds[Kind.BUFFER]) == 2
    captured, graph = graph_of("gpt2")
    norms = sum(str(op.target) == "aten.native_layer_norm.default" for op in captured.program.nodes)
    phantoms = [datum.name for datum in graph.data if datum.kind is Kind.PHANTOM and "layer_norm" in datum.name]
    assert norms > 2 and len(phantoms) == 2 * norms  # means and deviations, which only the backward reads
    _, graph = graph_of("frozen")
    assert [datum.name for datum in graph.data if datum.kind is Kind.INPUT_GRAD]


def test_batch_norm_statistics_are_no_reason_for_a_copy():
    captured, graph = graph_of("resnet")
    roles = [op.role for op in captured.program.nodes]
    norms = sum("batch_norm" in node.name and node.phase is Phase.FORWARD for node in graph.computes)
    assert norms > 5 and roles.count(Role.UPDATE) == 3 * norms and Role.SNAPSHOT not in roles
    assert not any(node.run_once for node in graph.computes if "batch_norm" in node.name)


def test_a_loss_outside_makes_tangents_of_the_outputs():
    captured, _ = graph_of("gpt2")
    module, (tokens, _) = SMALL["gpt2"].instantiate()
    captured = remat.exec.capture(module, (tokens,))
    graph = remat.exec.build_graph(captured.program, {}, loss_reserve=1000, loss_retained=10)
    (tangent,) = (datum for datum in graph.data if datum.kind is Kind.TANGENT)
    assert tangent.size == tokens.numel() * 32 * 4 + 10
    assert graph.computes[graph.loss].option.workspace == 1000


def test_capture_leaves_no_trace():
    module, sample = SMALL["resnet"].instantiate()
    before = {name: (one, one.clone()) for name, one in module.state_dict(keep_vars=True).items()}
    attributes = {inner: dict(inner.__dict__) for inner in module.modules()}
    state = torch.get_rng_state()
    remat.exec.capture(module, sample)
    assert torch.equal(state, torch.get_rng_state())
    for name, one in module.state_dict(keep_vars=True).items():
        assert one is before[name][0] and torch.equal(one, before[name][1])
    assert all(dict(inner.__dict__) == held for inner, held in attributes.items())


@pytest.mark.parametrize(
    ("forward", "reason"),
    [
        (lambda self, x: (self.linear(x).nonzero().float() + self.linear.bias.sum()).sum(), "X-TRACE"),
        (lambda self, x: (self.linear(x).sum(), object()), "X-OUTPUT"),
        (lambda self, x: self.linear(x)[self.linear(x) > 0].sum(), "X-TRACE"),
    ],
)
def test_what_cannot_be_one_graph_is_named(forward, reason):
    class Odd(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(4, 4)

    Odd.forward = forward
    with pytest.raises(Uncapturable) as refused:
        remat.exec.capture(Odd(), (torch.randn(3, 4),))
    assert refused.value.rule == reason


@pytest.mark.parametrize("tracer", ["log", "joint"])
def test_a_step_without_parameters_runs_where_its_inputs_are(tracer):
    class Loss(nn.Module):
        def forward(self, x, y):
            return (x.tanh() - y).square().mean()

    with FakeTensorMode():
        x, y = torch.empty(3, 4, device="meta", requires_grad=True), torch.empty(3, 4, device="meta")
    assert remat.exec.capture(Loss(), (x, y), as_run=False, tracer=tracer).program.device.type == "meta"
    assert (
        remat.exec.capture(Loss(), (torch.ones(3, 4, requires_grad=True), torch.ones(3, 4))).program.device.type
        == "cpu"
    )


def test_a_step_on_two_devices_is_refused():
    specs = [Spec((1,), (1,), torch.float32, torch.device(name)) for name in ("cpu", "cuda:1", "cuda:0")]
    assert one_device(specs[:2]) == specs[1].device and one_device(specs[:1]) == one_device(()) == specs[0].device
    with pytest.raises(Uncapturable, match=r"X-DEVICE.*cuda:0, cuda:1.*apart"):
        one_device(specs)


def test_tensors_in_plain_attributes_are_inputs_that_are_fetched_for_every_call():
    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(4, 4)
            self.inner.scale = torch.ones(4)
            self.tables = {"a": [torch.ones(4)]}

        def forward(self, x):
            return (self.inner(x) * self.inner.scale + self.tables["a"][0]).sum()

    module, x = Scaled(), torch.randn(3, 4)
    captured = remat.exec.capture(module, (x,))
    assert captured.lifted == ("self.inner.scale", "self.tables['a'][0]")
    wrapped = remat.exec.wrap(module, x, "100%", cost="estimate", on_uncapturable="raise")
    module.tables["a"][0] = torch.full((4,), 3.0)
    module.inner.scale = wrapped.inner.scale = torch.full((4,), 2.0)
    assert torch.equal(wrapped(x), module(x))
    assert remat.exec.report(wrapped).plans == 1


def test_two_losses_are_refused_where_one_was_asked_for():
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, x):
            out = self.linear(x)
            return out.sum(), out.mean()

    x = torch.randn(3, 4)
    assert remat.exec.capture(Two(), (x,)).differentiable == (0, 1)
    with pytest.raises(Uncapturable, match="which one is the loss"):
        remat.exec.capture(Two(), (x,), differentiable="loss")


def test_an_input_written_in_place_is_written_and_one_with_a_gradient_is_refused():
    class Scales(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, x):
            x.mul_(2)
            return self.linear(x).sum()

    torch.manual_seed(0)
    module, x = Scales(), torch.randn(3, 4)
    wrapped = remat.exec.wrap(module, (x,), "100%", cost="estimate", on_uncapturable="raise")
    expected = x.clone() * 2
    loss = wrapped(x)
    assert torch.equal(x, expected)
    loss.backward()
    assert torch.equal(module.linear.weight.grad[0], expected.sum(0))
    with pytest.raises(Uncapturable, match="in place"):
        remat.exec.capture(module, (x.clone().requires_grad_() * 1,))


# -- costs -------------------------------------------------------------------------------------------------------------------


def test_measuring_happens_once_per_signature_and_touches_nothing():
    module, sample = SMALL["gpt2"].instantiate()
    captured = remat.exec.capture(module, sample)
    state = torch.get_rng_state()
    known = {}
    costs = remat.exec.measure(captured.program, known)
    assert torch.equal(state, torch.get_rng_state())
    assert costs.keys() == {op.name for op in captured.program.nodes if op.role is not Role.LOSS}
    assert len(known) < len(costs) / 2
    before = dict(known)
    assert remat.exec.measure(captured.program, known) == costs and known == before
    assert all(cost.time > 0 for cost in costs.values())


def test_a_kernel_that_returns_a_small_result_in_a_large_block_is_charged_the_block():
    rig = Rig(nn.Sequential(nn.Linear(64, 64)), (torch.randn(64, 64),))
    assert rig.peak > 0
    module, sample = SMALL["mlp"].instantiate()
    rig = Rig(module, sample)
    assert rig.graph.datum("mse_loss.out").size == sample[1].numel() * 4


def test_estimates_are_the_same_every_time_and_rank_products_first():
    module = nn.Sequential(nn.Linear(256, 256), nn.GELU(), nn.Linear(256, 256))
    program = remat.exec.capture(module, (torch.randn(256, 256),)).program
    costs = remat.exec.estimate(program)
    assert costs == remat.exec.estimate(program)
    heaviest = max(costs, key=lambda name: costs[name].time)
    assert str(program.op_by_name[heaviest].target).startswith(("aten.mm", "aten.addmm", "aten.bmm"))


def test_made_inputs_have_the_shape_strides_and_range_asked_for():
    generator = torch.Generator().manual_seed(0)
    for dtype in (torch.float32, torch.int64, torch.bool, torch.complex64, torch.bfloat16):
        for shape, stride in (((3, 4), (1, 3)), ((3, 4), (0, 1)), ((), ()), ((0, 4), (4, 1)), ((2, 3), (10, 2))):
            tensor = make(Spec(shape, stride, dtype, torch.device("cpu")), 7, generator)
            assert (tuple(tensor.shape), tensor.stride(), tensor.dtype) == (shape, stride, dtype)
            if dtype is torch.int64 and tensor.numel():
                assert tensor.min() >= 0 and tensor.max() < 7


def test_layouts_that_autograd_keeps():
    cpu = torch.device("cpu")

    def spec(shape, stride):
        return Spec(shape, stride, torch.float32, cpu)

    plain = spec((4, 3), (3, 1))
    assert fits_layout(spec((4, 3), (3, 1)), plain)
    assert not fits_layout(spec((4, 3), (1, 4)), plain)
    assert fits_layout(spec((4, 3), (1, 4)), spec((4, 3), (1, 4)))
    assert fits_layout(spec((1, 3), (77, 1)), spec((1, 3), (3, 1)))
    assert fits_layout(spec((4, 3), (3, 1)), spec((4, 3), (6, 2)))  # a parameter with holes: a contiguous gradient


# -- lowering ----------------------------------------------------------------------------------------------------------------


def test_the_code_is_flat_and_frees_at_the_last_use():
    rig = Rig(*SMALL["mlp"].instantiate(), cost="estimate")
    lowered = remat.exec.lower(rig.program, rig.plan(rig.peak).schedule)
    lines = lowered.source.splitlines()
    assert lines[0] == "def forward(primals):" and any(line.startswith("def backward(") for line in lines)
    assert sum(line.strip().startswith("del ") for line in lines) > 10
    assert all(
        line.startswith("    ") and not line.startswith("     ") for line in lines if line and "def " not in line
    )


def test_a_schedule_with_copies_is_refused():
    from remat.ir import Offload, Schedule

    rig = Rig(*SMALL["mlp"].instantiate(), cost="estimate")
    steps = list(StoreAll().solve(problem(rig)).schedule.steps)
    steps.insert(3, Offload(rig.graph.computes[0].writes[0]))
    with pytest.raises(RematError, match="copies"):
        remat.exec.lower(rig.program, Schedule(tuple(steps)))


def problem(rig):
    from remat.algorithms import Problem

    return Problem(graph=rig.graph, budget=rig.peak)
