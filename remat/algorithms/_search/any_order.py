"""`AnyOrder`: a bound for every schedule from several instants, over all orders of the instants; and plans from its solutions.

Instants are added one at a time: of those with heavy working sets the one that raises the relaxed bound most; if none raises
it, the one where the plan of the solution exceeds the budget most. Instants that depend on each other have one order; for the
others every order is solved, and the least bound holds for every schedule. Where the gap stays large, instants grow once more,
with rows for stages taken together (see `fixed_order`): another instant then cannot lower the relaxed bound.
A solution also gives the stage in which each node first runs, so its plan may leave the captured order.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

import numpy as np
from attrs import field, frozen
from numpy.typing import NDArray

from remat.algorithms._arrays.graph_arrays import BACKWARD, LOSS
from remat.algorithms._arrays.kept_data import working_sets
from remat.algorithms._arrays.liveness import memory_profile
from remat.algorithms._bounds.floor import kept_before
from remat.algorithms._bounds.instants import Dependencies
from remat.algorithms._bounds.ordered_instants import Chained, ordered_formulation
from remat.algorithms._core.outcome import IMPOSSIBLE
from remat.algorithms._milp.answer import Answer
from remat.algorithms._milp.direct import solve_mixed, solve_relaxed
from remat.algorithms._search.lp_rounding import hardest_instants
from remat.algorithms._search.on_demand import recompute_on_demand
from remat.algorithms._search.passes import offer_shaved, variant
from remat.algorithms._search.state import RunMove, Search, Sequence
from remat.settings import number, whole

Order = tuple[int, ...]

_EACH = 3  # heavy instants in each part of the backward
_PROMISING = 10  # of all heavy instants, how many are scanned again
_FULL = 1500  # variables up to which a formulation gets all branch-and-bound nodes
_TALL = 3500  # rows above which a solve ends after so many checks:
_CHECKS = 100  # solved to the end, formulations of 3,600 to 5,600 rows take 9 to 32 s for the last thousandth
_LARGE_GAP = 0.02  # above it, instants grow once more with rows for stages taken together
_GROWTH = 4  # ratio of the effort that a round may take to that of the round before


@frozen
class AnyOrder(RunMove):
    """A bound for every schedule from the saved-set formulation at several instants; and plans from its solutions.

    Attributes:
        rounds: largest number of instants.
        nodes: branch-and-bound nodes of a formulation; with more than 1500 variables fewer, in inverse proportion to the square
            of their number.
        largest: largest number of variables of a formulation, without those of stages taken together; larger ones are not solved.
        effort: limit on simplex iterations times rows, summed over all formulations of a growth; one that is likely to exceed it
            is not solved. 1e7 takes about a second, half of that with stages taken together.
        orders: largest number of orders of the instants; an instant that would lead to more is not added.
        scanned: number of heavy working sets from which the relaxed formulations choose the second instant.
        variants: how many preferences of shaving are tried on each plan.
        patience: number of consecutive rounds without a better bound or plan after which it stops.
        accuracy: relative gap at which a formulation counts as solved.
    """

    rounds: int = field(default=6, validator=whole(1, "instants"))
    nodes: int = field(default=60, validator=whole(1, "nodes"))
    largest: int = field(default=3600, validator=whole(1, "variables"))
    effort: float = field(default=7.5e7, validator=number(0))
    orders: int = field(default=2, validator=whole(1, "orders"))
    scanned: int = field(default=36, validator=whole(1, "instants"))
    variants: int = field(default=4, validator=whole(1, "variants"))
    patience: int = field(default=3, validator=whole(1, "rounds"))
    accuracy: float = field(default=0.002, validator=number(0))

    def improve(self, search: Search) -> None:
        """Solve, plan and add an instant, until the plan fits, the search may end, or the formulations cost too much."""
        for coarse in (False, True):
            if search.over or (coarse and search.best_time <= (1 + _LARGE_GAP) * search.lower):
                return
            with search.charged("bound"):
                _Growth(self, search, coarse=coarse).run()


class _Growth:
    """One run of `AnyOrder`: a set of instants that grows; `coarse`: stages taken together have rows of their own."""

    def __init__(self, settings: AnyOrder, search: Search, *, coarse: bool) -> None:
        self.settings, self.search, self.coarse = settings, search, coarse
        self.precedence = Precedence(search)
        self.instants = frozenset(hardest_instants(search, 1))
        self.heavy = heavy_instants(search, settings.scanned)
        self.relaxed: float = max((search.bounds.hardness[at] for at in self.instants), default=0)
        self.plan: Sequence | None = None  # of the order with the least bound
        self.spent = self.last = 0  # effort of all formulations so far; of the largest in the last round

    def run(self) -> None:
        search, settings = self.search, self.settings
        idle = 0
        for _ in range(settings.rounds):
            before = (search.lower, search.best_time)
            if not self.instants or not self._solve():
                return
            idle = 0 if (search.lower, search.best_time) != before else idle + 1
            if idle == settings.patience or search.enough:
                return
            instant = self._scan()
            if instant is None and self.plan is not None:
                instant = self.precedence.worst(search, self.plan, self.instants, settings.orders)
            if instant is None:
                return
            self.instants |= {instant}

    def _formulation(self, order: Order) -> Chained:
        flat, dependencies = self.search.flat, self.precedence.dependencies
        return ordered_formulation(flat, dependencies, order, self.search.budget, coarse=self.coarse)

    def _solve(self) -> bool:
        """Solve every order of the instants, prove the least bound and offer plans; returns whether all were solved."""
        search, settings = self.search, self.settings
        orders = self.precedence.orders(self.instants, settings.orders)
        # the least bound over only some of the orders would not be a valid bound
        if orders is None or self.spent + _GROWTH * self.last * len(orders) > settings.effort:
            return False
        least: float = IMPOSSIBLE
        self.last, self.plan = 0, None
        for order in orders:
            formulation = self._formulation(order)
            if formulation.variables > settings.largest or search.clock.expired:
                return False
            answer = self._answer(formulation)
            if answer is None or answer.infeasible:
                continue  # no schedule has this order
            self.last = max(self.last, answer.effort)
            self.spent += answer.effort
            plan = None if answer.point is None else planned(search, formulation, answer.point)
            if plan is not None:
                self._offer(plan)
            if answer.bound < least:
                least, self.plan = answer.bound, plan
        names = ", ".join(search.problem.graph.computes[at].name for at in sorted(self.instants))
        how = f"instants in any order ({names}; integers, less the tolerance)"
        search.prove(least + search.arrays.base_time, how, claim=tuple(sorted(self.instants)))
        return True

    def _answer(self, formulation: Chained) -> Answer | None:
        """The answer with integers; None if the data that must be resident exceed the budget without any others."""
        if formulation.impossible:
            return None
        share = min(1.0, _FULL / max(1, formulation.variables))
        nodes = max(1, int(self.settings.nodes * share**2))
        linear, accuracy = formulation.linear, self.settings.accuracy
        checks = _CHECKS if len(linear.rhs) > _TALL else None
        return solve_mixed(linear, accuracy, nodes, checks=checks, clock=self.search.clock)

    def _offer(self, start: Sequence) -> None:
        search, count = self.search, len(self.instants)
        how = f"the formulation of {self.settings!r} at {count} instants"
        with search.charged("plan"):
            for j in range(self.settings.variants):
                if j and search.clock.expired:
                    return
                offer_shaved(
                    search, start, variant(j), search.streams.spawn("any order", count + 200 * self.coarse, j), how
                )

    def _scan(self) -> int | None:
        """The heavy instant that raises the relaxed bound most; None if none raises it, and then no further scan is made."""
        bounds = {at: self._relaxed(at) for at in self.heavy if at not in self.instants}
        scanned = sorted((-bound, at) for at, bound in bounds.items() if bound is not None)[:_PROMISING]
        rises = bool(scanned) and -scanned[0][0] > self.relaxed
        self.heavy = [at for _, at in scanned] if rises else []
        if not rises:
            return None
        self.relaxed = -scanned[0][0]
        return scanned[0][1]

    def _relaxed(self, at: int) -> float | None:
        """The relaxed bound with one more instant, in the first of the orders; None if it is not computed."""
        orders = self.precedence.orders(self.instants | {at}, 1)
        if orders is None or self.search.clock.expired:
            return None
        formulation = self._formulation(orders[0])
        if formulation.variables > self.settings.largest:
            return None
        answer = None if formulation.impossible else solve_relaxed(formulation.linear, clock=self.search.clock)
        return IMPOSSIBLE if answer is None or answer.infeasible else answer.bound


def heavy_instants(search: Search, count: int) -> list[int]:
    """Backward nodes with heavy working sets, including the data kept by then: the heaviest in each part of the backward."""
    flat = search.flat
    backward = np.flatnonzero((flat.phase == BACKWARD) & flat.required)
    needed = working_sets(flat) + kept_before(flat)
    parts = np.array_split(backward, max(1, count // _EACH))
    return [int(v) for nodes in parts for v in nodes[np.argsort(-needed[nodes], kind="stable")][:_EACH]]


class Precedence:
    """Which instants precede which in every schedule, and the orders that remain possible."""

    def __init__(self, search: Search) -> None:
        self.flat = search.flat
        self.dependencies = Dependencies(search.flat)
        self._before: dict[int, NDArray[np.bool_]] = {}

    def before(self, at: int) -> NDArray[np.bool_]:
        """Nodes that have run whenever `at` first runs."""
        if at not in self._before:
            self._before[at] = self.dependencies.ancestors(at)
            if self.flat.phase[at] == BACKWARD:
                self._before[at] |= self.flat.phase != BACKWARD
        return self._before[at]

    def orders(self, instants: frozenset[int], most: int) -> list[Order] | None:
        """All orders in which the instants may first run; None when there are more than `most`."""
        orders = list(islice(self._extensions(instants), most + 1))
        return orders if len(orders) <= most else None

    def _extensions(self, left: frozenset[int]) -> Iterator[Order]:
        if not left:
            yield ()
        for at in sorted(left):
            if not any(self.before(at)[other] for other in left):
                for rest in self._extensions(left - {at}):
                    yield (at, *rest)

    def worst(self, search: Search, plan: Sequence, instants: frozenset[int], most: int) -> int | None:
        """The loss or backward node whose first run is nearest to the highest position over budget and adds few orders."""
        memory = np.empty(len(plan), np.int64)
        memory_profile(search.flat, plan, len(plan), memory)
        nodes, positions = np.unique(plan, return_index=True)
        late = self.flat.phase[nodes] >= LOSS
        ranked = sorted(zip(positions[late].tolist(), nodes[late].tolist(), strict=True))
        at = np.array([i for i, _ in ranked])
        for i in np.argsort(-memory, kind="stable").tolist():
            if memory[i] <= search.budget:
                return None
            k = int(np.searchsorted(at, i))
            for near in (k, k - 1):
                if 0 <= near < len(ranked) and ranked[near][1] not in instants:
                    wider = instants | {ranked[near][1]}
                    if self.orders(wider, most) is not None:
                        return int(ranked[near][1])
        return None


def planned(search: Search, formulation: Chained, x: NDArray[np.float64]) -> Sequence:
    """The run sequence that a solution describes: first runs by stage, data resident at each instant, the rest on demand."""
    stage = formulation.stage_of(x)
    rank = {at: k + 1 for k, at in enumerate(formulation.instants)}
    base = sorted(search.base.tolist(), key=lambda v: (rank.get(v, stage[v]), v not in rank, v))
    saved = np.ones(formulation.resident.shape, np.bool_)
    decided = formulation.resident >= 0
    saved[decided] = x[formulation.resident[decided]] >= 0.5
    instants = np.array(formulation.instants, np.int32)
    sequence: Sequence = recompute_on_demand(search.flat, np.array(base, np.int32), instants, saved)
    return sequence
