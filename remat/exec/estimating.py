"""`remat.estimate`: what a training step with its optimizer needs, without weights and without the device.

The model is captured without weights (`weightless.py`). For an accelerator that is not here, costs come from its model
(`_cost/devices.py`); for the CPU of this machine, each kind of operation runs once on inputs made for it, one at a time.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import torch
from attrs import evolve, field, frozen
from torch.optim import Optimizer

from remat.algorithms import IMPOSSIBLE, Clock, Outcome, Problem, StoreAll
from remat.algorithms._core.startup import importing
from remat.errors import BadArgument
from remat.exec._cost.cost import OpCost, resized
from remat.exec._cost.devices import Device, device_model
from remat.exec._cost.optimizers import Maker, OptimizerMemory, find_optimizer, optimizer_memory
from remat.exec._cost.shared import measured
from remat.exec._plan.batches import LargestBatch, largest_batch
from remat.exec._plan.build import build_graph
from remat.exec._plan.costing import outside_of
from remat.exec._plan.needs import Needs, needs_of
from remat.exec._plan.settings import Settings
from remat.exec._plan.unwrapped import held_by_autograd
from remat.exec._torch.memory_now import free_memory
from remat.exec.weightless import Weightless, capture_without_weights
from remat.ir import Graph
from remat.settings import NAME, SECONDS, function, optional, whole
from remat.units import Bytes, GiB, format_bytes, format_ns, parse_bytes

CPU = "cpu"
"""The device of this machine that needs no model: its operations are measured."""
RESERVE: Bytes = GiB
"""What is left free on an accelerator: the driver's context, libraries, and blocks that the allocator cannot fill."""
RESERVE_CPU: Bytes = 4096
"""The same on the CPU: a few scalars, as the gradient that a loss starts with."""

_BATCHES = ("batch", "batch_size")
"""Arguments of factories that are taken for the number of samples."""


@frozen(kw_only=True)
class Batch:
    """The largest batch that fits on the device.

    Attributes:
        keeping: where everything is kept.
        planned: where what does not fit is computed again, as far as plans were found.
        ratio: time of the step of the largest planned batch, over the time of that step where everything is kept.
    """

    keeping: LargestBatch
    planned: LargestBatch
    ratio: float | None


@frozen(kw_only=True, eq=False)
class Estimate:
    """What a training step needs on a device. `str` of it is the text that `remat estimate` prints.

    Attributes:
        name: class of the module.
        device: name of the device.
        memory: what the device has, or has free [bytes].
        reserve: what of it is left free [bytes].
        optimizer: what the optimizer takes.
        needs: what the step takes, by kind and by module.
        graph: the step on the device, to plan on.
        budget: what forward and backward may hold, for all to fit: what `remat.exec.wrap` should be given; below 0: the rest
            alone does not fit [bytes].
        outcome: the plan within the budget and its bound; None: nothing can be planned, since the rest alone does not fit.
        smallest: the smallest budget with a plan that a short search found, where the budget has none; else None [bytes].
        batch: the largest batches, where they were asked for.
    """

    name: str
    device: str
    memory: Bytes
    reserve: Bytes
    optimizer: OptimizerMemory
    needs: Needs
    graph: Graph = field(repr=False)
    budget: Bytes
    outcome: Outcome | None
    smallest: Bytes | None = None
    batch: Batch | None = None

    @property
    def fits(self) -> bool:
        """Whether the step fits where everything is kept."""
        return self.needs.total <= self.memory - self.reserve

    @property
    def planned(self) -> bool:
        """Whether it fits, computing again what must be."""
        return self.outcome is not None and self.outcome.schedule is not None

    @property
    def ratio(self) -> float | None:
        """Time of the plan over the time where everything is kept, by the costs of the device; None: there is no plan."""
        return _ratio(self.graph, self.outcome)

    def __str__(self) -> str:
        return "\n".join(_lines(self))


