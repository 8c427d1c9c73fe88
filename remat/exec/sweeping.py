"""Many budgets of one model in one call: the curve of step time over memory, with the bound below it.

The model is captured and costed once, and the budgets share their work (`algorithms/_curves/budget_sweep.py`): a plan for a
smaller budget is offered to every larger one, so the curve never rises with the budget.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import Any

from attrs import asdict, evolve, frozen
from torch import nn

from remat.algorithms import Clock, Progress, Solver
from remat.algorithms._curves.tradeoff import SWEEP, Choice, Choices, choices
from remat.errors import BadArgument
from remat.exec._capture.capturing import capture
from remat.exec._cost.devices import Device, device_model
from remat.exec._plan.planning import plan_step
from remat.exec._plan.progress import progress_bar
from remat.exec._plan.settings import COSTS, Settings
from remat.exec._torch import torch_private
from remat.exec.weightless import graph_on
from remat.exec.wrapping import call_of, in_training
from remat.ir import Graph
from remat.settings import instance
from remat.units import parse_bytes
from remat.viz.curve import Mark, draw_curve


@frozen(kw_only=True)
class ModelCurve(Choices):
    """Step time over memory of one model; see `Choices`."""

    def draw(self, path: str | os.PathLike[str] | None = None) -> Any:
        """A picture of the curve with the bound below it; written to `path` if there is one (needs matplotlib).

        Returns:
            The matplotlib `Figure`.
        """
        marks = [
            Mark(
                budget=choice.budget,
                time=None if choice.outcome.cost is None else choice.outcome.cost.time,
                lower=choice.outcome.lower,
            )
            for choice in self.choices
        ]
        return draw_curve(marks, path, peak=self.store_all_peak, time=self.store_all_time, title=self.graph.name)


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
    progress: bool = False,
    seed: int = 0,
) -> ModelCurve:
    """Plan one training step of `model` for many budgets, without copies to the host; the model and its tensors are not touched.

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
        clock: how long it may take, and the listener to progress: each budget reached is reported, with the solvers' progress
            between. An interruption (Ctrl-C) or the end of the time keeps the plans made so far.
        progress: show a bar on the error stream, in place of the clock's own listener.
        seed: of the solver.

    Raises:
        Uncapturable: the step cannot be one graph.
        BadArgument: an argument is not one of its values.
    """
    instance(nn.Module, "nn.Linear(3, 4)").check(model, "sweep: model", rule="X-ARG")
    if "_remat" in model.__dict__:
        raise BadArgument("X-ARG", "the module is wrapped.", fix="sweep the bare module.")
    reserve = None if loss_reserve is None else parse_bytes(loss_reserve)
    settings = Settings(budget=None, step=loss, differentiable=differentiable, loss_reserve=reserve, seed=seed)
    graph = _graph(model, sample, settings, cost)
    return sweep_graph(graph, budgets, points=points, solver=solver, clock=clock, progress=progress, seed=seed)


def _graph(model: nn.Module, sample: Any, settings: Settings, cost: str | Device) -> Graph:
    """The graph of a step, costed as asked."""
    args, kwargs = call_of(sample)
    device = cost if isinstance(cost, str) and cost in COSTS else device_model(cost)
    fake = any(isinstance(parameter, torch_private.FakeTensor) for parameter in model.parameters())
    if fake and cost == "measure":
        fix = 'give the name of a device model, as cost="v100".'
        raise BadArgument("X-ARG", "the module has no weights, so nothing can be measured.", fix=fix)
    with in_training(model):
        if isinstance(device, str):
            return plan_step(model, args, kwargs, evolve(settings, cost=device)).graph
        captured = capture(
            model, args, kwargs, step=settings.step, differentiable=settings.differentiable, tracer=settings.tracer
        )
    return graph_on(captured, device, loss_reserve=settings.loss_reserve)


def sweep_graph(
    graph: Graph,
    budgets: Iterable[int | str] | None = None,
    *,
    points: int = 12,
    solver: Solver | None = None,
    clock: Clock | None = None,
    progress: bool = False,
    seed: int = 0,
) -> ModelCurve:
    """The curve of a graph that was captured already; arguments as for `sweep`."""
    with _Bar(shown=progress) as bar:
        listened = Clock(listener=bar.hear, parent=clock) if progress else clock
        curve = choices(graph, budgets, points=points, solver=solver, clock=listened, seed=seed)
    return ModelCurve(**asdict(curve, recurse=False))


class _Bar:
    """A progress bar over budgets on the error stream, with the latest report of the solvers."""

    def __init__(self, *, shown: bool) -> None:
        self.bar = progress_bar("budgets", shown=shown)
        self.task = self.bar.add_task("", total=None)

    def __enter__(self) -> _Bar:
        self.bar.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self.bar.stop()

    def hear(self, progress: Progress) -> None:
        """A report of the clock: a budget reached, or a better plan on the way to one."""
        if progress.stage == SWEEP:
            note = f"{progress.done} of {progress.total}: {progress.note}"
            self.bar.update(self.task, description=note, completed=progress.done, total=progress.total)
        else:
            self.bar.update(self.task, description=f"{progress.note:.60}")


__all__ = ["Choice", "ModelCurve", "sweep", "sweep_graph"]
