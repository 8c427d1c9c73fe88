"""Many budgets of one model in one call: the curve of step time over memory, with the proved bound below it.

The model is captured and costed once, and the budgets share their work (`remat.algorithms.sweep`): a plan for a smaller budget is
offered to every larger one, so the curve never rises with the budget.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import Any

from attrs import evolve, field, frozen
from torch import nn

from remat.algorithms import IMPOSSIBLE, Clock, Outcome, Solver, Status
from remat.errors import IllFormed
from remat.exec import torch_private
from remat.exec.build import build_graph
from remat.exec.capture import Captured
from remat.exec.devices import Device, device_model
from remat.exec.planning import COSTS, Settings, Share, parse_budget, plan_step
from remat.exec.wrap import call_of, in_training
from remat.ir import Graph
from remat.units import Bytes, Ns, format_bytes, format_ns, parse_bytes
from remat.viz.curve import Mark, draw_curve


@frozen(kw_only=True)
class Choice:
    """What is known at one budget, in numbers to choose by.

    Attributes:
        budget: [bytes]. share: of the peak of a step that keeps everything.
        ratio: time of the plan over the time of that step; None: no plan was found.
        lower: proved bound on that ratio for every plan; infinite: no plan exists.
        outcome: the plan and its bound.
    """

    budget: Bytes
    share: float
    ratio: float | None
    lower: float
    outcome: Outcome = field(repr=False)


@frozen(kw_only=True)
class ModelCurve:
    """Step time over memory of one model. `str` of it is a table.

    Attributes:
        choices: by budget, smallest first; times never rise.
        graph: what was planned on.
        store_all_peak, store_all_time: of the step that keeps everything [bytes], [ns].
        asked: number of budgets asked for; more than there are choices after an interruption or a deadline.
    """

    choices: tuple[Choice, ...]
    graph: Graph = field(repr=False)
    store_all_peak: Bytes
    store_all_time: Ns
    asked: int

    @property
    def complete(self) -> bool:
        """Whether every budget was reached."""
        return len(self.choices) == self.asked

    @property
    def lowest(self) -> Choice | None:
        """The smallest budget with a plan."""
        return next((one for one in self.choices if one.ratio is not None), None)

    def cheapest_within(self, ratio: float) -> Choice | None:
        """The smallest budget whose plan takes at most `ratio` times the step that keeps everything."""
        return next((one for one in self.choices if one.ratio is not None and one.ratio <= ratio), None)

    def draw(self, path: str | os.PathLike[str] | None = None) -> Any:
        """A picture of the curve with the bound below it; written to `path` if there is one (needs matplotlib).

        Returns:
            The matplotlib `Figure`.
        """
        marks = [
            Mark(
                budget=one.budget,
                time=None if one.outcome.cost is None else one.outcome.cost.time,
                lower=one.outcome.lower,
            )
            for one in self.choices
        ]
        return draw_curve(marks, path, peak=self.store_all_peak, time=self.store_all_time, title=self.graph.name)

    def __str__(self) -> str:
        peak, time = format_bytes(self.store_all_peak), format_ns(self.store_all_time)
        lines = [f"{self.graph.name}: keeping everything takes {peak} and {time}", _HEAD]
        lines += [_line(one) for one in self.choices]
        if not self.complete:
            lines.append(f"stopped after {len(self.choices)} of {self.asked} budgets")
        return "\n".join(lines)


_HEAD = f"{'budget':>11} {'share':>6} {'time':>8} {'bound':>8} {'gap':>8}  status"


def _line(one: Choice) -> str:
    time = "" if one.ratio is None else f"{one.ratio:.4f}"
    bound = "none" if one.lower == IMPOSSIBLE else f"{one.lower:.4f}"
    gap = "" if one.outcome.gap is None else f"{one.outcome.gap:.2%}"
    words = {Status.INFEASIBLE: "proved impossible", Status.NOT_FOUND: "no plan found"}
    word = words.get(one.outcome.status, one.outcome.status.value)
    return f"{format_bytes(one.budget):>11} {one.share:6.1%} {time:>8} {bound:>8} {gap:>8}  {word}"


def sweep(
    model: nn.Module,
    sample: Any,
    budgets: Iterable[int | str] | None = None,
    *,
    points: int = 12,
    loss: Callable[..., Any] | None = None,
    loss_reserve: int | str | None = None,
    differentiable: str = "auto",
    cost: str | Device = "measure",
    solver: Solver | None = None,
    clock: Clock | None = None,
    seed: int = 0,
) -> ModelCurve:
    """Plan one training step of `model` for many budgets; the model and its tensors are not touched.

    Args:
        model: a bare module, or one made under fake tensors (then `cost` must name a device).
        sample: a call to plan for: a tensor, a tuple of arguments, or a mapping of keyword arguments.
        budgets: bytes, `"6GiB"` or `"40%"` of the peak of a step that keeps everything; left out, `points` of them.
        points: number of budgets, evenly spaced from the proved floor to that peak, where none are given.
        loss: computes the loss from the module and the sample, where the module does not return it.
        loss_reserve: bytes that a loss outside may hold besides its gradients; by default twice the outputs.
        differentiable: through which outputs gradients come back, as in `remat.exec.wrap`.
        cost: "measure", "estimate", or a device model by name, as `"v100"`.
        solver: plans; by default `remat.algorithms.auto`.
        clock: how long it may take, and who listens to progress: each budget reached is reported, with what the solvers say
            between. An interruption (Ctrl-C) or the end of the time keeps what was found.
        seed: of the solver.

    Raises:
        Uncapturable: the step cannot be one graph.
        IllFormed: an argument is not one of its values.
        RematError: X-DEVICE-MODEL, for a device nobody knows.
    """
    if "_remat" in model.__dict__:
        raise IllFormed("X-ARG", "the module is wrapped.", fix="sweep the bare module.")
    reserve = None if loss_reserve is None else parse_bytes(loss_reserve)
    settings = Settings(budget=None, step=loss, differentiable=differentiable, loss_reserve=reserve, seed=seed)
    graph = _graph(model, sample, settings, cost)
    return sweep_graph(graph, budgets, points=points, solver=solver, clock=clock, seed=seed)


def _graph(model: nn.Module, sample: Any, settings: Settings, cost: str | Device) -> Graph:
    """The graph of a step, costed as asked."""
    args, kwargs = call_of(sample)
    known = isinstance(cost, str) and cost in COSTS
    device = None if known else device_model(cost)
    fake = any(isinstance(one, torch_private.FakeTensor) for one in model.parameters())
    if fake and cost == "measure":
        fix = 'give the name of a device model, as cost="v100".'
        raise IllFormed("X-ARG", "the module has no weights, so nothing can be measured.", fix=fix)
    with in_training(model):
        if device is None:
            return plan_step(model, args, kwargs, evolve(settings, cost=cost)).graph
        planned = plan_step(model, args, kwargs, evolve(settings, cost="estimate"))
    captured: Captured = planned.captured
    program = device.resized(captured.program)
    return build_graph(program, device.costs(program), loss_reserve=planned.reserve, loss_held=planned.held)


def sweep_graph(
    graph: Graph,
    budgets: Iterable[int | str] | None = None,
    *,
    points: int = 12,
    solver: Solver | None = None,
    clock: Clock | None = None,
    seed: int = 0,
) -> ModelCurve:
    """The curve of a graph that was captured already; arguments as for `sweep`."""
    from remat.algorithms import sweep as sharing  # compiled kernels, only when a curve is asked for

    peak, time = sharing.store_all_peak(graph), graph.time
    sizes = _sizes(graph, budgets, peak, points)
    clock = Clock() if clock is None else clock
    reached: list[Choice] = []

    def choice(budget: Bytes, outcome: Outcome) -> Choice:
        ratio = None if outcome.cost is None else outcome.cost.time / time
        return Choice(budget=budget, share=budget / peak, ratio=ratio, lower=outcome.lower / time, outcome=outcome)

    def listener(point: sharing.Point) -> None:
        reached.append(choice(point.budget, point.outcome))
        cost = point.outcome.cost
        note = f"{len(reached)} of {len(sizes)}: {format_bytes(point.budget)}, {point.outcome.status.value}"
        clock.report(SWEEP, time=None if cost is None else cost.time, note=note)

    curve = sharing.sweep(graph, sizes, solver, clock=clock, seed=seed, listener=listener)
    choices = tuple(choice(point.budget, point.outcome) for point in curve.points)
    return ModelCurve(choices=choices, graph=graph, store_all_peak=peak, store_all_time=time, asked=len(sizes))


SWEEP = "sweep"
"""Who reports a budget reached to the clock's listener: `Progress.who` is the repr of this."""


def _sizes(graph: Graph, budgets: Iterable[int | str] | None, peak: Bytes, points: int) -> list[Bytes]:
    """Budgets in bytes, ascending."""
    if budgets is None:
        from remat.algorithms.bounds.floor import proved_floor

        if points < 2:
            raise IllFormed("X-ARG", f"{points} points are no curve.", fix="give 2 or more.")
        floor = proved_floor(graph)
        return sorted({floor + (peak - floor) * i // (points - 1) for i in range(points)})
    sizes = set()
    for budget in budgets:
        read = parse_budget(budget)
        if read is None:
            raise IllFormed("X-ARG", "None is not a budget.", fix='give bytes, "6GiB" or "40%".')
        sizes.add(int(peak * read.of_peak) if isinstance(read, Share) else read)
    if not sizes:
        raise IllFormed("X-ARG", "there is no budget.", fix="give one, or leave them out.")
    return sorted(sizes)


__all__ = ["SWEEP", "Choice", "ModelCurve", "sweep", "sweep_graph"]
