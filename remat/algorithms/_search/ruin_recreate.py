"""Ruin and recreate: a large-neighbourhood search over run sequences.

Each iteration takes out the reruns of a random window, node range or subset, shaves the peak again with random
preferences, deletes what has become needless, and keeps the result when it is not (much) worse. Some iterations also
put a few runs elsewhere in the order before they shave. Work is counted in iterations; the same seed gives the same
plan. Source of the scheme: Schrimpf et al., Record breaking optimization results using the ruin and recreate
principle, 2000; Shaw, 1998 (large-neighbourhood search).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from remat.algorithms._arrays.graph_arrays import Flags, Flat, Floats, Ints, Longs, Seed
from remat.algorithms._arrays.jit import inner_kernel, kernel
from remat.algorithms._arrays.liveness import memory_profile, overshoot, total_time
from remat.algorithms._arrays.rng import below, fraction
from remat.algorithms._search.deletion import delete
from remat.algorithms._search.ordering import disordered
from remat.algorithms._search.peak_shaving import LONGEST, NO_CEILING, Scoring, shave


@inner_kernel
def without(seq: Ints, gone: Flags) -> Ints:
    """The runs of `seq` but those at the positions where `gone` is true."""
    count = 0
    for i in range(seq.size):
        count += not gone[i]
    out = np.empty(count, np.int32)
    n = 0
    for i in range(seq.size):
        if not gone[i]:
            out[n] = seq[i]
            n += 1
    return out


@inner_kernel
def ruin(g: Flat, seq: Ints, rng: Seed) -> Ints:
    """A copy of `seq` without some of its reruns."""
    n = seq.size
    nodes = g.time.size
    seen = np.zeros(nodes, np.bool_)
    gone = np.zeros(n, np.bool_)
    reruns = n - nodes
    kind = below(rng, 4)
    share = 0.02 + 0.25 * fraction(rng) ** 2
    if kind == 0:  # a window of positions
        width = max(4, int(n * share))
        lo = below(rng, n) - width // 2
        hi = lo + width
        chance = 1.0
    elif kind == 1:  # a range of nodes
        width = max(3, int(nodes * share))
        lo = below(rng, nodes) - width // 2
        hi = lo + width
        chance = 1.0
    elif kind == 2:  # a random subset
        lo, hi, chance = 0, n, max(share, 3.0 / max(1, reruns))
    else:  # half of a wider window
        width = max(8, int(n * 2 * share))
        lo = below(rng, n) - width // 2
        hi = lo + width
        chance = 0.5
    if fraction(rng) < 0.3:  # a handful, anywhere
        kind, lo, hi = 2, 0, n
        chance = (1.0 + below(rng, 6)) / max(1, reruns)
    for i in range(n):
        v = seq[i]
        if not seen[v] or not g.rerun[v]:
            seen[v] = True
            continue
        place = v if kind == 1 else i
        if lo <= place < hi and (chance == 1.0 or fraction(rng) < chance):
            gone[i] = True
    return without(seq, gone)


@inner_kernel
def prices(g: Flat, rng: Seed, price: Floats) -> None:
    """Fill `price` with the nodes' times under random distortion: none, a little everywhere, or much for a few."""
    kind = below(rng, 3)
    spread = 0.5 * fraction(rng)
    rare = 0.15 * fraction(rng)
    for v in range(g.time.size):
        price[v] = g.time[v]
        if kind == 1:
            price[v] *= 1.0 + spread * (2 * fraction(rng) - 1)
        elif kind == 2 and fraction(rng) < rare:
            price[v] *= 20.0


Preferences = tuple[float, float, float, int]
"""Of a `Scoring`: exponent, noise, share, keeping. Kernels compile faster when they return no named tuple."""


@kernel
def broken_up(g: Flat, current: Ints, disorder: float, rng: Seed, price: Floats) -> tuple[Ints, Preferences]:
    """A ruined copy of `current`, and how to shave it again, by prices that are written to `price`.

    With probability `disorder` a few of its runs also stand elsewhere.
    """
    exponent = 0.6 + 0.8 * fraction(rng)
    noise = 0.6 * fraction(rng)
    share = 0.3 * fraction(rng) if fraction(rng) < 0.5 else 0.0
    broken = ruin(g, current, rng)
    if disorder > 0.0 and fraction(rng) < disorder:
        width = max(4, int(broken.size * (0.02 + 0.5 * fraction(rng) ** 2)))
        lo = below(rng, broken.size) - width // 2
        broken = disordered(g, broken, lo, lo + width, 1 + below(rng, 4), rng)
    prices(g, rng, price)
    return broken, (exponent, noise, share, below(rng, 2))


