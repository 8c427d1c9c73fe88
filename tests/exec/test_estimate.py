"""Estimates without weights, against what real steps hold."""

import functools

import pytest
import torch

import remat
from remat.algorithms import store_all_peak
from remat.errors import BadArgument, RematError
from remat.exec import measure_step
from remat.exec._cost.optimizers import find_optimizer, optimizer_memory, states_now
from remat.exec._plan.batches import LARGEST_BATCH, PRECISION, largest_batch
from remat.exec._torch.memory_now import free_memory
from remat.zoo import GPT2, MLP
from remat.zoo.catalog import cases

CASES = [case for case in cases() if case.name in ("gpt2", "resnet", "unet", "encoder-decoder", "frozen")]


def measured(module, sample, optimizer):
    """What a training step with its optimizer holds: before it, and at most above that."""

    def step():
        result = module(*sample)
        (result[0] if isinstance(result, tuple) else result).backward()
        optimizer.step()

    step()
    for tensor in (*module.parameters(), *sample):
        tensor.grad = None
    tensors = [*module.parameters(), *module.buffers(), *sample]
    return sum(tensor.nbytes for tensor in tensors) + states_now(optimizer), measure_step(step).peak


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_an_estimate_is_what_a_step_of_the_real_model_holds(case):
    estimate = remat.estimate(lambda: (case.build(), case.sample()), optimizer="adamw", memory="1GiB")
    module, sample = case.instantiate()
    before, peak = measured(module, sample, torch.optim.AdamW(p for p in module.parameters() if p.requires_grad))
    assert estimate.needs.outside == before
    assert max(estimate.needs.step, estimate.needs.update) == pytest.approx(peak, rel=0.01)
    assert estimate.fits and estimate.ratio == 1


class Twice(torch.autograd.Function):
    """Holds its argument and its result, and reads neither."""

    @staticmethod
    def forward(ctx, x):
        y = 2 * x
        ctx.save_for_backward(x, y)
        return y

    @staticmethod
    def backward(ctx, grad):
        assert len(ctx.saved_tensors) == 2
        return 2 * grad


class Holding(torch.nn.Module):
    """Operations whose derivatives hold more than they read."""

    def __init__(self, what, layers=4):
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(32, 32) for _ in range(layers))
        self.what = what

    def forward(self, x, where):
        for layer in self.layers:
            x = getattr(self, self.what)(layer(x), where)
        return x.relu().sum()

    def adding(self, x, where):
        return torch.zeros(x.shape[0] // 4, 32).index_add(0, where[: x.shape[0]] // 4, x.sin()).repeat(4, 1)

    def gathering(self, x, where):
        return x.sin().gather(0, where[:, None].expand(-1, 32)).sin()

    def calling(self, x, where):
        return Twice.apply(x.sin()).tanh()


@pytest.mark.parametrize("what", ["adding", "gathering", "calling"])
def test_a_step_holds_what_autograd_has_saved_whether_its_backward_reads_it_or_not(what):
    def factory():
        return Holding(what), (torch.randn(256, 32), torch.arange(256) % 64)

    estimate = remat.estimate(factory, optimizer=None, memory="1GiB")
    module, sample = factory()
    module(*sample).backward()
    module.zero_grad()
    held = measure_step(lambda: module(*sample).backward()).peak
    assert estimate.needs.step == pytest.approx(held, abs=64)  # a few scalars
    assert store_all_peak(estimate.graph) + 3 * 4 * 32 * 64 < held
    wrapped = remat.exec.wrap(module, sample, held, seconds=1, on_uncapturable="raise")
    wrapped(*sample).backward()
    module.zero_grad()
    assert measure_step(lambda: wrapped(*sample).backward()).peak < held


def test_the_parts_of_an_estimate_sum_up():
    case = CASES[0]
    needs = remat.estimate(lambda: (case.build(), case.sample()), device="H100", depth=9).needs
    assert needs.activations + needs.temporaries + needs.gradients_at_peak + needs.workspace == needs.step
    module, _ = case.instantiate()
    assert sum(row.parameters for row in needs.modules) == sum(p.nbytes for p in module.parameters())
    assert sum(row.gradients for row in needs.modules) == needs.gradients
    assert sum(row.at_peak for row in needs.modules) == needs.activations + needs.temporaries
    assert sum(row.states for row in needs.modules) == needs.states
    assert {"blocks.0.attention.qkv", "blocks.1.feed.2"} <= {row.name for row in needs.modules}


def weights(**shapes):
    return {name: torch.nn.Parameter(torch.empty(shape)) for name, shape in shapes.items()}


OPTIMIZERS = [
    "sgd", "sgd(momentum=0.9)", "adam", "Adam(amsgrad=True)", "adamw", "adagrad", "rmsprop", "rmsprop(centered=True)",
    "adafactor", "adadelta", "adamax", "nadam", "radam", "asgd", "rprop", "torch.optim:Adam",
]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "foreach"), [*((text, False) for text in OPTIMIZERS), *((text, True) for text in OPTIMIZERS[1:4])]
)
def test_states_are_those_of_the_real_optimizer_to_the_byte(text, foreach):
    module = GPT2(layers=1, width=8, heads=2, vocabulary=16, context=6)
    make = functools.partial(find_optimizer(text), foreach=foreach)
    parameters = dict(module.named_parameters())
    expected = optimizer_memory(make, parameters, trained=list(parameters))
    optimizer = make(module.parameters())
    module(torch.randint(16, (2, 6)), torch.randint(16, (2, 6))).backward()
    optimizer.step()
    assert expected.states == sum(expected.by_parameter.values()) == states_now(optimizer)
    scratch = measure_step(optimizer.step).peak
    assert expected.scratch == pytest.approx(scratch, abs=64)  # a few scalars
    copied = optimizer_memory(optimizer, parameters, trained=list(parameters))
    assert (copied.states, copied.scratch) == (expected.states, expected.scratch)
    assert states_now(optimizer) == expected.states


