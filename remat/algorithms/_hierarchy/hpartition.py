"""`HPartition`: groups between a node and the common ancestor of its predecessors, the cheapest border first.

Reference: HiRemate (2024), section 3.1 and App. A (Algorithms 1 and 2, score of Eq. 1). The common ancestor of a node's
predecessors is its immediate dominator, found as the dominator tree grows.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from graphlib import TopologicalSorter

from attrs import evolve, field, frozen

from remat.algorithms._hierarchy.partition import Partitioner, condensable
from remat.ir import Cluster, Graph, Phase
from remat.ir.cluster import predecessors, unused
from remat.settings import number, whole

_ROOT = -1  # the common ancestor of all nodes


@frozen(eq=False)
class Group:
    """A node of a level: forward nodes of the graph, by index, and the groups of the level below that it was merged from."""

    members: tuple[int, ...]
    children: tuple[Group, ...] = ()


@frozen
class HPartition(Partitioner):
    """Merge candidate groups until at most `top` nodes are left, level by level.

    Departures: nodes that run once stay outside the groups where the rest is convex without them, so that layers may be
    replayed; a group whose backward cannot be condensed is dissolved into the groups inside it.

    Attributes:
        top: forward nodes (groups counting one) that the top level may have.
        lower: most nodes of one group.
        alpha: exponent of the number of operators in the score; the paper's default.
    """

    top: int = field(default=30, validator=whole(1, "nodes"))
    lower: int = field(default=20, validator=whole(2, "nodes"))
    alpha: float = field(default=0.5, validator=number(0))

    def partition(self, graph: Graph) -> tuple[Cluster, ...]:
        """Clusters named `group.0`, … in the order of their first nodes; inner ones `group.0.0`, …."""
        level = [
            Group((i,)) for i in range(graph.loss) if graph.computes[i].phase is Phase.FORWARD and not _apart(graph, i)
        ]
        soft = predecessors(graph, soft=True)
        while len(level) > self.top:
            merged = _Level(graph, level, self, soft).merged()
            if len(merged) == len(level):
                break
            level = merged
        return _clusters(graph, _larger(level), unused("group", graph.names))


def _apart(graph: Graph, node: int) -> bool:
    """Whether a node runs once and reads nothing of the forward: it can stay outside any group."""
    compute = graph.computes[node]
    return compute.run_once and not any(graph.writers_by_data[d] for d in graph.reads_by_node[node])


def _clusters(graph: Graph, groups: Sequence[Group], prefix: str) -> tuple[Cluster, ...]:
    """The groups as clusters that can be condensed together, those inside them as their children."""
    named = _named(groups, prefix)
    by_depth: list[dict[str, Group]] = []
    inside = named
    while inside:
        by_depth.append(inside)
        inside = {
            name: group for outer in inside for name, group in _named(_larger(inside[outer].children), outer).items()
        }
    whole: dict[str, Cluster] = {}
    for deep in by_depth:
        condensed = condensable(graph, {name: _names(graph, group) for name, group in deep.items()})
        if len(condensed) < len(deep):  # where a group is dissolved, what is inside takes its place: level by level
            return tuple(_dissolving(graph, named))
        whole.update((cluster.name, cluster) for cluster in condensed)
    children: dict[str, list[Cluster]] = {}
    for deep in reversed(by_depth):
        for name in deep:
            whole[name] = evolve(whole[name], children=tuple(children.get(name, ())))
        for name in deep:
            children.setdefault(name.rpartition(".")[0], []).append(whole[name])
    return tuple(whole[name] for name in named)


def _named(groups: Sequence[Group], prefix: str) -> dict[str, Group]:
    """The groups by name, in the order of their first nodes."""
    return {f"{prefix}.{i}": group for i, group in enumerate(sorted(groups, key=lambda group: group.members[0]))}


def _names(graph: Graph, group: Group) -> list[str]:
    return [graph.computes[i].name for i in group.members]


def _dissolving(graph: Graph, named: Mapping[str, Group]) -> Iterable[Cluster]:
    """Groups as clusters where some cannot be condensed; these are dissolved into the groups inside."""
    condensed = condensable(graph, {name: _names(graph, group) for name, group in named.items()})
    left = dict(named)
    for cluster in condensed:
        inner = _named(_larger(left.pop(cluster.name).children), cluster.name)
        yield evolve(cluster, children=tuple(_dissolving(graph, inner)))
    taken = {member for cluster in condensed for member in cluster.forward}
    for name in sorted(left):
        inner = _named(_larger(left[name].children), name)
        yield from (cluster for cluster in _dissolving(graph, inner) if taken.isdisjoint(cluster.forward))


def _larger(groups: Sequence[Group]) -> list[Group]:
    """Groups of more than one node."""
    return [group for group in groups if len(group.members) > 1]


class _Candidates:
    """Candidate groups by score. Those that overlap a merged group are joined with it, or dropped when they grow too large."""

    def __init__(
        self, candidates: Iterable[frozenset[int]], score: Callable[[frozenset[int]], float], largest: int
    ) -> None:
        self.nodes = dict(enumerate(candidates))
        self.score, self.largest = score, largest
        self.value = {key: score(nodes) for key, nodes in self.nodes.items()}
        self.heap = [(value, key) for key, value in self.value.items()]
        heapq.heapify(self.heap)
        self.using: dict[int, set[int]] = {}
        for key, nodes in self.nodes.items():
            self._note(key, nodes)

    def _note(self, key: int, nodes: frozenset[int]) -> None:
        for k in nodes:
            self.using.setdefault(k, set()).add(key)

    def pop(self) -> frozenset[int] | None:
        """Remove and return the best candidate; None without one."""
        while self.heap:
            value, key = heapq.heappop(self.heap)
            if key in self.nodes and self.value[key] == value:
                return self.nodes.pop(key)
        return None

    def join(self, chosen: frozenset[int]) -> None:
        """Extend every candidate that shares a node with a merged group by the whole group."""
        for key in sorted(set().union(*(self.using[k] for k in chosen)) & self.nodes.keys()):
            union = self.nodes[key] | chosen
            if len(union) > self.largest or union == chosen:
                del self.nodes[key]
            elif union != self.nodes[key]:
                self.nodes[key] = union
                self._note(key, chosen)
                self.value[key] = self.score(union)
                heapq.heappush(self.heap, (self.value[key], key))


class _Level:
    """One round of merging. Nodes are indices of `level`, which is in a topological order."""

    def __init__(
        self, graph: Graph, level: Sequence[Group], settings: HPartition, soft: Sequence[Sequence[int]]
    ) -> None:
        self.graph, self.settings = graph, settings
        before = self._before(level, soft)
        self.level = list(TopologicalSorter(before).static_order())
        place = {group: k for k, group in enumerate(self.level)}
        self.before = [sorted(place[other] for other in before[group]) for group in self.level]

    def _before(self, level: Sequence[Group], soft: Sequence[Sequence[int]]) -> dict[Group, dict[Group, None]]:
        """Of each group the groups that its nodes depend on; `soft`: the nodes before each node."""
        owner = {member: group for group in level for member in group.members}
        before: dict[Group, dict[Group, None]] = {}
        for group in level:
            owners = [owner[j] for i in group.members for j in soft[i] if j in owner]
            before[group] = dict.fromkeys(other for other in owners if other is not group)
        return before

    def merged(self) -> list[Group]:
        """The level after its candidates have been merged, best first."""
        group_of = {k: frozenset([k]) for k in range(len(self.level))}
        queue = _Candidates(self.candidates(), self.score, self.settings.lower)
        count = len(self.level)
        while count > self.settings.top and (chosen := queue.pop()) is not None:
            count -= len({group_of[k] for k in chosen}) - 1
            group_of.update(dict.fromkeys(chosen, chosen))
            queue.join(chosen)
        return [self.group(nodes) for nodes in dict.fromkeys(group_of.values())]

    def group(self, nodes: frozenset[int]) -> Group:
        """Nodes of this level as one of the next."""
        if len(nodes) == 1:
            return self.level[next(iter(nodes))]
        parts = [self.level[k] for k in sorted(nodes)]
        return Group(tuple(sorted(member for part in parts for member in part.members)), tuple(parts))

    def candidates(self) -> list[frozenset[int]]:
        """For each node, the nodes between its dominator and it, with and without the two ends.

        All that enters such a group comes from the dominator (property 1 of the paper), which makes it and unions convex.
        """
        candidates: dict[frozenset[int], None] = {}
        for x in range(len(self.level)):
            inside = self.between(x)
            if inside is None:
                continue
            head = self.dominator[x]
            ends = [{x}, set()] if head == _ROOT else [{x, head}, {x}, {head}, set()]
            for end in ends:
                candidate = frozenset(inside | end)
                if 1 < len(candidate) <= self.settings.lower:
                    candidates[candidate] = None
        return list(candidates)

    def between(self, x: int) -> set[int] | None:
        """Nodes strictly between the dominator of a node and it; None: too many."""
        head, inside = self.dominator[x], set[int]()
        stack = [j for j in self.before[x] if j != head]
        while stack:
            k = stack.pop()
            if k in inside:
                continue
            inside.add(k)
            if len(inside) > self.settings.lower:
                return None
            stack += [j for j in self.before[k] if j != head]
        return inside

    @cached_property
    def dominator(self) -> list[int]:
        """The immediate dominator of each node, `_ROOT` above all."""
        parent: list[int] = []
        depth: list[int] = []
        for before in self.before:
            head = before[0] if before else _ROOT
            for other in before[1:]:
                j = other
                while head != j:
                    if head == _ROOT or (j != _ROOT and depth[j] > depth[head]):
                        j = parent[j]
                    else:
                        head = parent[head]
            parent.append(head)
            depth.append(0 if head == _ROOT else depth[head] + 1)
        return parent

    @cached_property
    def border(self) -> _Border:
        """What crosses the borders of the groups of this level."""
        return _Border(self.graph, self.level)

    def score(self, nodes: frozenset[int]) -> float:
        """Eq. 1: bytes of the values at the border, times the number of operators to the power alpha."""
        operators = sum(len(self.level[k].members) for k in nodes)
        return float(self.border.size(nodes) * operators**self.settings.alpha)


class _Border:
    """The data of the step that more than one group of a level touches up to the loss, or a group and what is in none.

    Attributes:
        groups: the groups that touch each such datum. apart: data that a node in no group touches.
        by_group: such data, by group.
    """

    def __init__(self, graph: Graph, level: Sequence[Group]) -> None:
        owner = {member: k for k, group in enumerate(level) for member in group.members}
        self.graph = graph
        self.groups: dict[int, frozenset[int]] = {}
        self.apart: set[int] = set()
        self.by_group: list[list[int]] = [[] for _ in level]
        for d, (writers, readers) in enumerate(zip(graph.writers_by_data, graph.readers_by_data, strict=True)):
            if not writers:
                continue
            users = {owner.get(i, -1) for i in (*writers, *(i for i in readers if i <= graph.loss))}
            if len(users) == 1:
                continue
            if -1 in users:
                self.apart.add(d)
                users.discard(-1)
            self.groups[d] = frozenset(users)
            for k in users:
                self.by_group[k].append(d)

    def size(self, nodes: frozenset[int]) -> int:
        """Bytes of the data that cross the border of some groups together."""
        touched = {d for k in nodes for d in self.by_group[k]}
        return sum(self.graph.data[d].size for d in touched if d in self.apart or not self.groups[d] <= nodes)
