"""Sorting inside kernels: small sorts, because numpy's take longer to compile than most kernels here."""

from __future__ import annotations

import numpy as np

from remat.algorithms._arrays.graph_arrays import Floats, Ints, Longs
from remat.algorithms._arrays.jit import allocating_kernel, inner_kernel


@allocating_kernel
def stable_order(keys: Floats) -> Longs:
    """Positions by ascending key, equal keys in their original order: a bottom-up merge sort."""
    n = keys.size
    order, merged = np.empty(n, np.int64), np.empty(n, np.int64)
    for i in range(n):
        order[i] = i
    width = 1
    while width < n:
        for low in range(0, n, 2 * width):
            middle, high = min(low + width, n), min(low + 2 * width, n)
            left, right = low, middle
            for i in range(low, high):
                if left < middle and (right >= high or keys[order[left]] <= keys[order[right]]):
                    merged[i] = order[left]
                    left += 1
                else:
                    merged[i] = order[right]
                    right += 1
        order, merged = merged, order
        width *= 2
    return order


@inner_kernel
def sort_first(values: Ints, count: int) -> None:
    """Sort the first entries in place: shell sort, since there may be hundreds."""
    gap = 1
    while 3 * gap + 1 < count:
        gap = 3 * gap + 1
    while gap > 0:
        for i in range(gap, count):
            value, at = values[i], i
            while at >= gap and values[at - gap] > value:
                values[at] = values[at - gap]
                at -= gap
            values[at] = value
        gap //= 3
