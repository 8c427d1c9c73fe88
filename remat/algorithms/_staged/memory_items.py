"""A graph as the MILP formulations see it: cells, i.e. data and the phantoms of single options, with their writers and readers.

A phantom of a layer with several options becomes one cell per option, written by the forward node under that option
and read by the backward node under it; at most one of them is resident. Data outside the budget are left out. Source:
HiRemate, App. B.1.
"""

from __future__ import annotations

from functools import cached_property

from attrs import field, frozen

from remat.ir import Graph, Phase

Use = tuple[int, tuple[int, ...]]
"""A node and those of its options that write or read the cell."""


@frozen(kw_only=True)
class Cell:
    """One thing that takes memory.

    Attributes:
        name: of the datum or phantom. size: bytes.
        writers: in the order of contribution. readers: in the graph's order.
        keep: never dropped once complete.
        layer, option: of a phantom; -1, -1 for a datum.
        boundary: the loss node reads or writes it, or it is kept: not part of what a block saves.
    """

    name: str
    size: int
    writers: tuple[Use, ...]
    readers: tuple[Use, ...]
    keep: bool
    layer: int = -1
    option: int = -1
    boundary: bool = False


@frozen
class StagedGraph:
    """A graph as the staged formulations see it: nodes by index in the order of first runs, and cells."""

    graph: Graph = field(eq=False)

    @cached_property
    def loss(self) -> int:
        """Index of the loss node."""
        return self.graph.loss

    @cached_property
    def cells(self) -> tuple[Cell, ...]:
        """Data first, then phantoms by layer and option."""
        return (*_data_cells(self.graph), *_phantom_cells(self.graph))

    @cached_property
    def by_node(self) -> tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]:
        """For each node, the cells it writes and the cells it reads (under some option)."""
        writes: list[list[int]] = [[] for _ in self.graph.computes]
        reads: list[list[int]] = [[] for _ in self.graph.computes]
        for at, cell in enumerate(self.cells):
            for node, _ in cell.writers:
                writes[node].append(at)
            for node, _ in cell.readers:
                reads[node].append(at)
        return tuple((tuple(w), tuple(r)) for w, r in zip(writes, reads, strict=True))

    @cached_property
    def charge(self) -> tuple[tuple[int, ...], ...]:
        """Bytes a run of a node by an option needs besides what is resident: workspace, all outputs, its phantom."""
        outputs = [sum(self.graph.data[d].size for d in writes) for writes in self.graph.writes_by_node]
        rows = [
            [option.workspace + outputs[i] for option in node.options] for i, node in enumerate(self.graph.computes)
        ]
        for layer in self.graph.layers:
            row = rows[self.graph.node_index[layer.forward]]
            for o, option in enumerate(layer.options):
                row[o] += option.phantom
        return tuple(tuple(row) for row in rows)

    @cached_property
    def last_use(self) -> tuple[int, ...]:
        """For each node, the last stage in which a rerun of it can matter: that of its last descendant."""
        last = list(range(len(self.graph)))
        for node in range(len(self.graph) - 1, -1, -1):
            for at in self.by_node[node][0]:
                for reader, _ in self.cells[at].readers:
                    last[node] = max(last[node], last[reader])
                for writer, _ in self.cells[at].writers:
                    last[node] = max(last[node], last[writer] if writer > node else node)
        return tuple(last)

    @cached_property
    def last_rerun(self) -> tuple[int, ...]:
        """For each node, the last stage in which the rules let it run again (its own: never again)."""
        stages = []
        for i, node in enumerate(self.graph.computes):
            last = i if node.run_once or node.phase is Phase.LOSS else len(self.graph) - 1
            for at in self.by_node[i][0]:
                cell = self.cells[at]
                if cell.keep and len(cell.writers) > 1:
                    last = min(last, cell.writers[-1][0])
            stages.append(last)
        return tuple(stages)


def _data_cells(graph: Graph) -> list[Cell]:
    extra: dict[tuple[int, str], set[int]] = {}
    for layer in graph.layers:
        node = graph.node_index[layer.backward]
        for o, option in enumerate(layer.options):
            for name in option.backward_reads:
                extra.setdefault((node, name), set()).add(o)
    cells = []
    touched = {*graph.computes[graph.loss].reads, *graph.computes[graph.loss].writes}
    for d, datum in enumerate(graph.data):
        if datum.outside:
            continue
        readers = []
        for node in graph.readers_by_data[d]:
            every = tuple(range(len(graph.computes[node].options)))
            some = tuple(sorted(extra.get((node, datum.name), ())))
            readers.append((node, every if d in graph.reads_by_node[node] else some))
        cells.append(
            Cell(
                name=datum.name,
                size=datum.size,
                writers=tuple(
                    (node, tuple(range(len(graph.computes[node].options)))) for node in graph.writers_by_data[d]
                ),
                readers=tuple(readers),
                keep=datum.keep,
                boundary=datum.keep or datum.name in touched,
            )
        )
    return cells


def _phantom_cells(graph: Graph) -> list[Cell]:
    return [
        Cell(
            name=layer.phantom,
            size=option.phantom,
            writers=((graph.node_index[layer.forward], (o,)),),
            readers=((graph.node_index[layer.backward], (o,)),),
            keep=False,
            layer=at,
            option=o,
        )
        for at, layer in enumerate(graph.layers)
        for o, option in enumerate(layer.options)
    ]
