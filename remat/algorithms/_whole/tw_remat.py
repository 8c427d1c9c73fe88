"""`TwRemat`: rematerialization by tree decomposition (Kumar, Purohit, Svitkina, Vee, Wang, NeurIPS 2019).

A tree decomposition of the undirected graph, in which two nodes are adjacent if one reads an output of the other, is made by
greedy elimination (fewest neighbors first, or least fill). Its bags are split by balanced separators: the root is the bag whose
largest remaining part is smallest, and each part is split recursively. The recursion of the paper's section 4 then runs the
nodes of a bag in order; before each, it solves the parts below for the data that the node reads, and frees all other data. A
node may run once per level and bag above it, and the resident data are about the width times the depth.

That schedule ignores the budget. A forward pass over it keeps data that it would drop while memory is left, skips runs whose
outputs are still resident, and drops the data of the least recomputation time per byte when no memory is left. `leaf` defines a
family from the paper's schedule to the captured order: parts of at most so many nodes run in order. The fastest member that fits
is the plan.

Departures: nodes that may not run again (the loss, run-once nodes, contributions to a sum) run once and their outputs are
resident while they are read; first runs keep the order that the rules require (writers, draws, the loss between forward and
backward). Sizes and times play no part in the decomposition, as in the paper. Proves nothing.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator

import numpy as np
from attrs import field, frozen

from remat.algorithms._arrays.graph_arrays import BACKWARD, LOSS, Flat, Floats, Ints, flatten, row_of
from remat.algorithms._arrays.jit import kernel
from remat.algorithms._arrays.liveness import ends_of_residency, memory_profile, total_time
from remat.algorithms._core.clock import Clock
from remat.algorithms._core.outcome import Plan
from remat.algorithms._core.problem import Problem
from remat.algorithms._core.solver import Solver, refuse_unless_flat
from remat.ir import Graph, Schedule
from remat.settings import one_of, optional, whole

ORDERS = ("degree", "fill")
"""Elimination rules."""

_PASSES = 6  # forward passes over a schedule, each from the result of the previous one
_PARTS = (1, 2, 4, 8, 16, 32, 64)  # the number of nodes over these are the sizes of parts that run in order
_LONGEST = 40  # times the number of nodes: longer schedules are abandoned


# -- the decomposition -------------------------------------------------------------------------------------------------


def adjacency(flat: Flat) -> list[set[int]]:
    """The undirected graph: for each node, the nodes that read its outputs or whose outputs it reads."""
    neighbors: list[set[int]] = [set() for _ in flat.time]
    for d in np.flatnonzero(flat.producer >= 0).tolist():
        p = int(flat.producer[d])
        for c in row_of(flat.users, d).tolist():
            neighbors[p].add(c)
            neighbors[c].add(p)
    return neighbors


def tree_decomposition(
    adjacent: list[set[int]], nodes: list[int], rule: str
) -> tuple[list[list[int]], list[list[int]]]:
    """Bags, and the tree over them (neighbors of each bag; a forest if the graph is not connected).

    The bag of a node is the node with the neighbors that it has when it is eliminated; the bag's parent is the bag of the
    neighbor that is eliminated next.
    """
    graph = {v: set(adjacent[v]) for v in nodes}
    heap = [(_weight(graph, v, rule), v) for v in nodes]
    heapq.heapify(heap)
    elimination: dict[int, int] = {}
    bags: list[list[int]] = []
    while heap:
        weight, v = heapq.heappop(heap)
        if v in elimination:
            continue
        now = _weight(graph, v, rule)
        if now > weight:
            heapq.heappush(heap, (now, v))
            continue
        elimination[v] = len(bags)
        neighbors = _eliminate(graph, v)
        bags.append([v, *neighbors])
        for u in neighbors:
            heapq.heappush(heap, (_weight(graph, u, rule), u))
    return bags, _tree(bags, elimination)


def _eliminate(graph: dict[int, set[int]], v: int) -> list[int]:
    """Remove a node from the graph and make its neighbors adjacent to each other; returns the neighbors."""
    neighbors = sorted(graph.pop(v))
    for u in neighbors:
        graph[u].discard(v)
        graph[u].update(w for w in neighbors if w != u)
    return neighbors


def _tree(bags: list[list[int]], elimination: dict[int, int]) -> list[list[int]]:
    """Neighbors of each bag: its parent is the bag of the node eliminated first among its node's neighbors."""
    tree: list[list[int]] = [[] for _ in bags]
    for k, (_, *neighbors) in enumerate(bags):
        if neighbors:
            parent = min(elimination[u] for u in neighbors)
            tree[k].append(parent)
            tree[parent].append(k)
    return tree


