"""Ruin and recreate: a large-neighbourhood search over run sequences.

Each iteration takes out the reruns of a random window, node range or subset, shaves the peak again with random
preferences, deletes what has become needless, and keeps the result when it is not (much) worse. Work is counted in
iterations; the same seed gives the same plan. Source of the scheme: Schrimpf et al., Record breaking optimization
results using the ruin and recreate principle, 2000; Shaw, 1998 (large-neighbourhood search).
"""

from __future__ import annotations

import numpy as np

from remat.algorithms.runs.chance import below, fraction
from remat.algorithms.runs.csr import Flat, Floats, Ints, Seed
from remat.algorithms.runs.deletion import delete
from remat.algorithms.runs.kernel import kernel
from remat.algorithms.runs.liveness import total_time
from remat.algorithms.runs.shaving import shave


@kernel
def ruin(g: Flat, seq: Ints, rng: Seed) -> Ints:
    """A copy of `seq` without some of its reruns."""
    n = seq.size
    nodes = g.time.size
    seen = np.zeros(nodes, np.bool_)
    keep = np.ones(n, np.bool_)
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
            keep[i] = False
    return seq[keep]


@kernel
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


@kernel
def ruin_and_recreate(
    g: Flat, start: Ints, budget: int, iterations: int, temperature: float, rng: Seed
) -> tuple[Ints, Ints]:
    """(best, last accepted) sequences after `iterations`, from `start`, which must fit.

    `temperature` is the largest relative worsening accepted; each iteration draws its own share of it.
    """
    current = delete(g, start, budget)
    current_time = total_time(g, current, current.size)
    best, best_time = current, current_time
    price = np.empty(g.time.size, np.float64)
    for _ in range(iterations):
        exponent = 0.6 + 0.8 * fraction(rng)
        noise = 0.6 * fraction(rng)
        share = 0.3 * fraction(rng) if fraction(rng) < 0.5 else 0.0
        broken = ruin(g, current, rng)
        prices(g, rng, price)
        ceiling = int(current_time * 1.04)
        trial, fit = shave(g, price, broken, budget, exponent, noise, share, below(rng, 2), rng, ceiling)
        if fit:
            trial = delete(g, trial, budget)
            time = total_time(g, trial, trial.size)
            allowed = current_time * (1.0 + temperature * fraction(rng))
            if time <= allowed:
                current, current_time = trial, time
                if time < best_time:
                    best, best_time = trial, time
    return best, current
