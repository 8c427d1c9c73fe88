"""Evicted neighborhoods, cached for each resident storage as in appendix C.5 of the paper: ancestors and descendants separately.

The cache follows the public simulator step by step: an evicted storage is added to the neighborhoods at whose edge it was;
a recomputed one is walked again, and so are those that it now separates. Between these updates the cost of a neighborhood
can be outdated (an alias was added to an evicted storage), and a storage reached in both directions counts twice. Accesses
count the (tensor, neighbor) pairs of each walk and the storages added.
"""

from __future__ import annotations

import numpy as np

from remat.algorithms._arrays.jit import inner_kernel
from remat.algorithms._dtr.program import Flat
from remat.algorithms._dtr.state import DOWN, DOWN_EDGE, UP, UP_EDGE, State

_BIT = np.uint64(1)
_ZERO = np.uint64(0)


@inner_kernel
def lowest(word: np.uint64) -> int:
    """Index of the lowest set bit of a word that is not 0."""
    place, w = 0, word
    if w & np.uint64(0xFFFFFFFF) == _ZERO:
        place += 32
        w >>= np.uint64(32)
    while w & np.uint64(0xFF) == _ZERO:
        place += 8
        w >>= np.uint64(8)
    while w & _BIT == _ZERO:
        place += 1
        w >>= _BIT
    return place


@inner_kernel
def walk(g: Flat, s: State, x: int, down: bool) -> None:
    """Recompute the neighborhood of the resident storage `x` in one direction."""
    slot = s.storages[x].slot
    inside = s.regions[DOWN if down else UP, slot]
    edge = s.regions[DOWN_EDGE if down else UP_EDGE, slot]
    for w in range(inside.size):
        inside[w] = _ZERO
        edge[w] = _ZERO
    s.now[0].stamp += 1
    stamp, created = s.now[0].stamp, s.now[0].created
    near = g.down if down else g.up
    stack, storages = s.stack, s.storages
    total, visits, top = 0, 0, 1
    stack[0] = x
    storages[x].mark = stamp
    while top > 0:
        top -= 1
        y = stack[top]
        visits += storages[y].down_pairs if down else storages[y].up_pairs
        begin = g.storages[y].down if down else g.storages[y].up
        end = g.storages[y + 1].down if down else g.storages[y + 1].up
        for k in range(begin, end):
            if near[k].since >= created:
                break
            z = near[k].storage
            if storages[z].mark == stamp:
                continue
            storages[z].mark = stamp
            bit = _BIT << np.uint64(z & 63)
            if storages[z].material:
                edge[z >> 6] |= bit
            else:
                inside[z >> 6] |= bit
                total += storages[z].cost
                stack[top] = z
                top += 1
    s.now[0].accesses += visits
    if down:
        storages[x].down_cost = total
    else:
        storages[x].up_cost = total


@inner_kernel
def absorb(g: Flat, s: State, x: int, gone: int, down: bool) -> None:
    """`gone` was evicted at the edge of `x`: add it and its neighborhood to the neighborhood of `x`."""
    slot, other = s.storages[x].slot, s.storages[gone].slot
    inside, taken = s.regions[DOWN if down else UP, slot], s.regions[DOWN if down else UP, other]
    edge, beyond = s.regions[DOWN_EDGE if down else UP_EDGE, slot], s.regions[DOWN_EDGE if down else UP_EDGE, other]
    bit = _BIT << np.uint64(gone & 63)
    if edge[gone >> 6] & bit == _ZERO:  # an alias operator made them neighbors after the last walk
        walk(g, s, x, down)
        return
    total, visits = s.storages[gone].cost, 1
    edge[gone >> 6] &= ~bit
    for w in range(inside.size):
        edge[w] |= beyond[w]
        fresh = taken[w] & ~inside[w]
        inside[w] |= fresh
        while fresh != _ZERO:
            y = (w << 6) + lowest(fresh)
            fresh &= fresh - _BIT
            if y != gone:
                total += s.storages[y].cost
                visits += 1
    inside[gone >> 6] |= bit
    s.now[0].accesses += visits
    if down:
        s.storages[x].down_cost += total
    else:
        s.storages[x].up_cost += total


@inner_kernel
def leave_memory(g: Flat, s: State, x: int) -> None:
    """`x` was evicted: add it to the neighborhoods of the resident storages at its edges."""
    slot = s.storages[x].slot
    for side in range(2):
        edge = s.regions[UP_EDGE if side == 0 else DOWN_EDGE, slot]
        for w in range(edge.size):
            bits = edge[w]
            while bits != _ZERO:
                y = (w << 6) + lowest(bits)
                bits &= bits - _BIT
                if y == x and side == 0:  # on a cycle through aliases it is at its own edge, and is added to itself
                    s.now[0].accesses += 1
                    s.regions[DOWN_EDGE, slot, x >> 6] &= ~(_BIT << np.uint64(x & 63))
                if s.storages[y].material:
                    absorb(g, s, y, x, side == 0)
    s.storages[x].down_cost = 0
    s.storages[x].up_cost = 0
    s.storages[x].slot = -1
    s.now[0].slots -= 1
    s.free[s.now[0].slots] = slot


@inner_kernel
def come_back(g: Flat, s: State, arrivals: int) -> None:
    """The first `arrivals` storages of `s.arrived` were computed: walk them and all storages that they now separate."""
    affected = s.affected
    for w in range(affected.shape[1]):
        affected[0, w] = _ZERO
        affected[1, w] = _ZERO
    for i in range(arrivals):
        x = s.arrived[i]
        slot = s.free[s.now[0].slots]
        s.now[0].slots += 1
        s.storages[x].slot = slot
        walk(g, s, x, True)
        walk(g, s, x, False)
        for w in range(affected.shape[1]):
            affected[0, w] |= s.regions[UP_EDGE, slot, w]
            affected[1, w] |= s.regions[DOWN_EDGE, slot, w]
    for side in range(2):
        for w in range(affected.shape[1]):
            bits = affected[side, w]
            while bits != _ZERO:
                y = (w << 6) + lowest(bits)
                bits &= bits - _BIT
                walk(g, s, y, side == 0)
