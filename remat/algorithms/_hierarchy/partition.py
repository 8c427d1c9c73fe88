"""Partitioners: a flat graph as clusters that the level above sees as layers.

What a partitioner returns must be condensable; `remat.testing.check_partitioner` tests it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from itertools import accumulate

from attrs import field, frozen

from remat.errors import IllFormed
from remat.ir import Cluster, Graph, Phase, clusters
from remat.ir.arguments import A_GRAPH
from remat.ir.cluster import unused
from remat.ir.hierarchy import check_condensable
from remat.settings import takes, whole


class Partitioner(ABC):
    """Divides a graph. Subclasses are frozen attrs classes of settings; their repr rebuilds them."""

    __slots__ = ()

    @takes(graph=A_GRAPH)
    def refuses(self, graph: Graph) -> str | None:
        """Why this partitioner cannot treat the graph; None when it can."""
        return None if graph.flat else "the graph has layers or options; expand it first"

    @abstractmethod
    def partition(self, graph: Graph) -> tuple[Cluster, ...]:
        """Disjoint clusters of one level, the levels below as their children. Nodes may be left over; they stay plain."""


@frozen
class Undivided(Partitioner):
    """No clusters: the level above sees the graph itself."""

    def partition(self, graph: Graph) -> tuple[Cluster, ...]:
        """Nothing."""
        del graph
        return ()


@frozen
class Segments(Partitioner):
    """Segments of the captured order, `size` forward nodes each; a segment that cannot be condensed is dissolved.

    Attributes:
        size: forward nodes in a segment.
    """

    size: int = field(default=20, validator=whole(1, "nodes"))

    def partition(self, graph: Graph) -> tuple[Cluster, ...]:
        """The segments, named `segment.0`, …."""
        forward = [node for node in graph.computes if node.phase is Phase.FORWARD]
        word = unused("segment", graph.names)
        groups = {
            f"{word}.{i // self.size}": [node.name for node in forward[i : i + self.size]]
            for i in range(0, len(forward), self.size)
        }
        return condensable(graph, groups)


@frozen
class Intervals(Partitioner):
    """Segments of the captured order cut where few bytes cross: any interval of an order is convex.

    The sum of the bytes that cross the cuts is least among all divisions into segments of at most `size` forward nodes; of
    equal ones, the one with fewer cuts.

    Attributes:
        size: most forward nodes in a segment.
    """

    size: int = field(default=20, validator=whole(1, "nodes"))

    def partition(self, graph: Graph) -> tuple[Cluster, ...]:
        """The segments, named `segment.0`, …."""
        forward = [i for i in range(graph.loss) if graph.computes[i].phase is Phase.FORWARD]
        crossing = _crossing(graph, forward)
        best: list[tuple[int, int, int]] = [(0, 0, 0)]  # bytes, cuts, where the last segment begins
        for end in range(1, len(forward) + 1):
            starts = range(max(0, end - self.size), end)
            best.append(min((best[at][0] + crossing[end], best[at][1] + 1, at) for at in starts))
        cuts, at = [], len(forward)
        while at:
            cuts.append((best[at][2], at))
            at = best[at][2]
        names = [graph.computes[i].name for i in forward]
        word = unused("segment", graph.names)
        groups = {f"{word}.{k}": names[low:high] for k, (low, high) in enumerate(reversed(cuts))}
        return condensable(graph, groups)


def _crossing(graph: Graph, forward: Sequence[int]) -> list[int]:
    """Bytes of the forward's data that cross each cut: written before node k of the forward, read by it or a later node."""
    place = {node: k for k, node in enumerate(forward)}
    steps = [0] * (len(forward) + 2)
    for datum, writers, readers in zip(graph.data, graph.writers_by_data, graph.readers_by_data, strict=True):
        late = [place.get(reader, len(forward)) for reader in readers if reader <= graph.loss]
        if writers and writers[0] in place and late and max(late) > place[writers[-1]]:
            steps[place[writers[-1]] + 1] += datum.size
            steps[max(late) + 1] -= datum.size
    return list(accumulate(steps))


def condensable(graph: Graph, groups: Mapping[str, Sequence[str]]) -> tuple[Cluster, ...]:
    """Groups of forward nodes as clusters that can be condensed together; a group that cannot be is dissolved.

    Run-once nodes stay outside where the rest of their group is convex without them, so that layers may be replayed.
    """
    narrowed = {name: _without_run_once(graph, members) for name, members in groups.items()}
    groups_left = {name: members for name, members in narrowed.items() if members}
    while groups_left and not _fits(graph, groups_left):
        odd = next(
            (name for name in groups_left if not _fits(graph, {name: groups_left[name]})), next(iter(groups_left))
        )
        del groups_left[odd]
    return clusters(graph, groups_left)


def _without_run_once(graph: Graph, members: Sequence[str]) -> Sequence[str]:
    """The members that may run again, where they can be condensed alone; all of them where not; none where all run once."""
    replayable = [member for member in members if not graph.node(member).run_once]
    if not replayable or len(replayable) == len(members):
        return replayable
    return replayable if _fits(graph, {"replayable": replayable}) else members


def _fits(graph: Graph, groups: Mapping[str, Sequence[str]]) -> bool:
    try:
        check_condensable(graph, clusters(graph, groups))
    except IllFormed:
        return False
    return True
