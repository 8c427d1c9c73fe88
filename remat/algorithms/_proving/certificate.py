"""From floating-point multipliers to a proof in integers: every leaf is evaluated again, and the least of them is proved."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
from attrs import field, frozen

from remat.algorithms._core.clock import Clock
from remat.algorithms._proving.branching import Tree, TreeNode
from remat.algorithms._proving.rows import Fact, Floats, Rows
from remat.ir import Graph
from remat.ir.interchange import graph_to_json
from remat.proof.check import Expr, Formulation, Key, Step, added
from remat.proof.document import Proof, head
from remat.units import Bytes, Ns

EXACT, SHORT = 60, (24, 40)
"""Bits of multipliers: the result with `EXACT` counts; fewer are kept where they prove as much."""

RAYS = (60, 90, 120)
"""Bits of the largest multiplier of a ray: memory rows may have multipliers that are 1e-8 of it."""

SLACK = ((128, 1e-4), (32, 2e-5))
"""By number of leaves: the gap that is accepted, as a fraction of the time of the nodes that must run; before: none."""

EFFORT = 2e8
"""Simplex iterations times rows of all trees together; 1e7 are about a second."""

Multipliers = list[tuple[int, int]]


@frozen(eq=False)
class Leaf:
    """A leaf in integers: its multipliers by row, and the least value of what they combine; of a ray, more than 0."""

    pairs: Multipliers
    value: int
    ray: bool


def step_of(graph: Graph) -> Step:
    """The graph as the checker reads it."""
    return Step(graph_to_json(graph))


def least(formulation: Formulation, row: Expr, fixed: dict[Key, int], unit: int, *, costs: bool) -> int:
    """The minimum of a row plus the costs [1/unit ns] over 0/1 points, some variables being fixed; waiting may not pay."""
    time = formulation.step.time
    value = row.get((), 0)
    for x in row.keys() | fixed.keys():
        if x:
            price = time[x[2]] if x[0] == "y" else int(x[0] == "w")
            a = row.get(x, 0) + (price * unit if costs else 0)
            value += a * fixed[x] if x in fixed else min(a, 0)
    return value


class Written:
    """A tree in integers: which rows its leaves use, and what they prove."""

    def __init__(self, formulation: Formulation, exprs: list[Expr]) -> None:
        self.formulation, self.exprs = formulation, exprs

    def cost_leaf(self, duals: Floats, fixed: dict[Key, int], bits: int) -> Leaf:
        """The leaf of multipliers per nanosecond, rounded to units of 2^-bits."""
        used = np.flatnonzero(duals > 0).tolist()
        pairs = [(i, m) for i in used if (m := round(float(duals[i]) * (1 << bits))) > 0]
        pairs = self._affordable(pairs, 1 << bits)
        row = added(*((m, self.exprs[i]) for i, m in pairs))
        return Leaf(pairs, least(self.formulation, row, fixed, 1 << bits, costs=True), ray=False)

    def _affordable(self, pairs: Multipliers, unit: int) -> Multipliers:
        """The multipliers with those of the lanes reduced until a nanosecond of waiting costs at least what it gives."""
        for side in (True, False):
            lanes = {i for i, _ in pairs if ("w", 0, side) in self.exprs[i]}
            excess = sum(m for i, m in pairs if i in lanes) - unit
            for place, (i, m) in enumerate(pairs):
                if i in lanes and excess > 0:
                    pairs[place] = (i, m - min(m, excess))
                    excess -= min(m, excess)
        return [(i, m) for i, m in pairs if m]

    def ray_leaf(self, ray: Floats, fixed: dict[Key, int]) -> Leaf | None:
        """The leaf of a ray, of either sign, without the rows of lanes; None when it proves nothing in integers."""
        whole = [not any(x[:1] == ("w",) for x in expr) for expr in self.exprs[: len(ray)]]
        for bits in RAYS:
            for sign in (1.0, -1.0):
                share = np.maximum(sign * ray, 0.0) * whole
                if not share.any():
                    continue
                unit = (1 << bits) / float(share.max())
                pairs = [(i, m) for i in np.flatnonzero(share).tolist() if (m := round(float(share[i]) * unit)) > 0]
                row = added(*((m, self.exprs[i]) for i, m in pairs))
                value = least(self.formulation, row, fixed, 0, costs=False)
                if value > 0:
                    return Leaf(pairs, value, ray=True)
        return None


def shown(leaves: list[Leaf], bits: int) -> float:
    """Recomputation that all leaves prove [ns]; infinite: there is no schedule."""
    return min((-(-leaf.value >> bits) if not leaf.ray else math.inf for leaf in leaves), default=math.inf)


def tree_document(tree: Tree) -> tuple[dict[int, tuple[list[Leaf], list[list[Any]]]], Written]:
    """The leaves and the entries of a tree in preorder, by bits."""
    rows = tree.rows
    written = Written(rows.formulation, [*rows.exprs, *(cut.expr for cut in tree.cuts)])
    by_bits = {}
    for bits in (EXACT, *SHORT):
        leaves: list[Leaf] = []
        entries: list[list[Any]] = []
        for node in preorder(tree.root):
            if node.key:
                entries.append(["branch", *node.key])
                continue
            leaf = written.ray_leaf(_per_row(node.duals, tree, 1.0), node.fixed) if node.ray else None
            if leaf is None:
                duals = node.duals if not node.ray else node.above
                duals = np.zeros(0) if duals is None else duals
                leaf = written.cost_leaf(_per_row(duals, tree, tree.unit), node.fixed, bits)
            leaves.append(leaf)
            entries.append(["ray" if leaf.ray else "cost", leaf.pairs])
        by_bits[bits] = (leaves, entries)
    return by_bits, written


def _per_row(duals: Floats, tree: Tree, unit: float) -> Floats:
    """Multipliers of the integer rows from those of the scaled rows; 0 for rows added later."""
    return np.asarray(duals / tree.scale[: len(duals)] / unit)


def preorder(node: TreeNode | None) -> Iterator[TreeNode]:
    """Nodes before their children, the 0 child first; without recursion."""
    stack = [node]
    while stack:
        top = stack.pop()
        if top is not None:
            yield top
            stack += [top.high, top.low]


def used_rows(entries: list[list[Any]], facts: list[Fact], cuts: list[dict[str, Any]]) -> dict[str, Any]:
    """The rows and the tree of a proof, restricted to the rows that are used and renumbered."""
    wanted = sorted(_reached_rows(entries, len(facts), cuts))
    number = {i: n for n, i in enumerate(wanted)}

    def renumbered(pairs: Any) -> list[list[int]]:
        return [[number[i], m] for i, m in pairs]

    rows: list[Any] = []
    for i in wanted:
        cut = cuts[i - len(facts)] if i >= len(facts) else None
        rows.append(facts[i] if cut is None else cut | {"rows": renumbered(cut["rows"])})
    tree = [entry if entry[0] == "branch" else [entry[0], renumbered(entry[1])] for entry in entries]
    return {"rows": rows, "tree": tree}


def _reached_rows(entries: list[list[Any]], facts: int, cuts: list[dict[str, Any]]) -> set[int]:
    """Numbers of the rows that leaves combine, directly or through cuts; the numbers of cuts follow those of the `facts`."""
    wanted = {i for entry in entries if entry[0] != "branch" for i, _ in entry[1]}
    for i in range(facts + len(cuts) - 1, facts - 1, -1):
        if i in wanted:
            wanted |= {j for j, _ in cuts[i - facts]["rows"]}
    return wanted


def proof_of(step: Step, budget: Bytes, trees: list[Tree], *, captured: bool = False) -> Proof:
    """The joint proof of several trees, one for each order of their instants."""
    parts = [tree_document(tree) for tree in trees]
    extra = _extra(parts, EXACT)
    bits = _fewest_bits(partial(_extra, parts))
    documents = []
    for tree, (by_bits, _) in zip(trees, parts, strict=True):
        cuts = [cut.document for cut in tree.cuts]
        order = tree.rows.formulation.order
        documents.append({"order": order, **used_rows(by_bits[bits][1], tree.rows.facts, cuts)})
    instants = sorted(trees[0].rows.formulation.order)
    bound = None if extra == math.inf else step.base + max(0, int(extra))
    theorem = "captured" if captured else "instants"
    return Proof({**head(theorem, step.print, budget, bound), "instants": instants, "bits": bits, "trees": documents})


def _extra(parts: list[tuple[dict[int, tuple[list[Leaf], list[list[Any]]]], Written]], bits: int) -> float:
    return min(shown(by_bits[bits][0], bits) for by_bits, _ in parts)


def _fewest_bits(extra: Callable[[int], float]) -> int:
    """The fewest bits of multipliers that prove as much as `EXACT`; `extra` maps bits to the recomputation they prove."""
    return next((bits for bits in SHORT if extra(bits) >= extra(EXACT)), EXACT)


def single_leaf(formulation: Formulation, facts: list[Fact], multipliers: Floats, *, infeasible: bool = False) -> Proof:
    """The proof of one instant by the multipliers of its relaxed formulation; facts may occur several times."""
    step = formulation.step
    sign = -1.0 if infeasible and -multipliers.min(initial=0.0) > multipliers.max(initial=0.0) else 1.0
    kept, duals = _distinct(facts, sign * multipliers)
    written = Written(formulation, [formulation.row(*fact) for fact in kept])
    nothing = Leaf([], 0, ray=False)
    leaves = {bits: written.cost_leaf(duals, {}, bits) for bits in (EXACT, *SHORT)}
    by_bits = {bits: [leaf if leaf.value > 0 else nothing] for bits, leaf in leaves.items()}
    ray = written.ray_leaf(duals, {}) if infeasible else None
    extra = shown(by_bits[EXACT], EXACT)
    bits = _fewest_bits(lambda bits: shown(by_bits[bits], bits))
    leaf = by_bits[bits][0] if ray is None else ray
    order = formulation.order
    body = {"order": order, **used_rows([["cost" if ray is None else "ray", leaf.pairs]], kept, [])}
    bound = step.base + max(0, int(extra)) if ray is None else None
    heading = head("instants", step.print, formulation.budget, bound, formulation.link)
    return Proof({**heading, "instants": order, "bits": bits, "trees": [body]})


def _distinct(facts: list[Fact], multipliers: Floats) -> tuple[list[Fact], Floats]:
    """The facts with positive multipliers, each once, and the sums of these."""
    index: dict[str, int] = {}
    kept, total = list[Fact](), list[float]()
    for fact, m in zip(facts, multipliers.tolist(), strict=True):
        if m > 0:
            i = index.setdefault(str(fact), len(index))
            if i == len(kept):
                kept.append(fact)
                total.append(0.0)
            total[i] += m
    return kept, np.array(total)


def base_proof(step: Step, budget: Bytes, link: list[list[int]] | None = None) -> Proof:
    """The proof of the time of all nodes that must run: no instants, one leaf."""
    tree = {"order": list[int](), "rows": list[Any](), "tree": [["cost", list[Any]()]]}
    body = {"instants": list[int](), "bits": 0, "trees": [tree]}
    return Proof({**head("instants", step.print, budget, step.base, link), **body})


def floor_proof(step: Step, budget: Bytes, node: int | None, family: list[list[int]]) -> Proof:
    """The proof that no schedule fits: sets of data, none of which can be resident together, one of which a node needs."""
    return Proof({**head("floor", step.print, budget, None), "node": node, "family": family})


def slack(leaves: int) -> float:
    """The accepted gap by number of leaves, as a fraction of the time: trees of equal layers close after thousands only."""
    return next((share for least, share in SLACK if leaves >= least), 0.0)


@frozen(kw_only=True)
class Grown:
    """A proof by trees.

    Attributes:
        proof: the proof. leaves: of all trees. closed: whether it reaches the wanted bound.
    """

    proof: Proof
    leaves: int
    closed: bool


@frozen
class Claim:
    """The claim that trees are to prove.

    Attributes:
        budget: bytes.
        instants: nodes from the loss on that must run.
        wanted: a bound, with the time of the nodes that must run [ns]; infinite: that there is no schedule.
        captured: bound only schedules whose first runs keep the captured order.
    """

    budget: Bytes
    instants: Sequence[int]
    wanted: Ns | float
    captured: bool = field(default=False, kw_only=True)


def grow(step: Step, claim: Claim, *, leaves: int, clock: Clock | None = None) -> Grown:
    """Grow trees, one for each order of the instants, until they prove the wanted bound or have the most leaves allowed.

    Args:
        step: the graph as the checker reads it.
        claim: the claim.
        leaves: most leaves of all trees together.
        clock: asked between leaves.
    """
    instants = sorted(claim.instants)
    orders = [instants] if claim.captured else step.orders(instants)
    target = float(claim.wanted) - step.base
    trees = [Tree(Rows.of(Formulation(step, order, claim.budget, claim.captured)), target) for order in orders]
    while not (clock is not None and clock.expired):
        tree = min(trees, key=lambda tree: tree.bound)
        if _enough(trees, target, step.base, leaves) or not tree.grow():
            break
    proof = proof_of(step, claim.budget, trees, captured=claim.captured)
    closed = proof.bound is None or proof.bound >= claim.wanted
    return Grown(proof=proof, leaves=sum(tree.leaves for tree in trees), closed=closed)


def _enough(trees: list[Tree], target: float, base: Ns, leaves: int) -> bool:
    """Whether to stop: the wanted bound is proved, or up to the accepted gap, or the effort is spent."""
    count, effort = sum(tree.leaves for tree in trees), sum(tree.spent for tree in trees)
    bound = min(tree.bound for tree in trees)
    return bound >= target or target - bound <= base * slack(count) or count >= leaves or effort >= EFFORT
