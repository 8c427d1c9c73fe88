"""Evicted neighborhoods, cached for each resident storage as the paper's appendix C.5 has it: ancestors and descendants apart.

The cache follows the public simulator step by step: a storage that is evicted is taken in by those at whose edge it
stood; one that comes back is walked afresh, and so are those that it now separates. In between the cost of a
neighborhood can be older than its storages (an alias was added to an evicted one), and a storage reached both ways
counts twice. Accesses count the (tensor, neighbor) pairs of each walk and the storages taken in.
"""

from __future__ import annotations

import numpy as np

from remat.algorithms._arrays.jit import inner_kernel
from remat.algorithms._dtr.program import Flat
from remat.algorithms._dtr.state import ACCESSES, CREATED, SLOTS, STAMP, Regions, State, Words

_ONE = np.uint64(1)
_ZERO = np.uint64(0)


@inner_kernel
def has(bits: Words, slot: int, x: int) -> bool:
    """Whether `x` is in a set."""
    return (bits[slot, x >> 6] >> np.uint64(x & 63)) & _ONE != _ZERO


@inner_kernel
def put(bits: Words, slot: int, x: int) -> None:
    """Add `x` to a set."""
    bits[slot, x >> 6] |= _ONE << np.uint64(x & 63)


@inner_kernel
def lowest(word: np.uint64) -> int:
    """Place of the lowest bit that is set."""
    place, w = 0, word
    if w & np.uint64(0xFFFFFFFF) == _ZERO:
        place += 32
        w >>= np.uint64(32)
    while w & np.uint64(0xFF) == _ZERO:
        place += 8
        w >>= np.uint64(8)
    while w & _ONE == _ZERO:
        place += 1
        w >>= _ONE
    return place


@inner_kernel
def walk(g: Flat, s: State, r: Regions, x: int, down: bool) -> None:
    """Find the neighborhood of the resident storage `x` in one direction afresh."""
    slot = r.slot[x]
    inside, edge = (r.down, r.down_edge) if down else (r.up, r.up_edge)
    near = g.down if down else g.up
    pairs = s.down_edges if down else s.up_edges
    for w in range(inside.shape[1]):
        inside[slot, w] = _ZERO
        edge[slot, w] = _ZERO
    total, visits, top = 0, 0, 1
    created = s.now[CREATED]
    s.now[STAMP] += 1
    stamp = s.now[STAMP]
    s.stack[0] = x
    while top > 0:
        top -= 1
        y = s.stack[top]
        visits += pairs[y]
        for k in range(near.ptr[y], near.ptr[y + 1]):
            if near.since[k] >= created:
                break
            z = near.idx[k]
            if s.mark[z] == stamp or z == x:
                continue
            s.mark[z] = stamp
            if s.material[z]:
                put(edge, slot, z)
            else:
                total += s.cost[z]
                put(inside, slot, z)
                s.stack[top] = z
                top += 1
    s.tally[ACCESSES] += visits
    (r.down_cost if down else r.up_cost)[x] = total


@inner_kernel
def absorb(g: Flat, s: State, r: Regions, x: int, gone: int, down: bool) -> None:
    """`gone` was evicted at the edge of `x`: it and its neighborhood are in the neighborhood of `x` now."""
    inside, edge = (r.down, r.down_edge) if down else (r.up, r.up_edge)
    slot, other = r.slot[x], r.slot[gone]
    if not has(edge, slot, gone):  # an alias operator made them neighbors after the last walk
        walk(g, s, r, x, down)
        return
    total, visits = s.cost[gone], 1
    edge[slot, gone >> 6] &= ~(_ONE << np.uint64(gone & 63))
    for w in range(inside.shape[1]):
        edge[slot, w] |= edge[other, w]
        fresh = inside[other, w] & ~inside[slot, w]
        inside[slot, w] |= fresh
        while fresh != _ZERO:
            place = lowest(fresh)
            fresh &= fresh - _ONE
            y = (w << 6) + place
            if y != gone:
                total += s.cost[y]
                visits += 1
    put(inside, slot, gone)
    s.tally[ACCESSES] += visits
    (r.down_cost if down else r.up_cost)[x] += total


@inner_kernel
def leave_memory(g: Flat, s: State, r: Regions, x: int) -> None:
    """`x` was evicted: the resident storages at the edges of its neighborhoods take it in."""
    slot = r.slot[x]
    for w in range(r.up_edge.shape[1]):
        bits = r.up_edge[slot, w]
        while bits != _ZERO:
            y = (w << 6) + lowest(bits)
            bits &= bits - _ONE
            if s.material[y]:
                absorb(g, s, r, y, x, True)
        bits = r.down_edge[slot, w]
        while bits != _ZERO:
            y = (w << 6) + lowest(bits)
            bits &= bits - _ONE
            if s.material[y]:
                absorb(g, s, r, y, x, False)
    r.down_cost[x] = 0
    r.up_cost[x] = 0
    s.now[SLOTS] -= 1
    r.free[s.now[SLOTS]] = slot
    r.slot[x] = -1


@inner_kernel
def enter_memory(s: State, r: Regions, x: int) -> None:
    """Give `x` a slot if it has none."""
    if r.slot[x] < 0:
        r.slot[x] = r.free[s.now[SLOTS]]
        s.now[SLOTS] += 1


@inner_kernel
def come_back(g: Flat, s: State, r: Regions, arrivals: int) -> None:
    """The first `arrivals` storages of `s.arrived` were computed: walk them and all that they now stand between."""
    for w in range(r.affected.shape[1]):
        r.affected[0, w] = _ZERO
        r.affected[1, w] = _ZERO
    for i in range(arrivals):
        x = s.arrived[i]
        enter_memory(s, r, x)
        walk(g, s, r, x, True)
        walk(g, s, r, x, False)
        for w in range(r.affected.shape[1]):
            r.affected[0, w] |= r.up_edge[r.slot[x], w]
            r.affected[1, w] |= r.down_edge[r.slot[x], w]
    for side in range(2):
        for w in range(r.affected.shape[1]):
            bits = r.affected[side, w]
            while bits != _ZERO:
                y = (w << 6) + lowest(bits)
                bits &= bits - _ONE
                walk(g, s, r, y, side == 0)