class Acceptance(NamedTuple):
    """How a stretch of ruin and recreate searches.

    Attributes:
        temperature: the largest relative worsening accepted; each iteration draws its own share of it.
        disorder: share of the iterations that also change the order of runs.
    """

    temperature: float
    disorder: float = 0.0


_LONGEST = 2**63 - 1  # what kernels can count; a graph's times stay below it once (G-RANGE), with reruns they need not


def ruin_and_recreate(
    g: Flat, start: Ints, budget: int, iterations: int, acceptance: Acceptance, rng: Seed
) -> tuple[Ints, Ints]:
    """(best, last accepted) sequences after `iterations`, from `start`, which must fit.

    Plain Python around kernels: a kernel that calls these would optimise all of them once more when it is compiled.
    """
    temperature, disorder = acceptance
    current = delete(g, start, budget)
    current_time = total_time(g, current, current.size)
    best, best_time = current, current_time
    price = np.empty(g.time.size, np.float64)
    for _ in range(iterations):
        broken, preferences = broken_up(g, current, disorder, rng, price)
        ceiling = min(int(current_time * 1.04), _LONGEST)
        trial, fit = shave(g, Scoring(price, *preferences), broken, budget, rng, ceiling)
        if not fit:
            continue
        trial = delete(g, trial, budget)
        time = total_time(g, trial, trial.size)
        if time <= current_time * (1.0 + temperature * fraction(rng)):
            current, current_time = trial, time
            if time < best_time:
                best, best_time = trial, time
    return best, current


@inner_kernel
def troubled(mem: Longs, n: int, budget: int, rng: Seed) -> int:
    """A random position over the budget; three times of ten any position."""
    count = 0
    for i in range(n):
        count += 1 if mem[i] > budget else 0
    if count == 0 or fraction(rng) < 0.3:
        return below(rng, n)
    pick = below(rng, count)
    for i in range(n):
        if mem[i] > budget:
            if pick == 0:
                return i
            pick -= 1
    return n - 1


@inner_kernel
def without_reruns(g: Flat, seq: Ints, lo: int, hi: int, chance: float, rng: Seed) -> Ints:
    """A copy of `seq` without (each with probability `chance`) the reruns at positions [lo, hi)."""
    seen = np.zeros(g.time.size, np.bool_)
    gone = np.zeros(seq.size, np.bool_)
    for i in range(seq.size):
        v = seq[i]
        if seen[v] and g.rerun[v] and lo <= i < hi and fraction(rng) < chance:
            gone[i] = True
        seen[v] = True
    return without(seq, gone)


@kernel
def taken_out(g: Flat, current: Ints, mem: Longs, budget: int, rng: Seed, price: Floats) -> tuple[Ints, Preferences]:
    """As `broken_up`, around a position over the budget; `mem` is the profile of `current`."""
    n = current.size
    width = max(4, int(n * (0.02 + 0.4 * fraction(rng) ** 2)))
    lo = troubled(mem, n, budget, rng) - below(rng, width)
    chance = 1.0 if fraction(rng) < 0.5 else fraction(rng)
    broken = without_reruns(g, current, lo, lo + width, chance, rng)
    if fraction(rng) < 0.8:
        broken = disordered(g, broken, lo, lo + width, 1 + below(rng, 4), rng)
    prices(g, rng, price)
    exponent = 1.2 * fraction(rng)
    noise = 0.6 * fraction(rng)
    share = 0.3 * fraction(rng) if fraction(rng) < 0.5 else 0.0
    return broken, (exponent, noise, share, below(rng, 2))


def relieve(g: Flat, start: Ints, budget: int, iterations: int, rng: Seed) -> tuple[Ints, bool]:
    """Lower the overshoot of a sequence that does not fit: (the last sequence accepted, whether it fits).

    Each iteration takes reruns out around a position over the budget, disorders and shaves; what exceeds the budget no
    more in sum than before is kept, unless it only grew longer. Time is no object here.
    """
    current = start
    longest = 8 * start.size + LONGEST
    mem = np.empty(longest, np.int64)
    price = np.empty(g.time.size, np.float64)
    peak = memory_profile(g, current, current.size, mem)
    over = overshoot(mem, current.size, budget)
    for _ in range(iterations):
        if peak <= budget:
            break
        memory_profile(g, current, current.size, mem)
        broken, preferences = taken_out(g, current, mem, budget, rng, price)
        trial, _ = shave(g, Scoring(price, *preferences), broken, budget, rng, NO_CEILING)
        if trial.size > longest:
            continue
        trial_peak = memory_profile(g, trial, trial.size, mem)
        trial_over = overshoot(mem, trial.size, budget)
        if trial_over < over or (trial_over == over and trial.size <= current.size):
            current, over, peak = trial, trial_over, trial_peak
    return current, peak <= budget
