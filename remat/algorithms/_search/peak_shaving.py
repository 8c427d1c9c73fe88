"""Peak shaving: evict data from the gaps between their reads until the profile is under the budget.

While the peak exceeds the budget: list every gap (datum resident, not read, between two events) that covers a
position over the budget, score it by the bytes over the budget that it saves against the time of the rerun chain that
recomputes the datum, evaluate the best few exactly and apply the best; in a long sequence, several of them. An input of the
chain whose residency can be extended under the budget costs nothing; any other is recomputed too, recursively. Source: this
project (see docs/explanation/planner.md).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from remat.algorithms._arrays.chain_insertion import (
    Insertion,
    Profile,
    empty_insertion,
    fall_of,
    profile_with,
    uses_in,
)
from remat.algorithms._arrays.excess import gain_of, over_budget
from remat.algorithms._arrays.graph_arrays import Flags, Flat, Floats, Ints, Longs, Seed
from remat.algorithms._arrays.jit import allocating_kernel, inlined_kernel, inner_kernel, kernel
from remat.algorithms._arrays.liveness import extend_skyline, highest_from, memory_profile, residencies
from remat.algorithms._arrays.rng import fraction

TOP = 8  # candidates evaluated exactly per step
SMALL = 120  # number of runs up to which no candidate is skipped
MARGIN = 1.2  # a candidate whose score times this is below the exact value of another is skipped
KEEPING = 0.7  # inputs below this share of the evicted datum are kept in the second variant of a chain
NO_CEILING = 1 << 62  # a time above that of any plan [ns]
ALIKE = 1.000001  # prices of this ratio count as equal where rounding may decide
LARGE = 3000  # runs of a sequence above which a scan serves several evictions: scans are linear in the sequence
SERVED = 8  # evictions of a scan then, at most
NEARLY = 0.8  # an eviction after the first one of a scan is worth at least this share of the first
LONGEST = 512  # nodes in a rerun chain; longer chains are not considered


class Scoring(NamedTuple):
    """How gaps are scored: bytes over the budget that are saved, against the price of the rerun chain.

    Attributes:
        price: of each node, in place of its time.
        exponent: weight of the chain's price. noise: relative random change of scores.
        share: inputs smaller than this share of the evicted datum are kept rather than recomputed.
        keeping: 1: chains are also tried with small inputs kept longer; else 0.
        served: evictions made from one scan of the gaps, at least `SERVED` in long sequences. Above 1, chains that would be too
            expensive with any noise are given up early.
    """

    price: Floats
    exponent: float
    noise: float
    share: float
    keeping: int
    served: int = 1


class Candidates(NamedTuple):
    """The best chains of a step, best first; `kept[0]` of the TOP rows are in use.

    Attributes:
        score: per chain. at: the position right after the chain. length: number of its nodes. chains: the nodes, unsorted.
        kept: array of one element.
    """

    score: Floats
    at: Ints
    length: Ints
    chains: NDArray[np.int32]
    kept: Longs


class Scan(NamedTuple):
    """The state of the scan of a profile for gaps at a position.

    Attributes:
        mem, skyline, budget: the profile, its skyline before the position, the budget.
        residency_end: per datum, the end of the last residency that began before the position; -1: none.
        blocked: per datum, whether its residency is known not to be extendable to the position under the budget; it is then not
            extendable to any later one either.
        mark, stamp: `mark[v] == stamp[0]`: the node is in `chain`.
        chain: the nodes of the last chain, unsorted.
        dearest: of one element: the price above which a chain is not wanted.
    """

    mem: Longs
    skyline: Ints
    budget: int
    residency_end: Ints
    blocked: Flags
    mark: Longs
    stamp: Longs
    chain: Ints
    dearest: Floats


@inlined_kernel
def rerun_chain(g: Flat, price: Floats, scan: Scan, d: int, b: int, small: int) -> tuple[int, float, int]:
    """Fill `scan.chain` with the nodes to run right before position b so that datum d is resident again.

    Returns (length, price, bytes of forced extensions); length 0 if no chain exists, or none of at most the price
    `scan.dearest`. The residency of inputs of at most `small` bytes is extended even if the budget is exceeded.
    """
    chain, mark, residency_end, blocked = scan.chain, scan.mark, scan.residency_end, scan.blocked
    scan.stamp[0] += 1
    stamp = scan.stamp[0]
    first = g.producer[d]
    chain[0] = first
    mark[first] = stamp
    length, done = 1, 0
    cost, dearest = price[first], scan.dearest[0]
    forced = 0
    while done < length and cost <= dearest:
        v = chain[done]
        done += 1
        for k in range(g.reads[v], g.reads[v + 1]):
            x = g.reads[k]
            if residency_end[x] >= b:
                continue
            p = g.producer[x]
            if mark[p] == stamp:
                continue
            if not blocked[x]:
                if highest_from(scan.mem, scan.skyline, residency_end[x] + 1) <= scan.budget - g.size[x]:
                    continue
                blocked[x] = True
            if g.size[x] <= small or not g.rerun[p]:
                forced += g.size[x]
                continue
            if length == chain.size:
                g.work[0] += 1
                return 0, cost, forced
            mark[p] = stamp
            chain[length] = p
            length += 1
            cost += price[p]
    g.work[0] += 1 + length
    return 0 if cost > dearest else length, cost, forced


@inner_kernel
def keep_if_better(best: Candidates, score: float, b: int, chain: Ints, length: int) -> None:
    """Insert a candidate among the TOP best, in order."""
    kept = best.kept[0]
    if kept == TOP and score <= best.score[TOP - 1]:
        return
    j = kept if kept < TOP else TOP - 1
    while j > 0 and best.score[j - 1] < score:
        best.score[j] = best.score[j - 1]
        best.at[j] = best.at[j - 1]
        best.length[j] = best.length[j - 1]
        for i in range(best.length[j]):
            best.chains[j, i] = best.chains[j - 1, i]
        j -= 1
    best.score[j] = score
    best.at[j] = b
    best.length[j] = length
    for i in range(length):
        best.chains[j, i] = chain[i]
    best.kept[0] = min(TOP, kept + 1)


@inner_kernel
def sort_chain(chain: Ints, length: int) -> None:
    """Sort the first entries in place: shell sort, since chains may have hundreds of nodes."""
    gap = 1
    while 3 * gap + 1 < length:
        gap = 3 * gap + 1
    while gap > 0:
        for i in range(gap, length):
            node, at = chain[i], i
            while at >= gap and chain[at - gap] > node:
                chain[at] = chain[at - gap]
                at -= gap
            chain[at] = node
        gap //= 3


@allocating_kernel
def list_gaps(g: Flat, scoring: Scoring, profile: Profile, least: float, best: Candidates, rng: Seed) -> None:
    """Score all gaps over the budget and fill `best` with the TOP best and their chains. Gaps below `least` are skipped."""
    seq, n, mem, price, noise = profile.seq, profile.n, profile.mem, scoring.price, scoring.noise
    over_count, over_bytes = over_budget(mem, n, profile.budget)
    out_ptr, out_end = residencies(g, seq, n)
    residency_end = np.full(g.size.size, -1, np.int32)
    last_event = np.full(g.size.size, -1, np.int32)
    mark, stamp, chain = np.zeros(g.time.size, np.int64), np.zeros(1, np.int64), np.empty(LONGEST, np.int32)
    skyline, blocked = np.zeros(n + 1, np.int32), np.zeros(g.size.size, np.bool_)
    scan = Scan(mem, skyline, profile.budget, residency_end, blocked, mark, stamp, chain, np.empty(1, np.float64))
    best.kept[0] = 0
    g.work[0] += 3 * n
    for b in range(n):
        v = seq[b]
        for k in range(g.reads[v], g.reads[v + 1]):
            d = g.reads[k]
            a = last_event[d]
            last_event[d] = b
            if g.keep[d] or b - a < 2 or not g.rerun[g.producer[d]]:
                continue
            gain = gain_of(over_count, over_bytes, a, b, g.size[d])
            if gain < 0.0:
                continue
            # a chain costs at least its last node
            ceiling = gain / max(1.0, price[g.producer[d]]) ** scoring.exponent * (1 + noise)
            if ceiling < least or (best.kept[0] == TOP and ceiling <= best.score[TOP - 1]):
                continue
            scan.dearest[0] = np.inf
            if (noise == 0.0 or scoring.served > 1) and best.kept[0] == TOP and scoring.exponent > 0.0:
                scan.dearest[0] = ALIKE * ((1 + noise) * gain / best.score[TOP - 1]) ** (1.0 / scoring.exponent)
            other = 0
            for variant in range(1 + scoring.keeping):  # recompute missing inputs; or keep the smaller ones instead
                small = int(g.size[d] * (scoring.share if variant == 0 else KEEPING))
                length, cost, forced = rerun_chain(g, price, scan, d, b, small)
                if length == 0 or length == other or forced >= g.size[d]:
                    continue
                other = length
                score = gain * (1.0 - forced / g.size[d]) / max(1.0, cost) ** scoring.exponent
                if noise > 0:
                    score *= 1.0 + noise * (2 * fraction(rng) - 1)
                keep_if_better(best, score, b, chain, length)
        begin = g.writes[v]
        for k in range(begin, g.writes[v + 1]):
            d = g.writes[k]
            last_event[d] = b
            residency_end[d] = n if g.keep[d] else out_end[out_ptr[b] + k - begin]
            blocked[d] = False
        extend_skyline(mem, skyline, b)


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


@kernel
def shave(g: Flat, scoring: Scoring, base: Ints, budget: int, rng: Seed, ceiling: int) -> tuple[Ints, bool]:
    """Add reruns to `base` until its peak is within the budget.

    Returns (sequence, whether it fits). Gives up if no candidate lowers the overshoot, or if the time exceeds `ceiling` [ns].
    """
    n = base.size
    seq = grow(base, n, 2 * n + 4 * LONGEST)
    other, mem = np.empty(seq.size, np.int32), np.empty(seq.size, np.int64)
    candidates, scratch = empty_candidates(), empty_insertion(g, seq.size, LONGEST)
    peak = memory_profile(g, seq, n, mem)
    time = 0
    for i in range(n):
        time += g.time[seq[i]]
    most = SERVED if base.size > LARGE else scoring.served
    least = 0.0  # scores change little from step to step: for most gaps no chain has to be computed
    while peak > budget:
        if time > ceiling or n + LONGEST > 6 * base.size + LONGEST:
            return seq[:n].copy(), False
        profile = Profile(seq, n, mem, uses_in(g, seq, n), budget)
        list_gaps(g, scoring, profile, least, candidates, rng)
        kept = candidates.kept[0]
        if kept < 3 and least > 0.0:
            least = 0.0
            continue
        least = 0.5 * candidates.score[kept - 1] if kept == TOP and n > SMALL else 0.0
        served, first = 0, 0.0
        while served < most and peak > budget:
            if served > 0:
                profile = Profile(seq, n, mem, uses_in(g, seq, n), budget)
            best, value = best_of(g, scoring, profile, candidates, scratch)
            if best < 0 or value < NEARLY * first:
                break
            first = max(first, value)
            served += 1
            at, chain, length = candidates.at[best], candidates.chains[best], candidates.length[best]
            profile_with(g, profile, at, chain, length, scratch)
            n = insert(seq, n, at, chain, length, other)
            seq, other = other, seq
            for k in range(length):
                time += g.time[chain[k]]
            take_out(candidates, best)
            if n + LONGEST > seq.size:
                seq, mem = grow(seq, n, 2 * seq.size), grown_profile(mem, n, 2 * seq.size)
                other, scratch = np.empty(seq.size, np.int32), empty_insertion(g, seq.size, LONGEST)
            peak = peak_of(mem, n)
        if served == 0:
            return seq[:n].copy(), False
    return seq[:n].copy(), True


@inner_kernel
def best_of(
    g: Flat, scoring: Scoring, profile: Profile, candidates: Candidates, scratch: Insertion
) -> tuple[int, float]:
    """The candidate by which the bytes over the budget fall most for the price of its chain, with this value; -1: none does."""
    best, best_value = -1, 0.0
    for j in range(candidates.kept[0]):
        if profile.n > SMALL and candidates.score[j] * MARGIN < best_value:
            continue
        at, chain, length = candidates.at[j], candidates.chains[j], candidates.length[j]
        sort_chain(chain, length)
        fall = fall_of(g, profile, at, chain, length, scratch)
        cost = 0.0
        for k in range(length):
            cost += scoring.price[chain[k]]
        value = fall / max(1.0, cost) ** scoring.exponent
        if fall > 0 and value > best_value:
            best, best_value = j, value
    return best, best_value


@inner_kernel
def take_out(candidates: Candidates, taken: int) -> None:
    """Remove a candidate whose chain has been inserted; positions behind it move."""
    at, length = candidates.at[taken], candidates.length[taken]
    candidates.kept[0] -= 1
    for j in range(taken, candidates.kept[0]):
        candidates.score[j] = candidates.score[j + 1]
        candidates.at[j] = candidates.at[j + 1]
        candidates.length[j] = candidates.length[j + 1]
        for i in range(candidates.length[j]):
            candidates.chains[j, i] = candidates.chains[j + 1, i]
    for j in range(candidates.kept[0]):
        if candidates.at[j] > at:
            candidates.at[j] += length


@inner_kernel
def peak_of(mem: Longs, n: int) -> int:
    """The peak of a profile."""
    peak: int = 0
    for i in range(n):
        peak = max(peak, mem[i])
    return peak


@allocating_kernel
def empty_candidates() -> Candidates:
    """No candidates."""
    score, chains = np.empty(TOP, np.float64), np.empty((TOP, LONGEST), np.int32)
    at, length = np.empty(TOP, np.int32), np.empty(TOP, np.int32)
    return Candidates(score, at, length, chains, np.zeros(1, np.int64))


@allocating_kernel
def grow(seq: Ints, n: int, capacity: int) -> Ints:
    """A copy of `seq[:n]` in an array of `capacity`."""
    out = np.empty(capacity, np.int32)
    for i in range(n):
        out[i] = seq[i]
    return out


@allocating_kernel
def grown_profile(mem: Longs, n: int, capacity: int) -> Longs:
    """A copy of `mem[:n]` in an array of `capacity`."""
    out = np.empty(capacity, np.int64)
    for i in range(n):
        out[i] = mem[i]
    return out
