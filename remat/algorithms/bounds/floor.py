"""The proved floor: bytes that some step of every schedule needs, whatever is recomputed.

When a node first runs, its reads are resident, its outputs and workspace are charged, and what its ancestors (for a
backward node: also all forward nodes) made and must be kept is there. At the end all kept data are. The largest of
these is a floor.
"""

from __future__ import annotations

import numpy as np
from attrs import frozen

from remat.algorithms.protocol import IMPOSSIBLE
from remat.algorithms.runs.csr import BACKWARD, Flat, flatten
from remat.algorithms.runs.search import RunMove, Search
from remat.ir import Graph
from remat.units import Bytes


def floor_of(flat: Flat) -> tuple[Bytes, int]:
    """The floor and the node that needs it (-1: the end of the step)."""
    nodes = flat.time.size
    whole_kept = flat.keep & (flat.contributions == 1)
    made = np.zeros(nodes, np.int64)  # bytes a node makes that stay from its first run
    np.add.at(made, flat.producer[whole_kept], flat.size[whole_kept])
    forward = np.packbits(flat.phase != BACKWARD)
    ran = np.zeros((nodes, len(forward)), np.uint8)
    one = np.packbits(np.eye(8, dtype=np.bool_), axis=1).ravel()
    best, who = int(flat.size[flat.keep].sum()), -1
    for v in range(nodes):
        if flat.phase[v] == BACKWARD:
            ran[v] |= forward
        for u in flat.order_idx[flat.order_ptr[v] : flat.order_ptr[v + 1]].tolist():
            ran[v] |= ran[u]
            ran[v, u // 8] |= one[u % 8]
        reads = flat.read_idx[flat.read_ptr[v] : flat.read_ptr[v + 1]]
        needed = int(flat.charge[v]) + int(flat.size[reads[~whole_kept[reads]]].sum())
        needed += int(made[np.unpackbits(ran[v], count=nodes).view(np.bool_)].sum())
        if needed > best:
            best, who = needed, v
    return best, who


def proved_floor(graph: Graph) -> Bytes:
    """No schedule of a flat graph fits fewer bytes than this."""
    return floor_of(flatten(graph))[0]


@frozen
class Floor(RunMove):
    """Proves that no schedule exists below the floor: one node's working set with what must be kept by then. Plans nothing."""

    def improve(self, search: Search) -> None:
        """Compare the budget with the floor."""
        with search.charged("bound"):
            floor, node = floor_of(search.flat)
            if search.budget < floor:
                place = "the end of the step" if node < 0 else search.problem.graph.computes[node].name
                search.prove(IMPOSSIBLE, f"the floor of {floor} B at {place}")
