"""Linear and mixed programmes over variables in [0, 1], solved by HiGHS through CVXPY, with bounds that are proofs.

A bound of a linear programme is evaluated again from the solver's duals in exact integers: for minimise c·x, A x ≤ b,
0 ≤ x ≤ 1 and any λ ≥ 0, every feasible x costs at least -λ·b + Σ min(0, c + Aᵀλ), whatever the solver's tolerances
were. A bound of a mixed programme is the solver's dual bound, lowered by its tolerance. Solves are limited by nodes
and iterations, and by what a clock with an end has left: then the bound reached so far is returned.
"""

from __future__ import annotations

import math
import warnings
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
    problem, x, scaled = _modelled(program, relaxed=True)
    if not _run(problem, clock, simplex_iteration_limit=iterations):
        return _NOTHING
    unit, row_scale = scaled
    duals = problem.constraints[0].dual_value
    if problem.status in ("infeasible", "infeasible_or_unbounded"):
        for sign in (1.0, -1.0):
            if duals is not None and _exact(program, sign * duals / row_scale, costs=False) > 0:
                return Answer(x=None, bound=None, finished=True)
        return _NOTHING
    if x.value is None or duals is None:
        return _NOTHING
    bound = _exact(program, duals / row_scale / unit, costs=True)
    return Answer(x=np.asarray(x.value), bound=max(0, bound), finished=problem.status == "optimal")


def solve_mixed(program: Program, gap: float = 1e-4, nodes: int = 2000, *, clock: Clock | None = None) -> Answer:
    """Solve with integral variables, no longer than the clock allows; the bound is the dual bound less its tolerance."""
    if not program.integral.any():
        return solve_relaxed(program, clock=clock)
    problem, x, scaled = _modelled(program, relaxed=False)
    if not _run(problem, clock, mip_rel_gap=gap, mip_max_nodes=nodes):
        return _NOTHING
    if problem.status in ("infeasible", "infeasible_or_unbounded"):
        # Small programmes have been called infeasible wrongly by presolve: ask again without it.
        if not _run(problem, clock, mip_rel_gap=gap, mip_max_nodes=nodes, presolve="off"):
            return _NOTHING
        if problem.status == "infeasible":
            return Answer(x=None, bound=None, finished=True)
    info: Any = problem.solver_stats.extra_stats if problem.solver_stats is not None else None
    dual = float(getattr(info, "mip_dual_bound", 0.0)) if info is not None else 0.0
    unit, _ = scaled
    bound = 0
    if np.isfinite(dual) and dual > 0:
        # any cost is an integer, so what is left may be rounded up
        bound = int(np.ceil((dual * (1 - MIXED_TOLERANCE) - MIXED_TOLERANCE) / unit))
    effort = int(getattr(info, "simplex_iteration_count", 0)) * len(program.rows.rhs)
    incumbent = info is not None and np.isfinite(float(getattr(info, "mip_gap", np.inf)))
    point = None
    if incumbent and all(v.value is not None for v in x):
        point = np.empty(program.size)
        point[program.integral] = x[0].value
        if len(x) > 1:
            point[~program.integral] = x[1].value
    return Answer(x=point, bound=max(0, bound), finished=problem.status == "optimal", effort=effort)


def _modelled(program: Program, relaxed: bool) -> Any:
    with importing():
        import cvxpy as cp

    rows = program.rows
    raw = sp.csr_matrix((np.array(rows.values, float), (rows.rows, rows.columns)), (len(rows.rhs), program.size))
    biggest = np.maximum(1.0, abs(raw).max(axis=1).toarray().ravel()) if raw.nnz else np.ones(len(rows.rhs))
    matrix = sp.diags(1.0 / biggest) @ raw
    rhs = np.array(rows.rhs, float) / biggest
    total = sum(program.cost)
    unit = _SCALE / total if total else 1.0
    cost = np.array(program.cost, float) * unit
    if relaxed:
        x = cp.Variable(program.size, bounds=[0, 1])
        problem = cp.Problem(cp.Minimize(cost @ x), [matrix @ x <= rhs])
        return problem, x, (unit, biggest)
    whole, part = np.flatnonzero(program.integral), np.flatnonzero(~program.integral)
    binary = cp.Variable(len(whole), boolean=True)
    columns = sp.csc_matrix(matrix)
    rows_value, cost_value = columns[:, whole] @ binary, cost[whole] @ binary
    variables: tuple[Any, ...] = (binary,)
    if len(part):
        share = cp.Variable(len(part), bounds=[0, 1])
        rows_value, cost_value = rows_value + columns[:, part] @ share, cost_value + cost[part] @ share
        variables = (binary, share)
    problem = cp.Problem(cp.Minimize(cost_value), [rows_value <= rhs])
    return problem, variables, (unit, biggest)


def _run(problem: Any, clock: Clock | None, **options: Any) -> bool:
    """Solve; False when the solver ended without a status that can be read (then nothing is known, and nothing claimed)."""
    with importing():
        import cvxpy as cp

    left = math.inf if clock is None else clock.remaining
    if left <= 0:
        return False
    if left < math.inf:
        options["time_limit"] = left
    with warnings.catch_warnings():
        # a solve that met its limit is announced as inexact; its bound is taken from duals or the dual bound anyway
        warnings.filterwarnings("ignore", message="Solution may be inaccurate")
        try:
            problem.solve(solver=cp.HIGHS, threads=1, random_seed=0, **options)
        except cp.SolverError:
            return False
        except ValueError as error:
            if "invalid solution" not in str(error):
                raise
            return False
    return True


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
