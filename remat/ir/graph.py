"""The graph of one training step: compute nodes in a topological order, data nodes, layers. Immutable, its tables too.

Well-formedness has rules of its own (`G-…`, in `rules.py`); a `Graph` that exists keeps them all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from types import MappingProxyType
from typing import NamedTuple

from attrs import evolve, field, frozen

from remat._frozen import copied, share
from remat.errors import IllFormed
from remat.ir.checks import a_name, a_tuple
from remat.ir.node import Compute, Data, Layer, Phantom, Phase
from remat.ir.option import LayerOption, Option
from remat.ir.rules import check_graph, check_sums
from remat.ir.step import Drop, Run
from remat.units import LARGEST, Bytes

Indices = tuple[tuple[int, ...], ...]
STRUCTURE = (
    "node_index", "data_index", "names", "loss", "reads_by_node", "writes_by_node", "writers_by_data", "readers_by_data",
    "phantoms", "layer_by_node", "required", "before_first_run", "first_runs", "drops",
)  # fmt: skip
"""What follows from names, reads and writes alone."""


class Touched(NamedTuple):
    """What one run reads and makes: bytes by name of datum or phantom. What is outside the budget takes no bytes."""

    reads: Mapping[str, Bytes]
    makes: Mapping[str, Bytes]


@frozen(kw_only=True)
class Graph:
    """One training step.

    Attributes:
        name: shown in messages and pictures.
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
    def node_index(self) -> Mapping[str, int]:
        """Index in `computes` by name."""
        return MappingProxyType({node.name: i for i, node in enumerate(self.computes)})

    @cached_property
    def data_index(self) -> Mapping[str, int]:
        """Index in `data` by name."""
        return MappingProxyType({datum.name: i for i, datum in enumerate(self.data)})

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
            layer.backward: {name for option in layer.options for name in option.backward_reads}
            for layer in self.layers
        }
        readers: list[list[int]] = [[] for _ in self.data]
        for i, node in enumerate(self.computes):
            for name in dict.fromkeys((*node.reads, *sorted(extra.get(node.name, ())))):
                readers[self.data_index[name]].append(i)
        return tuple(tuple(row) for row in readers)

    @cached_property
    def phantoms(self) -> tuple[Phantom, ...]:
        """The phantoms of the layers, in their order."""
        return tuple(
            Phantom(name=layer.phantom, sizes=tuple(option.phantom for option in layer.options))
            for layer in self.layers
        )

    @cached_property
    def layer_by_node(self) -> Mapping[str, Layer]:
        """The layer of a node, by the node's name."""
        pairs = {name: layer for layer in self.layers for name in (layer.forward, layer.backward)}
        return MappingProxyType(pairs)

    @cached_property
    def required(self) -> frozenset[int]:
        """Indices of the nodes that every schedule runs.

        Forward nodes and the loss (S-PHASE), writers of kept data (S-END), and before each of these the writers of what it
        reads under every option (S-READ), earlier contributors to what it writes (S-ONCE) and earlier draws (S-ORDER).
        """
        needed = {i for i, node in enumerate(self.computes) if node.phase is not Phase.BACKWARD}
        stack = [i for d, datum in enumerate(self.data) if datum.keep for i in self.writers_by_data[d]]
        while stack:
            i = stack.pop()
            if i not in needed:
                needed.add(i)
                stack += self.before_first_run[i]
        return frozenset(needed)

    @cached_property
    def before_first_run(self) -> Indices:
        """For each node, the nodes that must run before its first run: producers, earlier contributors, the draw before it."""
        writers = self.writers_by_data
        rows: list[tuple[int, ...]] = []
        last_draw: int | None = None
        for i, node in enumerate(self.computes):
            before = {writer for d in self.reads_by_node[i] for writer in writers[d]}
            for d in self.writes_by_node[i]:
                before.update(writers[d][: writers[d].index(i)])
            if node.draws:
                before.update(() if last_draw is None else (last_draw,))
                last_draw = i
            rows.append(tuple(sorted(before)))
        return tuple(rows)

    def with_costs(
        self, sizes: Sequence[Bytes], options: Sequence[tuple[Option, ...]], signatures: Sequence[str]
    ) -> Graph:
        """The same nodes and data with other costs, in much less time than it takes to build a graph.

        Args:
            sizes: of the data, in their order [bytes].
            options: of the compute nodes, in their order, as many for each as it has.
            signatures: of the compute nodes.

        Raises:
            IllFormed: G-LAYER where there are layers, G-OPT where a node has another number of options, G-INT, G-RANGE.
        """
        if self.layers:
            raise IllFormed("G-LAYER", "the costs of layers are those of their options.", fix="build the graph anew.")
        for node, offered in zip(self.computes, options, strict=True):
            if len(node.options) != len(offered):
                what = f"{node.name!r} has {len(node.options)} options, not {len(offered)}."
                raise IllFormed("G-OPT", what, fix="give as many.")
        for datum, size in zip(self.data, sizes, strict=True):
            if type(size) is not int or not 0 <= size <= LARGEST:
                evolve(datum, size=size)  # says what is wrong
        computes = tuple(
            copied(node, (("options", offered), ("signature", signature)))
            for node, offered, signature in zip(self.computes, options, signatures, strict=True)
        )
        data = tuple(copied(datum, (("size", size),)) for datum, size in zip(self.data, sizes, strict=True))
        graph = copied(self, (("computes", computes), ("data", data)))
        share(self, graph, STRUCTURE)
        check_sums(graph)
        return graph

    def touched(self, run: Run) -> Touched:
        """What a run reads and makes under its option, phantoms included (KeyError where there is no such run)."""
        return self._touched_by_run[run.node, run.option]

    @cached_property
    def _touched_by_run(self) -> Mapping[tuple[str, int], Touched]:
        size = {datum.name: 0 if datum.outside else datum.size for datum in self.data}
        table: dict[tuple[str, int], Touched] = {}
        for node in self.computes:
            reads = {name: size[name] for name in node.reads}
            makes = {name: size[name] for name in node.writes}
            layer = self.layer_by_node.get(node.name)
            options = () if layer is None else layer.options
            for k in range(len(node.options)):
                read, written = reads, makes
                if layer is not None and k < len(options):  # the last option of a forward node leaves no phantom
                    phantom = {layer.phantom: options[k].phantom}
                    read = reads | _read_under(options[k], phantom, size) if node.name == layer.backward else reads
                    written = makes | phantom if node.name == layer.forward else makes
                table[node.name, k] = Touched(MappingProxyType(read), MappingProxyType(written))
        return MappingProxyType(table)

    def node(self, name: str) -> Compute:
        """The compute node of that name (KeyError without one)."""
        return self.computes[self.node_index[name]]

    def datum(self, name: str) -> Data:
        """The datum of that name (KeyError without one)."""
        return self.data[self.data_index[name]]

    @cached_property
    def first_runs(self) -> tuple[Run, ...]:
        """A run of each node by its first option, in the captured order; made once, for all schedules of the graph."""
        return tuple(Run(node.name) for node in self.computes)

    @cached_property
    def drops(self) -> Mapping[str, Drop]:
        """A drop of each datum and phantom, by name; likewise."""
        names = (*(datum.name for datum in self.data), *(layer.phantom for layer in self.layers))
        return MappingProxyType({name: Drop(name) for name in names})

    @cached_property
    def time(self) -> int:
        """Time of the captured order: every node once, by its fastest option [ns]."""
        return sum(min(option.time for option in node.options) for node in self.computes)


def _read_under(option: LayerOption, phantom: Mapping[str, Bytes], size: Mapping[str, Bytes]) -> dict[str, Bytes]:
    """What a backward node reads under one option alone."""
    return {**phantom, **{name: size[name] for name in option.backward_reads}}