def _weight(graph: dict[int, set[int]], v: int, rule: str) -> int:
    neighbors = graph[v]
    if rule == "degree":
        return len(neighbors)
    return sum(len(neighbors) - 1 - len(graph[u] & neighbors) for u in neighbors) // 2


@frozen
class Part:
    """A separator (the nodes of its bag that are in no separator above) and its parts; `below` has all nodes of the subtree."""

    separator: tuple[int, ...]
    below: frozenset[int]
    parts: tuple[Part, ...] = ()


def separator_trees(bags: list[list[int]], tree: list[list[int]], leaf: int) -> list[Part]:
    """The balanced separator tree of each component; parts of at most `leaf` nodes are not split."""
    removed = [False] * len(bags)
    parts: list[Part] = []
    for k in range(len(bags)):
        if not removed[k]:
            component = _component(tree, k, removed)
            parts.append(_split(bags, tree, component, removed, frozenset(), leaf))
    return parts


def _component(tree: list[list[int]], start: int, removed: list[bool]) -> list[int]:
    """Bags connected to `start`, each after the bag from which it was reached."""
    order, seen = [start], {start}
    for k in order:
        for other in tree[k]:
            if other not in seen and not removed[other]:
                seen.add(other)
                order.append(other)
    return order


def _split(
    bags: list[list[int]],
    tree: list[list[int]],
    order: list[int],
    removed: list[bool],
    above: frozenset[int],
    leaf: int,
) -> Part:
    below = frozenset(v for k in order for v in bags[k]) - above
    if len(below) <= leaf or len(order) == 1:
        for k in order:
            removed[k] = True
        return Part(tuple(sorted(below)), below)
    middle = _balanced_separator(tree, order, removed)
    removed[middle] = True
    separator = tuple(sorted(set(bags[middle]) - above))
    seen = above | frozenset(separator)
    parts = [
        _split(bags, tree, _component(tree, k, removed), removed, seen, leaf) for k in tree[middle] if not removed[k]
    ]
    return Part(separator, below, tuple(part for part in parts if part.below))


def _balanced_separator(tree: list[list[int]], order: list[int], removed: list[bool]) -> int:
    """The bag whose removal minimizes the largest remaining part of a component; `order` lists parents first."""
    size, worst = dict.fromkeys(order, 1), dict.fromkeys(order, 0)
    parent = {order[0]: -1}
    for k in order:
        parent.update((other, k) for other in tree[k] if not removed[other] and other != parent[k])
    for k in reversed(order):
        worst[k] = max(worst[k], len(order) - size[k])
        if parent[k] >= 0:
            size[parent[k]] += size[k]
            worst[parent[k]] = max(worst[parent[k]], size[k])
    return min(order, key=lambda k: (worst[k], k))


# -- the recursion -----------------------------------------------------------------------------------------------------


class TooLong(Exception):
    """The schedule has too many runs."""


class _Recursion:
    """Section 4 of the paper: runs after which `need` is in memory, given the resident data of the parts above."""

    def __init__(self, flat: Flat, longest: int) -> None:
        self.reads = [set(flat.producer[row_of(flat.reads, v)].tolist()) for v in range(flat.time.size)]
        self.reads = [reads - {v} for v, reads in enumerate(self.reads)]
        self.runs: list[int] = []
        self.longest = longest

    def solve(self, part: Part, need: frozenset[int]) -> None:
        """Run the nodes of `need`, all of them in `part`."""
        if not need:
            return
        needed = self._leading_to(part, need)
        if not part.parts:
            self.runs += sorted(needed)
            if len(self.runs) > self.longest:
                raise TooLong
            return
        for v in (v for v in part.separator if v in needed):
            for inner in part.parts:
                self.solve(inner, frozenset(self.reads[v] & inner.below))
            self.runs.append(v)
        for inner in part.parts:
            self.solve(inner, need.difference(part.separator) & inner.below)

    def _leading_to(self, part: Part, need: frozenset[int]) -> set[int]:
        """The nodes of the part that lead to `need` within it."""
        leading, stack = set(need), list(need)
        while stack:
            for u in self.reads[stack.pop()]:
                if u in part.below and u not in leading:
                    leading.add(u)
                    stack.append(u)
        return leading


