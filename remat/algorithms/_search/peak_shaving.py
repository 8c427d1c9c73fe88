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
    READ,
    Chain,
    Insertion,
    Profile,
    empty_insertion,
    fall_of,
    insert_into,
    most_uses,
    uses_in,
)
from remat.algorithms._arrays.excess import gain_of, over_budget
from remat.algorithms._arrays.graph_arrays import Flat, Floats, Ints, Longs, Seed
from remat.algorithms._arrays.jit import allocating_kernel, inlined_kernel, inner_kernel, kernel
from remat.algorithms._arrays.liveness import LARGEST_TIME, extend_skyline, highest_from, memory_profile, overshoot
from remat.algorithms._arrays.rng import fraction
from remat.algorithms._arrays.sorting import sort_first

TOP = 8  # candidates evaluated exactly per step
SMALL = 120  # number of runs up to which no candidate is skipped
MARGIN = 1.2  # a candidate whose score times this is below the exact value of another is skipped
KEEPING = 0.7  # inputs below this share of the evicted datum are kept in the second variant of a chain
NO_CEILING = LARGEST_TIME  # a time that no plan exceeds [ns]
ALIKE = 1.000001  # prices of this ratio count as equal where rounding may decide
LARGE = 3000  # runs of a sequence above which a scan serves several evictions: scans are linear in the sequence
SERVED = 8  # evictions of a scan then, at most
NEARLY = 0.8  # an eviction after the first one of a scan is worth at least this share of the first
HASTY = 0.3  # ... or this, in haste
LONGEST = 512  # nodes in a rerun chain; longer chains are not considered


