"""The rows of the checker's formulation as a matrix: facts in a fixed order, columns by the checker's names of variables.

Proofs name facts, not row numbers of a solver, and the checker derives each row from the graph. The prover takes its rows from
the checker too, so that cuts are rounded from the same integers.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import scipy.sparse as sp
from attrs import field, frozen
from numpy.typing import NDArray

from remat.proof.check import Expr, Formulation, Key, Step

Fact = list[Any]
"""The name of a row in a proof: `["first", instant, datum, reader]`, …."""

Floats = NDArray[np.float64]


def facts(formulation: Formulation) -> Iterator[Fact]:
    """All relevant facts of the formulation: memory first, then each datum with its readers, then the order of nodes."""
    step = formulation.step
    readers = _readers(step)
    for k in range(len(formulation.order)):
        yield ["mem", k]
        for d, p in enumerate(step.producer):
            if p >= 0 and p not in formulation.ahead[k] and not step.stays[d]:
                yield from _facts_of_datum(formulation, k, d, readers[d])
        for v in sorted(step.required - formulation.done[k] - formulation.ahead[k]):
            yield from _facts_of_node(formulation, k, v)


def _facts_of_datum(formulation: Formulation, k: int, d: int, readers: list[int]) -> Iterator[Fact]:
    """Facts on the readers of a datum that is resident before instant k, and on what its presence requires."""
    step, done = formulation.step, formulation.done[k]
    producer = step.producer[d]
    implied = producer in done or k + 1 == len(formulation.order)  # what `again` says, by `runs`
    for c in readers:
        repeats = c not in formulation.ahead[k] and step.again[c]
        if c not in done:
            yield ["runs" if repeats else "first", k, d, c]
        if repeats and (c in done or not implied):
            yield ["again", k, d, c]
    if k + 1 < len(formulation.order):
        yield ["next", k, d]
    if producer not in done:
        yield ["made", k, d]


def _facts_of_node(formulation: Formulation, k: int, v: int) -> Iterator[Fact]:
    """Consequences of a first run before instant k, where that is neither certain nor impossible."""
    step, done = formulation.step, formulation.done
    if step.again[v]:
        yield ["ran", k, v]
    yield from (["order", k, v, u] for u in sorted(step.before[v]) if u not in done[k])
    if k + 1 < len(formulation.order) and v not in done[k + 1]:
        yield ["stays", k, v]


def _always_holds(row: Expr) -> bool:
    """Whether a row is at most 0 for all values of its variables."""
    return sum(max(a, 0) if x else a for x, a in row.items()) <= 0


def _readers(step: Step) -> list[list[int]]:
    readers: list[list[int]] = [[] for _ in step.size]
    for v in sorted(step.required):
        for d in step.reads[v]:
            readers[d].append(v)
    return readers


@frozen(eq=False)
class Rows:
    """Rows with their facts, and the columns they are in.

    Attributes:
        facts: of each row. exprs: each row as the checker derives it, at most 0.
        keys: of each column. column: by key. cost: per column [ns].
    """

    formulation: Formulation
    facts: list[Fact] = field(factory=list)
    exprs: list[Expr] = field(factory=list)
    keys: list[Key] = field(factory=list)
    column: dict[Key, int] = field(factory=dict)

    @classmethod
    def of(cls, formulation: Formulation) -> Rows:
        """All rows of a formulation that can be violated, each once."""
        rows, seen = cls(formulation), set[frozenset[Any]]()
        for fact in facts(formulation):
            expr = {x: a for x, a in formulation.row(*fact).items() if a}
            terms = frozenset(expr.items())
            if terms in seen or _always_holds(expr):
                continue
            seen.add(terms)
            rows.facts.append(fact)
            rows.exprs.append(expr)
            for x in expr:
                if x and x not in rows.column:
                    rows.column[x] = len(rows.keys)
                    rows.keys.append(x)
        return rows

    @property
    def cost(self) -> NDArray[np.int64]:
        """Per column [ns]."""
        time = self.formulation.step.time
        return np.array([time[key[2]] if key[0] == "y" else 0 for key in self.keys], np.int64)

    def matrix(self, exprs: list[Expr]) -> tuple[sp.csr_matrix, Floats, Floats]:
        """Rows scaled by their largest coefficient, their right-hand sides, and the scales."""
        at, row, val = list[int](), list[int](), list[float]()
        scale, right = np.ones(len(exprs)), np.zeros(len(exprs))
        for i, expr in enumerate(exprs):
            largest = max((abs(a) for x, a in expr.items() if x), default=1)
            scale[i], right[i] = float(largest), -expr.get((), 0) / largest
            for x, a in expr.items():
                if x:
                    row.append(i)
                    at.append(self.column[x])
                    val.append(a / largest)
        shape = (len(exprs), len(self.keys))
        return sp.csr_matrix((val, (row, at)), shape), right, scale
