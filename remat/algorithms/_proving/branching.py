"""A branch tree over the relaxed formulation: best bound first, under a limit of leaves, with rounding cuts at the root.

The tree can be stopped at any time: it proves the smallest bound of its leaves. Variables are chosen by reliability branching:
pseudo-costs initialized by a few short solves (Achterberg, Koch and Martin, *Branching rules revisited*, 2005). Results of the
solver are not trusted: leaves keep multipliers, and `certificate.py` evaluates them in integers.
"""

from __future__ import annotations

import heapq
import math
from typing import Any

import numpy as np
from attrs import define

from remat.algorithms._milp.highs import Relaxation, Relaxed
from remat.algorithms._proving.rounding import Cut, Separation
from remat.algorithms._proving.rows import Floats, Rows
from remat.proof.check import Key

SCALE = 1000.0  # costs are scaled to this sum
ROUNDS, PER_ROUND = 40, 100  # separation rounds at the root, and cuts per round
ACTIVE = 16  # cuts with the largest multipliers, which are rounded again
PROBES, SHORT, RELIABLE = (
    8,
    60,
    4,
)  # short solves per node, their iterations, and the number after which a variable is reliable
LONG = 20_000  # iterations of a full solve
WHOLE = 1e-6


@define(eq=False)
class TreeNode:
    """A node of the tree.

    Attributes:
        fixed: the variables fixed there.
        bound: of the cost [ns] as the solver reports it, infinite where the relaxation is infeasible.
        duals: multipliers of the rows, scaled; where infeasible, a ray.
        ray: whether `duals` is one. above: multipliers of its parent, which are valid here too.
        key: the branching variable; empty: a leaf. low, high: the children, for 0 and for 1.
    """

    fixed: dict[Key, int]
    bound: float
    duals: Floats
    ray: bool = False
    above: Floats | None = None
    point: Floats | None = None
    key: Key = ()
    low: TreeNode | None = None
    high: TreeNode | None = None


@define(eq=False)
class _Gains:
    """Pseudo-costs: gain of the bound per unit, by column and direction (0: down, 1: up)."""

    total: Floats
    count: Floats

    def add(self, column: int, up: int, gain: float, share: float) -> None:
        self.total[up, column] += gain / max(share, WHOLE)
        self.count[up, column] += 1

    def expected(self, columns: Any, point: Floats) -> Floats:
        """Product of the expected gains of both directions."""
        mean = self.total.sum(axis=1) / np.maximum(1, self.count.sum(axis=1))
        gain = np.where(self.count > 0, self.total / np.maximum(1, self.count), np.maximum(mean, WHOLE)[:, None])
        down, up = gain[0, columns] * point[columns], gain[1, columns] * (1 - point[columns])
        return np.asarray(np.maximum(down, WHOLE) * np.maximum(up, WHOLE))


