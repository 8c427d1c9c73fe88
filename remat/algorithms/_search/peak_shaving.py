"""Peak shaving: evict data from the gaps between their reads until the profile is under the budget.

While the peak exceeds the budget: list every gap (datum resident, not read, between two events) that covers a
position over the budget, score it by bytes saved over the budget against the time of the rerun chain that would bring
it back, try the best few exactly and apply the best. An input of the chain whose residency can be extended under the
budget costs nothing; any other is run again, recursively. Source: this project (see docs/explanation/planner.md).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from remat.algorithms._arrays.graph_arrays import Flags, Flat, Floats, Ints, Longs, Seed
from remat.algorithms._arrays.jit import inner_kernel, kernel
from remat.algorithms._arrays.liveness import (
    BLOCK,
    MARK,
    block_maxima,
    exceeds,
    residencies,
    resident_before,
    sweep_with_marks,
)
from remat.algorithms._arrays.rng import fraction

TOP = 8  # candidates tried exactly per step
SMALL = 120  # runs up to which nothing is passed over unseen
SURE = 1.2  # a candidate whose score times this is below another's exact value is not tried
KEEPING = 0.7  # inputs below this share of the evicted datum are kept in the second variant of a chain
NO_CEILING = 1 << 62  # a time no plan reaches [ns]
LONGEST = 512  # nodes in a rerun chain; longer chains are not considered


@inner_kernel
def rerun_chain(
    g: Flat,
    price: Floats,
    d: int,
    b: int,
    residency_end: Ints,
    mem: Longs,
    top: Longs,
    budget: int,
    small: int,
    mark: Longs,
    stamp: int,
    chain: Ints,
) -> tuple[int, float, int]:
    """Nodes to run right before position b so that datum d is there again.

    Returns (length, price, bytes of forced extensions); length 0 when no chain exists. `chain` receives the nodes,
    unsorted; `mark[v] == stamp` marks membership. Inputs of at most `small` bytes are extended whatever the budget
    says.
    """
    first = g.producer[d]
    chain[0] = first
    mark[first] = stamp
    length, done = 1, 0
    cost = price[first]
    forced = 0
    while done < length:
        v = chain[done]
        done += 1
        for k in range(g.read_ptr[v], g.read_ptr[v + 1]):
            x = g.read_idx[k]
            if g.keep[x] or residency_end[x] >= b:
                continue
            p = g.producer[x]
            if mark[p] == stamp:
                continue
            if not exceeds(mem, top, residency_end[x] + 1, b - 1, budget - g.size[x]):
                continue
            if g.size[x] <= small or not g.rerun[p]:
                forced += g.size[x]
                continue
            if length == chain.size:
                return 0, cost, forced
            mark[p] = stamp
            chain[length] = p
            length += 1
            cost += price[p]
    return length, cost, forced


@inner_kernel
def keep_if_better(
    score: float,
    b: int,
    chain: Ints,
    length: int,
    kept: int,
    best_score: Floats,
    best_at: Ints,
    best_len: Ints,
    best_chain: Ints,
) -> int:
    """Insert a candidate among the TOP best, in order; returns how many there are now."""
    if kept == TOP and score <= best_score[TOP - 1]:
        return kept
    j = kept if kept < TOP else TOP - 1
    while j > 0 and best_score[j - 1] < score:
        best_score[j] = best_score[j - 1]
        best_at[j] = best_at[j - 1]
        best_len[j] = best_len[j - 1]
        for i in range(best_len[j]):
            best_chain[j, i] = best_chain[j - 1, i]
        j -= 1
    best_score[j] = score
    best_at[j] = b
    best_len[j] = length
    for i in range(length):  # insertion sort: chains are short
        at = i
        while at > 0 and best_chain[j, at - 1] > chain[i]:
            best_chain[j, at] = best_chain[j, at - 1]
            at -= 1
        best_chain[j, at] = chain[i]
    return min(TOP, kept + 1)


@inner_kernel
def over_budget(mem: Longs, n: int, budget: int) -> tuple[Longs, Longs]:
    """Positions over the budget, and the bytes by which they are, before each position (so that ranges are differences)."""
    count = np.zeros(n + 1, np.int64)
    total = np.zeros(n + 1, np.int64)
    for i in range(n):
        above = mem[i] - budget
        count[i + 1] = count[i] + (1 if above > 0 else 0)
        total[i + 1] = total[i] + max(above, 0)
    return count, total


@inner_kernel
def gain_of(over_count: Longs, over_bytes: Longs, a: int, b: int, size: int) -> float:
    """Bytes over the budget that leave when `size` bytes are absent between the events at a and b; -1 where none are over."""
    count = over_count[b] - over_count[a + 1]
    if count == 0:
        return -1.0
    return np.float64(min(size * count, over_bytes[b] - over_bytes[a + 1]))


@inner_kernel
def list_gaps(
    g: Flat,
    price: Floats,
    seq: Ints,
    n: int,
    mem: Longs,
    budget: int,
    exponent: float,
    noise: float,
    share: float,
    keeping: int,
    least: float,
    rng: Seed,
    best_score: Floats,
    best_at: Ints,
    best_len: Ints,
    best_chain: Ints,
) -> int:
    """Score all gaps over the budget; keep the TOP best with their chains (sorted by node). Returns how many.

    Gaps that cannot score `least` are passed over.
    """
    top = np.empty(n // BLOCK + 1, np.int64)
    block_maxima(mem, n, top)
    over_count, over_bytes = over_budget(mem, n, budget)
    out_ptr, out_end = residencies(g, seq, n)
    residency_end = np.full(g.size.size, -1, np.int32)
    last_event = np.full(g.size.size, -1, np.int32)
    mark = np.zeros(g.time.size, np.int64)
    stamp, kept = 0, 0
    chain = np.empty(best_chain.shape[1], np.int32)
    for b in range(n):
        v = seq[b]
        for k in range(g.read_ptr[v], g.read_ptr[v + 1]):
            d = g.read_idx[k]
            a = last_event[d]
            last_event[d] = b
            if g.keep[d] or b - a < 2 or not g.rerun[g.producer[d]]:
                continue
            gain = gain_of(over_count, over_bytes, a, b, g.size[d])
            if gain < 0.0:
                continue
            # a chain costs at least its last node
            ceiling = gain / max(1.0, price[g.producer[d]]) ** exponent * (1 + noise)
            if ceiling < least or (kept == TOP and ceiling <= best_score[TOP - 1]):
                continue
            other = 0
            for variant in range(1 + keeping):  # make what is missing again; or rather keep smaller inputs
                stamp += 1
                small = int(g.size[d] * (share if variant == 0 else KEEPING))
                length, cost, forced = rerun_chain(
                    g, price, d, b, residency_end, mem, top, budget, small, mark, stamp, chain
                )
                if length == 0 or length == other or forced >= g.size[d]:
                    continue
                other = length
                score = gain * (1.0 - forced / g.size[d]) / max(1.0, cost) ** exponent
                if noise > 0:
                    score *= 1.0 + noise * (2 * fraction(rng) - 1)
                kept = keep_if_better(score, b, chain, length, kept, best_score, best_at, best_len, best_chain)
        begin = g.write_ptr[v]
        for k in range(begin, g.write_ptr[v + 1]):
            last_event[g.write_idx[k]] = b
            residency_end[g.write_idx[k]] = out_end[out_ptr[b] + k - begin]
    return kept


@inner_kernel
def insert(seq: Ints, n: int, at: int, chain: Ints, length: int, out: Ints) -> int:
    """Write to `out` the sequence with `chain[:length]` inserted before position `at`; return the new length."""
    for i in range(at):
        out[i] = seq[i]
    for i in range(length):
        out[at + i] = chain[i]
    for i in range(at, n):
        out[i + length] = seq[i]
    return n + length


@inner_kernel
def note(d: int, resident: Flags, live: Flags, change: NDArray[np.int8], touched: Ints, count: int) -> int:
    """Put a datum among the `count` touched ones, unless it is there; returns how many there are now."""
    if change[d] != 0:
        return count
    change[d], live[d] = 2, resident[d]
    touched[count] = d
    return count + 1


@inner_kernel
def fall_of(
    g: Flat,
    seq: Ints,
    b: int,
    chain: Ints,
    length: int,
    mem: Longs,
    budget: int,
    live: Flags,
    resident: Flags,
    change: NDArray[np.int8],
    touched: Ints,
) -> int:
    """By how much the bytes over the budget fall when `chain` runs right before position b; exact, from what changes.

    `resident` is what is resident before b. What the chain makes need not stay before it, what it reads must; both ends
    lie at the use before. `live`, `change` (all zero before and after) and `touched` are scratch.
    """
    held = mem[b] - g.charge[seq[b]]
    over: int = 0
    count = 0
    for i in range(length - 1, -1, -1):
        u = chain[i]
        for k in range(g.write_ptr[u], g.write_ptr[u + 1]):
            d = g.write_idx[k]
            if g.keep[d]:
                continue
            count = note(d, resident, live, change, touched, count)
            if live[d]:
                live[d] = False
                held -= g.size[d]
        for k in range(g.read_ptr[u], g.read_ptr[u + 1]):
            d = g.read_idx[k]
            if g.keep[d]:
                continue
            count = note(d, resident, live, change, touched, count)
            if not live[d]:
                live[d] = True
                held += g.size[d]
        over += max(0, held + g.charge[u] - budget)
    delta: int = 0
    open_ends = 0
    for i in range(count):
        d = touched[i]
        change[d] = int(live[d]) - int(resident[d])
        if change[d] != 0:
            delta += change[d] * g.size[d]
            open_ends += 1
    j = b - 1
    while open_ends > 0 and j >= 0:
        u = seq[j]
        for k in range(g.write_ptr[u], g.write_ptr[u + 1]):
            d = g.write_idx[k]
            if change[d] != 0:
                delta -= change[d] * g.size[d]
                change[d] = 0
                open_ends -= 1
        for k in range(g.read_ptr[u], g.read_ptr[u + 1]):
            d = g.read_idx[k]
            if change[d] != 0:
                delta -= change[d] * g.size[d]
                change[d] = 0
                open_ends -= 1
        over += max(0, mem[j] + delta - budget) - max(0, mem[j] - budget)
        j -= 1
    for i in range(count):
        change[touched[i]] = 0
    return -over


@kernel
def shave(
    g: Flat,
    price: Floats,
    base: Ints,
    budget: int,
    exponent: float,
    noise: float,
    share: float,
    keeping: int,
    rng: Seed,
    ceiling: int,
) -> tuple[Ints, bool]:
    """Add reruns to `base` until its peak is within the budget.

    `price` stands for the nodes' times in the scores; `keeping` 1: chains are also tried with small inputs kept longer.
    Returns (sequence, whether it fits). Gives up when no candidate lowers the overshoot, or the time exceeds `ceiling` [ns].
    """
    n = base.size
    seq = grow(base, n, 2 * n + 4 * LONGEST)
    trial, mem, marks = grown(g, seq.size)
    live, resident = np.empty(g.size.size, np.bool_), np.empty(g.size.size, np.bool_)
    change, touched = np.zeros(g.size.size, np.int8), np.empty(g.size.size, np.int32)
    score = np.empty(TOP, np.float64)
    at = np.empty(TOP, np.int32)
    length = np.empty(TOP, np.int32)
    chains = np.empty((TOP, LONGEST), np.int32)
    time = 0
    for i in range(n):
        time += g.time[seq[i]]
    least = 0.0  # scores change little from step to step: most gaps need no chain
    while sweep_with_marks(g, seq, n, mem, marks) > budget:
        if time > ceiling or n + LONGEST > 6 * base.size + LONGEST:
            return seq[:n].copy(), False
        kept = list_gaps(
            g, price, seq, n, mem, budget, exponent, noise, share, keeping, least, rng, score, at, length, chains
        )
        if kept < 3 and least > 0.0:
            least = 0.0
            continue
        least = 0.5 * score[kept - 1] if kept == TOP and n > SMALL else 0.0
        best, best_value = -1, 0.0
        for j in range(kept):
            if n > SMALL and score[j] * SURE < best_value:
                continue
            resident_before(g, seq, n, at[j], marks, resident)
            fall = fall_of(g, seq, at[j], chains[j], length[j], mem, budget, live, resident, change, touched)
            cost = 0.0
            for k in range(length[j]):
                cost += price[chains[j, k]]
            value = fall / max(1.0, cost) ** exponent
            if fall > 0 and value > best_value:
                best, best_value = j, value
        if best < 0:
            return seq[:n].copy(), False
        n = insert(seq, n, at[best], chains[best], length[best], trial)
        seq, trial = trial, seq
        for k in range(length[best]):
            time += g.time[chains[best, k]]
        if n + LONGEST > seq.size:
            seq = grow(seq, n, 2 * seq.size)
            trial, mem, marks = grown(g, seq.size)
    return seq[:n].copy(), True


@inner_kernel
def grown(g: Flat, capacity: int) -> tuple[Ints, Longs, NDArray[np.bool_]]:
    """A sequence, a profile and marks for up to `capacity` positions."""
    marks = np.empty((capacity // MARK + 1, g.size.size), np.bool_)
    return np.empty(capacity, np.int32), np.empty(capacity, np.int64), marks


@inner_kernel
def grow(seq: Ints, n: int, capacity: int) -> Ints:
    """A copy of `seq[:n]` in an array of `capacity`."""
    out = np.empty(capacity, np.int32)
    for i in range(n):
        out[i] = seq[i]
    return out
