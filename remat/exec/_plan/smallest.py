"""The error for a budget without a plan: the smallest budget with one, what no plan fits, and what changed since the sample."""

from __future__ import annotations

from collections.abc import Sequence

from remat.errors import Infeasible
from remat.units import Bytes, format_bytes


def infeasible(
    budget: Bytes, *, smallest: Bytes, floor: Bytes, seconds: float | None = None, overhead: Bytes = 0
) -> Infeasible:
    """The error for a budget without a plan.

    Args:
        budget: what was asked for [bytes].
        smallest: the smallest budget a plan was found for [bytes].
        floor: below this no schedule fits, by the floor or by a bound of a solver; 0: not known [bytes].
        seconds: of planning, where they were over before the planner was done; None: it was done.
        overhead: what a call holds outside the plan; `smallest` and `floor` are of the plan alone [bytes].
    """
    smallest, floor = smallest + overhead, floor + overhead if floor else 0
    within = "" if seconds is None else f" in {seconds:g} s of planning"
    what = (
        f"no plan for {format_bytes(budget)} ({budget} B) was found{within}; the smallest budget a plan was found for is "
        f"{format_bytes(smallest)} ({smallest} B)"
    )
    what += (
        f", and none can exist below {format_bytes(floor)} ({floor} B)." if floor else ", without copies to the host."
    )
    if overhead:
        what += f" These include {format_bytes(overhead)} ({overhead} B) that a call holds outside its plan."
    fix = f"give at least {smallest} bytes, {'' if seconds is None else 'more seconds, '}or a smaller batch."
    return Infeasible(what, budget=budget, smallest=smallest, floor=floor, fix=fix)


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
    return Infeasible(what, budget=error.budget, smallest=error.smallest, floor=error.floor, fix=error.fix)


__all__ = ["changed_since", "infeasible", "with_changes"]
