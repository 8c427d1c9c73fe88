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

from remat.algorithms._core.clock import Clock
from remat.algorithms._milp.answer import EFFORT_RATE, Answer, exact_bound, farkas, less_tolerance
from remat.algorithms._milp.basis import Start
from remat.algorithms._milp.highs import mip_interrupt
from remat.algorithms._milp.linear import Fixings, Linear
from remat.algorithms._milp.scaled import ENDED, INFEASIBLE, Scaled, iterations_of, run

MOST_ITERATIONS = 2**31 - 1
"""Of the simplex method, that HiGHS can be limited to."""

_MIXED = 4000  # effort of an iteration with integers: many short linear programs, and what comes between them


def solve_relaxed(
    linear: Linear,
    effort: float = 1e10,
    *,
    start: Start | None = None,
    clock: Clock | None = None,
    fixed: Fixings | None = None,
) -> Answer:
    """Solve with all variables continuous, within an effort and the clock; the bound is exact (from the duals).

    With a start it begins where that says, and notes where it ended; from nothing after that, if it ended at no optimum. The
    effort is that of both. `fixed`: columns that have a given value.
    """
    if not linear.shape[1]:
        return _empty(linear)
    scaled = Scaled.of(linear, np.zeros_like(linear.integral))
    solver = scaled.loaded(fixed)
    begun = start is not None and start.begin(solver, scaled.order)
    work, vain = Work(len(linear.rhs), start.earlier if start is not None and begun else 0), 0
    status = run(solver, clock, simplex_iteration_limit=work.iterations(effort))
    # only the dual method proves what it proves at a limit, and has rays
    enough = (*ENDED, *INFEASIBLE) if work.earlier else ("kOptimal", "kTimeLimit")
    if begun and status not in enough:
        vain = work.of(iterations_of(solver))
        solver, work = scaled.loaded(fixed), Work(len(linear.rhs), 0)
        status = run(solver, clock, simplex_iteration_limit=work.iterations(effort - vain))
    if start is not None and status == "kOptimal":
        start.end(solver, scaled.order)
    iterations = iterations_of(solver)
    spent, iterations = vain + work.of(iterations), work.earlier + iterations
    if status in INFEASIBLE:
        ray = np.asarray(solver.getDualRay()[2])
        proved = len(ray) > 0 and farkas(linear, ray / scaled.row_unit, fixed=fixed)
        return Answer(infeasible=proved, finished=proved, duals=ray / scaled.row_unit if proved else None, effort=spent)
    if status not in ENDED:
        return Answer(effort=spent)
    point, duals = scaled.solution(solver)
    if point is None or duals is None:
        return Answer(effort=spent)
    multipliers = duals / scaled.row_unit / scaled.unit
    bound = exact_bound(linear, multipliers, fixed=fixed)
    count_effort(clock, spent)
    optimal = status == "kOptimal"
    return Answer(
        point=point, bound=max(0, bound), finished=optimal, duals=multipliers, effort=spent, iterations=iterations
    )


class Work(NamedTuple):
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
        return min(MOST_ITERATIONS, max(1, more))


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
    scaled = Scaled.of(linear, linear.integral)
    limits = {"mip_rel_gap": gap, "mip_max_nodes": nodes, "mip_heuristic_run_root_reduced_cost": dives}
    solver = _limited(scaled.loaded(), checks)
    status = run(solver, clock, **limits)
    if status in INFEASIBLE:
        # Presolve has wrongly reported small formulations as infeasible: solve again without it.
        solver = _limited(scaled.loaded(), checks)
        status = run(solver, clock, **limits, presolve="off")
        if status == "kInfeasible":
            return Answer(infeasible=True, finished=True)
    if status not in ENDED:
        return Answer()
    info = solver.getInfo()
    # without an incumbent the gap is infinite
    point = scaled.solution(solver)[0] if np.isfinite(info.mip_gap) else None
    effort = _MIXED * iterations_of(solver) + 20 * len(linear.rhs)
    count_effort(clock, effort)
    return Answer(
        point=point,
        bound=less_tolerance(info.mip_dual_bound, scaled.unit),
        finished=status == "kOptimal",
        effort=effort,
    )


def count_effort(clock: Clock | None, effort: float) -> None:
    """Let a clock count the effort of a solve."""
    if clock is not None:
        clock.count(effort / EFFORT_RATE)


def _empty(linear: Linear) -> Answer:
    """The answer to a formulation without variables: rows say 0 <= right-hand side."""
    possible = bool((linear.rhs >= 0).all())
    return Answer(point=np.empty(0) if possible else None, infeasible=not possible, finished=True)


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
