"""The oracle: the optimum over *all* schedules of a tiny graph, any order, reruns of any node, options and contributions.

A* over states (nodes that have run, what is resident). More residents never hurt, because drops are free and can wait until
room is needed: so a state drops only the inclusion-minimal sets that make the next run fit, and a state is dominated by one
that has run the same nodes, holds at least as much, and came no later. The estimate of what is left is the time of the nodes
that must still run once, which no schedule can avoid; hence the first goal reached is optimal, and the smallest estimate in
the queue is a proved bound whenever the search stops early.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator
from itertools import combinations

from attrs import field, frozen

from remat.algorithms._core.clock import Clock
from remat.algorithms._core.outcome import IMPOSSIBLE, Plan
from remat.algorithms._core.problem import Problem
from remat.algorithms._core.solver import Solver
from remat.ir import Graph, Phase, Run, Schedule
from remat.settings import whole

Held = tuple[int, ...]
"""Contributions per cell: data in the graph's order (0 or all for one writer), then phantoms (0, or option + 1)."""


@frozen(kw_only=True)
class Exhaustive(Solver):
    """Optimal over every valid schedule, or proved impossible. Exponential: for oracles and for tiny graphs.

    Attributes:
        max_nodes: graphs with more compute nodes are refused.
        max_states: expanded states after which the search gives up and states the bound it has proved.
    """

    max_nodes: int = field(default=16, validator=whole(1, "nodes"))
    max_states: int = field(default=300_000, validator=whole(1, "states"))

    def refuses(self, graph: Graph) -> str | None:
        """Refuses graphs that are too large."""
        if len(graph) <= self.max_nodes:
            return None
        return f"{len(graph)} nodes are more than {self.max_nodes}; give max_nodes=…, or ask another solver"

    def plan(self, problem: Problem, clock: Clock, seed: int) -> Plan:
        """The optimum with its proof; without the time to finish, the bound alone."""
        if getattr(problem, "link", None) is not None:
            return Plan(trail=("Exhaustive: schedules with copies are not searched",))
        return _Search(problem).result(self.max_states, clock)


