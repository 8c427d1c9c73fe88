"""Shift: move runs to other legal positions while the profile near and over the budget falls.

A run may be anywhere after the first runs of the nodes that its node depends on. A first run must also be before every
run that reads its outputs, before the node's other runs, and on its side of the loss; nodes that draw random numbers keep their
order. The objective is the sum of the squares of the bytes above a share of the budget.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from remat.algorithms._arrays.graph_arrays import BACKWARD, LOSS, Flat, Floats, Ints, Longs, Seed
from remat.algorithms._arrays.jit import inner_kernel, kernel
from remat.algorithms._arrays.liveness import memory_profile
from remat.algorithms._arrays.rng import below, fraction
from remat.algorithms._arrays.sorting import stable_order


class Runs(NamedTuple):
    """A sequence with what a move needs of it.

    Attributes:
        seq: the node of each run. mem: bytes charged at each run.
        first: position of each node's first run, -1 if it has none. again: position of the same node's next run, -1: none.
    """

    seq: Ints
    mem: Longs
    first: Ints
    again: Ints


@inner_kernel
def link(runs: Runs) -> None:
    """Fill `first` and `again`."""
    for v in range(runs.first.size):
        runs.first[v] = -1
    for i in range(runs.seq.size - 1, -1, -1):
        runs.again[i] = runs.first[runs.seq[i]]
        runs.first[runs.seq[i]] = i


@inner_kernel
def legal_range(g: Flat, seq: Ints, i: int, first: Ints, loss: int) -> tuple[int, int]:
    """First and last position the run at i may be moved to (as an index after removal from i); `loss`: where the loss runs."""
    v = seq[i]
    lo, hi = 0, seq.size - 1
    if first[v] != i:
        lo = first[v] + 1
        for k in range(g.reads[v], g.reads[v + 1]):
            lo = max(lo, first[g.producer[g.reads[k]]] + 1)
        return lo, hi
    for k in range(g.predecessors[v], g.predecessors[v + 1]):
        lo = max(lo, first[g.predecessors[k]] + 1)
    if 0 <= loss < i:
        lo = max(lo, loss + 1)
    elif loss > i:
        hi = loss - 1
    j = i + 1
    while j <= hi:
        u = seq[j]
        if u == v:
            hi = j - 1
        for k in range(g.predecessors[u], g.predecessors[u + 1]):
            if g.predecessors[k] == v:
                hi = min(hi, j - 1)
        j += 1
    g.work[0] += j - i
    return lo, hi


@inner_kernel
def uses_around(g: Flat, runs: Runs, d: int, i: int, j: int) -> tuple[int, bool]:
    """The uses of a datum around index j of the sequence without the run at i.

    Returns the index of the last use before j (a run that makes or reads it; -1: none), and whether the next one reads.
    """
    before, after, reads = -1, runs.seq.size, False
    for k in range(g.users[d] - 1, g.users[d + 1]):
        produces = k < g.users[d]
        position = runs.first[g.producer[d] if produces else g.users[k]]
        while position >= 0:
            index = position - (position > i)
            if position != i and index < j:
                before = max(before, index)
            elif position != i and index < after:
                after, reads = index, not produces
            position = runs.again[position]
    return before, reads


@inner_kernel
def put(g: Flat, runs: Runs, i: int, j: int, sign: int, mem: Longs) -> int:
    """Change `mem`, of the sequence without the run at i, by what that run changes at other runs when it is at index j.

    A run that reads a datum keeps it resident from the use before; one that makes it again ends that residency. `sign` -1: undo.
    Returns the bytes by which what is resident right before the run differs from what is right before index j without it.
    """
    v = runs.seq[i]
    change: int = 0
    for k in range(g.reads[v], g.reads[v + 1]):
        d = g.reads[k]
        before, reads = uses_around(g, runs, d, i, j)
        if not reads and not g.keep[d]:
            change += g.size[d]
            for x in range(before + 1, j):
                mem[x] += sign * g.size[d]
    for k in range(g.writes[v], g.writes[v + 1]):
        d = g.writes[k]
        before, reads = uses_around(g, runs, d, i, j)
        if runs.first[v] == i if g.keep[d] else reads:
            change -= g.size[d]
            for x in range(0 if g.keep[d] else before + 1, j):
                mem[x] -= sign * g.size[d]
    return change


@inner_kernel
def profile_of_move(g: Flat, runs: Runs, i: int, j: int, mem: Longs) -> None:
    """Fill `mem` with the memory profile of the sequence with the run at i taken out and put at index j."""
    n = runs.seq.size
    for x in range(n - 1):
        mem[x] = runs.mem[x + (x >= i)]
    put(g, runs, i, i, -1, mem)
    resident: int = 0
    if j < n - 1:
        resident = mem[j] - g.charge[runs.seq[j + (j >= i)]]
    else:
        for d in range(g.size.size):
            if g.keep[d]:
                resident += g.size[d]
    resident += put(g, runs, i, j, 1, mem)
    for x in range(n - 1, j, -1):
        mem[x] = mem[x - 1]
    mem[j] = resident + g.charge[runs.seq[i]]


@inner_kernel
def pressure(mem: Longs, level: float) -> tuple[int, float]:
    """The peak, and the sum of the squares of the bytes over `level`, in units of the level."""
    peak, total = 0, 0.0
    for i in range(mem.size):
        peak = max(peak, mem[i])
        if mem[i] > level:
            over = (mem[i] - level) / max(level, 1.0)
            total += over * over
    return peak, total


@inner_kernel
def move(runs: Runs, i: int, j: int, mem: Longs) -> None:
    """Take the run at i out and put it at index j; `mem`: the profile of the result."""
    v = runs.seq[i]
    step = 1 if j > i else -1
    for x in range(i, j, step):
        runs.seq[x] = runs.seq[x + step]
    runs.seq[j] = v
    for x in range(mem.size):
        runs.mem[x] = mem[x]
    link(runs)


@kernel
def shift(g: Flat, base: Ints, budget: int, level: float, passes: int, rng: Seed) -> Ints:
    """Move runs to their earliest or latest legal position, or one in between, while the pressure falls.

    The peak never rises above the larger of the budget and the start's peak. Bytes above the share `level` of the budget
    count.
    """
    n = base.size
    first, again = np.empty(g.time.size, np.int32), np.empty(n, np.int32)
    runs = Runs(base.copy(), np.empty(n, np.int64), first, again)
    trial = np.empty(n, np.int64)
    ceiling = max(budget, memory_profile(g, base, n, runs.mem))
    threshold = budget * level
    _, best = pressure(runs.mem, threshold)
    link(runs)
    loss = loss_position(g, runs.seq)
    for _ in range(passes):
        improved = False
        for k in range(n):
            i = below(rng, n)
            if i == loss:
                continue
            lo, hi = legal_range(g, runs.seq, i, first, loss)
            choice = k % 3
            if choice == 0:
                j = lo
            elif choice == 1:
                j = hi
            else:
                j = lo + below(rng, max(1, hi - lo + 1))
            if j == i or lo > hi:
                continue
            profile_of_move(g, runs, i, j, trial)
            g.work[0] += n
            peak, value = pressure(trial, threshold)
            if peak <= ceiling and value < best:
                best = value
                move(runs, i, j, trial)
                loss = loss_position(g, runs.seq)
                improved = True
        if not improved:
            break
    return runs.seq


@inner_kernel
def loss_position(g: Flat, seq: Ints) -> int:
    """Where the loss runs; -1: it does not."""
    for i in range(seq.size):
        if g.phase[seq[i]] == LOSS:
            return i
    return -1


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
            earliest, latest = legal_range(g, seq, i, first, loss)
            target[i] = earliest - 0.5 if kind == 2 else latest + 0.5
    return reordered(g, seq, target)
