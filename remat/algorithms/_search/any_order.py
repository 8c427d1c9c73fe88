"""`AnyOrder`: a bound for every schedule from several instants, in every order they may come in; and plans from its solutions.

Instants are added one at a time: of those with heavy working sets the one that raises the relaxed bound most, and when none
does, where the plan of the solution exceeds the budget most. Those that depend on each other come in one order; for the
others every order is solved, and the least bound holds for every schedule.
A solution also says in which stage each node first runs: that is how plans leave the captured order.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from attrs import field, frozen
from numpy.typing import NDArray

from remat.algorithms._arrays.graph_arrays import BACKWARD, LOSS
from remat.algorithms._arrays.liveness import sweep
from remat.algorithms._bounds.floor import kept_before
from remat.algorithms._bounds.instants import Dependencies
from remat.algorithms._bounds.ordered_instants import Chained, chained_program
from remat.algorithms._core.outcome import IMPOSSIBLE
from remat.algorithms._milp.direct import solve_mixed, solve_relaxed
from remat.algorithms._search.lp_rounding import hardest_instants, recompute_on_demand
from remat.algorithms._search.passes import shaved, taste
from remat.algorithms._search.state import RunMove, Search, Sequence
from remat.settings import number, whole

Order = tuple[int, ...]

_EACH = 3  # heavy instants of each stretch of the backward
_PROMISING = 10  # of them, how many are looked at again
_FULL = 1500  # variables up to which a programme gets all branch-and-bound nodes
_GROWTH = 4  # how much more a round may take than the one before


@frozen
class AnyOrder(RunMove):
    """A bound for every schedule from the saved-set programme at several instants; and plans from its solutions.

    Attributes:
        rounds: most instants.
        nodes: branch-and-bound nodes of a programme; one of more than 1500 variables gets fewer, by the square of its size.
        largest: most variables of a programme; none larger is built.
        effort: simplex iterations times rows of all programmes together, none is begun that is likely to exceed it;
            1e7 are about a second.
        orders: most orders of the instants; none is added that would make more.
        scanned: heavy working sets among which the relaxed programmes look for the second instant.
        tastes: preferences of the shaving tried on each plan.
        patience: rounds in a row without a better bound or plan after which it stops.
        gap: do nothing when plan and bound are this close.
        accuracy: relative gap at which a programme counts as solved.
    """

    rounds: int = field(default=6, validator=whole(1, "instants"))
    nodes: int = field(default=60, validator=whole(1, "nodes"))
    largest: int = field(default=3600, validator=whole(1, "variables"))
    effort: float = field(default=7.5e7, validator=number(0))
    orders: int = field(default=2, validator=whole(1, "orders"))
    scanned: int = field(default=36, validator=whole(1, "instants"))
    tastes: int = field(default=4, validator=whole(1, "tastes"))
    patience: int = field(default=3, validator=whole(1, "rounds"))
    gap: float = field(default=0.0, validator=number(0))
    accuracy: float = field(default=0.002, validator=number(0))

    def improve(self, search: Search) -> None:
        """Solve, plan, add an instant, until the plan fits, the gap is met, or the programmes cost too much."""
        if not search.within(self.gap):
            with search.charged("bound"):
                _Growth(self, search).run()


class _Growth:
    """One run of `AnyOrder`: a set of instants that grows."""

    def __init__(self, settings: AnyOrder, search: Search) -> None:
        self.settings, self.search = settings, search
        self.precedence = Precedence(search)
        self.instants = frozenset(hardest_instants(search, 1))
        self.heavy = heavy_instants(search, settings.scanned)
        self.relaxed: float = max((search.hardness[at] for at in self.instants), default=0)
        self.plan: Sequence | None = None  # of the order that bounds least
        self.spent = self.last = 0  # effort of all programmes, and of the largest of the last round

    def run(self) -> None:
        search, settings = self.search, self.settings
        idle = 0
        for _ in range(settings.rounds):
            before = (search.lower, search.best_time)
            if not self.instants or not self._solve():
                return
            idle = 0 if (search.lower, search.best_time) != before else idle + 1
            if idle == settings.patience or search.within(settings.gap):
                return
            more = self._scan()
            if more is None and self.plan is not None:
                more = self.precedence.worst(search, self.plan, self.instants, settings.orders)
            if more is None:
                return
            self.instants |= {more}

    def _programme(self, order: Order) -> Chained:
        return chained_program(self.search.flat, self.precedence.dependencies, order, self.search.budget)

    def _solve(self) -> bool:
        """Solve every order of the instants, prove the least bound, offer plans; whether that could be done."""
        search, settings = self.search, self.settings
        orders = self.precedence.orders(self.instants, settings.orders)
        if orders is None:
            return False  # the least over some of the orders is no bound
        if self.spent + _GROWTH * self.last * len(orders) > settings.effort:
            return False
        least: float = IMPOSSIBLE
        self.last, self.plan = 0, None
        for order in orders:
            programme = self._programme(order)
            if programme.linear.shape[1] > settings.largest or search.clock.expired:
                return False
            nodes = max(1, int(settings.nodes * min(1.0, _FULL / max(1, programme.linear.shape[1])) ** 2))
            answer = None
            if not programme.impossible:
                answer = solve_mixed(programme.linear, settings.accuracy, nodes, clock=search.clock)
            if answer is None or answer.infeasible:
                continue  # no schedule has this order
            self.last = max(self.last, answer.effort)
            self.spent += answer.effort
            plan = None if answer.point is None else planned(search, programme, answer.point)
            if plan is not None:
                self._offer(plan)
            if answer.bound < least:
                least, self.plan = answer.bound, plan
        names = ", ".join(search.problem.graph.computes[at].name for at in sorted(self.instants))
        said = f"instants in any order ({names}; integers, less the tolerance)"
        search.prove(least + search.base_time, said, claim=tuple(sorted(self.instants)))
        return True

    def _offer(self, start: Sequence) -> None:
        search, count = self.search, len(self.instants)
        with search.charged("plan"):
            for j in range(self.settings.tastes):
                if j and search.clock.expired:
                    return
                found = shaved(search, start, taste(j), search.chance(6000 + 10 * count + j), search.budget)
                if found is not None:
                    search.offer(found, f"the programme of {self.settings!r} at {count} instants")

    def _scan(self) -> int | None:
        """The heavy instant that raises the relaxed bound most; None when none does, and then no more are looked at."""
        found: list[tuple[float, int]] = []
        for at in self.heavy:
            orders = self.precedence.orders(self.instants | {at}, 1)
            if at in self.instants or orders is None or self.search.clock.expired:
                continue
            programme = self._programme(orders[0])
            if programme.linear.shape[1] > self.settings.largest:
                continue
            answer = None if programme.impossible else solve_relaxed(programme.linear, clock=self.search.clock)
            bound = IMPOSSIBLE if answer is None or answer.infeasible else answer.bound
            found.append((-bound, at))
        found = sorted(found)[:_PROMISING]
        rises = bool(found) and -found[0][0] > self.relaxed
        self.heavy = [at for _, at in found] if rises else []
        if not rises:
            return None
        self.relaxed = -found[0][0]
        return found[0][1]


def heavy_instants(search: Search, count: int) -> list[int]:
    """Backward nodes of heavy working sets, what must be kept by then included: the heaviest of each stretch of the backward."""
    flat = search.flat
    kept = flat.keep & (flat.contributions == 1)
    backward = np.flatnonzero((flat.phase == BACKWARD) & flat.required)
    reads = np.where(kept, 0, flat.size)[flat.read_idx]
    needed = flat.charge + kept_before(flat)
    np.add.at(needed, np.repeat(np.arange(flat.time.size), np.diff(flat.read_ptr)), reads)
    stretches = np.array_split(backward, max(1, count // _EACH))
    return [int(v) for one in stretches for v in one[np.argsort(-needed[one], kind="stable")][:_EACH]]


class Precedence:
    """Which instants come before which in every schedule, and the orders that leaves."""

    def __init__(self, search: Search) -> None:
        self.flat = search.flat
        self.dependencies = Dependencies(search.flat)
        self._before: dict[int, NDArray[np.bool_]] = {}

    def before(self, at: int) -> NDArray[np.bool_]:
        """Nodes that have run whenever `at` first runs."""
        if at not in self._before:
            self._before[at] = self.dependencies.reach(at, *self.dependencies.before)
            if self.flat.phase[at] == BACKWARD:
                self._before[at] |= self.flat.phase != BACKWARD
        return self._before[at]

    def orders(self, instants: frozenset[int], most: int) -> list[Order] | None:
        """All orders in which the instants may first run; None when there are more than `most`."""
        found: list[Order] = []
        for one in self._extensions(instants):
            if len(found) == most:
                return None
            found.append(one)
        return found

    def _extensions(self, left: frozenset[int]) -> Iterator[Order]:
        if not left:
            yield ()
        for at in sorted(left):
            if not any(self.before(at)[other] for other in left):
                for rest in self._extensions(left - {at}):
                    yield (at, *rest)

    def worst(self, search: Search, plan: Sequence, known: frozenset[int], most: int) -> int | None:
        """The node from the loss on whose first run is next to the highest position over budget, and makes few orders."""
        memory = np.empty(len(plan), np.int64)
        sweep(search.flat, plan, len(plan), memory)
        nodes, positions = np.unique(plan, return_index=True)
        late = self.flat.phase[nodes] >= LOSS
        ranked = sorted(zip(positions[late].tolist(), nodes[late].tolist(), strict=True))
        at = np.array([i for i, _ in ranked])
        for i in np.argsort(-memory, kind="stable").tolist():
            if memory[i] <= search.budget:
                return None
            k = int(np.searchsorted(at, i))
            for near in (k, k - 1):
                if 0 <= near < len(ranked) and ranked[near][1] not in known:
                    wider = known | {ranked[near][1]}
                    if self.orders(wider, most) is not None:
                        return int(ranked[near][1])
        return None


def planned(search: Search, programme: Chained, x: NDArray[np.float64]) -> Sequence:
    """The run sequence that a solution means: first runs in its stages, what it holds at each instant, the rest on demand."""
    stage = programme.stage_of(x)
    rank = {at: k + 1 for k, at in enumerate(programme.instants)}
    base = sorted(search.base.tolist(), key=lambda v: (rank.get(v, stage[v]), v not in rank, v))
    saved = np.ones(programme.resident.shape, np.bool_)
    known = programme.resident >= 0
    saved[known] = x[programme.resident[known]] >= 0.5
    instants = np.array(programme.instants, np.int32)
    sequence: Sequence = recompute_on_demand(search.flat, np.array(base, np.int32), instants, saved)
    return sequence
