"""Reduction of graphs for minimal examples: graphs without some part, or with a smaller number.

All results are legal: candidates that break a rule of graphs are skipped.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from functools import partial

from attrs import evolve

from remat.errors import IllFormed
from remat.ir import Compute, Data, Graph, Layer, LayerOption, Option, Phase


def smaller(graph: Graph, *, structure: bool = True) -> Iterator[Graph]:
    """Graphs that are smaller in one respect, the largest reductions first.

    Args:
        graph: the graph to reduce.
        structure: False: change only numbers, so that a graph of a special kind stays of that kind.
    """
    for make in (*(_parts(graph) if structure else ()), *_numbers(graph)):
        try:
            candidate = make()
        except IllFormed:
            continue
        if candidate != graph:
            yield candidate


Make = Callable[[], Graph]

_FIELDS = ("forward", "backward", "phantom", "forward_workspace", "backward_workspace")
"""Numbers of a layer's option."""


def _parts(graph: Graph) -> Iterator[Make]:
    for node in reversed(graph.computes):
        if node.phase is not Phase.LOSS:
            yield partial(_without, graph, {node.name})
    for layer in graph.layers:
        yield partial(_without_layer, graph, layer)
        for k in range(len(layer.options) if len(layer.options) > 1 else 0):
            yield partial(_with_layer, graph, layer, (*layer.options[:k], *layer.options[k + 1 :]))
    for datum in graph.data:
        yield partial(_without_data, graph, {datum.name})
    for i, node in enumerate(graph.computes):
        for name in node.reads:
            yield partial(_with_node, graph, i, evolve(node, reads=tuple(read for read in node.reads if read != name)))
        if node.name not in graph.layer_by_node:
            for k in range(len(node.options) if len(node.options) > 1 else 0):
                yield partial(_with_options, graph, i, (*node.options[:k], *node.options[k + 1 :]))
        yield partial(
            _with_node,
            graph,
            i,
            evolve(node, scope="", twin="", signature="", draws=False, run_once=False, after=()),
        )
        yield partial(_with_node, graph, i, evolve(node, draws=False))
        yield partial(_with_node, graph, i, evolve(node, run_once=False))


def _numbers(graph: Graph) -> Iterator[Make]:
    yield partial(_scaled, graph, lambda value: min(value, 1))
    yield partial(_scaled, graph, lambda value: value >> 10)
    yield partial(_scaled, graph, lambda value: value // 2)
    for d, datum in enumerate(graph.data):
        for size in _less_than(datum.size):
            yield partial(_with_datum, graph, d, evolve(datum, size=size))
    for i, node in enumerate(graph.computes):
        if node.name in graph.layer_by_node:
            continue
        for k, option in enumerate(node.options):
            candidates = [evolve(option, time=time) for time in _less_than(option.time)]
            candidates += [evolve(option, workspace=workspace) for workspace in _less_than(option.workspace)]
            for candidate in candidates:
                yield partial(_with_options, graph, i, (*node.options[:k], candidate, *node.options[k + 1 :]))
    for layer in graph.layers:
        for k, way in enumerate(layer.options):
            for field in _FIELDS:
                for less in _less_than(getattr(way, field)):
                    ways = (*layer.options[:k], _changed(way, {field: less}), *layer.options[k + 1 :])
                    yield partial(_with_layer, graph, layer, ways)


def _changed(option: LayerOption, numbers: Mapping[str, int]) -> LayerOption:
    """An option with other numbers, without sub-schedules and profiles."""
    values = {field: numbers.get(field, getattr(option, field)) for field in _FIELDS}
    return LayerOption(backward_reads=option.backward_reads, **values)


def _less_than(value: int) -> list[int]:
    return [less for less in (0, 1, value // 2) if less < value]


# -- graphs with a change ----------------------------------------------------------------------------------------------


def _with_node(graph: Graph, i: int, node: Compute) -> Graph:
    return evolve(graph, computes=(*graph.computes[:i], node, *graph.computes[i + 1 :]))


def _with_options(graph: Graph, i: int, options: tuple[Option, ...]) -> Graph:
    return _with_node(graph, i, evolve(graph.computes[i], options=options))


def _with_datum(graph: Graph, d: int, datum: Data) -> Graph:
    return evolve(graph, data=(*graph.data[:d], datum, *graph.data[d + 1 :]))


def _with_layer(graph: Graph, layer: Layer, options: tuple[LayerOption, ...]) -> Graph:
    changed = evolve(layer, options=options)
    options_of = {layer.forward: changed.forward_options, layer.backward: changed.backward_options}
    computes = tuple(evolve(node, options=options_of.get(node.name, node.options)) for node in graph.computes)
    return evolve(
        graph, computes=computes, layers=tuple(changed if other is layer else other for other in graph.layers)
    )


def _without_layer(graph: Graph, layer: Layer) -> Graph:
    """The layer's nodes with their first options, without a layer."""
    names = {layer.forward, layer.backward}
    computes = tuple(evolve(node, options=node.options[:1]) if node.name in names else node for node in graph.computes)
    return evolve(graph, computes=computes, layers=tuple(other for other in graph.layers if other is not layer))


def _without(graph: Graph, nodes: Collection[str]) -> Graph:
    """Without some nodes, and without the data that only they write."""
    for layer in graph.layers:
        if layer.forward in nodes or layer.backward in nodes:
            graph = _without_layer(graph, layer)
    computes = tuple(
        evolve(
            node,
            twin="" if node.twin in nodes else node.twin,
            after=tuple(name for name in node.after if name not in nodes),
        )
        for node in graph.computes
        if node.name not in nodes
    )
    left = [evolve(datum, writers=tuple(name for name in datum.writers if name not in nodes)) for datum in graph.data]
    removed = {new.name for new, old in zip(left, graph.data, strict=True) if old.writers and not new.writers}
    return _cleared(graph, computes, [datum for datum in left if datum.name not in removed], removed)


def _without_data(graph: Graph, removed: Collection[str]) -> Graph:
    return _cleared(graph, graph.computes, [datum for datum in graph.data if datum.name not in removed], removed)


def _cleared(graph: Graph, computes: tuple[Compute, ...], data: list[Data], removed: Collection[str]) -> Graph:
    """The graph of these nodes and data; removed data are left out of reads and writes."""

    def rest(names: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(name for name in names if name not in removed)

    layers = tuple(
        evolve(
            layer,
            options=tuple(evolve(option, backward_reads=rest(option.backward_reads)) for option in layer.options),
        )
        for layer in graph.layers
    )
    computes = tuple(evolve(node, reads=rest(node.reads), writes=rest(node.writes)) for node in computes)
    return evolve(graph, computes=computes, data=tuple(data), layers=layers)


def _scaled(graph: Graph, less: Callable[[int], int]) -> Graph:
    """The graph with every number made smaller."""
    for name in [layer.forward for layer in graph.layers]:
        layer = graph.layer_by_node[name]
        ways = tuple(_changed(way, {field: less(getattr(way, field)) for field in _FIELDS}) for way in layer.options)
        graph = _with_layer(graph, layer, ways)
    computes = tuple(
        node
        if node.name in graph.layer_by_node
        else evolve(
            node,
            options=tuple(
                evolve(option, time=less(option.time), workspace=less(option.workspace)) for option in node.options
            ),
        )
        for node in graph.computes
    )
    return evolve(graph, computes=computes, data=tuple(evolve(datum, size=less(datum.size)) for datum in graph.data))
