"""The oracle: the optimum over *all* schedules of a tiny graph, with any order, reruns of any node, options and contributions.

A* search over states (nodes that have run, resident data). More resident data are never a disadvantage, because drops are free
and can be delayed until memory is needed: a state therefore drops only the inclusion-minimal sets that make the next run fit, and
it is dominated by a state that has run the same nodes, has at least the same resident data, and is reached no later. The
heuristic is the time of the nodes that must still run once, which is admissible: the first goal reached is optimal, and the
smallest estimate in the queue is a bound if the search stops early.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from typing import ClassVar, NamedTuple

from attrs import field, frozen

from remat.algorithms._core.clock import Clock
from remat.algorithms._core.outcome import IMPOSSIBLE, Plan
from remat.algorithms._core.problem import Problem
from remat.algorithms._core.solver import Solver
from remat.algorithms._whole.timed_tables import mask
from remat.ir import Graph, Phase, Run, Schedule
from remat.ir.arguments import A_GRAPH
from remat.settings import takes, whole

Residency = tuple[int, ...]
"""Contributions per cell: data in the graph's order (0 or all for one writer), then phantoms (0, or option + 1)."""


@frozen(kw_only=True)
class Exhaustive(Solver):
    """Optimal over every valid schedule, or infeasible; without a proof for others. Exponential: for oracles and for tiny graphs.

    With a link, over every schedule with copies too, of flat graphs of at most 63 nodes and data (`timed_search.py`): chains of
    eight stages take milliseconds to seconds. There copies may start at any time, which steps cannot always say: where only such
    a schedule is faster, what is left between plan and bound is shown as a gap. The host's memory has no limit in the bound.
    Graphs that are searched for no copies, and a host without room for them, get the fastest schedule without copies.

    Attributes:
        max_nodes: graphs with more compute nodes are refused.
        max_states: expanded states after which the search gives up and states the bound it has reached, as it does after 64 times
            as many moves; a second search, for copies issued by steps, has as many states.
    """

    models_link: ClassVar[bool] = True

    max_nodes: int = field(default=16, validator=whole(1, "nodes"))
    max_states: int = field(default=300_000, validator=whole(1, "states"))

    @takes(graph=A_GRAPH)
    def refuses(self, graph: Graph) -> str | None:
        """Refuses graphs that are too large."""
        if len(graph) <= self.max_nodes:
            return None
        return f"{len(graph)} nodes are more than {self.max_nodes}; give max_nodes=…, or ask another solver"

    def plan(self, problem: Problem, clock: Clock, seed: int) -> Plan:
        """The optimum with its proof; if the search stops early, only a bound."""
        if problem.link is not None:
            # its kernels are loaded where a link asks for them
            from remat.algorithms._whole.exhaustive_copies import plan_with_copies

            return plan_with_copies(
                problem, self.max_states, clock, lambda: _Search(problem).result(self.max_states, clock)
            )
        return _Search(problem).result(self.max_states, clock)


_MOVES = 64  # for each state that may be expanded: one state alone may have millions
_ASKED = 256  # moves between two looks at the clock

State = tuple[int, Residency]
"""The nodes that have run, as bits, and the contributions per cell."""


class _Arrival(NamedTuple):
    """The earliest known arrival at a state: time [ns], previous state and run, both None for the start."""

    time: int
    origin: State | None
    run: Run | None


class _Frontier:
    """The queue of A*: states by estimated total time, then by time, then by order of insertion."""

    def __init__(self, start: State, estimate: int) -> None:
        self.queue: list[tuple[int, int, int, int, Residency]] = [(estimate, 0, 0, *start)]
        self.arrivals: dict[State, _Arrival] = {start: _Arrival(0, None, None)}
        self._pushed = 0

    def pop(self) -> tuple[int, int, State]:
        """The next (bound, time, state); it may have been reached earlier since."""
        bound, time, _, ran, residency = heapq.heappop(self.queue)
        return bound, time, (ran, residency)

    def push(self, state: State, arrival: _Arrival, left: int) -> None:
        """Add an arrival at a state from which at least `left` ns are needed, unless an earlier one is known."""
        if state in self.arrivals and self.arrivals[state].time <= arrival.time:
            return
        self.arrivals[state] = arrival
        self._pushed += 1
        heapq.heappush(self.queue, (arrival.time + left, arrival.time, self._pushed, *state))

    def runs_to(self, state: State) -> list[Run]:
        """The runs from the start to a state."""
        runs: list[Run] = []
        arrival = self.arrivals[state]
        while arrival.run is not None and arrival.origin is not None:
            runs.append(arrival.run)
            arrival = self.arrivals[arrival.origin]
        runs.reverse()
        return runs


