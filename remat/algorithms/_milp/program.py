"""Linear and mixed programmes over variables in [0, 1], solved by HiGHS, with bounds that are proofs.

A bound of a linear programme is evaluated again from the solver's duals in exact integers: for minimise c·x, A x ≤ b,
0 ≤ x ≤ 1 and any λ ≥ 0, every feasible x costs at least -λ·b + Σ min(0, c + Aᵀλ), whatever the solver's tolerances
were. A bound of a mixed programme is the solver's dual bound, lowered by its tolerance. Solves are limited by nodes
and iterations, and by what a clock with an end has left: then the bound reached so far is returned.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import scipy.sparse as sp
from attrs import field, frozen
from numpy.typing import NDArray

from remat.algorithms._core.clock import Clock
from remat.algorithms._core.startup import importing

_BITS = 60  # exact evaluations count in units of 2**-60
_SCALE = 1000.0  # the objective is scaled so that all costs sum to this
MIXED_TOLERANCE = 1e-5  # taken off a mixed programme's dual bound, relative and absolute (HiGHS: 1e-6, 1e-7)


class Rows:
    """Rows of `A x <= b` under construction, with integer coefficients."""

    def __init__(self) -> None:
        self.rows: list[int] = []
        self.columns: list[int] = []
        self.values: list[int] = []
        self.rhs: list[int] = []

    def add(self, terms: list[tuple[int, int]], rhs: int) -> None:
        """One row: the sum of coefficient times column is at most `rhs`."""
        row = len(self.rhs)
        for column, value in terms:
            self.rows.append(row)
            self.columns.append(column)
            self.values.append(value)
        self.rhs.append(rhs)


@frozen
class Program:
    """Minimise cost·x subject to rows, x in [0, 1], integral where `integral` says so; all data integers."""

    cost: list[int]
    rows: Rows
    integral: NDArray[np.bool_]

    @property
    def size(self) -> int:
        """Number of variables."""
        return len(self.cost)


@frozen
class Answer:
    """What a solve gave: the point (None without one), a proved bound (None: infeasible), whether it ended.

    `effort` is what it took, the same on every machine: simplex iterations times rows; ten million are about a second.
    """

    x: NDArray[np.float64] | None = field(eq=False)
    bound: int | None
    finished: bool
    effort: int = field(default=0, eq=False)


_NOTHING = Answer(x=None, bound=0, finished=False)


def _empty(program: Program) -> Answer:
    """The answer to a programme without variables: rows say 0 <= right-hand side."""
    if any(rhs < 0 for rhs in program.rows.rhs):
        return Answer(x=None, bound=None, finished=True)
    return Answer(x=np.empty(0), bound=0, finished=True)


def solve_relaxed(program: Program, iterations: int = 200_000, *, clock: Clock | None = None) -> Answer:
    """Solve with all variables continuous, for no longer than the clock allows; the bound is exact (from the duals)."""
    if not program.size:
        return _empty(program)
    scaled = _scaled(program, np.arange(program.size), integral=0)
    solver = scaled.loaded()
    status = _run(solver, clock, simplex_iteration_limit=iterations)
    if status in _INFEASIBLE:
        ray = np.asarray(solver.getDualRay()[2])
        for sign in (1.0, -1.0):
            if len(ray) and _exact(program, sign * ray / scaled.row_unit, costs=False) > 0:
                return Answer(x=None, bound=None, finished=True)
        return _NOTHING
    if status not in _ENDED:
        return _NOTHING
    point, duals = scaled.solution(solver)
    if point is None or duals is None:
        return _NOTHING
    bound = _exact(program, duals / scaled.row_unit / scaled.unit, costs=True)
    return Answer(x=point, bound=max(0, bound), finished=status == "kOptimal")


def solve_mixed(program: Program, gap: float = 1e-4, nodes: int = 2000, *, clock: Clock | None = None) -> Answer:
    """Solve with integral variables, no longer than the clock allows; the bound is the dual bound less its tolerance."""
    if not program.integral.any():
        return solve_relaxed(program, clock=clock)
    order = np.argsort(~program.integral, kind="stable")
    scaled = _scaled(program, order, integral=int(program.integral.sum()))
    solver = scaled.loaded()
    status = _run(solver, clock, mip_rel_gap=gap, mip_max_nodes=nodes)
    if status in _INFEASIBLE:
        # Small programmes have been called infeasible wrongly by presolve: ask again without it.
        solver = scaled.loaded()
        status = _run(solver, clock, mip_rel_gap=gap, mip_max_nodes=nodes, presolve="off")
        if status == "kInfeasible":
            return Answer(x=None, bound=None, finished=True)
    if status not in _ENDED:
        return _NOTHING
    info = solver.getInfo()
    bound = 0
    if np.isfinite(info.mip_dual_bound) and info.mip_dual_bound > 0:
        # any cost is an integer, so what is left may be rounded up
        bound = int(np.ceil((info.mip_dual_bound * (1 - MIXED_TOLERANCE) - MIXED_TOLERANCE) / scaled.unit))
    effort = int(info.simplex_iteration_count) * len(program.rows.rhs)
    point = (
        scaled.solution(solver)[0] if np.isfinite(info.mip_gap) else None
    )  # without an incumbent the gap is infinite
    return Answer(x=point, bound=max(0, bound), finished=status == "kOptimal", effort=effort)


@frozen(eq=False)
class _Scaled:
    """A programme as HiGHS gets it: rows divided by their largest coefficient, costs scaled.

    Attributes:
        order: the programme's column of each column.
        matrix, rhs, cost: scaled.
        integral: how many of its first columns are integral.
        row_unit: what each row was divided by.
        unit: what costs were multiplied by.
    """

    order: NDArray[np.int64]
    matrix: sp.csc_matrix
    rhs: NDArray[np.float64]
    cost: NDArray[np.float64]
    integral: int
    row_unit: NDArray[np.float64]
    unit: float

    def loaded(self) -> Any:
        """HiGHS with the programme."""
        with importing():
            import highspy

        model = highspy.HighsModel()
        lp = model.lp_
        lp.num_row_, lp.num_col_ = self.matrix.shape
        lp.col_cost_ = self.cost
        lp.col_lower_, lp.col_upper_ = np.zeros(lp.num_col_), np.ones(lp.num_col_)
        lp.row_lower_, lp.row_upper_ = np.full(lp.num_row_, -highspy.kHighsInf), self.rhs
        lp.a_matrix_.format_ = highspy.MatrixFormat.kColwise
        lp.a_matrix_.start_, lp.a_matrix_.index_ = self.matrix.indptr, self.matrix.indices
        lp.a_matrix_.value_ = self.matrix.data
        if self.integral:
            kinds = highspy.HighsVarType
            lp.integrality_ = [kinds.kInteger] * self.integral + [kinds.kContinuous] * (lp.num_col_ - self.integral)
        solver = highspy.Highs()
        solver.setOptionValue("log_to_console", False)
        solver.passModel(model)
        return solver

    def solution(self, solver: Any) -> tuple[NDArray[np.float64] | None, NDArray[np.float64] | None]:
        """The point in the programme's columns and the multipliers of the rows; None where HiGHS has none that are numbers."""
        solution = solver.getSolution()
        values, duals = np.asarray(solution.col_value), -np.asarray(solution.row_dual)
        point = None
        if len(values) == len(self.order) and np.isfinite(values).all():
            point = np.empty(len(values))
            point[self.order] = values
            point[self.order[: self.integral]] = np.round(values[: self.integral])
        return point, duals if len(duals) == len(self.rhs) and np.isfinite(duals).all() else None


