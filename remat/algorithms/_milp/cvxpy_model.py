"""A MILP formulation in CVXPY: two variables, sparse matrices, budgets as parameters; scaled here, not by the caller.

Built once per graph; a new budget changes two parameters and costs CVXPY a few milliseconds. Scaling: memory rows
count in units of their largest coefficient, the objective so that one run of every node costs 1000; results are
turned back into nanoseconds.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse as sp
from attrs import field, frozen
from numpy.typing import NDArray

from remat.algorithms._milp.answer import Floats
from remat.algorithms._milp.linear import Linear

_OBJECTIVE = 1000.0
_CAPACITY = 1000.0


@frozen(kw_only=True)
class Model:
    """A CVXPY problem with its parameters.

    Attributes:
        linear: the formulation in exact integers.
        problem: the CVXPY problem. binary, share: its variables (share: None without continuous columns).
        capacity: parameter of the right-hand sides that budgets change (all of them).
        cost_unit: solver's objective per nanosecond. row_scale: solver's row per row of `linear`.
        order: column of `linear` for each of the solver's columns (binary first).
    """

    linear: Linear = field(eq=False)
    problem: Any = field(eq=False)
    binary: Any = field(eq=False)
    share: Any = field(eq=False)
    capacity: Any = field(eq=False)
    cost_unit: float
    row_scale: Floats = field(eq=False)
    order: NDArray[np.int64] = field(eq=False)

    def set(self, budget: int, save: int = 0) -> None:
        """Set the budgets [bytes]."""
        linear = self.linear
        right = linear.right(budget, save)
        whole = ~linear.equal & ((linear.budget != 0) | (linear.save != 0))
        if self.capacity is not None:
            self.capacity.value = right[whole].astype(float) * self.row_scale[whole]

    def point(self) -> Floats | None:
        """The solver's point in the columns of `linear`, or None without values."""
        parts = [v.value for v in (self.binary, self.share) if v is not None]
        return None if any(v is None for v in parts) else self.in_order(np.concatenate(parts))

    def columns(self, data: Any) -> NDArray[np.int64]:
        """The column of `linear` for each column of CVXPY's problem data."""
        offsets = data["param_prob"].var_id_to_col
        columns = np.empty(len(self.order), np.int64)
        place = 0
        for variable in (self.binary, self.share):
            if variable is not None:
                first = offsets[variable.id]
                columns[first : first + variable.size] = self.order[place : place + variable.size]
                place += variable.size
        return columns

    def in_order(self, values: Floats, columns: NDArray[np.int64] | None = None) -> Floats:
        """A vector over the solver's columns (by default binary ones first), in those of `linear`."""
        point = np.empty(len(self.order))
        point[self.order if columns is None else columns] = values[: len(self.order)]
        return point

    def multipliers(self, values: Floats) -> Floats:
        """Multipliers of the solver's rows (equations first), as those of `linear` [ns per unit of the row]."""
        multipliers = np.zeros(len(self.linear.rhs))
        multipliers[np.concatenate(row_groups(self.linear))] = values
        return np.asarray(multipliers * self.row_scale / self.cost_unit)


def row_groups(linear: Linear) -> tuple[NDArray[np.int64], ...]:
    """Rows of equations, of plain inequalities, and of inequalities with a budget."""
    whole = ~linear.equal & ((linear.budget != 0) | (linear.save != 0))
    return np.flatnonzero(linear.equal), np.flatnonzero(~linear.equal & ~whole), np.flatnonzero(whole)


def model_of(linear: Linear, *, relaxed: bool = False) -> Model:
    """The CVXPY problem of a formulation; `relaxed`: all columns continuous."""
    import cvxpy as cp

    integral = np.zeros_like(linear.integral) if relaxed else linear.integral
    order = np.concatenate([np.flatnonzero(integral), np.flatnonzero(~integral)])
    scale = _row_scale(linear)
    matrix = sp.csr_matrix((linear.val * scale[linear.row], (linear.row, linear.col)), linear.shape)[:, order]
    count = int(integral.sum())
    binary = cp.Variable(count, boolean=True, name="run") if count else None
    rest = len(order) - count
    share = cp.Variable(rest, bounds=[0, 1], name="resident") if rest else None
    total = int(linear.cost.sum()) or 1
    unit = _OBJECTIVE / total * max(1, _repeats(linear))
    cost = (linear.cost * unit)[order]

    def times(left: Any) -> Any:
        parts = []
        if binary is not None:
            parts.append(left[..., :count] @ binary)
        if share is not None:
            parts.append(left[..., count:] @ share)
        return sum(parts[1:], parts[0])

    equal, plain, whole = row_groups(linear)
    constraints, capacity = [], None
    if len(equal):
        constraints.append(times(matrix[equal]) == linear.rhs[equal] * scale[equal])
    if len(plain):
        constraints.append(times(matrix[plain]) <= linear.rhs[plain] * scale[plain])
    if len(whole):
        capacity = cp.Parameter(len(whole), name="capacity")
        constraints.append(times(matrix[whole]) <= capacity)
    problem = cp.Problem(cp.Minimize(times(cost)), constraints)
    return Model(
        linear=linear,
        problem=problem,
        binary=binary,
        share=share,
        capacity=capacity,
        cost_unit=unit,
        row_scale=scale,
        order=order,
    )


def _repeats(linear: Linear) -> float:
    """About how many columns each node has: the sum of first runs is 1/repeats of all costs."""
    first = linear.row[linear.equal[linear.row]]
    columns = linear.col[linear.equal[linear.row]]
    once = int(linear.cost[columns].sum()) if len(first) else 0
    return float(linear.cost.sum()) / once if once else 1.0


def _row_scale(linear: Linear) -> Floats:
    """One unit for all memory rows, so that they stay comparable; 1 elsewhere."""
    memory = (linear.budget != 0) | (linear.save != 0)
    entries = np.abs(linear.val)
    largest = int(entries[memory[linear.row]].max()) if memory[linear.row].any() else 1
    scale = np.ones(len(linear.rhs))
    scale[memory] = _CAPACITY / largest
    other = np.ones(len(linear.rhs))
    np.maximum.at(other, linear.row, entries.astype(float))
    scale[~memory] = 1.0 / other[~memory]
    return scale
