"""`TwRemat`: rematerialization by tree decomposition (Kumar, Purohit, Svitkina, Vee, Wang, NeurIPS 2019).

The nodes of the graph, joined where one reads what the other makes, get a tree decomposition by greedy elimination
(fewest neighbours first, or least fill). Its bags are split by balanced separators: the bag that leaves the smallest
largest part is the root, and each part is split in turn. The recursion of the paper's section 4 then runs a bag's
nodes in order, each time asking the parts below for what a node reads, and frees everything else: every node may run
once per level and bag above it, and what is held at once is about the width times the depth.

That schedule ignores the budget. A forward pass over it keeps what it would drop while there is room, skips what is
still there, and drops by the least time per byte to make again where there is none. `leaf` is the family that spans
from the paper's schedule to the plain order: parts of at most so many nodes are run straight through. The fastest
member that fits is the plan.

Departures: nodes that may not run again (the loss, run-once nodes, contributions to a sum) are run once and what they
make is held while it is read; first runs keep the order that the rules ask (writers, draws, the loss between forward and
backward). Weights play no part in the decomposition, as in the paper. Proves nothing.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator

import numpy as np
from attrs import field, frozen

from remat.algorithms._arrays.graph_arrays import BACKWARD, LOSS, Flat, Floats, Ints, flatten
from remat.algorithms._arrays.jit import kernel
from remat.algorithms._arrays.liveness import ends_of_residency, memory_profile, total_time
from remat.algorithms._core.clock import Clock
from remat.algorithms._core.outcome import Plan
from remat.algorithms._core.problem import Problem
from remat.algorithms._core.solver import Solver, refuse_unless_flat
from remat.ir import Graph, Schedule
from remat.settings import one_of, optional, whole

ORDERS = ("degree", "fill")
"""Rules of elimination."""

_PASSES = 6  # forward passes over a schedule, each from the result of the one before
_PARTS = (1, 2, 4, 8, 16, 32, 64)  # the graph's nodes over these are the sizes of parts run straight through
_LONGEST = 40  # times the nodes: longer schedules are given up


# -- the decomposition -------------------------------------------------------------------------------------------------


def joined(flat: Flat) -> list[set[int]]:
    """The undirected graph: neighbours of each node, by data."""
    near: list[set[int]] = [set() for _ in flat.time]
    for d in np.flatnonzero(flat.producer >= 0).tolist():
        p = int(flat.producer[d])
        for c in flat.use_idx[flat.use_ptr[d] : flat.use_ptr[d + 1]].tolist():
            near[p].add(c)
            near[c].add(p)
    return near


def decomposed(near: list[set[int]], nodes: list[int], rule: str) -> tuple[list[list[int]], list[list[int]]]:
    """Bags, and the tree over them (neighbors of each bag; a forest where the graph falls apart).

    A node's bag is itself with the neighbours it has when it is eliminated; its parent is the first of those to go.
    """
    graph = {v: set(near[v]) for v in nodes}
    heap = [(_weight(graph, v, rule), v) for v in nodes]
    heapq.heapify(heap)
    turn: dict[int, int] = {}
    bags: list[list[int]] = []
    while heap:
        weight, v = heapq.heappop(heap)
        if v in turn:
            continue
        now = _weight(graph, v, rule)
        if now > weight:
            heapq.heappush(heap, (now, v))
            continue
        turn[v] = len(bags)
        around = _eliminate(graph, v)
        bags.append([v, *around])
        for u in around:
            heapq.heappush(heap, (_weight(graph, u, rule), u))
    return bags, _tree(bags, turn)


def _eliminate(graph: dict[int, set[int]], v: int) -> list[int]:
    """Take a node out of the graph and join its neighbors, which are returned."""
    around = sorted(graph.pop(v))
    for u in around:
        graph[u].discard(v)
        graph[u].update(w for w in around if w != u)
    return around


def _tree(bags: list[list[int]], turn: dict[int, int]) -> list[list[int]]:
    """Neighbors of each bag: its parent is the bag of the node eliminated first among its node's neighbors."""
    tree: list[list[int]] = [[] for _ in bags]
    for k, (_, *around) in enumerate(bags):
        if around:
            parent = min(turn[u] for u in around)
            tree[k].append(parent)
            tree[parent].append(k)
    return tree


def _weight(graph: dict[int, set[int]], v: int, rule: str) -> int:
    around = graph[v]
    if rule == "degree":
        return len(around)
    return sum(len(around) - 1 - len(graph[u] & around) for u in around) // 2


