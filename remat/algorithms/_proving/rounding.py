"""Mixed-integer rounding cuts of the saved-set formulation: which combinations of its rows are worth rounding.

A memory row is a knapsack over resident data. Adding, for each datum, the row by which a reader finds it (times the size) turns
it into a covering knapsack over reruns. Adding, for each fractional rerun, the row that feeds it substitutes reruns along the
chain of recomputation, until the reruns of a chain meet in one variable. Rounded by a size, the result states how many of the
large data must be recomputed. A cut is stored as the checker derives it: multipliers of rows, complemented variables, divisor.
Source: Marchand and Wolsey, *Aggregation and mixed integer rounding to solve MIPs*, 2001.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from attrs import field, frozen

from remat.algorithms._proving.rows import Floats, Rows
from remat.proof.check import Expr, Key

LINKS = 6
"""Most rows of a chain by which reruns are substituted."""

PARTS = (1, 2, 3, 4, 8)
"""Divisors are coefficients divided by these."""

LEVELS = (0.5, 1e-3, 0.999)
"""Variables above this are complemented."""

PER_COMBINATION = 4

TIGHT, FRACTIONAL, SHALLOW = 1e-6, 1e-5, 1e-3


@frozen(kw_only=True)
class Cut:
    """A rounded combination of rows.

    Attributes:
        document: its form in a proof; rows by their number in `Rows`.
        expr: the resulting row, at most 0.
        depth: its violation at the point it was separated from.
    """

    document: dict[str, Any]
    expr: Expr
    depth: float


@frozen(eq=False)
class Separation:
    """Separation of cuts; which rows feed a datum and which a rerun is computed beforehand."""

    rows: Rows
    feeds: dict[Key, list[int]] = field(factory=dict)
    above: list[Expr] = field(factory=list)

    @classmethod
    def of(cls, rows: Rows) -> Separation:
        """Classify all rows."""
        separation = cls(rows)
        for i, (fact, expr) in enumerate(zip(rows.facts, rows.exprs, strict=True)):
            for x, a in expr.items():
                if x and _feeds(fact[0], x[0], a):
                    separation.feeds.setdefault(x, []).append(i)
        for feeding in separation.feeds.values():
            feeding.sort(key=lambda i: (rows.facts[i][0] not in ("first", "runs"), i))
        return separation

    def cuts(self, point: Floats, earlier: list[Cut], active: list[int], most: int) -> list[Cut]:
        """Cuts that the point violates, the deepest first.

        Args:
            point: of the relaxed formulation.
            earlier: cuts so far; their numbers follow those of the rows.
            active: indices of the cuts among them to round again.
            most: number of cuts to return.
        """
        value = {x: float(point[j]) for x, j in self.rows.column.items()}
        self.above[:] = [*self.rows.exprs, *(cut.expr for cut in earlier)]
        starts = [i for i, fact in enumerate(self.rows.facts) if fact[0] == "mem"]
        seen = {frozenset(cut.expr.items()) for cut in earlier}
        fresh: dict[frozenset[Any], Cut] = {}
        for start in [*starts, *(len(self.rows.facts) + i for i in active)]:
            for pairs, expr in self._combinations(start, value):
                for cut in self._rounded(pairs, expr, value):
                    key = frozenset(cut.expr.items())
                    if key not in seen:
                        fresh.setdefault(key, cut)
        return sorted(fresh.values(), key=lambda cut: -cut.depth)[:most]

    def _combinations(self, start: int, value: dict[Key, float]) -> list[tuple[dict[int, int], Expr]]:
        """A row, the row with residents substituted by what feeds their readers, and that one moved along chains of reruns."""
        pairs, expr = {start: 1}, dict(self.above[start])
        combinations = [(dict(pairs), dict(expr))]
        fed = [self._substitute(x, pairs, expr, value) for x, a in list(expr.items()) if x and x[0] == "s" and a > 0]
        if any(fed):
            combinations.append((dict(pairs), dict(expr)))
        for _ in range(LINKS):
            moved = [
                self._substitute(x, pairs, expr, value)
                for x, a in list(expr.items())
                if x and x[0] == "y" and a < 0 and FRACTIONAL < value[x] < 1 - FRACTIONAL
            ]
            if not any(moved):
                break
            combinations.append((dict(pairs), dict(expr)))
        return combinations

    def _substitute(self, x: Key, pairs: dict[int, int], expr: Expr, value: dict[Key, float]) -> bool:
        """Add a tight row that cancels a variable; returns whether there is one."""
        a = expr.get(x, 0)
        for i in self.feeds.get(x, ()):
            row = self.rows.exprs[i]
            if a * row[x] < 0 and -sum(b * value[y] if y else b for y, b in row.items()) < TIGHT:
                factor = abs(a)  # coefficients of fed variables are 1 and -1
                pairs[i] = pairs.get(i, 0) + factor
                for y, b in row.items():
                    expr[y] = expr.get(y, 0) + factor * b
                    if not expr[y]:
                        del expr[y]
                return True
        return False

    def _rounded(self, pairs: dict[int, int], expr: Expr, value: dict[Key, float]) -> list[Cut]:
        """The deepest cuts of one combination over its divisors and complements."""
        keys = [x for x in expr if x]
        point = np.array([value[x] for x in keys])
        ranked = _depths(expr, keys, point)
        cuts = []
        for depth, by, level in sorted(ranked, reverse=True)[:PER_COMBINATION]:
            flips = [list(x) for x, at in zip(keys, point.tolist(), strict=True) if at > level]
            document = {"rows": [[i, m] for i, m in sorted(pairs.items())], "flip": flips, "by": by}
            cuts.append(Cut(document=document, expr=self.derived(document), depth=depth))
        return cuts

    def derived(self, document: dict[str, Any]) -> Expr:
        """The row of a cut, as the checker derives it."""
        return self.rows.formulation.cut(**document, above=self.above)


def _feeds(name: str, variable: str, coefficient: int) -> bool:
    """Whether a row of this name bounds a resident by what feeds its readers, or a rerun by what it reads."""
    if variable == "s":
        return name in ("first", "again", "runs", "next") and coefficient < 0
    return variable == "y" and name in ("again", "runs") and coefficient > 0


def _depths(expr: Expr, keys: list[Key], point: Floats) -> list[tuple[float, int, float]]:
    """Depths of the cuts of a combination, with the divisor and the level above which variables are complemented."""
    plain = np.array([float(expr[x]) for x in keys])
    divisors = _divisors(expr, keys, point)
    ranked = []
    for level in LEVELS:
        flip = point > level
        a, x = np.where(flip, -plain, plain), np.where(flip, 1 - point, point)
        b = -float(expr.get((), 0)) - plain[flip].sum()
        for by in divisors:
            quotient, share = divmod(b / by, 1.0)
            if not FRACTIONAL < share < 1 - FRACTIONAL:
                continue
            whole = np.floor(a / by)
            rounded = whole + np.maximum(0.0, a / by - whole - share) / (1 - share)
            depth = (float(rounded @ x) - quotient) / max(1e-9, float(np.linalg.norm(rounded)))
            if depth > SHALLOW:
                ranked.append((depth, by, level))
    return ranked


def _divisors(expr: Expr, keys: list[Key], point: Floats) -> list[int]:
    """Coefficients of fractional variables, and fractions of them."""
    fractional = (point > FRACTIONAL) & (point < 1 - FRACTIONAL)
    sizes = {abs(expr[keys[i]]) for i in np.flatnonzero(fractional)}
    return sorted({size // part for size in sizes for part in PARTS} - {0})
