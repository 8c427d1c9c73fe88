"""Peak shaving with two moves: while the bytes exceed the budget, close a gap of a datum by reruns or by a copy out and back.

The profile is that of copies that take no time: the exact replay of the result decides. See
`remat.algorithms._search.peak_shaving` for the scheme without copies, and `copy_moves` for how moves are scored.
"""

from __future__ import annotations

import numpy as np

from remat.algorithms._arrays.chain_insertion import (
    Chain,
    Insertion,
    Profile,
    copy_into,
    empty_insertion,
    fall_of,
    fall_of_copy,
    insert_into,
    most_uses,
    uses_in,
)
from remat.algorithms._arrays.graph_arrays import Flat, Ints, Longs, Seed
from remat.algorithms._arrays.jit import allocating_kernel, inner_kernel, kernel
from remat.algorithms._copies.copy_arrays import Lanes, Runs, away_profile, mark_first_runs
from remat.algorithms._copies.copy_moves import (
    DEAR,
    HALF,
    LONGEST,
    TOP,
    Candidates,
    Prices,
    ceilings_of,
    empty_scan,
    list_moves,
)

MARGIN = 1.2  # a move whose score, without its noise, times this is below the exact value of another is skipped
NEARLY = 0.8  # a move after the first of a list is worth at least this share of the first


@inner_kernel
def best_move(g: Flat, prices: Prices, profile: Profile, best: Candidates, scratch: Insertion) -> tuple[int, float]:
    """The candidate by which the bytes over the budget fall most for its price, with this value; -1: none falls."""
    chosen, largest, margin = -1, 0.0, MARGIN / (1.0 - prices.noise)
    for j in range(best.kept[0]):
        if best.score[j] * margin < largest:
            continue
        if best.bit[j] >= 0:
            fall = fall_of_copy(g, profile, best.at[j], best.bit[j])
        else:
            fall = fall_of(g, profile, best.at[j], Chain(best.chains[j], best.masks[j], best.length[j]), scratch)
        value = fall / max(1.0, best.cost[j]) ** prices.exponent
        if fall > 0 and value > largest:
            chosen, largest = j, value
    return chosen, largest


@inner_kernel
def apply_move(g: Flat, profile: Profile, best: Candidates, j: int, scratch: Insertion) -> int:
    """Make the j-th move; the new number of runs."""
    if best.bit[j] >= 0:
        copy_into(g, profile, best.at[j], best.bit[j])
        return profile.n
    return insert_into(g, profile, best.at[j], Chain(best.chains[j], best.masks[j], best.length[j]), scratch)


@inner_kernel
def take_out(best: Candidates, taken: int) -> None:
    """Remove a move that has been made; positions behind it move."""
    at, length = best.at[taken], best.length[taken]
    best.kept[0] -= 1
    for j in range(taken, best.kept[0]):
        best.score[j], best.cost[j], best.at[j] = best.score[j + 1], best.cost[j + 1], best.at[j + 1]
        best.bit[j], best.length[j] = best.bit[j + 1], best.length[j + 1]
        for i in range(best.length[j]):
            best.chains[j, i], best.masks[j, i] = best.chains[j + 1, i], best.masks[j + 1, i]
    for j in range(best.kept[0]):
        if best.at[j] >= at:
            best.at[j] += length


@allocating_kernel
def dear(prices: Prices) -> Prices:
    """The prices where the lanes are taken."""
    return Prices(prices.price, DEAR, prices.exponent, prices.noise, prices.share, prices.moves, np.inf, prices.served)


@allocating_kernel
def no_candidates() -> Candidates:
    """No moves."""
    score, cost, least = np.empty(TOP, np.float64), np.empty(TOP, np.float64), np.zeros(1, np.float64)
    at, bit, length = np.empty(TOP, np.int32), np.empty(TOP, np.int32), np.empty(TOP, np.int32)
    chains, masks = np.empty((TOP, LONGEST), np.int32), np.empty((TOP, LONGEST), np.int64)
    return Candidates(score, cost, at, bit, length, chains, masks, np.zeros(1, np.int64), least)


@allocating_kernel
def profile_of(g: Flat, runs: Runs, mem: Longs, budget: int, capacity: int, spare: int) -> Profile:
    """The runs in arrays of `capacity`, with their profile, which is `mem`, and room for `spare` uses more."""
    n = runs.n
    seq, mask, charged = np.empty(capacity, np.int32), np.empty(capacity, np.int64), np.empty(capacity, np.int64)
    for i in range(n):
        seq[i], mask[i], charged[i] = runs.seq[i], runs.mask[i], mem[i]
    return Profile(seq, mask, n, charged, uses_in(g, seq, mask, n, spare), budget)


@inner_kernel
def peak_of(profile: Profile) -> int:
    """The peak of a profile."""
    peak: int = 0
    for i in range(profile.n):
        peak = max(peak, profile.mem[i])
    return peak


@kernel
def shaved(g: Flat, lanes: Lanes, prices: Prices, seq: Ints, mask: Longs, rng: Seed) -> tuple[Ints, Longs, bool]:
    """Add reruns and copies until the profile is within the budget: (runs, masks, whether it is)."""
    base, most = seq.size, most_uses(g)
    capacity = 2 * base + 4 * LONGEST
    start, mem, first_runs = Runs(seq, mask, base), np.empty(base, np.int64), np.empty(base, np.bool_)
    mark_first_runs(g, start, first_runs)
    away_profile(g, start, first_runs, mem)
    profile = profile_of(g, start, mem, lanes.budget, capacity, 4 * base + LONGEST * most)
    best, scan, scratch = no_candidates(), empty_scan(g, capacity), empty_insertion(g, capacity, LONGEST)
    ceilings = ceilings_of(g, lanes, prices)
    taken, served, first = 0.0, prices.served, 0.0
    while peak_of(profile) > lanes.budget and profile.n <= 6 * base:
        j, value = -1, 0.0
        if served < prices.served:
            j, value = best_move(g, prices, profile, best, scratch)
        if j < 0 or value < NEARLY * first:
            list_moves(g, lanes, prices, (profile, scan, ceilings), best, rng)
            served = 0
            kept, lowest = best.kept[0], best.score[best.kept[0] - 1] if best.kept[0] > 0 else 0.0
            j, first = best_move(g, prices, profile, best, scratch)
            if j < 0 and best.least[0] > 0.0:  # scores have fallen: look at all moves
                best.least[0], served = 0.0, prices.served
                continue
            if j < 0:
                break
            best.least[0] = HALF * lowest if kept == TOP else HALF * best.least[0]
        served += 1
        taken += best.cost[j] / prices.lane if best.bit[j] >= 0 else 0.0
        n = apply_move(g, profile, best, j, scratch)
        take_out(best, j)
        profile = Profile(profile.seq, profile.mask, n, profile.mem, profile.uses, profile.budget)
        if n + LONGEST > capacity:
            capacity *= 2
            scan, scratch = empty_scan(g, capacity), empty_insertion(g, capacity, LONGEST)
        if n + LONGEST > profile.seq.size or profile.uses.filled[0] + LONGEST * most > profile.uses.place.size:
            now = Runs(profile.seq, profile.mask, n)
            profile = profile_of(g, now, profile.mem, lanes.budget, capacity, 4 * n + LONGEST * most)
        if taken > prices.capacity:
            taken, best.least[0], served = -np.inf, 0.0, prices.served
            prices = dear(prices)
            ceilings = ceilings_of(g, lanes, prices)
    return profile.seq[: profile.n].copy(), profile.mask[: profile.n].copy(), peak_of(profile) <= lanes.budget
