"""The pool of evictable storages, and the search for the smallest score.

The pool is ordered: a storage leaves it when it is locked and is appended when its last lock is released. Of equal scores
the last in the pool is evicted, and the search ends at the first score of 0, both as in the public simulator.
"""

from __future__ import annotations

import numpy as np

from remat.algorithms._arrays.jit import inner_kernel, kernel
from remat.algorithms._dtr.classes import class_cost
from remat.algorithms._dtr.program import Flat
from remat.algorithms._dtr.rounding import quotient
from remat.algorithms._dtr.state import (
    ACCESS,
    ANCESTORS,
    BANISH,
    CLASSES,
    DIRTY,
    GAP,
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
    """Append `x` to the pool, unless it is in it."""
    if s.storages[x].place >= 0:
        return
    if s.now[0].tail == s.pool.size:
        close_gaps(s)
    place = s.now[0].tail
    s.pool[place] = x
    s.places[place].part = s.storages[x].part
    s.storages[x].place = place
    s.now[0].tail += 1
    s.now[0].count += 1
    refresh(s, x)


@inner_kernel
def refresh(s: State, x: int) -> None:
    """Cost, access or neighbors of `x` have changed: if it is in the pool, update its place."""
    place = s.storages[x].place
    if place >= 0:
        s.places[place].cost = s.storages[x].cost
        s.places[place].access = s.storages[x].access
        s.places[place].cached = DIRTY


@inner_kernel
def leave_pool(s: State, x: int) -> None:
    """Remove `x` from the pool, if it is in it."""
    place = s.storages[x].place
    if place >= 0:
        s.pool[place] = -1
        s.places[place].cached = GAP
        s.storages[x].place = -1
        s.now[0].count -= 1


@inner_kernel
def close_gaps(s: State) -> None:
    """Compact the pool, keeping its order."""
    n = 0
    for i in range(s.now[0].tail):
        x = s.pool[i]
        if x >= 0:
            if i != n:
                s.pool[n] = x
                s.places[n] = s.places[i]
                s.storages[x].place = n
            n += 1
    s.now[0].tail = n


@inner_kernel
def neighborhood(g: Flat, s: State, x: int, down: bool) -> tuple[int, int]:
    """Cost of the evicted neighborhood of `x` in one direction, without a cache, and its last access.

    Walked upwards first, then downwards with the mark raised by one, so that no storage is counted twice.
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
def walked(m: Machine, x: int) -> tuple[int, int]:
    """Numerator and last access of the storage `x`, its neighborhood determined by a walk (banishing)."""
    s = m.s
    s.now[0].stamp += 2
    cost, latest = neighborhood(m.g, s, x, False)
    number, access = s.storages[x].cost + cost, s.storages[x].access
    if m.q.cost == NEIGHBORHOOD:  # the last access is that of the whole neighborhood
        s.now[0].stamp += 1
        cost, other = neighborhood(m.g, s, x, True)
        number += cost
        access = max(access, latest, other)
    return number, access


@inner_kernel
def measure(m: Machine, outside: bool) -> tuple[int, int]:
    """Measure the pool, up to the first score of 0 unless an outside score is used; candidates for the minimum are in `measured`.

    One loop over local names: numba would pass all tables to a function called for each storage.

    Returns:
        The number of records in `measured`, and the number of storages scored.
    """
    g, s, q = m.g, m.s, m.q
    pool, places, storages, nodes, measured = s.pool, s.places, s.storages, s.nodes, s.measured
    walking = q.dealloc == BANISH and q.cost in (ANCESTORS, NEIGHBORHOOD)
    regions = not walking and q.cost in (ANCESTORS, NEIGHBORHOOD)
    clock, visits, scored, kept, near = s.now[0].clock, 0, 0, 0, np.inf
    for i in range(s.now[0].tail):
        place = places[i]
        cached = place.cached
        if cached == GAP:
            continue
        number, access = place.cost, place.access
        if q.cost == CLASSES:
            other = place.other
            if cached == LONELY:
                visits += place.visits
            elif cached >= 0 and nodes[cached].parent < 0 and (other < 0 or nodes[other].parent < 0):
                visits += place.visits  # its classes have not been joined to others since
                number += nodes[cached].value
                if other >= 0:
                    number += nodes[other].value
            else:
                number += class_cost(g, s, pool[i])
        elif q.cost == NO_COST:
            number = 1
        elif walking:
            number, access = walked(m, pool[i])
        elif regions:
            number += storages[pool[i]].up_cost
            number += storages[pool[i]].down_cost if q.cost == NEIGHBORHOOD else 0
        scored += 1
        late = clock - access
        value = number * place.part / late if q.staleness else number * place.part
        if place.part == np.inf or (q.staleness and late <= 0):
            value = np.inf
        if value <= near or outside:
            near = value + abs(value) * _NEAR if value < near else near
            measured[kept].place, measured[kept].number, measured[kept].late = i, number, late
            kept += 1
            if value == 0.0 and not outside:
                break
    s.now[0].scored += scored
    s.now[0].accesses += scored + visits
    return kept, scored


@inner_kernel
def least_score(m: Machine) -> int:
    """The storage of the smallest score of the family h'(s, m, c)."""
    s, q = m.s, m.q
    kept, _ = measure(m, False)
    best, victim = np.inf, s.pool[s.measured[kept - 1].place]
    for i in range(kept):
        entry = s.measured[i]
        x = s.pool[entry.place]
        size = s.storages[x].size if q.size else 1
        late = entry.late if q.staleness else 1
        value = quotient(entry.number, size, late) if size > 0 and late > 0 else np.inf
        if value <= best:
            best, victim = value, x
    return int(victim)


@inner_kernel
def least_accessed(s: State) -> int:
    """The storage whose last access is the oldest."""
    places, victim, least = s.places, 0, np.iinfo(np.int64).max
    for i in range(s.now[0].tail):
        if places[i].cached != GAP and places[i].access <= least:
            victim, least = i, places[i].access
    s.now[0].scored += s.now[0].count
    s.now[0].accesses += s.now[0].count
    return int(s.pool[victim])


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
    """A random storage of the pool, drawn as CPython's `randrange` does."""
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
    s = m.s
    if s.now[0].tail > s.now[0].count + s.now[0].count // 8 + 64 or (
        m.q.kind == RANDOM and s.now[0].tail > s.now[0].count
    ):
        close_gaps(s)
    if m.q.kind == RANDOM:
        return random_storage(s)
    if m.q.kind == ACCESS:
        return least_accessed(s)
    return least_score(m)


@kernel
def measure_pool(m: Machine) -> int:
    """Measure every storage of the pool for an outside score; returns their number."""
    close_gaps(m.s)
    return measure(m, True)[0]
