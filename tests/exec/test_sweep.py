from itertools import pairwise

import pytest
import torch
from attrs import frozen
from torch import nn

from remat.algorithms import IMPOSSIBLE, Clock, Plan, Solver, Status, StoreAll, store_all_peak
from remat.algorithms._bounds.floor import proved_floor
from remat.algorithms._curves.tradeoff import SWEEP
from remat.algorithms._search.auto import quick
from remat.errors import BadArgument, RematError
from remat.exec._capture.capturing import capture
from remat.exec.sweeping import sweep, sweep_graph
from remat.exec.weightless import capture_without_weights
from remat.ir import validate
from remat.zoo.gpt2 import GPT2
from remat.zoo.large import gpt


def tokens():
    return torch.randint(0, 64, (2, 16))


@pytest.fixture(scope="module")
def model():
    return GPT2(layers=3, width=32, heads=2, vocabulary=64, context=16)


@pytest.fixture(scope="module")
def graph():
    return capture_without_weights(lambda: gpt(3, width=64, batch=8, time=64, vocabulary=64)).graph()


@frozen
class Interrupted(Solver):
    """Plans everything as it was captured; the user interrupts at the third budget."""

    asked: list

    def plan(self, problem, clock, seed):
        self.asked.append(problem.budget)
        if len(self.asked) == 3:
            raise KeyboardInterrupt
        return StoreAll().plan(problem, clock, seed)


@frozen
class OnlyBelow(Solver):
    """Plans nothing for budgets over a limit."""

    limit: int

    def plan(self, problem, clock, seed):
        return quick.plan(problem, clock, seed) if problem.budget < self.limit else Plan()


def test_the_curve_never_rises_and_each_choice_is_a_plan_within_its_budget(graph):
    curve = sweep_graph(graph, points=7, solver=quick)
    assert curve.complete
    assert len(curve.choices) == 7
    assert [one.budget for one in curve.choices] == sorted(one.budget for one in curve.choices)
    assert curve.choices[0].budget == proved_floor(graph)
    assert curve.choices[-1].budget == store_all_peak(graph) == curve.store_all_peak
    for smaller, larger in pairwise(curve.choices):
        assert smaller.ratio is None or larger.ratio <= smaller.ratio
        assert larger.lower <= smaller.lower
    for one in curve.choices:
        if one.ratio is not None:
            cost = validate(graph, one.outcome.schedule, one.budget)
            assert one.lower <= one.ratio == cost.time / curve.store_all_time
    assert curve.choices[-1].ratio == 1
    assert sum(one.ratio is not None for one in curve.choices) >= 4


