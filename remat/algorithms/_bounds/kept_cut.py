"""The floor by cuts: what must be resident besides a heavy node, so that no heavy node has to run again.

Let H be a set of nodes that must run, and let v be the one of them that runs last, of all their runs. Follow the data from
one to the next that some node makes from it, reading all of it, beginning with the outputs of nodes in H and ending with a
kept datum. Suppose that nothing on such a path is resident during this run of v, and that v writes nothing on it. The kept
datum is resident at the end (S-END), so its residency begins later; then every writer of it runs later (S-ONCE), among them
the one that reads the datum before it on the path, which is therefore resident later (S-READ), and so on back to the first
datum, which a node of H then writes after the last run of H. (A node that adds to a sum reads what was added before it alone,
and not all its writers run before it: such reads are on no path.) So the data resident with v are a cut between the outputs
of H and the kept data, together with the outputs of v; what v reads and what its ancestors have made to stay (S-KEEP) is
among them. By S-MEM the run needs

    charge(v) + bytes of what is resident in any case + the least cut in which that and the outputs of v cost nothing.

As v is not known, the least of these sums over H is a floor, for every H, without a link: a copy would begin a residency
without a run. A budget is impossible if some H has all its sums above it. Sums only rise with H, so the largest such H is
what remains when nodes of smaller sums are taken away one after the other. A least cut is a largest flow (Ford and Fulkerson,
1956). Source of the bound: this project; see docs/explanation/bounds.md.
"""

from __future__ import annotations

import numpy as np
from scipy.sparse import csr_array
from scipy.sparse.csgraph import maximum_flow

from remat.algorithms._arrays.graph_arrays import BACKWARD, Flags, Flat, flatten, pairs_of, row_of, table_of
from remat.algorithms._arrays.kept_data import permanent, working_sets
from remat.algorithms._bounds.floor import kept_before
from remat.algorithms._bounds.instants import Dependencies
from remat.algorithms._core.clock import Clock
from remat.algorithms._milp.linear import Ints
from remat.ir import Graph
from remat.units import Bytes

_WORK = 5_000_000  # flows times arcs for one budget; after that nothing is proved
_UNITS = 1 << 29  # of all capacities together: scipy's flows are of 32 bits
_ACCURACY = 0.001  # of the floor, to which it is bisected
_STEPS = 16  # budgets that are tried from above, before


