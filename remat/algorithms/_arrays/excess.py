"""Bytes over the budget: what a profile exceeds it by, and what an eviction saves of that."""

from __future__ import annotations

import numpy as np

from remat.algorithms._arrays.graph_arrays import Longs
from remat.algorithms._arrays.jit import inner_kernel


@inner_kernel
def over_budget(mem: Longs, n: int, budget: int, over_count: Longs, over_bytes: Longs) -> int:
    """Fill in prefix sums: the number of positions over the budget, and the bytes by which they exceed it, before each position.

    Returns the first position over the budget, n if there is none.
    """
    first = n
    over_count[0] = over_bytes[0] = 0
    for i in range(n):
        above = mem[i] - budget
        if above > 0 and first == n:
            first = i
        over_count[i + 1] = over_count[i] + (1 if above > 0 else 0)
        over_bytes[i + 1] = over_bytes[i] + max(above, 0)
    return first


@inner_kernel
def gain_of(over_count: Longs, over_bytes: Longs, a: int, b: int, size: int) -> float:
    """Bytes over the budget that an eviction of `size` bytes between the events at a and b saves; -1 if none are over it."""
    count = over_count[b] - over_count[a + 1]
    if count == 0:
        return -1.0
    return np.float64(min(size * count, over_bytes[b] - over_bytes[a + 1]))
