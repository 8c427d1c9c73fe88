"""Changes of the order of runs in a plan with copies: each run takes the reads that come by a copy along.

Where copies compete for the lanes, the order decides what is away at once: the gradient of a weight may wait until what it reads
has come for another reader anyway.
"""

from __future__ import annotations

import numpy as np

from remat.algorithms._arrays.gathering import gathered
from remat.algorithms._arrays.graph_arrays import Flat, Ints, Longs, Seed
from remat.algorithms._arrays.jit import allocating_kernel, kernel
from remat.algorithms._arrays.ordering import disordered, some_brought_back
from remat.algorithms._arrays.rng import below, fraction

_MOST = 4  # runs that move at once, drawn from 1 to this


@kernel
def changed_order(g: Flat, seq: Ints, span: tuple[int, int], changes: tuple[float, float, float], rng: Seed) -> Ints:
    """The sequence with readers gathered, or runs of a span of positions moved, or postponed ones put back; or as it is.

    `changes`: the shares of `RuinAndRecreate`: disorder, undone, gathering.
    """
    disorder, undone, gathering = changes
    if fraction(rng) < gathering:
        seq = gathered(g, seq, rng)
    if fraction(rng) < disorder:
        if fraction(rng) < undone:
            seq = some_brought_back(g, seq, rng)
        else:
            seq = disordered(g, seq, span[0], span[1], 1 + below(rng, _MOST), rng)
    return seq


@allocating_kernel
def places_by_node(g: Flat, seq: Ints) -> tuple[Ints, Ints]:
    """(begin, places): the positions of each node's runs, ascending; where those of each node begin."""
    begin, places = np.zeros(g.time.size + 1, np.int32), np.empty(seq.size, np.int32)
    for i in range(seq.size):
        begin[seq[i] + 1] += 1
    for v in range(g.time.size):
        begin[v + 1] += begin[v]
    free = begin.copy()
    for i in range(seq.size):
        places[free[seq[i]]] = i
        free[seq[i]] += 1
    return begin, places


@kernel
def carried(g: Flat, seq: Ints, mask: Longs, moved: Ints) -> Longs:
    """The masks of another sequence of the same runs, or fewer: each run has that of its node's run of the same number.

    No mark is left where no run is between a read and the event before it: there is no time for a copy.
    """
    following, places = places_by_node(g, seq)
    event = np.full(g.size.size, -1, np.int32)
    masks = np.empty(moved.size, np.int64)
    for i in range(moved.size):
        v = moved[i]
        bits = mask[places[following[v]]]
        following[v] += 1
        for k in range(g.reads[v], g.reads[v + 1]):
            bit = np.int64(1) << (k - g.reads[v])
            if bits & bit and i - event[g.reads[k]] < 2:
                bits ^= bit
            event[g.reads[k]] = i
        for k in range(g.writes[v], g.writes[v + 1]):
            event[g.writes[k]] = i
        masks[i] = bits
    g.work[0] += 2 * moved.size
    return masks


def reordered_plan(
    g: Flat,
    plan: tuple[Ints, Longs],
    span: tuple[int, int],
    changes: tuple[float, float, float],
    rng: Seed,
) -> tuple[Ints, Longs, tuple[int, int]]:
    """(runs, masks, span) of a plan in another order: the span of positions is widened to where the order has changed."""
    (seq, mask), (lo, hi) = plan, span
    moved = changed_order(g, seq, span, changes, rng)
    shared, fewer = min(len(moved), len(seq)), len(seq) - len(moved)
    different = np.flatnonzero(moved[:shared] != seq[:shared])
    if len(different):
        lo, hi = min(lo, int(different[0])), max(hi, int(different[-1]) + 1)
    if not len(different) and not fewer:
        return seq, mask, span
    return moved, carried(g, seq, mask, moved), (lo, min(hi, len(moved)))
