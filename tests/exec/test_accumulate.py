"""Sums of gradients inside the operations that make what they add: the same numbers to the last bit, less memory, refusals."""

from functools import cache

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

import remat.exec
from remat.algorithms import store_all_peak
from remat.errors import BadArgument
from remat.exec._cost.cost import estimate
from remat.exec._program.program import Role
from remat.ir import Phase, Schedule, validate
from remat.zoo import GPT2, ResNet, UNet
from tests.exec.support import Rig, differences, evicting, train
from tests.exec.test_pitfalls import pair

WIDTH = 8


HIDDEN = 64
"""Of the cell: a multiple of what its kernels do at once. Its in-place calls on slices run out of place in a captured step, and
would otherwise work off the rest of a row in another way than eager, which changes the last bit."""


class Uses(nn.Module):
    """Two linear layers, a norm and a recurrent cell that a function of (module, x) uses as often as it likes."""

    def __init__(self, function):
        super().__init__()
        self.one, self.two = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH, bias=False)
        self.norm, self.cell = nn.LayerNorm(WIDTH), nn.GRUCell(WIDTH, HIDDEN)
        self.function = function

    def forward(self, x):
        return self.function(self, x)


def residual(self, x):
    for layer in (self.one, self.two, self.one):
        x = x + torch.tanh(layer(self.norm(x)))
    return x.square().sum()


def tied(self, x):
    hidden = torch.tanh(functional.linear(x, self.two.weight))
    return functional.linear(torch.sin(functional.linear(hidden, self.two.weight.t())), self.two.weight).square().sum()


def shared_cell(self, x):
    state = x.new_zeros(len(x), HIDDEN)
    for _ in range(4):
        state = self.cell(x, state)
    return state.square().sum()


def four_uses(self, x):
    hidden = self.one(x)
    return (hidden.sin() * hidden.cos() + hidden.exp() * torch.sigmoid(hidden)).sum()


def transposed(self, x):
    hidden = self.one(x)
    return ((hidden @ hidden.t()).tanh().sum() + hidden.t().matmul(hidden).sin().sum()) * 0.5


def halves(self, x):
    hidden = self.one(x)
    left, right = hidden.chunk(2, dim=1)
    return (torch.cat([left, right * 2], 1).sin() * hidden).sum() + left.square().sum()


def spectral(self, x):
    waves = torch.fft.rfft(self.one(x))
    return torch.fft.irfft(waves * 0.5 + waves.conj() * waves).square().sum()


def several_outputs(self, x):
    hidden = self.one(x)
    return (self.norm(hidden) * self.norm(hidden * 2) + hidden).square().sum()


def given_twice(self, x):
    hidden = self.one(x).relu()
    return self.two(hidden).sum() + hidden.sum() + (x * x * x).sum()


FUNCTIONS = [
    residual, tied, shared_cell, four_uses, transposed, halves, spectral, several_outputs, given_twice,
]  # fmt: skip


def sample():
    return (torch.randn(6, WIDTH, dtype=torch.float64, requires_grad=True),)


def built(function):
    return pair(lambda: Uses(function), sample)


def rigs(module, inputs):
    return (Rig(module, inputs, cost="estimate", fold_sums=which) for which in ("all", "none"))


def sums(rig):
    return [op for op in rig.program.nodes if op.phase is Phase.BACKWARD and str(op.target) == "aten.add.Tensor"]


def folded(rig):
    return [op for op in rig.program.nodes if op.adds]


def as_captured(graph):
    return Schedule.from_runs(graph, range(len(graph)))


def twice(graph):
    """Each node that a sum was folded into runs again before every later backward node that reads what it makes."""
    runs = []
    once = {name for node in graph.computes if node.run_once for name in node.writes}
    makers = {
        node.writes[0]: i for i, node in enumerate(graph.computes) if node.writes and node.phase is Phase.BACKWARD
    }
    for i, node in enumerate(graph.computes):
        if node.phase is Phase.BACKWARD:
            again = [name for name in node.reads if name in makers and not graph.datum(name).keep and name not in once]
            for name in again:
                source = graph.computes[makers[name]]
                if "+" in source.signature:
                    runs += [w for other in source.reads if (w := makers.get(other)) is not None]
                    runs.append(makers[name])
        runs.append(i)
    return Schedule.from_runs(graph, runs)