class _Search:
    def __init__(self, problem: Problem) -> None:
        graph = self.graph = problem.graph
        self.budget = problem.budget
        data = len(graph.data)
        self.sizes = [0 if datum.outside else datum.size for datum in graph.data]
        self.whole = [max(1, len(datum.writers)) for datum in graph.data]
        self.kept = [datum.keep for datum in graph.data]
        self.outside = [datum.outside for datum in graph.data]
        self.cell = {**graph.data_index, **{layer.phantom: data + i for i, layer in enumerate(graph.layers)}}
        self.touched = [[self._touched(i, o) for o in range(len(n.options))] for i, n in enumerate(graph.computes)]
        self.draws = [i for i, node in enumerate(graph.computes) if node.draws]
        self.required = _mask(graph.required)
        self.forward = _mask(i for i, node in enumerate(graph.computes) if node.phase is Phase.FORWARD)

    # -- states --------------------------------------------------------------------------------------------------------

    def bytes_of(self, cell: int, held: int) -> int:
        if cell < len(self.sizes):
            return self.sizes[cell] if held else 0
        return self.graph.layers[cell - len(self.sizes)].options[held - 1].phantom if held else 0

    def estimate(self, ran: int) -> int:
        left = self.required & ~ran
        return sum(min(one.time for one in node.options) for i, node in enumerate(self.graph.computes) if left >> i & 1)

    def finished(self, ran: int, held: Held) -> bool:
        if self.required & ~ran:
            return False
        return all(held[d] == self.whole[d] for d, keep in enumerate(self.kept) if keep)

    def moves(self, ran: int, held: Held) -> Iterator[tuple[int, int, Held]]:
        """Every (node, option, residents after it) that the rules and the budget allow."""
        for i, node in enumerate(self.graph.computes):
            if not self._allowed(i, ran):
                continue
            for option in range(len(node.options)):
                for before in self._made_to_fit(i, option, held):
                    yield i, option, self._after(i, option, before)

    def _allowed(self, i: int, ran: int) -> bool:
        node, first = self.graph.computes[i], not ran >> i & 1
        loss_done = bool(ran >> self.graph.loss & 1)
        if not first and (node.run_once or node.phase is Phase.LOSS):
            return False
        if first and node.draws and next(d for d in self.draws if not ran >> d & 1) != i:
            return False
        if node.phase is Phase.FORWARD:
            return not (first and loss_done)
        if node.phase is Phase.LOSS:
            return not self.forward & ~ran
        return loss_done

    def _touched(self, i: int, option: int) -> tuple[list[tuple[int, int]], int | None]:
        """For a run: (cell, what it must hold) of what it reads, and the cell of the phantom it makes, if it makes one."""
        touched = self.graph.touched(Run(self.graph.computes[i].name, option))
        cells = [self.cell[name] for name in touched.reads]
        reads = [(cell, self.whole[cell] if cell < len(self.sizes) else option + 1) for cell in cells]
        made = (self.cell[name] for name in touched.makes if self.cell[name] >= len(self.sizes))
        return reads, next(made, None)

    def _made_to_fit(self, i: int, option: int, held: Held) -> Iterator[Held]:
        """The states, after as few drops as possible, in which the run is legal and fits."""
        node = self.graph.computes[i]
        reads, phantom = self.touched[i][option]
        if any(held[cell] != must for cell, must in reads):
            return
        state = list(held)
        for d in self.graph.writes_by_node[i]:
            writers = self.graph.writers_by_data[d]
            if len(writers) == 1 or (state[d] < len(writers) and writers[state[d]] == i):
                continue
            if writers[0] != i or (self.kept[d] and state[d] == self.whole[d]):
                return  # its turn is not now, and cannot be made by a drop
            state[d] = 0
        charge = node.options[option].workspace + sum(self.sizes[d] for d in self.graph.writes_by_node[i])
        if phantom is not None:
            charge += self.bytes_of(phantom, option + 1)
        live = sum(self.bytes_of(cell, h) for cell, h in enumerate(state))
        over = live + charge - self.budget
        if over <= 0:
            yield tuple(state)
            return
        needed = {cell for cell, _ in reads} | {
            d for d in self.graph.writes_by_node[i] if self.whole[d] > 1 and state[d]
        }
        yield from self._drops(state, over, needed)

    def _drops(self, state: list[int], over: int, needed: set[int]) -> Iterator[Held]:
        free = [cell for cell, h in enumerate(state) if h and cell not in needed and self._droppable(cell, h)]
        free = [cell for cell in free if self.bytes_of(cell, state[cell])]
        found: list[set[int]] = []
        for count in range(1, len(free) + 1):
            for chosen in combinations(free, count):
                if any(smaller <= set(chosen) for smaller in found):
                    continue
                if sum(self.bytes_of(cell, state[cell]) for cell in chosen) >= over:
                    found.append(set(chosen))
                    yield tuple(0 if cell in chosen else h for cell, h in enumerate(state))

    def _droppable(self, cell: int, held: int) -> bool:
        if cell >= len(self.sizes):
            return True
        return not self.outside[cell] and not (self.kept[cell] and held == self.whole[cell])

    def _after(self, i: int, option: int, held: Held) -> Held:
        state = list(held)
        for d in self.graph.writes_by_node[i]:
            state[d] = state[d] + 1 if self.whole[d] > 1 else 1
        _, phantom = self.touched[i][option]
        if phantom is not None:
            state[phantom] = option + 1
        return tuple(state)

    # -- search --------------------------------------------------------------------------------------------------------

    def result(self, max_states: int, clock: Clock) -> Plan:
        start: Held = tuple([1 if outside else 0 for outside in self.outside] + [0] * len(self.graph.layers))
        queue: list[tuple[int, int, int, int, Held]] = [(self.estimate(0), 0, 0, 0, start)]
        came: dict[tuple[int, Held], tuple[int, tuple[int, Held] | None, Run | None]] = {(0, start): (0, None, None)}
        settled: dict[int, list[Held]] = {}
        order = expanded = 0
        while queue:
            bound, time, _, ran, held = heapq.heappop(queue)
            if came[ran, held][0] < time or self._dominated(held, settled.get(ran, [])):
                continue
            if self.finished(ran, held):
                schedule = Schedule.from_runs(self.graph, self._runs(came, (ran, held)))
                return Plan(schedule=schedule, lower=time, trail=(f"Exhaustive: optimal, {expanded} states",))
            if expanded >= max_states or clock.expired:
                why = "out of time" if clock.expired else f"{max_states} states"
                return Plan(lower=bound, trail=(f"Exhaustive: stopped ({why})",))
            expanded += 1
            settled.setdefault(ran, []).append(held)
            for i, option, after in self.moves(ran, held):
                node = self.graph.computes[i]
                key = (ran | 1 << i, after)
                later = time + node.options[option].time
                if key in came and came[key][0] <= later:
                    continue
                came[key] = (later, (ran, held), Run(node.name, option))
                order += 1
                heapq.heappush(queue, (later + self.estimate(key[0]), later, order, *key))
        return Plan(lower=IMPOSSIBLE, trail=(f"Exhaustive: proved impossible, {expanded} states",))

    def _dominated(self, held: Held, settled: list[Held]) -> bool:
        """Whether a state reached no later holds at least as much, cell by cell."""
        return any(
            all(b == a or not a for a, b in zip(held, other, strict=True)) and other != held for other in settled
        )

    def _runs(
        self, came: dict[tuple[int, Held], tuple[int, tuple[int, Held] | None, Run | None]], key: tuple[int, Held]
    ) -> list[Run]:
        runs: list[Run] = []
        at: tuple[int, Held] | None = key
        while at is not None:
            _, at, run = came[at]
            if run is not None:
                runs.append(run)
        runs.reverse()
        return runs


def _mask(bits: Iterable[int]) -> int:
    mask = 0
    for bit in bits:
        mask |= 1 << bit
    return mask
