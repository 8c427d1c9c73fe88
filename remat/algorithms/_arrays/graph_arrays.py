"""A flat training graph as arrays, the form the numba kernels of this package read.

A relation (reads, writes, …) is a *table*: CSR in one array, in which the pointers come first. Row i of a table t is
`t[t[i] : t[i + 1]]`. One array instead of two, because every array in an argument costs compilation time in each kernel.

INPUT and BUFFER data cost nothing and are never dropped, so they are left out of the reads. A datum with several writers
(gradient contributions) is produced by its first writer and *read* by the later ones: it grows in place, in order,
and is charged once more at each contribution. Nodes that may not run twice (LOSS, run-once nodes, nodes that
contribute to such a datum) have `rerun` false: data that only they produce can be kept longer, but not be recomputed.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, chain
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
        reads: table of the data each node reads, free data left out, partial gradients included.
        writes: table of the data each node produces (as their first writer).
        users: table of the nodes that read each datum (the transpose of reads).
        producer: first writer of each datum, -1 for free data.
        contributions: number of writers of each datum.
        charge: bytes a run needs in addition to the resident data: all its outputs and its workspace.
        rerun: nodes the planner may run again; replay: nodes that the rules allow to run again.
        required: nodes that every schedule runs; the others are isolated here and cost nothing.
        predecessors: table of the nodes that must have run before a node's first run (producers, writers in order, draws
        in order).
        work: of one element: positions of run sequences that kernels have visited so far (see `work.py`).
    """

    reads: Ints
    writes: Ints
    users: Ints
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
    predecessors: Ints
    work: Longs


def table_of(rows: list[list[int]]) -> Ints:
    """The table of a list of rows."""
    first = len(rows) + 1
    pointers = list(accumulate((len(row) for row in rows), initial=first))
    return np.array([*pointers, *chain.from_iterable(rows)], np.int32)


def row_of(table: Ints, i: int) -> Ints:
    """Row i of a table, as a view."""
    return table[table[i] : table[i + 1]]


def rows_of(table: Ints) -> list[list[int]]:
    """All rows of a table."""
    values, count = table.tolist(), table[0] - 1
    return [values[values[i] : values[i + 1]] for i in range(count)]


def lengths(table: Ints) -> Ints:
    """Number of entries of each row of a table."""
    return np.diff(table[: table[0]])


def entries(table: Ints) -> Ints:
    """The entries of all rows of a table, one row after the other, as a view."""
    return table[table[0] :]


def pairs_of(table: Ints) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """All entries of a table, row by row: the row of each, and the entry."""
    return np.repeat(np.arange(table[0] - 1), lengths(table)), entries(table).astype(np.int64)


def transpose(table: Ints, columns: int) -> Ints:
    """The table of the transposed relation."""
    transposed: list[list[int]] = [[] for _ in range(columns)]
    for i, members in enumerate(rows_of(table)):
        for column in members:
            transposed[column].append(i)
    return table_of(transposed)


def flatten(graph: Graph) -> Flat:
    """The arrays of a flat graph. Backward nodes that lead to no kept datum are left out: no schedule has to run them."""
    required, data = graph.required, graph.data
    producer = np.array([w[0] if w and w[0] in required else -1 for w in graph.writers_by_data], np.int32)
    charged = producer >= 0
    reads, writes = _reads_and_writes(graph, producer)
    table = table_of(reads)
    return Flat(
        reads=table,
        writes=table_of(writes),
        users=transpose(table, len(data)),
        producer=producer,
        contributions=np.array([len(w) for w in graph.writers_by_data], np.int32),
        size=np.where(charged, np.array([datum.size for datum in data], np.int64), 0),
        keep=np.array([datum.keep for datum in data], np.bool_) & charged,
        predecessors=table_of(
            [list(earlier) if v in required else [] for v, earlier in enumerate(graph.before_first_run)]
        ),
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