def doubled(graph):
    """Each backward node runs twice in a row: also those whose gradients the caller keeps."""
    runs = []
    for i, node in enumerate(graph.computes):
        runs += [i, i] if node.phase is Phase.BACKWARD and not node.run_once else [i]
    return Schedule.from_runs(graph, runs)


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda one: one.__name__)
@pytest.mark.parametrize("order", [as_captured, evicting, twice, doubled], ids=lambda one: one.__name__)
def test_folded_sums_change_no_bit(function, order):
    (bare, one), (other, two) = built(function)
    rig = Rig(other, two, cost="estimate", fold_sums="all")
    assert folded(rig)
    schedule = order(rig.graph)
    validate(rig.graph, schedule)
    assert differences(train(bare, one), train(other, two, call=rig.forward(schedule))) == []


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda one: one.__name__)
def test_no_step_of_the_captured_order_holds_more(function):
    _, (module, inputs) = built(function)
    short, long = rigs(module, inputs)
    assert len(sums(short)) + len(folded_pairs(short)) == len(sums(long))
    assert len(short.graph) == len(long.graph) - len(folded_pairs(short))
    assert store_all_peak(short.graph) <= store_all_peak(long.graph)
    assert sum(datum.size for datum in short.graph.data) < sum(datum.size for datum in long.graph.data)


def folded_pairs(rig):
    return [pair for op in folded(rig) for pair in op.adds]


@pytest.mark.parametrize(
    ("build", "inputs"),
    [
        (lambda: GPT2(layers=2, width=16, heads=2, vocabulary=24, context=6), lambda: tuple(torch.randint(24, (2, 3, 6)))),
        (lambda: ResNet(blocks=(2, 2), width=4, classes=5), lambda: (torch.randn(2, 3, 16, 16), torch.randint(5, (2,)))),
        (lambda: UNet(levels=2, channels=4), lambda: (torch.randn(2, 3, 16, 16), torch.randn(2, 1, 16, 16))),
    ],
    ids=["gpt2", "resnet", "unet"],
)  # fmt: skip
def test_models_with_skips_and_tied_weights_keep_no_explicit_sum(build, inputs):
    (bare, one), (other, two) = pair(build, inputs)
    rig = Rig(other, two, cost="estimate", fold_sums="all")
    assert sums(rig) == [] and folded(rig)
    for order in (evicting, twice, doubled):
        assert differences(train(bare, one), train(other, two, call=rig.forward(order(rig.graph)))) == []


def test_a_rerun_is_exact_and_runs_the_addition_again():
    _, (module, inputs) = built(four_uses)
    rig = Rig(module, inputs, cost="estimate", fold_sums="all")
    schedule = twice(rig.graph)
    again = {name for name, n in remat.exec.lower(rig.program, schedule).reruns.items() if n}
    hosts = {op.name for op in folded(rig)}
    assert hosts & again
    lines = remat.exec.lower(rig.program, schedule).source.splitlines()
    assert sum("aten_add_out" in line for line in lines) > len(folded_pairs(rig))


def test_the_addition_is_charged_to_the_node_that_makes_the_later_operand():
    _, (module, inputs) = built(residual)
    short, long = rigs(module, inputs)
    with_sums, without = estimate(short.program), estimate(long.program)
    for op in folded(short):
        assert with_sums[op.name].time > without[op.name].time
        node = short.graph.node(op.name)
        assert "+" in node.signature and node.signature != long.graph.node(op.name).signature
        assert {short.program.storage_of(one).name for _, *pair in op.adds for one in pair} - {*node.reads} <= {
            *node.writes
        }


def test_the_measured_peak_is_the_predicted_one_with_sums_inside():
    torch.manual_seed(0)
    stack = nn.Sequential(*(nn.Linear(128, 128) for _ in range(4)))

    class Wide(nn.Module):
        def __init__(self):
            super().__init__()
            self.stack, self.last = stack, nn.Linear(128, 128)
            self.last.weight = stack[0].weight

        def forward(self, x):
            for layer in self.stack:
                x = x + torch.tanh(layer(x))
            return self.last(x).square().sum()

    rig = Rig(Wide(), (torch.randn(256, 128),))
    assert sums(rig) == []
    for order in (as_captured, evicting, twice, doubled):
        schedule = order(rig.graph)
        cost = validate(rig.graph, schedule)
        assert rig.measured(rig.step(schedule)).peak == cost.peak


# -- which sums are folded unless one says otherwise ------------------------------------------------------------------------


def remaining(function):
    _, (module, inputs) = built(function)
    settled, explicit = (Rig(module, inputs, cost="estimate", fold_sums=which) for which in ("settled", "none"))
    return len(sums(settled)), len(sums(explicit))


def test_sums_whose_order_is_settled_are_folded():
    """A residual's later gradient is computed from the earlier; a tied weight's sum stays to the end."""
    assert remaining(residual) == (0, 9)
    assert remaining(tied) == (0, 2)


def test_sums_of_two_that_may_come_in_either_order_stay_nodes():
    assert remaining(four_uses) == (3, 3)


def test_an_unknown_word_is_refused():
    _, (module, inputs) = built(residual)
    with pytest.raises(BadArgument, match="X-ARG"):
        remat.exec.capture(module, inputs, fold_sums="some")