@frozen
class Part:
    """A separator and the parts it leaves: the nodes of its bag not seen above; `below` has all nodes of the subtree."""

    separator: tuple[int, ...]
    below: frozenset[int]
    parts: tuple[Part, ...] = ()


def separated(bags: list[list[int]], tree: list[list[int]], leaf: int) -> list[Part]:
    """The balanced separator tree of each component; parts of at most `leaf` nodes are one bag."""
    gone = [False] * len(bags)
    parts: list[Part] = []
    for k in range(len(bags)):
        if not gone[k]:
            component = _component(tree, k, gone)
            parts.append(_split(bags, tree, component, gone, frozenset(), leaf))
    return parts


def _component(tree: list[list[int]], start: int, gone: list[bool]) -> list[int]:
    """Bags that hang together with `start`, each after the one it was reached from."""
    order, seen = [start], {start}
    for k in order:
        for other in tree[k]:
            if other not in seen and not gone[other]:
                seen.add(other)
                order.append(other)
    return order


def _split(
    bags: list[list[int]], tree: list[list[int]], order: list[int], gone: list[bool], above: frozenset[int], leaf: int
) -> Part:
    below = frozenset(v for k in order for v in bags[k]) - above
    if len(below) <= leaf or len(order) == 1:
        for k in order:
            gone[k] = True
        return Part(tuple(sorted(below)), below)
    middle = _balanced_separator(tree, order, gone)
    gone[middle] = True
    separator = tuple(sorted(set(bags[middle]) - above))
    seen = above | frozenset(separator)
    parts = [_split(bags, tree, _component(tree, k, gone), gone, seen, leaf) for k in tree[middle] if not gone[k]]
    return Part(separator, below, tuple(part for part in parts if part.below))


def _balanced_separator(tree: list[list[int]], order: list[int], gone: list[bool]) -> int:
    """The bag whose removal leaves the smallest largest part of a component; `order` lists parents first."""
    size, worst = dict.fromkeys(order, 1), dict.fromkeys(order, 0)
    parent = {order[0]: -1}
    for k in order:
        parent.update((other, k) for other in tree[k] if not gone[other] and other != parent[k])
    for k in reversed(order):
        worst[k] = max(worst[k], len(order) - size[k])
        if parent[k] >= 0:
            size[parent[k]] += size[k]
            worst[parent[k]] = max(worst[parent[k]], size[k])
    return min(order, key=lambda k: (worst[k], k))


# -- the recursion -----------------------------------------------------------------------------------------------------


class TooLong(Exception):
    """The schedule has more runs than it is worth."""


class _Recursion:
    """Section 4 of the paper: runs that leave `need` in memory, given what the parts above hold."""

    def __init__(self, flat: Flat, longest: int) -> None:
        self.reads = [
            set(flat.producer[flat.read_idx[flat.read_ptr[v] : flat.read_ptr[v + 1]]].tolist())
            for v in range(flat.time.size)
        ]
        self.reads = [reads - {v} for v, reads in enumerate(self.reads)]
        self.runs: list[int] = []
        self.longest = longest

    def solve(self, part: Part, need: frozenset[int]) -> None:
        """Make the nodes of `need`, all of them in `part`."""
        if not need:
            return
        wanted = self._leading_to(part, need)
        if not part.parts:
            self.runs += sorted(wanted)
            if len(self.runs) > self.longest:
                raise TooLong
            return
        for v in (v for v in part.separator if v in wanted):
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


def lawful(flat: Flat, runs: list[int]) -> Ints:
    """`runs` with first runs where the rules allow them: what must come before is run before, nothing twice that may not."""
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
            before = flat.order_idx[flat.order_ptr[u] : flat.order_ptr[u + 1]].tolist()
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
def cleaned(g: Flat, runs: Ints) -> Ints:
    """`runs` without reruns that nothing reads before the next production."""
    n = runs.size
    keep = np.ones(n, np.bool_)
    first = np.full(g.time.size, -1, np.int32)
    for i in range(n - 1, -1, -1):
        first[runs[i]] = i
    wanted = np.zeros(g.size.size, np.bool_)
    for i in range(n - 1, -1, -1):
        v = runs[i]
        useful = first[v] == i
        for k in range(g.write_ptr[v], g.write_ptr[v + 1]):
            useful = useful or wanted[g.write_idx[k]]
        keep[i] = useful
        if not useful:
            continue
        for k in range(g.write_ptr[v], g.write_ptr[v + 1]):
            wanted[g.write_idx[k]] = False
        for k in range(g.read_ptr[v], g.read_ptr[v + 1]):
            d = g.read_idx[k]
            wanted[d] = not g.keep[d]
    return runs[keep]


