"""Clusters: convex sets of forward nodes with their backward twins; a hierarchy is a tree of them.

Reference: HiRemate, App. A (convexity) and C.1.2 (soft dependencies). A cluster can be run as one: no path leaves it and comes
back. Soft dependencies (`Compute.after`) count as edges for partitioners alone.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping

from attrs import field, frozen

from remat.errors import IllFormed
from remat.ir.arguments import A_GRAPH, A_TABLE
from remat.ir.checks import a_name, a_tuple
from remat.ir.graph import Graph
from remat.ir.node import Phase
from remat.settings import MANY, Setting, instance, takes


@frozen(kw_only=True)
class Cluster:
    """A part of a graph that a level above sees as one layer.

    Attributes:
        name: unique among clusters and names of the graph.
        forward: names of its forward nodes, in the graph's order; convex.
        backward: names of its backward nodes, in the graph's order: their twins, and what lies between; convex.
        children: clusters inside it, one level down; empty at the lowest level.
    """

    name: str = field(validator=a_name)
    forward: tuple[str, ...] = field(validator=a_tuple(str))
    backward: tuple[str, ...] = field(default=(), validator=a_tuple(str))
    children: tuple[Cluster, ...] = ()

    def __attrs_post_init__(self) -> None:
        if not self.forward:
            raise IllFormed("G-CLUSTER", f"the cluster {self.name!r} has no forward node.", fix="give it one.")
        inside = set(self.forward)
        for child in self.children:
            if not isinstance(child, Cluster) or not set(child.forward) <= inside:
                fix = "let children hold nodes of their parent."
                raise IllFormed("G-CLUSTER", f"a child of {self.name!r} reaches outside it.", fix=fix)

    def __len__(self) -> int:
        return len(self.forward)

    @property
    def nodes(self) -> tuple[str, ...]:
        """Forward and backward nodes."""
        return self.forward + self.backward


def require_nodes(graph: Graph, cluster: Cluster) -> None:
    """Refuse a cluster of another graph.

    Raises:
        IllFormed: G-CLUSTER.
    """
    for name in cluster.nodes:
        if name not in graph.node_index:
            what = f"the cluster {cluster.name!r} holds {name!r}, which is no node of {graph!r}."
            raise IllFormed("G-CLUSTER", what, fix="give the graph that the cluster is of.")


def unused(word: str, names: Collection[str]) -> str:
    """The word, with underscores appended until no name begins with it: for names of clusters, layers and their data."""
    while any(name.startswith(word) for name in names):
        word += "_"
    return word


def _are_clusters(value: object) -> bool:
    return isinstance(value, (tuple, list)) and all(isinstance(cluster, Cluster) for cluster in value)


A_CLUSTER = instance(Cluster, "clusters(graph, groups)[0]")
CLUSTERS = Setting("a tuple of clusters, e.g. clusters(graph, groups)", _are_clusters)


def predecessors(graph: Graph, *, soft: bool = False) -> tuple[tuple[int, ...], ...]:
    """For each node, the nodes whose data it reads, in order; with `soft` also those it only runs after.

    A hint that names the node itself or a later one contradicts the graph's order, and is none.
    """
    rows = []
    for i, node in enumerate(graph.computes):
        before = {writer for datum in graph.reads_by_node[i] for writer in graph.writers_by_data[datum]}
        if soft:
            before.update(j for name in node.after if (j := graph.node_index[name]) < i)
        rows.append(tuple(sorted(before)))
    return tuple(rows)


def between(before: tuple[tuple[int, ...], ...], inside: Collection[int]) -> Iterator[int]:
    """Nodes outside a set that lie on a path between two of its nodes. Linear in the part of the order that the set spans."""
    low, high = min(inside), max(inside)
    reached = set(inside)
    for i in range(low, high + 1):
        if i not in reached and any(j in reached for j in before[i] if j >= low):
            reached.add(i)
    leads = set(inside)
    for i in range(high, low - 1, -1):
        if i in leads:
            leads.update(j for j in before[i] if j >= low)
    yield from sorted((reached & leads) - set(inside))


@takes(graph=A_GRAPH, names=MANY)
def is_convex(graph: Graph, names: Iterable[str], *, soft: bool = True) -> bool:
    """Whether no path between two of the nodes leaves the set; soft dependencies count unless `soft=False`.

    Raises:
        IllFormed: G-UNKNOWN, for a name that is no node's.
    """
    inside = set()
    for name in names:
        if name not in graph.node_index:
            raise IllFormed("G-UNKNOWN", f"is_convex: there is no node {name!r:.80}.", fix="name nodes of the graph.")
        inside.add(graph.node_index[name])
    return not inside or next(between(predecessors(graph, soft=soft), inside), None) is None


@takes(graph=A_GRAPH, groups=A_TABLE)
def clusters(graph: Graph, groups: Mapping[str, Iterable[str]]) -> tuple[Cluster, ...]:
    """Clusters of disjoint convex groups of forward nodes, each with its part of the backward.

    The backward part holds the twins of the group's nodes and what lies between them. Backward nodes without a twin join
    the group of the last node they read from, or of their readers, where the part stays convex.

    Args:
        graph: the flat graph.
        groups: forward nodes by name of the cluster.

    Raises:
        IllFormed: G-CLUSTER, when a group is not convex, shares a node, or its backward part cannot be made convex.
    """
    cluster_of = _owners(graph, groups)
    before = predecessors(graph)
    soft = predecessors(graph, soft=True) if any(node.after for node in graph.computes) else before
    forward: dict[str, list[int]] = {}
    for index in sorted(cluster_of):
        forward.setdefault(cluster_of[index], []).append(index)
    for name, inside in forward.items():
        for odd in between(soft, set(inside)):
            what = f"{graph.computes[odd].name!r} lies between nodes of the cluster {name!r}, outside it."
            raise IllFormed("G-CLUSTER", what, fix="take it in, or split the cluster.")
    backward = _Backward(graph, cluster_of, before).parts
    names = [node.name for node in graph.computes]
    return tuple(
        Cluster(
            name=name,
            forward=tuple(names[i] for i in forward.get(name, ())),
            backward=tuple(names[i] for i in sorted(backward.get(name, ()))),
        )
        for name in groups
    )


def _owners(graph: Graph, groups: Mapping[str, Iterable[str]]) -> dict[int, str]:
    """The cluster of each forward node that is in one, by index."""
    cluster_of: dict[int, str] = {}
    for name, members in groups.items():
        MANY.check(members, f"clusters: groups[{name!r:.80}]")
        for member in members:
            index = graph.node_index.get(member)
            if index is None or graph.computes[index].phase is not Phase.FORWARD:
                raise IllFormed(
                    "G-CLUSTER", f"{member!r} in {name!r} is not a forward node.", fix="name forward nodes."
                )
            if index in cluster_of:
                fix = "give each node one cluster."
                raise IllFormed("G-CLUSTER", f"{member!r} stands in {cluster_of[index]!r} and {name!r}.", fix=fix)
            cluster_of[index] = name
    return cluster_of


class _Backward:
    """The backward parts of clusters, by name: first twins, then what lies between them, then nodes without a twin.

    Attributes:
        cluster_of: the cluster of each backward node that is in one, by index.
        parts: the nodes of each cluster that has any.
    """

    def __init__(self, graph: Graph, forward: Mapping[int, str], before: tuple[tuple[int, ...], ...]) -> None:
        self.graph = graph
        self.before = before
        self.cluster_of: dict[int, str] = {}
        self.parts: dict[str, set[int]] = {}
        nodes = range(graph.loss + 1, len(graph))
        by_twin = {graph.computes[i].name: name for i, name in forward.items()}
        for i in nodes:
            if graph.computes[i].twin in by_twin:
                self._add(i, by_twin[graph.computes[i].twin])
        for name in tuple(self.parts):
            self._close(name)
        free = [i for i in nodes if i not in self.cluster_of and not graph.computes[i].twin]
        for i in free:
            self._join_producer(i)
        self._join_readers(reversed(free))

    def _add(self, node: int, name: str) -> None:
        self.cluster_of[node] = name
        self.parts.setdefault(name, set()).add(node)

    def _close(self, name: str) -> None:
        """Take in what lies between the twins of a cluster."""
        for odd in between(self.before, self.parts[name]):
            other = self.cluster_of.get(odd, name)
            if other != name:
                what = f"{self.graph.computes[odd].name!r}, of {other!r}, lies within the backward of {name!r}."
                raise IllFormed("G-CLUSTER", what, fix="merge the two clusters, or split them otherwise.")
            self._add(odd, name)

    def _join_producer(self, node: int) -> None:
        """Put a node in the part of the last one it reads from, where the part stays convex."""
        names = [self.cluster_of[j] for j in self.before[node] if j in self.cluster_of]
        if names and not _would_leave(self.before, self.parts[names[-1]], node):
            self._add(node, names[-1])

    def _join_readers(self, nodes: Iterable[int]) -> None:
        """Put each node, last first, in the part of its readers, where they are in one cluster and the part stays convex."""
        readers: dict[int, list[int]] = {}
        for i in range(self.graph.loss + 1, len(self.graph)):
            for j in self.before[i]:
                readers.setdefault(j, []).append(i)
        for node in nodes:
            names = {self.cluster_of.get(j) for j in readers.get(node, ())}
            only = names.pop() if len(names) == 1 and node not in self.cluster_of else None
            if only and not _would_leave(self.before, self.parts[only], node):
                self._add(node, only)


def _would_leave(before: tuple[tuple[int, ...], ...], part: set[int], node: int) -> bool:
    """Whether a path from the part to the node runs outside the part."""
    low = min(part)
    stack = [j for j in before[node] if j >= low and j not in part]
    seen = set(stack)
    while stack:
        for j in before[stack.pop()]:
            if j in part:
                return True
            if j >= low and j not in seen:
                seen.add(j)
                stack.append(j)
    return False
