"""Partitioners with one bug each."""

import random

from attrs import frozen

from remat.algorithms import Intervals
from remat.algorithms._hierarchy.partition import Partitioner, Segments
from remat.ir import Cluster, Phase, clusters, is_convex

counter = iter(range(10**9))


def forward_of(graph):
    return [node.name for node in graph.computes if node.phase is Phase.FORWARD]


@frozen
class NotConvex(Partitioner):
    def partition(self, graph):
        forward = forward_of(graph)
        return (Cluster(name="ends", forward=(forward[0], forward[-1])),) if len(forward) > 1 else ()


@frozen
class Overlapping(Partitioner):
    def partition(self, graph):
        forward = forward_of(graph)
        if len(forward) < 2:
            return ()
        return (Cluster(name="one", forward=tuple(forward[:1])), Cluster(name="two", forward=tuple(forward[:2])))


@frozen
class TakesTheLoss(Partitioner):
    def partition(self, graph):
        return (Cluster(name="one", forward=(graph.computes[graph.loss].name,)),)


@frozen
class EntangledClusters(Partitioner):
    """Each cluster is convex; together they depend on each other, or cut a sum."""

    def partition(self, graph):
        forward = forward_of(graph)
        parts = [(f"c{k}", forward[k::2]) for k in (0, 1)]
        made = (Cluster(name=name, forward=tuple(own), backward=self.twins(graph, own)) for name, own in parts if own)
        return tuple(
            one for one in made if is_convex(graph, one.forward) and is_convex(graph, one.backward, soft=False)
        )

    def twins(self, graph, names):
        return tuple(node.name for node in graph.computes if node.twin in names)


@frozen
class ForgetsHints(Partitioner):
    """Convex as data say; what only runs after is forgotten."""

    def partition(self, graph):
        forward = forward_of(graph)
        for first in forward:
            for last in reversed(forward):
                pair = (first, last)
                if first != last and forward.index(first) < forward.index(last) and is_convex(graph, pair, soft=False):
                    return (Cluster(name="pair", forward=pair),)
        return ()


@frozen
class Moody(Partitioner):
    def partition(self, graph):
        return Segments(1 + next(counter) % 2).partition(graph)


@frozen
class ByChance(Partitioner):
    def partition(self, graph):
        return Intervals(random.randint(1, 2)).partition(graph)


@frozen
class AsTheSetComes(Partitioner):
    """The first of a set makes a cluster."""

    def partition(self, graph):
        able = {one.forward for one in Segments(1).partition(graph)}
        if not able:
            return ()
        names = {name for (name,) in able}
        return clusters(graph, {"stage": [next(iter(names))]}) if len(names) > 1 else ()


@frozen
class OneName(Partitioner):
    """All clusters have one name, which the graph may have too."""

    def partition(self, graph):
        return tuple(
            Cluster(name="a0", forward=one.forward, backward=one.backward) for one in Segments(1).partition(graph)
        )


@frozen
class AnswersAList(Partitioner):
    def partition(self, graph):
        return list(Segments(1).partition(graph))


@frozen
class ForgetsToAnswer(Partitioner):
    def partition(self, graph):
        Segments(1).partition(graph)


@frozen
class NeedsThreeNodes(Partitioner):
    def partition(self, graph):
        forward = forward_of(graph)
        return Segments(len(forward_of(graph)[:2]) + (forward[2] == "x")).partition(graph)


@frozen
class WritesToTheGraph(Partitioner):
    def partition(self, graph):
        object.__setattr__(graph, "name", "divided")
        return Segments(2).partition(graph)


@frozen
class LosesTheBackward(Partitioner):
    """Of the backward part the last node is left out."""

    def partition(self, graph):
        return tuple(
            Cluster(name=one.name, forward=one.forward, backward=one.backward[1:-1] or one.backward[:1])
            for one in Segments(3).partition(graph)
        )


@frozen
class SwallowsInterruption(Partitioner):
    def partition(self, graph):
        try:
            return Segments(2).partition(graph)
        except KeyboardInterrupt:
            return ()


@frozen
class KnowsNames(Partitioner):
    """The first two nodes of the forward by their names."""

    def partition(self, graph):
        return Segments(2).partition(graph) if "F0" in graph.node_index else Segments(1).partition(graph)


@frozen
class FirstByName(Partitioner):
    """One cluster of the node that comes first by name, of all in the forward."""

    def partition(self, graph):
        forward = forward_of(graph)
        first = min(forward)
        twins = tuple(node.name for node in graph.computes if node.twin == first)
        made = Cluster(name="first", forward=(first,), backward=twins)
        return (made,) if len(forward) > 1 and is_convex(graph, twins, soft=False) else ()


PARTITIONERS = {
    NotConvex(): "L-CONVEX",
    Overlapping(): "L-DISJOINT",
    TakesTheLoss(): "L-DISJOINT",
    EntangledClusters(): "L-CONDENSE",
    ForgetsHints(): "L-CONVEX L-CONDENSE",
    Moody(): "L-REPEAT",
    ByChance(): "L-GLOBAL",
    AsTheSetComes(): "L-NAMES",
    OneName(): "L-INT",
    AnswersAList(): "L-INT",
    ForgetsToAnswer(): "L-INT",
    NeedsThreeNodes(): "L-RAISE",
    WritesToTheGraph(): "L-PURE",
    LosesTheBackward(): "L-CONVEX L-CONDENSE L-EXPAND",
    SwallowsInterruption(): "L-INTERRUPT",
    KnowsNames(): "L-NAMES",
    FirstByName(): "L-NAMES",
}
"""Each planted bug, and the laws that it may break first."""
