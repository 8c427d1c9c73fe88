"""The rules of a well-formed graph, each with its id (`G-…`). `check_graph` raises the first that is broken.

The ids are stable: they stand in errors, tests and `docs/reference/rules.md`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from graphlib import CycleError, TopologicalSorter
from typing import Protocol

from remat.errors import IllFormed
from remat.ir.node import Compute, Data, Kind, Layer, Phantom, Phase

GRAPH_RULES = {
    "G-INT": "sizes and times are ints",
    "G-RANGE": "sizes and times are from 0 to 2^63 - 1, and so are their sums over a graph",
    "G-NAME": "names are text without white space",
    "G-TYPE": "kinds, phases and options are objects of their class, flags are True or False",
    "G-TUPLE": "collections are tuples of the right class",
    "G-TWICE": "a name stands for one thing; a list of names holds each once",
    "G-OPT": "a node has at least one option; an option has both sub-schedules or neither",
    "G-KEEP": "tangents, outputs, updated buffers and gradients of parameters and inputs are kept",
    "G-INPUT": "inputs and buffers live outside the step: they have no writers and are not kept",
    "G-WRITER": "every other datum has writers; nodes and data agree on who writes what, in the graph's order",
    "G-INPLACE": "no node reads and writes one datum",
    "G-UNKNOWN": "every name that is referred to exists",
    "G-CYCLE": "no datum depends on itself",
    "G-ORDER": "nodes stand in a topological order",
    "G-LOSS": "there is exactly one loss node",
    "G-PHASE": "forward nodes stand before the loss, backward nodes after it",
    "G-TANGENT": "tangents are written by the loss alone",
    "G-TWIN": "the twin of a backward node is a forward node; no other node has one",
    "G-CLUSTER": "clusters are disjoint, convex with their backward parts, and cut neither sums nor the order of draws",
    "G-CHAIN": "a chain is made of layers that follow one another, each reading the output of the one before",
    "G-COPY": "schedules of layers that are expanded make no copies",
    "G-LAYER": "a layer pairs one forward and one backward node, whose options are those of the layer",
}


class _Tables(Protocol):
    """What the rules read of a `Graph`: its parts, and where a name stands."""

    @property
    def computes(self) -> tuple[Compute, ...]: ...
    @property
    def data(self) -> tuple[Data, ...]: ...
    @property
    def layers(self) -> tuple[Layer, ...]: ...
    @property
    def phantoms(self) -> tuple[Phantom, ...]: ...
    @property
    def node_index(self) -> Mapping[str, int]: ...
    @property
    def data_index(self) -> Mapping[str, int]: ...
    @property
    def layer_by_node(self) -> Mapping[str, Layer]: ...
    def node(self, name: str) -> Compute: ...
    def datum(self, name: str) -> Data: ...


_RANK = {Phase.FORWARD: 0, Phase.LOSS: 1, Phase.BACKWARD: 2}


def check_graph(graph: _Tables) -> None:
    """Raise `IllFormed` for the first broken rule that concerns more than one node."""
    _unique(graph)
    _names(graph)
    _writers(graph)
    _order(graph)
    _phases(graph)
    _layers(graph)
    check_sums(graph)


def _unique(graph: _Tables) -> None:
    seen: set[str] = set()
    names: Iterable[str] = (element.name for group in (graph.computes, graph.data) for element in group)
    for name in (*names, *(layer.phantom for layer in graph.layers)):
        if name in seen:
            raise IllFormed("G-TWICE", f"the name {name!r} stands for two things.", fix="rename one of them.")
        seen.add(name)


def _names(graph: _Tables) -> None:
    nodes, data = graph.node_index, graph.data_index
    for node in graph.computes:
        for role, names, table in (
            ("reads", node.reads, data),
            ("writes", node.writes, data),
            ("after", node.after, nodes),
        ):
            _in_table(names, table, f"{node.name!r} {role}")
        if node.twin and (node.phase is not Phase.BACKWARD or not _is_forward(graph, node.twin)):
            fix = "let a backward node name a forward node, or leave `twin` out."
            raise IllFormed("G-TWIN", f"{node.name!r} names the twin {node.twin!r}.", fix=fix)
    for datum in graph.data:
        _in_table(datum.writers, nodes, f"{datum.name!r} is written by")
    for layer in graph.layers:
        _in_table((layer.forward, layer.backward), nodes, "a layer names the node")
        for option in layer.options:
            fix = "add it, or correct `backward_reads`."
            _in_table(option.backward_reads, data, f"an option of {layer.backward!r} reads", fix)


def _in_table(names: Iterable[str], table: Mapping[str, int], who: str, fix: str = "add it.") -> None:
    for name in names:
        if name not in table:
            raise IllFormed("G-UNKNOWN", f"{who} {name!r}, which does not exist.", fix=fix)


def _is_forward(graph: _Tables, name: str) -> bool:
    index = graph.node_index.get(name)
    return index is not None and graph.computes[index].phase is Phase.FORWARD


def _writers(graph: _Tables) -> None:
    declared = {(writer, datum.name) for datum in graph.data for writer in datum.writers}
    done = {(node.name, name) for node in graph.computes for name in node.writes}
    for writer, name in sorted(declared ^ done):
        side = "the node does not write it" if (writer, name) in declared else "the datum does not list that writer"
        raise IllFormed("G-WRITER", f"{writer!r} and {name!r} disagree: {side}.", fix="state it on both sides.")
    for datum in graph.data:
        places = [graph.node_index[name] for name in datum.writers]
        if places != sorted(places):
            fix = "list contributions in the order of first runs."
            raise IllFormed("G-WRITER", f"the writers of {datum.name!r} are not in the graph's order.", fix=fix)


def _order(graph: _Tables) -> None:
    nodes, data = graph.node_index, graph.data_index
    extra = {layer.backward: [n for option in layer.options for n in option.backward_reads] for layer in graph.layers}
    for i, node in enumerate(graph.computes):
        for name in (*node.reads, *extra.get(node.name, ())):
            datum = graph.data[data[name]]
            if datum.writers and nodes[datum.writers[-1]] >= i:
                raise _cycle(graph) or _late(node, datum)


def _late(node: Compute, datum: Data) -> IllFormed:
    late = datum.writers[-1]
    what = f"{node.name!r} reads {datum.name!r} and stands before its writer {late!r}."
    return IllFormed("G-ORDER", what, fix="list nodes in a topological order.")


def _cycle(graph: _Tables) -> IllFormed | None:
    needs = {node.name: [w for name in node.reads for w in graph.datum(name).writers] for node in graph.computes}
    try:
        TopologicalSorter(needs).prepare()
    except CycleError as error:
        ring = " -> ".join(reversed(error.args[1]))
        return IllFormed("G-CYCLE", f"a cycle of nodes: {ring}.", fix="break it; give rewritten values new names.")
    return None


def _phases(graph: _Tables) -> None:
    losses = [node.name for node in graph.computes if node.phase is Phase.LOSS]
    if len(losses) != 1:
        named = ", ".join(losses) or "none"
        raise IllFormed("G-LOSS", f"{len(losses)} loss nodes ({named}).", fix="give the step exactly one loss node.")
    last = 0
    for node in graph.computes:
        if _RANK[node.phase] < last:
            what = f"the {node.phase.value} node {node.name!r} stands too late."
            raise IllFormed("G-PHASE", what, fix="list forward nodes, the loss, then backward nodes.")
        last = _RANK[node.phase]
    for datum in graph.data:
        if datum.kind is Kind.TANGENT and datum.writers != (losses[0],):
            what = f"the tangent {datum.name!r} is written by {', '.join(datum.writers)}."
            raise IllFormed("G-TANGENT", what, fix=f"let the loss {losses[0]!r} write it.")


def _layers(graph: _Tables) -> None:
    taken: set[str] = set()
    for layer in graph.layers:
        place = f"the layer of {layer.forward!r} and {layer.backward!r}"
        forward, backward = graph.node(layer.forward), graph.node(layer.backward)
        if {layer.forward, layer.backward} & taken or layer.forward == layer.backward:
            raise IllFormed("G-LAYER", f"{place} shares a node with another.", fix="give each node one layer.")
        taken |= {layer.forward, layer.backward}
        if (forward.phase, backward.phase) != (Phase.FORWARD, Phase.BACKWARD):
            raise IllFormed("G-LAYER", f"{place} has the wrong phases.", fix="pair a forward with a backward node.")
        if forward.options != layer.forward_options or backward.options != layer.backward_options:
            fix = "build the nodes with `GraphBuilder.layer`."
            raise IllFormed("G-LAYER", f"{place} and its nodes have different options.", fix=fix)


def check_sums(graph: _Tables) -> None:
    """Raise `IllFormed` where sums of sizes or times are too large (G-RANGE)."""
    largest = 1 << 63
    size = sum(datum.size for datum in graph.data) + sum(max(phantom.sizes) for phantom in graph.phantoms)
    work = max((option.workspace for node in graph.computes for option in node.options), default=0)
    time = sum(max(option.time for option in node.options) for node in graph.computes)
    for what, value in (("sizes of the data and the largest workspace", 2 * size + work), ("times of the nodes", time)):
        if value >= largest:
            raise IllFormed("G-RANGE", f"the {what} add up to {value}.", fix="stay below 2^63 in all.")
