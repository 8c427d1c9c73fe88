"""Gathering: readers of a datum moved next to each other, so that it is resident for less long or one run serves both.

Moved alone, or by a random distance, such a reader seldom saves anything: what it reads must then be there, and with several
uses of a weight or a state (shared towers, nested derivatives, recurrence) the other use is far away. Source: this project.
"""

from __future__ import annotations

import numpy as np

from remat.algorithms._arrays.graph_arrays import Flat, Ints, Seed
from remat.algorithms._arrays.jit import allocating_kernel, inner_kernel
from remat.algorithms._arrays.ordering import loss_position, reordered
from remat.algorithms._arrays.rng import below, fraction


@allocating_kernel
def gathered(g: Flat, seq: Ints, rng: Seed) -> Ints:
    """The sequence with readers of a datum moved next to each other: over a gap in which it is resident, or over a rerun."""
    return without_a_gap(g, seq, rng) if fraction(rng) < 0.5 else without_a_rerun(g, seq, rng)


@allocating_kernel
def without_a_gap(g: Flat, seq: Ints, rng: Seed) -> Ints:
    """The sequence with one of two consecutive users of a datum moved next to the other.

    Gaps are drawn by bytes times positions behind the loss. What depends on the earlier user moves with it, or what the later
    depends on.
    """
    n, loss = seq.size, loss_position(g, seq)
    last, target = np.full(g.size.size, -1, np.int32), np.empty(n, np.float64)
    total, earlier, later = 0.0, -1, -1
    for i in range(n):
        v, target[i] = seq[i], i
        for k in range(g.reads[v], g.reads[v + 1]):
            d = g.reads[k]
            positions = i - max(last[d], loss)
            if last[d] >= 0 and positions > 1 and not g.keep[d]:
                weight = np.float64(g.size[d]) * positions
                total += weight
                if fraction(rng) * total < weight:
                    earlier, later = last[d], i
            last[d] = i
        for k in range(g.writes[v], g.writes[v + 1]):
            last[g.writes[k]] = i
    g.work[0] += 3 * n
    if later < 0:
        return seq.copy()
    if fraction(rng) < 0.5:
        target[earlier] = later - 0.5
    else:
        target[later] = earlier + 0.5
    return reordered(g, seq, target)


@allocating_kernel
def without_a_rerun(g: Flat, seq: Ints, rng: Seed) -> Ints:
    """The sequence without a rerun: it and the run of the node before it become one, for the readers of both.

    The earlier run moves to where the later was, with its readers; or the readers of the later follow those of the earlier.
    """
    before, last = np.full(seq.size, -1, np.int32), np.full(g.time.size, -1, np.int32)
    count, later = 0, -1
    for i in range(seq.size):
        v = seq[i]
        before[i], last[v] = last[v], i
        if before[i] >= 0 and g.rerun[v]:
            count += 1
            later = i if below(rng, count) == 0 else later
    g.work[0] += seq.size
    if later < 0:
        return seq.copy()
    out, target = np.empty(seq.size - 1, np.int32), np.empty(seq.size - 1, np.float64)
    for i in range(out.size):
        out[i], target[i] = seq[i if i < later else i + 1], i
    v, earlier = seq[later], before[later]
    begin, end, place = earlier + 1, later, later - 0.25
    if fraction(rng) < 0.5:
        target[earlier] = later - 0.5
    else:
        place = earlier + 0.5
        for i in range(begin, end):
            place = i + 0.5 if reads_from(g, out[i], v) else place
        begin = later
        while end < out.size and out[end] != v:
            end += 1
    for i in range(begin, end):
        if reads_from(g, out[i], v):
            target[i] = place
    return reordered(g, out, target)


@inner_kernel
def reads_from(g: Flat, reader: int, node: int) -> bool:
    """Whether a node reads a datum that another writes."""
    reads = False
    for k in range(g.reads[reader], g.reads[reader + 1]):
        reads = reads or g.producer[g.reads[k]] == node
    return reads