def test_a_plan_for_a_small_budget_is_offered_to_every_larger_one(graph):
    small, middle, large = sweep_graph(
        graph, ["90%", "60%", 10**12], solver=OnlyBelow(store_all_peak(graph) * 2 // 3)
    ).choices
    assert [small.share, middle.share] == pytest.approx([0.6, 0.9], rel=1e-6)
    assert small.ratio > 1
    assert small.ratio == middle.ratio == large.ratio


def test_an_interruption_keeps_what_was_found(graph):
    asked = []
    peak = store_all_peak(graph)
    curve = sweep_graph(graph, [peak, peak + 1, peak + 2, peak + 3, peak + 4], solver=Interrupted(asked))
    assert asked == [peak, peak + 1, peak + 2]
    assert not curve.complete
    assert [one.ratio for one in curve.choices[:2]] == [1, 1]
    assert len(curve.choices) < 5
    assert f"stopped after {len(curve.choices)} of 5" in str(curve)


def test_the_end_of_the_time_keeps_what_was_found(graph):
    now = iter(range(10**6))
    curve = sweep_graph(graph, points=50, solver=StoreAll(), clock=Clock(60, now=lambda: next(now)))
    assert 0 < len(curve.choices) < 50
    assert curve.asked == 50


def test_each_budget_reached_is_reported_to_the_listener(graph):
    heard = []
    curve = sweep_graph(graph, points=4, solver=StoreAll(), clock=Clock(listener=heard.append))
    reached = [one for one in heard if one.stage == SWEEP]
    assert [(one.done, one.total) for one in reached] == [(1, 4), (2, 4), (3, 4), (4, 4)]
    assert reached[-1].best == curve.store_all_time
    assert [one.best for one in reached[:-1]] == [None] * 3


def test_a_choice_below_the_floor_is_proved_impossible_and_printed_so(graph):
    curve = sweep_graph(graph, [proved_floor(graph) - 1, "100%"], solver=quick)
    low, high = curve.choices
    assert low.lower == IMPOSSIBLE
    assert low.outcome.status is Status.INFEASIBLE
    assert curve.lowest is high
    lines = str(curve).splitlines()
    assert lines[0].startswith("GPT2: keeping everything takes")
    assert lines[2].endswith("proved impossible")
    assert lines[3].endswith("optimal, bound certified")
    assert "1.0000" in lines[3]


def test_the_cheapest_budget_within_a_slowdown(graph):
    curve = sweep_graph(graph, ["100%", "60%"], solver=quick)
    low, high = curve.choices
    assert low.ratio > 1.001
    assert curve.cheapest_within(1.001) is high
    assert curve.cheapest_within(low.ratio) is low
    assert curve.cheapest_within(0.9) is None


def test_a_model_is_swept_by_measured_estimated_and_modelled_costs(model):
    before = [one.clone() for one in model.parameters()]
    curves = {
        cost: sweep(model, (tokens(), tokens()), ["100%"], cost=cost, solver=StoreAll())
        for cost in ("measure", "estimate", "v100")
    }
    assert all(one.choices[0].ratio == 1 for one in curves.values())
    assert curves["estimate"].store_all_time != curves["v100"].store_all_time
    assert {len(one.graph) for one in curves.values()} == {len(curves["v100"].graph)}
    peaks = {cost: one.store_all_peak for cost, one in curves.items()}
    assert peaks["estimate"] <= peaks["measure"]
    assert all(torch.equal(one, was) for one, was in zip(model.parameters(), before, strict=True))
    assert all(one.grad is None for one in model.parameters())


def test_a_model_in_evaluation_is_swept_as_it_trains_and_stays_in_evaluation(model):
    sample = (tokens(), tokens())
    training = sweep(model.train(), sample, ["100%"], cost="v100", solver=StoreAll())
    evaluating = sweep(model.eval(), sample, ["100%"], cost="v100", solver=StoreAll())
    assert not model.training
    assert len(training.graph) == len(evaluating.graph)
    model.train()


def test_a_loss_outside_the_module_is_part_of_the_step():
    class Plain(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 64))

        def forward(self, x):
            return self.layers(x)

    module, sample = Plain(), torch.randn(32, 64)
    guessed = sweep(module, sample, ["100%"], cost="v100", solver=StoreAll())
    said = sweep(module, sample, ["100%"], cost="v100", loss_reserve="1MiB", solver=StoreAll())
    inside = sweep(module, sample, ["100%"], cost="v100", loss=lambda m, x: m(x).square().mean(), solver=StoreAll())
    assert said.store_all_peak > guessed.store_all_peak > inside.store_all_peak


def test_a_model_without_weights_is_swept_on_a_device_model_only():
    weightless = {}

    def factory():
        weightless["made"] = gpt(1, width=64, batch=1, time=16, vocabulary=64)
        return weightless["made"]

    graph = capture_without_weights(factory).graph()
    module, sample = weightless["made"]
    curve = sweep(module, sample, ["100%"], cost="v100", solver=StoreAll())
    assert curve.store_all_peak == store_all_peak(graph)
    with pytest.raises(BadArgument, match="no weights"):
        sweep(module, sample, ["100%"])


def test_arguments_that_are_none_are_refused(model, graph):
    sample = (tokens(), tokens())
    with pytest.raises(RematError, match="X-DEVICE-MODEL"):
        sweep(model, sample, cost="slide rule")
    with pytest.raises(BadArgument, match="points is 1"):
        sweep_graph(graph, points=1)
    with pytest.raises(BadArgument, match="no budget"):
        sweep_graph(graph, [])
    with pytest.raises(BadArgument, match="not a size"):
        sweep_graph(graph, [None])
    with pytest.raises(BadArgument, match="not a size"):
        sweep_graph(graph, ["a lot"])
    assert capture(model, sample).program.nodes  # the refusals left the model as it was


def test_the_curve_is_drawn_with_its_bound(graph, tmp_path):
    curve = sweep_graph(graph, [proved_floor(graph) - 1, "60%", "100%"], solver=quick)
    axes = curve.draw(tmp_path / "curve.svg").axes[0]
    assert (tmp_path / "curve.svg").stat().st_size > 0
    drawn = {line.get_label(): list(line.get_ydata()) for line in axes.lines}
    assert drawn["plan found"] == [one.ratio for one in curve.choices[1:]]
    assert drawn["no plan is faster"] == [one.lower for one in curve.choices[1:]]


def test_a_progress_bar_is_shown_on_the_error_stream_when_asked_for(graph, capsys, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    limited = Clock(3600)
    sweep_graph(graph, ["60%", "100%"], solver=quick, clock=limited, progress=True)
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "2 of 2" in shown.err
    sweep_graph(graph, ["100%"], solver=StoreAll())
    assert capsys.readouterr().err == ""


def test_the_end_of_the_callers_time_ends_a_sweep_with_a_bar_too(graph):
    now = iter(range(10**6))
    clock = Clock(30, now=lambda: next(now))
    assert not sweep_graph(graph, points=50, solver=StoreAll(), clock=clock, progress=True).complete
