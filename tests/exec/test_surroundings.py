"""What surrounds a call: threads, transforms, settings of the process, hooks from outside, arguments of rarer kinds."""

import copy
import datetime
import decimal
import enum
import threading
from contextlib import nullcontext

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.utils import parametrizations, parametrize
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import remat.exec
from remat.errors import BadArgument, Uncapturable
from remat.exec._run.runtime import StepError
from tests.exec.support import LIGHT

WIDTH = 16


class Mean(nn.Module):
    """A loss of a chain of layers; `body` may be replaced by a subclass."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.Sequential(nn.Linear(WIDTH, 32), nn.GELU(), nn.Linear(32, 32), nn.GELU(), nn.Linear(32, WIDTH))

    def forward(self, x):
        return self.body(x).square().mean()


def rows(count=64):
    return torch.randn(count, WIDTH, dtype=torch.float32, generator=torch.Generator().manual_seed(count))


def wrap(module, sample=None, **options):
    options = {
        "budget": "200%",
        "solver": LIGHT,
        "cost": "estimate",
        "rehearse": False,
        "on_uncapturable": "raise",
    } | options
    return remat.exec.wrap(module, sample, **options)


def gradients(module, *args):
    module.zero_grad()
    loss = module(*args)
    loss.backward()
    return [loss.detach(), *(parameter.grad for parameter in module.parameters())]


def assert_equal(expected, found):
    assert len(expected) == len(found)
    assert all(torch.equal(one, two) for one, two in zip(expected, found, strict=True))


# -- threads ---------------------------------------------------------------------------------------------------------------


def test_first_calls_of_several_threads():
    bare, wrapped, found = Mean(), wrap(Mean()), {}
    parameters = list(wrapped.parameters())  # before a capture in another thread has its own in their place

    def train(count):
        loss = wrapped(rows(count))
        found[count] = [loss.detach(), *torch.autograd.grad(loss, parameters)]

    threads = [threading.Thread(target=train, args=(count,)) for count in (64, 48, 32)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(found) == [32, 48, 64]
    for count, values in found.items():
        assert_equal(gradients(bare, rows(count)), values)


# -- transforms and settings -----------------------------------------------------------------------------------------------


def under_grad(module):
    weights = {name: weight.detach() for name, weight in module.named_parameters()}
    return torch.func.grad(lambda weights: torch.func.functional_call(module, weights, (rows(),)))(weights)


def under_jvp(module):
    return torch.func.jvp(module, (rows(),), (rows(),))


def under_vmap(module):
    return torch.vmap(module)(torch.stack([rows(), rows()]))


def under_forward_mode(module):
    with torch.autograd.forward_ad.dual_level():
        return module(torch.autograd.forward_ad.make_dual(rows(), rows()))


@pytest.mark.parametrize("call", [under_grad, under_jvp, under_vmap, under_forward_mode])
def test_a_call_under_a_transform_is_refused(call):
    wrapped = wrap(Mean(), rows())
    with pytest.raises(Uncapturable, match=r"X-TRANSFORM.*bare module"):
        call(wrapped)
    assert_equal(gradients(Mean(), rows()), gradients(wrapped, rows()))


def at_once(out, module):
    many = torch.eye(out.numel()).view(-1, *out.shape)
    return torch.autograd.grad(out, list(module.parameters()), many, is_grads_batched=True)


def under_vmap_alone(out, module):
    weights, many = list(module.parameters()), torch.eye(out.numel()).view(-1, *out.shape)
    return torch.vmap(lambda given: torch.autograd.grad(out, weights, given, retain_graph=True))(many)


@pytest.mark.parametrize("backward", [at_once, under_vmap_alone])
@pytest.mark.parametrize("around", [wrap, lambda module: remat.exec.dtr(module, "1MiB")])
def test_many_gradients_of_an_output_at_once_are_refused(around, backward):
    module = Mean().body
    assert len(backward(module(rows(4)), module)[0]) == 4 * WIDTH
    wrapped = around(Mean().body)
    with pytest.raises(StepError, match=r"X-TRANSFORM.*many gradients of an output arrive at once"):
        backward(wrapped(rows(4)), wrapped)
    for net in (module, wrapped):
        net(rows(4)).sum().backward()
    assert_equal([weight.grad for weight in module.parameters()], [weight.grad for weight in wrapped.parameters()])


class Asks(Mean):
    """Reads settings of the process."""

    def forward(self, x):
        hidden = self.body(x) * torch.linspace(0, 1, WIDTH)
        return (hidden * 2 if torch.are_deterministic_algorithms_enabled() else hidden).square().mean()


def test_settings_of_the_process_are_part_of_what_a_plan_is_for():
    bare, wrapped = Asks(), wrap(Asks(), rows())
    try:
        for deterministic, dtype in ((False, torch.float32), (True, torch.float32), (False, torch.float64)):
            torch.use_deterministic_algorithms(deterministic)
            torch.set_default_dtype(dtype)
            assert_equal(gradients(bare, rows()), gradients(wrapped, rows()))
    finally:
        torch.use_deterministic_algorithms(False)
        torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize("inside", [True, False])
def test_what_is_recomputed_has_the_settings_of_the_backward(inside):
    def trained(module):
        module.zero_grad()
        with torch.backends.mkldnn.flags(enabled=False):
            loss = module(rows())
            if inside:
                loss.backward()
        if not inside:
            loss.backward()
        return [loss.detach(), *(parameter.grad for parameter in module.parameters())]

    expected, found = trained(Mean()), trained(wrap(Mean(), rows(), budget="80%"))
    for one, two in zip(expected, found, strict=True):
        assert torch.equal(one, two) if inside else torch.allclose(one, two, rtol=1e-5, atol=1e-7)


def test_a_planned_backward_reads_the_data_that_parameters_have_then():
    def slope(net):
        x = rows(8).requires_grad_()
        out = net(x)
        for parameter in net.parameters():
            parameter.data = parameter.data * 2
        out.sum().backward()
        return x.grad

    nets = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 1)) for _ in range(2)]
    nets[1].load_state_dict(nets[0].state_dict())
    assert torch.equal(slope(wrap(nets[0], rows(8), loss_reserve=0)), 4 * slope(nets[1]))


class DoublesOperations(TorchDispatchMode):
    """Doubles what a linear layer computes; `seen` counts the operations."""

    seen = 0

    def __torch_dispatch__(self, func, _types, args=(), kwargs=None):
        self.seen += 1
        out = func(*args, **(kwargs or {}))
        return out * 2 if func is torch.ops.aten.addmm.default else out


class DoublesFunctions(TorchFunctionMode):
    """The same, of functions."""

    seen = 0

    def __torch_function__(self, func, _types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        return out * 2 if func is functional.linear else out


@pytest.mark.filterwarnings("ignore:.*runs under DTR.*X-TRACE.*under DoublesFunctions")
@pytest.mark.parametrize("kind", [DoublesOperations, DoublesFunctions])
@pytest.mark.parametrize(
    "order", [(True, False, True), (False, True, False)], ids=("under-it-first", "without-it-first")
)
def test_a_mode_around_a_call_changes_what_it_changes_in_eager(kind, order):
    bare, wrapped = Mean(), wrap(Mean(), budget="1MiB", on_uncapturable="dtr")
    for under in order:
        modes = (kind(), kind()) if under else (nullcontext(), nullcontext())
        steps = []
        for module, mode in zip((bare, wrapped), modes, strict=True):
            with mode:
                steps.append(gradients(module, rows()))
        assert_equal(*steps)
        assert not under or modes[1].seen <= 2 * modes[0].seen, "what is planned is no part of the step"


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize(
    "wrapped_by", [wrap, lambda module, _sample: remat.exec.dtr(module, "1MiB")], ids=("plan", "dtr")
)
def test_what_records_a_call_records_the_bare_module(wrapped_by):
    module = Mean()
    wrapped = wrapped_by(module, rows())
    for recorded in (torch.jit.trace(wrapped, rows()), torch.export.export(wrapped, (rows(),)).module()):
        assert torch.equal(recorded(rows()), module(rows()))
    assert_equal(gradients(module, rows()), gradients(wrapped, rows()))


@pytest.mark.filterwarnings("ignore:hooks of submodules")
def test_hooks_of_all_modules_are_part_of_what_a_plan_is_for():
    bare, wrapped, factor = Mean(), wrap(Mean(), rows()), [2.0]
    assert_equal(gradients(bare, rows()), gradients(wrapped, rows()))
    hook = nn.modules.module.register_module_forward_hook(
        lambda module, _args, out: out * factor[0] if isinstance(module, nn.Linear) else None
    )
    try:
        for factor[0] in (2.0, 3.0):
            assert_equal(gradients(bare, rows()), gradients(wrapped, rows()))
    finally:
        hook.remove()
    assert_equal(gradients(bare, rows()), gradients(wrapped, rows()))


def test_a_default_device_is_part_of_what_a_plan_is_for():
    x = rows()
    wrapped = wrap(Asks(), x)
    with torch.device("meta"), pytest.raises(Uncapturable, match=r"X-TRACE.*torch.linspace"):
        wrapped(x)


class Attends(Mean):
    def forward(self, x):
        heads = self.body(x).view(2, 4, 8, WIDTH)
        return functional.scaled_dot_product_attention(heads, heads, heads, is_causal=True).square().mean()


def test_the_kernel_of_attention_may_be_chosen_anew():
    bare, wrapped = Attends(), wrap(Attends(), rows(), budget="400%")
    for backend in (SDPBackend.FLASH_ATTENTION, SDPBackend.MATH, SDPBackend.FLASH_ATTENTION):
        with sdpa_kernel(backend):
            assert_equal(gradients(bare, rows()), gradients(wrapped, rows()))
    assert len(wrapped._remat.plans) == 3  # with that of the sample, which was planned with all kernels allowed


def test_a_capture_leaves_no_traced_weight_among_cached_ones():
    bare, wrapped = Mean(), Mean()
    for module in (bare, wrapped):
        parametrizations.weight_norm(module.body[0])
    wrapped = wrap(wrapped)
    with parametrize.cached():
        assert_equal(gradients(bare, rows()), gradients(wrapped, rows()))
        inside = [id(module) for module in wrapped.modules()]
        assert not [key for key in parametrize._cache if key[0] in inside]


# -- gradients of what is inside -------------------------------------------------------------------------------------------


class LossAndHidden(Mean):
    def forward(self, x):
        hidden = self.body[:3](x)
        return self.body[3:](hidden).square().mean(), hidden


def retain(hidden):
    hidden.retain_grad()


def hook(hidden):
    hidden.register_hook(lambda gradient: gradient * 2)


@pytest.mark.parametrize("look", [retain, hook])
def test_hooks_of_outputs_that_the_step_uses_further_are_refused(look):
    wrapped = wrap(LossAndHidden(), rows())
    loss, hidden = wrapped(rows())
    look(hidden)
    with pytest.raises(StepError, match=r"X-OUTPUT.*output 1 has a hook"):
        loss.backward()


def test_hooks_of_outputs_that_nothing_else_follows_from_see_their_gradient():
    seen = []
    for module in (LossAndHidden(), wrap(LossAndHidden(), rows(), differentiable="all")):
        loss, hidden = module(rows())
        loss.register_hook(lambda gradient: gradient * 2)
        loss.retain_grad()
        (loss + hidden.sum()).backward()
        seen.append([loss.grad, *(parameter.grad for parameter in module.parameters())])
    assert_equal(*seen)


# -- arguments and devices -------------------------------------------------------------------------------------------------


class Mode(enum.Enum):
    PLAIN = 1
    DOUBLE = 2


class Scaled(Mean):
    """Multiplies with what it finds in an argument."""

    def forward(self, x, value):
        factors = {Mode.DOUBLE: 2, b"b": 3, torch.strided: 5, torch.contiguous_format: 7, datetime.timedelta(1): 11}
        factor = factors.get(value, 13)
        if isinstance(value, range):
            factor = len(value)
        elif isinstance(value, (np.generic, decimal.Decimal)):
            factor = float(value)
        return super().forward(x) * factor


PAIRS = [
    (Mode.PLAIN, Mode.DOUBLE), (range(2), range(3)), (b"a", b"b"), (np.float32(2), np.int64(3)),
    (torch.strided, torch.contiguous_format), (datetime.timedelta(1), datetime.date(2020, 1, 1)),
    (decimal.Decimal(2), decimal.Decimal(3)),
]  # fmt: skip


@pytest.mark.parametrize("pair", PAIRS, ids=str)
def test_values_of_rarer_kinds_decide_as_they_do_in_eager(pair):
    bare, wrapped = Scaled(), wrap(Scaled())
    for value in (*pair, pair[0]):
        assert_equal(gradients(bare, rows(), value), gradients(wrapped, rows(), value))


def test_sparse_rows_are_refused():
    wrapped = wrap(Mean())
    with pytest.raises(Uncapturable, match=r"X-TENSOR.*sparse_csr"):
        wrapped(rows().to_sparse_csr())


def test_the_meta_device_is_refused():
    with torch.device("meta"):
        module = Mean()
    with pytest.raises(Uncapturable, match=r"X-DEVICE.*to_empty"):
        wrap(module, rows().to("meta"))


def test_a_call_that_the_bare_module_refuses_too_is_told_so():
    with pytest.raises(Uncapturable, match=r"X-TRACE.*see whether the bare module raises the same"):
        wrap(Mean(), rows()[:, :-1])


# -- outputs that are written outside --------------------------------------------------------------------------------------


class Formed(nn.Module):
    """A chain of layers that returns what a function makes of the last values."""

    def __init__(self, form):
        super().__init__()
        torch.manual_seed(0)
        self.body, self.form = nn.Sequential(nn.Linear(WIDTH, 32), nn.Tanh(), nn.Linear(32, WIDTH)), form

    def forward(self, x):
        return self.form(self.body(x))


def written(module, write):
    """Gradients of a loss of an output that is written in place first."""
    out = module(rows())
    write(out)
    module.zero_grad()
    out.square().sum().backward()
    return [out.detach(), *(parameter.grad for parameter in module.parameters())]


def masked(out):
    out.masked_fill_(out < 0, -2.0)


def doubled(out):
    with torch.no_grad():
        out.mul_(2)


def first_set(out):
    out[..., 0] = 0


@pytest.mark.parametrize(
    "write", [masked, doubled, first_set, nn.ReLU(inplace=True)], ids=("masked", "doubled", "set", "relu")
)
@pytest.mark.parametrize(
    "form",
    [
        lambda y: y,
        lambda y: y.view(-1, 4),
        lambda y: y[:, 2:9],
        lambda y: y.view(4, -1, WIDTH)[:, -1],
        lambda y: y[:1, :1],
    ],
)
def test_views_that_a_step_returns_may_be_written(form, write):
    module = Formed(form)
    wrapped = wrap(copy.deepcopy(module), rows())
    for _ in range(2):
        assert_equal(written(module, write), written(wrapped, write))


def test_a_view_that_the_backward_looks_into_may_not_be_written():
    for module in (Formed(lambda y: y.tanh().view(-1, 4)), wrap(Formed(lambda y: y.tanh().view(-1, 4)), rows())):
        with pytest.raises(RuntimeError, match="modified"):
            written(module, masked)


# -- calls that the module refuses, and arguments that are none ---------------------------------------------------------------


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("fallback", ["dtr", "bare"])
def test_calls_that_the_module_refuses_raise_its_error_alone_and_say_nothing_of_others(fallback):
    module = wrap(Mean(), budget="1MiB", on_uncapturable=fallback)
    for columns in (3, 4, 5):
        with pytest.raises(RuntimeError, match="shapes cannot be multiplied") as raised:
            module(torch.randn(8, columns))
        assert not isinstance(raised.value, remat.errors.RematError)
    with pytest.raises(TypeError, match="positional argument"):
        module()
    gradients(module, rows())
    assert remat.exec.report(module).ran == "plan"


class Turned(Mean):
    """Multiplies by a complex number of Python, whose conjugate the backward takes."""

    def forward(self, x):
        return super().forward((self.body(x) * 1j).imag)


def test_a_complex_number_of_python_is_a_factor():
    bare, wrapped = Turned(), wrap(Turned(), rows())
    assert_equal(gradients(bare, rows()), gradients(wrapped, rows()))


class Imaginary(Mean):
    """Reads the imaginary part, which of a conjugate is a negative view."""

    def forward(self, x):
        return super().forward(x.imag)


@pytest.mark.parametrize("first", [0, 1])
def test_conjugates_have_plans_of_their_own(first):
    x = torch.randn(8, WIDTH, dtype=torch.complex64)
    inputs = (x, x.conj())
    bare, wrapped = Imaginary(), wrap(Imaginary(), inputs[first], rehearse=True)
    for at in (first, 1 - first, first):
        assert_equal(gradients(bare, inputs[at]), gradients(wrapped, inputs[at]))


def test_what_is_no_wrapped_module_is_refused_by_what_asks_for_one(tmp_path):
    asked = (
        remat.exec.report,
        remat.exec.dtr_report,
        lambda model: remat.exec.save_plan(model, tmp_path / "plan.json"),
        lambda model: remat.exec.prepare(model, [rows()]),
    )
    for ask in asked:
        for model in (3, Mean()):
            with pytest.raises(BadArgument, match="X-REPORT"):
                ask(model)
    with pytest.raises(BadArgument, match=r"runs under DTR alone.*dtr_report"):
        remat.exec.report(remat.exec.dtr(Mean(), "1MiB"))
    with pytest.raises(BadArgument, match=r"X-ARG: measure_step: step is 3\."):
        remat.exec.measure_step(3)
    for function in (lambda: remat.exec.sweep(3, rows()), lambda: remat.exec.capture(3, (rows(),))):
        with pytest.raises(BadArgument, match="X-ARG"):
            function()
    for path in (3, tmp_path, tmp_path / "none.json"):
        with pytest.raises(BadArgument, match="X-ARG: load_plan: path is"):
            remat.exec.load_plan(path)
