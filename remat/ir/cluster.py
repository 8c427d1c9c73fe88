"""Clusters: convex sets of forward nodes with their backward twins; a hierarchy is a tree of them.

Reference: HiRemate, App. A (convexity) and C.1.2 (soft dependencies). A cluster can be run as one: no path leaves it and comes
back. Soft dependencies (`Compute.after`) count as edges for partitioners alone.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping

from attrs import field, frozen

from remat.errors import IllFormed
from remat.ir.checks import a_name, a_tuple
from remat.ir.graph import Graph
from remat.ir.node import Phase


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


def unused(word: str, names: Collection[str]) -> str:
    """The word, with underscores appended until no name begins with it: for names of clusters, layers and their data."""
    while any(name.startswith(word) for name in names):
        word += "_"
    return word


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


def is_convex(graph: Graph, names: Iterable[str], *, soft: bool = True) -> bool:
    """Whether no path between two of the nodes leaves the set; soft dependencies count unless `soft=False`."""
    inside = {graph.node_index[name] for name in names}
    return not inside or next(between(predecessors(graph, soft=soft), inside), None) is None


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
    of: dict[int, str] = {}
    for name, members in groups.items():
        for member in members:
            index = graph.node_index.get(member)
            if index is None or graph.computes[index].phase is not Phase.FORWARD:
                raise IllFormed(
                    "G-CLUSTER", f"{member!r} in {name!r} is not a forward node.", fix="name forward nodes."
                )
            if index in of:
                fix = "give each node one cluster."
                raise IllFormed("G-CLUSTER", f"{member!r} stands in {of[index]!r} and {name!r}.", fix=fix)
            of[index] = name
    soft = predecessors(graph, soft=True)
    forward: dict[str, list[int]] = {}
    for index in sorted(of):
        forward.setdefault(of[index], []).append(index)
    for name, inside in forward.items():
        for odd in between(soft, set(inside)):
            what = f"{graph.computes[odd].name!r} lies between nodes of the cluster {name!r}, outside it."
            raise IllFormed("G-CLUSTER", what, fix="take it in, or split the cluster.")
    backward = _backward_parts(graph, of)
    names = [node.name for node in graph.computes]
    return tuple(
        Cluster(
            name=name,
            forward=tuple(names[i] for i in forward.get(name, ())),
            backward=tuple(names[i] for i in backward.get(name, ())),
        )
        for name in groups
    )


def _backward_parts(graph: Graph, of: Mapping[int, str]) -> dict[str, list[int]]:
    before = predecessors(graph)
    color: dict[int, str] = {}
    parts: dict[str, set[int]] = {}
    for i in range(graph.loss + 1, len(graph)):
        twin = graph.computes[i].twin
        if twin and graph.node_index[twin] in of:
            color[i] = of[graph.node_index[twin]]
            parts.setdefault(color[i], set()).add(i)
    for name, part in parts.items():
        for odd in between(before, part):
            if color.get(odd, name) != name:
                what = f"{graph.computes[odd].name!r}, of {color[odd]!r}, lies within the backward of {name!r}."
                raise IllFormed("G-CLUSTER", what, fix="merge the two clusters, or split them otherwise.")
            color[odd] = name
            part.add(odd)
    free = [i for i in range(graph.loss + 1, len(graph)) if i not in color and not graph.computes[i].twin]
    for i in free:
        reads_from = [j for j in before[i] if j in color]
        if not reads_from:
            continue
        name = color[reads_from[-1]]
        if not _would_leave(before, parts[name], i):
            color[i] = name
            parts[name].add(i)
    after: dict[int, list[int]] = {}
    for i in range(graph.loss + 1, len(graph)):
        for j in before[i]:
            after.setdefault(j, []).append(i)
    for i in reversed(free):
        names = {color.get(j) for j in after.get(i, ())}
        if i not in color and len(names) == 1 and (only := names.pop()) and not _would_leave(before, parts[only], i):
            color[i] = only
            parts[only].add(i)
    return {name: sorted(part) for name, part in parts.items()}


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
