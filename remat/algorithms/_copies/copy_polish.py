"""Polishing a plan with copies: reruns deleted or replaced by copies, the most expensive first, and copies that serve nothing.

Time is not monotone in these moves (fewer reruns may cost idle time), so each is accepted by its exact time only. Ties are
accepted: they take load off the lanes.
"""

from __future__ import annotations

import numpy as np

from remat.algorithms._arrays.graph_arrays import Flat, Ints, Longs
from remat.algorithms._arrays.jit import inner_kernel, kernel
from remat.algorithms._arrays.sorting import stable_order
from remat.algorithms._copies.copy_arrays import Lanes, Runs
from remat.algorithms._copies.copy_replay import FAILED, time_of


@inner_kernel
def bit_of(g: Flat, v: int, d: int) -> int:
    """The place of datum d among the reads of node v; -1: v does not read it."""
    for k in range(g.read_ptr[v], g.read_ptr[v + 1]):
        if g.read_idx[k] == d:
            return k - g.read_ptr[v]
    return -1


@inner_kernel
def writes(g: Flat, v: int, d: int) -> bool:
    """Whether node v produces datum d."""
    for k in range(g.write_ptr[v], g.write_ptr[v + 1]):
        if g.write_idx[k] == d:
            return True
    return False


@inner_kernel
def mark_next_read(g: Flat, runs: Runs, at: int, d: int) -> bool:
    """Mark the first read of d from `at` on, unless d is produced before it or it is marked; whether it was changed."""
    for i in range(at, runs.n):
        v = runs.seq[i]
        if writes(g, v, d):
            return False
        k = bit_of(g, v, d)
        if k >= 0:
            bit = np.int64(1) << k
            if runs.mask[i] & bit:
                return False
            runs.mask[i] |= bit
            return True
    return False


@inner_kernel
def without(g: Flat, runs: Runs, at: int, trial: Runs) -> Runs:
    """The runs without position `at`, in the arrays of `trial`; what it fetched comes by a copy to the next read."""
    for i in range(at):
        trial.seq[i], trial.mask[i] = runs.seq[i], runs.mask[i]
    for i in range(at + 1, runs.n):
        trial.seq[i - 1], trial.mask[i - 1] = runs.seq[i], runs.mask[i]
    shorter = Runs(trial.seq, trial.mask, runs.n - 1)
    v = runs.seq[at]
    for k in range(g.read_ptr[v], g.read_ptr[v + 1]):
        if (runs.mask[at] >> (k - g.read_ptr[v])) & 1:
            mark_next_read(g, shorter, at, g.read_idx[k])
    return shorter


@inner_kernel
def copied_instead(g: Flat, lanes: Lanes, v: int, at: int, trial: Runs) -> bool:
    """Mark the next reads of what a deleted run of v made; whether any was marked."""
    marked = False
    for k in range(g.write_ptr[v], g.write_ptr[v + 1]):
        d = g.write_idx[k]
        if lanes.movable[d] and mark_next_read(g, trial, at, d):
            marked = True
    return marked


@inner_kernel
def reruns_in(g: Flat, runs: Runs, lo: int, hi: int) -> Ints:
    """Positions of the reruns in [lo, hi), the most expensive first."""
    seen = np.zeros(g.time.size, np.bool_)
    places, cost = np.empty(runs.n, np.int32), np.empty(runs.n, np.float64)
    count = 0
    for i in range(runs.n):
        v = runs.seq[i]
        if seen[v] and g.rerun[v] and lo <= i < hi:
            places[count], cost[count] = i, -np.float64(g.time[v])
            count += 1
        seen[v] = True
    order = stable_order(cost[:count])
    out = np.empty(count, np.int32)
    for j in range(count):
        out[j] = places[order[j]]
    return out


@inner_kernel
def delete_reruns(g: Flat, lanes: Lanes, runs: Runs, span: tuple[int, int], time: int) -> tuple[int, int]:
    """Delete reruns of a span, or replace them by copies, where that is not slower: (number of runs, time)."""
    seq, mask, n = runs.seq, runs.mask, runs.n
    places = reruns_in(g, runs, span[0], span[1])
    other = Runs(np.empty(n, np.int32), np.empty(n, np.int64), n)
    for j in range(places.size):
        at = places[j]
        v = seq[at]
        trial = without(g, Runs(seq, mask, n), at, other)
        faster = time_of(g, lanes, trial)[0]
        if faster == FAILED or faster > time:
            if not copied_instead(g, lanes, v, at, trial):
                continue
            faster = time_of(g, lanes, trial)[0]
            if faster == FAILED or faster > time:
                continue
        time = faster
        n -= 1
        for i in range(n):
            seq[i], mask[i] = trial.seq[i], trial.mask[i]
        for i in range(j + 1, places.size):
            places[i] -= places[i] > at
    return n, time


@inner_kernel
def clear_marks(g: Flat, lanes: Lanes, runs: Runs, span: tuple[int, int], time: int) -> int:
    """Leave out copies to the reads of a span where that is not slower; the time."""
    for i in range(span[0], min(span[1], runs.n)):
        bits, bit = runs.mask[i], np.int64(1)
        while bits:
            if bits & 1:
                runs.mask[i] ^= bit
                faster = time_of(g, lanes, runs)[0]
                if faster == FAILED or faster > time:
                    runs.mask[i] ^= bit
                else:
                    time = faster
            bits >>= 1
            bit <<= 1
    return time


@kernel
def polished(
    g: Flat, lanes: Lanes, seq: Ints, mask: Longs, span: tuple[int, int], passes: int
) -> tuple[Ints, Longs, Ints, int]:
    """Polish the positions in a span, in passes until nothing changes.

    Returns (runs, masks, where each prefetch is issued, time [ns]); the time is `FAILED` for a plan that does not fit. With no
    passes the plan is only replayed.
    """
    seq, mask, n = seq.copy(), mask.copy(), seq.size
    time, copies = time_of(g, lanes, Runs(seq, mask, n))
    for _ in range(passes):
        if time == FAILED:
            break
        length, before = n, time
        n, time = delete_reruns(g, lanes, Runs(seq, mask, n), span, time)
        time = clear_marks(g, lanes, Runs(seq, mask, n), span, time)
        if time == before and n == length:
            break
    if passes > 0:
        time, copies = time_of(g, lanes, Runs(seq, mask, n))
    return seq[:n].copy(), mask[:n].copy(), copies.issue, time
