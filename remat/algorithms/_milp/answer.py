"""The answer of a solve: bounds of mixed-integer solvers less their tolerance, and bounds proved from duals.

For minimize c·x, A x <= b (or =), 0 <= x <= 1 and any multipliers m, of the right sign on inequalities, every feasible x costs at
least -m·b + sum min(0, c + Aᵀm), whatever the tolerances were under which m was found. It is evaluated here in exact integers.
"""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np
from attrs import field, frozen
from numpy.typing import NDArray

from remat.algorithms._milp.basis import DualBasis
from remat.algorithms._milp.linear import Fixings, Linear

Floats = NDArray[np.float64]

MIP_TOLERANCE: Final = 1e-5
"""Taken off a mixed bound, relative and absolute [of the scaled objective]: feasibility tolerances are 1e-6 in scaled rows, 1e-7
in reduced costs. Where some costs are 10^9 times others, the absolute part leaves nothing proved of the latter."""

EFFORT_RATE: Final = 1e7
"""Effort of solves that takes about a second."""

_BITS = 60  # exact evaluations count in units of 2**-60


@frozen(kw_only=True)
class Answer:
    """The result of a solve, and what is known of it.

    Attributes:
        point: the incumbent, in the columns of the formulation; None: there is none.
        bound: of the objective [ns]: the solver's less its tolerance, or proved from its duals; 0: none.
        finished: it stopped because the gap was reached, not at a limit.
        infeasible: there is no point. Of a back end: the result of one solve, hence no proof; of `solve_relaxed` and
            `solve_mixed`: proved by a ray, or confirmed by a second solve.
        exhausted: it finished without a point below the cut-off; `bound` is the cut-off then, less the tolerance.
        duals: of an LP: multipliers of its rows [ns per unit]; of an infeasible one: a ray.
        note: the solver's status.
        effort: the same on every machine; ten million are about a second. Of a relaxation a third of the square of its simplex
            iterations and ten times its rows (.9 to 1.2 s); from a basis a fifth of them times all that led there, and 20
            times its rows; with integers 4,000 an iteration and 20 times its rows (.3 to 2 s, seldom up to 6).
        iterations: of the simplex method, of a relaxation, with those that led to the basis from which it began.
        basis: knows where the dual method ended, where that was asked for.
    """

    point: Floats | None = field(default=None, eq=False)
    bound: int = 0
    finished: bool = False
    infeasible: bool = False
    exhausted: bool = False
    duals: Floats | None = field(default=None, eq=False)
    note: str = ""
    effort: int = field(default=0, eq=False)
    iterations: int = field(default=0, eq=False)
    basis: DualBasis | None = field(default=None, eq=False)


def less_tolerance(value: float, unit: float) -> int:
    """A mixed-integer solver's bound less its tolerance, rounded up: costs are integers [ns].

    Args:
        value: the solver's bound; one that is not finite or not positive gives 0.
        unit: solver's objective per nanosecond.
    """
    if not math.isfinite(value) or value <= 0:
        return 0
    return max(0, math.ceil((value * (1 - MIP_TOLERANCE) - MIP_TOLERANCE) / unit))


def exact_bound(
    linear: Linear,
    duals: Floats,
    budget: int = 0,
    save: int = 0,
    *,
    costs: bool = True,
    fixed: Fixings | None = None,
) -> int:
    """The bound that multipliers prove, rounded up [ns]: every point of the formulation costs at least this.

    For rows A x <= b with multipliers m >= 0 (any sign for equations) and 0 <= x <= 1: c·x >= -m·b + sum min(0, c + Aᵀm).

    Args:
        linear: the formulation.
        duals: a multiplier per row, of any quality.
        budget: bytes.
        save: bytes.
        costs: False: leave the costs out; a positive value then proves that there is no point.
        fixed: columns of which only one value is asked for.
    """
    raised = np.where(linear.equal, duals, np.maximum(duals, 0.0))
    multiplier, given = _zeros(len(raised)), np.flatnonzero(raised)
    multiplier[given] = [int(value * (1 << _BITS)) for value in raised[given].tolist()]
    reduced = linear.cost.astype(object) << _BITS if costs else _zeros(len(linear.cost))
    touched = np.flatnonzero(raised[linear.row])
    products = linear.val[touched].astype(object) * multiplier[linear.row[touched]]
    np.add.at(reduced, linear.col[touched], products)
    right = linear.right(budget, save)[given].astype(object)
    total = -int((multiplier[given] * right).sum())
    if fixed is not None:
        total += int((reduced[fixed.columns] * fixed.values).sum())
        reduced[fixed.columns] = 0
    total += sum(cost for cost in reduced.tolist() if cost < 0)
    return int(-((-total) >> _BITS))


def farkas(linear: Linear, ray: Floats | None, budget: int = 0, *, fixed: Fixings | None = None) -> bool:
    """Whether a ray proves, exactly, that the formulation has no point."""
    return ray is not None and any(
        exact_bound(linear, sign * ray, budget, costs=False, fixed=fixed) > 0 for sign in (1.0, -1.0)
    )


def _zeros(count: int) -> Any:
    zeros = np.empty(count, object)
    zeros[:] = 0
    return zeros