def estimate(
    factory: Callable[..., Any],
    *,
    device: str | Device = CPU,
    optimizer: str | Maker | Optimizer | None = "adamw",
    memory: int | str | None = None,
    reserve: int | str | None = None,
    batch: str | None = None,
    differentiable: str = "auto",
    depth: int = 1,
    seconds: float = 10.0,
) -> Estimate:
    """What a training step needs on a device, and what it costs to make it fit; nothing of the model is allocated.

    Args:
        factory: makes `(module, args)` or `(module, args, kwargs)`; as for `remat.exec.capture_without_weights`.
        device: name of a device model (`remat.exec.DEVICES`) or one; "cpu": this machine, where each kind of operation runs
            once, on inputs made for it.
        optimizer: its name in `torch.optim`, in any case, with settings as in `"sgd(momentum=0.9)"`; `"module:Class"`; a class
            or function that makes one of parameters; None: none.
        memory: of the device, in bytes or as `"24GiB"`; None: what its model says, or what this machine has free.
        reserve: what of it is left free; None: 1 GiB on accelerators, 4 KiB on the CPU.
        batch: argument of the factory that sets the number of samples: the largest that fits is searched for; its default value
            is tried first.
        differentiable: through which outputs gradients come back, as in `remat.exec.wrap`.
        depth: how many parts of their paths tell modules apart in `needs.modules`.
        seconds: deadline of each planning.

    Raises:
        Uncapturable: the step cannot be one graph.
        BadArgument: an argument is not one of its values; X-OPTIMIZER, X-DEVICE-MODEL, X-BATCH.
        RematError: X-FACTORY, when the factory fails under fake tensors; X-MEMORY, when the memory must be given.
    """
    function("remat.zoo.large.gpt24").check(factory, "estimate: factory", rule="X-ARG")
    optional(NAME).check(batch, "estimate: batch", rule="X-ARG")
    SECONDS.check(seconds, "estimate: seconds", rule="X-ARG")
    whole(0).check(depth, "estimate: depth", rule="X-ARG")
    model = None if device == CPU else device_model(device)
    if isinstance(optimizer, str) and optimizer != "none":
        find_optimizer(optimizer)  # a wrong name should not cost a trace
    bench = _Bench(factory=factory, model=model, optimizer=optimizer, differentiable=differentiable, depth=depth)
    capacity = _capacity(model, memory)
    spare = (RESERVE_CPU if model is None else RESERVE) if reserve is None else parse_bytes(reserve)
    first = None if batch is None else _first_batch(factory, batch)
    step = bench.step({})
    result = _estimate_of(step, capacity, spare, seconds)
    if batch is None or first is None:
        return result
    steps = {first: step} if _is_default(factory, batch, first) else {}
    return evolve(result, batch=_largest(_Batches(bench, batch, seconds, steps), first, capacity - spare))


def batch_argument(factory: Callable[..., Any]) -> str | None:
    """The argument of a factory that by its name sets the number of samples, if there is one."""
    names = inspect.signature(factory).parameters
    return next((name for name in _BATCHES if name in names), None)


@frozen(kw_only=True, eq=False)
class _Step:
    """A step on the device, with what it needs."""

    name: str
    device: str
    weightless: Weightless
    graph: Graph
    optimizer: OptimizerMemory
    needs: Needs


@frozen(kw_only=True, eq=False)
class _Bench:
    """Makes steps of one factory on one device; what was measured once is not measured again."""

    factory: Callable[..., Any]
    model: Device | None
    optimizer: str | Maker | Optimizer | None
    differentiable: str
    depth: int
    costs: dict[str, OpCost] = field(factory=dict)

    def step(self, settings: dict[str, Any]) -> _Step:
        """The step that the factory makes with these arguments."""
        make = functools.partial(self.factory, **settings)
        weightless = capture_without_weights(make, differentiable=self.differentiable, as_run=self.model is None)
        captured, module = weightless.captured, weightless.module
        granule = 1 if self.model is None else self.model.granule
        graph = self._measured(weightless) if self.model is None else weightless.graph(self.model)
        taken = optimizer_memory(
            self.optimizer,
            dict(module.named_parameters()),
            trained=[path for kind, path in captured.program.grads if kind == "param"],
            granule=None if self.model is None else granule,
        )
        needs = needs_of(captured, held_by_autograd(captured, graph), module, taken, granule=granule, depth=self.depth)
        name = CPU if self.model is None else self.model.name
        return _Step(
            name=type(module).__name__, device=name, weightless=weightless, graph=graph, optimizer=taken, needs=needs
        )

    def _measured(self, weightless: Weightless) -> Graph:
        captured = weightless.captured
        costs = measured(captured.program, self.costs)
        program = resized(captured.program, costs)
        loss = outside_of(program, captured, Settings(budget=None))
        return build_graph(program, costs, loss_reserve=loss.reserve, loss_retained=loss.retained)


