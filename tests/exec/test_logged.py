"""The log makes the program that the joint export makes, operation for operation, in eager's order, or says why it does not."""

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional as F

import remat.exec
from remat.errors import Uncapturable
from remat.exec import capture
from remat.exec._program.digest import program_digest
from remat.exec._program.program import Role
from remat.exec._torch.torch_private import DispatchMode
from tests.exec.support import SMALL, differences, train

FACTS = ("layout", "places", "requires_grad", "differentiable", "widened", "leaves", "lifted", "orders")


def both(module, args, **how):
    """The step as the log and as the export capture it; torch's cache of shapes is emptied between them."""
    captures = []
    for tracer in ("log", "joint"):
        FakeTensorMode.cache_clear()
        captures.append(capture(module, args, tracer=tracer, as_run=False, **how))
    return captures


def assert_same_program(module, args, **how):
    log, joint = both(module, args, **how)
    assert log.exported == joint.exported == ""
    ours, theirs = ([(op.name, op.target, op.args, op.scope) for op in step.program.ops] for step in (log, joint))
    assert ours == theirs
    assert program_digest(log.program) == program_digest(joint.program)
    for fact in FACTS:
        assert repr(getattr(log, fact)) == repr(getattr(joint, fact)), fact
    return log


@pytest.mark.parametrize("name", SMALL)
def test_a_model_of_the_zoo_is_logged_as_it_is_exported(name):
    module, sample = SMALL[name].instantiate(torch.float32)
    assert_same_program(module, sample)


