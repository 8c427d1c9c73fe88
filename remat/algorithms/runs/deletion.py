"""Deletion: take reruns out again while the peak stays within the budget, the most expensive first."""

from __future__ import annotations

import numpy as np

from remat.algorithms.runs.csr import BACKWARD, Flat, Ints, Longs
from remat.algorithms.runs.kernel import kernel
from remat.algorithms.runs.liveness import BLOCK, block_maxima, fits, range_max, residencies, sweep


@kernel
def removable(g: Flat, seq: Ints, n: int, mem: Longs, budget: int, found: Ints) -> int:
    """Positions whose removal might keep the peak within the budget (a necessary test); returns how many, in `found`.

    A rerun's removal extends the earlier residency of its outputs over the gap before it; what it read may go
    earlier. The first run of a backward node may go when nothing reads it before a later run of the node.
    """
    top = np.empty(n // BLOCK + 1, np.int64)
    block_maxima(mem, n, top)
    out_ptr, out_end = residencies(g, seq, n)
    residency_end = np.full(g.size.size, -1, np.int32)
    left = np.zeros(g.time.size, np.int32)
    for i in range(n):
        left[seq[i]] += 1
    seen = np.zeros(g.time.size, np.bool_)
    count = 0
    for i in range(n):
        v = seq[i]
        left[v] -= 1
        o = out_ptr[i]
        if not g.rerun[v]:
            pass  # it runs once, or its contributions belong together
        elif seen[v]:
            release = np.int64(0)
            for k in range(g.read_ptr[v], g.read_ptr[v + 1]):
                if residency_end[g.read_idx[k]] == i:
                    release += g.size[g.read_idx[k]]
            possible = True
            for k in range(g.write_ptr[v], g.write_ptr[v + 1]):
                d = g.write_idx[k]
                end = out_end[o + k - g.write_ptr[v]]
                if end <= i or g.keep[d]:
                    continue
                if range_max(mem, top, residency_end[d] + 1, i - 1) + g.size[d] - release > budget:
                    possible = False
                    break
            if possible:
                found[count] = i
                count += 1
        elif left[v] > 0 and g.phase[v] == BACKWARD and not g.draws[v]:
            dead = True
            for k in range(g.write_ptr[v], g.write_ptr[v + 1]):
                if out_end[o + k - g.write_ptr[v]] > i:
                    dead = False
            if dead:
                found[count] = i
                count += 1
        seen[v] = True
        for k in range(g.write_ptr[v], g.write_ptr[v + 1]):
            residency_end[g.write_idx[k]] = out_end[o]
            o += 1
    return count


@kernel
def first_position(seq: Ints, n: int, p: int) -> int:
    """Position of the first run of the node that runs at p."""
    for i in range(n):
        if seq[i] == seq[p]:
            return i
    return -1


@kernel
def delete(g: Flat, base: Ints, budget: int) -> Ints:
    """Remove reruns from a sequence that fits, most expensive first, until none can go."""
    n = base.size
    seq = base.copy()
    mem = np.empty(n, np.int64)
    found = np.empty(n, np.int32)
    runs = np.empty(g.time.size, np.int32)
    live = np.empty(g.size.size, np.bool_)
    while True:
        sweep(g, seq, n, mem)
        count = removable(g, seq, n, mem, budget, found)
        if count == 0:
            break
        cost = np.empty(count, np.int64)
        for j in range(count):
            cost[j] = -g.time[seq[found[j]]]
        order = np.argsort(cost, kind="mergesort")
        removed = False
        for j in range(count):
            p = found[order[j]]
            first = p == first_position(seq, n, p)
            if first and removed:
                continue  # judged before other removals: the next pass looks again
            if not fits(g, seq, n, p, budget, runs, live):
                continue
            seq[p : n - 1] = seq[p + 1 : n].copy()
            n -= 1
            removed = True
            if first:
                break  # a later run became the first
            for k in range(count):
                if found[k] > p:
                    found[k] -= 1
        if not removed:
            break
    return seq[:n].copy()