def _capacity(model: Device | None, memory: int | str | None) -> Bytes:
    if memory is not None:
        return parse_bytes(memory)
    if model is None:
        return free_memory(torch.device(CPU))
    if model.memory is None:
        what = f"the model of {model.name} does not say how much memory it has."
        raise BadArgument("X-MEMORY", what, fix='give memory="24GiB".')
    return model.memory


def _estimate_of(step: _Step, capacity: Bytes, spare: Bytes, seconds: float) -> Estimate:
    needs, overhead = step.needs, step.weightless.captured.overhead
    budget = capacity - spare - needs.outside
    outcome, smallest = None, None
    if budget >= needs.update:
        outcome, smallest = _planned(step.graph, budget - overhead, seconds)
    return Estimate(
        name=step.name,
        device=step.device,
        memory=capacity,
        reserve=spare,
        optimizer=step.optimizer,
        needs=needs,
        graph=step.graph,
        budget=budget,
        outcome=outcome,
        smallest=None if smallest is None else smallest + overhead,
    )


def _planned(graph: Graph, budget: Bytes, seconds: float) -> tuple[Outcome | None, Bytes | None]:
    """The plan within a budget; where there is none, the smallest budget with one."""
    if budget <= 0:
        return None, _lowest(graph, seconds)[0]
    problem = Problem(graph=graph, budget=budget)
    keeping = StoreAll().solve(problem)
    if keeping.schedule is not None:
        return keeping, None
    with importing():
        from remat.algorithms._search.auto import auto

    outcome = auto.solve(problem, clock=Clock(seconds))
    if outcome.schedule is not None:
        return outcome, None
    smallest, fallback = _lowest(graph, seconds)
    return (fallback, None) if smallest <= budget else (outcome, smallest)


def _lowest(graph: Graph, seconds: float) -> tuple[Bytes, Outcome]:
    """The smallest budget with a plan that a short search finds."""
    with importing():
        from remat.algorithms._curves.budget_sweep import quick_lowest_budget

    point = quick_lowest_budget(graph, clock=Clock(seconds)).point
    return point.budget, point.outcome


def _first_batch(factory: Callable[..., Any], batch: str) -> int:
    """The number of samples that is tried first: the default of the argument, or 1.

    Raises:
        BadArgument: X-BATCH, when the factory has no such argument.
    """
    parameters = inspect.signature(factory).parameters
    open_ended = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    if batch not in parameters and not open_ended:
        names = ", ".join(parameters) or "none"
        what = f"the factory has no argument {batch!r}; it has {names}."
        raise BadArgument("X-BATCH", what, fix="name the one that sets the number of samples.")
    default = parameters[batch].default if batch in parameters else 1
    return default if isinstance(default, int) and default > 0 else 1


def _is_default(factory: Callable[..., Any], batch: str, first: int) -> bool:
    parameter = inspect.signature(factory).parameters.get(batch)
    return parameter is not None and parameter.default == first


@frozen(eq=False)
class _Batches:
    """Steps of a factory by number of samples, each made once, and the smallest budgets found for them."""

    bench: _Bench
    argument: str
    seconds: float
    steps: dict[int, _Step]
    lowest: dict[int, Outcome] = field(factory=dict)

    def step(self, size: int) -> _Step:
        """The step with that many samples."""
        if size not in self.steps:
            self.steps[size] = self.bench.step({self.argument: size})
        return self.steps[size]

    def keeping(self, size: int) -> Bytes:
        """What it needs where everything is kept."""
        return self.step(size).needs.total

    def planned(self, size: int) -> Bytes:
        """What it needs with the smallest budget that a plan was found for."""
        step = self.step(size)
        budget, self.lowest[size] = _lowest(step.graph, self.seconds)
        return step.needs.within(budget + step.weightless.captured.overhead)


def _largest(batches: _Batches, first: int, capacity: Bytes) -> Batch:
    """The largest batches within a capacity, keeping everything and planned."""
    keeping = largest_batch(batches.keeping, capacity, first)
    most = largest_batch(batches.planned, capacity, max(1, keeping.batch))
    if most.batch == 0:
        return Batch(keeping=keeping, planned=most, ratio=None)
    step = batches.step(most.batch)
    budget = capacity - step.needs.outside - step.weightless.captured.overhead
    outcome, _ = _planned(step.graph, budget, batches.seconds)
    ratios = [_ratio(step.graph, outcome), _ratio(step.graph, batches.lowest[most.batch])]
    return Batch(keeping=keeping, planned=most, ratio=min(ratio for ratio in ratios if ratio is not None))


