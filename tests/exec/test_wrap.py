"""The wrapped module is a good citizen: state, optimizers, copies, modes, hooks, budgets, errors."""

import copy
import io
import multiprocessing
import os
import pickle
import subprocess
import sys
import threading
import time
import types

import pytest
import torch
from torch import nn
from torch.nn import functional

import remat.exec
from remat.algorithms import PerLayerCheckpoint
from remat.algorithms._search.auto import quick
from remat.errors import BadArgument, Infeasible, Uncapturable
from remat.exec import RematWarning
from remat.zoo import GPT2, MLP
from tests.exec.support import SMALL, differences, train

EASY = {"cost": "estimate", "solver": quick, "rehearse": False, "on_uncapturable": "raise"}


def made(name="mlp"):
    """Bare and wrapped of one case, with samples, in float64."""
    bare, one = SMALL[name].instantiate(torch.float64)
    other, two = SMALL[name].instantiate(torch.float64)
    return bare, one, remat.exec.wrap(other, two, "60%", **EASY), two


def test_state_parameters_and_class_are_the_modules_own():
    module, sample = SMALL["gpt2"].instantiate()
    wrapped = remat.exec.wrap(module, sample, "70%", **EASY)
    assert wrapped.state_dict().keys() == module.state_dict().keys()
    assert [n for n, _ in wrapped.named_parameters()] == [n for n, _ in module.named_parameters()]
    assert all(x is y for x, y in zip(wrapped.parameters(), module.parameters(), strict=True))
    assert isinstance(wrapped, GPT2) and wrapped.blocks is module.blocks
    wrapped.load_state_dict(GPT2(layers=2, width=16, heads=4, vocabulary=32, context=12).state_dict())
    assert torch.equal(module.norm.weight, wrapped.norm.weight)


def body():
    return nn.Sequential(*(layer for _ in range(4) for layer in (nn.Linear(16, 16), nn.GELU())))


