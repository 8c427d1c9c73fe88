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
    ANCESTORS,
    BANISH,
    CLASSES,
    LONELY,
    NEIGHBORHOOD,
    NO_COST,
    RANDOM,
    Machine,
    State,
    linked,
)

_NEAR = 4e-15
"""Relative distance within which two quotients of doubles are compared exactly: their own error is below 1e-15."""


@inner_kernel
def enter_pool(s: State, x: int) -> None:
    """Add `x` to the end of the pool, unless it is there."""
    if s.storages[x].place >= 0:
        return
    if s.now[0].tail == s.pool.size:
        close_gaps(s)
    s.pool[s.now[0].tail] = x
    s.storages[x].place = s.now[0].tail
    s.now[0].tail += 1
    s.now[0].count += 1


@inner_kernel
def leave_pool(s: State, x: int) -> None:
    """Take `x` out of the pool, if it is there."""
    if s.storages[x].place >= 0:
        s.pool[s.storages[x].place] = -1
        s.storages[x].place = -1
        s.now[0].count -= 1


@inner_kernel
def close_gaps(s: State) -> None:
    """Move the pool together, in its order."""
    n = 0
    for i in range(s.now[0].tail):
        x = s.pool[i]
        if x >= 0:
            if i != n:
                s.pool[n] = x
                s.storages[x].place = n
            n += 1
    s.now[0].tail = n


@inner_kernel
def neighborhood(g: Flat, s: State, x: int, down: bool) -> tuple[int, int]:
    """Cost of the evicted neighborhood of `x` in one direction, without a cache, and its last access.

    Walked up first, then down with the mark raised by one: what the way up has counted is not counted again.
    """
    near = g.down if down else g.up
    mark, created = s.now[0].stamp, s.now[0].created
    total, latest, top = 0, -1, 1
    s.stack[0] = x
    while top > 0:
        top -= 1
        y = s.stack[top]
        s.now[0].accesses += s.storages[y].down_pairs if down else s.storages[y].up_pairs
        begin = g.storages[y].down if down else g.storages[y].up
        end = g.storages[y + 1].down if down else g.storages[y + 1].up
        for k in range(begin, end):
            if near[k].since >= created:
                break
            z = near[k].storage
            if s.storages[z].material or s.storages[z].mark == mark or not linked(s, y, z):
                continue
            if not down or s.storages[z].mark != mark - 1:
                total += s.storages[z].cost
                latest = max(latest, s.storages[z].access)
            s.storages[z].mark = mark
            s.stack[top] = z
            top += 1
    return total, latest


@inner_kernel
def measure_walking(m: Machine, i: int) -> None:
    """Numerator and staleness of the storage at place `i`, its neighborhood found by a walk (banishing)."""
    s = m.s
    x = s.pool[i]
    s.now[0].stamp += 2
    cost, latest = neighborhood(m.g, s, x, False)
    number, access = s.storages[x].cost + cost, s.storages[x].access
    if m.q.cost == NEIGHBORHOOD:  # staleness is that of the whole neighborhood
        s.now[0].stamp += 1
        cost, other = neighborhood(m.g, s, x, True)
        number += cost
        access = max(access, latest, other)
    s.scored[i].number = number
    s.scored[i].late = s.now[0].clock - access


@inner_kernel
def score_pool(m: Machine, outside: bool) -> int:
    """Measure and score the pool, up to the first score of 0 unless it is scored outside; returns how many that are.

    One loop over local names: a function called for each storage would be handed all tables each time.
    """
    g, s, q = m.g, m.s, m.q
    pool, storages, nodes, scored = s.pool, s.storages, s.nodes, s.scored
    clock, end = s.now[0].clock, s.now[0].count
    walking = q.dealloc == BANISH and q.cost in (ANCESTORS, NEIGHBORHOOD)
    visits = 0
    for i in range(end):
        x = storages[pool[i]]
        number = x.cost if q.cost != NO_COST else 1
        if walking:
            measure_walking(m, i)
            number = scored[i].number
        elif q.cost == CLASSES:
            if x.cached == LONELY:
                visits += x.visits
            elif x.cached >= 0 and nodes[x.cached].parent < 0:  # its class has not been joined to another since
                visits += x.visits
                number += nodes[x.cached].value
            else:
                number += class_cost(g, s, pool[i])
        elif q.cost == NEIGHBORHOOD:
            number += x.up_cost + x.down_cost
        elif q.cost == ANCESTORS:
            number += x.up_cost
        if not walking:
            scored[i].number = number
            scored[i].late = clock - x.access
        size = x.size if q.size else 1
        late = scored[i].late if q.staleness else 1
        scored[i].value = number / (float(size) * float(late)) if size > 0 and late > 0 else np.inf
        if scored[i].value == 0.0 and not outside:
            end = i + 1
            break
    s.now[0].scored += end
    s.now[0].accesses += end + visits
    return int(end)


@inner_kernel
def least_score(m: Machine) -> int:
    """The storage of the smallest score of the family h'(s, m, c)."""
    s, q = m.s, m.q
    end = score_pool(m, False)
    scored = s.scored
    least = np.inf
    for i in range(end):
        least = min(least, scored[i].value)
    best, victim, near = np.inf, 0, least + abs(least) * _NEAR
    for i in range(end):
        if scored[i].value <= near or near == np.inf:
            size = s.storages[s.pool[i]].size if q.size else 1
            late = scored[i].late if q.staleness else 1
            value = quotient(scored[i].number, size, late) if size > 0 and late > 0 else np.inf
            if value <= best:
                best, victim = value, i
    return int(s.pool[victim])


@inner_kernel
def least_accessed(m: Machine) -> int:
    """The storage whose last access is the oldest."""
    s = m.s
    victim = s.pool[0]
    for i in range(s.now[0].count):
        if s.storages[s.pool[i]].access <= s.storages[victim].access:
            victim = s.pool[i]
    s.now[0].scored += s.now[0].count
    s.now[0].accesses += s.now[0].count
    return int(victim)


@inner_kernel
def random_word(r: np.ndarray) -> int:
    """The next 32 bits of the Mersenne Twister, as CPython draws them."""
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
    s.now[0].scored += 1
    s.now[0].accesses += 1
    bits = 0
    while s.now[0].count >> bits > 0:
        bits += 1
    i = random_word(s.random) >> (32 - bits)
    while i >= s.now[0].count:
        i = random_word(s.random) >> (32 - bits)
    return int(s.pool[i])


@inner_kernel
def find_victim(m: Machine) -> int:
    """The storage to evict; the pool is not empty."""
    if m.s.now[0].tail != m.s.now[0].count:
        close_gaps(m.s)
    if m.q.kind == RANDOM:
        return random_storage(m.s)
    if m.q.kind == ACCESS:
        return least_accessed(m)
    return least_score(m)


@kernel
def measure_pool(m: Machine) -> int:
    """Measure every storage of the pool for a score outside; returns how many there are."""
    if m.s.now[0].tail != m.s.now[0].count:
        close_gaps(m.s)
    return score_pool(m, True)