def _ratio(graph: Graph, outcome: Outcome | None) -> float | None:
    return None if outcome is None or outcome.cost is None or graph.time == 0 else outcome.cost.time / graph.time


# -- the text --------------------------------------------------------------------------------------------------------------


def _lines(estimate: Estimate) -> list[str]:
    needs, optimizer = estimate.needs, estimate.optimizer
    guessed = f", which read {optimizer.guesses} values, each taken as 1" if optimizer.guesses else ""
    rows = [
        ("parameters", needs.parameters, ""),
        ("buffers", needs.buffers, ""),
        ("inputs", needs.inputs, ""),
        ("states", needs.states, f"of {optimizer.name}{guessed}"),
        ("step", needs.step, f"keeping everything; at its peak, in {needs.node}:"),
        ("  activations", needs.activations, ""),
        ("  temporaries", needs.temporaries, "gradients of activations"),
        ("  gradients", needs.gradients_at_peak, f"of parameters, of {format_bytes(needs.gradients)} in the end"),
        ("  workspace", needs.workspace, ""),
        ("update", needs.update, f"gradients, outputs and {format_bytes(needs.scratch)} for the optimizer's step"),
        ("total", needs.total, "the first four, and the larger of step and update"),
    ]
    of_it = f", {format_bytes(estimate.reserve)} of it left free" if estimate.reserve else ""
    return [
        f"model          {estimate.name}, {len(estimate.graph)} operations, {format_ns(estimate.graph.time)} a step",
        f"device         {estimate.device}, {format_bytes(estimate.memory)}{of_it}",
        *(f"{label:<14} {format_bytes(size):>11}  {note}".rstrip() for label, size, note in rows),
        *_verdict(estimate),
        *([] if estimate.batch is None else _batch_lines(estimate.batch)),
    ]


def _verdict(estimate: Estimate) -> list[str]:
    room = estimate.memory - estimate.reserve
    if estimate.fits:
        return [f"fits           with {format_bytes(room - estimate.needs.total)} to spare, keeping everything"]
    missing = f"does not fit   by {format_bytes(estimate.needs.total - room)}, keeping everything"
    if estimate.budget < estimate.needs.update:
        rest = format_bytes(estimate.needs.outside + estimate.needs.update - room)
        return [missing, f"budget         none: parameters, states and the optimizer's step lack {rest} already"]
    budget = f"budget         {format_bytes(estimate.budget)} ({estimate.budget} B)"
    if estimate.ratio is not None and estimate.outcome is not None:
        least = "" if estimate.graph.time == 0 else f", {estimate.outcome.lower / estimate.graph.time:.4f} at best"
        return [missing, f"{budget} makes it fit", f"price          {estimate.ratio:.4f} times the time{least}"]
    impossible = estimate.outcome is None or estimate.outcome.lower == IMPOSSIBLE
    word = "no plan can fit" if impossible else "no plan was found"
    lines = [missing, f"{budget}: {word}"]
    if estimate.smallest is not None:
        more = format_bytes(estimate.needs.within(estimate.smallest) + estimate.reserve)
        lines.append(f"smallest       {format_bytes(estimate.smallest)}, on a device of {more}")
    return lines


def _batch_lines(batch: Batch) -> list[str]:
    keeping, planned = batch.keeping, batch.planned
    beyond = "more were not tried"
    if keeping.next_batch is not None and keeping.next_need is not None:
        beyond = f"{keeping.next_batch} does not fit ({format_bytes(keeping.next_need)})"
    lines = [f"batch          {keeping.batch} keeping everything ({format_bytes(keeping.need)}); {beyond}"]
    unplanned = "more were not tried" if planned.next_batch is None else f"no plan was found for {planned.next_batch}"
    price = "" if batch.ratio is None else f" at {batch.ratio:.4f} times the time"
    lines.append(f"               {planned.batch} planned{price} ({format_bytes(planned.need)} at least); {unplanned}")
    return lines


__all__ = ["CPU", "RESERVE", "RESERVE_CPU", "Batch", "Estimate", "batch_argument", "estimate"]
