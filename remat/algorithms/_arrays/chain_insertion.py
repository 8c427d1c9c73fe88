"""What a chain of reruns inserted before a position changes in the profile, from the uses of the data that it touches alone."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from remat.algorithms._arrays.graph_arrays import Flags, Flat, Ints, Longs
from remat.algorithms._arrays.jit import allocating_kernel, inlined_kernel, inner_kernel


class Uses(NamedTuple):
    """The uses of each datum in a sequence, as linked lists from the last to the first, while runs come and go.

    Attributes:
        filled: array of one element: uses in the arrays, whose other entries are free.
        at: the first use of each position; its reads and then its writes follow, in the order of `Flat.reads` and `Flat.writes`.
        place: of each use: twice its position, plus one if it reads the datum.
        before: of each use: the one of the same datum before it, -1: none. last: the last use of each datum, -1: none.
        read_next: of each use: whether the next one of the same datum reads it.
    """

    filled: Longs
    at: Ints
    place: Ints
    before: Ints
    last: Ints
    read_next: Flags


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


@inner_kernel
def most_uses(g: Flat) -> int:
    """The most data that a node reads and makes."""
    most: int = 0
    for v in range(g.time.size):
        most = max(most, g.reads[v + 1] - g.reads[v] + g.writes[v + 1] - g.writes[v])
    return most


@allocating_kernel
def uses_in(g: Flat, seq: Ints, n: int, spare: int) -> Uses:
    """The uses of all data in the first `n` runs of a sequence, with room for `spare` more; positions are those of `seq`."""
    total = 0
    for i in range(n):
        v = seq[i]
        total += g.reads[v + 1] - g.reads[v] + g.writes[v + 1] - g.writes[v]
    room = total + spare
    at, place, before = np.empty(seq.size, np.int32), np.empty(room, np.int32), np.empty(room, np.int32)
    last, read_next = np.full(g.size.size, -1, np.int32), np.empty(room, np.bool_)
    uses = Uses(np.zeros(1, np.int64), at, place, before, last, read_next)
    use = 0
    for i in range(n):
        v = seq[i]
        at[i] = use
        for k in range(g.reads[v], g.reads[v + 1]):
            append(uses, g.reads[k], use, 2 * i + 1)
            use += 1
        for k in range(g.writes[v], g.writes[v + 1]):
            append(uses, g.writes[k], use, 2 * i)
            use += 1
    uses.filled[0] = use
    return uses


@inlined_kernel
def append(uses: Uses, d: int, use: int, place: int) -> None:
    """Make a use the last one of datum d."""
    earlier = uses.last[d]
    uses.place[use], uses.before[use], uses.read_next[use] = place, earlier, False
    if earlier >= 0:
        uses.read_next[earlier] = (place & 1) == 1
    uses.last[d] = use


@inlined_kernel
def link_use(uses: Uses, d: int, use: int, place: int) -> None:
    """Put a use of datum d where its place belongs in the list."""
    after, earlier = -1, uses.last[d]
    while earlier >= 0 and uses.place[earlier] > place:
        after, earlier = earlier, uses.before[earlier]
    uses.place[use], uses.before[use] = place, earlier
    uses.read_next[use] = after >= 0 and (uses.place[after] & 1) == 1
    if earlier >= 0:
        uses.read_next[earlier] = (place & 1) == 1
    if after >= 0:
        uses.before[after] = use
    else:
        uses.last[d] = use


@inner_kernel
def remove_uses(g: Flat, uses: Uses, v: int, p: int) -> None:
    """Take the uses of the run of v at position p out of the lists; positions stay as they are."""
    use = uses.at[p]
    for k in range(g.reads[v], g.reads[v + 1]):
        unlink(uses, g.reads[k], use)
        use += 1
    for k in range(g.writes[v], g.writes[v + 1]):
        unlink(uses, g.writes[k], use)
        use += 1


@inlined_kernel
def unlink(uses: Uses, d: int, use: int) -> None:
    """Take a use of datum d out of its list."""
    after, earlier = -1, uses.before[use]
    at = uses.last[d]
    while at != use:
        after, at = at, uses.before[at]
    if earlier >= 0:
        uses.read_next[earlier] = uses.read_next[use]
    if after >= 0:
        uses.before[after] = earlier
    else:
        uses.last[d] = earlier


@inner_kernel
def insert_uses(g: Flat, uses: Uses, n: int, b: int, chain: Ints, length: int) -> None:
    """Add the uses of a chain inserted before position b of `n` runs."""
    use = uses.filled[0]
    for u in range(use):
        uses.place[u] += 2 * length if uses.place[u] >= 2 * b else 0
    for x in range(n - 1, b - 1, -1):
        uses.at[x + length] = uses.at[x]
    for i in range(length):
        v = chain[i]
        uses.at[b + i] = use
        for k in range(g.reads[v], g.reads[v + 1]):
            link_use(uses, g.reads[k], use, 2 * (b + i) + 1)
            use += 1
        for k in range(g.writes[v], g.writes[v + 1]):
            link_use(uses, g.writes[k], use, 2 * (b + i))
            use += 1
    uses.filled[0] = use


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
def insert_into(g: Flat, profile: Profile, b: int, chain: Ints, length: int, s: Insertion) -> int:
    """Insert `chain` right before position b into `profile`, whose arrays have room for it; returns the new number of runs."""
    seq, mem = profile.seq, profile.mem
    first = insert_chain(g, profile, b, chain, length, s)
    change = np.int64(0)
    for x in range(first, b):
        change += s.steps[x]
        s.steps[x] = 0
        mem[x] += change
    for x in range(profile.n - 1, b - 1, -1):
        seq[x + length], mem[x + length] = seq[x], mem[x]
    for i in range(length):
        seq[b + i], mem[b + i] = chain[i], s.charged[i]
    insert_uses(g, profile.uses, profile.n, b, chain, length)
    return profile.n + length
