"""The exact time of a run sequence with copies: where prefetches are issued, and a replay of rule S-LINK, compiled.

Three passes over the sequence. First, the bytes charged at each run if copies took no time: above the budget, no timing helps.
Second, prefetches are placed in reversed time, where a prefetch is an offload: each is issued as late as no run has to wait for
it, and only where all runs after it have room for its bytes. Third, the replay, in exact integers. Both lanes work in the order
of issue, so the ends of offloads and the starts of prefetches are each sorted in time, and two queues hold all events.

A prefetch's start is fixed when it is issued. If a later run waits for an offload, it may start within the wait, where there is
no room for it: then it is issued after that run instead, and the replay begins again. Only `remat.ir.validate` decides
whether a schedule is valid.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from remat.algorithms._arrays.graph_arrays import Flat, Ints, Longs
from remat.algorithms._arrays.jit import allocating_kernel, inner_kernel
from remat.algorithms._copies.copy_arrays import (
    Copies,
    Lanes,
    Runs,
    away_profile,
    changes,
    list_copies,
    mark_first_runs,
)

NOW, LIVE, OUT_FREE, IN_FREE, FREE_HEAD, FREE_TAIL, TAKE_HEAD, TAKE_TAIL, HOST, HOST_HEAD, HOST_TAIL = range(11)
"""Places in `Play.s`: time, live bytes, when each lane is free, heads and tails of the three queues, bytes on the host."""

FREE_AT, FREE_SIZE, TAKE_AT, TAKE_SIZE, HOST_AT, HOST_SIZE, WHOLE, ARRIVE, START, SIZE, OUT, BACK = range(12)
"""Rows of `Play.q`. Of offloads: their ends and bytes. Of prefetches after the present: their starts and bytes. Of last
prefetches, which free bytes on the host: their ends and bytes. By copy: when the copy to the host is whole; when the prefetch
ends and starts, -1: not issued; bytes, and the time of each way."""

RESTARTS = 30  # how often a replay begins again with prefetches that are issued later

FAILED = -1
NEVER = 1 << 62  # after every event [ns]


class Play(NamedTuple):
    """The state of a replay, in few arrays: each costs time in every call of a kernel.

    Attributes:
        s: see `NOW`. q: see `FREE_AT`.
        bucket: per position, the first copy that is issued before it; behind: per copy, the next one.
    """

    s: Longs
    q: NDArray[np.int64]
    bucket: Ints
    behind: Ints


@allocating_kernel
def place_prefetches(g: Flat, lanes: Lanes, seq: Ints, mem: Longs, copies: Copies) -> None:
    """Fill `copies.issue`: the latest position from which no run waits, with room in all runs in between; in reversed time."""
    issue, count = copies.issue, copies.reader.size
    ends = np.empty(count, np.int64)
    for m in range(count):
        issue[m] = -1
    now, lane, in_flight = np.int64(0), np.int64(0), np.int64(0)
    head = pushed = count - 1  # copies pushed + 1 … head are under way
    for i in range(mem.size - 1, -1, -1):
        m = copies.at[i]
        while m >= 0:  # not before the datum has left
            if issue[m] < 0:
                issue[m] = i + 1
                in_flight -= g.size[copies.datum[m]]
            m = copies.same_before[m]
        while True:
            while head > pushed and ends[head] <= now:
                if issue[head] < 0:
                    issue[head] = i + 1
                    in_flight -= g.size[copies.datum[head]]
                head -= 1
            if mem[i] + in_flight <= lanes.budget or head == pushed:
                break
            now = ends[head]
        now += g.time[seq[i]]
        while head > pushed and ends[head] <= now:
            if issue[head] < 0:
                issue[head] = i
                in_flight -= g.size[copies.datum[head]]
            head -= 1
        while pushed >= 0 and copies.reader[pushed] == i:
            d = copies.datum[pushed]
            lane = max(now, lane) + lanes.back[d]
            ends[pushed] = lane
            in_flight += g.size[d]
            pushed -= 1


@inner_kernel
def event_before(p: Play, free: int, take: int, end: int) -> int:
    """The next event before `end`, from the heads given: 1 an offload that ends, 2 a prefetch that starts, 0 none."""
    if free < p.s[FREE_TAIL] and (take == p.s[TAKE_TAIL] or p.q[FREE_AT, free] <= p.q[TAKE_AT, take]):
        return 1 if p.q[FREE_AT, free] < end else 0
    if take < p.s[TAKE_TAIL]:
        return 2 if p.q[TAKE_AT, take] < end else 0
    return 0


@inner_kernel
def apply_events(p: Play, end: int) -> None:
    """Let the events before `end` happen."""
    kind = event_before(p, p.s[FREE_HEAD], p.s[TAKE_HEAD], end)
    while kind:
        if kind == 1:
            p.s[LIVE] -= p.q[FREE_SIZE, p.s[FREE_HEAD]]
            p.s[FREE_HEAD] += 1
        else:
            p.s[LIVE] += p.q[TAKE_SIZE, p.s[TAKE_HEAD]]
            p.s[TAKE_HEAD] += 1
        kind = event_before(p, p.s[FREE_HEAD], p.s[TAKE_HEAD], end)


@inner_kernel
def apply_frees(p: Play) -> None:
    """Free the bytes of offloads that have ended."""
    while p.s[FREE_HEAD] < p.s[FREE_TAIL] and p.q[FREE_AT, p.s[FREE_HEAD]] <= p.s[NOW]:
        p.s[LIVE] -= p.q[FREE_SIZE, p.s[FREE_HEAD]]
        p.s[FREE_HEAD] += 1


@inner_kernel
def most_during(p: Play, level: int, heads: tuple[int, int], end: int) -> int:
    """The largest number of live bytes from `level` on, with the events before `end`."""
    free, take = heads
    most = level
    kind = event_before(p, free, take, end)
    while kind:
        if kind == 1:
            level -= p.q[FREE_SIZE, free]
            free += 1
        else:
            level += p.q[TAKE_SIZE, take]
            take += 1
            most = max(most, level)
        kind = event_before(p, free, take, end)
    return most


@inner_kernel
def wait_for(p: Play, ready: int, time: int, extra: int, budget: int) -> bool:
    """Move the time to the earliest start from `ready` on at which `extra` bytes fit for `time`; whether there is one."""
    free, take = p.s[FREE_HEAD], p.s[TAKE_HEAD]
    level = waited = p.s[LIVE]
    start = ready
    while True:
        kind = event_before(p, free, take, start + 1)
        while kind:
            if kind == 1:
                level -= p.q[FREE_SIZE, free]
                free += 1
            else:
                level += p.q[TAKE_SIZE, take]
                take += 1
                waited = max(waited, level)
            kind = event_before(p, free, take, start + 1)
        if waited > budget:
            return False
        if most_during(p, level, (free, take), start + time) + extra <= budget:
            p.s[LIVE], p.s[NOW], p.s[FREE_HEAD], p.s[TAKE_HEAD] = level, start, free, take
            return True
        if free == p.s[FREE_TAIL]:
            return False
        start = p.q[FREE_AT, free]


@inner_kernel
def prefetch(p: Play, m: int, ready: int, budget: int) -> bool:
    """Issue copy m from `ready` on, as soon as its bytes fit given the copies under way; False if they never do."""
    size = p.q[SIZE, m]
    level = p.s[LIVE] + size
    for k in range(p.s[TAKE_HEAD], p.s[TAKE_TAIL]):
        level += p.q[TAKE_SIZE, k]
    start = ready
    for k in range(p.s[FREE_HEAD], p.s[FREE_TAIL]):
        if p.q[FREE_AT, k] > start:
            if level <= budget:
                break
            start = p.q[FREE_AT, k]
        level -= p.q[FREE_SIZE, k]
    if level > budget:
        return False
    end = start + p.q[BACK, m]
    p.q[START, m], p.q[ARRIVE, m] = start, end
    p.s[IN_FREE] = end
    if start <= p.s[NOW]:
        p.s[LIVE] += size
    else:
        p.q[TAKE_AT, p.s[TAKE_TAIL]], p.q[TAKE_SIZE, p.s[TAKE_TAIL]] = start, size
        p.s[TAKE_TAIL] += 1
    return True


@inner_kernel
def offload(p: Play, m: int, host: int) -> bool:
    """Start copy m to the host; False if the host, with so many bytes, has no room."""
    end = max(p.s[NOW], p.s[OUT_FREE]) + p.q[OUT, m]
    p.s[OUT_FREE] = p.q[WHOLE, m] = end
    p.q[FREE_AT, p.s[FREE_TAIL]], p.q[FREE_SIZE, p.s[FREE_TAIL]] = end, p.q[SIZE, m]
    p.s[FREE_TAIL] += 1
    apply_frees(p)
    while p.s[HOST_HEAD] < p.s[HOST_TAIL] and p.q[HOST_AT, p.s[HOST_HEAD]] <= p.s[NOW]:
        p.s[HOST] -= p.q[HOST_SIZE, p.s[HOST_HEAD]]
        p.s[HOST_HEAD] += 1
    p.s[HOST] += p.q[SIZE, m]
    return bool(p.s[HOST] <= host)


@inner_kernel
def put_into(p: Play, m: int, at: int) -> None:
    """Add copy m to the bucket of a position, in order."""
    if p.bucket[at] < 0 or p.bucket[at] > m:
        p.behind[m] = p.bucket[at]
        p.bucket[at] = m
        return
    k = p.bucket[at]
    while p.behind[k] >= 0 and p.behind[k] < m:
        k = p.behind[k]
    p.behind[m] = p.behind[k]
    p.behind[k] = m


@inner_kernel
def issue_before(budget: int, p: Play, copies: Copies, i: int) -> bool:
    """Issue the prefetches of position i; those without room that are needed later move behind its run."""
    m = p.bucket[i]
    while m >= 0:
        behind = p.behind[m]
        ready = max(p.s[NOW], p.s[IN_FREE], p.q[WHOLE, copies.origin[m]])
        if prefetch(p, m, ready, budget):
            if copies.last[m]:
                p.q[HOST_AT, p.s[HOST_TAIL]], p.q[HOST_SIZE, p.s[HOST_TAIL]] = p.q[ARRIVE, m], p.q[SIZE, m]
                p.s[HOST_TAIL] += 1
        elif copies.reader[m] == i:
            return False
        else:
            copies.issue[m] = i + 1
            put_into(p, m, i + 1)
        m = behind
    return True


@inner_kernel
def begin(p: Play, copies: Copies) -> None:
    """The state before the first run."""
    p.s[:] = 0
    p.bucket[:] = -1
    for m in range(copies.reader.size - 1, -1, -1):
        p.q[START, m] = -1
        p.behind[m] = p.bucket[copies.issue[m]]
        p.bucket[copies.issue[m]] = m


@inner_kernel
def next_event(p: Play) -> int:
    """When the next offload ends or the next prefetch starts; later than everything if there is none."""
    at: int = NEVER
    if p.s[FREE_HEAD] < p.s[FREE_TAIL]:
        at = p.q[FREE_AT, p.s[FREE_HEAD]]
    if p.s[TAKE_HEAD] < p.s[TAKE_TAIL]:
        at = min(at, p.q[TAKE_AT, p.s[TAKE_HEAD]])
    return at


@inner_kernel
def run_among_events(p: Play, ready: int, time: int, extra: int, budget: int) -> bool:
    """Run from `ready` on, as soon as `extra` bytes fit, while copies start and end; whether they ever fit."""
    if not wait_for(p, ready, time, extra, budget):
        return False
    p.s[NOW] += time
    apply_events(p, p.s[NOW])
    return True


@inner_kernel
def play(g: Flat, lanes: Lanes, sequence: tuple[Ints, int], copies: Copies, p: Play, change: Longs) -> int:
    """Replay a sequence, (runs, most idle time): -1 at the end (`p.s[NOW]` is the time), or the position that does not fit.

    With the host full, or where the runs wait longer, -2. `change`: by run, of the bytes that are live.
    """
    seq, idle = sequence
    begin(p, copies)
    needed = 0  # the first copy that no run has read
    n = change.size
    quiet = next_event(p)  # nothing happens on the lanes before it
    for i in range(n):
        if p.bucket[i] >= 0:
            if not issue_before(lanes.budget, p, copies, i):
                return i
            quiet = next_event(p)
        v = seq[i]
        ready = p.s[NOW]
        while needed < copies.reader.size and copies.reader[needed] == i:
            ready = max(ready, p.q[ARRIVE, needed])
            needed += 1
        idle -= ready - p.s[NOW]
        end = ready + g.time[v]
        if end < quiet and p.s[LIVE] + g.charge[v] <= lanes.budget:
            p.s[NOW] = end
            p.s[LIVE] += change[i]
        else:
            if not run_among_events(p, ready, g.time[v], g.charge[v], lanes.budget):
                return i
            idle -= p.s[NOW] - end
            p.s[LIVE] += change[i]
            apply_frees(p)
            quiet = next_event(p)
        if idle < 0:
            return -2
        m = copies.at[i]
        while m >= 0:
            if copies.carries[m]:
                if not offload(p, m, lanes.host):
                    return -2
                quiet = next_event(p)
            m = copies.same_before[m]
    done, end = p.s[NOW], max(p.s[NOW], p.s[OUT_FREE], p.s[IN_FREE])
    if not wait_for(p, end, 0, 0, lanes.budget):
        return n - 1
    return -1 if p.s[NOW] - done <= idle else -2


@inner_kernel
def postpone(p: Play, copies: Copies, at: int) -> bool:
    """Issue what has been queued, has not begun and is read after `at` behind it; whether there is any."""
    moved = False
    for m in range(copies.reader.size):
        if p.q[START, m] > p.s[NOW] and copies.reader[m] > at:
            copies.issue[m] = at + 1
            moved = True
    return moved


@allocating_kernel
def empty_play(g: Flat, lanes: Lanes, n: int, copies: Copies) -> Play:
    """Arrays for copies over `n` runs."""
    count = copies.reader.size
    q = np.empty((12, count), np.int64)
    for m in range(count):
        d = copies.datum[m]
        q[SIZE, m], q[OUT, m], q[BACK, m] = g.size[d], lanes.out[d], lanes.back[d]
    return Play(np.zeros(11, np.int64), q, np.empty(n + 1, np.int32), np.empty(count, np.int32))


@allocating_kernel
def time_of(g: Flat, lanes: Lanes, runs: Runs, most: int) -> tuple[int, Copies, Longs]:
    """The time of a sequence with copies [ns], with the copies and the bytes charged at each run if copies took no time.

    `FAILED` if it does not fit or takes more than `most` ns.
    """
    n = runs.n
    copies = list_copies(g, runs)
    first, mem = np.empty(n, np.bool_), np.empty(n, np.int64)
    computing: int = 0
    for i in range(n):
        computing += g.time[runs.seq[i]]
    mark_first_runs(g, runs, first)
    g.work[0] += 3 * n
    if computing > most or away_profile(g, runs, first, mem) > lanes.budget:
        return FAILED, copies, mem
    if copies.reader.size == 0:
        return computing, copies, mem
    change = changes(g, runs, mem, copies)
    place_prefetches(g, lanes, runs.seq, mem, copies)
    p = empty_play(g, lanes, n, copies)
    for _ in range(RESTARTS):
        failed = play(g, lanes, (runs.seq, most - computing), copies, p, change)
        if failed == -1:
            return p.s[NOW], copies, mem
        if failed < -1 or not postpone(p, copies, failed):
            break
    return FAILED, copies, mem