class Tree(nn.Module):
    """Residual blocks, one inside the other, and branches that meet again."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def forward(self, x):
        one, two, three, four = self.layers
        x = x + torch.tanh(one(x))
        x = x + two(x + torch.sin(three(x)))
        return (x + torch.sigmoid(four(x)) * x).square().sum()


@cache
def trees():
    torch.manual_seed(0)
    module, inputs = Tree(), (torch.randn(6, WIDTH),)
    return [Rig(module, inputs, cost="estimate", fold_sums=which).graph for which in ("settled", "none")]


@given(st.randoms(use_true_random=False))
def test_a_plan_in_any_order_fits_as_well_without_the_sums(random):
    settled, explicit = trees()
    order, waiting = [], [i for i, node in enumerate(explicit.computes) if node.phase is Phase.BACKWARD]
    there = {name for node in explicit.computes[: explicit.loss + 1] for name in node.writes}
    there |= {datum.name for datum in explicit.data if datum.outside}
    while waiting:
        ready = [i for i in waiting if there.issuperset(explicit.computes[i].reads)]
        order.append(random.choice(ready))
        waiting.remove(order[-1])
        there.update(explicit.computes[order[-1]].writes)
    long = [explicit.computes[i].name for i in (*range(explicit.loss + 1), *order)]
    short = [name for name in long if name in settled.node_index]
    assert len(short) < len(long)
    costs = [validate(graph, Schedule.from_runs(graph, runs)) for graph, runs in ((explicit, long), (settled, short))]
    assert costs[1].peak <= costs[0].peak


# -- refusals ----------------------------------------------------------------------------------------------------------------


class Weighted(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        return torch.add(grad.sin(), grad.cos(), alpha=3)


class Drawn(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 1

    @staticmethod
    def backward(ctx, grad):
        return grad * 0.5 + torch.rand_like(grad)


class ReadTwice(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        one = grad.sin()
        two = one.cos()
        return (one + two) * two


class Slices(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        wide = torch.cat([grad, grad.sin()])
        left, right = wide.chunk(2)
        return left + right


class Broadcast(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        return grad.sin() + grad.cos()[:1].sum(0)


class Mixed(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        return grad.to(torch.float32).sin() + grad.cos()


class Layouts(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        return grad.sin() + grad.t().contiguous().cos().t()


@pytest.mark.parametrize("function", [Weighted, Drawn, ReadTwice, Slices, Broadcast, Mixed, Layouts])
def test_a_sum_stays_where_folding_it_would_not_be_safe(function):
    def forward(self, x):
        return function.apply(self.one(x)).square().sum()

    (bare, one), (other, two) = built(forward)
    rig = Rig(other, two, cost="estimate", fold_sums="all")
    assert [op.role for op in sums(rig)] == [Role.CALL]
    assert differences(train(bare, one), train(other, two, call=rig.forward(evicting(rig.graph)))) == []


def test_a_sum_that_is_returned_as_it_is_stays_out_of_others_hands():
    """The gradient of x is the sum itself; so is that of y: each gets a storage of its own."""

    class Both(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(WIDTH, WIDTH)

        def forward(self, x, y):
            z = self.linear(x + y)
            return (z.sin() * z.cos() * (x + y)).sum()

    (bare, one), (other, two) = pair(
        Both, lambda: tuple(torch.randn(3, WIDTH, dtype=torch.float64, requires_grad=True) for _ in range(2))
    )
    rig = Rig(other, two, cost="estimate", fold_sums="all")
    assert differences(train(bare, one), train(other, two, call=rig.forward(evicting(rig.graph)))) == []


# -- any use of any value ----------------------------------------------------------------------------------------------------

UNARY = (torch.sin, torch.tanh, lambda x: x.t().contiguous().t() * 2, lambda x: x.reshape(-1, 4).exp().view_as(x))
BINARY = (torch.mul, torch.add, lambda x, y: x @ y.t() @ x, lambda x, y: torch.cat([x[:3], y[3:]]), torch.atan2)


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9), st.integers(0, 8)), min_size=2, max_size=9))
def test_however_often_values_are_used_the_gradients_are_those_of_eager(program):
    def forward(self, x):
        held = [self.one(x), self.two(x), x]
        for first, second, what in program:
            one, two = held[first % len(held)], held[second % len(held)]
            made = UNARY[what](one) if what < len(UNARY) else BINARY[what - len(UNARY)](one, two)
            held.append(torch.tanh(made))
        return sum(one.sum() for one in held[-3:])

    (bare, one), (other, two) = built(forward)
    rig = Rig(other, two, cost="estimate", fold_sums="all")
    assert differences(train(bare, one, 1), train(other, two, 1, call=rig.forward(twice(rig.graph)))) == []
