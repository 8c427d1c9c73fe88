"""`HPartition`: groups between a node and the common ancestor of its predecessors, the cheapest border first.

Reference: HiRemate (2024), section 3.1 and App. A (Algorithms 1 and 2, score of Eq. 1). The common ancestor of a node's
predecessors is its immediate dominator, found as the dominator tree grows.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Sequence
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
        while len(level) > self.top:
            merged = _Level(graph, level, self).merged()
            if len(merged) == len(level):
                break
            level = merged
        return tuple(_clusters(graph, _larger(level), unused("group", graph.names)))


def _apart(graph: Graph, node: int) -> bool:
    """Whether a node runs once and reads nothing of the forward: it can stay outside any group."""
    compute = graph.computes[node]
    return compute.run_once and not any(graph.writers_by_data[d] for d in graph.reads_by_node[node])


def _clusters(graph: Graph, groups: Sequence[Group], prefix: str) -> Iterable[Cluster]:
    """The groups as clusters that can be condensed together, those inside them as their children."""
    ordered = sorted(groups, key=lambda group: group.members[0])
    named = {f"{prefix}.{i}": group for i, group in enumerate(ordered)}
    condensed = condensable(
        graph, {name: [graph.computes[i].name for i in group.members] for name, group in named.items()}
    )
    for cluster in condensed:
        inner = _larger(named.pop(cluster.name).children)
        yield evolve(cluster, children=tuple(_clusters(graph, inner, cluster.name)))
    taken = {member for cluster in condensed for member in cluster.forward}
    for name in sorted(named):  # dissolved: what is inside stands for itself
        inner = _larger(named[name].children)
        yield from (cluster for cluster in _clusters(graph, inner, name) if taken.isdisjoint(cluster.forward))


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

    def __init__(self, graph: Graph, level: Sequence[Group], settings: HPartition) -> None:
        self.graph, self.settings = graph, settings
        before = self._before(level)
        self.level = list(TopologicalSorter(before).static_order())
        place = {group: k for k, group in enumerate(self.level)}
        self.before = [sorted(place[other] for other in before[group]) for group in self.level]

    def _before(self, level: Sequence[Group]) -> dict[Group, dict[Group, None]]:
        """Of each group the groups that its nodes depend on, softly too."""
        owner = {member: group for group in level for member in group.members}
        soft = predecessors(self.graph, soft=True)
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

    def score(self, nodes: frozenset[int]) -> float:
        """Eq. 1: bytes of the values at the border, times the number of operators to the power alpha."""
        graph = self.graph
        members = {member for k in nodes for member in self.level[k].members}
        touched = {d for i in members for d in (*graph.reads_by_node[i], *graph.writes_by_node[i])}
        border = sum(graph.data[d].size for d in touched if self._crosses(d, members))
        return float(border * len(members) ** self.settings.alpha)

    def _crosses(self, d: int, members: set[int]) -> bool:
        """Whether a datum that somebody writes is written, or read up to the loss, by others than the members."""
        writers, readers = self.graph.writers_by_data[d], self.graph.readers_by_data[d]
        ahead = [i for i in readers if i <= self.graph.loss]
        return bool(writers) and not (members.issuperset(writers) and members.issuperset(ahead))
