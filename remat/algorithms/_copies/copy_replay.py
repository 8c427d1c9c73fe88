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

from remat.algorithms._arrays.graph_arrays import Flat, Ints, Longs
from remat.algorithms._arrays.jit import inner_kernel
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

RESTARTS = 30  # how often a replay begins again with prefetches that are issued later

FAILED = -1
NEVER = 1 << 62  # after every event [ns]


class Play(NamedTuple):
    """The state of a replay.

    Attributes:
        s: see `NOW`.
        free_at, free_size: ends of offloads, with their bytes. take_at, take_size: starts of prefetches after the present.
        host_at, host_size: ends of last prefetches, which free bytes on the host.
        whole: per datum, when its copy on the host is whole. arrive, start: per copy, when it ends and starts; -1: not issued.
        bucket: per position, the first copy that is issued before it; behind: per copy, the next one.
    """

    s: Longs
    free_at: Longs
    free_size: Longs
    take_at: Longs
    take_size: Longs
    host_at: Longs
    host_size: Longs
    whole: Longs
    arrive: Longs
    start: Longs
    bucket: Ints
    behind: Ints


@inner_kernel
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
    if free < p.s[FREE_TAIL] and (take == p.s[TAKE_TAIL] or p.free_at[free] <= p.take_at[take]):
        return 1 if p.free_at[free] < end else 0
    if take < p.s[TAKE_TAIL]:
        return 2 if p.take_at[take] < end else 0
    return 0


@inner_kernel
def apply_events(p: Play, end: int) -> None:
    """Let the events before `end` happen."""
    kind = event_before(p, p.s[FREE_HEAD], p.s[TAKE_HEAD], end)
    while kind:
        if kind == 1:
            p.s[LIVE] -= p.free_size[p.s[FREE_HEAD]]
            p.s[FREE_HEAD] += 1
        else:
            p.s[LIVE] += p.take_size[p.s[TAKE_HEAD]]
            p.s[TAKE_HEAD] += 1
        kind = event_before(p, p.s[FREE_HEAD], p.s[TAKE_HEAD], end)


@inner_kernel
def apply_frees(p: Play) -> None:
    """Free the bytes of offloads that have ended."""
    while p.s[FREE_HEAD] < p.s[FREE_TAIL] and p.free_at[p.s[FREE_HEAD]] <= p.s[NOW]:
        p.s[LIVE] -= p.free_size[p.s[FREE_HEAD]]
        p.s[FREE_HEAD] += 1


@inner_kernel
def most_during(p: Play, level: int, heads: tuple[int, int], end: int) -> int:
    """The largest number of live bytes from `level` on, with the events before `end`."""
    free, take = heads
    most = level
    kind = event_before(p, free, take, end)
    while kind:
        if kind == 1:
            level -= p.free_size[free]
            free += 1
        else:
            level += p.take_size[take]
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
                level -= p.free_size[free]
                free += 1
            else:
                level += p.take_size[take]
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
        start = p.free_at[free]


@inner_kernel
def prefetch(p: Play, size: int, time: int, m: int, ready: int, budget: int) -> bool:
    """Issue copy m from `ready` on, as soon as its bytes fit given the copies under way; False if they never do."""
    level = p.s[LIVE] + size
    for k in range(p.s[TAKE_HEAD], p.s[TAKE_TAIL]):
        level += p.take_size[k]
    start = ready
    for k in range(p.s[FREE_HEAD], p.s[FREE_TAIL]):
        if p.free_at[k] > start:
            if level <= budget:
                break
            start = p.free_at[k]
        level -= p.free_size[k]
    if level > budget:
        return False
    p.start[m], p.arrive[m] = start, start + time
    p.s[IN_FREE] = start + time
    if start <= p.s[NOW]:
        p.s[LIVE] += size
    else:
        p.take_at[p.s[TAKE_TAIL]], p.take_size[p.s[TAKE_TAIL]] = start, size
        p.s[TAKE_TAIL] += 1
    return True


