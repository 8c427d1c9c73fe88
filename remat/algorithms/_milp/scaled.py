"""Formulations as HiGHS gets them, and how it is run on them."""

from __future__ import annotations

import math
from functools import cached_property
from typing import Any

import numpy as np
import scipy.sparse as sp
from attrs import frozen
from numpy.typing import NDArray

from remat.algorithms._core.clock import Clock
from remat.algorithms._milp.answer import Floats
from remat.algorithms._milp.highs import loaded
from remat.algorithms._milp.linear import Fixings, Flags, Ints, Linear

_SCALE = 1000.0  # the objective is scaled so that all costs sum to this

INFEASIBLE = ("kInfeasible", "kUnboundedOrInfeasible")
"""Ends at which HiGHS has no point."""

ENDED = ("kOptimal", "kTimeLimit", "kIterationLimit", "kSolutionLimit", "kInterrupt")
"""Ends at which HiGHS has duals and a dual bound, limits included."""


@frozen(eq=False)
class Scaled:
    """A formulation as HiGHS gets it: rows divided by their largest coefficient, costs scaled, integral columns first.

    Attributes:
        order: the formulation's column of each column.
        matrix, right, cost: scaled. equal, integral: per row, per column.
        row_unit: what each row was divided by.
        unit: what costs were multiplied by.
    """

    order: NDArray[np.int64]
    matrix: sp.csc_matrix
    right: Floats
    cost: Floats
    equal: Flags
    integral: Flags
    row_unit: Floats
    unit: float

    @classmethod
    def of(cls, linear: Linear, integral: Flags) -> Scaled:
        """A formulation with these columns integral."""
        order = np.argsort(~integral, kind="stable")
        largest = np.ones(len(linear.rhs))
        np.maximum.at(largest, linear.row, np.abs(linear.val).astype(float))
        values = linear.val * (1.0 / largest)[linear.row]
        total = sum(linear.cost.tolist())
        unit = _SCALE / total if total else 1.0
        return cls(
            order=order,
            matrix=sp.csr_matrix((values, (linear.row, linear.col)), linear.shape).tocsc()[:, order],
            right=linear.rhs / largest,
            cost=linear.cost[order] * unit,
            equal=linear.equal,
            integral=integral[order],
            row_unit=largest,
            unit=unit,
        )

    def loaded(self, fixed: Fixings | None = None) -> Any:
        """HiGHS with the formulation, in which some columns have a given value."""
        solver = loaded(self.matrix, self.cost, self.right, self.equal, self.integral)
        if fixed is not None and len(fixed.columns):
            places, values = self.places[fixed.columns].astype(np.int32), fixed.values.astype(float)
            solver.changeColsBounds(len(places), places, values, values)
        return solver

    @cached_property
    def places(self) -> Ints:
        """Where HiGHS has each column of the formulation."""
        places = np.empty(len(self.order), np.int64)
        places[self.order] = np.arange(len(self.order))
        return places

    def solution(self, solver: Any) -> tuple[Floats | None, Floats | None]:
        """The point in the formulation's columns and the multipliers of the rows; None where HiGHS has none that are numbers."""
        solution = solver.getSolution()
        values, duals = np.asarray(solution.col_value), -np.asarray(solution.row_dual)
        point = None
        if len(values) == len(self.order) and np.isfinite(values).all():
            point = np.empty(len(values))
            point[self.order] = np.where(self.integral, np.round(values), values)
        return point, duals if len(duals) == len(self.right) and np.isfinite(duals).all() else None


def run(solver: Any, clock: Clock | None, **options: Any) -> str:
    """Solve; the status of HiGHS at the end, or "" if the clock leaves no time."""
    left = math.inf if clock is None else clock.remaining
    if left <= 0:
        return ""
    if left < math.inf:
        options["time_limit"] = left
    for name, value in {"threads": 1, "random_seed": 0, **options}.items():
        solver.setOptionValue(name, value)
    solver.run()
    return str(solver.getModelStatus().name)


def iterations_of(solver: Any) -> int:
    """Iterations of the simplex method in the last solve."""
    return max(0, int(solver.getInfo().simplex_iteration_count))
