"""`HPartition`: groups between a node and the common ancestor of its predecessors, the cheapest border first.

Reference: HiRemate (2024), section 3.1 and App. A (Algorithms 1 and 2, score of Eq. 1). The common ancestor of a node's
predecessors is its immediate dominator, found as the dominator tree grows.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
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
        return tuple(
            _clusters(graph, [group for group in level if len(group.members) > 1], unused("group", graph.names))
        )


def _apart(graph: Graph, node: int) -> bool:
    """Whether a node runs once and reads nothing of the forward: it can stay outside any group."""
    compute = graph.computes[node]
    return compute.run_once and not any(graph.writers_by_data[d] for d in graph.reads_by_node[node])


def _clusters(graph: Graph, groups: Sequence[Group], prefix: str) -> Iterable[Cluster]:
    """The groups as clusters that can be condensed together, those inside them as their children."""
    ordered = sorted(groups, key=lambda group: group.members[0])
    names = [node.name for node in graph.computes]
    by_name = {f"{prefix}.{i}": group for i, group in enumerate(ordered)}
    condensed = condensable(graph, {name: [names[i] for i in group.members] for name, group in by_name.items()})
    dissolved = set(by_name) - {cluster.name for cluster in condensed}
    for cluster in condensed:
        inner = [group for group in by_name[cluster.name].children if len(group.members) > 1]
        yield evolve(cluster, children=tuple(_clusters(graph, inner, cluster.name)))
    for name in sorted(dissolved):
        inner = [group for group in by_name[name].children if len(group.members) > 1]
        taken = {member for cluster in condensed for member in cluster.forward}
        yield from [cluster for cluster in _clusters(graph, inner, name) if not taken & set(cluster.forward)]


class _Level:
    """One round of merging. Nodes are indices of `level`, which is in a topological order."""

    def __init__(self, graph: Graph, level: Sequence[Group], settings: HPartition) -> None:
        self.graph, self.settings = graph, settings
        owner = {member: group for group in level for member in group.members}
        soft = predecessors(graph, soft=True)
        before = {
            group: dict.fromkeys(
                owner[j] for i in group.members for j in soft[i] if j in owner and owner[j] is not group
            )
            for group in level
        }
        self.level = list(TopologicalSorter(before).static_order())
        place = {group: k for k, group in enumerate(self.level)}
        self.before = [sorted(place[other] for other in before[group]) for group in self.level]

    def merged(self) -> list[Group]:
        """The level after its candidates have been merged, best first."""
        group_of = {k: frozenset([k]) for k in range(len(self.level))}
        candidates = dict(enumerate(self.candidates()))
        using: dict[int, set[int]] = {}
        for key, nodes in candidates.items():
            for k in nodes:
                using.setdefault(k, set()).add(key)
        heap = [(self.score(nodes), key) for key, nodes in candidates.items()]
        heapq.heapify(heap)
        count = len(self.level)
        current = {key: value for value, key in heap}
        while heap and count > self.settings.top:
            value, key = heapq.heappop(heap)
            if key not in candidates or current[key] != value:
                continue
            chosen = candidates.pop(key)
            count -= len({group_of[k] for k in chosen}) - 1
            for k in chosen:
                group_of[k] = chosen
            for other in sorted(set().union(*(using[k] for k in chosen)) & candidates.keys()):
                union = candidates[other] | chosen
                if len(union) > self.settings.lower or union == chosen:
                    del candidates[other]
                elif union != candidates[other]:
                    candidates[other] = union
                    for k in chosen:
                        using.setdefault(k, set()).add(other)
                    current[other] = self.score(union)
                    heapq.heappush(heap, (current[other], other))
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
        border = 0
        for d in touched:
            writers, readers = graph.writers_by_data[d], graph.readers_by_data[d]
            ahead = [i for i in readers if i <= graph.loss]
            if writers and not (members.issuperset(writers) and members.issuperset(ahead)):
                border += graph.data[d].size
        return float(border * len(members) ** self.settings.alpha)
