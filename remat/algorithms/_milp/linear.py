"""Linear and mixed-integer formulations as data, in exact integers: columns, rows, and a budget that stays a parameter.

Rows read `A x <= b + budget * B + save * S` (or `=`), with x in [0, 1]. Every formulation of this library is built here.
Scaling for a solver is done elsewhere (`direct.py`, `milp_model.py`), so that bounds can be evaluated again from here in
exact integers (`answer.py`).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
from attrs import field, frozen
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]

_LOOSE = 1 << 62  # a right-hand side that no row of 64-bit coefficients reaches


@frozen(kw_only=True)
class Linear:
    """Minimize cost·x over rows, x in [0, 1], x integral where `integral` is set.

    Attributes:
        cost: per column [ns].
        integral: per column, to be declared integral.
        implied: per column, integral in some optimum whenever the integral ones are.
        row, col, val: entries of A; each (row, col) at most once.
        rhs: per row, without the budgets.
        budget, save: per row, 1 where the budget (save budget) belongs to the right-hand side, else 0.
        equal: per row, whether it is an equation.
    """

    cost: Ints = field(eq=False)
    integral: Flags = field(eq=False)
    implied: Flags = field(eq=False)
    row: Ints = field(eq=False)
    col: Ints = field(eq=False)
    val: Ints = field(eq=False)
    rhs: Ints = field(eq=False)
    budget: Ints = field(eq=False)
    save: Ints = field(eq=False)
    equal: Flags = field(eq=False)

    @property
    def shape(self) -> tuple[int, int]:
        """Rows, columns."""
        return len(self.rhs), len(self.cost)

    def right(self, budget: int = 0, save: int = 0) -> Ints:
        """The right-hand side under budgets."""
        return self.rhs + budget * self.budget + save * self.save


class Fixings(NamedTuple):
    """Columns that have a given value.

    Attributes:
        columns: each once. values: 0 or 1 of each.
    """

    columns: Ints
    values: Ints


def _right(rhs: list[int]) -> Ints:
    """Right-hand sides as numbers of 64 bits; those that no row reaches are made smaller."""
    loose = max(rhs, default=0) > _LOOSE
    return np.array([min(of_row, _LOOSE) for of_row in rhs] if loose else rhs, np.int64)


class Builder:
    """Collects columns and rows; entries come as scalars, lists or arrays."""

    def __init__(self) -> None:
        self._cost: list[int] = []
        self._integral: list[bool] = []
        self._implied: list[bool] = []
        self._parts: list[tuple[Any, Any, Any]] = []
        self._rhs: list[int] = []
        self._equal: list[bool] = []
        self._budget: list[int] = []
        self._save: list[int] = []
        self._terms: tuple[list[int], list[int], list[int]] = ([], [], [])

    @property
    def columns(self) -> int:
        """Columns so far."""
        return len(self._cost)

    def new(self, count: int, *, cost: int | Ints = 0, integral: bool | Flags = False, implied: bool = False) -> int:
        """Add columns; returns the first. Costs and flags may be of each."""
        first = len(self._cost)
        self._cost += [cost] * count if isinstance(cost, int) else cost.tolist()
        self._integral += [integral] * count if isinstance(integral, bool) else integral.tolist()
        self._implied += [implied] * count
        return first

    def rows(self, count: int, rhs: int | Ints = 0, *, equal: bool = False, budget: int = 0, save: int = 0) -> int:
        """Add rows, to be filled by `entries`; returns the first. Right-hand sides may be of each."""
        first = len(self._rhs)
        self._rhs += [rhs] * count if isinstance(rhs, int) else rhs.tolist()
        self._equal += [equal] * count
        self._budget += [budget] * count
        self._save += [save] * count
        return first

    def entries(self, rows: Any, columns: Any, values: Any) -> None:
        """Add entries; the three broadcast against each other."""
        r, c, v = np.broadcast_arrays(np.asarray(rows, np.int64), columns, values)
        self.flat_entries(r.ravel(), c.ravel(), v.ravel())

    def flat_entries(self, rows: Ints, columns: Ints, values: Ints) -> None:
        """Add entries given as arrays of one length: in a formulation of thousands of short ones the rest takes as long again."""
        self._parts.append((rows, columns, values))

    def row(self, terms: Iterable[tuple[int, int]], rhs: int = 0, *, equal: bool = False) -> int:
        """Add one row of (column, value) terms: sum at most (or equal to) `rhs`."""
        at = self.rows(1, rhs, equal=equal)
        for column, value in terms:
            self._terms[0].append(at)
            self._terms[1].append(column)
            self._terms[2].append(value)
        return at

    def add_rhs(self, rows: Ints, values: Ints | int) -> None:
        """Add to right-hand sides."""
        for row, value in zip(rows.tolist(), np.broadcast_to(values, rows.shape).tolist(), strict=True):
            self._rhs[row] += value

    def build(self) -> Linear:
        """The formulation; entries of one place are added up."""
        terms = [np.array(items, np.int64) for items in self._terms]
        row, col, val = (
            np.concatenate([*(part[i] for part in self._parts), terms[i]]).astype(np.int64, copy=False)
            for i in range(3)
        )
        if len(col) and not 0 <= col.min() <= col.max() < len(self._cost):
            raise IndexError(f"an entry of column {col.min()} or {col.max()}, of {len(self._cost)} columns.")
        key = row * max(1, len(self._cost)) + col
        order = np.argsort(key, kind="stable")
        key, row, col, val = key[order], row[order], col[order], val[order]
        starts = np.flatnonzero(np.diff(key, prepend=-1))
        val = np.add.reduceat(val, starts) if len(starts) else val
        row, col = row[starts], col[starts]
        keep = val != 0
        return Linear(
            cost=np.array(self._cost, np.int64),
            integral=np.array(self._integral, np.bool_),
            implied=np.array(self._implied, np.bool_),
            row=row[keep],
            col=col[keep],
            val=val[keep],
            rhs=_right(self._rhs),
            budget=np.array(self._budget, np.int64),
            save=np.array(self._save, np.int64),
            equal=np.array(self._equal, np.bool_),
        )
