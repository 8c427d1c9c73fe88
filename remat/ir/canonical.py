"""Equal clusters, found by canonical form and hash table in linear time; and the renaming from one to another.

Reference: HiRemate, App. C.1.1. The order of the nodes is that of the captured code, so equal code gives equal forms and no
graph isomorphism is solved. A form states classes of nodes and, in place of names, indices by first appearance.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from attrs import evolve

from remat.errors import BadArgument, IllFormed
from remat.ir.arguments import A_GRAPH, A_TABLE, AN_OPTION, STEPS
from remat.ir.cluster import A_CLUSTER, CLUSTERS, Cluster, require_nodes
from remat.ir.graph import Graph
from remat.ir.node import Kind
from remat.ir.option import LayerOption, Moment
from remat.ir.step import Run, Step
from remat.settings import Setting, optional, takes


def _are_classes(value: object) -> bool:
    return isinstance(value, (tuple, list)) and all(type(number) is int for number in value)


CLASSES = Setting("classes of the nodes, as node_classes(graph) gives them", _are_classes)


@takes(graph=A_GRAPH)
def node_classes(graph: Graph) -> tuple[int, ...]:
    """The class of each node: equal for the same code on data of the same sizes and kinds, at the same cost.

    Classes are numbered by first appearance. Where no signature is known, cost and data alone decide.
    """
    kinds = {kind: number for number, kind in enumerate(Kind)}
    data = [(datum.size, kinds[datum.kind], datum.keep) for datum in graph.data]
    numbers: dict[tuple[object, ...], int] = {}
    options: dict[tuple[object, ...], int] = {}
    classes = []
    for node, reads, writes in zip(graph.computes, graph.reads_by_node, graph.writes_by_node, strict=True):
        form = (
            node.signature,
            node.phase.value,
            node.draws,
            node.run_once,
            options.setdefault(tuple((option.time, option.workspace) for option in node.options), len(options)),
            tuple([data[index] for index in reads]),
            tuple([data[index] for index in writes]),
        )
        classes.append(numbers.setdefault(form, len(numbers)))
    return tuple(classes)


@takes(graph=A_GRAPH, clusters=CLUSTERS, nodes=optional(CLASSES))
def cluster_classes(graph: Graph, clusters: Sequence[Cluster], nodes: Sequence[int] | None = None) -> tuple[int, ...]:
    """The class of each cluster: equal clusters may use each other's options, by `translate`.

    Args:
        graph: the flat graph.
        clusters: clusters of it.
        nodes: classes of the nodes, when they are computed already.

    Raises:
        IllFormed: G-CLUSTER, when a cluster holds what is no node of the graph.
    """
    if nodes is None:
        nodes = node_classes(graph)
    elif len(nodes) != len(graph):
        what = f"cluster_classes: nodes has {len(nodes)} classes, and {graph!r} {len(graph)} nodes."
        raise BadArgument("A-SETTING", what, fix="give node_classes(graph).")
    numbers: dict[tuple[object, ...], int] = {}
    return tuple(numbers.setdefault(_form(graph, cluster, nodes), len(numbers)) for cluster in clusters)


def _form(graph: Graph, cluster: Cluster, classes: Sequence[int]) -> tuple[object, ...]:
    at = graph.node_index
    require_nodes(graph, cluster)
    indices = [at[name] for name in cluster.nodes]
    inside = set(indices)
    local: dict[int, int] = {}
    rows: list[object] = [len(cluster.forward)]
    for i in indices:
        for datum in (*graph.reads_by_node[i], *graph.writes_by_node[i]):
            if datum not in local:
                local[datum] = len(local)
                # Its other writers and readers decide what crosses the border.
                writers = graph.writers_by_data[datum]
                rows.append((len(writers), tuple(k for k, w in enumerate(writers) if w in inside)))
                rows.append(any(reader not in inside for reader in graph.readers_by_data[datum]))
        rows.append(classes[i])
        rows.append(tuple([local[index] for index in graph.reads_by_node[i]]))
        rows.append(tuple([local[index] for index in graph.writes_by_node[i]]))
    return tuple(rows)


@takes(graph=A_GRAPH, source=A_CLUSTER, target=A_CLUSTER)
def renaming(graph: Graph, source: Cluster, target: Cluster) -> dict[str, str]:
    """Names of nodes and data of one cluster, by the names of an equal one.

    Raises:
        IllFormed: G-CLUSTER, when the clusters are not equal, or hold what is no node of the graph.
    """
    names, others = _names(graph, source), _names(graph, target)
    if len(names) != len(others):
        what = f"{source.name!r} and {target.name!r} are not equal: {len(names)} and {len(others)} names."
        raise IllFormed("G-CLUSTER", what, fix="give clusters of one class (cluster_classes).")
    return dict(zip(names, others, strict=True))


def _names(graph: Graph, cluster: Cluster) -> list[str]:
    require_nodes(graph, cluster)
    names = list(cluster.nodes)
    data: dict[str, None] = {}
    for name in cluster.nodes:
        node = graph.node(name)
        data.update(dict.fromkeys((*node.reads, *node.writes)))
    return [*names, *data]


@takes(option=AN_OPTION, names=A_TABLE)
def translate(option: LayerOption, names: Mapping[str, str]) -> LayerOption:
    """A layer option of one cluster as the option of an equal one; `names` as `renaming` gives them.

    Raises:
        BadArgument: for a name of the option that is not in `names`.
    """
    with _all_in("translate"):
        return evolve(
            option,
            backward_reads=tuple(names[name] for name in option.backward_reads),
            forward_profile=_moments(option.forward_profile, names),
            backward_profile=_moments(option.backward_profile, names),
            forward_steps=_renamed(option.forward_steps, names),
            backward_steps=_renamed(option.backward_steps, names),
        )


@takes(steps=STEPS, names=A_TABLE)
def translate_steps(steps: Iterable[Step], names: Mapping[str, str]) -> tuple[Step, ...]:
    """Steps with every name replaced.

    Raises:
        BadArgument: for a name of a step that is not in `names`.
    """
    with _all_in("translate_steps"):
        return _renamed(steps, names)


@contextmanager
def _all_in(function: str) -> Iterator[None]:
    """Refuse a table without a name that is asked for."""
    try:
        yield
    except KeyError as error:
        what = f"{function}: names has no {error.args[0]!r:.80}."
        raise BadArgument("A-SETTING", what, fix="give renaming(graph, source, target).") from None


def _renamed(steps: Iterable[Step], names: Mapping[str, str]) -> tuple[Step, ...]:
    return tuple(
        Run(names[step.node], step.option) if isinstance(step, Run) else evolve(step, datum=names[step.datum])
        for step in steps
    )


def _moments(profile: Iterable[Moment], names: Mapping[str, str]) -> tuple[Moment, ...]:
    return tuple(Moment(live=moment.live, absent=tuple(names[name] for name in moment.absent)) for moment in profile)
