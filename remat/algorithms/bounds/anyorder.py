"""`AnyOrder`: a bound for every schedule from several instants, in every order they may come in; and plans from its solutions.

Instants are added one at a time, each where the plan of the solution that bounds least exceeds the budget most. Those that
depend on each other come in one order; for the others every order is solved, and the least bound holds for every schedule.
A solution also says in which stage each node first runs: that is how plans leave the captured order.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from attrs import field, frozen
from numpy.typing import NDArray

from remat.algorithms.bounds.chained import Chained, chained_program
from remat.algorithms.bounds.instants import Dependencies
from remat.algorithms.bounds.program import solve_mixed
from remat.algorithms.protocol import IMPOSSIBLE
from remat.algorithms.runs.csr import BACKWARD, LOSS
from remat.algorithms.runs.liveness import sweep
from remat.algorithms.runs.moves import shaved, taste
from remat.algorithms.runs.saved_set import hardest_instants, recompute_on_demand
from remat.algorithms.runs.search import RunMove, Search, Sequence
from remat.ir.checks import at_least

Order = tuple[int, ...]


@frozen
class AnyOrder(RunMove):
    """A bound for every schedule from the saved-set programme at several instants; and plans from its solutions.

    Attributes:
        rounds: most instants.
        nodes: branch-and-bound nodes of each programme.
        largest: most variables of a programme; none larger is solved.
        total: most variables of all programmes together; a thousand take about four seconds.
        patience: rounds in a row without a better bound or plan after which it stops.
        orders: most orders of the instants; none is added that would make more.
        tastes: preferences of the shaving tried on each plan.
        gap: do nothing when plan and bound are this close.
        accuracy: relative gap at which a programme counts as solved.
    """

    rounds: int = field(default=6, validator=at_least(1, "instants"))
    nodes: int = field(default=60, validator=at_least(1, "nodes"))
    largest: int = field(default=2000, validator=at_least(1, "variables"))
    total: int = field(default=5200, validator=at_least(1, "variables"))
    patience: int = field(default=3, validator=at_least(1, "rounds"))
    orders: int = field(default=2, validator=at_least(1, "orders"))
    tastes: int = field(default=4, validator=at_least(1, "tastes"))
    gap: float = 0.0
    accuracy: float = 0.002

    def improve(self, search: Search) -> None:
        """Solve, plan, add the instant where the plan is worst, until it fits or the programmes grow too large."""
        if search.within(self.gap):
            return
        with search.charged("bound"):
            precedence = Precedence(search)
            instants: frozenset[int] | None = frozenset(hardest_instants(search, 1))
            left, idle = self.total, 0
            for _ in range(self.rounds):
                if not instants or idle == self.patience or search.within(self.gap):
                    return
                orders = precedence.orders(instants, self.orders)
                programmes = [
                    chained_program(search.flat, precedence.dependencies, one, search.budget) for one in orders
                ]
                left -= sum(one.program.size for one in programmes)
                if left < 0 or max(one.program.size for one in programmes) > self.largest:
                    return
                before = (search.lower, search.best_time)
                instants = self._round(search, precedence, instants, programmes)
                idle = 0 if (search.lower, search.best_time) != before else idle + 1

    def _round(
        self, search: Search, precedence: Precedence, instants: frozenset[int], programmes: list[Chained]
    ) -> frozenset[int] | None:
        """Solve every order of the instants, prove the least bound; the instants with one more, or None to stop."""
        least: tuple[float, Sequence | None] = (IMPOSSIBLE, None)
        for programme in programmes:
            if search.clock.expired:
                return None
            answer = None if programme.impossible else solve_mixed(programme.program, self.accuracy, self.nodes)
            if answer is None or answer.bound is None:
                continue  # no schedule has this order
            plan = None if answer.x is None else planned(search, programme, answer.x)
            if plan is not None:
                self._offer(search, plan, len(instants))
            if answer.bound < least[0]:
                least = (answer.bound, plan)
        bound, plan = least
        names = ", ".join(search.problem.graph.computes[at].name for at in sorted(instants))
        search.prove(
            bound + search.base_time, f"instants in any order ({names}; integers, less the solver's tolerance)"
        )
        worst = None if plan is None else precedence.worst(search, plan, instants, self.orders)
        return None if worst is None else instants | {worst}

    def _offer(self, search: Search, start: Sequence, instants: int) -> None:
        with search.charged("plan"):
            for j in range(self.tastes):
                found = shaved(search, start, taste(j), search.chance(6000 + 10 * instants + j), search.budget)
                if found is not None:
                    search.offer(found, f"the programme of {self!r} at {instants} instants")


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

    def orders(self, instants: frozenset[int], most: int) -> list[Order]:
        """All orders in which the instants may first run; those found first when there are more than `most`, and one more."""
        found: list[Order] = []
        for one in self._extensions(instants):
            found.append(one)
            if len(found) > most:
                break
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
                    if len(self.orders(wider, most)) <= most:
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
