"""Deletion: remove reruns, the most expensive first, while the peak stays within the budget."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from remat.algorithms._arrays.graph_arrays import BACKWARD, Flags, Flat, Ints, Longs
from remat.algorithms._arrays.jit import allocating_kernel, inlined_kernel, inner_kernel, kernel
from remat.algorithms._arrays.liveness import BLOCK, block_maxima, exceeds, fits, memory_profile, residencies, settle
from remat.algorithms._arrays.sorting import stable_order


@kernel
def removable(g: Flat, seq: Ints, n: int, mem: Longs, budget: int, positions: Ints) -> int:
    """Fill `positions` with runs whose removal might keep the peak within the budget (a necessary test); returns how many.

    Removing a rerun extends the earlier residency of its outputs over the gap before it; the data that it read may be dropped
    earlier. The first run of a backward node may be removed if no node reads its outputs before a later run of the node.
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
    g.work[0] += 3 * n
    for i in range(n):
        v = seq[i]
        left[v] -= 1
        o = out_ptr[i]
        if not g.rerun[v]:
            pass  # it may run only once, or it contributes to a sum
        elif seen[v]:
            release = np.int64(0)
            for k in range(g.reads[v], g.reads[v + 1]):
                if residency_end[g.reads[k]] == i:
                    release += g.size[g.reads[k]]
            possible = True
            for k in range(g.writes[v], g.writes[v + 1]):
                d = g.writes[k]
                end = out_end[o + k - g.writes[v]]
                if end <= i or g.keep[d]:
                    continue
                if exceeds(mem, top, residency_end[d] + 1, i - 1, budget - g.size[d] + release):
                    possible = False
                    break
            if possible:
                positions[count] = i
                count += 1
        elif left[v] > 0 and g.phase[v] == BACKWARD and not g.draws[v]:
            dead = True
            for k in range(g.writes[v], g.writes[v + 1]):
                if out_end[o + k - g.writes[v]] > i:
                    dead = False
            if dead:
                positions[count] = i
                count += 1
        seen[v] = True
        for k in range(g.writes[v], g.writes[v + 1]):
            residency_end[g.writes[k]] = out_end[o]
            o += 1
    return count


class Uses(NamedTuple):
    """A sequence from which runs are removed, with the data that decide whether another run can be removed.

    Attributes:
        seq, mem: the runs and the bytes charged at each. before: for each position, the previous one that is not removed.
        read_at, last: offset of each position in `last`; for each read, whether it is the last before the next production.
        write_at, used: offset of each position in `used`; for each output, whether any run reads it.
        change: scratch, all zero between calls: how residency changes (see `settle`).
    """

    seq: Ints
    mem: Longs
    before: Ints
    read_at: Ints
    last: Flags
    write_at: Ints
    used: Flags
    change: NDArray[np.int8]


@allocating_kernel
def uses_of(g: Flat, seq: Ints, n: int, mem: Longs) -> Uses:
    """The uses of the first `n` runs of a sequence."""
    read_at, write_at, before = np.empty(n, np.int32), np.empty(n, np.int32), np.empty(n, np.int32)
    reads, writes = 0, 0
    for i in range(n):
        v = seq[i]
        read_at[i], write_at[i], before[i] = reads, writes, i - 1
        reads += g.reads[v + 1] - g.reads[v]
        writes += g.writes[v + 1] - g.writes[v]
    last, used = np.empty(reads, np.bool_), np.empty(writes, np.bool_)
    live = np.zeros(g.size.size, np.bool_)
    for i in range(n - 1, -1, -1):
        v = seq[i]
        for k in range(g.writes[v], g.writes[v + 1]):
            used[write_at[i] + k - g.writes[v]] = live[g.writes[k]]
            live[g.writes[k]] = False
        for k in range(g.reads[v], g.reads[v + 1]):
            last[read_at[i] + k - g.reads[v]] = not live[g.reads[k]]
            live[g.reads[k]] = True
    return Uses(seq, mem, before, read_at, last, write_at, used, np.zeros(g.size.size, np.int8))


