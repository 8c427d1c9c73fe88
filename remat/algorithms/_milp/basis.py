"""Where the simplex method ended on a formulation, by the names of its columns and rows: a start for one much like it."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

from remat.algorithms._milp.linear import Ints

_SHARED = 0.9  # of columns and rows that the other formulation must have too, or the method starts from nothing

_FROM_HERE = {"simplex_strategy": 4, "primal_simplex_bound_perturbation_multiplier": 0.0}
"""The primal method: such a basis often has a feasible point, and seldom an optimal one. Bounds perturbed would lead it away."""


class Basis:
    """The status of each column and row after a solve, by name.

    Of formulations that are solved one after the other, as those of neighbouring instants, each can begin where the one before
    it ended: two to five times faster than from nothing, with the same optimum.
    """

    def __init__(self, columns: Sequence[Hashable], rows: Sequence[Hashable], before: Basis | None = None) -> None:
        """The names of a formulation's columns and rows, each once, and where the one before it ended."""
        self._names = columns, rows
        self._before: Basis | None = before
        self._ended: tuple[dict[Hashable, Any], dict[Hashable, Any]] | None = None

    def begin(self, solver: Any, order: Ints) -> bool:
        """Let HiGHS begin where the formulation before it ended, if it shares enough; whether it does.

        Args:
            solver: HiGHS, with the formulation loaded.
            order: the formulation's column of each of its columns.
        """
        before, self._before = self._before, None
        if before is None or before._ended is None:
            return False
        import highspy

        names = [self._names[0][column] for column in order.tolist()], self._names[1]
        statuses = [[ended.get(name) for name in part] for part, ended in zip(names, before._ended, strict=True)]
        if any(sum(status is not None for status in part) < _SHARED * len(part) for part in statuses):
            return False
        absent = highspy.HighsBasisStatus.kLower, highspy.HighsBasisStatus.kBasic
        filled = [[new if old is None else old for old in part] for part, new in zip(statuses, absent, strict=True)]
        basis = highspy.HighsBasis()
        basis.col_status, basis.row_status = filled
        basis.valid = basis.alien = True  # it may have too many or too few basic ones, or dependent columns
        if solver.setBasis(basis) != highspy.HighsStatus.kOk:
            return False
        for name, value in _FROM_HERE.items():
            solver.setOptionValue(name, value)
        return True

    def end(self, solver: Any, order: Ints) -> None:
        """Note where HiGHS ended; `order` as in `begin`."""
        basis = solver.getBasis()
        columns, rows = self._names
        names = [columns[column] for column in order.tolist()]
        self._ended = dict(zip(names, basis.col_status, strict=True)), dict(zip(rows, basis.row_status, strict=True))
