"""Ruin and recreate: a large-neighborhood search over run sequences.

Each iteration removes the reruns of a random window, node range or subset, shaves the peak again with random
preferences, deletes reruns that are no longer needed, and accepts the result if it is not (much) worse. Some iterations also
move a few runs before they shave, put postponed ones back, or move readers of a datum next to each other. Work is counted in
iterations; the same seed gives the same plan. Source of the scheme: Schrimpf et al., Record breaking optimization results using
the ruin and recreate principle, 2000; Shaw, 1998 (large-neighborhood search).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from remat.algorithms._arrays.gathering import gathered
from remat.algorithms._arrays.graph_arrays import Flags, Flat, Floats, Ints, Longs, Seed
from remat.algorithms._arrays.jit import allocating_kernel, inner_kernel, kernel
from remat.algorithms._arrays.liveness import LARGEST_TIME, memory_profile, overshoot, total_time
from remat.algorithms._arrays.ordering import disordered, some_brought_back
from remat.algorithms._arrays.rng import below, fraction
from remat.algorithms._search.deletion import delete
from remat.algorithms._search.peak_shaving import LONGEST, NO_CEILING, Scoring, shave


@allocating_kernel
def without(seq: Ints, removed: Flags) -> Ints:
    """The runs of `seq` except those at the positions where `removed` is true."""
    count = 0
    for i in range(seq.size):
        count += not removed[i]
    out = np.empty(count, np.int32)
    n = 0
    for i in range(seq.size):
        if not removed[i]:
            out[n] = seq[i]
            n += 1
    return out


@allocating_kernel
def ruin(g: Flat, seq: Ints, rng: Seed) -> Ints:
    """A copy of `seq` without some of its reruns."""
    n = seq.size
    nodes = g.time.size
    seen = np.zeros(nodes, np.bool_)
    removed = np.zeros(n, np.bool_)
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
            removed[i] = True
    return without(seq, removed)


@inner_kernel
def draw_prices(g: Flat, rng: Seed, price: Floats) -> None:
    """Fill `price` with the nodes' times under random distortion: none, small for all nodes, or large for a few."""
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
"""Exponent, noise, share and keeping of a `Scoring`. Kernels compile faster if they do not return named tuples."""


@kernel
def perturbed(
    g: Flat, current: Ints, changes: tuple[float, float, float], rng: Seed, price: Floats
) -> tuple[Ints, Preferences]:
    """A ruined copy of `current`, and the preferences for shaving it again with the prices that are written to `price`.

    The order changes too, with probabilities `changes`, those of `Acceptance`: disorder, undone, gathering.
    """
    disorder, undone, gathering = changes
    exponent = 0.6 + 0.8 * fraction(rng)
    noise = 0.6 * fraction(rng)
    share = 0.3 * fraction(rng) if fraction(rng) < 0.5 else 0.0
    if gathering > 0.0 and fraction(rng) < gathering:
        current = gathered(g, current, rng)
    changed = ruin(g, current, rng)
    if disorder > 0.0 and fraction(rng) < disorder:
        if undone > 0.0 and fraction(rng) < undone:
            changed = some_brought_back(g, changed, rng)
        else:
            width = max(4, int(changed.size * (0.02 + 0.5 * fraction(rng) ** 2)))
            lo = below(rng, changed.size) - width // 2
            changed = disordered(g, changed, lo, lo + width, 1 + below(rng, 4), rng)
    draw_prices(g, rng, price)
    return changed, (exponent, noise, share, below(rng, 2))


class Acceptance(NamedTuple):
    """The acceptance rule of a number of iterations.

    Attributes:
        temperature: the largest relative worsening that is accepted; each iteration draws a random share of it.
        disorder: share of the iterations that also change the order of runs.
        served: evictions made from one scan of the gaps.
        undone: share of these changes of the order that put postponed runs back.
        gathering: share of the iterations that move readers of a datum next to each other.
    """

    temperature: float
    disorder: float = 0.0
    served: int = 1
    undone: float = 0.0
    gathering: float = 0.0


