"""The claims of a search, proved in integers by branch-and-bound trees."""

from __future__ import annotations

from attrs import evolve

from remat.algorithms._proving.certificate import Claim
from remat.algorithms._proving.prover import MOST_INSTANTS, Prover
from remat.algorithms._search.state import Search

_ORDERS = 2  # of instants whose claim is of the captured order: most for which trees bound every schedule too
_FREE_ORDER_LEAVES = 8  # their leaves


def certify(search: Search) -> None:
    """Prove the claims: a branch-and-bound tree for each claim above the certified bound, the largest claim first."""
    bounds, leaves = search.bounds, search.problem.proof_leaves
    prover = Prover(search.problem.graph, search.arrays.base_time, search.clock)
    for claimed, instants in sorted(bounds.claims, key=lambda claim: (-claim[0], claim[1])):
        if claimed <= bounds.certified or search.clock.expired:
            break
        if len(instants) <= MOST_INSTANTS and prove_claim(
            search, prover, Claim(search.budget, instants, claimed), leaves
        ):
            break
    for number, instants in bounds.class_claims.items():
        if not search.clock.expired:
            certify_class_bound(search, prover, number, instants)


def prove_claim(search: Search, prover: Prover, claim: Claim, leaves: int) -> bool:
    """Grow trees for a claim of every schedule and take what they prove; whether that is all of it."""
    proved = prover.proved(claim, leaves)
    search.trail.append(proved.note)
    search.prove(proved.evidence.bound, proved.how, evidence=proved.evidence)
    return proved.closed


def certify_class_bound(search: Search, prover: Prover, number: int, instants: tuple[int, ...]) -> None:
    """Prove what is claimed of the captured order; and, by a few leaves at the same instants, a bound for every schedule."""
    bound = search.bounds.class_bounds[number]
    proved = prover.proved(Claim(search.budget, instants, bound.value, captured=True), search.problem.proof_leaves)
    search.trail.append(proved.note)
    value = max(bound.value, proved.evidence.bound)
    search.bounds.class_bounds[number] = evolve(bound, value=value, evidence=proved.evidence)
    if search.bounds.certified < value and not search.clock.expired and prover.orders(instants) <= _ORDERS:
        prove_claim(search, prover, Claim(search.budget, instants, value), _FREE_ORDER_LEAVES)
