"""What a search over schedules with copies reads of a problem, as bit masks: at most 63 nodes and 63 cells.

A *cell* is what can be resident: a datum, or for a sum of several contributions, each number of them. A contribution takes one
cell and makes the next.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from remat.algorithms._arrays.graph_arrays import Flags, Ints, Longs
from remat.algorithms._core.problem import Problem
from remat.ir import Graph, Phase
from remat.units import Bytes

MOST = 63
"""Bits of a mask: a signed 64-bit integer."""

LARGEST = 1 << 50
"""All bytes, and all times of nodes and copies, together: floats and sums hold them exactly."""


class Timed(NamedTuple):
    """Masks and numbers of one problem; nodes in the graph's order.

    Attributes:
        needs: per node, the cells that must be resident when it starts, and stay until it ends.
        takes: of them, those that are gone when it ends. makes: the cells that are resident then.
        clears: cells that must not be resident when it starts: its sums begin again.
        writes: complete data of which it writes a part: copies on the host are void then.
        charge: bytes of a run in addition to the resident cells. time: [ns].
        again: whether the rules let it run again.
        earlier: nodes that must have run before its first run. later: nodes whose first run must come after it.
        span: time of a node and of all whose first runs come after its own [ns].
        producer: per cell, the node that makes it. readers: nodes that need it. size: [bytes].
        out, back: times of its copies [ns].
        large: cells by size, the largest first.
        required, kept, movable: masks: nodes that must run; cells that stay once resident; cells that copies may carry.
        budget: [bytes].
        issued: whether copies start only where a step can issue them: between runs, or when their lane or their datum is ready.
    """

    needs: Longs
    takes: Longs
    makes: Longs
    clears: Longs
    writes: Longs
    charge: Longs
    time: Longs
    again: Flags
    earlier: Longs
    later: Longs
    span: Longs
    producer: Ints
    readers: Longs
    size: Longs
    out: Longs
    back: Longs
    large: Ints
    required: int
    kept: int
    movable: int
    budget: int
    issued: bool


def no_tables(problem: Problem) -> str | None:
    """Why a problem with a link has no tables."""
    graph, link = problem.graph, problem.link
    assert link is not None
    if not graph.flat:
        return "the graph has layers or options"
    if max(len(graph), sum(map(len, graph.writers_by_data))) > MOST:
        return f"there are more than {MOST} nodes or data"
    sizes = [datum.size for datum in graph.data]
    total = sum(sizes) + sum(node.options[0].workspace + node.options[0].time for node in graph.computes)
    total += sum(link.offload_time(size) + link.prefetch_time(size) for size in sizes)
    return f"bytes and times add up to more than {LARGEST}" if total > LARGEST else None


def tables_of(problem: Problem, *, issued: bool) -> Timed:
    """The tables of a problem with a link; `no_tables` says of which there are none."""
    graph, link = problem.graph, problem.link
    assert link is not None
    cells = _Cells(graph)
    sizes = [graph.data[d].size for d, _ in cells.places]
    outputs = [sum(graph.data[d].size for d in writes) for writes in graph.writes_by_node]
    time = [node.options[0].time for node in graph.computes]
    earlier = _earlier(graph)
    later = _transposed(earlier, len(graph))
    kept = cells.complete(d for d, datum in enumerate(graph.data) if datum.keep)
    copied = [cell for cell in cells.last.values() if sizes[cell]]
    return Timed(
        needs=_longs(cells.needs),
        takes=_longs(cells.takes),
        makes=_longs(cells.makes),
        clears=_longs(cells.clears),
        writes=_longs(map(cells.complete, graph.writes_by_node)),
        charge=_longs(node.options[0].workspace + mass for node, mass in zip(graph.computes, outputs, strict=True)),
        time=_longs(time),
        again=np.array([node.phase is not Phase.LOSS and not node.run_once for node in graph.computes], np.bool_),
        earlier=_longs(earlier),
        later=_longs(later),
        span=_longs(time[v] + sum(time[w] for w in graph.required if later[v] >> w & 1) for v in range(len(graph))),
        producer=np.array([graph.writers_by_data[d][part] for d, part in cells.places], np.int32),
        readers=_longs(_transposed(cells.needs, len(sizes))),
        size=_longs(sizes),
        out=_longs(map(link.offload_time, sizes)),
        back=_longs(map(link.prefetch_time, sizes)),
        large=np.array(sorted(filter(sizes.__getitem__, range(len(sizes))), key=lambda i: -sizes[i]), np.int32),
        required=mask(graph.required),
        kept=kept,
        movable=mask(copied) & ~kept,
        budget=problem.budget,
        issued=issued,
    )


class _Cells:
    """The cells of a graph.

    Attributes:
        places: datum and part of each. last: of the data that nodes write, the cell when they are complete.
        needs, takes, makes, clears: per node, as in `Timed`.
    """

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.places = [(d, part) for d, writers in enumerate(graph.writers_by_data) for part in range(len(writers))]
        at = {place: cell for cell, place in enumerate(self.places)}
        self.last = {d: cell for (d, _), cell in at.items()}
        self.takes, self.makes, self.clears = [0] * len(graph), [0] * len(graph), [0] * len(graph)
        for (d, part), cell in at.items():
            writers = graph.writers_by_data[d]
            self.makes[writers[part]] |= 1 << cell
            if part:
                self.takes[writers[part]] |= 1 << at[d, part - 1]
            if len(writers) > 1:
                self.clears[writers[0]] |= 1 << cell
        self.needs = [self.complete(reads) | self.takes[v] for v, reads in enumerate(graph.reads_by_node)]

    def complete(self, data: Iterable[int]) -> int:
        """The mask of these data when they are complete, less those that no node writes."""
        return mask(self.last[d] for d in data if d in self.last)


def _transposed(masks: list[int], columns: int) -> list[int]:
    """Per bit, the mask of the rows that have it."""
    return [mask(row for row, bits in enumerate(masks) if bits >> column & 1) for column in range(columns)]


def mask(bits: Iterable[int]) -> int:
    """The number with these bits."""
    total = 0
    for bit in bits:
        total |= 1 << bit
    return total


def _longs(values: Iterable[int | Bytes]) -> Longs:
    return np.array(list(values), np.int64)


def _earlier(graph: Graph) -> list[int]:
    """Per node, the nodes that must have run before its first run, as bits."""
    forward = mask(v for v, node in enumerate(graph.computes) if node.phase is Phase.FORWARD)
    earlier: list[int] = []
    for v, node in enumerate(graph.computes):
        direct = list(graph.before_first_run[v])
        common = 0
        if node.phase is Phase.LOSS:
            common = forward
        elif node.phase is Phase.BACKWARD:
            direct.append(graph.loss)
        total = common | mask(direct)
        for u in direct:
            total |= earlier[u]
        earlier.append(total)
    return earlier
