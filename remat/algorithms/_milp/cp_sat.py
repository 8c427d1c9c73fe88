"""`CpSat`: the constraint solver of OR-Tools as a back end, on formulations in exact integers: no scale, no tolerance.

Neither CVXPY nor highspy is needed. OR-Tools and highspy bring different builds of one library, hence exclude each other in a
process: `InChild(CpSat())` gives it one of its own.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any, ClassVar, Final

import numpy as np
from attrs import field, frozen

from remat.algorithms._core.startup import importing
from remat.algorithms._milp.answer import Answer, Floats, less_tolerance
from remat.algorithms._milp.backend import NO_HINTS, Backend, Hints, Limits, below, deferred_interruption, missing
from remat.algorithms._milp.linear import Linear
from remat.algorithms._milp.milp_model import MilpModel
from remat.errors import BackendMissing, BadArgument
from remat.settings import whole

_EXACT: Final = 2.0**53
"""Up to here a float holds every integer."""


@frozen(kw_only=True)
class CpSat(Backend):
    """CP-SAT of OR-Tools. All columns become booleans: those that are integral in some optimum too.

    A limit of nodes counts conflicts. With one thread the same problem has the same answer.

    Attributes:
        threads: workers; each is another strategy.
        seed: of its random choices.
    """

    takes_start: ClassVar[bool] = True

    threads: int = field(default=1, validator=whole(1, "threads"))
    seed: int = field(default=0, validator=whole(0))

    def check(self) -> None:
        """Raise `BackendMissing` when OR-Tools is not installed."""
        if find_spec("ortools") is None:
            raise missing("CP-SAT")

    def solve(self, model: MilpModel, limits: Limits, hints: Hints = NO_HINTS) -> Answer:
        """Solve; see `Backend.solve`.

        Raises:
            BackendMissing: A-BACKEND, when OR-Tools is not installed, or cannot be loaded beside another package's HiGHS.
            BadArgument: A-LIMIT, for a formulation whose columns are not all integral.
        """
        linear = model.linear
        if model.relaxed or not (linear.integral | linear.implied).all():
            what = "CP-SAT has integral columns only, and some of this formulation are continuous."
            raise BadArgument(self.SETTINGS_RULE, what, fix="give another back end, e.g. Highs().")
        self.check()
        cp = _loaded()
        rows = list(_rows(model)) + ([] if hints.cutoff is None else [_cheaper(linear, hints.cutoff)])
        if any(low > high for _, _, low, high in rows):
            answer = Answer(infeasible=True, finished=True, note="CP-SAT: a row holds at no point")
        else:
            problem, columns = _problem(cp, linear, rows, hints.start)
            wrong = problem.validate()
            if wrong:
                return Answer(note=f"CP-SAT: {wrong:.200}")
            answer = self._solved(cp, problem, columns, limits, hints)
        return answer if hints.cutoff is None else below(answer, hints.cutoff, model)

    def _solved(self, cp: Any, problem: Any, columns: list[Any], limits: Limits, hints: Hints) -> Answer:
        solver = cp.CpSolver()
        parameters = solver.parameters
        parameters.num_workers, parameters.random_seed = self.threads, self.seed
        parameters.relative_gap_limit = limits.gap
        parameters.catch_sigint_signal = False
        if math.isfinite(limits.seconds):
            parameters.max_time_in_seconds = max(0.0, limits.seconds)
        if limits.nodes is not None:
            parameters.max_number_of_conflicts = limits.nodes
        if hints.second:
            parameters.cp_model_presolve, parameters.random_seed = False, self.seed + 1
        watch = _Watch(hints, solver)
        if hints.seen is not None:
            solver.best_bound_callback = watch.bounded
        with deferred_interruption(watch.pressed):
            status = solver.solve(problem, watch.callback(cp, columns))
        if watch.interrupted:
            raise KeyboardInterrupt
        word = str(solver.status_name(status))
        feasible = word in ("OPTIMAL", "FEASIBLE")
        return Answer(
            point=np.array([solver.value(column) for column in columns], float) if feasible else None,
            bound=_whole(solver.best_objective_bound) if word != "INFEASIBLE" and problem.has_objective() else 0,
            finished=word == "OPTIMAL",
            infeasible=word == "INFEASIBLE",
            note=f"CP-SAT: {word.lower()}",
        )


def _loaded() -> Any:
    with importing():
        try:
            from ortools.sat.python import cp_model
        except ImportError as error:
            fix = "write InChild(CpSat()): OR-Tools and highspy cannot share a process."
            raise BackendMissing("A-BACKEND", f"OR-Tools cannot be loaded ({error}).", fix=fix) from error
    return cp_model


Row = tuple[list[int], list[int], int, int]
"""Columns, values, and the least and the largest sum that they may have."""


def _problem(cp: Any, linear: Linear, rows: list[Row], start: Floats | None) -> tuple[Any, list[Any]]:
    """The model of CP-SAT, and its columns."""
    problem = cp.CpModel()
    columns = [problem.new_bool_var("") for _ in range(len(linear.cost))]
    for places, values, low, high in rows:
        if places:
            problem.add_linear_constraint(cp.LinearExpr.weighted_sum([columns[c] for c in places], values), low, high)
    priced = np.flatnonzero(linear.cost).tolist()
    if priced:
        problem.minimize(cp.LinearExpr.weighted_sum([columns[c] for c in priced], linear.cost[priced].tolist()))
    if start is not None:
        for column in np.flatnonzero(linear.integral).tolist():
            problem.add_hint(columns[column], round(float(start[column])))
    return problem, columns


def _rows(model: MilpModel) -> Iterator[Row]:
    """The rows that some point breaks. A sum is never below its least value, so that no row is open to one side."""
    linear = model.linear
    order = np.argsort(linear.row, kind="stable")
    starts = np.searchsorted(linear.row[order], np.arange(len(linear.rhs) + 1)).tolist()
    for row, (right, equal) in enumerate(zip(model.right.tolist(), linear.equal.tolist(), strict=True)):
        entries = order[starts[row] : starts[row + 1]]
        places, values = linear.col[entries].tolist(), linear.val[entries].tolist()
        least = sum(value for value in values if value < 0)
        most = sum(value for value in values if value > 0)
        if equal:
            yield places, values, max(least, right), min(most, right)
        elif most > right:
            yield places, values, least, right


def _cheaper(linear: Linear, cutoff: float) -> Row:
    """The row that only points below the cut-off keep."""
    priced = np.flatnonzero(linear.cost)
    return priced.tolist(), linear.cost[priced].tolist(), 0, math.ceil(cutoff) - 1


def _whole(value: float) -> int:
    """A bound of CP-SAT, which is an integer given as a float."""
    return max(0, round(value)) if abs(value) < _EXACT else less_tolerance(value, 1.0)


class _Watch:
    """Listens to CP-SAT: passes on incumbents and bounds, and stops it on request or at Ctrl-C."""

    def __init__(self, hints: Hints, solver: Any) -> None:
        self.hints, self.solver = hints, solver
        self.interrupted = False

    def pressed(self) -> None:
        """Ctrl-C."""
        self.interrupted = True
        self.solver.stop_search()

    def bounded(self, bound: float) -> None:
        """A better bound."""
        self._tell(None, bound)

    def _tell(self, point: Floats | None, bound: float) -> None:
        if self.hints.seen is not None and self.hints.seen(point, _whole(bound)):
            self.solver.stop_search()

    def callback(self, cp: Any, columns: list[Any]) -> Any:
        """CP-SAT's listener to incumbents."""
        tell = self._tell

        class Incumbents(cp.CpSolverSolutionCallback):  # type: ignore[misc]
            def on_solution_callback(self) -> None:
                tell(np.array([self.value(column) for column in columns], float), self.best_objective_bound)

        return Incumbents()
