"""Bytes over the budget: what a profile exceeds it by, and what an eviction saves of that."""

from __future__ import annotations

import numpy as np

from remat.algorithms._arrays.graph_arrays import Longs
from remat.algorithms._arrays.jit import allocating_kernel, inner_kernel


@allocating_kernel
def over_budget(mem: Longs, n: int, budget: int) -> tuple[Longs, Longs]:
    """Prefix sums: the number of positions over the budget, and the bytes by which they exceed it, before each position."""
    count = np.zeros(n + 1, np.int64)
    total = np.zeros(n + 1, np.int64)
    for i in range(n):
        above = mem[i] - budget
        count[i + 1] = count[i] + (1 if above > 0 else 0)
        total[i + 1] = total[i] + max(above, 0)
    return count, total


@inner_kernel
def gain_of(over_count: Longs, over_bytes: Longs, a: int, b: int, size: int) -> float:
    """Bytes over the budget that an eviction of `size` bytes between the events at a and b saves; -1 if none are over it."""
    count = over_count[b] - over_count[a + 1]
    if count == 0:
        return -1.0
    return np.float64(min(size * count, over_bytes[b] - over_bytes[a + 1]))
