"""The graph of one training step: compute nodes in a topological order, data nodes, layers. Immutable.

Well-formedness has rules of its own (`G-…`, in `rules.py`); a `Graph` that exists keeps them all.
"""

from __future__ import annotations

from functools import cached_property

from attrs import field, frozen

from remat.ir.checks import a_name, a_tuple
from remat.ir.node import Compute, Data, Layer, Phantom, Phase
from remat.ir.rules import check_graph

Indices = tuple[tuple[int, ...], ...]


@frozen(kw_only=True)
class Graph:
    """One training step.

    Attributes:
        name: for people.
        computes: the compute nodes, in a topological order: forward nodes, the one loss node, backward nodes.
        data: the data nodes, in any order.
        layers: pairs of a forward and a backward node with options; empty in a flat graph.

    Raises:
        IllFormed: with the `G-…` rule that is broken and the place.
    """

    name: str = field(default="graph", validator=a_name)
    computes: tuple[Compute, ...] = field(validator=a_tuple(Compute))
    data: tuple[Data, ...] = field(validator=a_tuple(Data))
    layers: tuple[Layer, ...] = field(default=(), validator=a_tuple(Layer))

    def __attrs_post_init__(self) -> None:
        check_graph(self)

    def __len__(self) -> int:
        return len(self.computes)

    def __repr__(self) -> str:
        nodes = f"{len(self.computes)} nodes, {len(self.data)} data, {len(self.layers)} layers"
        return f"<Graph {self.name}: {nodes}>"

    @property
    def flat(self) -> bool:
        """Whether it has no layers and every node has one option."""
        return not self.layers and all(len(node.options) == 1 for node in self.computes)

    @cached_property
    def node_index(self) -> dict[str, int]:
        """Index in `computes` by name."""
        return {node.name: i for i, node in enumerate(self.computes)}

    @cached_property
    def data_index(self) -> dict[str, int]:
        """Index in `data` by name."""
        return {datum.name: i for i, datum in enumerate(self.data)}

    @cached_property
    def names(self) -> frozenset[str]:
        """All names: of compute nodes, data and phantoms."""
        return frozenset((*self.node_index, *self.data_index, *(layer.phantom for layer in self.layers)))

    @cached_property
    def loss(self) -> int:
        """Index of the loss node."""
        return next(i for i, node in enumerate(self.computes) if node.phase is Phase.LOSS)

    @cached_property
    def reads_by_node(self) -> Indices:
        """For each node, the data it reads under every option."""
        at = self.data_index
        return tuple(tuple(at[name] for name in node.reads) for node in self.computes)

    @cached_property
    def writes_by_node(self) -> Indices:
        """For each node, the data it writes."""
        at = self.data_index
        return tuple(tuple(at[name] for name in node.writes) for node in self.computes)

    @cached_property
    def writers_by_data(self) -> Indices:
        """For each datum, the nodes that write it, in the order of contribution."""
        at = self.node_index
        return tuple(tuple(at[name] for name in datum.writers) for datum in self.data)

    @cached_property
    def readers_by_data(self) -> Indices:
        """For each datum, the nodes that read it under some option, in the graph's order."""
        extra = {
            layer.backward: {name for one in layer.options for name in one.backward_reads} for layer in self.layers
        }
        readers: list[list[int]] = [[] for _ in self.data]
        for i, node in enumerate(self.computes):
            for name in dict.fromkeys((*node.reads, *sorted(extra.get(node.name, ())))):
                readers[self.data_index[name]].append(i)
        return tuple(tuple(one) for one in readers)

    @cached_property
    def phantoms(self) -> tuple[Phantom, ...]:
        """The phantoms of the layers, in their order."""
        return tuple(
            Phantom(name=layer.phantom, sizes=tuple(one.phantom for one in layer.options)) for layer in self.layers
        )

    @cached_property
    def layer_by_node(self) -> dict[str, Layer]:
        """The layer of a node, by the node's name."""
        return {name: layer for layer in self.layers for name in (layer.forward, layer.backward)}

    def node(self, name: str) -> Compute:
        """The compute node of that name (KeyError without one)."""
        return self.computes[self.node_index[name]]

    def datum(self, name: str) -> Data:
        """The datum of that name (KeyError without one)."""
        return self.data[self.data_index[name]]

    @cached_property
    def time(self) -> int:
        """Time of the captured order: every node once, by its fastest option [ns]."""
        return sum(min(one.time for one in node.options) for node in self.computes)
