"""Deletion: remove reruns, the most expensive first, while the peak stays within the budget."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from remat.algorithms._arrays.chain_insertion import READ, WRITE, Uses, most_uses, remove_uses, uses_in
from remat.algorithms._arrays.graph_arrays import BACKWARD, Flat, Ints, Longs
from remat.algorithms._arrays.jit import allocating_kernel, inner_kernel, kernel
from remat.algorithms._arrays.liveness import BLOCK, LARGEST, block_maxima, exceeds, fits, memory_profile
from remat.algorithms._arrays.sorting import stable_order


class Thinning(NamedTuple):
    """A sequence from which runs are removed.

    Attributes:
        seq, mem: the runs, and the bytes charged at each; less than any where a run is removed. top: see `block_maxima`.
        uses: of those that are left. first, left: per node, the position of its first run; scratch.
        begins, changes: scratch: the first positions at which data are resident or not without a run, and their bytes.
    """

    seq: Ints
    mem: Longs
    top: Longs
    uses: Uses
    first: Ints
    left: Ints
    begins: Ints
    changes: Longs


@inner_kernel
def removable(g: Flat, t: Thinning, n: int, budget: int, positions: Ints) -> int:
    """Fill `positions` with runs whose removal might keep the peak within the budget (a necessary test); returns how many.

    Removing a rerun extends the earlier residency of its outputs over the gap before it; the data that it read may be dropped
    earlier. The first run of a backward node may be removed if no node reads its outputs before a later run of the node.
    """
    seq, uses, first, left = t.seq, t.uses, t.first, t.left
    for v in range(left.size):
        left[v] = 0
    for i in range(n - 1, -1, -1):
        left[seq[i]] += 1
        first[seq[i]] = i
    count = 0
    g.work[0] += 3 * n
    for i in range(n):
        v = seq[i]
        left[v] -= 1
        if not g.rerun[v]:
            continue  # it may run only once, or it contributes to a sum
        if first[v] == i and (left[v] == 0 or g.phase[v] != BACKWARD or g.draws[v]):
            continue
        use, release = uses.at[i], np.int64(0)
        for k in range(g.reads[v], g.reads[v + 1]):
            if uses.following[use] == WRITE:
                release += g.size[g.reads[k]]
            use += 1
        possible = True
        for k in range(g.writes[v], g.writes[v + 1]):
            d, used = g.writes[k], uses.following[use] == READ
            if first[v] == i:
                possible = possible and not used
            elif used and not g.keep[d]:
                begin = (uses.place[uses.before[use]] >> 2) + 1
                if exceeds(t.mem, t.top, begin, i - 1, budget - g.size[d] + release):
                    possible = False
                    break
            use += 1
        if possible:
            positions[count] = i
            count += 1
    return count


@inner_kernel
def changes_without(g: Flat, t: Thinning, p: int) -> tuple[int, int]:
    """Fill `begins` and `changes` with what changes before p without the rerun there; returns (how many, bytes of all).

    Its outputs stay resident from the use before it, and data of which it is the last reader are dropped after the use before it.
    The latest beginning comes first.
    """
    uses, v, use, count = t.uses, t.seq[p], t.uses.at[p], 0
    total: int = 0
    reads = g.reads[v + 1] - g.reads[v]
    for k in range(reads + g.writes[v + 1] - g.writes[v]):
        d = g.reads[g.reads[v] + k] if k < reads else g.writes[g.writes[v] + k - reads]
        if not g.keep[d] and (uses.following[use + k] == READ) == (k >= reads):
            change = g.size[d] if k >= reads else -g.size[d]
            begin, at = (uses.place[uses.before[use + k]] >> 2) + 1, count
            while at > 0 and t.begins[at - 1] < begin:
                t.begins[at], t.changes[at] = t.begins[at - 1], t.changes[at - 1]
                at -= 1
            t.begins[at], t.changes[at] = begin, change
            total += change
            count += 1
    return count, total


@inner_kernel
def fits_without(g: Flat, t: Thinning, p: int, budget: int) -> bool:
    """Whether the sequence fits without the rerun at p."""
    count, change = changes_without(g, t, p)
    end = p
    for i in range(count):
        begin = t.begins[i]
        if change > 0 and exceeds(t.mem, t.top, begin, end - 1, budget - change):
            return False
        g.work[0] += end - begin
        end = begin
        change -= t.changes[i]
    return True


@inner_kernel
def remove(g: Flat, t: Thinning, p: int) -> None:
    """Remove the rerun at p."""
    count, change = changes_without(g, t, p)
    end = p
    t.mem[p] = -LARGEST
    for i in range(count):
        for x in range(t.begins[i], end):
            t.mem[x] += change
        end = t.begins[i]
        change -= t.changes[i]
    block_maxima(t.mem, end, p + 1, t.top)
    remove_uses(g, t.uses, t.seq[p], p)


@allocating_kernel
def thinned(g: Flat, t: Thinning, n: int, budget: int, candidates: Ints, count: int) -> int:
    """One pass over `count` candidates, the most expensive first; returns the new length, n if none could be removed."""
    seq, gone = t.seq, np.zeros(n, np.bool_)
    g.work[0] += 3 * n
    cost = np.empty(count, np.float64)
    for j in range(count):
        cost[j] = -g.time[seq[candidates[j]]]
    order = stable_order(cost)
    removed = False
    for j in range(count):
        p = candidates[order[j]]
        if t.first[seq[p]] == p:
            if removed:
                continue  # it was tested before the other removals: the next pass tests again
            if fits(g, seq, n, p, budget):
                gone[p] = True
                break  # a later run is the first now
            continue
        if fits_without(g, t, p, budget):
            remove(g, t, p)
            gone[p] = removed = True
    m = 0
    for i in range(n):
        if not gone[i]:
            seq[m] = seq[i]
            m += 1
    return m


@kernel
def delete(g: Flat, base: Ints, budget: int) -> Ints:
    """Remove reruns from a sequence that fits, most expensive first, until none can be removed."""
    n, nodes, most = base.size, g.time.size, most_uses(g)
    seq, mem, top = base.copy(), np.empty(n, np.int64), np.empty(n // BLOCK + 1, np.int64)
    first, left, positions = np.empty(nodes, np.int32), np.empty(nodes, np.int32), np.empty(n, np.int32)
    begins, changes, no_masks = np.empty(most, np.int32), np.empty(most, np.int64), np.empty(0, np.int64)
    while True:
        memory_profile(g, seq, n, mem)
        block_maxima(mem, 0, n, top)
        t = Thinning(seq, mem, top, uses_in(g, seq, no_masks, n, 0), first, left, begins, changes)
        count = removable(g, t, n, budget, positions)
        if count == 0:
            break
        m = thinned(g, t, n, budget, positions, count)
        if m == n:
            break
        n = m
    return seq[:n].copy()
