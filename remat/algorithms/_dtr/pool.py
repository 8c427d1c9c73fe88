"""The pool of storages that may be evicted, and the search for the one of the smallest score.

The pool is in order: a storage leaves it when it is locked and comes to its end when its last lock goes. Of equal scores
the last one in the pool is evicted, and the search ends at the first score of 0: both as in the public simulator.
"""

from __future__ import annotations

import numpy as np

from remat.algorithms._arrays.jit import inner_kernel, kernel
from remat.algorithms._dtr.classes import class_cost
from remat.algorithms._dtr.program import Flat
from remat.algorithms._dtr.quotient import quotient
from remat.algorithms._dtr.state import (
    ACCESS,
    ACCESSES,
    ANCESTORS,
    BANISH,
    CLASSES,
    CLOCK,
    COUNT,
    CREATED,
    NEIGHBORHOOD,
    NO_COST,
    RANDOM,
    SCORED,
    STAMP,
    TAIL,
    Machine,
    State,
    linked,
)

_NEAR = 4e-15
"""Relative distance within which two quotients of doubles are compared exactly: their own error is below 1e-15."""


@inner_kernel
def enter_pool(s: State, x: int) -> None:
    """Add `x` to the end of the pool, unless it is there."""
    if s.place[x] >= 0:
        return
    if s.now[TAIL] == s.pool.size:
        close_gaps(s)
    s.pool[s.now[TAIL]] = x
    s.place[x] = s.now[TAIL]
    s.now[TAIL] += 1
    s.now[COUNT] += 1


@inner_kernel
def leave_pool(s: State, x: int) -> None:
    """Take `x` out of the pool, if it is there."""
    if s.place[x] >= 0:
        s.pool[s.place[x]] = -1
        s.place[x] = -1
        s.now[COUNT] -= 1


@inner_kernel
def close_gaps(s: State) -> None:
    """Move the pool together, in its order."""
    n = 0
    for i in range(s.now[TAIL]):
        x = s.pool[i]
        if x >= 0:
            s.pool[n] = x
            s.place[x] = n
            n += 1
    s.now[TAIL] = n


@inner_kernel
def neighborhood(g: Flat, s: State, x: int, down: bool) -> tuple[int, int]:
    """Cost of the evicted neighborhood of `x` in one direction, without a cache, and its last access.

    Walked up first, then down with the mark raised by one: what the way up has counted is not counted again.
    """
    near = g.down if down else g.up
    pairs = s.down_edges if down else s.up_edges
    mark = s.now[STAMP]
    total, latest, top = 0, -1, 1
    s.stack[0] = x
    while top > 0:
        top -= 1
        y = s.stack[top]
        s.tally[ACCESSES] += pairs[y]
        for k in range(near.ptr[y], near.ptr[y + 1]):
            if near.since[k] >= s.now[CREATED]:
                break
            z = near.idx[k]
            if s.material[z] or s.mark[z] == mark or not linked(s, y, z):
                continue
            if not down or s.mark[z] != mark - 1:
                total += s.cost[z]
                latest = max(latest, s.access[z])
            s.mark[z] = mark
            s.stack[top] = z
            top += 1
    return total, latest


@inner_kernel
def measure(m: Machine, i: int) -> None:
    """Fill in the numerator and the staleness of the storage at place `i` of the pool."""
    g, s, q = m.g, m.s, m.q
    x = s.pool[i]
    s.tally[SCORED] += 1
    s.tally[ACCESSES] += 1
    number, access = 1, s.access[x]
    if q.cost != NO_COST:
        number = s.cost[x]
    if q.cost == CLASSES:
        number += class_cost(g, s, m.c, x)
    elif q.cost in (ANCESTORS, NEIGHBORHOOD) and q.dealloc != BANISH:
        number += m.r.up_cost[x]
        if q.cost == NEIGHBORHOOD:
            number += m.r.down_cost[x]
    elif q.cost in (ANCESTORS, NEIGHBORHOOD):
        s.now[STAMP] += 2
        cost, latest = neighborhood(g, s, x, False)
        number += cost
        if q.cost == NEIGHBORHOOD:  # there staleness is that of the whole neighborhood
            s.now[STAMP] += 1
            cost, other = neighborhood(g, s, x, True)
            number += cost
            access = max(access, latest, other)
    s.number[i] = number
    s.late[i] = s.now[CLOCK] - access


