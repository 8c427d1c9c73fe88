"""`SingleInstant`: a bound for every schedule, in any order, from the saved-set formulation at the hardest instants."""

from __future__ import annotations

import numpy as np
from attrs import field, frozen

from remat.algorithms._arrays.graph_arrays import BACKWARD, LOSS
from remat.algorithms._arrays.kept_data import read_bytes
from remat.algorithms._bounds.instants import Dependencies, Instant, instant_formulation
from remat.algorithms._core.evidence import Evidence
from remat.algorithms._core.outcome import IMPOSSIBLE
from remat.algorithms._milp.answer import Answer
from remat.algorithms._milp.basis import Basis
from remat.algorithms._milp.direct import solve_mixed, solve_relaxed
from remat.algorithms._proving.evidence import AtInstant
from remat.algorithms._search.run_move import RunMove
from remat.algorithms._search.state import Search
from remat.settings import whole

_CHECKS = (
    200  # of a solve with integers: what follows takes up to ten times as long and changes no largest bound by 1e-5
)


def candidate_instants(search: Search, after_loss: int, heaviest: int) -> list[int]:
    """Instants to examine: the loss, those after it, positions of most memory, and heaviest working sets (spread out)."""
    flat = search.flat
    loss = int(np.flatnonzero(flat.phase == LOSS)[0])
    backward = np.flatnonzero((flat.phase == BACKWARD) & flat.required)
    chosen = [loss, *backward[:after_loss].tolist()]
    working = flat.charge + read_bytes(flat, flat.size)
    for measure in (search.arrays.profile, working):
        spread: list[int] = []
        for v in backward[np.argsort(-measure[backward], kind="stable")].tolist():
            if len(spread) == heaviest:
                break
            if all(abs(v - u) > 2 for u in spread):
                spread.append(v)
        chosen += spread
    return list(dict.fromkeys(chosen))


@frozen
class SingleInstant(RunMove):
    """A lower bound for every schedule: the largest saved-set bound over the hardest instants. Plans nothing.

    A scan solves the relaxed formulation at many instants (bounds exact, from duals); the hardest are solved with
    integers.

    Attributes:
        after_loss: how many instants after the loss are scanned.
        heaviest: how many positions of most memory are scanned, and how many of the heaviest working sets.
        mixed: how many instants are solved with integers.
        nodes: branch-and-bound nodes of each.
    """

    after_loss: int = field(default=12, validator=whole(0, "instants"))
    heaviest: int = field(default=4, validator=whole(0, "instants"))
    mixed: int = field(default=3, validator=whole(0, "instants"))
    nodes: int = field(default=500, validator=whole(1, "nodes"))

    def improve(self, search: Search) -> None:
        """Scan, then refine the hardest."""
        with search.charged("bound"):
            scan(search, candidate_instants(search, self.after_loss, self.heaviest))
            refine(search, search.bounds.hardest(self.mixed), self.nodes)


@frozen
class HardestInstants(RunMove):
    """The bound of `SingleInstant` with integers, at the instants of the largest bounds. Plans nothing; needs an earlier scan.

    Attributes:
        count: how many instants.
        nodes: branch-and-bound nodes of each.
    """

    count: int = field(default=3, validator=whole(1, "instants"))
    nodes: int = field(default=500, validator=whole(1, "nodes"))

    def improve(self, search: Search) -> None:
        """Solve the hardest with integers."""
        with search.charged("bound"):
            refine(search, search.bounds.hardest(self.count), self.nodes)


def scan(search: Search, instants: list[int]) -> None:
    """Prove the bounds of the relaxed formulation at the instants, exact from its duals, until the search is over."""
    dependencies, basis = Dependencies(search.flat), None
    for at in instants:
        if search.over:
            return
        instant = instant_formulation(search.flat, dependencies, at, search.budget)
        answer = None
        if not instant.impossible:
            basis = Basis(instant.column_names, instant.row_names, basis)
            answer = solve_relaxed(instant.linear, start=basis, clock=search.clock)
        name = search.problem.graph.computes[at].name
        evidence = relaxed_evidence(search, instant, answer)
        if answer is None or answer.infeasible:
            search.prove(IMPOSSIBLE, f"the single instant at {name}", evidence=evidence)
            return
        bound = search.arrays.base_time + answer.bound
        search.prove(bound, f"the single instant at {name} (relaxed, exact)", evidence=evidence)
        search.bounds.record_instant(at, answer.bound)


def refine(search: Search, instants: list[int], nodes: int) -> None:
    """Prove the bounds with integers at the instants, until the search is over."""
    dependencies = Dependencies(search.flat)
    for at in instants:
        if search.over:
            return
        linear = instant_formulation(search.flat, dependencies, at, search.budget).linear
        answer = solve_mixed(linear, nodes=nodes, checks=_CHECKS, clock=search.clock)
        name = search.problem.graph.computes[at].name
        if answer.infeasible:
            search.prove(
                IMPOSSIBLE, f"the single instant at {name} (integers, confirmed without presolve)", claim=(at,)
            )
            return
        note = "integers, less the solver's tolerance"
        search.prove(search.arrays.base_time + answer.bound, f"the single instant at {name} ({note})", claim=(at,))


def relaxed_evidence(search: Search, instant: Instant, answer: Answer | None) -> Evidence | None:
    """The evidence of a relaxed formulation: its multipliers; where no solve is needed, the memory row alone."""
    problem, at = search.problem, instant.at
    if answer is None:
        memory, unit = [["mem", 0]], np.ones(1)
        return AtInstant(problem, IMPOSSIBLE, at=at, facts=memory, multipliers=unit)
    if answer.duals is None:
        return None
    bound = IMPOSSIBLE if answer.infeasible else search.arrays.base_time + answer.bound
    return AtInstant(problem, bound, at=at, facts=instant.facts, multipliers=answer.duals)