class StatesAtBirth(torch.optim.Optimizer):
    """Sums squares in states that are there before the first step."""

    def __init__(self, parameters):
        super().__init__(parameters, {})
        for parameter in self.param_groups[0]["params"]:
            self.state[parameter] = {"step": torch.zeros(()), "sum": torch.zeros_like(parameter)}

    @torch.no_grad()
    def step(self):
        for parameter in self.param_groups[0]["params"]:
            state = self.state[parameter]
            state["step"] += 1
            state["sum"].addcmul_(parameter.grad, parameter.grad, value=1 / state["step"].item())


def test_an_optimizer_that_is_made_with_its_states_is_counted_as_it_is():
    module = torch.nn.Linear(8, 4)
    optimizer, parameters = StatesAtBirth(module.parameters()), dict(module.named_parameters())
    before = [state["sum"].clone() for state in optimizer.state.values()]
    assert optimizer_memory(optimizer, parameters, trained=list(parameters)).states == states_now(optimizer)
    assert all(map(torch.equal, before, [state["sum"] for state in optimizer.state.values()]))


def test_an_accelerator_steps_many_parameters_at_a_time_and_counts_on_the_host():
    parameters = weights(w=(100, 10), b=(10,))
    here = optimizer_memory("adamw", parameters, trained=parameters)
    there = optimizer_memory("adamw", parameters, trained=parameters, granule=512)
    assert here.states == 2 * (4000 + 40) + 2 * 4 and here.scratch == 2 * 4000
    assert there.states == 2 * (4096 + 512) and there.scratch == 4096 + 512


def test_a_parameter_without_a_gradient_has_no_state():
    parameters = weights(w=(100, 10), b=(10,))
    assert optimizer_memory("adam", parameters, trained=["b"]).by_parameter == {"w": 0, "b": 84}


class Deciding(torch.optim.Optimizer):
    def __init__(self, params, kept=1):
        super().__init__(params, {"kept": kept})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad.norm() > 0:
                    self.state[p]["copies"] = [p.clone() for _ in range(group["kept"])]


def test_any_optimizer_is_run_and_what_it_reads_is_said():
    parameters = weights(w=(100, 10))
    memory = optimizer_memory(f"{__name__}:Deciding(kept=3)", parameters, trained=parameters)
    assert memory.states == memory.by_parameter["w"] == 12000
    assert memory.guesses == 1


