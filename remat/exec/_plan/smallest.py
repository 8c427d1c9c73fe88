"""How little memory a step can be run in: the smallest budget a plan was found for, the proved floor, and how to say so."""

from __future__ import annotations

from collections.abc import Sequence

from attrs import frozen

from remat.algorithms import IMPOSSIBLE, Clock, Outcome, Problem, Solver, StoreAll, proved_floor, store_all_peak
from remat.algorithms._bounds.floor import node_floor
from remat.errors import Infeasible
from remat.ir import Graph
from remat.units import Bytes, format_bytes

PROBES = 7
"""Budgets tried: enough to come within 1 % of the peak of `StoreAll`."""
PROBE_SECONDS = 5.0
"""Deadline of each, where somebody named the solver."""


@frozen
class Smallest:
    """What is known about how little memory a graph can be run in.

    Attributes:
        found: smallest budget that a plan was found for [bytes].
        floor: below this no schedule fits, proved [bytes].
        outcome: the plan for that budget, validated.
    """

    found: Bytes
    floor: Bytes
    outcome: Outcome


def smallest_budget(
    graph: Graph, solver: Solver | None = None, *, below: Bytes = 0, clock: Clock | None = None, seed: int = 0
) -> Smallest:
    """Look for the smallest budget that a plan is found for, to within 1 % of the peak of `StoreAll`.

    Args:
        graph: the step.
        solver: asked a few times, each with a deadline; None: quick planners, and then what is proved of the budgets below.
        below: a budget that is known not to do [bytes].
        clock: how long it may take; a search that is cut short knows a larger budget and a lower floor.
        seed: of the solver.
    """
    clock = Clock() if clock is None else clock
    if solver is not None:
        return _bisected(graph, solver, _known(graph), below, clock, seed)
    from remat.algorithms._search.auto import probe, prover  # imports compiled kernels, so only when it is asked for

    known = _bisected(graph, probe, _known(graph), below, clock, seed)
    known = Smallest(known.found, max(known.floor, proved_floor(graph, clock)), known.outcome)
    return _narrowed(graph, prover, known, clock, seed)


def _known(graph: Graph) -> Smallest:
    """What needs no search."""
    peak = store_all_peak(graph)
    return Smallest(peak, node_floor(graph), StoreAll().solve(Problem(graph=graph, budget=peak)))


def _bisected(graph: Graph, solver: Solver, known: Smallest, below: Bytes, clock: Clock, seed: int) -> Smallest:
    accuracy = known.found // 100
    low = max(known.floor, below)
    for _ in range(PROBES):
        if known.found - low <= accuracy or clock.expired:
            break
        middle = (low + known.found) // 2
        outcome = solver.solve(Problem(graph=graph, budget=middle), clock=clock.nested(PROBE_SECONDS), seed=seed)
        if outcome.schedule is not None:
            known = Smallest(middle, known.floor, outcome)
            continue
        low = middle
        if outcome.lower == IMPOSSIBLE:
            known = Smallest(known.found, max(known.floor, middle + 1), known.outcome)
    return known


def _narrowed(graph: Graph, prover: Solver, known: Smallest, clock: Clock, seed: int) -> Smallest:
    """More of what is between the floor and the smallest budget: impossible, or planned after all, or left open."""
    high = known.found
    for _ in range(PROBES):
        if high - known.floor <= known.found // 100 or clock.expired:
            break
        middle = (known.floor + high) // 2
        outcome = prover.solve(Problem(graph=graph, budget=middle), clock=clock.nested(), seed=seed)
        if outcome.lower == IMPOSSIBLE:
            known = Smallest(known.found, middle + 1, known.outcome)
            continue
        high = middle
        if outcome.schedule is not None:
            known = Smallest(middle, known.floor, outcome)
    return known


def infeasible(budget: Bytes, smallest: Smallest, *, seconds: float | None = None, beside: Bytes = 0) -> Infeasible:
    """Say what would have done, and what cannot.

    Args:
        budget: what was asked for [bytes].
        smallest: what is known.
        seconds: of planning, where they were over before the planner was done; None: it was done.
        beside: what a call holds besides the plan; `smallest` knows of the plan alone [bytes].
    """
    found, floor = smallest.found + beside, smallest.floor + beside
    within = "" if seconds is None else f" in {seconds:g} s of planning"
    what = (
        f"no plan for {format_bytes(budget)} ({budget} B) was found{within}; the smallest budget a plan was found for is "
        f"{format_bytes(found)} ({found} B), and none can exist below {format_bytes(floor)} ({floor} B)."
    )
    if beside:
        what += f" In these are {format_bytes(beside)} ({beside} B) that a call holds besides its plan."
    fix = f"give at least {found} bytes, {'' if seconds is None else 'more seconds, '}or a smaller batch."
    return Infeasible(what, budget=budget, found=found, floor=floor, fix=fix)


Shapes = Sequence[tuple[str, tuple[int, ...]]]
"""Names of arguments with their shapes."""


def changed_since(sample: Shapes, call: Shapes) -> str:
    """A sentence on the arguments of a call whose shapes are not the sample's; empty: all are the same."""
    before, now = dict(sample), dict(call)
    words = []
    for name in dict.fromkeys((*before, *now)):
        if name not in now:
            words.append(f"{name} {_shape(before[name])} is not given")
        elif name not in before:
            words.append(f"{name} {_shape(now[name])} is new")
        elif before[name] != now[name]:
            words.append(f"{name} is {_shape(now[name])}, was {_shape(before[name])}")
    return f"Since the sample: {'; '.join(words)}." if words else ""


def _shape(shape: tuple[int, ...]) -> str:
    return f"({', '.join(map(str, shape))}{',' if len(shape) == 1 else ''})"


def with_changes(error: Infeasible, sample: Shapes, call: Shapes) -> Infeasible:
    """The error with what changed since the sample, where anything did."""
    sentence = changed_since(sample, call)
    if not sentence:
        return error
    what = f"{error.what} {sentence}"
    return Infeasible(what, budget=error.budget, found=error.found, floor=error.floor, fix=error.fix)


__all__ = ["Smallest", "changed_since", "infeasible", "smallest_budget", "with_changes"]
