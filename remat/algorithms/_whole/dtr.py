"""`Dtr`: dynamic tensor rematerialization, replayed offline over the captured order (Kirisame et al., ICLR 2021).

The captured order is executed once. Before a run, evicted data that it reads are recomputed, recursively (Figure 1);
while it does not fit, the resident datum of the smallest score is evicted. With c the time of the run that makes a
datum, m its bytes and s the time since its last access (section 3 and appendix C.4):

| heuristic | score |
|---|---|
| `h_dtr` | (c + the cost of all evicted ancestors and descendants reached through evicted data) / (m s) |
| `h_eq` | the same with union-find classes of evicted data, which are never split |
| `h_local` | c / (m s) |
| `h_msps` | (c + the cost of evicted ancestors) / m |
| `h_lru`, `h_size` | 1 / s, 1 / m |

Eager eviction: data without future readers are dropped. Data that cannot be recomputed here (outputs of the loss, of run-once
nodes, and contributions to a sum) stay until every datum made from them is resident or never needed again; these data are then
pinned: the paper's banishing, appendix B. Kept data stay. Of equal scores the datum with the smallest index is evicted; the
paper leaves this order open. An online rule can get stuck, when all resident data are locked, pinned or kept. Then there is no
plan.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from attrs import field, frozen

from remat.algorithms._arrays.graph_arrays import Flags, Flat, Floats, Ints, Longs, flatten
from remat.algorithms._arrays.jit import kernel
from remat.algorithms._core.clock import Clock
from remat.algorithms._core.outcome import Plan
from remat.algorithms._core.problem import Problem
from remat.algorithms._core.solver import Solver, refuse_unless_flat
from remat.ir import Graph, Schedule
from remat.settings import one_of, whole

HEURISTICS = ("h_dtr", "h_eq", "h_local", "h_msps", "h_lru", "h_size")
"""The published scores, in the order of their codes in the kernels."""

_DTR, _EQ, _LOCAL, _MSPS, _LRU, _SIZE = range(6)
_MEMORY, _CLOCK, _STAMP, _SETS = range(4)  # positions in `State.now`


class State(NamedTuple):
    """The state of the runtime, as arrays.

    Attributes:
        resident, ran: data that are resident; nodes that have run. banished: data that will never be recomputed.
        refs: number of future readers of each datum. locks: unfinished runs that need it. access: time of its last access.
        pinned: data that may not be evicted. locked: reads (positions in `Flat.reads`) locked by an unfinished run.
        class_of, parent, cost: the class of each evicted datum; union-find over classes, and their cost.
        mark, seen, stack: scratch. now: resident bytes, the clock, the last mark, the number of classes.
    """

    resident: Flags
    ran: Flags
    banished: Flags
    refs: Ints
    locks: Ints
    access: Longs
    pinned: Flags
    locked: Flags
    class_of: Ints
    parent: Ints
    cost: Floats
    mark: Longs
    seen: Longs
    stack: Ints
    now: Longs


@kernel
def root(s: State, a: int) -> int:
    """The class that class `a` was merged into."""
    while s.parent[a] != a:
        s.parent[a] = s.parent[s.parent[a]]
        a = s.parent[a]
    return a


@kernel
def evicted(g: Flat, s: State, d: int) -> bool:
    """Whether a datum was made, is not resident, and may be recomputed."""
    return not s.resident[d] and not s.banished[d] and s.ran[g.producer[d]]


@kernel
def reached(g: Flat, s: State, d: int, down: bool) -> float:
    """Cost of the evicted data reached from `d` through evicted data, towards its readers (`down`) or its sources."""
    s.now[_STAMP] += 1
    total, top = 0.0, 1
    s.stack[0] = d
    s.mark[d] = s.now[_STAMP]
    while top > 0:
        top -= 1
        x = s.stack[top]
        if down:
            for k in range(g.users[x], g.users[x + 1]):
                c = g.users[k]
                for j in range(g.writes[c], g.writes[c + 1]):
                    y = g.writes[j]
                    if s.mark[y] != s.now[_STAMP] and evicted(g, s, y):
                        s.mark[y] = s.now[_STAMP]
                        total += g.time[c]
                        s.stack[top] = y
                        top += 1
        else:
            p = g.producer[x]
            for k in range(g.reads[p], g.reads[p + 1]):
                y = g.reads[k]
                if s.mark[y] != s.now[_STAMP] and evicted(g, s, y):
                    s.mark[y] = s.now[_STAMP]
                    total += g.time[g.producer[y]]
                    s.stack[top] = y
                    top += 1
    return total


@kernel
def neighbors(g: Flat, s: State, d: int, merge: int) -> float:
    """Cost of the distinct classes of evicted data adjacent to `d`; with `merge` >= 0 they are merged into that class."""
    s.now[_STAMP] += 1
    total = 0.0
    p = g.producer[d]
    sources = g.reads[p + 1] - g.reads[p]
    for k in range(sources + g.users[d + 1] - g.users[d]):
        if k < sources:
            lo, hi, above = g.reads[p] + k, g.reads[p] + k + 1, True
        else:
            c = g.users[g.users[d] + k - sources]
            lo, hi, above = g.writes[c], g.writes[c + 1], False
        for j in range(lo, hi):
            y = g.reads[j] if above else g.writes[j]
            if y == d or not evicted(g, s, y):
                continue
            a = root(s, s.class_of[y])
            if s.seen[a] != s.now[_STAMP]:
                s.seen[a] = s.now[_STAMP]
                total += s.cost[a]
                if merge >= 0 and a != root(s, merge):
                    s.cost[root(s, merge)] += s.cost[a]
                    s.parent[a] = root(s, merge)
                    s.seen[root(s, merge)] = s.now[_STAMP]
    return total


@kernel
def score(g: Flat, s: State, d: int, heuristic: int) -> float:
    """The cost of evicting `d`, by a heuristic."""
    cost = float(g.time[g.producer[d]])
    stale = float(s.now[_CLOCK] - s.access[d])
    size = float(g.size[d])
    if heuristic == _DTR:
        cost += reached(g, s, d, True) + reached(g, s, d, False)
    elif heuristic == _EQ:
        cost += neighbors(g, s, d, -1)
    elif heuristic == _MSPS:
        return (cost + reached(g, s, d, False)) / size
    elif heuristic == _LRU:
        return 1.0 / stale if stale > 0 else np.inf
    elif heuristic == _SIZE:
        return 1.0 / size
    return cost / (size * stale) if stale > 0 else np.inf


@kernel
def remove(g: Flat, s: State, d: int) -> None:
    """Take a datum out of memory; unless it is banished, it joins the class of its evicted neighbors."""
    s.resident[d] = False
    s.now[_MEMORY] -= g.size[d]
    if s.banished[d]:
        return
    a = int(s.now[_SETS])
    s.now[_SETS] += 1
    s.parent[a] = a
    s.cost[a] = g.time[g.producer[d]]
    s.class_of[d] = a
    neighbors(g, s, d, a)


@kernel
def banish(g: Flat, s: State, x: int) -> bool:
    """Free a datum that cannot be recomputed and has no future readers, if no datum that is still needed depends on it.

    Data made from it cannot be recomputed either afterwards: they are pinned if resident, and banished otherwise.
    """
    if s.locks[x] > 0 or s.refs[x] > 0 or g.keep[x]:
        return False
    for commit in range(2):  # first test, then commit
        s.now[_STAMP] += 1
        s.stack[0] = x
        s.mark[x] = s.now[_STAMP]
        top = 1
        while top > 0:
            top -= 1
            y = s.stack[top]
            if commit:
                s.banished[y] = True
            for k in range(g.users[y], g.users[y + 1]):
                c = g.users[k]
                for j in range(g.writes[c], g.writes[c + 1]):
                    z = g.writes[j]
                    if s.resident[z]:
                        s.pinned[z] = s.pinned[z] or bool(commit)
                    elif s.mark[z] != s.now[_STAMP] and not s.banished[z]:
                        if s.refs[z] > 0 or g.keep[z]:
                            return False
                        s.mark[z] = s.now[_STAMP]
                        s.stack[top] = z
                        top += 1
    remove(g, s, x)
    return True


@kernel
def make_room(g: Flat, s: State, need: int, budget: int, heuristic: int) -> bool:
    """Evict until `need` more bytes fit; False if no remaining datum may be evicted."""
    if s.now[_MEMORY] + need <= budget:
        return True
    freed = True
    while freed:  # pinned data that are no longer needed
        freed = False
        for d in range(g.size.size):
            if s.resident[d] and s.pinned[d] and s.refs[d] == 0 and banish(g, s, d):
                freed = True
    while s.now[_MEMORY] + need > budget:
        victim, least = -1, np.inf
        for d in range(g.size.size):
            if not s.resident[d] or s.pinned[d] or s.locks[d] > 0 or g.size[d] == 0 or g.keep[d]:
                continue
            value = score(g, s, d, heuristic)
            if victim < 0 or value < least:
                victim, least = d, value
        if victim < 0:
            return False
        remove(g, s, victim)
    return True


@kernel
def finish(g: Flat, s: State, v: int) -> int:
    """Account for the run of `v`: clock, outputs, locks, and data no longer needed. Returns how many data it made."""
    s.now[_CLOCK] += g.time[v]
    first = not s.ran[v]
    for k in range(g.writes[v], g.writes[v + 1]):
        d = g.writes[k]
        if first:  # a rerun does not count as an access, as in the paper's simulator
            s.access[d] = s.now[_CLOCK]
        if not s.resident[d]:
            s.resident[d] = True
            s.now[_MEMORY] += g.size[d]
            if s.ran[v]:  # it leaves its class
                s.cost[root(s, s.class_of[d])] -= g.time[v]
    s.ran[v] = True
    for k in range(g.reads[v], g.reads[v + 1]):
        d = g.reads[k]
        s.locks[d] -= 1
        s.locked[k] = False
        s.refs[d] -= 1 if first else 0
        if first and s.refs[d] == 0 and s.locks[d] == 0 and not s.pinned[d] and not g.keep[d]:
            remove(g, s, d)  # eager eviction
    for k in range(g.writes[v], g.writes[v + 1]):
        d = g.writes[k]
        if first and s.refs[d] == 0 and not s.pinned[d] and not g.keep[d]:
            remove(g, s, d)
    return int(g.writes[v + 1] - g.writes[v])


@kernel
def begin(g: Flat, s: State, v: int) -> None:
    """Record the access to the reads of `v`, and lock those that are resident."""
    for k in range(g.reads[v], g.reads[v + 1]):
        d = g.reads[k]
        s.access[d] = s.now[_CLOCK]
        s.locked[k] = s.resident[d]
        s.locks[d] += 1 if s.resident[d] else 0


@kernel
def online(g: Flat, order: Ints, budget: int, heuristic: int, limit: float) -> tuple[Ints, bool]:
    """The run sequence, and whether it finished within `limit` times the runs (and data made) of `order`."""
    nodes, data = g.time.size, g.size.size
    most = int(limit * order.size) + 1
    sets = int(limit * data) + int(np.max(np.diff(g.writes[: g.writes[0]]))) + 2
    s = State(
        resident=np.zeros(data, np.bool_),
        ran=np.zeros(nodes, np.bool_),
        banished=np.zeros(data, np.bool_),
        refs=np.diff(g.users[: g.users[0]]).astype(np.int32),
        locks=np.zeros(data, np.int32),
        access=np.zeros(data, np.int64),
        pinned=np.zeros(data, np.bool_),
        locked=np.zeros(g.reads.size, np.bool_),
        class_of=np.zeros(data, np.int32),
        parent=np.zeros(sets, np.int32),
        cost=np.zeros(sets, np.float64),
        mark=np.zeros(data, np.int64),
        seen=np.zeros(sets, np.int64),
        stack=np.empty(data + 1, np.int32),
        now=np.zeros(4, np.int64),
    )
    for d in range(data):
        s.pinned[d] = g.producer[d] >= 0 and not g.rerun[g.producer[d]]
    runs = np.empty(most, np.int32)
    waiting = np.empty(nodes, np.int32)  # unfinished runs, the innermost last
    n = produced = 0
    for first in order:
        waiting[0], depth = first, 1
        begin(g, s, first)
        while depth > 0:
            v = waiting[depth - 1]
            missing = -1
            for k in range(g.reads[v], g.reads[v + 1]):
                if not s.locked[k]:
                    d = g.reads[k]
                    if not s.resident[d]:
                        missing = g.producer[d]
                        break
                    s.locked[k] = True
                    s.locks[d] += 1
            if missing >= 0:
                waiting[depth] = missing
                depth += 1
                begin(g, s, missing)
                continue
            if n == most or produced > limit * data or not make_room(g, s, int(g.charge[v]), budget, heuristic):
                return runs[:n].copy(), False
            runs[n] = v
            n += 1
            produced += finish(g, s, v)
            depth -= 1
    return runs[:n].copy(), True


@frozen
class Dtr(Solver):
    """The schedule that DTR's runtime would find within the budget, or none where it gets stuck. Proves nothing.

    Attributes:
        heuristic: the score; one of `HEURISTICS`.
        limit: give up after this many times the runs of the captured order (thrashing).
    """

    heuristic: str = field(default="h_eq", validator=one_of(*HEURISTICS))
    limit: int = field(default=8, validator=whole(1, "times the runs"))

    def refuses(self, graph: Graph) -> str | None:
        """Flat graphs only."""
        return refuse_unless_flat(graph)

    def plan(self, problem: Problem, clock: Clock, seed: int) -> Plan:
        """One execution of the captured order."""
        flat = flatten(problem.graph)
        order = np.flatnonzero(flat.required).astype(np.int32)
        runs, finished = online(flat, order, problem.budget, HEURISTICS.index(self.heuristic), float(self.limit))
        if not finished:
            return Plan(trail=(f"{self!r}: stuck after {len(runs)} runs",))
        schedule = Schedule.from_runs(problem.graph, runs.tolist())
        return Plan(schedule=schedule, trail=(f"{self!r}: {len(runs) - len(order)} reruns",))