class Scoring(NamedTuple):
    """How gaps are scored: bytes over the budget that are saved, against the price of the rerun chain.

    Attributes:
        price: of each node, in place of its time.
        exponent: weight of the chain's price. noise: relative random change of scores.
        share: inputs smaller than this share of the evicted datum are kept rather than recomputed.
        keeping: 1: chains are also tried with small inputs kept longer; else 0.
        served: evictions made from one scan of the gaps, at least `SERVED` in long sequences. Above 1 shaving is in haste: it
            gives up early on chains that would be too expensive with any noise, and on sequences that would take too long.
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
    """The state of the scan of a profile for gaps at a position, and its scratch.

    Attributes:
        divisor: what the bytes that an eviction saves are divided by, at least, per node that is rerun last; 0: not asked yet.
        least, dearest: of one element: the score below which gaps are skipped; the price above which a chain is not wanted.
        over_count, over_bytes: see `over_budget`.
        skyline, latest: the skyline before position `reached[0]`, and the last use of each datum before it.
        blocked: per datum, the use after which its residency is known not to be extendable to the position under the budget; it
            is then not extendable to any later one either.
        mark, stamp: `mark[v] == stamp[0]`: the node is in `chain`.
        chain: the nodes of the last chain, unsorted.
    """

    divisor: Floats
    least: Floats
    dearest: Floats
    over_count: Longs
    over_bytes: Longs
    skyline: Ints
    latest: Ints
    reached: Longs
    blocked: Ints
    mark: Longs
    stamp: Longs
    chain: Ints


@allocating_kernel
def empty_scan(g: Flat, capacity: int) -> Scan:
    """The scratch of scans of sequences of up to `capacity` runs."""
    data, nodes = g.size.size, g.time.size
    return Scan(
        np.zeros(nodes, np.float64),
        np.zeros(1, np.float64),
        np.empty(1, np.float64),
        np.empty(capacity + 1, np.int64),
        np.empty(capacity + 1, np.int64),
        np.empty(capacity + 1, np.int32),
        np.empty(data, np.int32),
        np.zeros(1, np.int64),
        np.empty(data, np.int32),
        np.zeros(nodes, np.int64),
        np.zeros(1, np.int64),
        np.empty(LONGEST, np.int32),
    )


@inner_kernel
def advance(g: Flat, profile: Profile, scan: Scan, b: int) -> None:
    """Bring `latest` and `skyline` forward to position b."""
    for i in range(scan.reached[0], b):
        v, use = profile.seq[i], profile.uses.at[i]
        for k in range(g.reads[v], g.reads[v + 1]):
            scan.latest[g.reads[k]] = use
            use += 1
        for k in range(g.writes[v], g.writes[v + 1]):
            scan.latest[g.writes[k]] = use
            use += 1
        extend_skyline(profile.mem, scan.skyline, i)
    scan.reached[0] = b


@inlined_kernel
def rerun_chain(g: Flat, price: Floats, profile: Profile, scan: Scan, d: int, small: int) -> tuple[int, float, int]:
    """Fill `scan.chain` with the nodes to run right before position `reached[0]` so that datum d is resident again.

    Returns (length, price, bytes of forced extensions); length 0 if no chain exists, or none of at most the price
    `scan.dearest`. The residency of inputs of at most `small` bytes is extended even if the budget is exceeded.
    """
    chain, mark, blocked, uses = scan.chain, scan.mark, scan.blocked, profile.uses
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
            last = scan.latest[x]
            if g.keep[x] or uses.following[last] == READ:
                continue
            p = g.producer[x]
            if mark[p] == stamp:
                continue
            if blocked[x] != last:
                highest = highest_from(profile.mem, scan.skyline, (uses.place[last] >> 2) + 1)
                if highest <= profile.budget - g.size[x]:
                    continue
                blocked[x] = last
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
def list_gaps(g: Flat, scoring: Scoring, profile: Profile, scan: Scan, best: Candidates, rng: Seed) -> None:
    """Score all gaps over the budget and fill `best` with the TOP best and their chains."""
    seq, n, mem, uses, price, noise = profile.seq, profile.n, profile.mem, profile.uses, scoring.price, scoring.noise
    over_count, over_bytes, least = scan.over_count, scan.over_bytes, scan.least[0]
    first = over_budget(mem, n, profile.budget, over_count, over_bytes)
    for d in range(scan.blocked.size):
        scan.blocked[d] = -1
    scan.reached[0] = scan.skyline[0] = best.kept[0] = 0
    g.work[0] += 3 * n
    for b in range(first + 1, n):
        v = seq[b]
        first_use = uses.at[b] - g.reads[v]
        for k in range(g.reads[v], g.reads[v + 1]):
            d = g.reads[k]
            if g.keep[d]:
                continue
            a, p = uses.place[uses.before[first_use + k]] >> 2, g.producer[d]
            if b - a < 2 or not g.rerun[p]:
                continue
            gain = gain_of(over_count, over_bytes, a, b, g.size[d])
            if gain < 0.0:
                continue
            if scan.divisor[p] == 0.0:
                scan.divisor[p] = max(1.0, price[p]) ** scoring.exponent
            # a chain costs at least its last node
            ceiling = gain / scan.divisor[p] * (1 + noise)
            if ceiling < least or (best.kept[0] == TOP and ceiling <= best.score[TOP - 1]):
                continue
            advance(g, profile, scan, b)
            scan.dearest[0] = np.inf
            if (noise == 0.0 or scoring.served > 1) and best.kept[0] == TOP and scoring.exponent > 0.0:
                scan.dearest[0] = ALIKE * ((1 + noise) * gain / best.score[TOP - 1]) ** (1.0 / scoring.exponent)
            other = 0
            for variant in range(1 + scoring.keeping):  # recompute missing inputs; or keep the smaller ones instead
                small = int(g.size[d] * (scoring.share if variant == 0 else KEEPING))
                length, cost, forced = rerun_chain(g, price, profile, scan, d, small)
                if length == 0 or length == other or forced >= g.size[d]:
                    continue
                other = length
                score = gain * (1.0 - forced / g.size[d]) / max(1.0, cost) ** scoring.exponent
                if noise > 0:
                    score *= 1.0 + noise * (2 * fraction(rng) - 1)
                keep_if_better(best, score, b, scan.chain, length)


@kernel
def shave(g: Flat, scoring: Scoring, base: Ints, budget: int, rng: Seed, ceiling: int) -> tuple[Ints, bool]:
    """Add reruns to `base` until its peak is within the budget.

    Returns (sequence, whether it fits). Gives up if no candidate lowers the overshoot, or if the time exceeds `ceiling` [ns]. In
    haste it gives up too where the time would exceed it if the bytes still over the budget cost as much as those of the last
    scan: as the cheapest come first, they seldom cost less.
    """
    n = base.size
    seq = grow(base, n, 2 * n + 4 * LONGEST)
    mem, no_masks = np.empty(seq.size, np.int64), np.empty(0, np.int64)
    uses, most = uses_in(g, seq, no_masks, n, 4 * n), most_uses(g)
    candidates, scratch = empty_candidates(), empty_insertion(g, seq.size, LONGEST)
    peak, hasty = memory_profile(g, seq, n, mem), scoring.served > 1
    over, nearly = overshoot(mem, n, budget), HASTY if hasty else NEARLY
    time = 0
    for i in range(n):
        time += g.time[seq[i]]
    most_served, scan = SERVED if base.size > LARGE else scoring.served, empty_scan(g, seq.size)
    while peak > budget:
        if time > ceiling or n + LONGEST > 6 * base.size + LONGEST:
            return seq[:n].copy(), False
        list_gaps(g, scoring, Profile(seq, no_masks, n, mem, uses, budget), scan, candidates, rng)
        kept = candidates.kept[0]
        if kept < 3 and scan.least[0] > 0.0:
            scan.least[0] = 0.0
            continue
        # scores change little from step to step: for most gaps no chain has to be computed
        scan.least[0] = 0.5 * candidates.score[kept - 1] if kept == TOP and n > SMALL else 0.0
        served, first, began, before = 0, 0.0, time, over
        while served < most_served and peak > budget:
            room = most * longest_of(candidates)
            if uses.filled[0] + room > uses.place.size:
                uses = uses_in(g, seq, no_masks, n, 4 * n + room)
            profile = Profile(seq, no_masks, n, mem, uses, budget)
            length, added, value = evict(g, scoring, profile, candidates, scratch, nearly * first)
            if length == 0:
                break
            n, time, first, served = n + length, time + added, max(first, value), served + 1
            if n + LONGEST > seq.size:
                seq, mem = grow(seq, n, 2 * seq.size), grown_profile(mem, n, 2 * seq.size)
                uses, scratch = uses_in(g, seq, no_masks, n, 4 * n), empty_insertion(g, seq.size, LONGEST)
                scan = empty_scan(g, seq.size)
            peak = peak_of(mem, n)
        over = overshoot(mem, n, budget)
        if served == 0 or (hasty and time + np.float64(time - began) * over / max(1, before - over) > ceiling):
            return seq[:n].copy(), False
    return seq[:n].copy(), True


@inner_kernel
def longest_of(candidates: Candidates) -> int:
    """The number of nodes of the longest chain."""
    longest: int = 0
    for j in range(candidates.kept[0]):
        longest = max(longest, candidates.length[j])
    return longest


@inner_kernel
def evict(
    g: Flat, scoring: Scoring, profile: Profile, candidates: Candidates, scratch: Insertion, least: float
) -> tuple[int, int, float]:
    """Insert the candidate by which the bytes over the budget fall most for the price of its chain: (length, time, value).

    Length 0 and nothing inserted: none lowers them, or the value is below `least`.
    """
    best, best_value = -1, 0.0
    for j in range(candidates.kept[0]):
        if profile.n > SMALL and candidates.score[j] * MARGIN < best_value:
            continue
        at, chain, length = candidates.at[j], candidates.chains[j], candidates.length[j]
        sort_first(chain, length)
        fall = fall_of(g, profile, at, Chain(chain, profile.mask, length), scratch)
        cost = 0.0
        for k in range(length):
            cost += scoring.price[chain[k]]
        value = fall / max(1.0, cost) ** scoring.exponent
        if fall > 0 and value > best_value:
            best, best_value = j, value
    if best < 0 or best_value < least:
        return 0, 0, best_value
    chain, length = candidates.chains[best], candidates.length[best]
    insert_into(g, profile, candidates.at[best], Chain(chain, profile.mask, length), scratch)
    time: int = 0
    for k in range(length):
        time += g.time[chain[k]]
    take_out(candidates, best)
    return length, time, best_value


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