@inner_kernel
def offload(p: Play, lanes: Lanes, d: int, size: int) -> bool:
    """Start to copy datum d to the host; False if the host has no room."""
    end = max(p.s[NOW], p.s[OUT_FREE]) + lanes.out[d]
    p.s[OUT_FREE] = p.whole[d] = end
    p.free_at[p.s[FREE_TAIL]], p.free_size[p.s[FREE_TAIL]] = end, size
    p.s[FREE_TAIL] += 1
    apply_frees(p)
    while p.s[HOST_HEAD] < p.s[HOST_TAIL] and p.host_at[p.s[HOST_HEAD]] <= p.s[NOW]:
        p.s[HOST] -= p.host_size[p.s[HOST_HEAD]]
        p.s[HOST_HEAD] += 1
    p.s[HOST] += size
    return bool(p.s[HOST] <= lanes.host)


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
def issue_before(g: Flat, lanes: Lanes, p: Play, copies: Copies, i: int) -> bool:
    """Issue the prefetches of position i; those without room that are needed later move behind its run."""
    m = p.bucket[i]
    while m >= 0:
        behind, d = p.behind[m], copies.datum[m]
        ready = max(p.s[NOW], p.s[IN_FREE], p.whole[d])
        if prefetch(p, g.size[d], lanes.back[d], m, ready, lanes.budget):
            if copies.last[m]:
                p.host_at[p.s[HOST_TAIL]], p.host_size[p.s[HOST_TAIL]] = p.arrive[m], g.size[d]
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
        p.start[m] = -1
        p.behind[m] = p.bucket[copies.issue[m]]
        p.bucket[copies.issue[m]] = m


@inner_kernel
def next_event(p: Play) -> int:
    """When the next offload ends or the next prefetch starts; later than everything if there is none."""
    at: int = NEVER
    if p.s[FREE_HEAD] < p.s[FREE_TAIL]:
        at = p.free_at[p.s[FREE_HEAD]]
    if p.s[TAKE_HEAD] < p.s[TAKE_TAIL]:
        at = min(at, p.take_at[p.s[TAKE_HEAD]])
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
def play(
    g: Flat, lanes: Lanes, sequence: tuple[Ints, int], copies: Copies, p: Play, bytes_: tuple[Longs, Longs]
) -> int:
    """Replay a sequence, (runs, most idle time): -1 at the end (`p.s[NOW]` is the time), or the position that does not fit.

    With the host full, or where the runs wait longer, -2.
    """
    seq, idle = sequence
    taken, freed = bytes_
    begin(p, copies)
    needed = 0  # the first copy that no run has read
    n = taken.size
    quiet = next_event(p)  # nothing happens on the lanes before it
    for i in range(n):
        if p.bucket[i] >= 0:
            if not issue_before(g, lanes, p, copies, i):
                return i
            quiet = next_event(p)
        v = seq[i]
        ready = p.s[NOW]
        while needed < copies.reader.size and copies.reader[needed] == i:
            ready = max(ready, p.arrive[needed])
            needed += 1
        idle -= ready - p.s[NOW]
        end = ready + g.time[v]
        if end < quiet and p.s[LIVE] + g.charge[v] <= lanes.budget:
            p.s[NOW] = end
            p.s[LIVE] += taken[i] - freed[i]
        else:
            if not run_among_events(p, ready, g.time[v], g.charge[v], lanes.budget):
                return i
            idle -= p.s[NOW] - end
            p.s[LIVE] += taken[i]
            apply_frees(p)
            p.s[LIVE] -= freed[i]
            quiet = next_event(p)
        if idle < 0:
            return -2
        m = copies.at[i]
        while m >= 0:
            if copies.carries[m]:
                if not offload(p, lanes, copies.datum[m], g.size[copies.datum[m]]):
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
        if p.start[m] > p.s[NOW] and copies.reader[m] > at:
            copies.issue[m] = at + 1
            moved = True
    return moved


@inner_kernel
def empty_play(g: Flat, n: int, count: int) -> Play:
    """Arrays for `count` copies over `n` runs."""
    size = max(1, count)
    longs = np.zeros((9, size), np.int64)
    whole, bucket = np.zeros(g.size.size, np.int64), np.empty(n + 1, np.int32)
    return Play(
        np.zeros(11, np.int64),
        longs[0],
        longs[1],
        longs[2],
        longs[3],
        longs[4],
        longs[5],
        whole,
        longs[6],
        longs[7],
        bucket,
        np.empty(size, np.int32),
    )


@inner_kernel
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
    if computing > most or away_profile(g, runs, first, mem, np.empty((0, 0), np.bool_)) > lanes.budget:
        return FAILED, copies, mem
    if copies.reader.size == 0:
        return computing, copies, mem
    taken, freed = np.empty(n, np.int64), np.empty(n, np.int64)
    changes(g, runs, copies, taken, freed)
    place_prefetches(g, lanes, runs.seq, mem, copies)
    p = empty_play(g, n, copies.reader.size)
    for _ in range(RESTARTS):
        failed = play(g, lanes, (runs.seq, most - computing), copies, p, (taken, freed))
        if failed == -1:
            return p.s[NOW], copies, mem
        if failed < -1 or not postpone(p, copies, failed):
            break
    return FAILED, copies, mem