class Tree:
    """A tree that grows over one formulation.

    Args:
        rows: of the formulation.
        target: recomputation at which the proof is complete [ns]; infinite: only infeasibility is of interest.
    """

    def __init__(self, rows: Rows, target: float) -> None:
        self.rows, self.target = rows, target
        self.cuts: list[Cut] = []
        self.spent = 0  # simplex iterations times rows
        cost = rows.cost.astype(float)
        self.unit = SCALE / max(1.0, float(cost.sum()))
        matrix, right, self.scale = rows.matrix(rows.exprs)
        self._lp = Relaxation(matrix, cost * self.unit, right)
        self._gains = _Gains(np.zeros((2, len(rows.keys))), np.zeros((2, len(rows.keys))))
        self.root = self._node({}, None)
        self._cut()
        self.leaves = 1
        self._open: list[tuple[float, int, TreeNode]] = []
        self._number = 0
        self._push(self.root)

    @property
    def bound(self) -> float:
        """The smallest bound of the open leaves [ns], infinite without open leaves; closed leaves are above the target."""
        return self._open[0][0] if self._open else math.inf

    def _push(self, node: TreeNode) -> None:
        if node.bound < self.target:
            self._number += 1
            heapq.heappush(self._open, (node.bound, self._number, node))

    # -- the root ------------------------------------------------------------------------------------------------------

    def _cut(self) -> None:
        """Separate rounds of cuts while they raise the bound."""
        separation, stalled, start = Separation.of(self.rows), 0, self.root.bound
        for _ in range(ROUNDS):
            before = self.root
            if before.point is None or before.bound >= self.target or stalled == 4:
                return
            duals = before.duals[len(self.rows.facts) :]
            active = np.argsort(-duals, kind="stable")[: min(ACTIVE, int((duals > 0).sum()))].tolist()
            cuts = separation.cuts(before.point, self.cuts, active, PER_ROUND)
            if not cuts:
                return
            matrix, right, scale = self.rows.matrix([cut.expr for cut in cuts])
            self._lp.add(matrix, right)
            self.scale = np.concatenate([self.scale, scale])
            self.cuts += cuts
            self.root = self._node({}, None)
            if self.root.bound < before.bound:  # numerical noise: the earlier multipliers are valid too
                self.root.bound = before.bound
            raised = self.root.bound - before.bound
            stalled = stalled + 1 if raised < 1e-3 * max(1.0, self.root.bound - start) else 0

    # -- nodes ---------------------------------------------------------------------------------------------------------

    def _solve(self, fixed: dict[Key, int], iterations: int) -> Relaxed:
        columns = np.array([self.rows.column[key] for key in fixed], np.int64)
        self._lp.fix(columns, np.array(list(fixed.values()), float))
        relaxed = self._lp.solve(iterations)
        self.spent += relaxed.iterations * len(self.scale)
        return relaxed

    def _node(self, fixed: dict[Key, int], parent: TreeNode | None) -> TreeNode:
        relaxed = self._solve(fixed, LONG)
        count = len(self.scale)
        if relaxed.infeasible and relaxed.duals is not None:
            above = None if parent is None else parent.duals
            return TreeNode(fixed, math.inf, relaxed.duals, ray=True, above=above)
        if relaxed.duals is None:
            duals = np.zeros(count) if parent is None else parent.duals
            return TreeNode(fixed, 0.0 if parent is None else parent.bound, duals)
        bound = relaxed.value / self.unit
        if parent is not None and bound < parent.bound:
            return TreeNode(fixed, parent.bound, parent.duals, point=relaxed.point)
        return TreeNode(fixed, bound, relaxed.duals, point=relaxed.point)

    def grow(self) -> bool:
        """Branch on the open leaf with the smallest bound; returns whether there was one to branch on."""
        _, _, node = heapq.heappop(self._open)
        point = node.point
        column = None if point is None else self._choose(node)
        if point is None or column is None:
            heapq.heappush(self._open, (node.bound, 0, node))
            return False
        node.key = self.rows.keys[column]
        children = []
        for value in (0, 1):
            child = self._node({**node.fixed, node.key: value}, node)
            if math.isfinite(child.bound):
                share = float(point[column]) if value == 0 else 1 - float(point[column])
                self._gains.add(column, value, child.bound - node.bound, share)
            children.append(child)
        node.low, node.high = children
        node.point = None
        self.leaves += 1
        for child in children:
            self._push(child)
        return True

    def _choose(self, node: TreeNode) -> int | None:
        """The column to branch on; None: the point is integral up to the tolerance."""
        point = node.point
        assert point is not None
        columns = np.flatnonzero((point > WHOLE) & (point < 1 - WHOLE))
        if not len(columns):
            return None
        expected = self._gains.expected(columns, point)
        ranked = columns[np.argsort(-expected, kind="stable")][: 2 * PROBES].tolist()
        self._solve(node.fixed, LONG)
        basis, probed = self._lp.basis(), 0
        best, chosen = -1.0, ranked[0]
        for column in ranked:
            gains = []
            needy = min(self._gains.count[:, column]) < RELIABLE
            if needy and probed == PROBES:
                continue
            for value in (0, 1):
                share = float(point[column]) if value == 0 else 1 - float(point[column])
                if needy:
                    gains.append(self._probe(node, column, value, share, basis))
                else:
                    mean = self._gains.total[value, column] / self._gains.count[value, column]
                    gains.append(float(mean) * share)
            probed += needy
            room = max(self.target - node.bound, 1.0) if math.isfinite(self.target) else math.inf
            score = max(min(gains[0], room), WHOLE) * max(min(gains[1], room), WHOLE)
            if score > best:
                best, chosen = score, column
        self._lp.restore(basis)
        return int(chosen)

    def _probe(self, node: TreeNode, column: int, value: int, share: float, basis: Any) -> float:
        """The gain of a short solve [ns]; large where it is infeasible."""
        relaxed = self._solve({**node.fixed, self.rows.keys[column]: value}, SHORT)
        self._lp.restore(basis)
        if relaxed.infeasible:
            return max(1.0, node.bound)
        gain = max(0.0, relaxed.value / self.unit - node.bound)
        self._gains.add(column, value, gain, share)
        return gain
