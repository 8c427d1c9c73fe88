"""Levels of a hierarchy: `condense` makes a graph of layers, `expand` brings a schedule of it back to the flat graph.

A cluster's own training step (`part`) is an ordinary flat graph, which any solver plans; a run sequence of it is an option of
the cluster (`layer_option`), with times, phantom, workspaces and memory profile taken from its replay. Every name stays that
of the flat graph, so that levels nest: a part may be condensed by the children of its cluster, and what is expanded from
there is again a run sequence of the part.

Why a peak never grows: an option's workspace covers every moment of its replay with all of the layer's outputs and its
phantom present, and `expand` drops each datum at its last read. Reference: HiRemate, section 3.2 and App. B.4.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

from attrs import evolve, field, frozen

from remat.errors import IllFormed
from remat.ir.arguments import A_GRAPH, A_SCHEDULE, A_TABLE
from remat.ir.cluster import A_CLUSTER, CLUSTERS, Cluster
from remat.ir.cluster_part import Part
from remat.ir.graph import Graph
from remat.ir.node import Compute, Data, Layer, Phase
from remat.ir.option import LayerOption, Option
from remat.ir.schedule import Schedule
from remat.ir.step import Drop, Run
from remat.settings import MANY, instance, optional, takes


@frozen(kw_only=True)
class Condensed:
    """A level of a hierarchy.

    Attributes:
        graph: the level: a layer for each cluster with a backward, a plain node for any other, and what is in no cluster.
        flat: the graph it was made of.
        clusters: the clusters, in the order given.
        plain: for clusters without a backward: the runs that their node stands for.
    """

    graph: Graph
    flat: Graph
    clusters: tuple[Cluster, ...]
    plain: Mapping[str, tuple[Run, ...]] = field(repr=False)

    def expand(self, schedule: Schedule) -> Schedule:
        """See `expand`."""
        return expand(self, schedule)


@takes(graph=A_GRAPH, clusters=CLUSTERS, options=optional(A_TABLE))
def condense(
    graph: Graph, clusters: Sequence[Cluster], options: Mapping[str, Iterable[LayerOption]] | None = None
) -> Condensed:
    """The level of a graph that sees each cluster as one layer.

    Args:
        graph: a flat graph.
        clusters: disjoint clusters of it, as `clusters` makes them.
        options: layer options by name of the cluster; left out for a cluster: `plain_options`.

    Raises:
        IllFormed: G-CLUSTER, when clusters depend on each other, or cut a sum of contributions or the order of random draws;
            options are given for what is no cluster.
    """
    _flat(graph)
    chosen = {} if options is None else options
    unknown = [name for name in chosen if name not in {cluster.name for cluster in clusters}]
    if unknown:
        fix = "name clusters that are given."
        raise IllFormed("G-CLUSTER", f"options are given for {unknown[0]!r:.80}, which is no cluster.", fix=fix)
    return _Condenser(graph, clusters, chosen).result()


def _flat(graph: Graph) -> None:
    if not graph.flat:
        raise IllFormed("G-CLUSTER", f"{graph!r} has layers or options.", fix="condense a flat graph.")


def check_condensable(graph: Graph, clusters: Sequence[Cluster]) -> None:
    """Refuse clusters that `condense` refuses, without making their layers. Linear in the graph.

    Raises:
        IllFormed: as `condense`.
    """
    _flat(graph)
    condenser = _Condenser(graph, clusters, {})
    owners = [condenser.owner[node.name] for node in graph.computes]
    before: dict[str, set[str]] = {owner: set() for owner in owners}
    for index, writers in enumerate(graph.writers_by_data):
        makers = condenser.contributors(index)
        for earlier, later in pairwise(makers):
            before[later].add(earlier)
        for reader in graph.readers_by_data[index] if writers else ():
            before[owners[reader]].update(maker for maker in makers if maker != owners[reader])
    for earlier, later in pairwise(condenser.draws()):
        before[later].add(earlier)
    first = {owner: i for i, owner in reversed(tuple(enumerate(owners)))}
    condenser.refuse_cycles(before, _topological(before, first))


@takes(condensed=instance(Condensed, "condense(graph, clusters)"), schedule=A_SCHEDULE)
def expand(condensed: Condensed, schedule: Schedule) -> Schedule:
    """The flat schedule: sub-schedules inlined, each datum dropped at its last read. Same time, a peak no larger.

    Raises:
        IllFormed: G-OPT, when an option that runs has no sub-schedule; G-COPY, when the schedule makes copies.
    """
    runs: list[Run] = []
    for step in schedule.steps:
        if isinstance(step, Run):
            runs.extend(_inner(condensed, step))
        elif not isinstance(step, Drop):
            fix = "expand first, and copy data of the flat graph."
            raise IllFormed("G-COPY", f"{step} in a schedule of layers.", fix=fix)
    return Schedule.from_runs(condensed.flat, runs)


def _inner(condensed: Condensed, run: Run) -> Iterable[Run]:
    if run.node in condensed.plain:
        return condensed.plain[run.node]
    layer = condensed.graph.layer_by_node.get(run.node)
    if layer is None:
        return (run,)
    if run.node == layer.backward:
        steps = layer.options[run.option].backward_steps
    elif run.option < len(layer.options):
        steps = layer.options[run.option].forward_steps
    else:
        steps = layer.no_save_steps
    if not steps:
        fix = "make options with `layer_option`."
        raise IllFormed("G-OPT", f"{run} has no sub-schedule, so it cannot be expanded.", fix=fix)
    return (step for step in steps if isinstance(step, Run))


@takes(graph=A_GRAPH, cluster=A_CLUSTER)
def part(graph: Graph, cluster: Cluster) -> Graph:
    """The training step of a cluster alone: its nodes, and one loss node in place of all that happens between.

    What it reads from outside is INPUT; gradients that come in are written by the loss node, named `<cluster>.rest`; its
    outputs are read by that node; gradients that go out are kept.
    """
    return Part(graph, cluster).graph


@takes(graph=A_GRAPH, cluster=A_CLUSTER, runs=MANY)
def layer_option(graph: Graph, cluster: Cluster, runs: Iterable[Run | str | int]) -> LayerOption:
    """The layer option of a run sequence of `part(graph, cluster)`: all its numbers from the replay.

    Raises:
        InvalidSchedule: when the runs break a rule of the part.
    """
    return Part(graph, cluster).option(runs)


@takes(graph=A_GRAPH, cluster=A_CLUSTER)
def plain_options(graph: Graph, cluster: Cluster) -> tuple[LayerOption, ...]:
    """Two options that need no solver: keep all that the backward reads; keep nothing and run the forward again."""
    return Part(graph, cluster).plain_options()


def _topological(before: Mapping[str, set[str]], rank: Mapping[str, int]) -> list[str]:
    """The names, each after those before it, otherwise in the order of their ranks; stops at a cycle."""
    after: dict[str, list[str]] = {name: [] for name in before}
    for name, earlier in before.items():
        for other in earlier:
            after[other].append(name)
    left = {name: len(earlier) for name, earlier in before.items()}
    ready = [(rank[name], name) for name, count in left.items() if not count]
    heapq.heapify(ready)
    ordered = []
    while ready:
        name = heapq.heappop(ready)[1]
        ordered.append(name)
        for other in after[name]:
            left[other] -= 1
            if not left[other]:
                heapq.heappush(ready, (rank[other], other))
    return ordered


class _Condenser:
    """Builds one level. A *place* is a node of the level: its index among the flat nodes' owners."""

    def __init__(self, graph: Graph, clusters: Sequence[Cluster], options: Mapping[str, Iterable[LayerOption]]) -> None:
        self.flat = graph
        self.clusters = tuple(clusters)
        self.options = options
        self.parts = {cluster.name: Part(graph, cluster) for cluster in self.clusters}
        self.owner = {node.name: node.name for node in graph.computes}
        for cluster in self.clusters:
            for names, place in ((cluster.forward, cluster.name), (cluster.backward, self.backward_name(cluster))):
                for name in names:
                    if self.owner.get(name, "") != name:
                        fix = "give each node of the graph one cluster."
                        raise IllFormed("G-CLUSTER", f"{name!r} of {cluster.name!r} is not free to be in it.", fix=fix)
                    self.owner[name] = place

    @staticmethod
    def backward_name(cluster: Cluster) -> str:
        return f"{cluster.name}.backward"

    def result(self) -> Condensed:
        layers = tuple(self.layer(cluster) for cluster in self.clusters if cluster.backward)
        data = self.data()
        nodes = {node.name: node for node in self.nodes(layers, {datum.name for datum in data})}
        ordered = tuple(nodes[name] for name in self.order(nodes.values(), layers, data))
        plain = {
            cluster.name: self.parts[cluster.name].forward_runs for cluster in self.clusters if not cluster.backward
        }
        graph = Graph(name=self.flat.name, computes=ordered, data=data, layers=layers)
        return Condensed(graph=graph, flat=self.flat, clusters=self.clusters, plain=plain)

    def layer(self, cluster: Cluster) -> Layer:
        part = self.parts[cluster.name]
        options = tuple(filter(part.draws_all, self.options.get(cluster.name, ()))) or part.plain_options()
        no_save = part.no_save
        return Layer(
            forward=cluster.name,
            backward=self.backward_name(cluster),
            phantom=f"{cluster.name}.phantom",
            options=options,
            no_save=no_save,
            no_save_steps=part.no_save_steps,
        )

    def data(self) -> tuple[Data, ...]:
        """Data that more than one node of the level touches; writers are nodes of the level."""
        interior = frozenset().union(*(part.interior for part in self.parts.values()))
        shared = []
        for index, datum in enumerate(self.flat.data):
            writers = self.contributors(index)
            if datum.name not in interior:
                shared.append(evolve(datum, writers=writers))
        return tuple(shared)

    def contributors(self, index: int) -> tuple[str, ...]:
        """The nodes of the level that write a datum, each once, in order."""
        datum = self.flat.data[index]
        owners = [self.owner[name] for name in datum.writers]
        writers = tuple(owner for i, owner in enumerate(owners) if i == 0 or owners[i - 1] != owner)
        if len(set(writers)) != len(writers):
            fix = "put all contributions of a cluster next to each other, or in no cluster."
            raise IllFormed("G-CLUSTER", f"contributions to {datum.name!r} alternate between clusters.", fix=fix)
        if len(writers) > 1:
            self.check_readers(index, writers)
        return writers

    def check_readers(self, datum: int, writers: tuple[str, ...]) -> None:
        """Refuse a node of the level that adds to a sum and reads it."""
        for reader in self.flat.readers_by_data[datum]:
            owner = self.owner[self.flat.computes[reader].name]
            if owner in writers:
                what = f"{owner!r} adds to {self.flat.data[datum].name!r} and reads the sum."
                raise IllFormed("G-CLUSTER", what, fix="take all contributions in, or leave the reader out.")

    def nodes(self, layers: tuple[Layer, ...], seen: set[str]) -> Iterable[Compute]:
        by_name = {layer.forward: layer for layer in layers}
        owned = {name for cluster in self.clusters for name in cluster.nodes}
        for node in (node for node in self.flat.computes if node.name not in owned):
            after = tuple(dict.fromkeys(self.owner[name] for name in node.after))
            yield evolve(node, after=after, twin=self.owner.get(node.twin, ""))
        for cluster in self.clusters:
            yield from self.halves(cluster, by_name.get(cluster.name))

    def halves(self, cluster: Cluster, layer: Layer | None) -> Iterable[Compute]:
        """The nodes that a cluster is: of a layer, or a plain one where there is no backward."""
        part = self.parts[cluster.name]
        if layer is None:
            yield self.half(cluster.name, part.forward_nodes, part, (part.no_save,))
            return
        yield self.half(cluster.name, part.forward_nodes, part, layer.forward_options)
        backward = self.half(layer.backward, part.backward_nodes, part, layer.backward_options)
        # A sub-schedule frees its phantom while it runs. A rerun with the phantom still resident would need more
        # than its workspace: so a node that reads a phantom runs once.
        once = backward.run_once or any(option.phantom for option in layer.options)
        yield evolve(backward, twin=cluster.name, run_once=once)

    def half(self, name: str, nodes: Sequence[Compute], part: Part, options: tuple[Option, ...]) -> Compute:
        forward = nodes[0].phase is Phase.FORWARD
        after = (self.owner[other] for node in nodes for other in node.after)
        writes = part.outputs if forward else part.outgoing
        return Compute(
            name=name,
            phase=nodes[0].phase,
            reads=part.inputs if forward else part.incoming,
            writes=writes,
            options=options,
            scope=part.cluster.name,
            draws=any(node.draws for node in nodes),
            run_once=any(node.run_once for node in nodes) or part.sums_once(writes),
            after=tuple(earlier for earlier in dict.fromkeys(after) if earlier != name),
        )

    def order(self, nodes: Iterable[Compute], layers: tuple[Layer, ...], data: tuple[Data, ...]) -> list[str]:
        """A topological order of the level, near the flat order; sums and random draws keep theirs."""
        first: dict[str, int] = {}
        for i, node in enumerate(self.flat.computes):
            first.setdefault(self.owner[node.name], i)
        before = self.before(nodes, layers, {datum.name: datum.writers for datum in data})
        ordered = _topological(before, first)
        self.refuse_cycles(before, ordered)
        return ordered

    @staticmethod
    def refuse_cycles(before: Mapping[str, set[str]], ordered: Sequence[str]) -> None:
        """Refuse nodes of the level that wait for each other."""
        if len(ordered) < len(before):
            stuck = ", ".join(sorted(set(before) - set(ordered))[:6])
            raise IllFormed("G-CLUSTER", f"clusters depend on each other: {stuck}.", fix="merge or split them.")

    def before(
        self, nodes: Iterable[Compute], layers: tuple[Layer, ...], writers: Mapping[str, tuple[str, ...]]
    ) -> dict[str, set[str]]:
        """For each node of the level, the nodes that first run before it: writers, earlier contributors, earlier draws."""
        extra = {layer.backward: [n for option in layer.options for n in option.backward_reads] for layer in layers}
        before: dict[str, set[str]] = {}
        for node in nodes:
            reads = (*node.reads, *extra.get(node.name, ()))
            before[node.name] = {writer for name in reads for writer in writers[name]}
        for row in (*writers.values(), self.draws()):
            for earlier, later in pairwise(row):
                before[later].add(earlier)
        return before

    def draws(self) -> tuple[str, ...]:
        owners = [self.owner[node.name] for node in self.flat.computes if node.draws]
        row = tuple(owner for i, owner in enumerate(owners) if i == 0 or owners[i - 1] != owner)
        if len(set(row)) != len(row):
            fix = "take in all draws between, or leave some out."
            raise IllFormed("G-CLUSTER", "clusters alternate in drawing random numbers.", fix=fix)
        return row


__all__ = ["Condensed", "condense", "expand", "layer_option", "part", "plain_options"]
