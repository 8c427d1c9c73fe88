"""Formulations given to HiGHS without a modelling layer in between, with bounds that are proofs.

A bound of a relaxation is evaluated again from the solver's duals in exact integers (`exact_bound`). A bound of a
mixed-integer formulation is the solver's dual bound, less its tolerance. Solves are limited by nodes, iterations and checks, and
by what a clock with an end has left: then the bound reached so far is returned.
"""

from __future__ import annotations

import math
from itertools import count
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
from attrs import frozen
from numpy.typing import NDArray

from remat.algorithms._core.clock import Clock
from remat.algorithms._milp.answer import EFFORT_RATE, Answer, Floats, exact_bound, farkas, less_tolerance
from remat.algorithms._milp.basis import Start
from remat.algorithms._milp.highs import loaded, mip_interrupt
from remat.algorithms._milp.linear import Flags, Linear

_SCALE = 1000.0  # the objective is scaled so that all costs sum to this
_MOST = 2**31 - 1  # iterations that HiGHS can be limited to
_MIXED = 4000  # effort of an iteration with integers: many short linear programs, and what comes between them


def solve_relaxed(
    linear: Linear, effort: float = 1e10, *, start: Start | None = None, clock: Clock | None = None
) -> Answer:
    """Solve with all variables continuous, within an effort and the clock; the bound is exact (from the duals).

    With a start it begins where that says, and notes where it ended. Then the effort is that of the last of two solves, if the
    optimum was not found from there.
    """
    if not linear.shape[1]:
        return _empty(linear)
    scaled = _Scaled.of(linear, np.zeros_like(linear.integral))
    solver = scaled.loaded()
    begun = start is not None and start.begin(solver, scaled.order)
    work = _Work(len(linear.rhs), start.earlier if start is not None and begun else 0)
    status = _run(solver, clock, simplex_iteration_limit=work.iterations(effort))
    # only the dual method proves what it proves at a limit, and has rays
    enough = (*_ENDED, *_INFEASIBLE) if work.earlier else ("kOptimal", "kTimeLimit")
    if begun and status not in enough:
        solver, work = scaled.loaded(), _Work(len(linear.rhs), 0)
        status = _run(solver, clock, simplex_iteration_limit=work.iterations(effort))
    if start is not None and status == "kOptimal":
        start.end(solver, scaled.order)
    iterations = max(0, int(solver.getInfo().simplex_iteration_count))
    spent, iterations = work.of(iterations), work.earlier + iterations
    if status in _INFEASIBLE:
        ray = np.asarray(solver.getDualRay()[2])
        proved = len(ray) > 0 and farkas(linear, ray / scaled.row_unit)
        return Answer(infeasible=proved, finished=proved, duals=ray / scaled.row_unit if proved else None, effort=spent)
    if status not in _ENDED:
        return Answer()
    point, duals = scaled.solution(solver)
    if point is None or duals is None:
        return Answer()
    multipliers = duals / scaled.row_unit / scaled.unit
    bound = exact_bound(linear, multipliers)
    _count(clock, spent)
    optimal = status == "kOptimal"
    return Answer(
        point=point, bound=max(0, bound), finished=optimal, duals=multipliers, effort=spent, iterations=iterations
    )


