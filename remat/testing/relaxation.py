"""The interface of `check_bound` for authors of lower bounds: the formulation as data, and the point of each schedule in it.

A bound from a formulation is valid if every schedule of its class has a point that satisfies every row and costs no more than the
schedule. Comparing optima is a weak test of this: a row that cuts off a schedule changes the optimum only if that schedule is
optimal. The point of a random schedule shows the mistake directly.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterable, Sequence
from fractions import Fraction
from random import Random
from typing import Any, ClassVar

from attrs import field, frozen

from remat.algorithms._milp.linear import Linear
from remat.ir import Graph
from remat.testing.families import Family, branching, chain, late, layered, legal_flat, optional, parallel, whatever
from remat.testing.random_schedules import Among, random_schedule
from remat.testing.trace import Trace
from remat.testing.walks import Choose
from remat.units import Bytes, Ns


@frozen(kw_only=True)
class Formulation:
    """A formulation at one budget.

    Attributes:
        linear: rows and costs; its points are vectors of 0 and 1, and of fractions between them in columns that are not integral.
        base: time of a schedule that is not part of the cost of its point [ns].
        impossible: the bound states, without solving, that no schedule of its class fits.
        meaning: any data about the columns that `Relaxation.point` needs.
    """

    linear: Linear
    base: Ns = 0
    impossible: bool = False
    meaning: Any = field(default=None, eq=False)


class Relaxation(ABC):
    """A lower bound as `check_bound` sees it.

    A bound with several formulations of a graph, such as one for each instant, identifies them by *places*. For a single
    formulation the default `places` is right.
    """

    among: ClassVar[Among] = "all"
    """The schedules that it bounds: `all`, those with first runs in the `captured` order, or `staged` ones."""

    families: ClassVar[tuple[Family, ...]] = (
        branching,
        legal_flat,
        whatever,
        parallel,
        legal_flat,
        chain,
        layered,
        optional,
        late,
    )
    """The random graphs on which it is tested where `check_bound` is given no strategy, drawn in turn."""

    def refuses(self, graph: Graph) -> str | None:
        """Why it cannot bound schedules of this graph; None if it can."""
        del graph
        return None

    def trace(self, graph: Graph, choose: Choose) -> Trace:
        """A random schedule of its class; `choose` makes every choice. Override it for schedules with copies."""
        return Trace(graph, random_schedule(graph, choose, self.among))

    def places(self, trace: Trace, random: Random) -> Iterable[Hashable]:
        """The formulations on which a schedule is tested; `random` serves to choose among many."""
        del trace, random
        return (None,)

    def needs(self, trace: Trace, place: Hashable) -> Bytes:
        """The least budget that the schedule satisfies at the runs that the formulation considers [bytes].

        It makes the memory rows tight. The default, the peak, is always valid but weak: for a formulation of a single run return
        the bytes charged to that run (`trace.charged`).
        """
        del place
        return trace.peak

    @abstractmethod
    def formulation(self, graph: Graph, place: Hashable, budget: Bytes) -> Formulation:
        """The formulation that the bound solves."""

    @abstractmethod
    def point(self, formulation: Formulation, trace: Trace, place: Hashable) -> Sequence[int | Fraction]:
        """The point of a schedule: 0 or 1 for each column, or a fraction between them where the column is not integral."""


def broken_row(linear: Linear, point: Sequence[int | Fraction], budget: Bytes) -> str | None:
    """The first row that a point violates, evaluated in exact integers, as text; None if it satisfies all."""
    sums: list[int | Fraction] = [0] * len(linear.rhs)
    terms: list[list[str]] = [[] for _ in sums]
    for row, column, value in zip(linear.row.tolist(), linear.col.tolist(), linear.val.tolist(), strict=True):
        sums[row] += value * point[column]
        terms[row].append(f"{value:+d}·x{column}[{0 + point[column]}]")
    right = [int(rhs) + budget * int(share) for rhs, share in zip(linear.rhs, linear.budget, strict=True)]
    for row, (total, bound) in enumerate(zip(sums, right, strict=True)):
        if total > bound or (linear.equal[row] and total != bound):
            sign = "=" if linear.equal[row] else "<="
            return f"row {row}: {' '.join(terms[row]) or '0'} {sign} {bound} is {total}"
    return None


def cost_of(linear: Linear, point: Sequence[int | Fraction]) -> int | Fraction:
    """The cost of a point [ns]."""
    return sum(int(cost) * value for cost, value in zip(linear.cost, point, strict=True))
