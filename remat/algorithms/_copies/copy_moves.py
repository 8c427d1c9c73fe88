"""The moves of peak shaving with copies: gaps over the budget, closed by a rerun chain or by a copy, scored and sorted.

A gap's score is the bytes over the budget that it saves, against the time of its rerun chain or against the time that its copy
occupies the lanes times `lane`, the price of lane time. Inside a chain, an input that is away is fetched, and a dead one is
fetched instead of made where that is cheaper.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from remat.algorithms._arrays.chain_insertion import COPY, READ, Profile
from remat.algorithms._arrays.excess import gain_of, over_budget
from remat.algorithms._arrays.graph_arrays import Flags, Flat, Floats, Ints, Longs, Seed
from remat.algorithms._arrays.jit import allocating_kernel, inner_kernel
from remat.algorithms._arrays.liveness import extend_skyline, highest_from
from remat.algorithms._arrays.rng import fraction
from remat.algorithms._copies.copy_arrays import Lanes

TOP = 8  # candidates evaluated exactly per step
LONGEST = 256  # nodes in a rerun chain
HALF = 0.5  # of the last score among the best: moves that score less are not looked at in the next step
RERUNS, COPIES, BOTH = 1, 2, 3
DEAR = 4.0  # price of lane time where the lanes are taken: what then has to wait is waited for both ways, and delays others


class Prices(NamedTuple):
    """How gaps are scored.

    Attributes:
        price: of each node, in place of its time [ns].
        lane: price of a nanosecond of lane time.
        exponent: weight of the price. noise: relative random change of scores.
        share: inputs smaller than this share of the evicted datum are kept rather than recomputed.
        moves: `RERUNS`, `COPIES` or `BOTH`.
        capacity: lane time of copies, both ways, up to which the price of lane time holds; then it is `DEAR` [ns].
        served: moves made from one list of them, each a little worse than the best: listing takes most of the time.
    """

    price: Floats
    lane: float
    exponent: float
    noise: float
    share: float
    moves: int
    capacity: float = np.inf
    served: int = 1


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
    least: Floats


class Scan(NamedTuple):
    """The state of a scan of the profile, right before position `reached[0]`, and its scratch.

    Attributes:
        over_count, over_bytes: see `over_budget`.
        skyline, latest: the skyline before the position, and the last use of each datum before it.
        on_host: per datum, whether the host has a valid copy.
        blocked: per datum, the use after which its residency is known not to be extendable to the position under the budget; it
            is then not extendable to any later one either.
        mark, stamp: `mark[v] == stamp[0]`: the node is in `chain`. fetched, ready: per datum, the same for fetches and outputs.
        chain, bits: the nodes of the last chain, with the reads that they fetch.
    """

    over_count: Longs
    over_bytes: Longs
    reached: Longs
    skyline: Ints
    latest: Ints
    on_host: Flags
    blocked: Ints
    mark: Longs
    stamp: Longs
    fetched: Longs
    ready: Longs
    chain: Ints
    bits: Longs


@allocating_kernel
def empty_scan(g: Flat, capacity: int) -> Scan:
    """The scratch of scans of sequences of up to `capacity` runs."""
    nodes, data = g.time.size, g.size.size
    return Scan(
        np.empty(capacity + 1, np.int64),
        np.empty(capacity + 1, np.int64),
        np.zeros(1, np.int64),
        np.zeros(capacity + 1, np.int32),
        np.empty(data, np.int32),
        np.empty(data, np.bool_),
        np.empty(data, np.int32),
        np.zeros(nodes, np.int64),
        np.zeros(1, np.int64),
        np.zeros(data, np.int64),
        np.zeros(data, np.int64),
        np.empty(LONGEST, np.int32),
        np.empty(LONGEST, np.int64),
    )


@inner_kernel
def restart(profile: Profile, scan: Scan) -> int:
    """Go back to the first position; returns the first one over the budget, the number of runs if there is none."""
    for d in range(scan.blocked.size):
        scan.blocked[d], scan.on_host[d] = -1, False
    scan.reached[0] = scan.skyline[0] = 0
    return over_budget(profile.mem, profile.n, profile.budget, scan.over_count, scan.over_bytes)


@inner_kernel
def advance(g: Flat, profile: Profile, scan: Scan, b: int) -> None:
    """Go forward to position b."""
    for i in range(scan.reached[0], b):
        v, use, bits = profile.seq[i], profile.uses.at[i], profile.mask[i]
        for k in range(g.reads[v], g.reads[v + 1]):
            scan.latest[g.reads[k]] = use
            if bits & 1:
                scan.on_host[g.reads[k]] = True
            bits >>= 1
            use += 1
        for k in range(g.writes[v], g.writes[v + 1]):
            scan.latest[g.writes[k]] = use
            scan.on_host[g.writes[k]] = False
            use += 1
        extend_skyline(profile.mem, scan.skyline, i)
    scan.reached[0] = b


@inner_kernel
def copy_cost(lanes: Lanes, profile: Profile, scan: Scan, prices: Prices, d: int) -> float:
    """The price of fetching datum d: both ways, or only back where it is copied to the host in any case."""
    time = lanes.back[d]
    if not scan.on_host[d] and profile.uses.following[scan.latest[d]] != COPY:
        time += lanes.out[d]
    return np.float64(prices.lane * time)


@inner_kernel
def rerun_chain(
    g: Flat, lanes: Lanes, prices: Prices, state: tuple[Profile, Scan], d: int, limits: tuple[int, float]
) -> tuple[int, float, int]:
    """Fill `scan.chain` with the nodes to run right before the position of the scan so that datum d is resident again.

    Returns (length, price, bytes of forced extensions); length 0 if there is no chain within the limits. `scan.bits` has the
    reads that are fetched. Limits: (the residency of inputs of at most so many bytes is extended even if the budget is
    exceeded, largest price).
    """
    (small, dearest), (profile, scan) = limits, state
    chain, mark, latest, blocked, uses = scan.chain, scan.mark, scan.latest, scan.blocked, profile.uses
    scan.stamp[0] += 1
    stamp = scan.stamp[0]
    chain[0], scan.bits[0] = g.producer[d], 0
    mark[chain[0]] = stamp
    length, done, forced = 1, 0, 0
    cost = prices.price[chain[0]]
    while done < length:
        if cost > dearest:
            return 0, cost, forced
        v = chain[done]
        for k in range(g.reads[v], g.reads[v + 1]):
            x = g.reads[k]
            p, last = g.producer[x], latest[x]
            if g.keep[x] or uses.following[last] == READ or mark[p] == stamp:
                continue
            if scan.fetched[x] == stamp:
                scan.bits[done] |= np.int64(1) << (k - g.reads[v])
                continue
            if blocked[x] != last:
                highest = highest_from(profile.mem, scan.skyline, (uses.place[last] >> 2) + 1)
                if highest <= profile.budget - g.size[x]:
                    continue
                blocked[x] = last
            fetch = copy_cost(lanes, profile, scan, prices, x) if lanes.movable[x] and prices.moves & COPIES else np.inf
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
    """Insert a move that is among the TOP best; value: (score, cost), place: (position, bit)."""
    kept = best.kept[0]
    score = value[0]
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
def noisy(score: float, noise: float, rng: Seed) -> float:
    """The score under random change."""
    return score * (1.0 + noise * (2 * fraction(rng) - 1)) if noise > 0 else score


class Ceilings(NamedTuple):
    """The largest scores of moves, per byte over the budget that they save; 0: the move is not possible.

    With them most gaps are left out before they are scored, which takes a power and the construction of a chain.

    Attributes:
        both, back: per datum, of a copy both ways and of one only back. chain: of a chain, which costs at least its last node.
    """

    both: Floats
    back: Floats
    chain: Floats


@allocating_kernel
def ceilings_of(g: Flat, lanes: Lanes, prices: Prices) -> Ceilings:
    """The ceilings of each datum."""
    both, back, chain = np.zeros(g.size.size), np.zeros(g.size.size), np.zeros(g.size.size)
    room = (1.0 + prices.noise) * (1.0 + 1e-9)  # noise, and rounding
    for d in range(both.size):
        p = g.producer[d]
        if lanes.movable[d] and prices.moves & COPIES:
            back[d] = room / max(1.0, prices.lane * lanes.back[d]) ** prices.exponent
            both[d] = room / max(1.0, prices.lane * (lanes.back[d] + lanes.out[d])) ** prices.exponent
        if p >= 0 and g.rerun[p] and prices.moves & RERUNS:
            chain[d] = room / max(1.0, prices.price[p]) ** prices.exponent
    return Ceilings(both, back, chain)


@inner_kernel
def to_beat(best: Candidates) -> float:
    """The score above which a move is among the best."""
    return np.float64(best.score[TOP - 1] if best.kept[0] == TOP else best.least[0])


@inner_kernel
def score_copy(
    lanes: Lanes,
    prices: Prices,
    state: tuple[Profile, Scan],
    best: Candidates,
    gap: tuple[int, int, int, float],
    rng: Seed,
) -> None:
    """Keep the copy that closes a gap, (datum, position, bit, bytes saved), if it is among the best."""
    (d, b, bit, gain), (profile, scan) = gap, state
    cost = copy_cost(lanes, profile, scan, prices, d)
    score = noisy(gain / max(1.0, cost) ** prices.exponent, prices.noise, rng)
    if score > to_beat(best):
        keep_if_better(best, scan, (score, cost), (b, bit), 0)


@inner_kernel
def score_chain(
    g: Flat,
    lanes: Lanes,
    prices: Prices,
    state: tuple[Profile, Scan],
    best: Candidates,
    gap: tuple[int, int, float, Seed],
) -> None:
    """Keep the chain that closes a gap, (datum, position, bytes saved, random numbers), likewise."""
    d, b, gain, rng = gap
    dearest = np.inf
    if to_beat(best) > 0.0 and prices.exponent > 0.0:
        dearest = 1.0 + (gain * (1.0 + prices.noise) / to_beat(best)) ** (1.0 / prices.exponent)
    limits = int(g.size[d] * prices.share), dearest
    length, cost, forced = rerun_chain(g, lanes, prices, state, d, limits)
    if length > 0 and forced < g.size[d]:
        score = gain * (1.0 - forced / g.size[d]) / max(1.0, cost) ** prices.exponent
        score = noisy(score, prices.noise, rng)
        if score > to_beat(best):
            scan = state[1]
            sort_chain(g, scan, length)
            keep_if_better(best, scan, (score, cost), (b, -1), length)


@inner_kernel
def list_moves(
    g: Flat, lanes: Lanes, prices: Prices, state: tuple[Profile, Scan, Ceilings], best: Candidates, rng: Seed
) -> None:
    """Score all gaps over the budget and fill `best`."""
    profile, scan, ceilings = state
    seq, mask, n, uses = profile.seq, profile.mask, profile.n, profile.uses
    best.kept[0] = 0
    g.work[0] += 3 * n
    for b in range(restart(profile, scan) + 1, n):
        v = seq[b]
        for k in range(g.reads[v], g.reads[v + 1]):
            d = g.reads[k]
            bit = k - g.reads[v]
            event = uses.place[uses.before[uses.at[b] + bit]] >> 2
            if g.keep[d] or b - event < 2 or (mask[b] >> bit) & 1:
                continue
            gain = gain_of(scan.over_count, scan.over_bytes, event, b, g.size[d])
            if gain * max(ceilings.back[d], ceilings.chain[d]) <= to_beat(best):
                continue
            advance(g, profile, scan, b)
            if gain * (ceilings.back[d] if scan.on_host[d] else ceilings.both[d]) > to_beat(best):
                score_copy(lanes, prices, (profile, scan), best, (d, b, bit, gain), rng)
            if gain * ceilings.chain[d] > to_beat(best):
                score_chain(g, lanes, prices, (profile, scan), best, (d, b, gain, rng))
