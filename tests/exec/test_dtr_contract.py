"""What modules do besides computing, under DTR as under plain torch: writes, buffers, hooks, reads from outside, errors."""

import copy
import gc
import pickle

import numpy as np
import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional

import remat.exec
from remat.algorithms._dtr.values import Stored
from remat.algorithms.dynamic import Score
from remat.errors import BadArgument, Infeasible, Uncapturable
from remat.exec import StepError
from remat.exec._dtr.operators import facts_of
from tests.exec.dtr_steps import Body, X, both, step
from tests.exec.support import clone


def whole(module, x):
    return functional.relu_(x * 2)


def part(module, x):
    y = x * 2
    y[:, 3:5] = x[:, :2]
    return y + y[:, ::2].sum()


def through_views(module, x):
    y = x.clone()
    y.view(-1, 2, 12)[:, 0].mul_(0.5)
    y[:, 12:].add_(y.detach()[:, :12] * 2)
    return y


def indexed(module, x):
    y = torch.zeros_like(x)
    y[x > 0] = 1.5
    return y.index_add_(0, torch.tensor([1, 1, 3]), x[:3]) + x


def dropped(module, x):
    return functional.dropout(functional.dropout(x * 1.5, 0.3, True, True), 0.2)


def averaged(module, x):
    module.average.mul_(0.9).add_(x.detach().mean(0), alpha=0.1)
    module.count += 1
    return x - module.average


def read_then_written(module, x):
    y = x + module.average
    module.average.add_(x.detach().sum(0))
    return (y * 2).sin()


def replaced(module, x):
    module.average = module.average * 0.5 + x.detach().mean(0)
    module.kept = [x.detach(), {"last": x.detach()[0]}]
    return x + module.average


def joined(module, x):
    first, second = torch.split(torch.cat([x, x.flip(1)], 1), [24, 24], 1)
    return first + torch.stack([second, x]).amax(0)


def drawn(module, x):
    return x + torch.randn_like(x) * torch.rand(24) + torch.normal(0.0, torch.ones(24)).relu()


def followed(module, x):
    y = x + module.average
    module.average.data = module.average.data * 0.9 + x.detach().mean(0)
    module.average.add_(0.1)
    return (y * (1 + module.average)).sin()


def halved(module, x):
    for layer in module.layers:
        layer.weight.data = layer.weight.data * 0.5
    return x * module.layers[0].weight.sum()


def swapped(module, x):
    first, second = (layer.weight for layer in module.layers[:2])
    before = x @ first
    first.data, second.data = second.data, first.data
    return before + x @ first


BETWEEN = [whole, part, through_views, indexed, dropped, averaged, read_then_written, replaced, joined, drawn]


@pytest.mark.parametrize("between", [*BETWEEN, followed, halved, swapped])
def test_writes_draws_and_buffers_are_those_of_plain_torch(between):
    wrapped = both(lambda: Body(between))
    if between is replaced:
        assert type(wrapped.kept[0]) is type(wrapped.kept[1]["last"]) is torch.Tensor


@pytest.mark.parametrize("training", [True, False])
def test_batch_normalisation_updates_its_statistics_once(training):
    def build():
        norms = (layer for _ in range(3) for layer in (nn.Linear(24, 24), nn.BatchNorm1d(24), nn.ReLU(inplace=True)))
        return nn.Sequential(*norms, nn.Linear(24, 1), nn.Flatten(0)).train(training)

    def run(module, x):
        loss = module(x).square().mean()
        loss.backward()
        return loss

    both(build, run)


def test_several_forwards_before_one_backward():
    def run(module, x):
        loss = module(x) + module(x * 2) * module(x[:4])
        loss.backward()
        return loss

    both(Body, run)


def test_a_second_backward_and_gradients_of_gradients():
    def again(module, x):
        loss = module(x)
        loss.backward(retain_graph=True)
        loss.backward()
        return loss

    def penalty(module, x):
        loss = module(x)
        (slope,) = torch.autograd.grad(loss, x, create_graph=True)
        assert type(slope) is torch.Tensor
        loss = loss + (slope.norm(dim=1) - 1).square().mean()
        loss.backward()
        return loss

    both(Body, again)
    both(Body, penalty)