@inner_kernel
def family_score(m: Machine, i: int) -> float:
    """Score of the storage at place `i`, which was measured: close to it, by doubles."""
    size = m.g.storage_size[m.s.pool[i]] if m.q.size else 1
    late = m.s.late[i] if m.q.staleness else 1
    return m.s.number[i] / (float(size) * float(late)) if size > 0 and late > 0 else np.inf


@inner_kernel
def exact_score(m: Machine, i: int) -> float:
    """The same score, rounded once."""
    size = m.g.storage_size[m.s.pool[i]] if m.q.size else 1
    late = m.s.late[i] if m.q.staleness else 1
    return quotient(m.s.number[i], size, late) if size > 0 and late > 0 else np.inf


@inner_kernel
def least_score(m: Machine) -> int:
    """The storage of the smallest score of the family h'(s, m, c)."""
    s = m.s
    least, end = np.inf, s.now[COUNT]
    for i in range(end):
        measure(m, i)
        value = family_score(m, i)
        s.value[i] = value
        least = min(least, value)
        if value == 0.0:
            end = i + 1
            break
    best, victim = np.inf, -1
    for i in range(end):
        if s.value[i] <= least + abs(least) * _NEAR:
            value = exact_score(m, i)
            if value <= best:
                best, victim = value, i
    return int(s.pool[victim])


@inner_kernel
def least_accessed(m: Machine) -> int:
    """The storage whose last access is the oldest."""
    s = m.s
    victim = 0
    for i in range(s.now[COUNT]):
        if s.access[s.pool[i]] <= s.access[s.pool[victim]]:
            victim = i
    s.tally[SCORED] += s.now[COUNT]
    s.tally[ACCESSES] += s.now[COUNT]
    return int(s.pool[victim])


@inner_kernel
def random_word(s: State) -> int:
    """The next 32 bits of the Mersenne Twister, as CPython draws them."""
    r = s.random
    if r[624] >= 624:
        for k in range(624):
            y = (r[k] & 0x80000000) | (r[(k + 1) % 624] & 0x7FFFFFFF)
            r[k] = r[(k + 397) % 624] ^ (y >> 1) ^ (0x9908B0DF if y & 1 else 0)
        r[624] = 0
    y = r[r[624]]
    r[624] += 1
    y ^= y >> 11
    y ^= (y << 7) & 0x9D2C5680
    y ^= (y << 15) & 0xEFC60000
    return int(y ^ (y >> 18))


@inner_kernel
def random_storage(s: State) -> int:
    """A storage of the pool by chance: CPython's `randrange`."""
    s.tally[SCORED] += 1
    s.tally[ACCESSES] += 1
    bits = 0
    while s.now[COUNT] >> bits > 0:
        bits += 1
    i = random_word(s) >> (32 - bits)
    while i >= s.now[COUNT]:
        i = random_word(s) >> (32 - bits)
    return int(s.pool[i])


@inner_kernel
def find_victim(m: Machine) -> int:
    """The storage to evict; the pool is not empty."""
    if m.s.now[TAIL] != m.s.now[COUNT]:
        close_gaps(m.s)
    if m.q.kind == RANDOM:
        return random_storage(m.s)
    if m.q.kind == ACCESS:
        return least_accessed(m)
    return least_score(m)


@kernel
def measure_pool(m: Machine) -> int:
    """Measure every storage of the pool for a score outside; returns how many there are."""
    if m.s.now[TAIL] != m.s.now[COUNT]:
        close_gaps(m.s)
    for i in range(m.s.now[COUNT]):
        measure(m, i)
    return int(m.s.now[COUNT])
