"""The optimum over all schedules with copies of a tiny graph: A* over the validator's own replay, times relative in the key.

The estimate is the time of the nodes that have not run.

Between two runs come drops, then offloads, then prefetches: a drop frees bytes for what follows, and a prefetch that knows of an
offload starts no later. Drops go in one order, since they commute.
"""

import copy
import heapq
from itertools import count

from remat.errors import InvalidSchedule
from remat.ir import Drop, Offload, Prefetch, Run, Schedule, validate
from remat.ir.transfer import LinkReplay

DROPS, OFFLOADS, PREFETCHES = range(3)


def clone(replay):
    """A replay that goes on by itself; what it only records for people is left behind."""
    other = copy.copy(replay)
    for name in ("done", "started", "lane_free", "events", "arrives", "host", "host_bytes", "host_frees"):
        setattr(other, name, getattr(replay, name).copy())
    other.timeline, other.host_timeline, other.intervals = [], [], []
    return other


def key(replay, stage):
    """All that the future of a replay depends on."""
    now = replay.now
    return (
        stage,
        frozenset(replay.done.items()),
        frozenset(replay.started),
        replay.live,
        tuple(max(0, free - now) for free in replay.lane_free.values()),
        tuple((when - now, change) for when, change in replay.events),
        frozenset((name, when - now) for name, when in replay.arrives.items() if when > now),
        frozenset((name, held.done, max(0, held.whole - now)) for name, held in replay.host.items()),
    )


def complete(graph, replay):
    """Whether every kept datum is complete and resident."""
    return replay.loss_done and all(replay.done.get(d.name, -1) == len(d.writers) for d in graph.data if d.keep)


def moves(graph, replay, stage):
    """Steps that may be legal, each with the stage after it."""
    cells = [(datum.name, datum.outside) for datum in graph.data if datum.size or len(datum.writers) > 1]
    cells += [(layer.phantom, False) for layer in graph.layers]
    for at, (name, outside) in enumerate(cells):
        here = name in replay.done
        if here and not outside and stage[0] == DROPS and at > stage[1]:
            yield Drop(name), (DROPS, at)
        if here and not outside and stage[0] <= OFFLOADS:
            yield Offload(name), (OFFLOADS, 0)
        if not here and name in replay.host:
            yield Prefetch(name), (PREFETCHES, 0)
    for node in graph.computes:
        for option in range(len(node.options)):
            yield Run(node.name, option), (DROPS, -1)


def left(graph, replay):
    """Time of the nodes that must run and have not [ns]."""
    nodes = (graph.computes[i] for i in graph.required)
    return sum(min(option.time for option in node.options) for node in nodes if node.name not in replay.started)


class TooLarge(Exception):
    """The search would settle more states than it may."""


def optimum(graph, budget, link, limit, most=10**9):
    """Time of the fastest schedule, which takes at most `limit` ns, and the schedule; (None, None): there is none.

    Raises `TooLarge` after `most` states.
    """
    start = LinkReplay(graph, Schedule(()), budget, link)
    number, settled = count(), set()
    queue = [(left(graph, start), next(number), start, (DROPS, -1), (), False)]
    while queue:
        time, _, replay, stage, steps, finished = heapq.heappop(queue)
        if finished:
            schedule = Schedule(steps)
            assert validate(graph, schedule, budget, link).time == time
            return time, schedule
        place = key(replay, stage)
        if place in settled:
            continue
        settled.add(place)
        if len(settled) > most:
            raise TooLarge
        if complete(graph, replay):
            heapq.heappush(
                queue, (max(replay.now, *replay.lane_free.values()), next(number), replay, stage, steps, True)
            )
        for step, after in moves(graph, replay, stage):
            other = clone(replay)
            try:
                if isinstance(step, Run):
                    other.run(step)
                elif isinstance(step, Drop):
                    other.drop(step)
                else:
                    other.copy(step)
            except InvalidSchedule:
                continue
            estimate = other.now + left(graph, other)
            if estimate <= limit:
                heapq.heappush(queue, (estimate, next(number), other, after, (*steps, step), False))
    return None, None
