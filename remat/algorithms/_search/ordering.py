"""Shift: move runs to other legal positions while the profile near and over the budget falls.

A run may be anywhere after the first runs of the nodes that its node depends on. A first run must also be before every
run that reads its outputs, before the node's other runs, and on its side of the loss; nodes that draw random numbers keep their
order. The objective is the sum of the squares of the bytes above a share of the budget.
"""

from __future__ import annotations

import numpy as np

from remat.algorithms._arrays.graph_arrays import BACKWARD, LOSS, Flat, Floats, Ints, Longs, Seed
from remat.algorithms._arrays.jit import inner_kernel, kernel
from remat.algorithms._arrays.liveness import memory_profile
from remat.algorithms._arrays.rng import below, fraction
from remat.algorithms._arrays.sorting import stable_order


@inner_kernel
def pressure(mem: Longs, n: int, level: float) -> float:
    """Sum of the squares of the bytes over `level`, in units of the level."""
    total = 0.0
    for i in range(n):
        if mem[i] > level:
            over = (mem[i] - level) / max(level, 1.0)
            total += over * over
    return total


@inner_kernel
def legal_range(g: Flat, seq: Ints, n: int, i: int, first: Ints) -> tuple[int, int]:
    """First and last position the run at i may be moved to (as an index after removal from i)."""
    v = seq[i]
    lo, hi = 0, n - 1
    if first[v] != i:
        lo = first[v] + 1
        for k in range(g.read_ptr[v], g.read_ptr[v + 1]):
            lo = max(lo, first[g.producer[g.read_idx[k]]] + 1)
        return lo, hi
    for k in range(g.order_ptr[v], g.order_ptr[v + 1]):
        lo = max(lo, first[g.order_idx[k]] + 1)
    for j in range(n):
        u = seq[j]
        if j == i:
            continue
        if g.phase[u] == LOSS:
            if j < i:
                lo = max(lo, j + 1)
            else:
                hi = min(hi, j - 1)
        if j > i and j <= hi:
            if u == v:
                hi = j - 1
            for k in range(g.order_ptr[u], g.order_ptr[u + 1]):
                if g.order_idx[k] == v:
                    hi = min(hi, j - 1)
    return lo, hi


@inner_kernel
def moved(seq: Ints, n: int, i: int, j: int, out: Ints) -> None:
    """Write to `out[:n]` the sequence with the run at i taken out and put at index j."""
    for k in range(n):
        if k == j:
            out[k] = seq[i]
        elif i <= k < j:
            out[k] = seq[k + 1]
        elif j < k <= i:
            out[k] = seq[k - 1]
        else:
            out[k] = seq[k]


@kernel
def shift(g: Flat, base: Ints, budget: int, level: float, passes: int, rng: Seed) -> Ints:
    """Move runs to their earliest or latest legal position, or one in between, while the pressure falls.

    The peak never rises above the larger of the budget and the start's peak. Bytes above the share `level` of the budget
    count.
    """
    n = base.size
    seq = base.copy()
    trial = np.empty(n, np.int32)
    mem = np.empty(n, np.int64)
    first = np.empty(g.time.size, np.int32)
    ceiling = max(budget, memory_profile(g, seq, n, mem))
    threshold = budget * level
    best = pressure(mem, n, threshold)
    for _ in range(passes):
        improved = False
        for k in range(n):
            i = below(rng, n)
            v = seq[i]
            if g.phase[v] == LOSS:
                continue
            for j in range(n - 1, -1, -1):
                first[seq[j]] = j
            lo, hi = legal_range(g, seq, n, i, first)
            choice = k % 3
            if choice == 0:
                j = lo
            elif choice == 1:
                j = hi
            else:
                j = lo + below(rng, max(1, hi - lo + 1))
            if j == i or lo > hi:
                continue
            moved(seq, n, i, j, trial)
            peak = memory_profile(g, trial, n, mem)
            value = pressure(mem, n, threshold)
            if peak <= ceiling and value < best:
                best = value
                seq, trial = trial, seq
                improved = True
        if not improved:
            break
    return seq


@inner_kernel
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
        for k in range(g.order_ptr[v], g.order_ptr[v + 1]):
            u = first[g.order_idx[k]]
            target[u] = min(target[u], target[i])
    for i in range(n):
        v = seq[i]
        if first[v] != i:
            target[i] = max(target[i], target[first[v]])
            continue
        if i < loss:
            target[i] = min(target[i], np.float64(loss))
        for k in range(g.order_ptr[v], g.order_ptr[v + 1]):
            target[i] = max(target[i], target[first[g.order_idx[k]]])
    order = stable_order(target)
    out = np.empty(n, np.int32)
    for i in range(n):
        out[i] = seq[order[i]]
    return out


@inner_kernel
def disordered(g: Flat, seq: Ints, lo: int, hi: int, count: int, rng: Seed) -> Ints:
    """The sequence with `count` runs of positions [lo, hi) moved: earlier, later, as early or as late as is legal."""
    n = seq.size
    target = np.empty(n, np.float64)
    first = np.full(g.time.size, -1, np.int32)
    for i in range(n - 1, -1, -1):
        target[i] = i
        first[seq[i]] = i
    lo, hi = max(0, min(lo, n - 1)), min(n, hi)
    for _ in range(count):
        i = lo + below(rng, max(1, hi - lo))
        if g.phase[seq[i]] == LOSS:
            continue
        far = 1.0 + n * (0.02 + 0.4 * fraction(rng) ** 2) * fraction(rng)
        kind = below(rng, 4)
        if kind == 0:
            target[i] = i + far
        elif kind == 1:
            target[i] = i - far
        else:
            earliest, latest = legal_range(g, seq, n, i, first)
            target[i] = earliest - 0.5 if kind == 2 else latest + 0.5
    return reordered(g, seq, target)
