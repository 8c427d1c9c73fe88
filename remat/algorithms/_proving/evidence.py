"""Evidence of the bounds that the search proves: the nodes that must run, floors, multipliers of relaxed formulations."""

from __future__ import annotations

from remat.algorithms._arrays.graph_arrays import Flat
from remat.algorithms._bounds.floor import floor_family
from remat.algorithms._core.evidence import Evidence
from remat.algorithms._core.problem import Problem
from remat.algorithms._proving.certificate import base_proof, floor_proof, single_leaf
from remat.algorithms._proving.rows import Fact, Floats
from remat.ir import Graph
from remat.proof.check import Formulation, Step
from remat.proof.document import Proof, link_document
from remat.units import Bytes, Ns


class AllRun(Evidence):
    """Every schedule runs the nodes that must run."""

    def write(self, step: Step) -> Proof:
        """The proof without instants."""
        return base_proof(step, self.budget, None if self.link is None else link_document(self.link))


class Needs(Evidence):
    """A node, or the end of the step (-1), needs more than the budget."""

    def __init__(self, graph: Graph, budget: Bytes, flat: Flat, node: int) -> None:
        super().__init__(graph, budget, float("inf"))
        self._flat, self._node = flat, node

    def write(self, step: Step) -> Proof:
        """The proof by sets of data; the search for them is repeated to record it."""
        family = [] if self._node < 0 else floor_family(self._flat, self._node, self.budget)
        node = None if self._node < 0 else self._node
        return floor_proof(step, self.budget, node, [sorted(members) for members in family])


class AtInstant(Evidence):
    """The relaxed formulation at one instant, with a multiplier for each row.

    Args:
        problem: its graph, budget and link. bound: as in `Evidence`.
        at: the node. facts, multipliers: of each row.
    """

    def __init__(self, problem: Problem, bound: Ns | float, *, at: int, facts: list[Fact], multipliers: Floats) -> None:
        super().__init__(problem.graph, problem.budget, bound, problem.link)
        self._at, self._facts, self._multipliers = at, facts, multipliers

    def write(self, step: Step) -> Proof:
        """The proof of one leaf."""
        link = None if self.link is None else link_document(self.link)
        formulation = Formulation(step, [self._at], self.budget, False, link)
        proof = single_leaf(formulation, self._facts, self._multipliers, infeasible=self.bound == float("inf"))
        bound = None if proof.bound is None else min(proof.bound, self.bound)  # with a link, it may be above the claim
        return Proof({**proof.document, "bound": bound})
