"""HiGHS by its own interface: the one place that gives it a problem."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse as sp
from attrs import field, frozen

from remat.algorithms._core.startup import importing
from remat.algorithms._milp.answer import Floats
from remat.algorithms._milp.linear import Flags, Ints
from remat.errors import BackendMissing


def loaded(matrix: sp.csc_matrix, cost: Floats, right: Floats, equal: Flags, integral: Flags) -> Any:
    """A silent HiGHS with minimize cost·x, matrix x <= right (= where `equal`), 0 <= x <= 1, integer where `integral`."""
    with importing():
        try:
            import highspy
        except ImportError as error:
            fix = "pip install highspy; ask a package that brings a HiGHS of its own, as ortools does, in another process."
            raise BackendMissing("A-BACKEND", f"HiGHS cannot be loaded ({error}).", fix=fix) from error

    rows, columns = matrix.shape
    lower = np.where(equal, right, -highspy.kHighsInf)
    kinds = highspy.HighsVarType
    kind = np.where(integral, int(kinds.kInteger), int(kinds.kContinuous)).astype(np.int32)
    starts, indices = matrix.indptr.astype(np.int32), matrix.indices.astype(np.int32)
    form, sense = int(highspy.MatrixFormat.kColwise), int(highspy.ObjSense.kMinimize)
    sizes = columns, rows, matrix.nnz, form, sense, 0.0
    bounds = np.zeros(columns), np.ones(columns), lower, right.astype(float)
    solver = highspy.Highs()
    solver.setOptionValue("output_flag", False)
    solver.passModel(*sizes, cost.astype(float), *bounds, starts, indices, matrix.data.astype(float), kind)
    return solver


def mip_interrupt() -> Any:
    """The kind of callback by which a branch and bound asks whether to stop; HiGHS is loaded already."""
    import highspy

    return highspy.cb.HighsCallbackType.kCallbackMipInterrupt


class Relaxation:
    """A relaxation that grows: rows are added, columns are fixed, and each solve starts from the basis of the last one.

    Rows are A x <= b, 0 <= x <= 1. All numbers are those of the caller; who calls scales them.
    """

    def __init__(self, matrix: sp.csr_matrix, cost: Floats, right: Floats) -> None:
        none = np.zeros(len(cost), np.bool_)
        self._solver = loaded(matrix.tocsc(), cost, right, np.zeros(len(right), np.bool_), none)
        self._rows, self._columns = matrix.shape
        options = {"threads": 1, "random_seed": 0, "presolve": "off", "solver": "simplex"}
        for name, value in options.items():
            self._solver.setOptionValue(name, value)
        self._low, self._high = np.zeros(self._columns), np.ones(self._columns)

    def add(self, matrix: sp.csr_matrix, right: Floats) -> None:
        """Add rows."""
        count = len(right)
        low = np.full(count, -np.inf)
        starts, columns = matrix.indptr[:-1].astype(np.int32), matrix.indices.astype(np.int32)
        self._solver.addRows(count, low, right, matrix.nnz, starts, columns, matrix.data.astype(float))
        self._rows += count

    def fix(self, columns: Ints, values: Floats) -> None:
        """Fix these columns; all others are free again."""
        low, high = np.zeros(self._columns), np.ones(self._columns)
        low[columns] = high[columns] = values
        changed = np.flatnonzero((low != self._low) | (high != self._high)).astype(np.int32)
        self._low, self._high = low, high
        if len(changed):
            self._solver.changeColsBounds(len(changed), changed, low[changed], high[changed])

    def solve(self, iterations: int) -> Relaxed:
        """Solve; `value` is a lower bound of the optimum also where the limit was reached."""
        solver = self._solver
        solver.setOptionValue("simplex_iteration_limit", iterations)
        solver.run()
        status, info = str(solver.getModelStatus().name), solver.getInfo()
        spent = max(0, int(info.simplex_iteration_count))
        if status in ("kInfeasible", "kUnboundedOrInfeasible"):
            ray = np.asarray(solver.getDualRay()[2])
            return Relaxed(infeasible=True, duals=ray if len(ray) == self._rows else None, iterations=spent)
        solution = solver.getSolution()
        point, duals = np.asarray(solution.col_value), -np.asarray(solution.row_dual)
        whole = len(point) == self._columns and len(duals) == self._rows and bool(np.isfinite(duals).all())
        if not whole or status not in ("kOptimal", "kIterationLimit"):
            return Relaxed(iterations=spent)
        value = float(info.objective_function_value)
        return Relaxed(value=value, point=point, duals=duals, optimal=status == "kOptimal", iterations=spent)

    def basis(self) -> Any:
        """Where the last solve ended."""
        return self._solver.getBasis()

    def restore(self, basis: Any) -> None:
        """Start the next solve from a basis of `basis`."""
        self._solver.setBasis(basis)


@frozen(kw_only=True)
class Relaxed:
    """The end of a solve of a `Relaxation`.

    Attributes:
        value: of the optimum, or of the dual solution at the limit.
        point: the solution; None: there is none.
        duals: a multiplier for each row, of at least 0 but for rounding; where `infeasible`, a ray.
        optimal, infeasible: how it ended; neither: at a limit, or in trouble.
        iterations: of the simplex method.
    """

    value: float = 0.0
    point: Floats | None = field(default=None, eq=False)
    duals: Floats | None = field(default=None, eq=False)
    optimal: bool = False
    infeasible: bool = False
    iterations: int = 0