class Double(torch.autograd.Function):
    """Its backward is not the derivative, so that nothing else could have made it."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return gradient * 3 + torch.sin(x)


class Odd(nn.Module):
    """A linear layer and a function of it."""

    def __init__(self, function, **parts):
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.register_buffer("seen", torch.zeros(4))
        self.function = function
        for name, part in parts.items():
            self.add_module(name, part)

    def forward(self, x):
        return self.function(self, self.linear(x))


def in_place_through_a_view(module, x):
    y = x * 1
    y[:, :2].mul_(2)
    y.t()[1].add_(1)
    return y.sum()


def several_outputs(module, x):
    return x.sin(), x[:, 1:], {"sum": x.sum(0)}


def buffers_written(module, x):
    module.seen.add_(x.detach().mean(0))
    return (x * module.seen).sum()


def casts(module, x):
    with torch.autocast("cpu", torch.bfloat16):
        return module.linear(module.linear(x)).float().sum()


def draws(module, x):
    return (F.dropout(x, 0.3) * torch.rand_like(x)).sum()


def literals(module, x):
    return (x * torch.tensor([1.0, -0.0, 2.0, 3.0])).sum() + torch.tensor(2.0)


def inner_gradient(module, x):
    (slope,) = torch.autograd.grad(x.square().sum(), x, create_graph=True)
    return slope.square().sum()


def hooked(module, x):
    y = x.sin()
    y.register_hook(lambda gradient: gradient * 0.5)
    return (y + y.cos()).sum()


def reads(module, x):
    return x.sum() if torch.ones(2).all() else x.mean()


ODD = (
    in_place_through_a_view, several_outputs, buffers_written, casts, draws, literals, inner_gradient, hooked, reads,
    lambda module, x: Double.apply(x).sum(), lambda module, x: (x, x.t()), lambda module, x: F.one_hot(x.argmax(1), 4) * x,
)  # fmt: skip


@pytest.mark.parametrize("function", ODD, ids=lambda function: function.__name__)
def test_an_odd_step_is_logged_as_it_is_exported(function):
    assert_same_program(Odd(function), (torch.randn(3, 4),), differentiable="all")


def test_an_argument_that_is_given_twice_is_one_input():
    class Two(nn.Module):
        def forward(self, x, y):
            return (x * y.sin()).sum()

    x = torch.randn(3, requires_grad=True)
    log = assert_same_program(Two(), (x, x))
    assert {about for _, about in log.program.inputs} == {0} == {about for kind, about in log.program.grads}


# -- eager's own log -------------------------------------------------------------------------------------------------------

SAME_TENSOR = ("detach", "clone", "empty_like", "lift_fresh", "alias", "ones_like")
"""What eager calls around its steps, or the program has in another form."""


class Names(DispatchMode):
    """The names of the operations that run, and the shapes of the tensors they read."""

    def __init__(self):
        super().__init__()
        self.calls = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        shapes = [tuple(arg.shape) for arg in args if isinstance(arg, torch.Tensor)]
        view = any(out.alias_info is not None and not out.alias_info.is_write for out in func._schema.returns)
        name = func._schema.name.removeprefix("aten::").removesuffix("_")
        if func.namespace == "aten" and not view and name not in (*SAME_TENSOR, "_unsafe_view"):
            self.calls.append((name, shapes))
        return result


@pytest.mark.parametrize("name", ["mlp", "gpt2"])
def test_the_log_has_the_calls_of_a_step_of_eager_in_their_order(name):
    module, sample = SMALL[name].instantiate(torch.float32)
    module.eval()  # dropout has a form of its own in the program
    program = capture(module, sample, tracer="log", fold_sums="none").program
    spec = {name: value.spec.shape for name, value in program.values.items()}
    ours = [
        (op.target._schema.name.removeprefix("aten::"), [spec[arg.name] for arg in op.args if hasattr(arg, "name")])
        for op in program.ops
        if op.role is Role.CALL and str(op.target) not in ("aten.clone.default", "aten._unsafe_view.default")
    ]
    with Names() as eager:
        out = module(*sample)
        (out[0] if isinstance(out, tuple) else out).backward()
    assert ours == eager.calls


# -- exactness beyond the export -------------------------------------------------------------------------------------------


class ThreeUses(nn.Module):
    """One weight, three uses of different scale: the order of the sum shows in the bits."""

    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(40, 16)
        self.inner, self.head = nn.Linear(16, 40, bias=False), nn.Linear(16, 40, bias=False)
        self.inner.weight = self.head.weight = self.words.weight

    def forward(self, tokens):
        hidden = self.words(tokens)
        hidden = hidden + self.inner(hidden * 3).softmax(-1) @ self.words.weight / 7
        return F.cross_entropy(self.head(hidden).flatten(0, 1), tokens.flatten())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_three_uses_of_a_tied_weight_are_added_in_the_order_of_eager(dtype):
    def made():
        torch.manual_seed(1)
        return ThreeUses().to(dtype), (torch.randint(0, 40, (4, 9)),)

    module, sample = made()
    wrapped = remat.exec.wrap(module, sample, "100%", cost="estimate", rehearse=False)
    assert remat.exec.report(wrapped).exported == ""
    assert differences(train(*made()), train(wrapped, sample)) == []


# -- what the log leaves to the export -------------------------------------------------------------------------------------


class BackwardThatWrites(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, seen):
        ctx.seen = seen
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        ctx.seen.add_(1)
        return gradient, None


class BackwardWithACondition(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        return torch.cond(gradient.sum() > 0, lambda g: g * 2, lambda g: g * 3, (gradient,))


@pytest.mark.parametrize(
    "function",
    [
        lambda module, x: BackwardThatWrites.apply(x, module.seen).sum(),
        lambda module, x: BackwardWithACondition.apply(x).sum(),
        lambda module, x: (module.linear.weight.mul_(1), x.sum())[1],
    ],
    ids=["a-backward-that-writes", "a-condition-in-a-backward", "a-trained-parameter-written"],
)
def test_what_is_not_understood_is_refused_by_the_log(function):
    with pytest.raises(Uncapturable):
        capture(Odd(function), (torch.randn(3, 4),), tracer="log")


def test_gradients_of_the_shape_that_a_parameter_had_before_are_not_traced():
    module, other = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)), nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 6))
    module(torch.randn(2, 4)).sum().backward()
    for layers in (module, other):
        layers[1].weight = layers[0].weight
    old = [parameter.grad for parameter in module.parameters()]
    for parameter, fresh in zip(module.parameters(), other.parameters(), strict=True):
        parameter.data = fresh.detach()
    ours, theirs = (capture(layers, (torch.randn(2, 6),), tracer="log", as_run=False) for layers in (module, other))
    assert program_digest(ours.program) == program_digest(theirs.program)
    assert all(parameter.grad is grad for parameter, grad in zip(module.parameters(), old, strict=True))


def test_a_step_that_the_log_refuses_is_exported_and_the_report_says_why(monkeypatch):
    def refuses(*_):
        raise NotImplementedError("no.")

    monkeypatch.setattr("remat.exec._trace.tracing.log_joint", refuses)
    module = Odd(draws)
    wrapped = remat.exec.wrap(module, (torch.randn(3, 4),), "100%", cost="estimate", rehearse=False)
    report = remat.exec.report(wrapped)
    assert report.exported == "NotImplementedError: no."
    assert "the joint export: NotImplementedError: no." in str(report)
    assert capture(module, (torch.randn(3, 4),), tracer="joint").exported == ""
    with pytest.raises(Uncapturable, match="does not stand for this step"):
        capture(module, (torch.randn(3, 4),), tracer="log")


def test_an_unknown_tracer_is_refused():
    with pytest.raises(remat.errors.BadArgument, match="tracer"):
        remat.exec.wrap(nn.Linear(2, 2), tracer="proxy")
