"""The laws of a partitioner, and `check_partitioner`, which tries all of them on small flat graphs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from remat.algorithms._hierarchy.partition import Partitioner
from remat.errors import IllFormed
from remat.ir import Cluster, Graph, Phase, Schedule, condense, expand, is_convex, print_text, validate
from remat.testing.report import Report, Say, Tally
from remat.testing.trial import Trial, check_repr, settings_for

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

PARTITIONER_LAWS = {
    "L-REFUSE": "`refuses` answers None or a line of text, always the same",
    "L-DISJOINT": "clusters of one level share no node, and each holds forward nodes of the graph",
    "L-CONVEX": "every cluster is convex, soft dependencies included; children lie within their parent",
    "L-CONDENSE": "each level can be condensed",
    "L-EXPAND": "a schedule of the condensed graph expands to one of the same time and a peak no larger",
    "L-REPEAT": "the same graph is divided the same way",
    "L-PURE": "the graph is left as it was",
    "L-REPR": "`repr` rebuilds the partitioner",
}


def check_partitioner(
    partitioner: Partitioner,
    *,
    graphs: SearchStrategy[Graph] | None = None,
    exclude: Mapping[str, str] | None = None,
    examples: int = 60,
    shrink: bool = True,
    say: Say | None = None,
) -> Report:
    """Try every law of a partitioner on small random flat graphs; arguments as for `check_transform`.

    Raises:
        LawBroken: with the law and the example; `L-NONE` when everything was refused.
    """
    from hypothesis import given
    from hypothesis import strategies as st

    from remat.testing.strategies import training_graphs, valid_schedules

    tally = Tally(partitioner, PARTITIONER_LAWS, exclude)
    check_repr(partitioner, tally)

    @settings_for(examples, shrink)
    @given(training_graphs(min_forward=3, max_forward=6) if graphs is None else graphs, st.data())
    def all_laws(graph: Graph, data: st.DataObject) -> None:
        trial = _Trial(partitioner, graph, tally)
        found = trial.found()
        if found is None:
            return
        trial.run(found)
        if tally.tries("L-EXPAND"):
            level = condense(graph, found)
            schedule = data.draw(valid_schedules(level.graph))
            above, below = validate(level.graph, schedule), validate(graph, expand(level, schedule))
            what = f"{above.time} ns, {above.peak} B above; {below.time} ns, {below.peak} B below."
            trial.expect("L-EXPAND", below.time == above.time and below.peak <= above.peak, what)

    all_laws()
    return tally.report(say)


class _Trial(Trial):
    """One graph tried under all laws."""

    def __init__(self, partitioner: Partitioner, graph: Graph, tally: Tally) -> None:
        super().__init__(partitioner, graph, print_text(graph), PARTITIONER_LAWS, tally)
        self.partitioner = partitioner

    def found(self) -> tuple[Cluster, ...] | None:
        """The clusters, or None when the partitioner refuses."""
        if self.refused():
            return None
        found = self.partitioner.partition(self.graph)
        if self.tally.tries("L-PURE"):
            self.expect("L-PURE", print_text(self.graph) == self.example, "the graph has changed.")
        if self.tally.tries("L-REPEAT"):
            self.expect("L-REPEAT", self.partitioner.partition(self.graph) == found, "divided again it differs.")
        return found

    def run(self, found: tuple[Cluster, ...]) -> None:
        """The laws of what was found; condensing needs the first two."""
        if self.tally.tries("L-DISJOINT"):
            for level in _levels(found):
                self.disjoint(level)
        if self.tally.tries("L-CONVEX"):
            for cluster in (one for level in _levels(found) for one in level):
                self.expect("L-CONVEX", is_convex(self.graph, cluster.forward), f"{cluster.name!r} is not convex.")
                inside = all(set(child.forward) <= set(cluster.forward) for child in cluster.children)
                self.expect("L-CONVEX", inside, f"a child of {cluster.name!r} reaches outside it.")
        if self.tally.tries("L-CONDENSE"):
            for level in _levels(found):
                try:
                    above = condense(self.graph, level).graph
                    validate(above, Schedule.from_runs(above, range(len(above))))
                except IllFormed as error:
                    raise self.broken("L-CONDENSE", str(error)) from error

    def disjoint(self, level: Sequence[Cluster]) -> None:
        """L-DISJOINT, for one level."""
        seen: set[str] = set()
        forward = {node.name for node in self.graph.computes if node.phase is Phase.FORWARD}
        for cluster in level:
            self.expect(
                "L-DISJOINT", set(cluster.forward) <= forward, f"{cluster.name!r} holds other than forward nodes."
            )
            self.expect("L-DISJOINT", not seen & set(cluster.nodes), f"{cluster.name!r} shares a node.")
            seen |= set(cluster.nodes)


def _levels(found: Sequence[Cluster]) -> Iterator[tuple[Cluster, ...]]:
    level = tuple(found)
    while level:
        yield level
        level = tuple(child for one in level for child in one.children)
