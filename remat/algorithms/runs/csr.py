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

from remat.ir import Graph, Kind, Phase

Ints = NDArray[np.int32]
Longs = NDArray[np.int64]
Flags = NDArray[np.bool_]

FORWARD, LOSS, BACKWARD = 0, 1, 2


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


def flatten(graph: Graph, backward_reruns: bool = True) -> Flat:
    """The arrays of `graph`; `backward_reruns=False` forbids running a backward node again."""
    data, computes = graph.data, graph.computes
    writers = graph.writers_by_data
    phases = {Phase.FORWARD: FORWARD, Phase.LOSS: LOSS, Phase.BACKWARD: BACKWARD}
    reads: list[list[int]] = []
    writes: list[list[int]] = []
    order: list[list[int]] = []
    rerun = np.zeros(len(computes), np.bool_)
    last_draw = -1
    for v, compute in enumerate(computes):
        outputs = graph.writes_by_node[v]
        needed = [d for d in graph.reads_by_node[v] if writers[d]]
        before = {w for d in needed for w in writers[d]}
        for d in outputs:
            earlier = writers[d][: writers[d].index(v)]
            before.update(earlier)
            if earlier and d not in needed:
                needed.append(d)
        in_draw_order = compute.draws or any(data[d].kind is Kind.RNG_STATE for d in outputs)
        if in_draw_order:
            if last_draw >= 0:
                before.add(last_draw)
            last_draw = v
        before.discard(v)
        reads.append(needed)
        writes.append([d for d in outputs if writers[d][0] == v])
        order.append(sorted(before))
        alone = all(len(writers[d]) == 1 for d in outputs)
        free = compute.phase is Phase.FORWARD or (backward_reruns and compute.phase is Phase.BACKWARD)
        rerun[v] = alone and free and not compute.run_once
    read_ptr, read_idx = csr(reads)
    write_ptr, write_idx = csr(writes)
    use_ptr, use_idx = transpose(read_ptr, read_idx, len(data))
    order_ptr, order_idx = csr(order)
    outs = graph.writes_by_node
    size = np.array([d.size if writers[i] else 0 for i, d in enumerate(data)], np.int64)
    return Flat(
        read_ptr=read_ptr,
        read_idx=read_idx,
        write_ptr=write_ptr,
        write_idx=write_idx,
        use_ptr=use_ptr,
        use_idx=use_idx,
        producer=np.array([w[0] if w else -1 for w in writers], np.int32),
        contributions=np.array([len(w) for w in writers], np.int32),
        size=size,
        keep=np.array([d.keep and bool(writers[i]) for i, d in enumerate(data)], np.bool_),
        time=np.array([c.options[0].time for c in computes], np.int64),
        charge=np.array(
            [sum(data[d].size for d in made) + c.option.workspace for c, made in zip(computes, outs, strict=True)],
            np.int64,
        ),
        rerun=rerun,
        replay=np.array([c.phase is not Phase.LOSS and not c.run_once for c in computes], np.bool_),
        phase=np.array([phases[c.phase] for c in computes], np.int8),
        draws=np.array([c.draws for c in computes], np.bool_),
        order_ptr=order_ptr,
        order_idx=order_idx,
    )
