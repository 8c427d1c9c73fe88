"""The proved floor: bytes that some step of every schedule needs, whatever is recomputed.

When a node first runs, its reads are resident, its outputs and workspace are charged, and the kept data of its ancestors
(for a backward node: also of all forward nodes) are resident. At the end all kept data are resident. The largest of these
sums is a floor.

A higher floor follows from data that must be resident together. Let a set of data be resident at one moment, and let p be the
node whose run began the last of their residencies. At that run all others were resident already, together with the data that p
reads, its outputs and workspace, and the kept data of its ancestors; and just before it the others and p's reads were resident
together, to which the same argument applies. As p is not known, the least value over all choices of p counts: a minimax
(bottleneck) path over sets, from the reads of a node to the empty set. Leaving data out of the sets only lowers the floor.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from remat.algorithms._arrays.graph_arrays import BACKWARD, Flat, flatten, row_of
from remat.algorithms._arrays.kept_data import kept_by_node, permanent, working_sets
from remat.algorithms._core.clock import A_CLOCK, Clock
from remat.ir import Graph, Run
from remat.ir.arguments import A_GRAPH
from remat.settings import takes
from remat.units import Bytes

_SETS = 3000  # sets expanded for one node; after that the least value in the queue counts
_ALL_SETS = 12_000  # sets expanded for all nodes of a graph together
_SMALL = 0.005  # data below this share of the floor are left out of the sets


def floor_of(flat: Flat, clock: Clock | None = None) -> tuple[Bytes, int]:
    """The floor and the node that needs it (-1: the end of the step); a lower floor, equally valid, if the clock expires."""
    before = kept_before(flat)
    first_runs = _first_runs(flat, before)
    best, node = _heaviest(flat, first_runs)
    resident_sets = ResidentSets(flat, before, int(best * _SMALL))
    left = _ALL_SETS
    for _, v in sorted((-needed, v) for v, needed in enumerate(first_runs)):
        if left <= 0 or (clock is not None and clock.expired):
            break
        needed, expanded = resident_sets.needs(v, best, min(left, _SETS))
        left -= expanded
        if needed > best:
            best, node = needed, v
    return best, node


def first_run_floor(flat: Flat) -> tuple[Bytes, int]:
    """The part of the floor that holds with copies too: the first run of a node, or the end of the step (-1)."""
    return _heaviest(flat, _first_runs(flat, kept_before(flat)))


def _heaviest(flat: Flat, first_runs: list[Bytes]) -> tuple[Bytes, int]:
    """The most bytes that a first run or the end of the step needs, and its node (-1: the end)."""
    best, node = int(flat.size[flat.keep].sum()), -1
    for v, needed in enumerate(first_runs):
        if needed > best:
            best, node = needed, v
    return best, node


def _first_runs(flat: Flat, before: NDArray[np.int64]) -> list[Bytes]:
    """Bytes that the first run of each node needs: its reads, outputs and workspace, and the data kept by then."""
    needed: list[Bytes] = (working_sets(flat) + before).tolist()
    return needed


def kept_before(flat: Flat) -> NDArray[np.int64]:
    """Per node: bytes that its ancestors (of a backward node: also all forward nodes) make and that must stay."""
    nodes, staying = flat.time.size, kept_by_node(flat)
    making = np.flatnonzero(staying)  # the nodes that make such data; a set of them is a row of bits
    column = np.full(nodes, -1)
    column[making] = np.arange(len(making))
    width = -(-len(making) // 8)
    bit = np.packbits(np.eye(8, dtype=np.bool_), axis=1).ravel()
    forward = np.packbits(flat.phase[making] != BACKWARD)
    ran = np.zeros((nodes, width), np.uint8)
    for v in range(nodes):
        if flat.phase[v] == BACKWARD:
            ran[v] |= forward
        for u in row_of(flat.predecessors, v).tolist():
            ran[v] |= ran[u]
            if column[u] >= 0:
                ran[v, column[u] // 8] |= bit[column[u] % 8]
    sizes = np.zeros(8 * width, np.int64)
    sizes[: len(making)] = staying[making]
    of_byte = sizes.reshape(width, 8) @ np.unpackbits(np.arange(256, dtype=np.uint8)[None], axis=0)
    return np.array([of_byte[np.arange(width), row].sum() for row in ran], np.int64)


class ResidentSets:
    """Bytes that a node needs, from the sets of data that must be resident together before it runs."""

    def __init__(self, flat: Flat, before: NDArray[np.int64], small: int) -> None:
        stays = permanent(flat)
        self.size: list[int] = flat.size.tolist()
        self.producer: list[int] = flat.producer.tolist()
        self.fixed: list[int] = (flat.charge + before).tolist()
        nodes = range(flat.time.size)
        reads = [row_of(flat.reads, v).tolist() for v in nodes]
        self.reads = [[d for d in data if not stays[d]] for data in reads]
        counted = (flat.size > small) & (flat.phase[np.maximum(flat.producer, 0)] == BACKWARD)
        self.sources = [frozenset(d for d in data if counted[d]) for data in self.reads]
        self.least: dict[
            frozenset[int], int
        ] = {}  # of the last search with a result: sets with the bytes that they need
        self.makes = [frozenset(row_of(flat.writes, v).tolist()) for v in nodes]

    def _bytes(self, data: Iterable[int]) -> Bytes:
        return sum(self.size[d] for d in data)

    def needs(self, node: int, floor: Bytes, most: int) -> tuple[Bytes, int]:
        """Bytes that some run needs before or at the first run of `node`, and how many sets were expanded.

        Only results above `floor` are of use: the search prunes below it. After `most` sets the result is a lower bound.
        """
        if len(self.sources[node]) < 2:
            return 0, 0
        start = self.sources[node]
        first = max(floor, self.fixed[node] + self._bytes(self.reads[node]))
        queue = [(first, self._latest(start), 0, start)]
        least = {start: first}
        expanded = pushed = 0
        while queue:
            bytes_, _, _, resident = heapq.heappop(queue)
            if not resident or expanded == most:
                self.least = least
                return bytes_, expanded
            if bytes_ > least[resident]:
                continue
            expanded += 1
            for p in {self.producer[d] for d in resident}:
                rest = resident - self.makes[p]
                before = rest | self.sources[p]
                needed = max(bytes_, self.fixed[p] + self._bytes(rest.union(self.reads[p])))
                if needed < least.get(before, needed + 1):
                    least[before] = needed
                    pushed += 1
                    heapq.heappush(queue, (needed, self._latest(before), pushed, before))
        return 0, expanded

    def _latest(self, resident: frozenset[int]) -> int:
        """Of sets that need the same bytes, the one whose data are made earliest is expanded first."""
        return max((self.producer[d] for d in resident), default=-1)


def floor_family(flat: Flat, node: int, budget: Bytes) -> list[frozenset[int]]:
    """Sets of data that are never resident together within a budget below the floor of `node`; `node` reads one of the sets.

    The run that would complete one of them exceeds the budget, or another of them was resident just before. Empty if the first
    run of the node exceeds the budget. See `remat.proof`.
    """
    before = kept_before(flat)
    first_runs = _first_runs(flat, before)
    if first_runs[node] > budget:
        return []
    resident_sets = ResidentSets(flat, before, int(max(int(flat.size[flat.keep].sum()), *first_runs) * _SMALL))
    resident_sets.needs(node, budget, _SETS)
    return [resident for resident, needed in resident_sets.least.items() if needed <= budget]


def node_floor(graph: Graph) -> Bytes:
    """A lower floor, cheap and for any graph: the larger of all kept data and the need of the heaviest node that must run.

    Its need is the data that it reads and makes, phantoms included, and its workspace, under the option that needs least.
    """
    kept = sum(datum.size for datum in graph.data if datum.keep)
    needs = (
        min(_working_set(graph, Run(node.name, k)) for k in range(len(node.options)))
        for node in (graph.computes[i] for i in graph.required)
    )
    return max(kept, *needs)


def _working_set(graph: Graph, run: Run) -> Bytes:
    touched, option = graph.touched(run), graph.node(run.node).options[run.option]
    return sum(touched.reads.values()) + sum(touched.makes.values()) + option.workspace


@takes(graph=A_GRAPH, clock=A_CLOCK)
def proved_floor(graph: Graph, clock: Clock | None = None) -> Bytes:
    """No schedule of a flat graph fits fewer bytes than this; less is proved when the clock expires."""
    return floor_of(flatten(graph), clock)[0]
