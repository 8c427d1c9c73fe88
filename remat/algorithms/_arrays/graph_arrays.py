"""A flat training graph as arrays (CSR), the form the numba kernels of this package read.

INPUT and BUFFER data cost nothing and are never dropped, so they are left out of the reads. A datum with several writers
(gradient contributions) is produced by its first writer and *read* by the later ones: it grows in place, in order,
and is charged once more at each contribution. Nodes that may not run twice (LOSS, run-once nodes, nodes that
contribute to such a datum) have `rerun` false: data that only they produce can be kept longer, but not be recomputed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypedDict

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
        charge: bytes a run needs in addition to the resident data: all its outputs and its workspace.
        rerun: nodes the planner may run again; replay: nodes that the rules allow to run again.
        required: nodes that every schedule runs; the others are isolated here and cost nothing.
        order_ptr, order_idx: nodes that must have run before a node's first run (producers, writers in order, draws
        in order).
        work: of one element: positions of run sequences that kernels have visited so far (see `_search/work.py`).
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
    work: Longs


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
    """The arrays of a flat graph. Backward nodes that lead to no kept datum are left out: no schedule has to run them."""
    required, data = graph.required, graph.data
    producer = np.array([w[0] if w and set(w) <= required else -1 for w in graph.writers_by_data], np.int32)
    charged = producer >= 0
    reads, writes = _reads_and_writes(graph, producer)
    read_ptr, read_idx = csr(reads)
    write_ptr, write_idx = csr(writes)
    use_ptr, use_idx = transpose(read_ptr, read_idx, len(data))
    order_ptr, order_idx = csr([list(row) if v in required else [] for v, row in enumerate(graph.before_first_run)])
    return Flat(
        read_ptr=read_ptr,
        read_idx=read_idx,
        write_ptr=write_ptr,
        write_idx=write_idx,
        use_ptr=use_ptr,
        use_idx=use_idx,
        producer=producer,
        contributions=np.array([len(w) for w in graph.writers_by_data], np.int32),
        size=np.where(charged, np.array([datum.size for datum in data], np.int64), 0),
        keep=np.array([datum.keep for datum in data], np.bool_) & charged,
        order_ptr=order_ptr,
        order_idx=order_idx,
        work=np.zeros(1, np.int64),
        **_columns(graph),
    )


class _Columns(TypedDict):
    """The arrays of `Flat` that have one entry per node."""

    time: Longs
    charge: Longs
    rerun: Flags
    replay: Flags
    required: Flags
    phase: NDArray[np.int8]
    draws: Flags


def _columns(graph: Graph) -> _Columns:
    nodes = graph.computes
    required = np.array([v in graph.required for v in range(len(graph))], np.bool_)
    replay = np.array([node.phase is not Phase.LOSS and not node.run_once for node in nodes], np.bool_)
    charge = np.array([_charge(graph, v) for v in range(len(graph))], np.int64)
    single = np.array([_single_writers(graph, outputs) for outputs in graph.writes_by_node], np.bool_)
    return _Columns(
        time=np.where(required, np.array([node.option.time for node in nodes], np.int64), 0),
        charge=np.where(required, charge, 0),
        rerun=replay & single & required,
        replay=replay,
        required=required,
        phase=np.array([_PHASES[node.phase] for node in nodes], np.int8),
        draws=np.array([node.draws for node in nodes], np.bool_),
    )


def _charge(graph: Graph, v: int) -> int:
    return graph.computes[v].option.workspace + sum(graph.data[d].size for d in graph.writes_by_node[v])


def _single_writers(graph: Graph, data: Sequence[int]) -> bool:
    """Whether each datum has one writer."""
    return all(len(graph.writers_by_data[d]) == 1 for d in data)


def _reads_and_writes(graph: Graph, producer: Ints) -> tuple[list[list[int]], list[list[int]]]:
    """What each node reads, including partial sums that it adds to, and what it produces; empty for nodes left out."""
    writers = graph.writers_by_data
    reads: list[list[int]] = [[] for _ in graph.computes]
    writes: list[list[int]] = [[] for _ in graph.computes]
    for v in graph.required:
        outputs = graph.writes_by_node[v]
        grown = [d for d in outputs if writers[d][0] != v]
        reads[v] = [d for d in dict.fromkeys((*graph.reads_by_node[v], *grown)) if producer[d] >= 0]
        writes[v] = [d for d in outputs if producer[d] == v]
    return reads, writes