class _Work(NamedTuple):
    """What iterations of the simplex method cost, in units of effort: the more, the more there were before them.

    Attributes:
        rows: of the formulation.
        earlier: iterations after which the basis was reached from which it begins; 0: it begins from nothing.
    """

    rows: int
    earlier: int

    @property
    def _fixed(self) -> int:
        return (20 if self.earlier else 10) * self.rows

    def of(self, iterations: int) -> int:
        """The effort of so many."""
        return self._fixed + (iterations * (self.earlier + iterations) // 5 if self.earlier else iterations**2 // 3)

    def iterations(self, effort: float) -> int:
        """How many an effort allows, at least one."""
        left = max(0, int(effort) - self._fixed)
        more = (math.isqrt(self.earlier**2 + 20 * left) - self.earlier) // 2 if self.earlier else math.isqrt(3 * left)
        return min(_MOST, max(1, more))


def solve_mixed(
    linear: Linear,
    gap: float = 1e-4,
    nodes: int = 2000,
    *,
    checks: int | None = None,
    dives: bool = True,
    clock: Clock | None = None,
) -> Answer:
    """Solve with integral variables, no longer than the clock allows; the bound is the dual bound less its tolerance.

    Args:
        linear: the formulation.
        gap: relative gap at which it counts as solved.
        nodes: of the branch-and-bound tree.
        checks: how often HiGHS may ask whether to stop before it does; it asks about once per linear program, at the root and in
            strong branching, so that a node of a large formulation cannot take for ever. None: it is not limited.
        dives: whether HiGHS looks for a solution near that of the root by a search that does not ask: half of a brief solve.
        clock: ends the solve too.
    """
    if not linear.integral.any():
        return solve_relaxed(linear, clock=clock)
    scaled = _Scaled.of(linear, linear.integral)
    limits = {"mip_rel_gap": gap, "mip_max_nodes": nodes, "mip_heuristic_run_root_reduced_cost": dives}
    solver = _limited(scaled.loaded(), checks)
    status = _run(solver, clock, **limits)
    if status in _INFEASIBLE:
        # Presolve has wrongly reported small formulations as infeasible: solve again without it.
        solver = _limited(scaled.loaded(), checks)
        status = _run(solver, clock, **limits, presolve="off")
        if status == "kInfeasible":
            return Answer(infeasible=True, finished=True)
    if status not in _ENDED:
        return Answer()
    info = solver.getInfo()
    # without an incumbent the gap is infinite
    point = scaled.solution(solver)[0] if np.isfinite(info.mip_gap) else None
    effort = _MIXED * max(0, int(info.simplex_iteration_count)) + 20 * len(linear.rhs)
    _count(clock, effort)
    return Answer(
        point=point,
        bound=less_tolerance(info.mip_dual_bound, scaled.unit),
        finished=status == "kOptimal",
        effort=effort,
    )


def _count(clock: Clock | None, effort: float) -> None:
    if clock is not None:
        clock.count(effort / EFFORT_RATE)


def _empty(linear: Linear) -> Answer:
    """The answer to a formulation without variables: rows say 0 <= right-hand side."""
    possible = bool((linear.rhs >= 0).all())
    return Answer(point=np.empty(0) if possible else None, infeasible=not possible, finished=True)


@frozen(eq=False)
class _Scaled:
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
    def of(cls, linear: Linear, integral: Flags) -> _Scaled:
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

    def loaded(self) -> Any:
        """HiGHS with the formulation."""
        return loaded(self.matrix, self.cost, self.right, self.equal, self.integral)

    def solution(self, solver: Any) -> tuple[Floats | None, Floats | None]:
        """The point in the formulation's columns and the multipliers of the rows; None where HiGHS has none that are numbers."""
        solution = solver.getSolution()
        values, duals = np.asarray(solution.col_value), -np.asarray(solution.row_dual)
        point = None
        if len(values) == len(self.order) and np.isfinite(values).all():
            point = np.empty(len(values))
            point[self.order] = np.where(self.integral, np.round(values), values)
        return point, duals if len(duals) == len(self.right) and np.isfinite(duals).all() else None


_INFEASIBLE = ("kInfeasible", "kUnboundedOrInfeasible")
_ENDED = ("kOptimal", "kTimeLimit", "kIterationLimit", "kSolutionLimit", "kInterrupt")
"""Ends at which HiGHS has duals and a dual bound, limits included."""


def _limited(solver: Any, checks: int | None) -> Any:
    """The solver, which stops when it has asked so often; the searches of its heuristics, which do not ask, are left out."""
    if checks is None:
        return solver
    for heuristic in ("mip_heuristic_run_rens", "mip_heuristic_run_rins"):
        solver.setOptionValue(heuristic, False)
    asked = count(1)

    def stop(_kind: Any, _message: str, _state: Any, reply: Any, _data: Any) -> None:
        reply.user_interrupt = next(asked) >= checks

    solver.setCallback(stop, None)
    solver.startCallback(mip_interrupt())
    return solver


def _run(solver: Any, clock: Clock | None, **options: Any) -> str:
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
