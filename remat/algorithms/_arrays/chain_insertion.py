"""What a chain of reruns inserted before a position changes in the profile, from the uses of the data that it touches alone.

Runs may have masks: bit k says that the k-th read comes by a copy, which takes no time here, so that the datum is off the device
from its use before. Sequences without copies have an array of masks with no entries.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from remat.algorithms._arrays.graph_arrays import Flags, Flat, Ints, Longs
from remat.algorithms._arrays.jit import allocating_kernel, inlined_kernel, inner_kernel
from remat.algorithms._arrays.sorting import sort_first

WRITE, COPY, READ = 0, 1, 2
"""Kinds of uses: a run makes the datum, reads it after a copy to the device, or reads it where it is resident."""


class Uses(NamedTuple):
    """The uses of each datum in a sequence, as linked lists from the last to the first, while runs come and go.

    Attributes:
        filled: array of one element: uses in the arrays, whose other entries are free.
        at: the first use of each position; its reads and then its writes follow, in the order of `Flat.reads` and `Flat.writes`.
        place: of each use: four times its position, plus its kind.
        before: of each use: the one of the same datum before it, -1: none. last: the last use of each datum, -1: none.
        following: of each use: the kind of the next one of the same datum; `WRITE` if there is none.
    """

    filled: Longs
    at: Ints
    place: Ints
    before: Ints
    last: Ints
    following: NDArray[np.int8]


class Profile(NamedTuple):
    """The first `n` runs of `seq` and their masks, the bytes charged at each, their uses, the budget."""

    seq: Ints
    mask: Longs
    n: int
    mem: Longs
    uses: Uses
    budget: int


class Chain(NamedTuple):
    """The first `length` of the nodes, in order, and their masks."""

    nodes: Ints
    masks: Longs
    length: int


class Insertion(NamedTuple):
    """Scratch.

    Attributes:
        resident, live: per touched datum, whether it is resident right before the position without and with the chain.
        used: per touched datum, the position of the use before, -1: none. is_touched: per datum; all false between calls.
        touched: the touched data. charged: bytes charged at each run of the chain.
        steps: by how much the change of the profile rises at each position; all zero between calls.
        begins: the positions where it rises, in ascending order, and the position of the chain.
    """

    resident: Flags
    live: Flags
    used: Ints
    is_touched: Flags
    touched: Ints
    charged: Longs
    steps: Longs
    begins: Ints


@allocating_kernel
def empty_insertion(g: Flat, capacity: int, longest: int) -> Insertion:
    """Scratch for sequences of up to `capacity` runs and chains of up to `longest` nodes."""
    data = g.size.size
    resident, live, is_touched = np.empty(data, np.bool_), np.empty(data, np.bool_), np.zeros(data, np.bool_)
    used, touched = np.empty(data, np.int32), np.empty(data, np.int32)
    charged, steps = np.empty(longest, np.int64), np.zeros(capacity + 1, np.int64)
    return Insertion(resident, live, used, is_touched, touched, charged, steps, np.empty(data + 1, np.int32))


@inlined_kernel
def mask_at(masks: Longs, i: int) -> int:
    """The mask of a run."""
    bits: int = 0
    if masks.size > 0:
        bits = masks[i]
    return bits


@inlined_kernel
def kind_of(bits: int, k: int) -> int:
    """The kind of the k-th read of a run with this mask."""
    return COPY if (bits >> k) & 1 else READ


# -- the lists of uses -------------------------------------------------------------------------------------------------


@inner_kernel
def most_uses(g: Flat) -> int:
    """The most data that a node reads and makes."""
    most: int = 0
    for v in range(g.time.size):
        most = max(most, g.reads[v + 1] - g.reads[v] + g.writes[v + 1] - g.writes[v])
    return most


@allocating_kernel
def uses_in(g: Flat, seq: Ints, mask: Longs, n: int, spare: int) -> Uses:
    """The uses of all data in the first `n` runs of a sequence, with room for `spare` more; positions are those of `seq`."""
    total = 0
    for i in range(n):
        v = seq[i]
        total += g.reads[v + 1] - g.reads[v] + g.writes[v + 1] - g.writes[v]
    room = total + spare
    at, place, before = np.empty(seq.size, np.int32), np.empty(room, np.int32), np.empty(room, np.int32)
    last, following = np.full(g.size.size, -1, np.int32), np.empty(room, np.int8)
    uses = Uses(np.zeros(1, np.int64), at, place, before, last, following)
    use = 0
    for i in range(n):
        v, bits = seq[i], mask_at(mask, i)
        at[i] = use
        for k in range(g.reads[v], g.reads[v + 1]):
            append(uses, g.reads[k], use, 4 * i + kind_of(bits, k - g.reads[v]))
            use += 1
        for k in range(g.writes[v], g.writes[v + 1]):
            append(uses, g.writes[k], use, 4 * i + WRITE)
            use += 1
    uses.filled[0] = use
    return uses


@inlined_kernel
def append(uses: Uses, d: int, use: int, place: int) -> None:
    """Make a use the last one of datum d."""
    earlier = uses.last[d]
    uses.place[use], uses.before[use], uses.following[use] = place, earlier, WRITE
    if earlier >= 0:
        uses.following[earlier] = place & 3
    uses.last[d] = use


@inlined_kernel
def link_use(uses: Uses, d: int, use: int, place: int) -> None:
    """Put a use of datum d where its place belongs in the list."""
    after, earlier = -1, uses.last[d]
    while earlier >= 0 and uses.place[earlier] > place:
        after, earlier = earlier, uses.before[earlier]
    uses.place[use], uses.before[use] = place, earlier
    uses.following[use] = uses.place[after] & 3 if after >= 0 else WRITE
    if earlier >= 0:
        uses.following[earlier] = place & 3
    if after >= 0:
        uses.before[after] = use
    else:
        uses.last[d] = use


@inlined_kernel
def unlink(uses: Uses, d: int, use: int) -> None:
    """Take a use of datum d out of its list."""
    after, earlier = -1, uses.before[use]
    at = uses.last[d]
    while at != use:
        after, at = at, uses.before[at]
    if earlier >= 0:
        uses.following[earlier] = uses.following[use]
    if after >= 0:
        uses.before[after] = earlier
    else:
        uses.last[d] = earlier


@inner_kernel
def insert_uses(g: Flat, uses: Uses, n: int, b: int, chain: Chain) -> None:
    """Add the uses of a chain inserted before position b of `n` runs."""
    use, length = uses.filled[0], chain.length
    for u in range(use):
        uses.place[u] += 4 * length if uses.place[u] >= 4 * b else 0
    for x in range(n - 1, b - 1, -1):
        uses.at[x + length] = uses.at[x]
    for i in range(length):
        v, bits = chain.nodes[i], mask_at(chain.masks, i)
        uses.at[b + i] = use
        for k in range(g.reads[v], g.reads[v + 1]):
            link_use(uses, g.reads[k], use, 4 * (b + i) + kind_of(bits, k - g.reads[v]))
            use += 1
        for k in range(g.writes[v], g.writes[v + 1]):
            link_use(uses, g.writes[k], use, 4 * (b + i) + WRITE)
            use += 1
    uses.filled[0] = use


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


# -- what a chain changes ----------------------------------------------------------------------------------------------


@inlined_kernel
def touch(uses: Uses, b: int, s: Insertion, d: int, count: int) -> int:
    """Add a datum, not a kept one, to the `count` touched ones, unless it is among them; returns the new count."""
    if s.is_touched[d]:
        return count
    use, resident = uses.last[d], False
    while use >= 0 and uses.place[use] >= 4 * b:
        resident = (uses.place[use] & 3) == READ
        use = uses.before[use]
    s.is_touched[d], s.resident[d], s.live[d] = True, resident, resident
    s.used[d] = uses.place[use] >> 2 if use >= 0 else -1
    s.touched[count] = d
    return count + 1


@inlined_kernel
def run_back(
    g: Flat, profile: Profile, b: int, node: tuple[int, int], state: tuple[int, int], s: Insertion
) -> tuple[int, int, int]:
    """Go back over a run (node, mask) of a chain, from (bytes, touched data); returns both before it and the bytes at it."""
    (u, bits), (live_bytes, count) = node, state
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
    charged = live_bytes + g.charge[u]
    k = g.reads[u]
    while bits:
        if bits & 1:  # it comes right before this run
            s.live[g.reads[k]] = False
            live_bytes -= g.size[g.reads[k]]
        bits >>= 1
        k += 1
    return live_bytes, count, charged


@inner_kernel
def insert_chain(g: Flat, profile: Profile, b: int, chain: Chain, s: Insertion) -> int:
    """Fill `charged`, `steps` and `begins` for a chain right before position b; returns how many positions are in `begins`.

    The outputs of the chain need not be resident between the previous use and the chain, its reads must be.
    """
    v, bits = profile.seq[b], mask_at(profile.mask, b)
    live_bytes, count = profile.mem[b] - g.charge[v], 0
    k = g.reads[v]
    while bits:
        live_bytes -= g.size[g.reads[k]] if bits & 1 else 0
        bits >>= 1
        k += 1
    for i in range(chain.length - 1, -1, -1):
        node = (chain.nodes[i], mask_at(chain.masks, i))
        live_bytes, count, s.charged[i] = run_back(g, profile, b, node, (live_bytes, count), s)
    changes = 0
    for i in range(count):
        d = s.touched[i]
        s.is_touched[d] = False
        begin = s.used[d] + 1
        if s.live[d] != s.resident[d] and begin < b:
            s.steps[begin] += g.size[d] if s.live[d] else -g.size[d]
            s.begins[changes] = begin
            changes += 1
    sort_first(s.begins, changes)
    s.begins[changes] = b
    g.work[0] += b - s.begins[0]
    return changes


@inner_kernel
def fall_of(g: Flat, profile: Profile, b: int, chain: Chain, s: Insertion) -> int:
    """By how much the bytes over the budget fall if a chain runs right before position b; exact."""
    mem, budget = profile.mem, profile.budget
    changes = insert_chain(g, profile, b, chain, s)
    fall: int = 0
    for i in range(chain.length):
        fall -= max(0, s.charged[i] - budget)
    change = np.int64(0)
    for i in range(changes):
        change += s.steps[s.begins[i]]
        s.steps[s.begins[i]] = 0
        for x in range(s.begins[i], s.begins[i + 1]):
            fall += max(0, mem[x] - budget) - max(0, mem[x] + change - budget)
    return fall


@inner_kernel
def insert_into(g: Flat, profile: Profile, b: int, chain: Chain, s: Insertion) -> int:
    """Insert a chain right before position b into `profile`, whose arrays have room for it; returns the new number of runs."""
    seq, mask, mem, length = profile.seq, profile.mask, profile.mem, chain.length
    changes = insert_chain(g, profile, b, chain, s)
    change = np.int64(0)
    for i in range(changes):
        change += s.steps[s.begins[i]]
        s.steps[s.begins[i]] = 0
        for x in range(s.begins[i], s.begins[i + 1]):
            mem[x] += change
    for x in range(profile.n - 1, b - 1, -1):
        seq[x + length], mem[x + length] = seq[x], mem[x]
    for i in range(length):
        seq[b + i], mem[b + i] = chain.nodes[i], s.charged[i]
    if mask.size > 0:
        for x in range(profile.n - 1, b - 1, -1):
            mask[x + length] = mask[x]
        for i in range(length):
            mask[b + i] = mask_at(chain.masks, i)
    insert_uses(g, profile.uses, profile.n, b, chain)
    return profile.n + length


# -- what a copy changes -----------------------------------------------------------------------------------------------


@inlined_kernel
def absence(g: Flat, profile: Profile, b: int, bit: int) -> tuple[int, int]:
    """The use of a read, and the first position from which its datum is away if it comes by a copy."""
    use = profile.uses.at[b] + bit
    return use, (profile.uses.place[profile.uses.before[use]] >> 2) + 1


@inner_kernel
def fall_of_copy(g: Flat, profile: Profile, b: int, bit: int) -> int:
    """By how much the bytes over the budget fall if a read of position b comes by a copy."""
    size = g.size[g.reads[g.reads[profile.seq[b]] + bit]]
    fall: int = 0
    for x in range(absence(g, profile, b, bit)[1], b):
        over = profile.mem[x] - profile.budget
        fall += max(0, over) - max(0, over - size)
    return fall


@inner_kernel
def copy_into(g: Flat, profile: Profile, b: int, bit: int) -> None:
    """Let a read of position b come by a copy."""
    use, first = absence(g, profile, b, bit)
    size = g.size[g.reads[g.reads[profile.seq[b]] + bit]]
    for x in range(first, b):
        profile.mem[x] -= size
    profile.mask[b] |= np.int64(1) << bit
    profile.uses.place[use] += COPY - READ
    profile.uses.following[profile.uses.before[use]] = COPY
