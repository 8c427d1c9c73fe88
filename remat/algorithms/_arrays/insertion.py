"""What a chain that is inserted before a position changes in the bytes before it, without another sweep."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from remat.algorithms._arrays.graph_arrays import Flags, Flat, Ints, Longs
from remat.algorithms._arrays.jit import allocating_kernel, inner_kernel
from remat.algorithms._arrays.liveness import settle


class Trial(NamedTuple):
    """Scratch: data resident at the position without and with the chain, the changes, and the data that change.

    `resident` is given; `change` is all zero between trials.
    """

    resident: Flags
    live: Flags
    change: NDArray[np.int8]
    touched: Ints


@allocating_kernel
def empty_trial(g: Flat) -> Trial:
    """Scratch for a graph."""
    data = g.size.size
    resident, live = np.empty(data, np.bool_), np.empty(data, np.bool_)
    return Trial(resident, live, np.zeros(data, np.int8), np.empty(data, np.int32))


@inner_kernel
def note(trial: Trial, d: int, count: int) -> int:
    """Add a datum to the `count` touched ones, unless it is among them; returns the new count."""
    if trial.change[d] != 0:
        return count
    trial.change[d], trial.live[d] = 2, trial.resident[d]
    trial.touched[count] = d
    return count + 1


@inner_kernel
def rise_before(g: Flat, profile: tuple[Ints, Longs, int], b: int, trial: Trial, count: int) -> int:
    """By how much the bytes over the budget rise before position b with the `count` touched data; profile: (seq, mem, budget).

    A change of residency lasts back to the previous use of the datum. Clears `trial.change`.
    """
    seq, mem, budget = profile
    change = trial.change
    delta: int = 0
    changed_data = 0
    for i in range(count):
        d = trial.touched[i]
        change[d] = int(trial.live[d]) - int(trial.resident[d])
        if change[d] != 0:
            delta += change[d] * g.size[d]
            changed_data += 1
    rise: int = 0
    j = b - 1
    while changed_data > 0 and j >= 0:
        ended, ends = settle(g, seq[j], change)
        delta -= ended
        changed_data -= ends
        rise += max(0, mem[j] + delta - budget) - max(0, mem[j] - budget)
        j -= 1
    for i in range(count):
        change[trial.touched[i]] = 0
    g.work[0] += b - 1 - j
    return rise
