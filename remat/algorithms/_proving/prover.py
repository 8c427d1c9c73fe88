"""`Prover`: grows branch trees for the claims of a search, and describes what they prove."""

from __future__ import annotations

from functools import cached_property

from attrs import field, frozen

from remat.algorithms._core.clock import Clock
from remat.algorithms._core.evidence import Written
from remat.algorithms._proving.certificate import Claim, grow, step_of
from remat.ir import Graph
from remat.proof.check import Step
from remat.units import Ns

CAPTURED = "first runs in the captured order"
"""The class of schedules that the theorem `captured` bounds, as the checker names it."""

MOST_INSTANTS = 6
"""The checker takes no more: it enumerates their orders."""


@frozen(kw_only=True)
class Proved:
    """What branch trees prove of a claim.

    Attributes:
        evidence: the proof.
        how: trees and instants, as text.
        note: the certified bound, and how far it is below the claim.
        closed: whether the whole claim is certified.
    """

    evidence: Written
    how: str
    note: str
    closed: bool


@frozen(slots=False)
class Prover:
    """Grows trees over the formulations of one graph, which is parsed by the checker on first use.

    Attributes:
        graph: of the claims.
        time: of the nodes that must run [ns]; notes state bounds as fractions of it.
        clock: asked between leaves.
    """

    graph: Graph
    time: Ns
    clock: Clock = field(eq=False)

    @cached_property
    def step(self) -> Step:
        """The graph as parsed by the checker."""
        return step_of(self.graph)

    def orders(self, instants: tuple[int, ...]) -> int:
        """The number of orders in which the instants may first run."""
        return len(self.step.orders(sorted(instants)))

    def proved(self, claim: Claim, leaves: int) -> Proved:
        """What trees with at most `leaves` leaves prove of a claim; of its instants, six at most are used."""
        grown = grow(self.step, claim, leaves=leaves, clock=self.clock)
        place = ", ".join(self.graph.computes[at].name for at in claim.instants)
        among = f" of schedules with {CAPTURED}" if claim.captured else ""
        bound = grown.proof.bound
        shown = "that no schedule exists" if bound is None else f"{bound / max(1, self.time):.5f}"
        short = "" if grown.closed else f", less than the {claim.wanted / max(1, self.time):.5f} that is claimed"
        return Proved(
            evidence=Written(self.graph, grown.proof),
            how=f"a tree of {grown.leaves} leaves at {place}",
            note=f"certified at {place}{among}: {shown}{short} ({grown.leaves} leaves)",
            closed=grown.closed,
        )