_CEILING = 1.04
"""Time of a shaved sequence over that of the current one above which it is given up: deletion seldom saves as much."""

_CEILING_IN_HASTE = 1.03
"""The same in haste, where sequences are given up for what they are likely to take (`shave`)."""


def ruin_and_recreate(
    g: Flat, start: Ints, budget: int, iterations: int, acceptance: Acceptance, rng: Seed
) -> tuple[Ints, Ints]:
    """(best, last accepted) sequences after `iterations`, from `start`, which must fit.

    Plain Python around kernels: a kernel that calls these would optimize all of them once more when it is compiled.
    """
    temperature, disorder, served, undone, gathering = acceptance
    changes = float(disorder), float(undone), float(gathering)  # for whole numbers the kernel would be compiled again
    current = delete(g, start, budget)
    current_time = total_time(g, current, current.size)
    best, best_time = current, current_time
    highest = _CEILING if served <= 1 else _CEILING_IN_HASTE
    price = np.empty(g.time.size, np.float64)
    for _ in range(iterations):
        changed, preferences = perturbed(g, current, changes, rng, price)
        ceiling = min(int(current_time * highest), LARGEST_TIME)
        trial, fit = shave(g, Scoring(price, *preferences, served), changed, budget, rng, ceiling)
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
def position_over_budget(mem: Longs, n: int, budget: int, rng: Seed) -> int:
    """A random position over the budget; with probability 0.3 any random position."""
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


@allocating_kernel
def without_reruns(g: Flat, seq: Ints, lo: int, hi: int, chance: float, rng: Seed) -> Ints:
    """A copy of `seq` without (each with probability `chance`) the reruns at positions [lo, hi)."""
    seen = np.zeros(g.time.size, np.bool_)
    removed = np.zeros(seq.size, np.bool_)
    for i in range(seq.size):
        v = seq[i]
        if seen[v] and g.rerun[v] and lo <= i < hi and fraction(rng) < chance:
            removed[i] = True
        seen[v] = True
    return without(seq, removed)


@kernel
def perturbed_near_peak(
    g: Flat, current: Ints, mem: Longs, budget: int, rng: Seed, price: Floats
) -> tuple[Ints, Preferences]:
    """As `perturbed`, around a position over the budget; `mem` is the profile of `current`."""
    n = current.size
    width = max(4, int(n * (0.02 + 0.4 * fraction(rng) ** 2)))
    lo = position_over_budget(mem, n, budget, rng) - below(rng, width)
    chance = 1.0 if fraction(rng) < 0.5 else fraction(rng)
    changed = without_reruns(g, current, lo, lo + width, chance, rng)
    if fraction(rng) < 0.8:
        changed = disordered(g, changed, lo, lo + width, 1 + below(rng, 4), rng)
    draw_prices(g, rng, price)
    exponent = 1.2 * fraction(rng)
    noise = 0.6 * fraction(rng)
    share = 0.3 * fraction(rng) if fraction(rng) < 0.5 else 0.0
    return changed, (exponent, noise, share, below(rng, 2))


def relieve(g: Flat, start: Ints, budget: int, iterations: int, rng: Seed) -> tuple[Ints, bool]:
    """Lower the overshoot of a sequence that does not fit: (the last sequence accepted, whether it fits).

    Each iteration removes reruns around a position over the budget, moves runs and shaves. The result is accepted if its sum of
    bytes over the budget is smaller, or equal and the sequence is not longer. The time of the sequence does not matter.
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
        changed, preferences = perturbed_near_peak(g, current, mem, budget, rng, price)
        trial, _ = shave(g, Scoring(price, *preferences), changed, budget, rng, NO_CEILING)
        if trial.size > longest:
            continue
        trial_peak = memory_profile(g, trial, trial.size, mem)
        trial_over = overshoot(mem, trial.size, budget)
        if trial_over < over or (trial_over == over and trial.size <= current.size):
            current, over, peak = trial, trial_over, trial_peak
    return current, peak <= budget
