"""Partitioners: a flat graph as clusters that the level above sees as layers.

What a partitioner returns must be condensable; `remat.testing.check_partitioner` says whether it is.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

from attrs import field, frozen

from remat.errors import IllFormed
from remat.ir import Cluster, Graph, Phase, clusters, condense
from remat.ir.checks import at_least


class Partitioner(ABC):
    """Divides a graph. Subclasses are frozen attrs classes of settings; their repr rebuilds them."""

    __slots__ = ()

    def refuses(self, graph: Graph) -> str | None:
        """Why this partitioner cannot treat the graph; None when it can."""
        return None if graph.flat else "the graph has layers or options; expand it first"

    @abstractmethod
    def partition(self, graph: Graph) -> tuple[Cluster, ...]:
        """Disjoint clusters of one level, the levels below as their children. Nodes may be left over; they stay plain."""


@frozen
class Undivided(Partitioner):
    """No clusters: the level above sees the graph itself."""

    def partition(self, graph: Graph) -> tuple[Cluster, ...]:
        """Nothing."""
        del graph
        return ()


@frozen
class Stretches(Partitioner):
    """Stretches of the captured order, so many forward nodes each; a stretch that cannot be condensed is dissolved.

    Run-once nodes stay outside where the rest of their stretch is convex without them, so that layers may be replayed.

    Attributes:
        size: forward nodes in a stretch.
    """

    size: int = field(default=20, validator=at_least(1, "nodes"))

    def partition(self, graph: Graph) -> tuple[Cluster, ...]:
        """The stretches, named `stretch.0`, …."""
        forward = [node for node in graph.computes if node.phase is Phase.FORWARD]
        groups = {
            f"stretch.{i // self.size}": [node.name for node in forward[i : i + self.size]]
            for i in range(0, len(forward), self.size)
        }
        for name, members in list(groups.items()):
            again = [one for one in members if not graph.node(one).run_once]
            if again and _fits(graph, {name: again}):
                groups[name] = again
        while not _fits(graph, groups):
            odd = next((name for name in groups if not _fits(graph, {name: groups[name]})), next(iter(groups)))
            del groups[odd]
        return clusters(graph, groups)


def _fits(graph: Graph, groups: dict[str, list[str]]) -> bool:
    try:
        condense(graph, clusters(graph, groups))
    except IllFormed:
        return False
    return True
