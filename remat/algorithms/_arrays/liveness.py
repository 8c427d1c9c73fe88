"""Liveness analysis of a run sequence, backward: peak, memory profile, time, ends of residency; range maxima of the profile.

A run sequence is an int32 array of node indices; drops are implied (after the last read before the next production),
exactly as `Schedule.from_runs` places them. All kernels take a `Flat` (see `graph_arrays`) and plain arrays, allocate nothing
in their inner loops and count in int64 bytes and nanoseconds. Only heuristics use their results: the cost of a plan comes
from `remat.ir.validate`.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from remat.algorithms._arrays.graph_arrays import Flags, Flat, Ints, Longs
from remat.algorithms._arrays.jit import allocating_kernel, inlined_kernel, inner_kernel, kernel

BLOCK = 32  # positions per block of the range-maximum index
LARGEST = 1 << 62  # more than any number of bytes
LARGEST_TIME = (1 << 63) - 1  # the times of a graph sum to less (G-RANGE), but with reruns they may exceed it [ns]


@inlined_kernel
def step_back(g: Flat, v: int, first: bool, live: Flags) -> int:
    """Change `live` from the data resident right after a run of `v` to those right before it; returns the bytes added.

    `first`: whether it is the node's first run. The data that it reads are resident while it runs; its outputs are part of its
    charge.
    """
    added: int = 0
    for k in range(g.writes[v], g.writes[v + 1]):
        d = g.writes[k]
        if live[d] and (first or not g.keep[d]):
            live[d] = False
            added -= g.size[d]
    for k in range(g.reads[v], g.reads[v + 1]):
        d = g.reads[k]
        if not live[d]:
            live[d] = True
            added += g.size[d]
    return added


@kernel
def memory_profile(g: Flat, seq: Ints, n: int, mem: Longs) -> int:
    """Fill `mem[:n]` with the bytes charged at each run; return the peak."""
    runs = np.zeros(g.time.size, np.int32)
    for i in range(n):
        runs[seq[i]] += 1
    live = g.keep.copy()
    live_bytes = 0
    for d in range(g.size.size):
        if live[d]:
            live_bytes += g.size[d]
    g.work[0] += n
    peak = 0
    for i in range(n - 1, -1, -1):
        v = seq[i]
        runs[v] -= 1
        live_bytes += step_back(g, v, runs[v] == 0, live)
        charged = live_bytes + g.charge[v]
        mem[i] = charged
        peak = max(peak, charged)
    return peak


@allocating_kernel
def fits(g: Flat, seq: Ints, n: int, skip: int, budget: int) -> bool:
    """Whether the sequence without position `skip` (-1: none) is within the budget."""
    runs, live = np.zeros(g.time.size, np.int32), g.keep.copy()
    for i in range(n):
        runs[seq[i]] += 1
    if skip >= 0:
        runs[seq[skip]] -= 1
    g.work[0] += n
    live_bytes = 0
    for d in range(g.size.size):
        if live[d]:
            live_bytes += g.size[d]
    for i in range(n - 1, -1, -1):
        if i == skip:
            continue
        v = seq[i]
        runs[v] -= 1
        live_bytes += step_back(g, v, runs[v] == 0, live)
        if live_bytes + g.charge[v] > budget:
            return False
    return True


@inlined_kernel
def settle(g: Flat, v: int, change: NDArray[np.int8]) -> tuple[int, int]:
    """End the changes of residency at an earlier use: set `change` to zero for the data that `v` makes or reads.

    `change` is 1 where a datum is resident in addition, -1 where it is no longer. Returns (bytes, number of data) of the
    changes that end.
    """
    ended: int = 0
    ends: int = 0
    for k in range(g.writes[v], g.writes[v + 1]):
        d = g.writes[k]
        if change[d] != 0:
            ended += change[d] * g.size[d]
            change[d] = 0
            ends += 1
    for k in range(g.reads[v], g.reads[v + 1]):
        d = g.reads[k]
        if change[d] != 0:
            ended += change[d] * g.size[d]
            change[d] = 0
            ends += 1
    return ended, ends


def total_time(g: Flat, seq: Ints, n: int) -> int:
    """Sum of the times of the runs, `LARGEST_TIME` if it is more; right for sums below 2^64 [ns]."""
    total = int(g.time[seq[:n]].sum())
    return total if total >= 0 else LARGEST_TIME


@kernel
def overshoot(mem: Longs, n: int, budget: int) -> int:
    """Sum over positions of the bytes above the budget."""
    over: int = 0
    for i in range(n):
        over += max(0, mem[i] - budget)
    return over


@allocating_kernel
def ends_of_residency(g: Flat, seq: Ints, n: int, out_ptr: Ints, out_end: Ints) -> None:
    """For each position and each datum it produces: the position of the last read before the next production.

    `out_ptr[i]` is the offset of position i in `out_end`, in the order of `Flat.writes`; a datum without readers ends
    where it is produced. Kept data are treated like all others: callers look at `keep`.
    """
    total = 0
    for i in range(n):
        out_ptr[i] = total
        v = seq[i]
        total += g.writes[v + 1] - g.writes[v]
    out_ptr[n] = total
    last = np.full(g.size.size, -1, np.int32)
    for i in range(n - 1, -1, -1):
        v = seq[i]
        o = out_ptr[i]
        for k in range(g.writes[v], g.writes[v + 1]):
            d = g.writes[k]
            out_end[o] = last[d] if last[d] >= 0 else i
            o += 1
            last[d] = -1
        for k in range(g.reads[v], g.reads[v + 1]):
            d = g.reads[k]
            if last[d] < 0:
                last[d] = i


@allocating_kernel
def residencies(g: Flat, seq: Ints, n: int) -> tuple[Ints, Ints]:
    """As `ends_of_residency`, in new arrays: (offset of each position, ends)."""
    total = 0
    for i in range(n):
        total += g.writes[seq[i] + 1] - g.writes[seq[i]]
    out_ptr = np.empty(n + 1, np.int32)
    out_end = np.empty(total, np.int32)
    ends_of_residency(g, seq, n, out_ptr, out_end)
    return out_ptr, out_end


@inner_kernel
def block_maxima(mem: Longs, lo: int, hi: int, top: Longs) -> None:
    """Fill `top` with the maxima of the blocks of `BLOCK` positions around mem[lo..hi - 1]."""
    for b in range(lo // BLOCK, (hi + BLOCK - 1) // BLOCK):
        best = -LARGEST
        for i in range(b * BLOCK, min(mem.size, (b + 1) * BLOCK)):
            best = max(best, mem[i])
        top[b] = best


@inner_kernel
def exceeds(mem: Longs, top: Longs, lo: int, hi: int, limit: int) -> bool:
    """Whether any of mem[lo..hi], both included, is above the limit."""
    first, last = (lo + BLOCK - 1) // BLOCK, (hi + 1) // BLOCK  # of the blocks that lie in the range whole
    highest = -LARGEST
    for b in range(first, last):
        highest = max(highest, top[b])
    for i in range(lo, min(BLOCK * first, hi + 1)):
        highest = max(highest, mem[i])
    for i in range(BLOCK * max(first, last), hi + 1):
        highest = max(highest, mem[i])
    return highest > limit


@inner_kernel
def extend_skyline(mem: Longs, skyline: Ints, i: int) -> None:
    """Add position i, the next one, to the skyline: the positions before the current one with less memory at all later ones.

    `skyline[0]` is their number; they follow in ascending order. Linear in the number of positions, all calls together.
    """
    top = skyline[0]
    while top > 0 and mem[skyline[top]] <= mem[i]:
        top -= 1
    skyline[top + 1] = i
    skyline[0] = top + 1


@inner_kernel
def highest_from(mem: Longs, skyline: Ints, lo: int) -> int:
    """The maximum of `mem` from position `lo` to the last one in the skyline; below all values if there is no such position."""
    left, right = 1, skyline[0] + 1
    while left < right:
        middle = (left + right) // 2
        if skyline[middle] < lo:
            left = middle + 1
        else:
            right = middle
    return mem[skyline[left]] if left <= skyline[0] else -LARGEST
