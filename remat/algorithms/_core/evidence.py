"""What a bound can be proved from: collected when the bound is found, written as a proof document on request."""

from __future__ import annotations

from abc import ABC, abstractmethod

from remat._collector import old_objects_apart
from remat.errors import ProofRefused
from remat.ir import Graph, Link
from remat.ir.interchange import graph_to_json
from remat.proof.check import Step
from remat.proof.document import Proof, link_document
from remat.units import Bytes, Ns


class Evidence(ABC):
    """Everything that a proof of a bound needs. The proof is written and checked once, on first request.

    Args:
        graph: of the problem.
        budget: the bound holds within it [bytes].
        bound: what the proof is expected to prove [ns]; infinite: that there is no schedule.
        link: of schedules with copies; None: it bounds those without copies.
    """

    def __init__(self, graph: Graph, budget: Bytes, bound: Ns | float, link: Link | None = None) -> None:
        self.graph, self.budget, self.bound, self.link = graph, budget, bound, link
        self._proof: Proof | None = None
        self._assumes = ""

    @abstractmethod
    def write(self, step: Step) -> Proof:
        """The proof, of the graph as the checker reads it."""

    def proof(self, assumes: str = "") -> Proof:
        """The proof, once the independent checker has accepted it.

        Args:
            assumes: the class of schedules to which the proof may be restricted; empty: it must hold for every schedule.

        Raises:
            ProofRefused: it does not prove what it says, or it does so for another class of schedules or another link, which is a
                bug of who gave the evidence.
        """
        if self._proof is None:
            with old_objects_apart():
                step = Step(graph_to_json(self.graph))  # read once, to write the proof and to check it
                proof = self.write(step)
                verdict = proof.check_step(step)
            if verdict.link != (None if self.link is None else link_document(self.link)):
                what = f"it bounds schedules over the link {verdict.link}, not {self.link}."
                raise ProofRefused("T-PROOF", what, where="proof.link", fix="give the link of the problem.")
            self._assumes = verdict.assumes
            self._proof = proof
            self.bound = float("inf") if proof.bound is None else proof.bound
        if self._assumes not in ("", assumes):
            what = f"it bounds only schedules with {self._assumes}, not {assumes or 'every schedule'}."
            raise ProofRefused("T-PROOF", what, where="proof.theorem", fix="give it to a `ClassBound` of this class.")
        return self._proof

    def holds_for(self, graph: Graph, budget: Bytes, link: Link | None = None) -> bool:
        """Whether the evidence is for this graph and link, and for this budget or a larger one."""
        return budget <= self.budget and link == self.link and (graph is self.graph or graph == self.graph)


class Written(Evidence):
    """A proof that already exists as a document."""

    def __init__(self, graph: Graph, proof: Proof) -> None:
        super().__init__(graph, proof.budget, float("inf") if proof.bound is None else proof.bound, proof.link)
        self._written = proof

    def write(self, step: Step) -> Proof:
        """The proof that was given."""
        return self._written


def stronger(first: Evidence | None, second: Evidence | None) -> Evidence | None:
    """The evidence of the larger bound; of equal bounds, the first."""
    if first is None or second is None:
        return second if first is None else first
    return second if second.bound > first.bound else first
