"""Peak shaving with two moves: while the bytes exceed the budget, close a gap of a datum by reruns or by a copy out and back.

A gap's score is the bytes over the budget that it saves, against the time of its rerun chain or against the time that its copy
occupies the lanes times `lane`, the price of lane time. Inside a chain, an input that is away is fetched, and a dead one is
fetched instead of made where that is cheaper. The profile is that of copies that take no time: the exact replay of the result
decides. See `remat.algorithms._search.peak_shaving` for the scheme without copies.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from remat.algorithms._arrays.excess import gain_of, over_budget
from remat.algorithms._arrays.graph_arrays import Flags, Flat, Floats, Ints, Longs, Seed
from remat.algorithms._arrays.insertion import Trial, empty_trial, note, rise_before
from remat.algorithms._arrays.jit import inner_kernel, kernel
from remat.algorithms._arrays.liveness import BLOCK, MARK, block_maxima, exceeds
from remat.algorithms._arrays.rng import fraction
from remat.algorithms._copies.copy_arrays import Lanes, Runs, away_profile, mark_first_runs

TOP = 8  # candidates evaluated exactly per step
LONGEST = 256  # nodes in a rerun chain
RERUNS, COPIES, BOTH = 1, 2, 3


class Prices(NamedTuple):
    """How gaps are scored.

    Attributes:
        price: of each node, in place of its time [ns].
        lane: price of a nanosecond of lane time.
        exponent: weight of the price. noise: relative random change of scores.
        share: inputs smaller than this share of the evicted datum are kept rather than recomputed.
        moves: `RERUNS`, `COPIES` or `BOTH`.
    """

    price: Floats
    lane: float
    exponent: float
    noise: float
    share: float
    moves: int


class Candidates(NamedTuple):
    """The best moves of a step, best first; `kept[0]` of the TOP rows are in use.

    Attributes:
        score, cost: per move. at: its position. bit: a copy to this read of the position; -1: a chain right before it.
        length: number of the chain's nodes. chains, masks: the nodes in order, with the reads that they fetch.
        kept: array of one element.
    """

    score: Floats
    cost: Floats
    at: Ints
    bit: Ints
    length: Ints
    chains: NDArray[np.int32]
    masks: NDArray[np.int64]
    kept: Longs


class Scan(NamedTuple):
    """The state of a scan of the profile, right before a position.

    Attributes:
        mem, top, budget: the profile, its block maxima, the budget.
        until: per datum, the position up to which it is resident from its last event; -1: it has none.
        away: per datum, whether its next read is by a copy. on_host: whether the host has a valid copy.
        mark, stamp: `mark[v] == stamp[0]`: the node is in `chain`. fetched, ready: per datum, the same for fetches and outputs.
        chain, bits: the nodes of the last chain, with the reads that they fetch.
    """

    mem: Longs
    top: Longs
    budget: int
    until: Ints
    away: Flags
    on_host: Flags
    mark: Longs
    stamp: Longs
    fetched: Longs
    ready: Longs
    chain: Ints
    bits: Longs


@inner_kernel
def stretches(g: Flat, runs: Runs) -> tuple[Ints, Ints, Flags]:
    """(first slot of each position, end of residency, whether the next read is by a copy); slots: reads, then writes.

    The end is the last position up to which the datum is resident without a copy.
    """
    seq, mask, n = runs.seq, runs.mask, runs.n
    slot = np.empty(n + 1, np.int32)
    total = 0
    for i in range(n):
        slot[i] = total
        v = seq[i]
        total += g.reads[v + 1] - g.reads[v] + g.writes[v + 1] - g.writes[v]
    slot[n] = total
    end, away = np.empty(total, np.int32), np.zeros(total, np.bool_)
    until = np.full(g.size.size, -1, np.int32)  # of the next event, if it is an unmarked read
    leaves = np.zeros(g.size.size, np.bool_)
    for i in range(n - 1, -1, -1):
        v = seq[i]
        s = slot[i + 1]
        for k in range(g.writes[v + 1] - 1, g.writes[v] - 1, -1):
            d = g.writes[k]
            s -= 1
            end[s], away[s] = max(i, until[d]), leaves[d]
            until[d], leaves[d] = -1, False
        for k in range(g.reads[v + 1] - 1, g.reads[v] - 1, -1):
            d = g.reads[k]
            s -= 1
            end[s], away[s] = max(i, until[d]), leaves[d]
            marked = (mask[i] >> (k - g.reads[v])) & 1
            until[d] = -1 if marked else end[s]
            leaves[d] = bool(marked)
    return slot, end, away


@inner_kernel
def copy_cost(lanes: Lanes, scan: Scan, prices: Prices, d: int) -> float:
    """The price of fetching datum d: both ways, or only back where it is copied to the host in any case."""
    time = lanes.back[d]
    if not scan.on_host[d] and not scan.away[d]:
        time += lanes.out[d]
    return np.float64(prices.lane * time)


@inner_kernel
def rerun_chain(
    g: Flat, lanes: Lanes, prices: Prices, scan: Scan, place: tuple[int, int], small: int
) -> tuple[int, float, int]:
    """Fill `scan.chain` with the nodes to run right before position b so that datum d is resident again; place: (d, b).

    Returns (length, price, bytes of forced extensions); length 0 if there is no chain. `scan.bits` has the reads that are
    fetched. The residency of inputs of at most `small` bytes is extended even if the budget is exceeded.
    """
    chain, mark, until = scan.chain, scan.mark, scan.until
    d, b = place
    scan.stamp[0] += 1
    stamp = scan.stamp[0]
    chain[0], scan.bits[0] = g.producer[d], 0
    mark[chain[0]] = stamp
    length, done, forced = 1, 0, 0
    cost = prices.price[chain[0]]
    while done < length:
        v = chain[done]
        for k in range(g.reads[v], g.reads[v + 1]):
            x = g.reads[k]
            p = g.producer[x]
            if g.keep[x] or until[x] >= b or mark[p] == stamp:
                continue
            if scan.fetched[x] == stamp:
                scan.bits[done] |= np.int64(1) << (k - g.reads[v])
                continue
            if not exceeds(scan.mem, scan.top, until[x] + 1, b - 1, scan.budget - g.size[x]):
                continue
            fetch = copy_cost(lanes, scan, prices, x) if lanes.movable[x] and prices.moves & COPIES else np.inf
            if g.size[x] <= small or (not g.rerun[p] and fetch == np.inf):
                forced += g.size[x]
            elif not g.rerun[p] or fetch <= prices.price[p]:
                scan.fetched[x] = stamp
                scan.bits[done] |= np.int64(1) << (k - g.reads[v])
                cost += fetch
            elif length == chain.size:
                return 0, cost, forced
            else:
                mark[p] = stamp
                chain[length], scan.bits[length] = p, 0
                length += 1
                cost += prices.price[p]
        done += 1
    return length, cost, forced


@inner_kernel
def sort_chain(g: Flat, scan: Scan, length: int) -> None:
    """Put the chain into order; only the first reader of a datum fetches it, and none does if the chain makes it."""
    chain, bits = scan.chain, scan.bits
    for i in range(1, length):
        v, bit, at = chain[i], bits[i], i
        while at > 0 and chain[at - 1] > v:
            chain[at], bits[at] = chain[at - 1], bits[at - 1]
            at -= 1
        chain[at], bits[at] = v, bit
    stamp = scan.stamp[0]
    for i in range(length):
        v = chain[i]
        for k in range(g.reads[v], g.reads[v + 1]):
            bit = np.int64(1) << (k - g.reads[v])
            x = g.reads[k]
            if bits[i] & bit:
                if scan.ready[x] == stamp:
                    bits[i] ^= bit
                scan.ready[x] = stamp
        for k in range(g.writes[v], g.writes[v + 1]):
            scan.ready[g.writes[k]] = stamp


@inner_kernel
def keep_if_better(
    best: Candidates, scan: Scan, value: tuple[float, float], place: tuple[int, int], length: int
) -> None:
    """Insert a move among the TOP best; value: (score, cost), place: (position, bit)."""
    kept = best.kept[0]
    score = value[0]
    if kept == TOP and score <= best.score[TOP - 1]:
        return
    j = kept if kept < TOP else TOP - 1
    while j > 0 and best.score[j - 1] < score:
        best.score[j], best.cost[j], best.at[j] = best.score[j - 1], best.cost[j - 1], best.at[j - 1]
        best.bit[j], best.length[j] = best.bit[j - 1], best.length[j - 1]
        for i in range(best.length[j]):
            best.chains[j, i], best.masks[j, i] = best.chains[j - 1, i], best.masks[j - 1, i]
        j -= 1
    best.score[j], best.cost[j] = value
    best.at[j], best.bit[j] = place
    best.length[j] = length
    for i in range(length):
        best.chains[j, i], best.masks[j, i] = scan.chain[i], scan.bits[i]
    best.kept[0] = min(TOP, kept + 1)


@inner_kernel
def empty_scan(g: Flat, mem: Longs, n: int, budget: int) -> Scan:
    """The state before the first position."""
    nodes, data = g.time.size, g.size.size
    top = np.empty(n // BLOCK + 1, np.int64)
    block_maxima(mem, n, top)
    return Scan(
        mem,
        top,
        budget,
        np.full(data, -1, np.int32),
        np.zeros(data, np.bool_),
        np.zeros(data, np.bool_),
        np.zeros(nodes, np.int64),
        np.zeros(1, np.int64),
        np.zeros(data, np.int64),
        np.zeros(data, np.int64),
        np.empty(LONGEST, np.int32),
        np.empty(LONGEST, np.int64),
    )


@inner_kernel
def noisy(score: float, noise: float, rng: Seed) -> float:
    """The score under random change."""
    return score * (1.0 + noise * (2 * fraction(rng) - 1)) if noise > 0 else score


@inner_kernel
def score_gap(
    g: Flat, lanes: Lanes, prices: Prices, scan: Scan, best: Candidates, gap: tuple[int, int, int, float, Seed]
) -> None:
    """Keep the moves that close a gap: a copy, a chain; gap: (datum, position, bit, bytes that are saved, random numbers)."""
    d, b, bit, gain, rng = gap
    if lanes.movable[d] and prices.moves & COPIES:
        cost = copy_cost(lanes, scan, prices, d)
        score = noisy(gain / max(1.0, cost) ** prices.exponent, prices.noise, rng)
        keep_if_better(best, scan, (score, cost), (b, bit), 0)
    p = g.producer[d]
    if not g.rerun[p] or not prices.moves & RERUNS:
        return
    if best.kept[0] == TOP:  # a chain costs at least its last node
        ceiling = gain / max(1.0, prices.price[p]) ** prices.exponent * (1 + prices.noise)
        if ceiling <= best.score[TOP - 1]:
            return
    length, cost, forced = rerun_chain(g, lanes, prices, scan, (d, b), int(g.size[d] * prices.share))
    if length == 0 or forced >= g.size[d]:
        return
    score = gain * (1.0 - forced / g.size[d]) / max(1.0, cost) ** prices.exponent
    score = noisy(score, prices.noise, rng)
    if best.kept[0] < TOP or score > best.score[TOP - 1]:
        sort_chain(g, scan, length)
        keep_if_better(best, scan, (score, cost), (b, -1), length)


@inner_kernel
def list_moves(g: Flat, lanes: Lanes, prices: Prices, profile: tuple[Runs, Longs], best: Candidates, rng: Seed) -> None:
    """Score all gaps over the budget and fill `best`; profile: the runs, and the bytes charged at each."""
    runs, mem = profile
    seq, mask, n = runs.seq, runs.mask, runs.n
    over_count, over_bytes = over_budget(mem, n, lanes.budget)
    slot, end, away = stretches(g, runs)
    scan = empty_scan(g, mem, n, lanes.budget)
    event = np.full(g.size.size, -1, np.int32)
    best.kept[0] = 0
    for b in range(n):
        v = seq[b]
        for k in range(g.reads[v], g.reads[v + 1]):
            d = g.reads[k]
            bit = k - g.reads[v]
            if g.keep[d] or b - event[d] < 2 or (mask[b] >> bit) & 1:
                continue
            gain = gain_of(over_count, over_bytes, event[d], b, g.size[d])
            if gain >= 0.0:
                score_gap(g, lanes, prices, scan, best, (d, b, bit, gain, rng))
        s = slot[b]
        for k in range(g.reads[v], g.reads[v + 1]):
            d = g.reads[k]
            event[d], scan.until[d], scan.away[d] = b, end[s], away[s]
            if (mask[b] >> (k - g.reads[v])) & 1:
                scan.on_host[d] = True
            s += 1
        for k in range(g.writes[v], g.writes[v + 1]):
            d = g.writes[k]
            event[d], scan.until[d], scan.away[d], scan.on_host[d] = b, end[s], away[s], False
            s += 1


@inner_kernel
def resident_before(g: Flat, runs: Runs, b: int, marks: NDArray[np.bool_], live: Flags) -> None:
    """Fill `live` with the data resident right before position b, without those that come by a copy; kept data may be wrong."""
    above = (b + MARK - 1) // MARK
    end = above * MARK
    for d in range(live.size):
        live[d] = marks[above, d] if end < runs.n else g.keep[d]
    for i in range(min(end, runs.n) - 1, b - 1, -1):
        v = runs.seq[i]
        for k in range(g.writes[v], g.writes[v + 1]):
            live[g.writes[k]] = False
        for k in range(g.reads[v], g.reads[v + 1]):
            live[g.reads[k]] = not (runs.mask[i] >> (k - g.reads[v])) & 1


@inner_kernel
def run_back(g: Flat, trial: Trial, node: tuple[int, int], live_bytes: int, count: int) -> tuple[int, int, int]:
    """Go back over a run of a chain, node: (node, reads that it fetches): (bytes before it, bytes at it, touched data)."""
    u, bits = node
    live = trial.live
    for k in range(g.writes[u], g.writes[u + 1]):
        d = g.writes[k]
        if not g.keep[d]:
            count = note(trial, d, count)
            live_bytes -= g.size[d] if live[d] else 0
            live[d] = False
    for k in range(g.reads[u], g.reads[u + 1]):
        d = g.reads[k]
        if not g.keep[d]:
            count = note(trial, d, count)
            live_bytes += 0 if live[d] else g.size[d]
            live[d] = True
    charged = live_bytes + g.charge[u]
    for k in range(g.reads[u], g.reads[u + 1]):
        d = g.reads[k]
        if (bits >> (k - g.reads[u])) & 1 and live[d]:
            live_bytes -= g.size[d]
            live[d] = False
    return live_bytes, charged, count


@inner_kernel
def fall_of_chain(
    g: Flat, runs: Runs, mem: Longs, budget: int, move: tuple[int, int, Ints, Longs], trial: Trial
) -> int:
    """By how much the bytes over the budget fall if a chain runs right before a position; move: (position, length, chain, masks).

    `trial.resident` has the data resident before the position; `trial.change` is all zero before and after the call.
    """
    b, length, chain, masks = move
    live_bytes = mem[b] - g.charge[runs.seq[b]]
    v = runs.seq[b]
    for k in range(g.reads[v], g.reads[v + 1]):
        if (runs.mask[b] >> (k - g.reads[v])) & 1:
            live_bytes -= g.size[g.reads[k]]
    over: int = 0
    count = 0
    for i in range(length - 1, -1, -1):
        live_bytes, charged, count = run_back(g, trial, (chain[i], masks[i]), live_bytes, count)
        over += max(0, charged - budget)
    return -over - rise_before(g, (runs.seq, mem, budget), b, trial, count)


@inner_kernel
def fall_of_copy(g: Flat, runs: Runs, mem: Longs, budget: int, b: int, bit: int) -> int:
    """By how much the bytes over the budget fall if a read comes by a copy."""
    v = runs.seq[b]
    d = g.reads[g.reads[v] + bit]
    fall: int = 0
    j = b - 1
    while j >= 0:
        u = runs.seq[j]
        for k in range(g.reads[u], g.reads[u + 1]):
            if g.reads[k] == d:
                return fall
        for k in range(g.writes[u], g.writes[u + 1]):
            if g.writes[k] == d:
                return fall
        fall += max(0, mem[j] - budget) - max(0, mem[j] - g.size[d] - budget)
        j -= 1
    return fall


@inner_kernel
def grown(runs: Runs, capacity: int) -> Runs:
    """A copy of the runs in arrays of `capacity`."""
    seq, mask = np.empty(capacity, np.int32), np.zeros(capacity, np.int64)
    for i in range(runs.n):
        seq[i], mask[i] = runs.seq[i], runs.mask[i]
    return Runs(seq, mask, runs.n)


@inner_kernel
def apply_move(runs: Runs, best: Candidates, j: int) -> int:
    """Apply the j-th move; the new number of runs."""
    at, length, n = best.at[j], best.length[j], runs.n
    if best.bit[j] >= 0:
        runs.mask[at] |= np.int64(1) << best.bit[j]
        return n
    for i in range(n - 1, at - 1, -1):
        runs.seq[i + length], runs.mask[i + length] = runs.seq[i], runs.mask[i]
    for i in range(length):
        runs.seq[at + i], runs.mask[at + i] = best.chains[j, i], best.masks[j, i]
    return int(n + length)


@inner_kernel
def best_move(
    g: Flat, lanes: Lanes, prices: Prices, runs: Runs, profile: tuple[Longs, NDArray[np.bool_], Trial], best: Candidates
) -> int:
    """The candidate with the largest fall of the bytes over the budget for its price; -1: none falls."""
    mem, marks, trial = profile
    chosen, largest = -1, 0.0
    for j in range(best.kept[0]):
        if best.bit[j] >= 0:
            fall = fall_of_copy(g, runs, mem, lanes.budget, best.at[j], best.bit[j])
        else:
            resident_before(g, runs, best.at[j], marks, trial.resident)
            move = (best.at[j], best.length[j], best.chains[j], best.masks[j])
            fall = fall_of_chain(g, runs, mem, lanes.budget, move, trial)
        value = fall / max(1.0, best.cost[j]) ** prices.exponent
        if fall > 0 and value > largest:
            chosen, largest = j, value
    return chosen


@kernel
def shaved(g: Flat, lanes: Lanes, prices: Prices, seq: Ints, mask: Longs, rng: Seed) -> tuple[Ints, Longs, bool]:
    """Add reruns and copies until the profile is within the budget: (runs, masks, whether it is)."""
    base, data = seq.size, g.size.size
    runs = grown(Runs(seq, mask, base), 2 * base + 4 * LONGEST)
    best = Candidates(
        np.empty(TOP, np.float64),
        np.empty(TOP, np.float64),
        np.empty(TOP, np.int32),
        np.empty(TOP, np.int32),
        np.empty(TOP, np.int32),
        np.empty((TOP, LONGEST), np.int32),
        np.empty((TOP, LONGEST), np.int64),
        np.zeros(1, np.int64),
    )
    trial = empty_trial(g)
    n, fit = base, False
    while True:
        if n + LONGEST > runs.seq.size:
            runs = grown(Runs(runs.seq, runs.mask, n), 2 * runs.seq.size)
        here = Runs(runs.seq, runs.mask, n)
        mem, first = np.empty(n, np.int64), np.empty(n, np.bool_)
        marks = np.empty((n // MARK + 1, data), np.bool_)
        mark_first_runs(g, here, first)
        fit = away_profile(g, here, first, mem, marks) <= lanes.budget
        if fit or n > 6 * base:
            break
        list_moves(g, lanes, prices, (here, mem), best, rng)
        j = best_move(g, lanes, prices, here, (mem, marks, trial), best)
        if j < 0:
            break
        n = apply_move(here, best, j)
    return runs.seq[:n].copy(), runs.mask[:n].copy(), fit
