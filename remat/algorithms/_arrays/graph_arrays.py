"""A flat training graph as arrays (CSR), the form the numba kernels of this package read.

INPUT and BUFFER data cost nothing and never leave, so they are left out of the reads. A datum with several writers
(gradient contributions) is produced by its first writer and *read* by the later ones: it grows in place, in order,
and is charged once more at each contribution. Nodes that may not run twice (LOSS, run-once nodes, nodes that
contribute to such a datum) have `rerun` false: what only they produce can be kept longer, never made again.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from remat.ir import Graph, Phase

Ints = NDArray[np.int32]
Longs = NDArray[np.int64]
Flags = NDArray[np.bool_]
Floats = NDArray[np.float64]
Seed = NDArray[np.uint64]

FORWARD, LOSS, BACKWARD = 0, 1, 2

_PHASES = {Phase.FORWARD: FORWARD, Phase.LOSS: LOSS, Phase.BACKWARD: BACKWARD}


class Flat(NamedTuple):
    """Arrays of one graph; nodes and data by index, sizes in bytes, times in ns.

    Attributes:
        read_ptr, read_idx: data each node reads (CSR), free data left out, partial gradients included.
        write_ptr, write_idx: data each node produces (as their first writer).
        use_ptr, use_idx: nodes that read each datum (CSR, the transpose of reads).
        producer: first writer of each datum, -1 for free data.
        contributions: number of writers of each datum.
        charge: bytes a run needs besides what is resident: all its outputs and its workspace.
        rerun: nodes the planner may run again; replay: nodes that the rules allow to run again.
        required: nodes that every schedule runs; the others are isolated here and cost nothing.
        order_ptr, order_idx: nodes that must have run before a node's first run (producers, writers in order, draws
        in order).
    """

    read_ptr: Ints
    read_idx: Ints
    write_ptr: Ints
    write_idx: Ints
    use_ptr: Ints
    use_idx: Ints
    producer: Ints
    contributions: Ints
    size: Longs
    keep: Flags
    time: Longs
    charge: Longs
    rerun: Flags
    replay: Flags
    required: Flags
    phase: NDArray[np.int8]
    draws: Flags
    order_ptr: Ints
    order_idx: Ints


def csr(rows: list[list[int]]) -> tuple[Ints, Ints]:
    """Pointer and index arrays of a list of rows."""
    pointers = np.zeros(len(rows) + 1, np.int32)
    np.cumsum([len(row) for row in rows], out=pointers[1:])
    return pointers, np.array([x for row in rows for x in row], np.int32)


def transpose(pointers: Ints, indices: Ints, columns: int) -> tuple[Ints, Ints]:
    """CSR of the transposed relation."""
    rows: list[list[int]] = [[] for _ in range(columns)]
    for row in range(len(pointers) - 1):
        for k in range(pointers[row], pointers[row + 1]):
            rows[indices[k]].append(row)
    return csr(rows)


def flatten(graph: Graph) -> Flat:
    """The arrays of a flat graph. Backward nodes that lead to nothing kept are left out: no schedule need run them."""
    writers, phase = graph.writers_by_data, [_PHASES[one.phase] for one in graph.computes]
    order, required = graph.before_first_run, graph.required
    nodes, data = len(graph), len(graph.data)
    producer = np.array([w[0] if w and set(w) <= required else -1 for w in writers], np.int32)
    reads: list[list[int]] = [[] for _ in range(nodes)]
    writes: list[list[int]] = [[] for _ in range(nodes)]
    charge = np.zeros(nodes, np.int64)
    rerun = np.zeros(nodes, np.bool_)
    for v in sorted(required):
        compute, outputs = graph.computes[v], graph.writes_by_node[v]
        grown = [d for d in outputs if writers[d][0] != v and producer[d] >= 0]
        reads[v] = list(dict.fromkeys([*(d for d in graph.reads_by_node[v] if producer[d] >= 0), *grown]))
        writes[v] = [d for d in outputs if producer[d] == v]
        charge[v] = sum(graph.data[d].size for d in outputs) + compute.option.workspace
        alone = all(len(writers[d]) == 1 for d in outputs)
        rerun[v] = alone and phase[v] != LOSS and not compute.run_once
    read_ptr, read_idx = csr(reads)
    write_ptr, write_idx = csr(writes)
    use_ptr, use_idx = transpose(read_ptr, read_idx, data)
    order_ptr, order_idx = csr([list(before) if v in required else [] for v, before in enumerate(order)])
    return Flat(
        read_ptr=read_ptr,
        read_idx=read_idx,
        write_ptr=write_ptr,
        write_idx=write_idx,
        use_ptr=use_ptr,
        use_idx=use_idx,
        producer=producer,
        contributions=np.array([len(w) for w in writers], np.int32),
        size=np.array([one.size if producer[d] >= 0 else 0 for d, one in enumerate(graph.data)], np.int64),
        keep=np.array([one.keep and producer[d] >= 0 for d, one in enumerate(graph.data)], np.bool_),
        time=np.array([c.option.time if v in required else 0 for v, c in enumerate(graph.computes)], np.int64),
        charge=charge,
        rerun=rerun,
        replay=np.array([c.phase is not Phase.LOSS and not c.run_once for c in graph.computes], np.bool_),
        required=np.array([v in required for v in range(nodes)], np.bool_),
        phase=np.array(phase, np.int8),
        draws=np.array([c.draws for c in graph.computes], np.bool_),
        order_ptr=order_ptr,
        order_idx=order_idx,
    )
