"""Orders of runs: where a run may move, and sequences with some of their runs moved.

A run may be anywhere after the first runs of the nodes that its node depends on. A first run must also be before every
run that reads its outputs, before the node's other runs, and on its side of the loss; nodes that draw random numbers keep their
order.
"""

from __future__ import annotations

import numpy as np

from remat.algorithms._arrays.graph_arrays import BACKWARD, LOSS, Flat, Floats, Ints, Seed
from remat.algorithms._arrays.jit import allocating_kernel, inner_kernel
from remat.algorithms._arrays.rng import below, fraction
from remat.algorithms._arrays.sorting import stable_order


@inner_kernel
def earliest_place(g: Flat, seq: Ints, i: int, first: Ints, loss: int) -> int:
    """The first position that the run at i may be moved to. `first`: of each node's first run. `loss`: of the loss, -1: none."""
    v = seq[i]
    if first[v] != i:
        place: int = first[v] + 1
        for k in range(g.reads[v], g.reads[v + 1]):
            place = max(place, first[g.producer[g.reads[k]]] + 1)
        return place
    place = 0
    for k in range(g.predecessors[v], g.predecessors[v + 1]):
        place = max(place, first[g.predecessors[k]] + 1)
    return max(place, loss + 1) if 0 <= loss < i else place


@inner_kernel
def latest_place(g: Flat, seq: Ints, i: int, first: Ints, loss: int) -> int:
    """The last position that the run at i may be moved to, as an index after its removal."""
    v = seq[i]
    if first[v] != i:
        return seq.size - 1
    last = loss - 1 if loss > i else seq.size - 1
    j = i + 1
    while j <= last:
        u = seq[j]
        if u == v:
            last = j - 1
        for k in range(g.predecessors[u], g.predecessors[u + 1]):
            if g.predecessors[k] == v:
                last = min(last, j - 1)
        j += 1
    g.work[0] += j - i
    return last


@inner_kernel
def loss_position(g: Flat, seq: Ints) -> int:
    """Where the loss runs; -1: it does not."""
    for i in range(seq.size):
        if g.phase[seq[i]] == LOSS:
            return i
    return -1


@allocating_kernel
def reordered(g: Flat, seq: Ints, target: Floats) -> Ints:
    """The sequence sorted by `target`, the wanted position of each run, as far as the rules allow.

    A run that moves to an earlier position takes the nodes that it depends on with it, a run that moves to a later one those
    that depend on it; runs with `target[i] == i` keep their order.
    """
    n = seq.size
    first = np.full(g.time.size, -1, np.int32)
    loss = 0
    for i in range(n - 1, -1, -1):
        first[seq[i]] = i
        if g.phase[seq[i]] == LOSS:
            loss = i
    for i in range(n - 1, -1, -1):
        v = seq[i]
        if first[v] != i:
            target[first[v]] = min(target[first[v]], target[i])
            continue
        if g.phase[v] == BACKWARD:
            target[i] = max(target[i], np.float64(loss))
        for k in range(g.predecessors[v], g.predecessors[v + 1]):
            u = first[g.predecessors[k]]
            target[u] = min(target[u], target[i])
    for i in range(n):
        v = seq[i]
        if first[v] != i:
            target[i] = max(target[i], target[first[v]])
            continue
        if i < loss:
            target[i] = min(target[i], np.float64(loss))
        for k in range(g.predecessors[v], g.predecessors[v + 1]):
            target[i] = max(target[i], target[first[g.predecessors[k]]])
    order = stable_order(target)
    g.work[0] += 4 * n
    out = np.empty(n, np.int32)
    for i in range(n):
        out[i] = seq[order[i]]
    return out


@allocating_kernel
def disordered(g: Flat, seq: Ints, lo: int, hi: int, count: int, rng: Seed) -> Ints:
    """The sequence with `count` runs of positions [lo, hi) moved: earlier, later, as early or as late as is legal."""
    n = seq.size
    target = np.empty(n, np.float64)
    first = np.full(g.time.size, -1, np.int32)
    for i in range(n - 1, -1, -1):
        target[i] = i
        first[seq[i]] = i
    lo, hi = max(0, min(lo, n - 1)), min(n, hi)
    loss = loss_position(g, seq)
    for _ in range(count):
        i = lo + below(rng, max(1, hi - lo))
        if i == loss:
            continue
        far = 1.0 + n * (0.02 + 0.4 * fraction(rng) ** 2) * fraction(rng)
        kind = below(rng, 4)
        if kind == 0:
            target[i] = i + far
        elif kind == 1:
            target[i] = i - far
        else:
            earliest, latest = earliest_place(g, seq, i, first, loss), latest_place(g, seq, i, first, loss)
            target[i] = earliest - 0.5 if kind == 2 else latest + 0.5
    return reordered(g, seq, target)


@allocating_kernel
def brought_back(g: Flat, seq: Ints, lo: int, hi: int, chance: float, rng: Seed) -> Ints:
    """The sequence with postponed first runs of the nodes [lo, hi) put back, each with probability `chance`.

    Postponed is what first runs after a node of a larger number; it moves right before the first run of such a node.
    """
    n = seq.size
    target = np.empty(n, np.float64)
    first = np.full(g.time.size, n, np.int32)
    for i in range(n - 1, -1, -1):
        target[i] = i
        first[seq[i]] = i
    earliest = n
    for v in range(g.time.size - 1, -1, -1):
        at = first[v]
        if earliest < at < n and lo <= v < hi and fraction(rng) < chance:
            target[at] = earliest - 0.5
        earliest = min(earliest, at)
    return reordered(g, seq, target)


@allocating_kernel
def some_brought_back(g: Flat, seq: Ints, rng: Seed) -> Ints:
    """The sequence with postponed first runs of a random range of nodes put back, all or some of them."""
    width = max(4, int(g.time.size * fraction(rng)))
    lo = below(rng, g.time.size) - width // 2
    chance = 1.0 if fraction(rng) < 0.5 else fraction(rng)
    return brought_back(g, seq, lo, lo + width, chance, rng)