def legalized(flat: Flat, runs: list[int]) -> Ints:
    """`runs` made legal: missing predecessors run before a first run, and nodes that may not run twice run once."""
    ran = np.zeros(flat.time.size, np.bool_)
    forward = [v for v in np.flatnonzero(flat.required).tolist() if flat.phase[v] != BACKWARD]
    out: list[int] = []

    def first(v: int) -> None:
        stack = [v]
        while stack:
            u = stack[-1]
            if ran[u]:
                stack.pop()
                continue
            before = row_of(flat.predecessors, u).tolist()
            if flat.phase[u] == BACKWARD:
                before = forward[-1:] + before
            elif flat.phase[u] == LOSS:
                before = forward[:-1]
            missing = [w for w in before if not ran[w]]
            if missing:
                stack += reversed(missing)
            else:
                ran[u] = True
                out.append(stack.pop())

    for v in runs:
        if not ran[v]:
            first(v)
        elif flat.rerun[v]:
            out.append(v)
    for v in np.flatnonzero(flat.required).tolist():
        first(v)
    return np.array(out, np.int32)


# -- the greedy fit ----------------------------------------------------------------------------------------------------


@kernel
def drop_dead_reruns(g: Flat, runs: Ints) -> Ints:
    """`runs` without reruns that nothing reads before the next production."""
    n = runs.size
    keep = np.ones(n, np.bool_)
    first = np.full(g.time.size, -1, np.int32)
    for i in range(n - 1, -1, -1):
        first[runs[i]] = i
    live = np.zeros(g.size.size, np.bool_)
    for i in range(n - 1, -1, -1):
        v = runs[i]
        useful = first[v] == i
        for k in range(g.writes[v], g.writes[v + 1]):
            useful = useful or live[g.writes[k]]
        keep[i] = useful
        if not useful:
            continue
        for k in range(g.writes[v], g.writes[v + 1]):
            live[g.writes[k]] = False
        for k in range(g.reads[v], g.reads[v + 1]):
            d = g.reads[k]
            live[d] = not g.keep[d]
    return runs[keep]


@kernel
def fitted(g: Flat, runs: Ints, budget: int, key: Floats) -> Ints:
    """One forward pass over `runs`: data that they would drop are kept while memory is left, runs of resident data are skipped.

    When the next run does not fit, data kept in this way are dropped, those of the least `key` first. Data that the schedule
    itself keeps are not dropped, so the result may exceed the budget.
    """
    n, data = runs.size, g.size.size
    out_ptr = np.empty(n + 1, np.int32)
    total = 0
    for i in range(n):
        total += g.writes[runs[i] + 1] - g.writes[runs[i]]
    out_end = np.empty(total, np.int32)
    ends_of_residency(g, runs, n, out_ptr, out_end)
    last = np.full(data, -1, np.int64)  # the last read of each datum in the whole schedule
    for i in range(n):
        for k in range(g.reads[runs[i]], g.reads[runs[i] + 1]):
            last[g.reads[k]] = i
    resident = np.zeros(data, np.bool_)
    end = np.full(data, -1, np.int64)  # the position up to which the schedule itself keeps a datum
    ran = np.zeros(g.time.size, np.bool_)
    out = np.empty(n, np.int32)
    m, live_bytes = 0, 0
    for i in range(n):
        v = runs[i]
        available = ran[v]
        for k in range(g.writes[v], g.writes[v + 1]):
            d, until = g.writes[k], out_end[out_ptr[i] + k - g.writes[v]]
            available = available and (resident[d] or until <= i)
        while not available and live_bytes + g.charge[v] > budget:
            victim, least = -1, np.inf
            for d in range(data):
                if resident[d] and end[d] < i and not g.keep[d] and g.size[d] > 0:
                    value = 0.0 if last[d] < i else key[d]
                    if value < least:
                        victim, least = d, value
            if victim < 0:
                break
            resident[victim] = False
            live_bytes -= g.size[victim]
        if not available:
            ran[v] = True
            out[m] = v
            m += 1
        for k in range(g.writes[v], g.writes[v + 1]):
            d = g.writes[k]
            end[d] = max(end[d], np.int64(out_end[out_ptr[i] + k - g.writes[v]]))
            if not available and not resident[d]:
                resident[d] = True
                live_bytes += g.size[d]
    return out[:m].copy()