@pytest.mark.parametrize(
    "optimizer", ["adamm", "no.such:Thing", "adam(0.1)", "adam(lr=x)", "adam(lr=1", "lbfgs", "sparseadam", dict, 3]
)
def test_what_is_no_optimizer_is_refused(optimizer):
    with pytest.raises(BadArgument, match="X-OPTIMIZER") as caught:
        optimizer_memory(optimizer, weights(w=(2, 2)), trained=["w"])
    assert caught.value.fix


def mlp(batch=40):
    return MLP(layers=3, width=16), (torch.randn(batch, 16), torch.randn(batch, 8))


def test_the_largest_batch_fits_and_three_per_cent_more_does_not():
    memory = 100 << 10
    batch = remat.estimate(mlp, optimizer="adamw", memory=memory, reserve=64, batch="batch", seconds=0.5).batch
    size, beyond = batch.keeping.batch, batch.keeping.next_batch
    assert size < beyond <= size + max(1, size // 33)
    totals = {}
    for samples in (size, beyond):
        module, sample = mlp(samples)
        totals[samples] = sum(measured(module, sample, torch.optim.AdamW(module.parameters())))
    assert totals[size] <= memory < totals[beyond]
    assert batch.planned.batch > size and batch.ratio >= 1


@pytest.mark.parametrize("slope", [1, 7, 1000])
@pytest.mark.parametrize("bend", [0, 1, 50])
@pytest.mark.parametrize("start", [1, 4, 300])
def test_the_search_for_a_batch_ends_where_it_should(slope, bend, start):
    def need(batch):
        return 100 + slope * (batch // 8 * 8 if bend == 50 else batch) + bend * batch * batch // 100

    for capacity in (99, 100, 200, 5000, 10**6):
        answer = largest_batch(need, capacity, start)
        assert need(answer.next_batch) > capacity and len(answer.tried) < 25
        assert answer.batch == 0 or need(answer.batch) <= capacity
        assert answer.next_batch <= answer.batch + max(1, answer.batch // PRECISION)


def test_where_every_batch_fits_the_largest_that_is_tried_is_the_answer():
    for start in (1, LARGEST_BATCH):
        answer = largest_batch(lambda batch: 5 + batch, 1 << 40, start)
        assert (answer.batch, answer.need, answer.next_batch) == (LARGEST_BATCH, 5 + LARGEST_BATCH, None)


def test_a_batch_that_costs_nothing_is_refused():
    with pytest.raises(BadArgument, match=f"X-BATCH: {LARGEST_BATCH} samples"):
        largest_batch(lambda _batch: 5, 6)
    with pytest.raises(BadArgument, match="X-BATCH: the factory has no argument 'rows'; it has batch"):
        remat.estimate(mlp, batch="rows", memory=1)


def test_the_budget_of_an_estimate_makes_it_fit_or_is_said_to_be_too_small():
    whole = remat.estimate(mlp, memory="1GiB", device="v100", reserve=0).needs
    tight = remat.estimate(mlp, memory=whole.total - whole.step // 4, device="v100", reserve=0, seconds=2)
    assert tight.budget == whole.step - whole.step // 4
    assert not tight.fits and tight.planned and tight.ratio > 1 and "makes it fit" in str(tight)
    assert tight.outcome.cost.peak <= tight.budget
    none = remat.estimate(mlp, memory=whole.outside + whole.update - 1, device="v100", reserve=0)
    assert none.outcome is None and "optimizer's step lack 1 B already" in str(none)
    floor = remat.estimate(
        mlp, memory=whole.outside + whole.update + 1, device="v100", reserve=0, optimizer="adamw", seconds=0.5
    )
    assert floor.smallest is None or floor.budget < floor.smallest <= whole.step


def test_the_cpu_says_what_it_has_free_and_other_devices_what_their_model_says():
    assert 0 < free_memory(torch.device("cpu")) < 1 << 50
    estimate = remat.estimate(mlp, device="h100")
    assert estimate.memory == 791 * 2**30 // 10 and estimate.reserve == 2**30
    card = remat.exec.Device(name="card", flops_per_second=10**12, bytes_per_second=10**11)
    with pytest.raises(RematError, match="X-MEMORY: the model of card"):
        remat.estimate(mlp, device=card)
    assert remat.estimate(mlp, device=card, memory="2GiB").fits
