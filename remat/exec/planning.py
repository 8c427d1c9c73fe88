"""From a module, a call of it and a budget to a step that can run: capture, cost, graph, solve, lower, each timed.

Also what a budget means in bytes, and what to say when none of the plans fits: the smallest budget a plan was found for, and the
proved floor.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from fractions import Fraction
from typing import Any

from attrs import evolve, field, frozen
from torch import nn

from remat.algorithms import IMPOSSIBLE, Outcome, Problem, Solver, StoreAll, store_all_peak
from remat.errors import IllFormed, Infeasible
from remat.exec.build import build_graph
from remat.exec.capture import Captured, capture
from remat.exec.cost import OpCost, estimate, resized
from remat.exec.lower import Lowered, lower
from remat.exec.measure import measure
from remat.exec.program import Program
from remat.ir import Graph, Phase
from remat.units import Bytes, format_bytes, parse_bytes

COSTS = ("measure", "estimate")
PROBES = 7
"""Budgets tried when the one asked for does not fit: enough to come within 1 % of the peak of `StoreAll`."""
PROBE_SECONDS = 5.0
SCALARS: Bytes = 4096
"""What a loss outside the module is taken to hold in scalars while the backward runs."""


@frozen
class Share:
    """A budget as a part of the peak that `StoreAll` replays to."""

    of_peak: Fraction


Budget = Bytes | Share | None


def parse_budget(budget: int | str | None) -> Budget:
    """Read a budget: bytes, `"6GiB"`, `"40%"` (of the replayed peak of `StoreAll`), or None.

    Raises:
        IllFormed: U-SIZE, when it is none of these.
    """
    if isinstance(budget, str) and budget.strip().endswith("%"):
        try:
            share = Fraction(budget.strip()[:-1].strip()) / 100
        except ValueError:
            share = Fraction(-1)
        if share <= 0:
            raise IllFormed("U-SIZE", f"{budget!r} is not a share.", fix='write it like "40%".')
        return Share(share)
    return None if budget is None else parse_bytes(budget)


@frozen(kw_only=True)
class Settings:
    """How steps are planned; what `remat.exec.wrap` was given.

    Attributes:
        budget: as read by `parse_budget`.
        step: what is called as `step(module, *args, **kwargs)` in place of the module's forward, or None.
        differentiable: see `capture`.
        loss_reserve: bytes that a loss outside the module may hold, or None for an audited estimate.
        solver: plans; None: `remat.algorithms.auto`.
        seconds: deadline of one planning [s], or None.
        cost: "measure" or "estimate".
        seed: of the solver.
    """

    budget: Budget
    step: Callable[..., Any] | None = None
    differentiable: str = "auto"
    loss_reserve: Bytes | None = None
    solver: Solver | None = None
    seconds: float | None = None
    cost: str = field(default="measure")
    seed: int = 0

    def planner(self) -> Solver:
        """The solver, the default one where none was named."""
        if self.solver is not None:
            return self.solver
        from remat.algorithms.default import auto  # imports compiled kernels, so only when it is asked for

        return auto

    def prober(self) -> Solver:
        """What is asked for many budgets in turn: the solver named, or the quick form of the default one."""
        if self.solver is not None:
            return self.solver
        from remat.algorithms.default import quick

        return quick

    def name(self) -> str:
        """Who plans, for people."""
        return "auto" if self.solver is None else repr(self.solver)


@frozen(kw_only=True, eq=False)
class Planned:
    """A step that can run.

    Attributes:
        captured: the trace, with sizes as measured.
        graph: what was planned on.
        outcome: what the solver said.
        lowered: the generated functions.
        budget: bytes, or None where there is none.
        reserve, held: what a loss outside the module is taken to hold, at its height and during the backward [bytes].
        audited: whether these two were measured on a real step.
        store_all: replayed peak of `StoreAll` [bytes].
        seconds: of each stage: capture, cost, plan, lower.
    """

    captured: Captured
    graph: Graph
    outcome: Outcome
    lowered: Lowered | None
    budget: Bytes | None
    reserve: Bytes
    held: Bytes
    audited: bool
    store_all: Bytes
    seconds: dict[str, float]


@frozen
class Outside:
    """What a loss outside the module holds: at its height, and while the backward runs; measured, or taken to be."""

    reserve: Bytes
    held: Bytes
    measured: bool = False


def plan_step(
    module: nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    settings: Settings,
    *,
    known_costs: dict[str, OpCost] | None = None,
    outside: Outside | None = None,
) -> Planned:
    """Capture, cost, solve and lower one step.

    Args:
        module: whose step it is; nothing of it changes.
        args: positional arguments of a call, for shapes.
        kwargs: keyword arguments of that call.
        settings: budget, solver and so on.
        known_costs: measured costs by signature, used and added to.
        outside: what a loss outside the module holds, where that was measured.

    Raises:
        Uncapturable: the step cannot be one graph.
        Infeasible: no plan within the budget was found.
    """
    captured = capture(module, args, kwargs, step=settings.step, differentiable=settings.differentiable)
    return plan_captured(captured, settings, known_costs=known_costs, outside=outside)


def plan_captured(
    captured: Captured,
    settings: Settings,
    *,
    known_costs: dict[str, OpCost] | None = None,
    outside: Outside | None = None,
) -> Planned:
    """Cost, solve and lower a captured step; arguments and errors as for `plan_step`."""
    seconds = {"capture": captured.seconds}
    with _timed(seconds, "cost"):
        costs = estimate(captured.program) if settings.cost == "estimate" else measure(captured.program, known_costs)
        program = resized(captured.program, costs)
        loss = outside or outside_of(program, captured, settings)
        graph = build_graph(program, costs, loss_reserve=loss.reserve, loss_held=loss.held)
    with _timed(seconds, "plan"):
        peak = store_all_peak(graph)
        budget = int(peak * settings.budget.of_peak) if isinstance(settings.budget, Share) else settings.budget
        outcome = solve(graph, budget, settings, peak)
    with _timed(seconds, "lower"):
        lowered = None if budget is None or outcome.schedule is None else lower(program, outcome.schedule)
    return Planned(
        captured=evolve(captured, program=program),
        graph=graph,
        outcome=outcome,
        lowered=lowered,
        budget=budget,
        reserve=loss.reserve,
        held=loss.held,
        audited=loss.measured,
        store_all=peak,
        seconds=seconds,
    )


class _timed:
    """Adds the wall time of its block to a table."""

    def __init__(self, table: dict[str, float], name: str) -> None:
        self.table, self.name = table, name

    def __enter__(self) -> None:
        self.start = time.perf_counter()

    def __exit__(self, *_error: object) -> None:
        self.table[self.name] = time.perf_counter() - self.start


def outside_of(program: Program, captured: Captured, settings: Settings) -> Outside:
    """Nothing for a loss inside; else what the user says, else twice what the loss gets: its copy of it and one gradient.

    A few scalars (the loss, the gradient it starts with) stay until the backward has ended.
    """
    if settings.loss_reserve is not None:
        return Outside(max(0, settings.loss_reserve - SCALARS), min(SCALARS, settings.loss_reserve))
    if is_loss_inside(captured):
        return Outside(0, 0)
    got = [program.storage_of(program.outputs[at]).size for at in captured.differentiable]
    return Outside(2 * sum(got), SCALARS)


def is_loss_inside(captured: Captured) -> bool:
    """Whether gradients come back through one 0-dim output, which the caller only calls backward on."""
    if len(captured.differentiable) != 1:
        return False
    output = captured.program.outputs[captured.differentiable[0]]
    return captured.program.values[output].spec.shape == ()


def solve(graph: Graph, budget: Bytes | None, settings: Settings, peak: Bytes) -> Outcome:
    """The plan: nothing is recomputed where everything fits, else what the solver says.

    Raises:
        Infeasible: no plan was found.
    """
    if budget is None or budget >= peak:
        return StoreAll().solve(Problem(graph=graph, budget=peak if budget is None else budget))
    problem = Problem(graph=graph, budget=budget, deadline=settings.seconds)
    outcome = settings.planner().solve(problem, seed=settings.seed)
    if outcome.schedule is None:
        raise _infeasible(graph, budget, outcome, settings)
    return outcome


def floor_of(graph: Graph) -> Bytes:
    """A limit below which no schedule fits [bytes].

    Everything kept is resident at the end; and each node that must run (forward nodes, the loss, and what leads to kept data)
    holds what it reads, writes and works in.
    """
    size = {datum.name: 0 if datum.outside else datum.size for datum in graph.data}
    must = {i for i, node in enumerate(graph.computes) if node.phase is not Phase.BACKWARD}
    stack = [i for d, datum in enumerate(graph.data) if datum.keep for i in graph.writers_by_data[d]]
    while stack:
        i = stack.pop()
        if i not in must:
            must.add(i)
            stack += [w for d in graph.reads_by_node[i] for w in graph.writers_by_data[d]]
    kept = sum(datum.size for datum in graph.data if datum.keep)
    nodes = (graph.computes[i] for i in must)
    held = (
        sum(size[name] for name in (*node.reads, *node.writes)) + min(one.workspace for one in node.options)
        for node in nodes
    )
    return max(kept, *held)


@frozen
class Smallest:
    """What is known about how little memory a graph can be run in.

    Attributes:
        found: smallest budget that a plan was found for [bytes].
        floor: below this no schedule fits, proved [bytes].
    """

    found: Bytes
    floor: Bytes


def smallest_budget(graph: Graph, solver: Solver, *, below: Bytes = 0, seed: int = 0) -> Smallest:
    """Look for the smallest budget that a solver finds a plan for, to within 1 % of the peak of `StoreAll`.

    Args:
        graph: the step.
        solver: asked a few times, each with a deadline.
        below: a budget that is known not to do [bytes].
        seed: of the solver.
    """
    peak = store_all_peak(graph)
    floor, found = floor_of(graph), peak
    low = max(floor, below)
    for _ in range(PROBES):
        if found - low <= peak // 100:
            break
        middle = (low + found) // 2
        tried = solver.solve(Problem(graph=graph, budget=middle, deadline=PROBE_SECONDS), seed=seed)
        if tried.schedule is not None:
            found = middle
        else:
            low = middle
            floor = max(floor, middle + 1) if tried.lower == IMPOSSIBLE else floor
    return Smallest(found, floor)


def _infeasible(graph: Graph, budget: Bytes, outcome: Outcome, settings: Settings) -> Infeasible:
    """Say what would have done, and what cannot."""
    known = smallest_budget(graph, settings.prober(), below=budget, seed=settings.seed)
    floor = max(known.floor, budget + 1) if outcome.lower == IMPOSSIBLE else known.floor
    found = known.found
    what = (
        f"no plan for {format_bytes(budget)} ({budget} B) was found; the smallest budget a plan was found for is "
        f"{format_bytes(found)} ({found} B), and none can exist below {format_bytes(floor)} ({floor} B)."
    )
    fix = f"give at least {found} bytes, or a smaller batch."
    return Infeasible(what, budget=budget, found=found, floor=floor, fix=fix)
