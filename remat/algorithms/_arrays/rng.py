"""A small seeded generator inside numba (splitmix64), so that plans do not depend on a library's random numbers."""

from __future__ import annotations

import numpy as np

from remat.algorithms._arrays.graph_arrays import Floats, Seed
from remat.algorithms._arrays.jit import inner_kernel, kernel

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_A = np.uint64(0xBF58476D1CE4E5B9)
_MIX_B = np.uint64(0x94D049BB133111EB)


@kernel
def fraction(state: Seed) -> float:
    """Next number in [0, 1); `state` is a uint64 array of length 1."""
    state[0] = state[0] + _GOLDEN
    z = state[0]
    z = (z ^ (z >> np.uint64(30))) * _MIX_A
    z = (z ^ (z >> np.uint64(27))) * _MIX_B
    z = z ^ (z >> np.uint64(31))
    return np.float64(z >> np.uint64(11)) / 9007199254740992.0


@inner_kernel
def below(state: Seed, n: int) -> int:
    """Next integer in [0, n)."""
    return int(fraction(state) * n)


@kernel
def fractions(state: Seed, count: int) -> Floats:
    """The next `count` numbers in [0, 1)."""
    values = np.empty(count, np.float64)
    for i in range(count):
        values[i] = fraction(state)
    return values
