"""A* over schedules with copies: states are moments at which a run or a copy has ended.

Copies may start at any time here, which the rules allow only where a step issues them: what this search proves holds for every
schedule of the rules, and its fastest schedule is one of them wherever the validator confirms it at the same time.

In some fastest schedule (1) each run and each copy starts when another one ends, or at 0: the first that does not can start
earlier, since between two ends nothing changes; (2) cells are dropped only where a start needs their bytes, and no more of them
than it needs, since a resident cell is never a disadvantage; (3) nothing is made or copied that exists already, or from which
nothing follows that is still wanted. So a state has three decisions, each of which may be to wait: which cell to carry to the
host, what to run, which cell to fetch. One state dominates another if it is no later, with the same nodes run, at least
the same cells on the device and on the host, and nothing under way that the other has not.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from remat.algorithms._arrays.graph_arrays import Ints, Longs
from remat.algorithms._arrays.jit import inner_kernel, kernel
from remat.algorithms._whole.timed_estimate import (
    ARRIVED,
    BACK,
    BACK_END,
    FETCHED,
    FIELDS,
    HERE,
    HOST,
    LEAST,
    NEVER,
    NEXT,
    NODE,
    NODE_END,
    NOW,
    ORIGIN,
    OUT,
    OUT_END,
    RAN,
    STAGE,
    WHOLE,
    bit_of,
    least_time,
    of_run,
    wanted_cells,
)
from remat.algorithms._whole.timed_tables import Timed

CARRY, COMPUTE, FETCH, DOMINATED = range(4)
"""Stages of a state: the decision that comes next; it needs none, since a better one is there."""

SETS = 1024
"""Ways to drop cells for one start that are looked at, at most."""

GOAL, EMPTY, FULL, GOES_ON, TOO_WIDE = range(5)
"""How a call of `explore` ends: at the fastest schedule, without any, with no room for more states, after so many steps, or at a
start with too many ways to drop cells."""


class Queue(NamedTuple):
    """All states, and a heap of those to go on from.

    Attributes:
        states: a row each. keys: of the heap: bounds, and of equal ones what is further from the end. entries: their states.
        heads: first state of each list of states that are compared.
        counts: states, entries of the heap, states that were gone on from.
        state, work, sets: of the kernels.
    """

    states: Longs
    keys: Longs
    entries: Ints
    heads: Ints
    counts: Longs
    state: Longs
    work: Longs
    sets: Longs


def empty_queue(t: Timed, room: int) -> Queue:
    """A queue with the first state, with room for so many."""
    states = np.zeros((room, FIELDS), np.int64)
    states[0, [NODE, OUT, BACK, WHOLE, ARRIVED, ORIGIN, FETCHED, NEXT]] = -1
    return Queue(
        states=states,
        keys=np.zeros((room, 2), np.int64),
        entries=np.zeros(room, np.int32),
        heads=np.full(1 << 20, -1, np.int32),
        counts=np.array([1, 1, 0], np.int64),
        state=np.zeros(FIELDS, np.int64),
        work=np.zeros(3 * len(t.time), np.int64),
        sets=np.zeros(SETS, np.int64),
    )


def larger(queue: Queue) -> Queue:
    """The same queue with room for twice as many states."""
    room = len(queue.entries)
    return queue._replace(
        states=np.concatenate([queue.states, np.zeros((room, FIELDS), np.int64)]),
        keys=np.concatenate([queue.keys, np.zeros((room, 2), np.int64)]),
        entries=np.concatenate([queue.entries, np.zeros(room, np.int32)]),
    )


@kernel
def explore(t: Timed, q: Queue, steps: int) -> tuple[int, int]:
    """Go on from so many states, the smallest bounds first: how it ended, and the state it ended at (-1: none)."""
    followed = 1 + SETS * max(t.time.size, t.size.size)  # by so many states, at most
    for _ in range(steps):
        if q.counts[1] == 0:
            return EMPTY, -1
        if q.counts[0] + followed > q.entries.size:
            return FULL, -1
        at = _pop(q)
        row = q.states[at]
        if row[STAGE] == DOMINATED:
            continue
        q.counts[2] += 1
        if row[STAGE] == CARRY:
            if _finished(t, row):
                return GOAL, at
            _carry(t, q, at)
        elif row[STAGE] == COMPUTE:
            if not _compute(t, q, at):
                return TOO_WIDE, at
        elif not _fetch(t, q, at):
            return TOO_WIDE, at
    return GOES_ON, -1


@inner_kernel
def _finished(t: Timed, row: Longs) -> bool:
    idle = row[NODE] < 0 and row[OUT] < 0 and row[BACK] < 0
    return bool(idle and t.required & ~row[RAN] == 0 and t.kept & ~row[HERE] == 0)


# -- decisions -------------------------------------------------------------------------------------------------------------


@inner_kernel
def _begin(q: Queue, at: int, stage: int) -> None:
    """The working state: that of a row, at a stage."""
    s = q.state
    for field in range(FIELDS):
        s[field] = q.states[at, field]
    s[ORIGIN], s[STAGE], s[FETCHED] = at, stage, -1


@inner_kernel
def _carry(t: Timed, q: Queue, at: int) -> None:
    row = q.states[at]
    s = q.state
    _begin(q, at, COMPUTE)
    _push(t, q, s, False)
    if row[OUT] >= 0:
        return
    allowed = row[HERE] & t.movable & ~row[HOST] & ~of_run(t.needs, row) & wanted_cells(t, row)
    for c in range(t.size.size):
        if allowed >> c & 1:
            _begin(q, at, COMPUTE)
            s[OUT], s[OUT_END] = c, s[NOW] + t.out[c]
            s[HERE] &= ~(1 << c)
            _push(t, q, s, True)


@inner_kernel
def _compute(t: Timed, q: Queue, at: int) -> bool:
    row = q.states[at]
    s = q.state
    _begin(q, at, FETCH)
    _push(t, q, s, False)
    if row[NODE] >= 0:
        return True
    missing = (wanted_cells(t, row) | t.kept) & ~(row[HERE] | bit_of(row[BACK]))
    for v in range(t.time.size):
        if not _may_run(t, row, v, missing):
            continue
        left = row[HERE] & ~t.clears[v]
        over = _live(t, row, left) + t.charge[v] - t.budget
        count = _drops(t, q, left & ~t.kept & ~t.needs[v], over)
        if count < 0:
            return False
        for k in range(count):
            _begin(q, at, FETCH)
            s[HERE] = left & ~q.sets[k]
            s[NODE], s[NODE_END] = v, s[NOW] + t.time[v]
            s[RAN] |= 1 << v
            s[HOST] &= ~t.writes[v]
            _push(t, q, s, True)
    return True


@inner_kernel
def _may_run(t: Timed, row: Longs, v: int, missing: int) -> bool:
    """Whether the rules let a node run now, for the first time or for cells that are missing, apart from the budget."""
    if not row[RAN] >> v & 1:
        if not t.required >> v & 1 or t.earlier[v] & ~row[RAN]:
            return False
    elif not t.again[v] or t.makes[v] & missing == 0:
        return False
    under_way = bit_of(row[OUT]) | bit_of(row[BACK])
    return bool(t.needs[v] & ~row[HERE] | t.writes[v] & under_way | t.clears[v] & t.kept & row[HERE] == 0)


@inner_kernel
def _fetch(t: Timed, q: Queue, at: int) -> bool:
    row = q.states[at]
    s = q.state
    _begin(q, at, CARRY)
    _end_next(t, q, s)
    if row[BACK] >= 0:
        return True
    allowed = row[HOST] & ~row[HERE] & ~of_run(t.writes, row) & wanted_cells(t, row)
    droppable = row[HERE] & ~t.kept & ~of_run(t.needs, row)
    if t.issued and row[NODE] >= 0:
        droppable &= ~row[HOST]  # what came during the run cannot be dropped before it
        if row[ARRIVED] < 0:
            allowed &= bit_of(row[WHOLE])
    for c in range(t.size.size):
        if not allowed >> c & 1:
            continue
        over = _live(t, row, row[HERE]) + t.size[c] + of_run(t.charge, row) - t.budget
        count = _drops(t, q, droppable, over)
        if count < 0:
            return False
        for k in range(count):
            _begin(q, at, CARRY)
            s[HERE] &= ~q.sets[k]
            s[FETCHED], s[BACK], s[BACK_END] = c, c, s[NOW] + t.back[c]
            _end_next(t, q, s)
    return True


@inner_kernel
def _live(t: Timed, row: Longs, here: int) -> int:
    """Bytes of resident cells and of those under way."""
    cells, total = here | bit_of(row[OUT]) | bit_of(row[BACK]), 0
    for c in range(t.size.size):
        total += t.size[c] if cells >> c & 1 else 0
    return total


@inner_kernel
def _drops(t: Timed, q: Queue, droppable: int, over: int) -> int:
    """The smallest sets of cells whose bytes are at least `over`, in `q.sets`; how many, -1: more than fit there."""
    if over <= 0:
        q.sets[0] = 0
        return 1
    rest = 0
    for c in range(t.size.size):
        rest += t.size[c] if droppable >> c & 1 else 0
    count, i, total, chosen = 0, 0, 0, 0
    while True:
        if total >= over or total + rest < over:
            if total >= over:
                if count == q.sets.size:
                    return -1
                q.sets[count] = chosen
                count += 1
            # back to the last cell that was taken, which is skipped now
            i -= 1
            while i >= 0 and not chosen >> t.large[i] & 1:
                rest += t.size[t.large[i]] if droppable >> t.large[i] & 1 else 0
                i -= 1
            if i < 0:
                return count
            chosen &= ~(1 << t.large[i])
            total -= t.size[t.large[i]]
            i += 1
        else:
            c = t.large[i]
            if droppable >> c & 1:
                chosen |= 1 << c
                total += t.size[c]
                rest -= t.size[c]
            i += 1


# -- states ----------------------------------------------------------------------------------------------------------------


@inner_kernel
def _end_next(t: Timed, q: Queue, s: Longs) -> None:
    """Let the next run or copy end, and keep the state that follows unless another dominates it."""
    when = min(_end(s, NODE), _end(s, OUT), _end(s, BACK))
    if when == NEVER:
        return
    s[NOW], s[WHOLE], s[ARRIVED] = when, -1, -1
    if _end(s, NODE) == when:
        s[HERE] = (s[HERE] & ~t.takes[s[NODE]]) | t.makes[s[NODE]]
        s[NODE], s[NODE_END] = -1, 0
    if _end(s, OUT) == when:
        s[HOST] |= 1 << s[OUT]
        s[WHOLE], s[OUT], s[OUT_END] = s[OUT], -1, 0
    if _end(s, BACK) == when:
        s[HERE] |= 1 << s[BACK]
        s[ARRIVED], s[BACK], s[BACK_END] = s[BACK], -1, 0
    wanted = wanted_cells(t, s) | t.kept | of_run(t.needs, s)
    s[HERE] &= wanted
    s[HOST] &= wanted
    _push(t, q, s, True)


@inner_kernel
def _end(s: Longs, what: int) -> int:
    """When what is in a column of the working state ends, as the next column says; `NEVER`: it is empty [ns]."""
    return int(s[what + 1]) if s[what] >= 0 else NEVER


@inner_kernel
def _push(t: Timed, q: Queue, s: Longs, changed: bool) -> None:
    """Add the working state to the queue."""
    if changed:
        least = least_time(t, s, q.work)
        if least >= NEVER:
            return
        s[LEAST] = max(s[LEAST], least)
    at = q.counts[0]
    if s[STAGE] == CARRY:
        if _is_dominated(q, s):
            return
        place = _place(q, s, s[OUT], s[BACK])
        s[NEXT] = q.heads[place]
        q.heads[place] = at
    for field in range(FIELDS):
        q.states[at, field] = s[field]
    q.counts[0] += 1
    _insert(q, s[LEAST], -3 * _bits(s[RAN]) - s[STAGE], at)


@inner_kernel
def _bits(mask: int) -> int:
    count = 0
    while mask:
        mask &= mask - 1
        count += 1
    return count


@inner_kernel
def _place(q: Queue, s: Longs, out: int, back: int) -> int:
    """The list of the states that have run the same, run the same, and copy these cells."""
    mixed = s[RAN] * 0x5851F42D4C957F2D + (s[NODE] * 64 + out) * 64 + back
    mixed ^= mixed >> 29
    mixed *= 0x1D8E4E27C47D124F
    return int((mixed >> 33) & (q.heads.size - 1))


@inner_kernel
def _is_dominated(q: Queue, s: Longs) -> bool:
    """Whether a state dominates this one; those with the same copies under way that this one dominates are taken out."""
    if s[OUT] >= 0 and _is_beaten(q, s, -1, s[BACK]):
        return True
    if s[BACK] >= 0 and (_is_beaten(q, s, s[OUT], -1) or (s[OUT] >= 0 and _is_beaten(q, s, -1, -1))):
        return True
    return _is_beaten(q, s, s[OUT], s[BACK])


@inner_kernel
def _is_beaten(q: Queue, s: Longs, out: int, back: int) -> bool:
    """Whether a state with these copies under way dominates this one; those that this one dominates are taken out."""
    place, last = _place(q, s, out, back), -1
    same = s[OUT] == out and s[BACK] == back
    other = q.heads[place]
    while other >= 0:
        row = q.states[other]
        following = row[NEXT]
        if row[RAN] == s[RAN] and row[NODE] == s[NODE] and row[OUT] == out and row[BACK] == back:
            if _dominates(row, s):
                return True
            if same and _dominates(s, row):
                row[STAGE] = DOMINATED
        if row[STAGE] != DOMINATED:
            last = other
        elif last < 0:
            q.heads[place] = following
        else:
            q.states[last, NEXT] = following
        other = following
    return False


@inner_kernel
def _dominates(a: Longs, b: Longs) -> bool:
    if a[NOW] > b[NOW] or a[NODE_END] > b[NODE_END]:
        return False
    here, host = b[HERE], b[HOST]
    if a[BACK] != b[BACK]:
        here |= bit_of(b[BACK])
    if a[OUT] != b[OUT]:
        host |= bit_of(b[OUT])
    if here & ~a[HERE] or host & ~a[HOST]:
        return False
    return _no_later(a, b, BACK) and _no_later(a, b, OUT)


@inner_kernel
def _no_later(a: Longs, b: Longs, lane: int) -> bool:
    """Whether a lane is idle in state a, or makes the copy of state b and ends no later."""
    return bool(a[lane] < 0 or (a[lane] == b[lane] and a[lane + 1] <= b[lane + 1]))


@inner_kernel
def _insert(q: Queue, bound: int, rank: int, entry: int) -> None:
    i = q.counts[1]
    q.counts[1] += 1
    while i > 0 and _comes_first(bound, rank, q, (i - 1) >> 1):
        _move(q, (i - 1) >> 1, i)
        i = (i - 1) >> 1
    q.keys[i, 0], q.keys[i, 1], q.entries[i] = bound, rank, entry


@inner_kernel
def _pop(q: Queue) -> int:
    top = q.entries[0]
    q.counts[1] -= 1
    n = q.counts[1]
    bound, rank, entry, i = q.keys[n, 0], q.keys[n, 1], q.entries[n], 0
    while 2 * i + 1 < n:
        child = 2 * i + 1
        if child + 1 < n and _comes_first(q.keys[child + 1, 0], q.keys[child + 1, 1], q, child):
            child += 1
        if not _comes_first(q.keys[child, 0], q.keys[child, 1], q, n):
            break
        _move(q, child, i)
        i = child
    q.keys[i, 0], q.keys[i, 1], q.entries[i] = bound, rank, entry
    return int(top)


@inner_kernel
def _comes_first(bound: int, rank: int, q: Queue, i: int) -> bool:
    return bool(bound < q.keys[i, 0] or (bound == q.keys[i, 0] and rank < q.keys[i, 1]))


@inner_kernel
def _move(q: Queue, i: int, j: int) -> None:
    q.keys[j, 0], q.keys[j, 1], q.entries[j] = q.keys[i, 0], q.keys[i, 1], q.entries[i]