class ScaledByItself(nn.Module):
    """A closure over the module reads an attribute of it."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.body, self.scale = body(), 1.0
        self.scaled = lambda x: x * self.scale

    def forward(self, x):
        return self.scaled(self.body(x)).square().mean()


def test_a_module_that_something_refers_to_is_wrapped_itself_or_left_as_it_was():
    x = torch.randn(64, 16)
    bare, model = ScaledByItself(), ScaledByItself()
    attributes = set(vars(model))
    with pytest.raises(Infeasible):
        remat.exec.wrap(model, x, 1, **EASY)
    assert type(model) is ScaledByItself and set(vars(model)) == attributes
    wrapped = remat.exec.wrap(model, x, "90%", **EASY)
    assert wrapped is model and isinstance(model, ScaledByItself)
    for scale in (1.0, 2.0):
        bare.scale = wrapped.scale = scale
        assert torch.equal(bare(x), wrapped(x))
    assert remat.exec.report(wrapped).ran == "plan"
    assert type(remat.exec.unwrap(model)) is ScaledByItself and set(vars(model)) == attributes
    dynamic = remat.exec.dtr(model, "1MiB")
    bare.scale = dynamic.scale = 3.0
    assert dynamic is model and torch.equal(bare(x), dynamic(x))


class ListsItself(ScaledByItself):
    """Refers to itself from an attribute whose name begins as that of a forward that is set on the instance."""

    def __init__(self):
        super().__init__()
        self.scaled, self.forwards = nn.Identity(), [self]

    def forward(self, x):
        return self.body(x).square().mean() * self.forwards[0].scale


def test_an_attribute_named_like_a_forward_refers_too_and_a_forward_of_the_instance_does_not():
    x = torch.randn(64, 16)
    model = ListsItself()
    assert remat.exec.wrap(model, x, "90%", **EASY) is model
    bare, module = nn.Sequential(body(), nn.Flatten(0)), nn.Sequential(body(), nn.Flatten(0))
    bare.load_state_dict(module.state_dict())
    module.forward = types.MethodType(lambda self, x: nn.Sequential.forward(self, x).square().mean(), module)
    wrapped = remat.exec.wrap(module, x, "90%", **EASY)
    assert wrapped is not module and torch.equal(wrapped(x), bare(x).square().mean())


class Weighed(nn.Module):
    """Weighs its loss by what a function says."""

    def __init__(self, weight):
        super().__init__()
        torch.manual_seed(0)
        self.body, self.weight = body(), weight

    def forward(self, x):
        return self.body(x).square().mean() * self.weight()


class Value:
    def __init__(self, value):
        self.value = value

    def __call__(self):
        return self.value.value


class Rate:
    def __init__(self, schedule):
        self.schedule = schedule

    def __call__(self):
        return self.schedule.get_last_lr()[0]


def test_settings_in_shared_memory_and_in_schedules_are_seen():
    x = torch.randn(64, 16)
    shared = multiprocessing.Value("d", 1.0)
    schedule = torch.optim.lr_scheduler.StepLR(torch.optim.SGD([torch.zeros(1, requires_grad=True)], 1.0), 1, 0.5)
    for weight in (Value(shared), Rate(schedule)):
        bare, wrapped = Weighed(weight), remat.exec.wrap(Weighed(weight), x, "90%", **EASY)
        for step in range(3):
            shared.value = 1.0 + step
            assert torch.equal(bare(x), wrapped(x))
            schedule.optimizer.step()
            schedule.step()


def test_an_import_takes_none_of_the_users_random_numbers():
    code = "import random; random.seed(0); before = random.getstate(); import remat.exec; assert random.getstate() == before"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_optimizers_step_over_several_shapes():
    bare, one, wrapped, two = made()
    for optimizer in (torch.optim.Adam, torch.optim.AdamW):
        results = []
        for module, sample in ((bare, one), (wrapped, two)):
            torch.manual_seed(1)
            adam = optimizer(module.parameters(), lr=0.01)
            losses = []
            for n in (96, 40, 96, 40):
                adam.zero_grad()
                loss = module(*(t[:n] for t in sample))
                loss.backward()
                adam.step()
                losses.append(loss.item())
            results.append(losses)
        assert results[0] == results[1]
    assert len(wrapped.__dict__["_remat"].plans) == 2


def test_copies_train_on_their_own():
    bare, one, wrapped, two = made()
    twin = copy.deepcopy(wrapped)
    assert type(twin) is type(wrapped)
    expected = train(bare, one)
    assert differences(expected, train(twin, two)) == []
    assert all(p.grad is None for p in wrapped.parameters())
    assert differences(expected, train(wrapped, two)) == []


@pytest.mark.parametrize("how", ["pickle", "torch"])
def test_a_pickled_module_plans_anew_and_trains_the_same(how):
    bare, one, wrapped, two = made()
    if how == "pickle":
        back = pickle.loads(pickle.dumps(wrapped))
    else:
        buffer = io.BytesIO()
        torch.save(wrapped, buffer)
        buffer.seek(0)
        back = torch.load(buffer, weights_only=False)
    assert isinstance(back, MLP) and type(back) is type(wrapped)
    assert differences(train(bare, one), train(back, two)) == []
    assert remat.exec.report(back).budget == remat.exec.report(wrapped).budget


def test_a_new_module_of_the_wrapped_class_is_a_bare_one():
    module, x = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1)), torch.randn(3, 4)
    wrapped = remat.exec.wrap(module, x, "200%", **EASY)
    part, new = wrapped[:2], type(wrapped)(nn.Linear(4, 2))
    assert type(part) is type(new) is nn.Sequential and type(wrapped) is not nn.Sequential
    assert torch.equal(part(x), module[:2](x)) and new(x).shape == (3, 2)


class Particular(nn.Module):
    """Keeps a list of its subclasses, which give a keyword; what is copied of it leaves a lock out; it has a slot."""

    __slots__ = ("factor",)
    kinds = []  # noqa: RUF012 -- of the class

    def __init_subclass__(cls, *, kind):
        Particular.kinds.append(kind)

    def __init__(self):
        super().__init__()
        self.layer, self.lock, self.factor = nn.Linear(4, 4), threading.Lock(), 2.0

    def __getstate__(self):
        return {name: value for name, value in self.__dict__.items() if name != "lock"}

    def __setstate__(self, state):
        self.__dict__ = state | {"lock": threading.Lock()}
        self.factor = 2.0

    def forward(self, x):
        return (self.layer(x).tanh() * self.factor).sum()


class Kind(Particular, kind="first"):
    pass


def test_what_a_class_says_of_subclasses_and_copies_is_heeded_and_slots_are_seen():
    x = torch.randn(3, 4)
    wrapped = remat.exec.wrap(Kind(), x, "200%", **EASY)
    assert Particular.kinds == ["first"]
    for twin in (wrapped, copy.deepcopy(wrapped), pickle.loads(pickle.dumps(wrapped))):
        assert twin.lock.acquire(blocking=False) and type(twin) is type(wrapped)
        twin(x).backward()
        first, twin.layer.weight.grad = twin.layer.weight.grad, None
        twin.factor = 4.0
        twin(x).backward()
        assert torch.equal(twin.layer.weight.grad, 2 * first)


def test_gradients_accumulate():
    bare, one, wrapped, two = made()
    for module, sample in ((bare, one), (wrapped, two)):
        torch.manual_seed(5)
        for _ in range(3):
            module(*sample).backward()
    for x, y in zip(bare.parameters(), wrapped.parameters(), strict=True):
        assert torch.equal(x.grad, y.grad)


def test_eval_and_no_grad_pass_through():
    bare, one, wrapped, two = made("resnet")
    plans = len(wrapped.__dict__["_remat"].plans)
    with torch.no_grad():
        assert torch.equal(wrapped(*two), bare(*one))
        assert torch.equal(wrapped.eval()(two[0][:1]), bare.eval()(one[0][:1]))
    with torch.inference_mode():
        assert torch.equal(wrapped(two[0]), bare(one[0]))
    assert len(wrapped.__dict__["_remat"].plans) == plans
    assert torch.equal(wrapped(two[0]), bare(one[0]))
    assert len(wrapped.__dict__["_remat"].plans) == plans + 1
    assert not wrapped.training and not wrapped.stem[1].training
    assert wrapped.train().training


def test_gradients_of_a_subset_and_hooks_on_parameters():
    bare, one, wrapped, two = made()
    grads = []
    for module, sample in ((bare, one), (wrapped, two)):
        torch.manual_seed(2)
        grads.append(torch.autograd.grad(module(*sample), [module.head.weight, module.body[0].bias]))
    assert all(torch.equal(x, y) for x, y in zip(*grads, strict=True))
    calls = []
    wrapped.head.weight.register_hook(lambda g: calls.append("hook") or g * 2)
    wrapped.head.weight.register_post_accumulate_grad_hook(lambda p: calls.append("post"))
    torch.manual_seed(2)
    wrapped(*two).backward()
    assert calls == ["hook", "post"]
    assert torch.equal(wrapped.head.weight.grad, 2 * grads[0][0])


def test_hooks_of_the_module_run_every_time_and_those_inside_are_warned_of():
    module, sample = SMALL["mlp"].instantiate()
    calls = []
    module.register_forward_hook(lambda *_: calls.append("outer"))
    wrapped = remat.exec.wrap(module, sample, "100%", **EASY)
    wrapped(*sample)
    wrapped(*sample)
    assert calls == ["outer", "outer"]
    module, sample = SMALL["mlp"].instantiate()
    module.body[0].register_forward_hook(lambda *_: None)
    with pytest.warns(RematWarning, match=r"body\.0"):
        remat.exec.wrap(module, sample, "100%", **EASY)


def test_autocast_and_a_gradient_scaler():
    bare, one = SMALL["mlp"].instantiate()
    other, two = SMALL["mlp"].instantiate()
    results = []
    for module, sample in ((bare, one), (remat.exec.wrap(other, two, "100%", **EASY), two)):
        torch.manual_seed(0)
        scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
        sgd = torch.optim.SGD(module.parameters(), lr=0.1)
        for _ in range(3):
            sgd.zero_grad()
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = module(*sample)
            scaler.scale(loss).backward()
            scaler.step(sgd)
            scaler.update()
        results.append([p.detach().clone() for p in module.parameters()])
    assert all(torch.equal(x, y) for x, y in zip(*results, strict=True))


# -- where the loss is -------------------------------------------------------------------------------------------------------


def gpt_pair():
    case = SMALL["gpt2"]
    bare, (tokens, targets) = case.instantiate(torch.float64)
    other, _ = case.instantiate(torch.float64)
    return bare, other, tokens, targets


def cross_entropy(module, tokens, targets):
    return functional.cross_entropy(module(tokens).flatten(0, 1), targets.flatten())


def test_a_loss_given_as_a_function_is_inside_the_plan():
    bare, other, tokens, targets = gpt_pair()
    wrapped = remat.exec.wrap(other, (tokens, targets), "60%", loss=cross_entropy, **EASY)
    results = []
    for loss in (lambda: cross_entropy(bare, tokens, targets), lambda: wrapped(tokens, targets)):
        torch.manual_seed(0)
        value = loss()
        value.backward()
        results.append(value.detach())
    assert torch.equal(*results)
    for (name, x), y in zip(bare.named_parameters(), wrapped.parameters(), strict=True):
        torch.testing.assert_close(x.grad, y.grad, rtol=0 if name != "tokens.weight" else 1e-12, atol=1e-16)
    with torch.no_grad():
        wrapped.eval(), bare.eval()
        assert torch.equal(wrapped(tokens, targets), cross_entropy(bare, tokens, targets))


def test_a_loss_outside_with_a_reserve():
    bare, other, tokens, targets = gpt_pair()
    wrapped = remat.exec.wrap(other, (tokens,), "80%", loss_reserve="64KiB", **EASY)
    assert remat.exec.report(wrapped).loss_reserve == 64 * 1024
    results = []
    for module in (bare, wrapped):
        torch.manual_seed(0)
        loss = cross_entropy(module, tokens, targets)
        loss.backward()
        results.append(loss.detach())
    assert torch.equal(*results)
    assert torch.equal(bare.norm.weight.grad, wrapped.norm.weight.grad)


def test_a_loss_outside_is_estimated_audited_and_planned_for_anew():
    _, other, tokens, targets = gpt_pair()
    wrapped = remat.exec.wrap(other, (tokens,), "90%", **EASY)
    first = remat.exec.report(wrapped).loss_reserve
    assert first >= 2 * tokens.numel() * 32 * 8

    def step(greed):
        logits = wrapped(tokens)
        held = [logits.detach().clone() for _ in range(greed)]
        functional.cross_entropy(logits.flatten(0, 1), targets.flatten()).backward()
        return held

    step(0)
    step(0)
    assert remat.exec.report(wrapped).loss_reserve == first
    wrapped = remat.exec.wrap(other, (tokens,), "90%", **EASY)
    step(12)
    with pytest.warns(RematWarning, match="loss_reserve="):
        step(12)
    learnt = remat.exec.report(wrapped).loss_reserve
    assert learnt >= 12 * tokens.numel() * 32 * 8
    step(12)
    assert remat.exec.report(wrapped).loss_reserve == learnt


# -- budgets, refusals -------------------------------------------------------------------------------------------------------


def test_budgets_are_bytes_text_shares_or_nothing():
    module, sample = SMALL["mlp"].instantiate()
    peak = remat.exec.report(remat.exec.wrap(module, sample, "100%", **EASY)).store_all_peak
    for budget, meant in ((peak, peak), ("0.25MiB", 2**18), ("77.5%", int(peak * 0.775)), ("150 %", int(peak * 1.5))):
        assert remat.exec.report(remat.exec.wrap(module, sample, budget, **EASY)).budget == meant
    for wrong in ("40 percent", "-3%", "x%", "0%", -1, 0.4, True):
        with pytest.raises(BadArgument, match="U-SIZE"):
            remat.exec.wrap(module, sample, wrong, **EASY)


def test_no_budget_plans_nothing_and_reports():
    bare, one = SMALL["mlp"].instantiate(torch.float64)
    other, two = SMALL["mlp"].instantiate(torch.float64)
    wrapped = remat.exec.wrap(other, two, None, **EASY)
    assert differences(train(bare, one), train(wrapped, two)) == []
    report = remat.exec.report(wrapped)
    assert report.budget is None and report.source == ""
    assert report.predicted_peak == report.store_all_peak > 0
    assert "the unwrapped module runs" in str(report)


def test_an_infeasible_budget_says_what_would_do_and_what_cannot():
    module, sample = SMALL["mlp"].instantiate()
    with pytest.raises(Infeasible) as refused:
        remat.exec.wrap(module, sample, "1KiB", **EASY)
    error = refused.value
    assert error.budget == 1024 < error.floor <= error.smallest
    assert str(error.smallest) in str(error) and str(error.floor) in str(error)
    assert remat.exec.report(remat.exec.wrap(module, sample, error.smallest, **EASY)).predicted_peak <= error.smallest


def test_the_report_says_who_planned_and_shows_the_code():
    module, sample = SMALL["gpt2"].instantiate()
    wrapped = remat.exec.wrap(module, sample, "80%", cost="estimate", solver=PerLayerCheckpoint())
    report = remat.exec.report(wrapped)
    assert report.planner == repr(PerLayerCheckpoint())
    assert report.measured_peak is not None and report.measured_time > 0
    for name in (
        "budget",
        "predicted peak",
        "measured peak",
        "recomputations",
        "lower bound",
        "gap",
        "planned by",
    ):
        assert name in str(report)
    assert "def forward(primals):" in report.source and "# blocks.1.attention" in report.source
    with pytest.raises(BadArgument, match="not wrapped"):
        remat.exec.report(module)


class Looks(nn.Module):
    """A forward that depends on a value."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x):
        out = self.linear(x)
        return out.sum() / out.abs().max().item()


