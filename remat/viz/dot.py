"""Graphviz files as plain text: forward blue, backward violet, the loss grey, data gold, phantoms dashed.

No dependency: write the text to a file and run `dot -Tsvg` on it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from remat.ir import Cluster, Compute, Data, Graph, Kind, Layer, LayerOption, Phase
from remat.ir.arguments import A_GRAPH
from remat.ir.cluster import CLUSTERS
from remat.settings import takes
from remat.units import format_bytes, format_ns

_COLORS = {Phase.FORWARD: "#9ecae1", Phase.LOSS: "#d9d9d9", Phase.BACKWARD: "#cab2e6"}
_GOLD = "#ffd966"


@takes(graph=A_GRAPH)
def graph_dot(graph: Graph) -> str:
    """One level: nodes and data, layers with their phantoms and options."""
    return "\n".join(["digraph {", *_HEAD, *(f"  {line}" for line in _level(graph)), "}"]) + "\n"


@takes(graph=A_GRAPH, clusters=CLUSTERS)
def hierarchy_dot(graph: Graph, clusters: Sequence[Cluster]) -> str:
    """The flat graph with its clusters, and their children, as boxes within boxes."""
    lines = ["digraph {", *_HEAD]
    for cluster in clusters:
        lines += [f"  {line}" for line in _boxes(cluster)]
    lines += [f"  {line}" for line in _level(graph)]
    return "\n".join([*lines, "}"]) + "\n"


_HEAD = ('  rankdir="TB"', '  node [style="filled", fontname="sans-serif", fontsize=10]', '  edge [color="#555555"]')


def _level(graph: Graph) -> Iterator[str]:
    for node in graph.computes:
        yield _compute(node, graph)
    yield from map(_datum, graph.data)
    for node in graph.computes:
        yield from (f"{_id(name)} -> {_id(node.name)}" for name in node.reads)
        yield from (f"{_id(node.name)} -> {_id(name)}" for name in node.writes)
        yield from (f"{_id(name)} -> {_id(node.name)} [style=dotted]" for name in node.after)
    for layer in graph.layers:
        yield from _layer(layer)


def _datum(datum: Data) -> str:
    color = "#f2f2f2" if datum.outside else _GOLD
    border = ", penwidth=2" if datum.keep else ""
    dashed = ', style="filled,dashed"' if datum.kind is Kind.PHANTOM else ""
    label = _label(datum.name, format_bytes(datum.size))
    return f'{_id(datum.name)} [label="{label}", shape=ellipse, fillcolor="{color}"{border}{dashed}]'


def _layer(layer: Layer) -> Iterator[str]:
    sizes = [format_bytes(option.phantom) for option in layer.options]
    label = _label(layer.phantom, " | ".join(sizes))
    yield f'{_id(layer.phantom)} [label="{label}", shape=ellipse, fillcolor="{_GOLD}", style="filled,dashed"]'
    yield f"{_id(layer.forward)} -> {_id(layer.phantom)} [style=dashed]"
    yield f"{_id(layer.phantom)} -> {_id(layer.backward)} [style=dashed]"
    first = {name: i for i, option in reversed(list(enumerate(layer.options))) for name in option.backward_reads}
    for name, i in first.items():
        yield f'{_id(name)} -> {_id(layer.backward)} [style=dashed, label="{i}"]'


def _compute(node: Compute, graph: Graph) -> str:
    layer = graph.layer_by_node.get(node.name)
    lines = [node.name]
    if layer is None:
        lines += [format_ns(option.time) for option in node.options]
    else:
        forward = node.name == layer.forward
        lines += [f"{i}: {_half(option, forward)}" for i, option in enumerate(layer.options)]
        lines += [f"no-save forward: {format_ns(layer.no_save.time)}"] if forward else []
    marks = [word for word, on in (("draws", node.draws), ("once", node.run_once)) if on]
    label = _label(*lines, *marks)
    return f'{_id(node.name)} [label="{label}", shape=box, fillcolor="{_COLORS[node.phase]}"]'


def _half(option: LayerOption, forward: bool) -> str:
    return format_ns(option.forward if forward else option.backward)


def _boxes(cluster: Cluster) -> Iterator[str]:
    for half in ("forward", "backward"):
        yield from _box(cluster, half)


def _box(cluster: Cluster, half: str) -> Iterator[str]:
    nodes = cluster.forward if half == "forward" else cluster.backward
    if not nodes:
        return
    yield f"subgraph {_id(f'cluster {cluster.name} {half}')} {{"
    yield f'  label="{_label(cluster.name)}"; style="rounded"'
    for child in cluster.children:
        yield from (f"  {line}" for line in _box(child, half))
    yield from (f"  {_id(node)}" for node in nodes)
    yield "}"


def _id(name: str) -> str:
    return '"' + name.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _label(*lines: str) -> str:
    return "\\n".join(line.replace("\\", "\\\\").replace('"', '\\"') for line in lines)
