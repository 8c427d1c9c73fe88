"""Mixed-integer rounding cuts of the saved-set formulation: which combinations of its rows are worth rounding.

A memory row is a knapsack over residents. Added to it, size by size, the row that lets a reader find each datum turns it into a
covering knapsack over reruns; added to that, for each fractional rerun, the row that feeds it moves along the chain by which
data are made again, until the reruns of one chain meet in one variable. Rounded by a size, it says how many of the large data
must be made again. A cut is what the checker needs to derive it: multipliers of rows, complemented variables, the divisor.
Source: Marchand and Wolsey, *Aggregation and mixed integer rounding to solve MIPs*, 2001.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from attrs import field, frozen

from remat.algorithms._proving.rows import Floats, Rows
from remat.proof.check import Expr, Key

LINKS = 6
"""Rows of a chain by which reruns are substituted, at most."""

PARTS = (1, 2, 3, 4, 8)
"""Divisors are coefficients over these."""

LEVELS = (0.5, 1e-3, 0.999)
"""Variables above this are complemented."""

PER_COMBINATION = 4

TIGHT, FRACTIONAL, SHALLOW = 1e-6, 1e-5, 1e-3


@frozen(kw_only=True)
class Cut:
    """A rounded combination of rows.

    Attributes:
        document: as it stands in a proof; rows by their number in `Rows`.
        expr: the row it gives, at most 0.
        depth: how far it cuts off the point it was made for.
    """

    document: dict[str, Any]
    expr: Expr
    depth: float


@frozen(eq=False)
class Separation:
    """What is known of the rows beforehand: which of them feed a datum, and which a rerun."""

    rows: Rows
    feeds: dict[Key, list[int]] = field(factory=dict)
    above: list[Expr] = field(factory=list)

    @classmethod
    def of(cls, rows: Rows) -> Separation:
        """Look at all rows."""
        found = cls(rows)
        for i, (fact, expr) in enumerate(zip(rows.facts, rows.exprs, strict=True)):
            for x, a in expr.items():
                if x and _feeds(fact[0], x[0], a):
                    found.feeds.setdefault(x, []).append(i)
        for feeding in found.feeds.values():
            feeding.sort(key=lambda i: (rows.facts[i][0] != "first", i))
        return found

    def cuts(self, point: Floats, made: list[Cut], active: list[int], most: int) -> list[Cut]:
        """Cuts that the point violates, the deepest first.

        Args:
            point: of the relaxed formulation.
            made: cuts so far; they follow the rows in number.
            active: of these, the ones to round again.
            most: how many to return.
        """
        value = {x: float(point[j]) for x, j in self.rows.column.items()}
        self.above[:] = [*self.rows.exprs, *(cut.expr for cut in made)]
        starts = [i for i, fact in enumerate(self.rows.facts) if fact[0] == "mem"]
        known = {frozenset(cut.expr.items()) for cut in made}
        found: dict[frozenset[Any], Cut] = {}
        for start in [*starts, *(len(self.rows.facts) + i for i in active)]:
            for pairs, expr in self._combinations(start, value):
                for cut in self._rounded(pairs, expr, value):
                    key = frozenset(cut.expr.items())
                    if key not in known:
                        found.setdefault(key, cut)
        return sorted(found.values(), key=lambda cut: -cut.depth)[:most]

    def _combinations(self, start: int, value: dict[Key, float]) -> list[tuple[dict[int, int], Expr]]:
        """A row, the same with residents replaced by what feeds readers, and that moved along chains of reruns."""
        pairs, expr = {start: 1}, dict(self.above[start])
        found = [(dict(pairs), dict(expr))]
        fed = [self._substitute(x, pairs, expr, value) for x, a in list(expr.items()) if x and x[0] == "s" and a > 0]
        if any(fed):
            found.append((dict(pairs), dict(expr)))
        for _ in range(LINKS):
            moved = [
                self._substitute(x, pairs, expr, value)
                for x, a in list(expr.items())
                if x and x[0] == "y" and a < 0 and FRACTIONAL < value[x] < 1 - FRACTIONAL
            ]
            if not any(moved):
                break
            found.append((dict(pairs), dict(expr)))
        return found

    def _substitute(self, x: Key, pairs: dict[int, int], expr: Expr, value: dict[Key, float]) -> bool:
        """Add a tight row that cancels a variable; whether there is one."""
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
        made = []
        for depth, by, level in sorted(ranked, reverse=True)[:PER_COMBINATION]:
            flips = [list(x) for x, one in zip(keys, point.tolist(), strict=True) if one > level]
            document = {"rows": [[i, m] for i, m in sorted(pairs.items())], "flip": flips, "by": by}
            made.append(Cut(document=document, expr=self.derived(document), depth=depth))
        return made

    def derived(self, document: dict[str, Any]) -> Expr:
        """The row of a cut, as the checker derives it."""
        return self.rows.formulation.cut(**document, above=self.above)


def _feeds(name: str, variable: str, coefficient: int) -> bool:
    """Whether a row of this name bounds a resident by what feeds its readers, or a rerun by what it reads."""
    if variable == "s":
        return name in ("first", "again", "next") and coefficient < 0
    return variable == "y" and name == "again" and coefficient > 0


def _depths(expr: Expr, keys: list[Key], point: Floats) -> list[tuple[float, int, float]]:
    """How deep the cuts of a combination are, with the divisor and the level above which variables are complemented."""
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
    """Coefficients of fractional variables, and parts of them."""
    fractional = (point > FRACTIONAL) & (point < 1 - FRACTIONAL)
    sizes = {abs(expr[keys[i]]) for i in np.flatnonzero(fractional)}
    return sorted({size // part for size in sizes for part in PARTS} - {0})
