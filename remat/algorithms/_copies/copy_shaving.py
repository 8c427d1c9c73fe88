"""Peak shaving with two moves: while the bytes exceed the budget, close a gap of a datum by reruns or by a copy out and back.

The profile is that of copies that take no time: the exact replay of the result decides. See
`remat.algorithms._search.peak_shaving` for the scheme without copies, and `copy_moves` for how moves are scored.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from remat.algorithms._arrays.graph_arrays import Flags, Flat, Ints, Longs, Seed
from remat.algorithms._arrays.insertion import Trial, empty_trial, note, rise_before
from remat.algorithms._arrays.jit import allocating_kernel, inner_kernel, kernel
from remat.algorithms._arrays.liveness import MARK
from remat.algorithms._copies.copy_arrays import Lanes, Runs, away_profile, mark_first_runs
from remat.algorithms._copies.copy_moves import DEAR, HALF, LONGEST, TOP, Candidates, Prices, ceilings_of, list_moves

MARGIN = 1.2  # a move whose score, without its noise, times this is below the exact value of another is skipped
NEARLY = 0.8  # a move after the first of a list is worth at least this share of the first


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


@allocating_kernel
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
) -> tuple[int, float]:
    """The candidate by which the bytes over the budget fall most for its price, with this value; -1: none falls."""
    mem, marks, trial = profile
    chosen, largest, margin = -1, 0.0, MARGIN / (1.0 - prices.noise)
    for j in range(best.kept[0]):
        if best.score[j] * margin < largest:
            continue
        if best.bit[j] >= 0:
            fall = fall_of_copy(g, runs, mem, lanes.budget, best.at[j], best.bit[j])
        else:
            resident_before(g, runs, best.at[j], marks, trial.resident)
            move = (best.at[j], best.length[j], best.chains[j], best.masks[j])
            fall = fall_of_chain(g, runs, mem, lanes.budget, move, trial)
        value = fall / max(1.0, best.cost[j]) ** prices.exponent
        if fall > 0 and value > largest:
            chosen, largest = j, value
    return chosen, largest


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
        np.zeros(1, np.float64),
    )
    trial, ceilings = empty_trial(g), ceilings_of(g, lanes, prices)
    n, fit, taken, served, first = base, False, 0.0, prices.served, 0.0
    while True:
        if n + LONGEST > runs.seq.size:
            runs = grown(Runs(runs.seq, runs.mask, n), 2 * runs.seq.size)
        here = Runs(runs.seq, runs.mask, n)
        mem, opens = np.empty(n, np.int64), np.empty(n, np.bool_)
        marks = np.empty((n // MARK + 1, data), np.bool_)
        mark_first_runs(g, here, opens)
        fit = away_profile(g, here, opens, mem, marks) <= lanes.budget
        if fit or n > 6 * base:
            break
        j, value = -1, 0.0
        if served < prices.served:
            j, value = best_move(g, lanes, prices, here, (mem, marks, trial), best)
        if j < 0 or value < NEARLY * first:
            list_moves(g, lanes, prices, (here, mem, ceilings), best, rng)
            served = 0
            kept, lowest = best.kept[0], best.score[best.kept[0] - 1] if best.kept[0] > 0 else 0.0
            j, first = best_move(g, lanes, prices, here, (mem, marks, trial), best)
            if j < 0 and best.least[0] > 0.0:  # scores have fallen: look at all moves
                best.least[0], served = 0.0, prices.served
                continue
            if j < 0:
                break
            best.least[0] = HALF * lowest if kept == TOP else HALF * best.least[0]
        served += 1
        taken += best.cost[j] / prices.lane if best.bit[j] >= 0 else 0.0
        n = apply_move(here, best, j)
        take_out(best, j)
        if taken > prices.capacity:
            taken, best.least[0], served = -np.inf, 0.0, prices.served
            prices = dear(prices)
            ceilings = ceilings_of(g, lanes, prices)
    return runs.seq[:n].copy(), runs.mask[:n].copy(), fit
