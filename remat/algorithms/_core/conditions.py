"""Tests of a graph for `s.when(test)`, with reprs that rebuild them."""

from __future__ import annotations

from attrs import field, frozen

from remat.ir import Graph
from remat.ir.arguments import A_GRAPH
from remat.settings import takes, whole


@frozen
class nodes_at_most:
    """Test: the graph has at most a given number of compute nodes."""

    limit: int = field(validator=whole(0, "nodes"))

    def __call__(self, graph: Graph) -> bool:
        """Whether the graph is small enough."""
        return len(graph) <= self.limit

    def __repr__(self) -> str:
        return f"nodes_at_most({self.limit})"


@takes(graph=A_GRAPH)
def is_flat(graph: Graph) -> bool:
    """Test: no layers, one option per node."""
    return graph.flat
