"""Proofs of random legal graphs, pushed as far as trees go, against an exhaustive search that shares no code with either."""

import math
import random
import time

from attrs import field, frozen

from remat.algorithms import IMPOSSIBLE, AnyOrder, Floor, MultiInstant, MultiStart, Polish, Problem, SingleInstant, gap
from remat.algorithms._proving.certificate import Claim, grow, step_of
from remat.errors import RematError
from remat.testing.legal import legal_graph
from remat.testing.oracle import frontier, optimum

LEAVES = 40
BOUNDS = Polish((Floor(), MultiStart(starts=2), SingleInstant(), AnyOrder()), stop=gap(0))
"""What proves on its way, and claims what trees prove then."""


@frozen(kw_only=True)
class Verdict:
    """What proofs of one random graph were worth.

    Attributes:
        seed: of the graph. faults: what is wrong, in words. proofs: checked. tight: of them, those that reach the optimum.
        nothing: of them, those that there is no schedule. raised: those above the time of the nodes that must run.
    """

    seed: int
    faults: list = field(factory=list)
    proofs: int = 0
    tight: int = 0
    nothing: int = 0
    raised: int = 0
    seconds: float = 0.0


def graph_of(seed):
    """A random legal graph of one option a node and no layers."""
    return legal_graph(random.Random(seed).randint, layers=False, options=False)


def budgets(points):
    """Every budget where the optimum changes, and the last one before."""
    return sorted({budget for point in points for budget in (point.peak, point.peak - 1) if budget >= 0})


def judged(seed):
    """Proofs at each instant, at two, in the captured order, and of searches, at every budget where something changes."""
    start, graph, step = time.process_time(), graph_of(seed), step_of(graph_of(seed))
    rng = random.Random(seed)
    faults, counts = [], {"proofs": 0, "tight": 0, "nothing": 0, "raised": 0}
    instants = sorted(step.required)
    points = {name: frontier(graph, name) for name in ("all", "captured")}
    if None in points.values():
        return Verdict(seed=seed, faults=["the oracle gave up"])

    def judge(what, proof, budget, among="all"):
        best = optimum(points[among], budget)
        truth = IMPOSSIBLE if best is None else best.time
        try:
            verdict = proof.check(graph)
        except RematError as error:
            faults.append(f"{what} at {budget}: {error}")
            return
        said = IMPOSSIBLE if verdict.bound is None else verdict.bound
        if said > truth or verdict.budget < budget or (verdict.assumes == "") != (among == "all"):
            faults.append(f"{what} at {budget}: {said} above {truth}")
        counts["proofs"] += 1
        counts["tight"] += said == truth
        counts["nothing"] += said == IMPOSSIBLE
        counts["raised"] += said > step.base

    for budget in budgets(points["all"]):
        for t in instants:
            judge(f"instant {t}", grow(step, Claim(budget, [t], math.inf), leaves=LEAVES).proof, budget)
        several = sorted(rng.sample(instants, min(len(instants), rng.choice((2, 2, 3)))))
        judge(f"instants {several}", grow(step, Claim(budget, several, math.inf), leaves=LEAVES).proof, budget)
        grown = grow(step, Claim(budget, several, math.inf, captured=True), leaves=LEAVES)
        judge(f"captured {several}", grown.proof, budget, "captured")
        outcome = BOUNDS.solve(Problem(graph=graph, budget=budget), proof=True)
        judge("the search", outcome.proof, budget)
    middle = budgets(points["captured"])[len(points["captured"]) // 2 :][:1]
    for budget in middle:
        outcome = MultiInstant(rounds=3).solve(Problem(graph=graph, budget=budget), proof=True)
        judge("several instants", outcome.proof, budget)
        for bound in outcome.class_bounds:
            judge("their class", bound.proof, budget, "captured" if bound.proof.theorem == "captured" else "all")
            best = optimum(points["captured"], budget)
            if bound.value > (IMPOSSIBLE if best is None else best.time):
                faults.append(f"the class bound {bound.value} at {budget} is above {best}")
    return Verdict(seed=seed, faults=faults, seconds=time.process_time() - start, **counts)
