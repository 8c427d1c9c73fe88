"""`MultiInstant`: a bound for schedules in the captured order, from several instants at once, and plans from its solutions.

Instants are added one at a time, for as long as the bound rises; the best one counts. Of those with heavy working sets and the
one where the plan of the last solution exceeds the budget most, the next is the one that raises the relaxed bound most; if none
raises it, the latter. When the plan fits, it is optimal (within the formulation's gap) among schedules whose first runs
keep the captured order. Stages taken together have rows of their own, so that another instant cannot lower the relaxed bound.
"""

from __future__ import annotations

import numpy as np
from attrs import field, frozen
from numpy.typing import NDArray

from remat.algorithms._bounds.fixed_order import Stages, staged_formulation
from remat.algorithms._core.outcome import IMPOSSIBLE
from remat.algorithms._milp.direct import solve_mixed, solve_relaxed
from remat.algorithms._proving.prover import MOST_INSTANTS
from remat.algorithms._search.instant_choice import heavy_instants, worst_instant
from remat.algorithms._search.lp_rounding import hardest_instants
from remat.algorithms._search.on_demand import recompute_on_demand
from remat.algorithms._search.passes import offer_shaved, variant
from remat.algorithms._search.run_move import RunMove
from remat.algorithms._search.run_problem import Sequence
from remat.algorithms._search.state import Search
from remat.settings import number, whole
from remat.units import Ns

_PROMISING = 10  # of all heavy instants, how many are scanned again
_GROWTH = 4  # ratio of the effort that a round may take to that of the round before


@frozen
class MultiInstant(RunMove):
    """A bound for schedules whose first runs keep the captured order, reported in `class_bounds`; and plans.

    If a proof is asked for, trees prove the bound for its class and, at the same instants, a bound for every schedule.

    Attributes:
        rounds: largest number of instants.
        nodes: branch-and-bound nodes of each formulation.
        largest: largest number of variables of a formulation, without those of stages taken together; larger ones are not built.
        effort: limit on the effort of all formulations (see `Answer`); the next one is not solved if it is likely to exceed it.
        scanned: number of heavy working sets from which the relaxed formulations choose the next instant.
        patience: number of consecutive rounds without a better bound after which it stops.
        accuracy: relative gap at which a formulation counts as solved.
    """

    rounds: int = field(default=6, validator=whole(1, "instants"))
    nodes: int = field(default=60, validator=whole(1, "nodes"))
    largest: int = field(default=6000, validator=whole(1, "variables"))
    effort: float = field(default=3e8, validator=number(0))
    scanned: int = field(default=36, validator=whole(0, "instants"))
    patience: int = field(default=2, validator=whole(1, "rounds"))
    accuracy: float = field(default=0.002, validator=number(0))

    def improve(self, search: Search) -> None:
        """Solve, plan, add an instant, until the plan fits or the bound no longer rises."""
        size = len(search.base) + search.flat.size.size
        if not search.proves or search.enough or size > self.largest:
            return
        with search.charged("bound"):
            bound, instants = self._bound(search, min(self.rounds, self.largest // size))
            if bound:
                search.show(max(bound, search.lower), instants)

    def _bound(self, search: Search, rounds: int) -> tuple[Ns | float, tuple[int, ...]]:
        """The best bound of at most `rounds` instants, 0 if there was no time; and instants that proofs can use."""
        scan = _Scan(search, self.scanned)
        bound: Ns | float = 0
        instants: tuple[int, ...] = ()
        claim: tuple[int, ...] = ()
        worst: int | None = next(iter(hardest_instants(search, 1)), None)
        spent = last = idle = 0
        for k in range(rounds):
            if worst is None or search.clock.expired or spent + _GROWTH * last > self.effort or idle == self.patience:
                break
            instants = tuple(sorted((*instants, scan.next(instants, worst))))
            stages = staged_formulation(search.flat, instants, search.budget, coarse=True)
            answer = None
            if not stages.impossible:
                answer = solve_mixed(stages.linear, self.accuracy, self.nodes, clock=search.clock)
            if answer is None or answer.infeasible:
                return IMPOSSIBLE, instants[:MOST_INSTANTS]
            spent, last = spent + answer.effort, answer.effort
            value = search.arrays.base_time + answer.bound
            idle = 0 if value > bound else idle + 1
            if value > bound:
                bound, claim = value, instants if k < MOST_INSTANTS else claim
            worst = None if answer.point is None else self._plan(search, stages, answer.point, k)
        return bound, claim

    def _plan(self, search: Search, stages: Stages, point: NDArray[np.float64], k: int) -> int | None:
        """Offer the plan of a solution; the instant where it exceeds its budget most, None where it fits."""
        start = staged(search, stages, point)
        for j in (0, 2):
            if j and search.clock.expired:
                break
            rng = search.streams.spawn("captured order", k, j)
            offer_shaved(search, start, variant(j), rng, f"the formulation of {self!r} at {k + 1} instants")
        return worst_instant(search, start, stages.instants)


class _Scan:
    """Chooses the next instant by the bound of the relaxation."""

    def __init__(self, search: Search, scanned: int) -> None:
        self.search = search
        self.heavy = heavy_instants(search, scanned) if scanned else []
        self.relaxed: float = 0

    def next(self, instants: tuple[int, ...], worst: int) -> int:
        """Of the heavy instants and `worst` the one that raises the relaxed bound most, else `worst`."""
        open_ = [at for at in dict.fromkeys([worst, *self.heavy]) if at not in instants]
        bounds = {at: self._relaxed(tuple(sorted((*instants, at)))) for at in open_}
        ranked = sorted(bounds, key=lambda at: (-bounds[at], at != worst, at))
        self.heavy = [at for at in ranked if at != worst][:_PROMISING]
        best = ranked[0]
        if bounds[best] <= self.relaxed:
            return worst
        self.relaxed = bounds[best]
        return best

    def _relaxed(self, instants: tuple[int, ...]) -> float:
        """The relaxed bound of the recomputation at the instants; 0 if there is no time."""
        search = self.search
        if search.clock.expired:
            return 0
        stages = staged_formulation(search.flat, instants, search.budget, coarse=True)
        answer = None if stages.impossible else solve_relaxed(stages.linear, clock=search.clock)
        return IMPOSSIBLE if answer is None or answer.infeasible else answer.bound


def staged(search: Search, stages: Stages, x: NDArray[np.float64]) -> Sequence:
    """The run sequence that a solution describes: data resident at each instant, the rest recomputed on demand."""
    saved = np.zeros(stages.resident.shape, np.bool_)
    decided = stages.resident >= 0
    saved[decided] = x[stages.resident[decided]] >= 0.5
    at = np.array(stages.instants, np.int32)
    sequence: Sequence = recompute_on_demand(search.flat, search.base, at, saved)
    return sequence