def test_what_cannot_be_captured_runs_bare_with_a_warning_or_raises():
    module, x = Looks(), torch.randn(3, 4)
    with pytest.warns(RematWarning, match=r"X-READ.*test_wrap\.py:\d+ in forward"):
        wrapped = remat.exec.wrap(module, (x,), "50%", on_uncapturable="bare")
    assert torch.equal(wrapped(x), module(x))
    wrapped(x).backward()
    assert module.linear.weight.grad is not None
    with pytest.raises(BadArgument, match="falls back to the unwrapped one"):
        remat.exec.report(wrapped)
    with pytest.raises(Uncapturable, match="keep it a tensor"):
        remat.exec.wrap(module, (x,), "50%", on_uncapturable="raise")


def test_a_forward_that_sets_attributes_is_refused_and_leaves_none_behind():
    class Counts(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(4, 4)
            self.calls = 0

        def forward(self, x):
            self.calls += 1
            self.last = self.linear(x)
            return self.last.sum()

    module = Counts()
    with pytest.raises(Uncapturable, match=r"self\.calls \+= 1.*changes self\.calls in every call"):
        remat.exec.wrap(module, (torch.randn(3, 4),), "100%", on_uncapturable="raise")
    assert module.calls == 0 and not hasattr(module, "last")


def test_arguments_are_checked():
    module, sample = SMALL["mlp"].instantiate()
    for wrong in ({"cost": "guess"}, {"differentiable": "some"}, {"on_uncapturable": "ignore"}):
        with pytest.raises(BadArgument, match="X-ARG"):
            remat.exec.wrap(module, sample, "100%", **(EASY | wrong))
    with pytest.raises(BadArgument, match="wrapped already"):
        remat.exec.wrap(remat.exec.wrap(module, sample, "100%", **EASY), sample, "100%", **EASY)
    with pytest.raises(BadArgument, match="not a call"):
        remat.exec.wrap(module, 3, "100%", **EASY)
    with pytest.raises(BadArgument, match="wrap: model is 'mlp'"):
        remat.exec.wrap("mlp", sample, "100%", **EASY)


def test_samples_and_outputs_of_many_forms():
    class Forms(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, x, *, scale=1.0, extra=None, flag=True):
            out = self.linear(x) * scale
            out = out if extra is None else out + extra["a"]
            return {"loss": out.square().sum(), "parts": [out, None, 3, "text"], "flag": flag}

    torch.manual_seed(0)
    module, x, a = Forms(), torch.randn(3, 4), torch.randn(3, 4)
    wrapped = remat.exec.wrap(module, {"x": x, "extra": {"a": a}, "scale": 2.0}, "100%", **EASY)
    out, bare = wrapped(x=x, extra={"a": a}, scale=2.0), module(x=x, extra={"a": a}, scale=2.0)
    assert out.keys() == bare.keys() and out["parts"][1:] == [None, 3, "text"] and out["flag"] is True
    assert torch.equal(out["loss"], bare["loss"]) and torch.equal(out["parts"][0], bare["parts"][0])
    assert len(wrapped.__dict__["_remat"].plans) == 1
    assert torch.equal(wrapped(x)["loss"], module(x)["loss"])
    assert len(wrapped.__dict__["_remat"].plans) == 2


def test_inputs_may_share_their_memory():
    torch.manual_seed(0)
    batch = torch.randint(32, (4, 13))
    module = GPT2(layers=1, width=16, heads=4, vocabulary=32, context=12, dropout=0.0)
    wrapped = remat.exec.wrap(module, (batch[:, :-1], batch[:, 1:]), "100%", **EASY)
    assert torch.equal(wrapped(batch[:, :-1], batch[:, 1:]), module(batch[:, :-1], batch[:, 1:]))


def test_a_module_without_trained_parameters_runs_bare():
    module = nn.Linear(4, 4).requires_grad_(False)
    x = torch.randn(2, 4)
    wrapped = remat.exec.wrap(module, x, "100%", **EASY)
    assert torch.equal(wrapped(x), module(x))


# -- several processes -------------------------------------------------------------------------------------------------------


def _train_in_parallel(rank, folder):
    import datetime

    torch.set_num_threads(1)
    store = f"file://{folder}/store"
    patience = datetime.timedelta(seconds=60)
    torch.distributed.init_process_group("gloo", init_method=store, rank=rank, world_size=2, timeout=patience)
    grads = []
    for wrapped in (False, True):
        module, (x, y) = SMALL["mlp"].instantiate(torch.float64)
        if wrapped:
            module = remat.exec.wrap(module, (x[:48], y[:48]), "100%", **EASY)
        parallel = nn.parallel.DistributedDataParallel(module)
        part = slice(48 * rank, 48 * rank + 48)
        torch.manual_seed(rank)
        with parallel.no_sync():
            parallel(x[part], y[part]).backward()
        parallel(x[part], y[part]).backward()
        grads.append([p.grad.clone() for p in module.parameters()])
    (folder / str(rank)).write_text(str(all(torch.equal(a, b) for a, b in zip(*grads, strict=True))))
    # Leave only when the peer is done too, and without tearing gloo down: its threads now and then never end.
    until = time.monotonic() + 60
    while not (folder / str(1 - rank)).exists() and time.monotonic() < until:
        time.sleep(0.01)
    os._exit(0)


def test_distributed_data_parallel_gets_the_same_gradients(tmp_path):
    context = torch.multiprocessing.get_context("spawn")
    workers = [context.Process(target=_train_in_parallel, args=(rank, tmp_path), daemon=True) for rank in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(180)
    alive = [worker.exitcode for worker in workers]
    for worker in workers:
        worker.kill()
    assert alive == [0, 0]
    assert [(tmp_path / str(rank)).read_text() for rank in range(2)] == ["True", "True"]


def test_a_plan_that_is_made_in_inference_mode_is_one_for_training():
    torch.manual_seed(0)
    bare, x = nn.Sequential(nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 1)), torch.randn(32, 16)
    module = copy.deepcopy(bare)
    with torch.inference_mode():
        wrapped = remat.exec.wrap(module, x, "100%")
    for module in (bare, wrapped):
        module(x).square().mean().backward()
    assert remat.exec.report(wrapped).ran == "plan"
    assert all(torch.equal(a.grad, b.grad) for a, b in zip(bare.parameters(), wrapped.parameters(), strict=True))