@inlined_kernel
def record_uses(g: Flat, uses: Uses, j: int) -> None:
    """Update the uses at position j, where changes of residency end."""
    u, change = uses.seq[j], uses.change
    for k in range(g.writes[u], g.writes[u + 1]):
        d = g.writes[k]
        if change[d] != 0:
            uses.used[uses.write_at[j] + k - g.writes[u]] = change[d] > 0
    for k in range(g.reads[u], g.reads[u + 1]):
        d = g.reads[k]
        if change[d] != 0:
            uses.last[uses.read_at[j] + k - g.reads[u]] = change[d] < 0


@inner_kernel
def fits_without(g: Flat, uses: Uses, p: int, budget: int, commit: bool) -> bool:
    """Whether the sequence fits without the rerun at p; with `commit` (it must fit), update the profile and the uses.

    Without the rerun, its outputs stay resident from the use before it, and data of which it is the last reader are dropped
    after the use before it: only the positions in between change.
    """
    seq, mem, before, change = uses.seq, uses.mem, uses.before, uses.change
    v = seq[p]
    delta, changed_data = np.int64(0), np.int64(0)
    for k in range(g.writes[v], g.writes[v + 1]):
        d = g.writes[k]
        if uses.used[uses.write_at[p] + k - g.writes[v]] and not g.keep[d]:
            change[d] = 1
            delta += g.size[d]
            changed_data += 1
    for k in range(g.reads[v], g.reads[v + 1]):
        d = g.reads[k]
        if uses.last[uses.read_at[p] + k - g.reads[v]] and not g.keep[d]:
            change[d] = -1
            delta -= g.size[d]
            changed_data += 1
    fit = True
    j = before[p]
    while changed_data > 0 and j >= 0:
        if commit:
            record_uses(g, uses, j)
        ended, ends = settle(g, seq[j], change)
        delta -= ended
        changed_data -= ends
        if commit:
            mem[j] += delta
        elif mem[j] + delta > budget:
            fit = False
            break
        j = before[j]
        g.work[0] += 1
    settle(g, v, change)
    return fit


@kernel
def thinned(g: Flat, seq: Ints, n: int, mem: Longs, budget: int, candidates: Ints) -> int:
    """One pass over candidate positions, the most expensive first; returns the new length, n if none could be removed."""
    first_at = np.full(g.time.size, -1, np.int32)
    for i in range(n - 1, -1, -1):
        first_at[seq[i]] = i
    uses, gone = uses_of(g, seq, n, mem), np.zeros(n, np.bool_)
    g.work[0] += 3 * n
    before, after = uses.before, np.empty(n, np.int32)
    for i in range(n):
        after[i] = i + 1
    cost = np.empty(candidates.size, np.float64)
    for j in range(candidates.size):
        cost[j] = -g.time[seq[candidates[j]]]
    order = stable_order(cost)
    removed = False
    for j in range(candidates.size):
        p = candidates[order[j]]
        if first_at[seq[p]] == p:
            if removed:
                continue  # it was tested before the other removals: the next pass tests again
            if fits(g, seq, n, p, budget):
                gone[p] = True
                break  # a later run is the first now
            continue
        if fits_without(g, uses, p, budget, False):
            fits_without(g, uses, p, budget, True)
            gone[p] = removed = True
            if before[p] >= 0:
                after[before[p]] = after[p]
            if after[p] < n:
                before[after[p]] = before[p]
    m = 0
    for i in range(n):
        if not gone[i]:
            seq[m] = seq[i]
            m += 1
    return m


def delete(g: Flat, base: Ints, budget: int) -> Ints:
    """Remove reruns from a sequence that fits, most expensive first, until none can be removed."""
    n = base.size
    seq = base.copy()
    mem = np.empty(n, np.int64)
    positions = np.empty(n, np.int32)
    while True:
        memory_profile(g, seq, n, mem)
        count = removable(g, seq, n, mem, budget, positions)
        if count == 0:
            break
        m = thinned(g, seq, n, mem, budget, positions[:count])
        if m == n:
            break
        n = m
    return seq[:n].copy()
