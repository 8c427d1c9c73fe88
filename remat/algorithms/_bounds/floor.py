"""The proved floor: bytes that some step of every schedule needs, whatever is recomputed.

When a node first runs, its reads are resident, its outputs and workspace are charged, and what its ancestors (for a
backward node: also all forward nodes) made and must be kept is there. At the end all kept data are. The largest of
these is a floor.

A higher one follows from what must be resident together. Let a set of data be resident at one moment, and let p be the
node whose run began the last of their residencies. At that run all others were resident already, with what p reads, its
outputs and workspace, and what its ancestors made and must be kept; and just before it the others and p's reads were
resident together: the same question again. Which p it was is not known, so the least of all choices counts: a path of
least bottleneck over sets, from the reads of a node to nothing. Leaving data out of the sets only lowers the floor.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from remat.algorithms._arrays.graph_arrays import BACKWARD, Flat, flatten
from remat.algorithms._core.clock import Clock
from remat.ir import Graph, Run
from remat.units import Bytes

_SETS = 3000  # sets looked at for one node; what is left then counts as the least found
_ALL_SETS = 12_000  # the same for all nodes of a graph together
_SMALL = 0.005  # data below this share of the floor are left out of the sets


def floor_of(flat: Flat, clock: Clock | None = None) -> tuple[Bytes, int]:
    """The floor and the node that needs it (-1: the end of the step); a lower one, as valid, when the clock expires."""
    before = kept_before(flat)
    alone = _first_runs(flat, before)
    best, who = int(flat.size[flat.keep].sum()), -1
    for v, needed in enumerate(alone):
        if needed > best:
            best, who = needed, v
    together = Together(flat, before, int(best * _SMALL))
    left = _ALL_SETS
    for _, v in sorted((-needed, v) for v, needed in enumerate(alone)):
        if left <= 0 or (clock is not None and clock.expired):
            break
        needed, looked = together.needs(v, best, min(left, _SETS))
        left -= looked
        if needed > best:
            best, who = needed, v
    return best, who


def _first_runs(flat: Flat, before: NDArray[np.int64]) -> list[Bytes]:
    """What the first run of each node needs: its reads, outputs and workspace, and what must be kept by then."""
    kept = flat.keep & (flat.contributions == 1)
    reads = [flat.read_idx[flat.read_ptr[v] : flat.read_ptr[v + 1]] for v in range(flat.time.size)]
    return [int(flat.charge[v] + flat.size[one[~kept[one]]].sum() + before[v]) for v, one in enumerate(reads)]


def kept_before(flat: Flat) -> NDArray[np.int64]:
    """Per node: bytes that its ancestors (of a backward node: also all forward nodes) make and that must stay."""
    nodes = flat.time.size
    whole_kept = flat.keep & (flat.contributions == 1)
    made = np.zeros(nodes, np.int64)  # bytes a node makes that stay from its first run
    np.add.at(made, flat.producer[whole_kept], flat.size[whole_kept])
    forward = np.packbits(flat.phase != BACKWARD)
    ran = np.zeros((nodes, len(forward)), np.uint8)
    one = np.packbits(np.eye(8, dtype=np.bool_), axis=1).ravel()
    found = np.zeros(nodes, np.int64)
    for v in range(nodes):
        if flat.phase[v] == BACKWARD:
            ran[v] |= forward
        for u in flat.order_idx[flat.order_ptr[v] : flat.order_ptr[v + 1]].tolist():
            ran[v] |= ran[u]
            ran[v, u // 8] |= one[u % 8]
        found[v] = made[np.unpackbits(ran[v], count=nodes).view(np.bool_)].sum()
    return found


class Together:
    """What a node needs, by the sets of data that must be resident together before it runs."""

    def __init__(self, flat: Flat, before: NDArray[np.int64], small: int) -> None:
        kept = flat.keep & (flat.contributions == 1)
        self.size: list[int] = flat.size.tolist()
        self.producer: list[int] = flat.producer.tolist()
        self.fixed: list[int] = (flat.charge + before).tolist()
        nodes = range(flat.time.size)
        reads = [flat.read_idx[flat.read_ptr[v] : flat.read_ptr[v + 1]].tolist() for v in nodes]
        self.reads = [[d for d in one if not kept[d]] for one in reads]
        counted = (flat.size > small) & (flat.phase[np.maximum(flat.producer, 0)] == BACKWARD)
        self.sources = [frozenset(d for d in one if counted[d]) for one in self.reads]
        self.least: dict[frozenset[int], int] = {}  # of the last search that found something: sets with what they need
        self.makes = [frozenset(flat.write_idx[flat.write_ptr[v] : flat.write_ptr[v + 1]].tolist()) for v in nodes]

    def _bytes(self, data: Iterable[int]) -> Bytes:
        return sum(self.size[d] for d in data)

    def needs(self, node: int, known: Bytes, most: int) -> tuple[Bytes, int]:
        """Bytes that some run needs before or at the first run of `node`, and how many sets were looked at.

        Answers of at most `known` are of no use and may be too low; so are those after `most` sets.
        """
        if len(self.sources[node]) < 2:
            return 0, 0
        start = self.sources[node]
        first = max(known, self.fixed[node] + self._bytes(self.reads[node]))
        queue = [(first, self._latest(start), 0, start)]
        least = {start: first}
        looked = pushed = 0
        while queue:
            bytes_, _, _, held = heapq.heappop(queue)
            if not held or looked == most:
                self.least = least
                return bytes_, looked
            if bytes_ > least[held]:
                continue
            looked += 1
            for p in {self.producer[d] for d in held}:
                rest = held - self.makes[p]
                before = rest | self.sources[p]
                needed = max(bytes_, self.fixed[p] + self._bytes(rest.union(self.reads[p])))
                if needed < least.get(before, needed + 1):
                    least[before] = needed
                    pushed += 1
                    heapq.heappush(queue, (needed, self._latest(before), pushed, before))
        return 0, looked

    def _latest(self, held: frozenset[int]) -> int:
        """Of sets that need the same, the one whose data are made earliest is looked at first."""
        return max((self.producer[d] for d in held), default=-1)


def floor_family(flat: Flat, node: int, budget: Bytes) -> list[frozenset[int]]:
    """Sets of data, one of which `node` reads, that are never resident together within a budget below the floor at the node.

    The run that would complete one of them exceeds the budget, or another of them was resident just before. None where the node's
    own run exceeds it. See `remat.proof`.
    """
    before = kept_before(flat)
    alone = _first_runs(flat, before)
    if alone[node] > budget:
        return []
    together = Together(flat, before, int(max(int(flat.size[flat.keep].sum()), *alone) * _SMALL))
    together.needs(node, budget, _SETS)
    return [held for held, needed in together.least.items() if needed <= budget]


def node_floor(graph: Graph) -> Bytes:
    """A lower floor, of any graph and at once: all kept data, or what the heaviest node that must run needs alone.

    That is what it reads and makes, phantoms included, and its workspace, under the option that needs least.
    """
    kept = sum(datum.size for datum in graph.data if datum.keep)
    needs = (
        min(_alone(graph, Run(node.name, k)) for k in range(len(node.options)))
        for node in (graph.computes[i] for i in graph.required)
    )
    return max(kept, *needs)


def _alone(graph: Graph, run: Run) -> Bytes:
    touched, option = graph.touched(run), graph.node(run.node).options[run.option]
    return sum(touched.reads.values()) + sum(touched.makes.values()) + option.workspace


def proved_floor(graph: Graph, clock: Clock | None = None) -> Bytes:
    """No schedule of a flat graph fits fewer bytes than this; less is proved when the clock expires."""
    return floor_of(flatten(graph), clock)[0]
