"""Mixed-integer rounding cuts of the saved-set formulation: which combinations of its rows are worth rounding.

A memory row is a knapsack over residents. Added to it, size by size, the row that lets a reader find each datum turns it into a
covering knapsack over reruns; added to that, for each fractional rerun, the row that feeds it moves along the chain by which data are
made again, until the reruns of one chain meet in one variable. Rounded by a size, it says how many of the large data must be
made again. A cut is what the checker needs to derive it: multipliers of rows, complemented variables, the divisor.
Source: Marchand and Wolsey, *Aggregation and mixed integer rounding to solve MIPs*, 2001.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from attrs import field, frozen

from remat.algorithms._proving.rows import Floats, Rows
from remat.proof.check import Expr, Key, added

LINKS = 6
"""Rows of a chain by which reruns are substituted, at most."""

PARTS = (1, 2, 3, 4, 8)
"""Divisors are coefficients over these."""

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

    @classmethod
    def of(cls, rows: Rows) -> Separation:
        """Look at all rows."""
        found = cls(rows)
        for i, (fact, expr) in enumerate(zip(rows.facts, rows.exprs, strict=True)):
            for x, a in expr.items():
                if (fact[0] in ("first", "again", "next") and x and x[0] == "s" and a < 0) or (
                    fact[0] == "again" and x and x[0] == "y" and a > 0
                ):
                    found.feeds.setdefault(x, []).append(i)
        return found

    def cuts(self, point: Floats, most: int) -> list[Cut]:
        """Cuts that the point violates, the deepest first, at most one of each combination and divisor."""
        value = {x: float(point[j]) for x, j in self.rows.column.items()}
        found: dict[frozenset[Any], Cut] = {}
        for i, fact in enumerate(self.rows.facts):
            if fact[0] != "mem":
                continue
            for pairs, expr in self._combinations(i, value):
                for cut in self._rounded(pairs, expr, value):
                    key = frozenset(cut.expr.items())
                    if key not in found:
                        found[key] = cut
        return sorted(found.values(), key=lambda cut: -cut.depth)[:most]

    def _combinations(self, memory: int, value: dict[Key, float]) -> list[tuple[dict[int, int], Expr]]:
        """The memory row, the same with residents replaced by what feeds readers, and that moved along chains of reruns."""
        pairs, expr = {memory: 1}, dict(self.rows.exprs[memory])
        found = [(dict(pairs), dict(expr))]
        for x in [x for x, a in expr.items() if x and x[0] == "s" and a > 0]:
            self._substitute(x, pairs, expr, value)
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
                total = added((1, expr), (factor, row))
                expr.clear()
                expr.update({y: b for y, b in total.items() if b})
                return True
        return False

    def _rounded(self, pairs: dict[int, int], expr: Expr, value: dict[Key, float]) -> list[Cut]:
        """The deepest cuts of one combination over its divisors."""
        keys = [x for x in expr if x]
        at = np.array([value[x] for x in keys])
        a = np.array([float(expr[x]) for x in keys])
        flip = at > 0.5
        b = -float(expr.get((), 0)) - a[flip].sum()
        a, at = np.where(flip, -a, a), np.where(flip, 1 - at, at)
        sizes = {abs(expr[x]) for x, one in zip(keys, at.tolist(), strict=True) if one > FRACTIONAL}
        divisors = sorted({size // part for size in sizes for part in PARTS} - {0})
        ranked = []
        for by in divisors:
            quotient, share = divmod(b / by, 1.0)
            if not FRACTIONAL < share < 1 - FRACTIONAL:
                continue
            whole = np.floor(a / by)
            rounded = whole + np.maximum(0.0, a / by - whole - share) / (1 - share)
            depth = (float(rounded @ at) - quotient) / max(1e-9, float(np.linalg.norm(rounded)))
            ranked.append((depth, by))
        best = [(depth, by) for depth, by in sorted(ranked, reverse=True)[:2] if depth > SHALLOW]
        flips = [list(x) for x, one in zip(keys, flip.tolist(), strict=True) if one]
        made = []
        for depth, by in best:
            document = {"rows": [[i, m] for i, m in sorted(pairs.items())], "flip": flips, "by": by}
            made.append(Cut(document=document, expr=self.derived(document), depth=depth))
        return made

    def derived(self, document: dict[str, Any]) -> Expr:
        """The row of a cut, as the checker derives it."""
        return self.rows.formulation.cut(**document, above=self.rows.exprs)