class KeptCuts:
    """Least cuts between the outputs of nodes and the kept data of a flat graph."""

    def __init__(self, graph: Graph, flat: Flat) -> None:
        self._flat = flat
        self._stays = permanent(flat)
        self._dependencies = Dependencies(flat)
        self.kept = int(flat.size[flat.keep].sum())
        self.needs: Ints = np.where(flat.required, working_sets(flat) + kept_before(flat), 0)
        data, nodes = flat.size.size, flat.time.size
        self._unit = max(1, -(-int(flat.size.sum()) // _UNITS))
        # vertices: a datum's beginning and its end, nodes, where paths begin, where they end
        beginning, end, node = np.arange(data), np.arange(data) + data, np.arange(nodes) + 2 * data
        self._source, self._sink = 2 * data + nodes, 2 * data + nodes + 1
        reader, read = pairs_of(
            table_of([list(dict.fromkeys(whole)) for whole in graph.reads_by_node])
        )  # without the parts of sums
        writer, written = pairs_of(table_of([list(outputs) for outputs in graph.writes_by_node]))
        counted = (flat.producer[written] >= 0) & flat.required[writer]
        writer, written, kept = writer[counted], written[counted], np.flatnonzero(flat.keep)
        arcs = [
            (beginning, end),  # first: their capacities are the sizes
            (np.full(nodes, self._source), node),  # second: open for the nodes of H
            (end[read], node[reader]),
            (node[writer], beginning[written]),
            (end[kept], np.full(kept.size, self._sink)),
        ]
        tails, heads = (np.concatenate([arc[i] for arc in arcs]) for i in range(2))
        numbers = np.arange(1, tails.size + 1)
        self._network = csr_array((numbers, (tails, heads)), shape=(self._sink + 1, self._sink + 1)).astype(np.int32)
        self._arc = self._network.data - 1

    def least(self, sources: Flags, free: Flags) -> Bytes:
        """Bytes of the least cut between the outputs of nodes and the kept data, rounded down; free data cost nothing."""
        open_ = self._flat.size.sum() // self._unit + 1
        capacity = np.full(self._arc.size, open_, np.int64)
        capacity[: free.size] = np.where(free, 0, self._flat.size) // self._unit
        capacity[free.size : free.size + sources.size] = np.where(sources, open_, 0)
        network = csr_array(
            (capacity[self._arc].astype(np.int32), self._network.indices, self._network.indptr), self._network.shape
        )
        return int(maximum_flow(network, self._source, self._sink).flow_value) * self._unit

    def resident_with(self, v: int) -> Flags:
        """The data that a run of a node needs in any case: counted in `needs`."""
        flat = self._flat
        ran = self._dependencies.ancestors(v).copy()
        if flat.phase[v] == BACKWARD:
            ran |= flat.phase != BACKWARD
        resident = self._stays & ran[flat.producer]
        resident[row_of(flat.reads, v)] = True
        resident[row_of(flat.writes, v)] = True
        return resident

    @property
    def most(self) -> Bytes:
        """No run needs more."""
        return self.kept + int(self.needs.max(initial=0))

    def step(self, low: Bytes) -> Bytes:
        """Between the budgets above `low` that are tried."""
        return max(1, -(-(self.most - low) // _STEPS))

    def impossible(self, budget: Bytes, clock: Clock | None = None) -> bool:
        """Whether cuts prove that no schedule without copies fits the budget; not if they take too many flows."""
        return self.largest_impossible(budget - 1, clock) >= budget

    def largest_impossible(self, low: Bytes, clock: Clock | None = None) -> Bytes:
        """A budget above `low` that cuts prove impossible, the first from above; `low`, where there is none in so many flows.

        What is impossible is so at every smaller budget, and few nodes are heavy at a large one: budgets are tried from above.
        """
        high, step = self.most, self.step(low)
        flows = _WORK // self._arc.size
        for budget in (*range(high - step, low + 1, -step), low + 1):
            proved, flows = self._no_last(budget, flows, clock)
            if proved:
                return int(budget)
        return low

    def _no_last(self, budget: Bytes, flows: int, clock: Clock | None) -> tuple[bool, int]:
        """Whether none of the heavy nodes can be the last within a budget, with at most so many flows; and how many are left."""
        flat, needs = self._flat, self.needs
        heavy: Flags = flat.required & (needs + self.kept > budget)
        nothing = np.zeros(flat.size.size, np.bool_)
        while heavy.any() and flows > 0 and not (clock is not None and clock.expired):
            cut = self.least(heavy, nothing)
            flows -= 1
            light = heavy & (needs + cut <= budget)
            undecided = [] if light.any() else self._undecided(heavy, budget - cut)
            for v, free in undecided[: flows + 1]:
                flows -= 1
                light[v] = needs[v] + self.least(heavy, free) <= budget
            if not light.any() and flows >= 0:
                return True, flows
            heavy &= ~light
        return False, flows

    def _undecided(self, heavy: Flags, room: int) -> list[tuple[int, Flags]]:
        """The nodes that may need no more than `room`, if their data alone made up the cut, with these data."""
        size = self._flat.size
        data = [(v, self.resident_with(v)) for v in np.flatnonzero(heavy).tolist()]
        return [(v, free) for v, free in data if self.needs[v] - int(size[free].sum()) <= room]


def cut_floor(graph: Graph, floor: Bytes, clock: Clock | None = None) -> Bytes:
    """The floor by cuts of a flat graph, or `floor` if that is larger; to a thousandth. For schedules without copies."""
    cuts = KeptCuts(graph, flatten(graph))
    low = cuts.largest_impossible(floor - 1, clock) + 1
    high = min(low + cuts.step(floor - 1), cuts.most + 1)
    while high - low > low * _ACCURACY:
        middle = (low + high) // 2
        low, high = (middle + 1, high) if cuts.impossible(middle, clock) else (low, middle)
    return low