def _scaled(program: Program, order: NDArray[np.int64], integral: int) -> _Scaled:
    rows = program.rows
    raw = sp.csr_matrix((np.array(rows.values, float), (rows.rows, rows.columns)), (len(rows.rhs), program.size))
    largest = np.maximum(1.0, abs(raw).max(axis=1).toarray().ravel()) if raw.nnz else np.ones(len(rows.rhs))
    total = sum(program.cost)
    unit = _SCALE / total if total else 1.0
    return _Scaled(
        order=order,
        matrix=(sp.diags(1.0 / largest) @ raw).tocsc()[:, order],
        rhs=np.array(rows.rhs, float) / largest,
        cost=np.array(program.cost, float)[order] * unit,
        integral=integral,
        row_unit=largest,
        unit=unit,
    )


_INFEASIBLE = ("kInfeasible", "kUnboundedOrInfeasible")
_ENDED = ("kOptimal", "kTimeLimit", "kIterationLimit", "kSolutionLimit")
"""HiGHS has duals and a dual bound at the end, be it that of a limit."""


def _run(solver: Any, clock: Clock | None, **options: Any) -> str:
    """Solve; HiGHS's word for how it ended, or "" where the clock leaves no time."""
    left = math.inf if clock is None else clock.remaining
    if left <= 0:
        return ""
    if left < math.inf:
        options["time_limit"] = left
    for name, value in {"threads": 1, "random_seed": 0, **options}.items():
        solver.setOptionValue(name, value)
    solver.run()
    return str(solver.getModelStatus().name)


def _exact(program: Program, duals: NDArray[np.float64], costs: bool) -> int:
    """The bound that multipliers prove [unit of the costs], rounded up: any cost is an integer at least this."""
    rows = program.rows
    multiplier = [int(max(0.0, float(value)) * (1 << _BITS)) for value in duals]
    reduced = [one << _BITS for one in program.cost] if costs else [0] * program.size
    for row, column, value in zip(rows.rows, rows.columns, rows.values, strict=True):
        if multiplier[row]:
            reduced[column] += value * multiplier[row]
    total = -sum(one * rhs for one, rhs in zip(multiplier, rows.rhs, strict=True))
    total += sum(one for one in reduced if one < 0)
    return -((-total) >> _BITS)
