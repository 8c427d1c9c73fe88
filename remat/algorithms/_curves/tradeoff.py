"""The curve of a graph's step time over memory in numbers to choose by: shares of the peak, ratios of time, bounds.

What `remat sweep` prints and `remat.exec.sweep` returns; the work is done and shared in `budget_sweep.py`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

from attrs import field, frozen

from remat.algorithms._core.clock import A_CLOCK, Clock
from remat.algorithms._core.outcome import IMPOSSIBLE, Outcome, Status
from remat.algorithms._core.solver import Solver
from remat.algorithms._whole.baselines import store_all_peak
from remat.budget import budget_bytes
from remat.errors import BadArgument
from remat.ir import Graph
from remat.ir.arguments import A_GRAPH
from remat.settings import MANY, optional, takes, whole
from remat.units import Bytes, Ns, format_bytes, format_ns, ratio

SWEEP = "sweep"
"""`Progress.stage` of a budget reached; `done` and `total` count budgets."""

logger = logging.getLogger(__name__)
"""Logs every budget reached (INFO)."""

_HEAD = f"{'budget':>11} {'share':>6} {'time':>8} {'bound':>8} {'gap':>8}  status"
_WORDS = {
    (Status.INFEASIBLE, "certified"): "proved impossible",
    (Status.INFEASIBLE, "claimed"): "claimed impossible",
    (Status.NOT_FOUND, "certified"): "no plan found",
    (Status.NOT_FOUND, "claimed"): "no plan found",
}
"""By status and by what the bound is; other statuses speak for themselves."""


@frozen(kw_only=True)
class Choice:
    """The plan and the bound at one budget, in numbers to choose by.

    Attributes:
        budget: [bytes].
        share: of the peak of a step that keeps everything.
        ratio: time of the plan over the time of that step; None: no plan was found.
        lower: bound on that ratio for every plan, certified or claimed; infinite: no plan exists.
        outcome: the plan and its bound.
    """

    budget: Bytes
    share: float
    ratio: float | None
    lower: float
    outcome: Outcome = field(repr=False)

    def __str__(self) -> str:
        time = "" if self.ratio is None else f"{self.ratio:.4f}"
        bound = "none" if self.lower == IMPOSSIBLE else f"{self.lower:.4f}"
        gap = "" if self.outcome.gap is None else f"{self.outcome.gap:.2%}"
        status, bounded = self.outcome.status, self.outcome.word
        word = _WORDS.get((status, bounded), f"{status.value}, bound {bounded}")
        return f"{format_bytes(self.budget):>11} {self.share:6.1%} {time:>8} {bound:>8} {gap:>8}  {word}"


@frozen(kw_only=True)
class Choices:
    """Step time over memory. `str` of it is a table.

    Attributes:
        choices: by budget, smallest first; times and bounds never rise.
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
        return next((choice for choice in self.choices if choice.ratio is not None), None)

    def cheapest_within(self, ratio: float) -> Choice | None:
        """The smallest budget whose plan takes at most `ratio` times the step that keeps everything."""
        return next((choice for choice in self.choices if choice.ratio is not None and choice.ratio <= ratio), None)

    def __str__(self) -> str:
        peak, time = format_bytes(self.store_all_peak), format_ns(self.store_all_time)
        lines = [f"{self.graph.name}: keeping everything takes {peak} and {time}", _HEAD, *map(str, self.choices)]
        if not self.complete:
            lines.append(f"stopped after {len(self.choices)} of {self.asked} budgets")
        return "\n".join(lines)


@takes(graph=A_GRAPH, budgets=optional(MANY), clock=A_CLOCK)
def choices(
    graph: Graph,
    budgets: Iterable[int | str] | None = None,
    *,
    points: int = 12,
    solver: Solver | None = None,
    clock: Clock | None = None,
    seed: int = 0,
) -> Choices:
    """Plan a graph for many budgets.

    Args:
        graph: the training step.
        budgets: bytes, `"6GiB"` or `"40%"` of the peak of a step that keeps everything; left out, `points` of them.
        points: number of budgets, evenly spaced from the proved floor to that peak, where none are given.
        solver: plans; by default `auto`.
        clock: how long it may take, and the listener to progress: each budget reached is reported by `SWEEP`, with the
            solvers' progress between. An interruption (Ctrl-C) or the end of the time keeps the plans made so far.
        seed: of the solver.

    Raises:
        BadArgument: an argument is not one of its values.
    """
    from remat.algorithms._curves import budget_sweep as sharing  # compiled kernels, only when a curve is asked for

    peak, time = store_all_peak(graph), graph.time
    sizes = _sizes(graph, budgets, peak, points)
    clock = Clock() if clock is None else clock
    reached = 0

    def choice(point: sharing.Point) -> Choice:
        outcome, cost = point.outcome, point.outcome.cost
        slower = None if cost is None else ratio(cost.time, time)
        share, lower = ratio(point.budget, peak), ratio(outcome.lower, time)
        return Choice(budget=point.budget, share=share, ratio=slower, lower=lower, outcome=outcome)

    def listener(point: sharing.Point) -> None:
        nonlocal reached
        reached += 1
        cost = point.outcome.cost
        best = None if cost is None else cost.time
        note = f"{format_bytes(point.budget)}, {point.outcome.status.value}"
        clock.report(SWEEP, best=best, stage=SWEEP, done=reached, total=len(sizes), note=note)
        logger.info(
            "budget %d of %d: %d B, %s, time %s ns", reached, len(sizes), point.budget, point.outcome.status.value, best
        )

    curve = sharing.sweep(graph, sizes, solver, clock=clock, seed=seed, listener=listener)
    at_each = tuple(map(choice, curve.points))
    return Choices(choices=at_each, graph=graph, store_all_peak=peak, store_all_time=time, asked=len(sizes))


def _sizes(graph: Graph, budgets: Iterable[int | str] | None, peak: Bytes, points: int) -> list[Bytes]:
    """Budgets in bytes, ascending."""
    if budgets is not None:
        sizes = sorted({budget_bytes(budget, peak) for budget in budgets})
        if not sizes:
            raise BadArgument("A-BUDGETS", "there is no budget.", fix="give one, or leave them out.")
        return sizes
    from remat.algorithms._bounds.floor import node_floor, proved_floor

    whole(2, "budgets").check(points, "choices: points")
    floor = proved_floor(graph) if graph.flat else node_floor(graph)
    return sorted({floor + (peak - floor) * i // (points - 1) for i in range(points)})


__all__ = ["SWEEP", "Choice", "Choices", "choices"]