class _Search:
    def __init__(self, problem: Problem) -> None:
        graph = self.graph = problem.graph
        self.budget = problem.budget
        data = len(graph.data)
        self.sizes = [0 if datum.outside else datum.size for datum in graph.data]
        self.complete = [max(1, len(datum.writers)) for datum in graph.data]
        self.kept = [datum.keep for datum in graph.data]
        self.outside = [datum.outside for datum in graph.data]
        self.cell = {**graph.data_index, **{layer.phantom: data + i for i, layer in enumerate(graph.layers)}}
        self.touched = [[self._touched(i, o) for o in range(len(n.options))] for i, n in enumerate(graph.computes)]
        self.least_time = [min(option.time for option in node.options) for node in graph.computes]
        self.draws = [i for i, node in enumerate(graph.computes) if node.draws]
        self.required = mask(graph.required)
        self.forward = mask(i for i, node in enumerate(graph.computes) if node.phase is Phase.FORWARD)

    # -- states --------------------------------------------------------------------------------------------------------

    def bytes_of(self, cell: int, contents: int) -> int:
        if cell < len(self.sizes):
            return self.sizes[cell] if contents else 0
        return self.graph.layers[cell - len(self.sizes)].options[contents - 1].phantom if contents else 0

    def estimate(self, ran: int) -> int:
        left = self.required & ~ran
        return sum(least for i, least in enumerate(self.least_time) if left >> i & 1)

    def finished(self, ran: int, residency: Residency) -> bool:
        if self.required & ~ran:
            return False
        return all(residency[d] == self.complete[d] for d, keep in enumerate(self.kept) if keep)

    def moves(self, ran: int, residency: Residency) -> Iterator[tuple[int, int, Residency]]:
        """Every (node, option, residency after it) that the rules and the budget allow."""
        for i, node in enumerate(self.graph.computes):
            if not self._allowed(i, ran):
                continue
            for option in range(len(node.options)):
                for before in self._made_to_fit(i, option, residency):
                    yield i, option, self._after(i, option, before)

    def _allowed(self, i: int, ran: int) -> bool:
        """Whether the rules allow a run of the node after those that have run, apart from what must be resident."""
        node, loss_done = self.graph.computes[i], bool(ran >> self.graph.loss & 1)
        if ran >> i & 1:
            return not node.run_once and node.phase is not Phase.LOSS
        if node.draws and self._next_draw(ran) != i:
            return False
        if node.phase is Phase.LOSS:
            return not self.forward & ~ran
        return loss_done == (node.phase is Phase.BACKWARD)

    def _next_draw(self, ran: int) -> int:
        return next(i for i in self.draws if not ran >> i & 1)

    def _touched(self, i: int, option: int) -> tuple[list[tuple[int, int]], int | None]:
        """For a run: (cell, required contents) of its reads, and the cell of the phantom that it makes, if any."""
        touched = self.graph.touched(Run(self.graph.computes[i].name, option))
        cells = [self.cell[name] for name in touched.reads]
        reads = [(cell, self.complete[cell] if cell < len(self.sizes) else option + 1) for cell in cells]
        phantoms = (self.cell[name] for name in touched.makes if self.cell[name] >= len(self.sizes))
        return reads, next(phantoms, None)

    def _made_to_fit(self, i: int, option: int, residency: Residency) -> Iterator[Residency]:
        """The states, after as few drops as possible, in which the run is legal and fits."""
        reads, _ = self.touched[i][option]
        if any(residency[cell] != contents for cell, contents in reads):
            return
        state = self._ready_to_add(i, residency)
        if state is None:
            return
        live = sum(self.bytes_of(cell, contents) for cell, contents in enumerate(state))
        over = live + self._charge(i, option) - self.budget
        if over <= 0:
            yield tuple(state)
            return
        sums = {d for d in self.graph.writes_by_node[i] if self.complete[d] > 1 and state[d]}
        yield from self._drops(state, over, {cell for cell, _ in reads} | sums)

    def _ready_to_add(self, i: int, residency: Residency) -> list[int] | None:
        """The state in which the node may contribute to each of its sums; None if no drop leads to such a state."""
        state = list(residency)
        for d in self.graph.writes_by_node[i]:
            writers = self.graph.writers_by_data[d]
            if len(writers) == 1 or (state[d] < len(writers) and writers[state[d]] == i):
                continue
            if writers[0] != i or (self.kept[d] and state[d] == self.complete[d]):
                return None
            state[d] = 0
        return state

    def _charge(self, i: int, option: int) -> int:
        """Bytes that a run takes in addition to the resident data: its workspace, its outputs and its phantom."""
        _, phantom = self.touched[i][option]
        outputs = sum(self.sizes[d] for d in self.graph.writes_by_node[i])
        saved = 0 if phantom is None else self.bytes_of(phantom, option + 1)
        return self.graph.computes[i].options[option].workspace + outputs + saved

    def _drops(self, state: list[int], over: int, needed: set[int]) -> Iterator[Residency]:
        """The states without each smallest set of droppable cells that frees at least `over` bytes."""
        for chosen in _smallest_covers(self._free(state, needed), over):
            yield tuple(0 if cell in chosen else contents for cell, contents in enumerate(state))

    def _free(self, state: list[int], needed: set[int]) -> dict[int, int]:
        """Bytes of the cells that can be dropped; cells without bytes are left out."""
        free = [cell for cell, contents in enumerate(state) if cell not in needed and self._droppable(cell, contents)]
        size = {cell: self.bytes_of(cell, state[cell]) for cell in free}
        return {cell: freed for cell, freed in size.items() if freed}

    def _droppable(self, cell: int, contents: int) -> bool:
        if cell >= len(self.sizes):
            return True
        return not self.outside[cell] and not (self.kept[cell] and contents == self.complete[cell])

    def _after(self, i: int, option: int, residency: Residency) -> Residency:
        state = list(residency)
        for d in self.graph.writes_by_node[i]:
            state[d] = state[d] + 1 if self.complete[d] > 1 else 1
        _, phantom = self.touched[i][option]
        if phantom is not None:
            state[phantom] = option + 1
        return tuple(state)

    # -- search --------------------------------------------------------------------------------------------------------

    def result(self, max_states: int, clock: Clock) -> Plan:
        start: Residency = tuple([1 if outside else 0 for outside in self.outside] + [0] * len(self.graph.layers))
        frontier = _Frontier((0, start), self.estimate(0))
        settled: dict[int, list[Residency]] = {}
        expanded = moves = 0
        while frontier.queue:
            bound, time, (ran, residency) = frontier.pop()
            if frontier.arrivals[ran, residency].time < time or self._dominated(residency, settled.get(ran, [])):
                continue
            if self.finished(ran, residency):
                schedule = Schedule.from_runs(self.graph, frontier.runs_to((ran, residency)))
                return Plan(schedule=schedule, lower=time, trail=(f"Exhaustive: optimal, {expanded} states",))
            if expanded >= max_states or clock.expired:
                return _stopped(bound, clock, max_states)
            expanded += 1
            settled.setdefault(ran, []).append(residency)
            for i, option, after in self.moves(ran, residency):
                moves += 1
                if moves > _MOVES * max_states or (moves % _ASKED == 0 and clock.expired):
                    return _stopped(bound, clock, max_states)
                node, key = self.graph.computes[i], (ran | 1 << i, after)
                arrival = _Arrival(time + node.options[option].time, (ran, residency), Run(node.name, option))
                frontier.push(key, arrival, self.estimate(key[0]))
        return Plan(lower=IMPOSSIBLE, trail=(f"Exhaustive: impossible, {expanded} states",))

    def _dominated(self, residency: Residency, settled: list[Residency]) -> bool:
        """Whether a state reached no later has at least the same contents in each cell."""
        return any(
            all(b == a or not a for a, b in zip(residency, other, strict=True)) and other != residency
            for other in settled
        )


def _stopped(bound: int, clock: Clock, max_states: int) -> Plan:
    """What is known when the search ends early: no state that is left has a smaller estimate than the one it was at."""
    why = "out of time" if clock.expired else f"{max_states} states"
    return Plan(lower=bound, trail=(f"Exhaustive: stopped ({why})",))


def _smallest_covers(size: dict[int, int], over: int) -> Iterator[set[int]]:
    """The sets of items whose sizes sum to at least `over` and of which none can be spared.

    Items are added by falling size: a set that reaches the sum with its last item, its smallest, has none to spare.
    """
    items = sorted(size, key=lambda item: (-size[item], item))
    rest = [0] * (len(items) + 1)
    for k in range(len(items) - 1, -1, -1):
        rest[k] = rest[k + 1] + size[items[k]]

    def extended(chosen: tuple[int, ...], k: int, missing: int) -> Iterator[set[int]]:
        while rest[k] >= missing and k < len(items):
            item = items[k]
            k += 1
            if size[item] >= missing:
                yield {*chosen, item}
            else:
                yield from extended((*chosen, item), k, missing - size[item])

    return extended((), 0, over)
