"""What a chain of reruns inserted before a position changes in the profile, from the uses of the data that it touches alone."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from remat.algorithms._arrays.graph_arrays import Flags, Flat, Ints, Longs
from remat.algorithms._arrays.jit import allocating_kernel, inlined_kernel, inner_kernel


class Uses(NamedTuple):
    """The uses of each datum in a sequence, as linked lists from the last to the first.

    Attributes:
        place: of each use: twice its position, plus one if it reads the datum.
        before: of each use: the one of the same datum before it, -1: none. last: the last use of each datum, -1: none.
    """

    place: Ints
    before: Ints
    last: Ints


class Profile(NamedTuple):
    """The first `n` runs of `seq`, the bytes charged at each, their uses, the budget."""

    seq: Ints
    n: int
    mem: Longs
    uses: Uses
    budget: int


class Insertion(NamedTuple):
    """Scratch.

    Attributes:
        resident, live: per touched datum, whether it is resident right before the position without and with the chain.
        used: per touched datum, the position of the use before, -1: none. is_touched: per datum; all false between calls.
        touched: the touched data. charged: bytes charged at each run of the chain.
        steps: by how much the change of the profile rises at each position; all zero between calls.
    """

    resident: Flags
    live: Flags
    used: Ints
    is_touched: Flags
    touched: Ints
    charged: Longs
    steps: Longs


@allocating_kernel
def empty_insertion(g: Flat, capacity: int, longest: int) -> Insertion:
    """Scratch for sequences of up to `capacity` runs and chains of up to `longest` nodes."""
    data = g.size.size
    resident, live, is_touched = np.empty(data, np.bool_), np.empty(data, np.bool_), np.zeros(data, np.bool_)
    used, touched = np.empty(data, np.int32), np.empty(data, np.int32)
    charged, steps = np.empty(longest, np.int64), np.zeros(capacity + 1, np.int64)
    return Insertion(resident, live, used, is_touched, touched, charged, steps)


@allocating_kernel
def uses_in(g: Flat, seq: Ints, n: int) -> Uses:
    """The uses of all data in the first `n` runs of a sequence."""
    total = 0
    for i in range(n):
        v = seq[i]
        total += g.reads[v + 1] - g.reads[v] + g.writes[v + 1] - g.writes[v]
    place, before, last = np.empty(total, np.int32), np.empty(total, np.int32), np.full(g.size.size, -1, np.int32)
    use = 0
    for i in range(n):
        v = seq[i]
        for k in range(g.reads[v], g.reads[v + 1]):
            place[use], before[use] = 2 * i + 1, last[g.reads[k]]
            last[g.reads[k]] = use
            use += 1
        for k in range(g.writes[v], g.writes[v + 1]):
            place[use], before[use] = 2 * i, last[g.writes[k]]
            last[g.writes[k]] = use
            use += 1
    return Uses(place, before, last)


@inlined_kernel
def touch(uses: Uses, b: int, s: Insertion, d: int, count: int) -> int:
    """Add a datum, not a kept one, to the `count` touched ones, unless it is among them; returns the new count."""
    if s.is_touched[d]:
        return count
    use, resident = uses.last[d], False
    while use >= 0 and uses.place[use] >= 2 * b:
        resident = (uses.place[use] & 1) == 1
        use = uses.before[use]
    s.is_touched[d], s.resident[d], s.live[d] = True, resident, resident
    s.used[d] = uses.place[use] >> 1 if use >= 0 else -1
    s.touched[count] = d
    return count + 1


@inner_kernel
def insert_chain(g: Flat, profile: Profile, b: int, chain: Ints, length: int, s: Insertion) -> int:
    """Fill `charged` and `steps` for `chain` right before position b; returns the first position at which the profile changes.

    The outputs of the chain need not be resident between the previous use and the chain, its reads must be.
    """
    live_bytes = profile.mem[b] - g.charge[profile.seq[b]]
    count = 0
    for i in range(length - 1, -1, -1):
        u = chain[i]
        for k in range(g.writes[u], g.writes[u + 1]):
            d = g.writes[k]
            if g.keep[d]:
                continue
            count = touch(profile.uses, b, s, d, count)
            if s.live[d]:
                s.live[d] = False
                live_bytes -= g.size[d]
        for k in range(g.reads[u], g.reads[u + 1]):
            d = g.reads[k]
            if g.keep[d]:
                continue
            count = touch(profile.uses, b, s, d, count)
            if not s.live[d]:
                s.live[d] = True
                live_bytes += g.size[d]
        s.charged[i] = live_bytes + g.charge[u]
    first = b
    for i in range(count):
        d = s.touched[i]
        s.is_touched[d] = False
        begin = s.used[d] + 1
        if s.live[d] != s.resident[d] and begin < b:
            s.steps[begin] += g.size[d] if s.live[d] else -g.size[d]
            first = min(first, begin)
    g.work[0] += b - first
    return first


@inner_kernel
def fall_of(g: Flat, profile: Profile, b: int, chain: Ints, length: int, s: Insertion) -> int:
    """By how much the bytes over the budget fall if `chain` runs right before position b; exact."""
    mem, budget = profile.mem, profile.budget
    first = insert_chain(g, profile, b, chain, length, s)
    fall: int = 0
    for i in range(length):
        fall -= max(0, s.charged[i] - budget)
    change = np.int64(0)
    for x in range(first, b):
        change += s.steps[x]
        s.steps[x] = 0
        fall += max(0, mem[x] - budget) - max(0, mem[x] + change - budget)
    return fall


@inner_kernel
def profile_with(g: Flat, profile: Profile, b: int, chain: Ints, length: int, s: Insertion) -> None:
    """Turn `profile.mem` into the profile of the sequence with `chain` right before position b."""
    mem = profile.mem
    first = insert_chain(g, profile, b, chain, length, s)
    change = np.int64(0)
    for x in range(first, b):
        change += s.steps[x]
        s.steps[x] = 0
        mem[x] += change
    for x in range(profile.n - 1, b - 1, -1):
        mem[x + length] = mem[x]
    for i in range(length):
        mem[b + i] = s.charged[i]