@frozen
class TwRemat(Solver):
    """Schedules of the tree decomposition, fitted to the budget: the fastest of a family. Proves nothing.

    Attributes:
        order: the elimination rule, one of `ORDERS`; None: both.
        leaf: parts of at most so many nodes run in order; None: a family from 1, as in the paper, to all nodes.
    """

    order: str | None = field(default=None, validator=optional(one_of(*ORDERS)))
    leaf: int | None = field(default=None, validator=optional(whole(1, "nodes")))

    def refuses(self, graph: Graph) -> str | None:
        """Flat graphs only."""
        return refuse_unless_flat(graph)

    def plan(self, problem: Problem, clock: Clock, seed: int) -> Plan:
        """The fastest member that fits, if any."""
        flat = flatten(problem.graph)
        best: tuple[bool, int, int] | None = None
        chosen: tuple[Ints, str] | None = None
        for name, runs in self._family(flat):
            sequence = greedy(flat, runs, problem.budget)
            peak = int(memory_profile(flat, sequence, len(sequence), np.empty(len(sequence), np.int64)))
            time = int(total_time(flat, sequence, len(sequence)))
            over = peak > problem.budget
            rank = (over, peak if over else time, len(sequence))
            if best is None or rank < best:
                best, chosen = rank, (sequence, name)
            if clock.expired:
                break
        if chosen is None or best is None or best[0]:
            least = "" if best is None else f": the least peak is {best[1]} B"
            return Plan(trail=(f"{self!r}: no member fits{least}",))
        schedule = Schedule.from_runs(problem.graph, chosen[0].tolist())
        return Plan(schedule=schedule, trail=(f"{self!r}: {chosen[1]}, {len(chosen[0])} runs",))

    def _family(self, flat: Flat) -> Iterator[tuple[str, Ints]]:
        """The distinct members, before they are fitted."""
        nodes = np.flatnonzero(flat.required).tolist()
        adjacent = adjacency(flat)
        leaves = sorted({max(1, len(nodes) // part) for part in _PARTS} | {1}) if self.leaf is None else [self.leaf]
        need = frozenset(flat.producer[flat.keep].tolist()) | {int(np.flatnonzero(flat.phase == LOSS)[0])}
        seen: set[bytes] = set()
        for rule in ORDERS if self.order is None else (self.order,):
            bags, tree = tree_decomposition(adjacent, nodes, rule)
            for leaf in leaves:
                recursion = _Recursion(flat, _LONGEST * len(nodes))
                try:
                    for part in separator_trees(bags, tree, leaf):
                        recursion.solve(part, need & part.below)
                except TooLong:
                    continue
                runs = legalized(flat, recursion.runs)
                if runs.tobytes() not in seen:
                    seen.add(runs.tobytes())
                    yield f"least {rule}, parts of {leaf}", runs


def greedy(flat: Flat, runs: Ints, budget: int) -> Ints:
    """Removes dead reruns, then makes up to six forward passes, each followed by it (steps 5 and 6 of the public code)."""
    key = flat.time[np.maximum(flat.producer, 0)] / np.maximum(flat.size, 1)
    sequence = drop_dead_reruns(flat, runs)
    for _ in range(_PASSES):
        after = drop_dead_reruns(flat, fitted(flat, sequence, budget, key))
        if len(after) == len(sequence):
            break
        sequence = after
    return sequence
