"""A MILP formulation, scaled, as arrays and in CVXPY: two variables, sparse matrices, budgets as parameters.

Either is built once per graph, when a back end first asks for it: HiGHS takes the arrays, which are what CVXPY would give it,
number for number. A new budget changes right-hand sides. Scaling: memory rows count in units of their largest coefficient, the
objective so that one run of every node costs 1000; results are turned back into nanoseconds.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
from attrs import define, field
from numpy.typing import NDArray

from remat.algorithms._milp.answer import Floats
from remat.algorithms._milp.linear import Flags, Ints, Linear
from remat.units import Bytes

_OBJECTIVE = 1000.0
_CAPACITY = 1000.0


class ScaledForm(NamedTuple):
    """A scaled formulation: minimize cost·x, where rows @ x is at most a right-hand side or equal to it, 0 <= x <= 1.

    Attributes:
        rows: equations first, then plain inequalities, then those with a budget; columns in the order of the model.
        cost: of each column. row_of: row of `linear` for each row. equations: how many are.
        integral: of each column.
    """

    rows: sp.csr_matrix
    cost: Floats
    row_of: NDArray[np.int64]
    equations: int
    integral: Flags


class CvxpyProblem(NamedTuple):
    """What CVXPY has of a model.

    Attributes:
        problem: the CVXPY problem. binary, share: its variables, or None.
        capacity: parameter of the right-hand sides that budgets change (all of them), or None.
    """

    problem: Any
    binary: Any
    share: Any
    capacity: Any


@define(kw_only=True, eq=False)
class MilpModel:
    """A formulation under budgets, and its scale. What a solver takes is built when a back end first asks for it.

    Attributes:
        linear: the formulation in exact integers.
        relaxed: whether all columns are continuous.
        cost_unit: CVXPY's objective per nanosecond. row_scale: CVXPY's row per row of `linear`.
        order: column of `linear` for each of CVXPY's columns (binary first).
        budget, save: the budgets that were set last [bytes].
    """

    linear: Linear
    relaxed: bool
    cost_unit: float
    row_scale: Floats
    order: NDArray[np.int64]
    budget: Bytes = 0
    save: Bytes = 0
    _scaled: ScaledForm | None = field(default=None, init=False, repr=False)
    _cvxpy: CvxpyProblem | None = field(default=None, init=False, repr=False)

    def set(self, budget: Bytes, save: Bytes = 0) -> None:
        """Set the budgets [bytes]."""
        self.budget, self.save = budget, save
        if self._cvxpy is not None:
            self._set_capacity(self._cvxpy.capacity)

    def _set_capacity(self, capacity: Any) -> None:
        if capacity is not None:
            capacity.value = self.scaled_right[-capacity.size :]

    @property
    def right(self) -> Ints:
        """Right-hand side of each row of `linear` under the budgets."""
        return self.linear.right(self.budget, self.save)

    @property
    def scaled(self) -> ScaledForm:
        """The scaled formulation, without right-hand sides."""
        if self._scaled is None:
            self._scaled = _scaled(self)
        return self._scaled

    @property
    def scaled_right(self) -> Floats:
        """Right-hand side of each row of `scaled` under the budgets."""
        rows = self.scaled.row_of
        return np.asarray(self.right[rows] * self.row_scale[rows])

    @property
    def mixed(self) -> bool:
        """Whether any column is integral."""
        return not self.relaxed and bool(self.linear.integral.any())

    @property
    def cvxpy(self) -> CvxpyProblem:
        """The CVXPY problem under the budgets."""
        if self._cvxpy is None:
            self._cvxpy = _cvxpy_problem(self)
            self._set_capacity(self._cvxpy.capacity)
        return self._cvxpy

    @property
    def problem(self) -> Any:
        """The CVXPY problem alone."""
        return self.cvxpy.problem

    def point(self) -> Floats | None:
        """The solver's point in the columns of `linear`, or None without values."""
        parts = [v.value for v in (self.cvxpy.binary, self.cvxpy.share) if v is not None]
        return None if any(v is None for v in parts) else self.in_order(np.concatenate(parts))

    def columns(self, data: Any) -> NDArray[np.int64]:
        """The column of `linear` for each column of CVXPY's problem data."""
        offsets = data["param_prob"].var_id_to_col
        columns = np.empty(len(self.order), np.int64)
        place = 0
        for variable in (self.cvxpy.binary, self.cvxpy.share):
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
        multipliers[self.scaled.row_of] = values
        return np.asarray(multipliers * self.row_scale / self.cost_unit)


def row_groups(linear: Linear) -> tuple[NDArray[np.int64], ...]:
    """Rows of equations, of plain inequalities, and of inequalities with a budget."""
    whole = ~linear.equal & ((linear.budget != 0) | (linear.save != 0))
    return np.flatnonzero(linear.equal), np.flatnonzero(~linear.equal & ~whole), np.flatnonzero(whole)


def model_of(linear: Linear, *, relaxed: bool = False) -> MilpModel:
    """The model of a formulation; `relaxed`: all columns continuous."""
    integral = _integral(linear, relaxed)
    total = int(linear.cost.sum()) or 1
    return MilpModel(
        linear=linear,
        relaxed=relaxed,
        cost_unit=_OBJECTIVE / total * max(1, _repeats(linear)),
        row_scale=_row_scale(linear),
        order=np.concatenate([np.flatnonzero(integral), np.flatnonzero(~integral)]),
    )


def _integral(linear: Linear, relaxed: bool) -> Flags:
    return np.zeros_like(linear.integral) if relaxed else linear.integral


def _scaled(model: MilpModel) -> ScaledForm:
    linear, scale, order = model.linear, model.row_scale, model.order
    matrix = sp.csr_matrix((linear.val * scale[linear.row], (linear.row, linear.col)), linear.shape)
    groups = row_groups(linear)
    rows = np.concatenate(groups)
    integral = _integral(linear, model.relaxed)[order]
    cost = np.asarray(linear.cost * model.cost_unit, np.float64)[order]
    return ScaledForm(matrix[rows][:, order], cost, rows, len(groups[0]), integral)


def _cvxpy_problem(model: MilpModel) -> CvxpyProblem:
    import cvxpy as cp

    matrix, cost, row_of, equations, integral = model.scaled
    count = int(integral.sum())
    binary = cp.Variable(count, boolean=True, name="run") if count else None
    rest = len(integral) - count
    share = cp.Variable(rest, bounds=[0, 1], name="resident") if rest else None

    def times(left: Any) -> Any:
        parts = []
        if binary is not None:
            parts.append(left[..., :count] @ binary)
        if share is not None:
            parts.append(left[..., count:] @ share)
        return sum(parts[1:], parts[0])

    budgets = len(row_groups(model.linear)[2])
    plain = len(row_of) - equations - budgets
    right = model.scaled_right
    constraints, capacity = [], None
    if equations:
        constraints.append(times(matrix[:equations]) == right[:equations])
    if plain:
        constraints.append(times(matrix[equations : equations + plain]) <= right[equations : equations + plain])
    if budgets:
        capacity = cp.Parameter(budgets, name="capacity")
        constraints.append(times(matrix[equations + plain :]) <= capacity)
    return CvxpyProblem(cp.Problem(cp.Minimize(times(cost)), constraints), binary, share, capacity)


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