@kernel
def fitted(g: Flat, runs: Ints, budget: int, key: Floats) -> Ints:
    """One forward pass over `runs`: what they would drop is kept while there is room, what is still here is not made again.

    When the next run does not fit, data kept in this way are dropped, those of the least `key` first; those that the
    schedule itself holds are not, so it may exceed the budget.
    """
    n, data = runs.size, g.size.size
    out_ptr = np.empty(n + 1, np.int32)
    total = 0
    for i in range(n):
        total += g.write_ptr[runs[i] + 1] - g.write_ptr[runs[i]]
    out_end = np.empty(total, np.int32)
    ends_of_residency(g, runs, n, out_ptr, out_end)
    last = np.full(data, -1, np.int64)  # the last read of each datum in the whole schedule
    for i in range(n):
        for k in range(g.read_ptr[runs[i]], g.read_ptr[runs[i] + 1]):
            last[g.read_idx[k]] = i
    here = np.zeros(data, np.bool_)
    end = np.full(data, -1, np.int64)  # until when the schedule itself holds a datum
    ran = np.zeros(g.time.size, np.bool_)
    out = np.empty(n, np.int32)
    m, held = 0, 0
    for i in range(n):
        v = runs[i]
        there = ran[v]
        for k in range(g.write_ptr[v], g.write_ptr[v + 1]):
            d, until = g.write_idx[k], out_end[out_ptr[i] + k - g.write_ptr[v]]
            there = there and (here[d] or until <= i)
        while not there and held + g.charge[v] > budget:
            victim, least = -1, np.inf
            for d in range(data):
                if here[d] and end[d] < i and not g.keep[d] and g.size[d] > 0:
                    value = 0.0 if last[d] < i else key[d]
                    if value < least:
                        victim, least = d, value
            if victim < 0:
                break
            here[victim] = False
            held -= g.size[victim]
        if not there:
            ran[v] = True
            out[m] = v
            m += 1
        for k in range(g.write_ptr[v], g.write_ptr[v + 1]):
            d = g.write_idx[k]
            end[d] = max(end[d], np.int64(out_end[out_ptr[i] + k - g.write_ptr[v]]))
            if not there and not here[d]:
                here[d] = True
                held += g.size[d]
    return out[:m].copy()


@frozen
class TwRemat(Solver):
    """Schedules of the tree decomposition, fitted to the budget: the fastest of a family. Proves nothing.

    Attributes:
        order: the rule of elimination, one of `ORDERS`; None: both.
        leaf: parts of at most so many nodes are run straight through; None: the family from the paper's (1) to all nodes.
    """

    order: str | None = field(default=None, validator=optional(one_of(*ORDERS)))
    leaf: int | None = field(default=None, validator=optional(whole(1, "nodes")))

    def refuses(self, graph: Graph) -> str | None:
        """Flat graphs only."""
        return refuse_unless_flat(graph)

    def plan(self, problem: Problem, clock: Clock, seed: int) -> Plan:
        """The fastest member that fits; without one, that of the smallest peak."""
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
        """The members, before they are fitted; equal ones once."""
        nodes = np.flatnonzero(flat.required).tolist()
        near = joined(flat)
        leaves = sorted({max(1, len(nodes) // part) for part in _PARTS} | {1}) if self.leaf is None else [self.leaf]
        need = frozenset(flat.producer[flat.keep].tolist()) | {int(np.flatnonzero(flat.phase == LOSS)[0])}
        seen: set[bytes] = set()
        for rule in ORDERS if self.order is None else (self.order,):
            bags, tree = decomposed(near, nodes, rule)
            for leaf in leaves:
                recursion = _Recursion(flat, _LONGEST * len(nodes))
                try:
                    for part in separated(bags, tree, leaf):
                        recursion.solve(part, need & part.below)
                except TooLong:
                    continue
                runs = lawful(flat, recursion.runs)
                if runs.tobytes() not in seen:
                    seen.add(runs.tobytes())
                    yield f"least {rule}, parts of {leaf}", runs


def greedy(flat: Flat, runs: Ints, budget: int) -> Ints:
    """Clean-up, and six forward passes with a clean-up after each (steps 5 and 6 of the public implementation)."""
    key = flat.time[np.maximum(flat.producer, 0)] / np.maximum(flat.size, 1)
    sequence = cleaned(flat, runs)
    for _ in range(_PASSES):
        after = cleaned(flat, fitted(flat, sequence, budget, key))
        if len(after) == len(sequence):
            break
        sequence = after
    return sequence