class Unrolled(nn.Module):
    """A generator against a critic that takes a step within the forward, its slope penalized: gradients of gradients."""

    def __init__(self):
        super().__init__()
        self.generator = nn.Sequential(nn.Linear(24, 24), nn.Tanh(), nn.Linear(24, 24))
        self.critic = nn.Sequential(nn.Linear(24, 24), nn.Tanh(), nn.Linear(24, 1))

    def forward(self, x):
        weights = list(self.critic.parameters())
        made = self.generator(x)
        drawn = made.detach().requires_grad_()
        (slope,) = torch.autograd.grad(self.critic(drawn).sum(), drawn, create_graph=True)
        loss = self.critic(drawn).mean() - self.critic(x).mean() + (slope.norm(dim=1) - 1).square().mean()
        slopes = torch.autograd.grad(loss, weights, create_graph=True)
        first, bias, second, rest = (weight - 0.1 * slope for weight, slope in zip(weights, slopes, strict=True))
        return -functional.linear(torch.tanh(functional.linear(made, first, bias)), second, rest).mean()


def test_an_unrolled_gan():
    both(Unrolled)


def test_autocast_and_bfloat16():
    def run(module, x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = module(x)
        loss.backward()
        return loss

    both(lambda: Body(layers=9), run)


def test_inputs_that_come_out_of_trained_operations_and_a_loss_outside():
    class Halves(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner, self.head = Body(layers=9).layers, nn.Linear(24, 6)

        def forward(self, x):
            for layer in self.inner:
                x = torch.tanh(layer(x))
            return self.head(x), x.sum()

    def run(module, x):
        weight = x * 3
        out, total = module(weight)
        loss = functional.log_softmax(out, 1).square().mean() + total * 0.01 + weight.mean()
        loss.backward()
        return loss

    both(Halves, run)


def test_hooks_see_values_and_may_change_gradients():
    seen = []

    def build():
        module = Body()
        module.layers[1].register_forward_hook(lambda _m, _args, out: seen.append(float(out.detach().sum())) or out * 2)
        module.layers[2].register_full_backward_hook(lambda _m, _into, out: seen.append(out[0].numpy().sum()))
        return module

    def doubled(bias):
        bias.grad.mul_(2)

    def run(module, x):
        handle = module.layers[0].weight.register_hook(lambda gradient: gradient * 0.5)
        stepped = module.layers[3].bias.register_post_accumulate_grad_hook(doubled)
        loss = step(module, x)
        handle.remove()
        stepped.remove()
        return loss

    both(build, run)
    assert seen[:4] == seen[4:8]


def test_what_is_read_inside_has_its_values():
    texts = []

    def read(module, x):
        loss = x.sum()
        inside = x.detach()
        texts.append((
            X.numpy()[1, 1], module.layers[0].bias.detach().numpy()[1], np.asarray(X).sum(), repr(inside)[:40], f"{loss:.3f}",
            x[0].tolist(), np.asarray(inside).sum(), len(x), bool(loss > 0), copy.deepcopy(inside).mean().item(),
            inside.numpy()[1, 1], pickle.dumps(inside),
        ))  # fmt: skip
        with pytest.raises(RuntimeError, match=r"requires grad. Use tensor.detach\(\).numpy\(\)"):
            x.numpy()
        return x

    both(lambda: Body(read), recomputes=False)  # what is read outside is not evicted any more
    plain, under = texts[:8], texts[8:16]
    assert all(
        torch.equal(pickle.loads(one[-1]), pickle.loads(other[-1])) for one, other in zip(plain, under, strict=True)
    )
    assert [text[:-1] for text in plain] == [text[:-1] for text in under]


def test_what_torch_refuses_is_refused():
    def after_save(module, x):
        y = x.sigmoid()
        (y * x).sum()
        y.add_(1)
        return y

    wrapped = remat.exec.dtr(Body(after_save), "1MiB")
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        step(wrapped, X)

    def resized(module, x):
        return torch.empty(0).resize_(64, 24).fill_(1) * x

    with pytest.raises(StepError, match=r"X-WRITE: aten\.resize_\.default gives a tensor other memory in place"):
        step(remat.exec.dtr(Body(resized), "1MiB"), X)

    def assigned(module, x):
        x.data = x.data.sign()
        return x

    with pytest.raises(StepError, match=r"X-WRITE: the forward assigns `.data` of a tensor that it computed"):
        step(remat.exec.dtr(Body(assigned), "1MiB"), X)
    assert "data" not in vars(torch.Tensor)

    class Sparse(nn.Module):
        def __init__(self, table, **more):
            super().__init__()
            self.table, self.more = table, more

        def forward(self, words):
            return self.table(words, **self.more).sum()

    bags = nn.EmbeddingBag(9, 4, sparse=True, mode="sum")  # with weights, its shape pass says nothing of its gradient
    for module in (Sparse(nn.Embedding(9, 4, sparse=True)), Sparse(bags, per_sample_weights=torch.ones(1, 2))):
        with pytest.raises(StepError, match=r"X-TENSOR.*no sparse gradients"):
            step(remat.exec.dtr(module, "1MiB"), torch.tensor([[1, 2]]))


def test_a_parameter_that_was_written_is_not_computed_with_again():
    module = Body()
    wrapped = remat.exec.dtr(module, 60_000)
    loss = wrapped(X)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(1)
    with pytest.raises(RuntimeError, match=r"modified by an inplace operation|X-WRITE"):
        loss.backward()


def test_a_budget_that_is_too_small_says_what_is_needed_and_what_is_known():
    wrapped = remat.exec.dtr(Body(), 6_000)
    with pytest.raises(Infeasible, match=r"No step has ended within it yet") as caught:
        step(wrapped, X)
    assert caught.value.budget == 6_000 < caught.value.floor and caught.value.smallest is None
    wrapped = remat.exec.dtr(Body(), 60_000)
    peaks = []
    for _ in range(2):
        wrapped.zero_grad()
        step(wrapped, X)
        peaks.append(remat.exec.dtr_report(wrapped).peak)
    wrapped.zero_grad()
    with pytest.raises(Infeasible, match="smallest budget known to work") as caught:
        step(wrapped, torch.randn(400, 24))
    assert caught.value.smallest == max(peaks) <= 60_000 < caught.value.floor
    wrapped.zero_grad()
    assert torch.equal(step(wrapped, X), Body.forward(wrapped, X))  # it can be used as before


def test_thrashing_is_given_up_with_a_reason():
    class Newest(Score):
        """What was used last goes first."""

        MEASURE = "no"

        def value(self, cost, size, staleness, access):
            return -access

    module = nn.Sequential(*(layer for _ in range(60) for layer in (nn.Linear(4, 4), nn.Tanh())))
    wrapped = remat.exec.dtr(module, 60_000, Newest(), limit=1.2)
    with pytest.raises(Infeasible, match=r"recomputation costs more than 1.2 times the step"):
        wrapped(torch.randn(200, 4)).sum().backward()


@pytest.mark.parametrize("where", ["forward", "backward"])
def test_an_exception_in_the_middle_leaves_the_model_usable(where):
    class Fails(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            if where == "forward":
                raise ZeroDivisionError
            return x * 1

        @staticmethod
        def backward(ctx, gradient):
            raise ZeroDivisionError

    failing = [True]
    module = Body(lambda _module, x: Fails.apply(x) if failing[0] else x)
    wrapped = remat.exec.dtr(module, 60_000)
    with pytest.raises(ZeroDivisionError):
        step(wrapped, X)
    failing[0] = False
    module.zero_grad()
    expected = copy.deepcopy(module)
    for _ in range(2):
        assert torch.equal(step(wrapped, X), step(expected, X))
        for mine, theirs in zip(module.parameters(), expected.parameters(), strict=True):
            assert torch.equal(mine.grad, theirs.grad)


def test_nothing_grows_over_many_steps():
    """Without the garbage collector: what a step made goes with it."""
    wrapped = remat.exec.dtr(Body(dropped), 130_000)
    for _ in range(3):
        step(wrapped, X)
    runtime = wrapped._remat.runtime
    gc.collect()
    gc.disable()
    try:
        kept = []
        for _ in range(2):
            for _ in range(10):
                step(wrapped, X)
            storages = sum(type(thing) is Stored for thing in gc.get_objects())
            kept.append((storages, runtime.core.memory, len(runtime.needs.table)))
    finally:
        gc.enable()
    assert kept[0] == kept[1]
    assert remat.exec.dtr_report(wrapped).rematerializations > 0


def test_steps_of_ever_new_shapes_keep_few_signatures_and_the_same_bits():
    module = Body(dropped)
    wrapped = remat.exec.dtr(module, 130_000)
    step(wrapped, X)
    needs, shared = wrapped._remat.runtime.needs, len(FakeTensorMode.cache)
    needs.most = 20
    for rows in range(20, 64, 4):
        module.zero_grad()
        torch.manual_seed(rows)
        expected = [clone(tensor) for tensor in (step(module, X[:rows]), *(p.grad for p in module.parameters()))]
        module.zero_grad()
        torch.manual_seed(rows)
        traced = [step(wrapped, X[:rows]), *(p.grad for p in module.parameters())]
        assert all(map(torch.equal, traced, expected))
        assert remat.exec.dtr_report(wrapped).peak <= 130_000
    assert len(needs.table) == 20 < remat.exec.dtr_report(wrapped).operations
    assert len(FakeTensorMode.cache) == shared  # torch keeps nothing for these shapes either


def test_without_gradients_and_in_evaluation_the_module_runs_as_it_is():
    module = Body()
    wrapped = remat.exec.dtr(module, 1)
    with torch.no_grad():
        assert torch.equal(wrapped(X), module(X))
    with pytest.raises(BadArgument, match="X-REPORT: no step of the module has run under DTR"):
        remat.exec.dtr_report(wrapped)


def test_copies_and_pickles_have_a_runtime_of_their_own():
    wrapped = remat.exec.dtr(Body(), 60_000)
    loss = step(wrapped, X)
    for other in (copy.deepcopy(wrapped), pickle.loads(pickle.dumps(remat.exec.dtr(nn.Linear(24, 1), "1MiB")))):
        out = other(X).sum()
        out.backward()
        assert type(out) is torch.Tensor and remat.exec.dtr_report(other).operations > 0
    assert torch.equal(step(copy.deepcopy(wrapped), X), loss)


@pytest.mark.parametrize(
    "how, rule",
    [({"budget": "0%"}, "U-SIZE"), ({"budget": "a lot"}, "U-SIZE"), ({"score": "h_nobody"}, "P-NAME"), ({"score": 3}, "X-ARG"),
     ({"limit": 0.5}, "X-ARG"), ({"seed": "a"}, "X-ARG"), ({"loss_reserve": "x"}, "U-SIZE")],
)  # fmt: skip
def test_wrong_arguments_are_refused(how, rule):
    with pytest.raises(BadArgument, match=rule):
        remat.exec.dtr(Body(), **({"budget": "1MiB"} | how))


def test_what_is_wrapped_is_not_wrapped_again_and_two_devices_are_refused():
    with pytest.raises(BadArgument, match="wrapped already"):
        remat.exec.dtr(remat.exec.dtr(Body(), "1MiB"), "1MiB")
    with pytest.raises(Uncapturable, match="X-DEVICE"):
        remat.exec.dtr(nn.Linear(2, 2, device="meta"), "1MiB")(torch.ones(2))


def test_facts_of_operators():
    aten = torch.ops.aten
    assert facts_of(aten.t.default).view and facts_of(aten._unsafe_view.default).view
    assert facts_of(aten.add_.Tensor).writes == {"self"} and not facts_of(aten.add.Tensor).writes
    assert facts_of(aten.bernoulli_.float).draws and not facts_of(aten.mm.default).draws
    assert facts_of(aten.native_batch_norm.default).once == {"running_mean", "running_var"}
    assert facts_of(aten._local_scalar_dense.default).scalar and facts_of(aten.t_.default).reshapes
    assert facts_of(aten.rrelu_with_noise_.default).unversioned == {"noise"}
    assert facts_of(aten._pack_padded_sequence.default).lengths and not facts_of(aten.mm.default).unversioned


def operation_with_shapes(name, shapes):
    """An operation that doubles, and what says its shapes."""

    @torch.library.custom_op(f"remat_tests::{name}", mutates_args=())
    def double(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    if shapes is not None:
        double.register_fake(shapes)
    double.register_autograd(lambda ctx, gradient: gradient * 2)
    return lambda module, x: double(x)


def without_shapes(x):
    raise NotImplementedError("sizes follow from values")


def faulty(x):
    return x.no_such_attribute


@pytest.mark.parametrize("shapes", [None, without_shapes], ids=["none", "refusing"])
def test_an_operation_without_a_shape_function_runs(shapes):
    name = "plain" if shapes is None else "refusing"
    both(lambda: Body(operation_with_shapes(name, shapes)))


def test_a_faulty_shape_function_is_not_taken_for_none():
    with pytest.raises(AttributeError, match="no_such_attribute"):
        step(remat.exec.dtr(Body(operation_with_shapes("faulty", faulty)), "1MiB"), X)
