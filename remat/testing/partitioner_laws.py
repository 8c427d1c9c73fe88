"""The laws of a partitioner, and `check_partitioner`, which tests all of them on small flat graphs."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from random import Random
from typing import TYPE_CHECKING, Any, Final

from attrs import evolve

from remat.algorithms._hierarchy.partition import Partitioner
from remat.errors import IllFormed
from remat.ir import Cluster, Graph, Phase, Schedule, condense, expand, is_convex, print_text, validate
from remat.settings import instance
from remat.testing.families import branching, chain, legal_flat, long
from remat.testing.guarded import GuardedTrial
from remat.testing.random_schedules import random_schedule
from remat.testing.renaming import other_names, renamed
from remat.testing.report import Report, Say, Tally, check_arguments
from remat.testing.trial import check_repr
from remat.testing.trying import Examples, try_examples

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

PARTITIONER_LAWS = {
    "L-REFUSE": "`refuses` answers None or a line of text, always the same",
    "L-RAISE": "nothing is raised for a graph that is not refused",
    "L-TIME": "it ends within seconds on a small graph",
    "L-THREAD": "no thread or process is left running",
    "L-GLOBAL": "global state of the process is not changed: generators of random numbers, environment, limits",
    "L-PURE": "the graph is not changed",
    "L-INT": "`partition` returns a tuple of clusters, each with a distinct name",
    "L-DISJOINT": "clusters of one level share no node; each holds forward nodes, and backward nodes, of the graph",
    "L-CONVEX": "clusters, soft dependencies included, and their backward parts are convex; children lie within their parent",
    "L-CONDENSE": "each level can be condensed",
    "L-EXPAND": "a schedule of the condensed graph expands to one of the same time and a peak no larger",
    "L-REPEAT": "the same graph is divided the same way, whatever the state of the global generators",
    "L-NAMES": "names do not matter: with others, sorted alike or in reverse, the division stays; nor does the order of sets",
    "L-INTERRUPT": "an interruption is let through, not swallowed",
    "L-REPR": "`repr` rebuilds the partitioner",
}
_FAMILIES: Final = (branching, legal_flat, chain, branching, long)


def check_partitioner(
    partitioner: Partitioner,
    *,
    graphs: SearchStrategy[Graph] | None = None,
    exclude: Mapping[str, str] | None = None,
    words: Mapping[str, Any] | None = None,
    examples: int = 60,
    shrink: bool = True,
    say: Say | None = None,
) -> Report:
    """Test every law of a partitioner on small random flat graphs; arguments as for `check_solver`.

    Raises:
        LawBroken: with the law and the example; `L-NONE` if every graph was refused.
    """
    check_arguments("check_partitioner", partitioner, instance(Partitioner, "HPartition()"), exclude, examples, graphs)
    tally = Tally(partitioner, PARTITIONER_LAWS, exclude)
    check_repr(partitioner, tally, words)
    tried = Examples(graphs=graphs, count=examples, shrink=shrink, families=_FAMILIES)
    try_examples(lambda graph, number: _Trial(partitioner, graph, number, tally).run(), tried, tally)
    return tally.report(say)


class _Trial(GuardedTrial):
    """One graph tested under all laws."""

    def __init__(self, partitioner: Partitioner, graph: Graph, number: int, tally: Tally) -> None:
        super().__init__(partitioner, graph, print_text(graph), PARTITIONER_LAWS, tally)
        self.partitioner, self.number = partitioner, number

    def run(self) -> None:
        """All laws; later ones assume that earlier ones hold."""
        if self.refused():
            return
        pristine = copy.deepcopy(self.graph)
        division = self.guarded("`partition`", lambda: self.partitioner.partition(self.graph))
        if self.tally.tries("L-PURE"):
            self.expect("L-PURE", self.graph == pristine, "the graph has changed.")
        self.well_typed(division)
        if self.tally.tries("L-DISJOINT"):
            for level in _levels(division):
                self.disjoint(level)
        if self.tally.tries("L-CONVEX"):
            self.convex(division)
        if self.tally.tries("L-CONDENSE"):
            self.condenses(division)
        if self.tally.tries("L-EXPAND"):
            self.expands(division)
        self.repeats(division)
        self.interrupted("`partition`", self.number, lambda: self.partitioner.partition(self.graph))

    def well_typed(self, division: object) -> None:
        """L-INT."""
        fine = isinstance(division, tuple) and all(isinstance(cluster, Cluster) for cluster in division)
        if not fine:
            raise self.broken("L-INT", f"`partition` returns {division!r:.80}, not a tuple of clusters.")
        if self.tally.tries("L-INT"):
            names = [cluster.name for level in _levels(division) for cluster in level]  # type: ignore[arg-type]
            twice = {name for name in names if names.count(name) > 1} | (set(names) & self.graph.names)
            self.expect("L-INT", not twice, f"the names {sorted(twice)} are used twice.")

    def disjoint(self, level: Sequence[Cluster]) -> None:
        """L-DISJOINT, for one level."""
        seen: set[str] = set()
        forward = {node.name for node in self.graph.computes if node.phase is Phase.FORWARD}
        backward = {node.name for node in self.graph.computes if node.phase is Phase.BACKWARD}
        for cluster in level:
            phased = set(cluster.forward) <= forward and set(cluster.backward) <= backward
            self.expect("L-DISJOINT", phased, f"{cluster.name!r} has other nodes than forward and backward ones.")
            self.expect("L-DISJOINT", not seen & set(cluster.nodes), f"{cluster.name!r} shares a node.")
            seen |= set(cluster.nodes)

    def convex(self, division: Sequence[Cluster]) -> None:
        """L-CONVEX."""
        for cluster in (cluster for level in _levels(division) for cluster in level):
            self.expect("L-CONVEX", is_convex(self.graph, cluster.forward), f"{cluster.name!r} is not convex.")
            late = is_convex(self.graph, cluster.backward, soft=False)
            self.expect("L-CONVEX", late, f"the backward part of {cluster.name!r} is not convex.")
            inside = all(set(child.nodes) <= set(cluster.nodes) for child in cluster.children)
            self.expect("L-CONVEX", inside, f"a child of {cluster.name!r} reaches outside it.")

    def condenses(self, division: Sequence[Cluster]) -> None:
        """L-CONDENSE."""
        for level in _levels(division):
            try:
                above = condense(self.graph, level).graph
                validate(above, Schedule.from_runs(above, range(len(above))))
            except IllFormed as error:
                raise self.broken("L-CONDENSE", str(error)) from error

    def expands(self, division: Sequence[Cluster]) -> None:
        """L-EXPAND."""
        try:
            level = condense(self.graph, division)
        except IllFormed as error:
            raise self.broken("L-CONDENSE", str(error)) from error
        schedule = random_schedule(level.graph, Random(self.number).randint)
        above, below = validate(level.graph, schedule), validate(self.graph, expand(level, schedule))
        what = f"{above.time} ns, {above.peak} B above; {below.time} ns, {below.peak} B below."
        self.expect("L-EXPAND", below.time == above.time and below.peak <= above.peak, what)

    def repeats(self, division: tuple[Cluster, ...]) -> None:
        """L-REPEAT and L-NAMES."""
        if self.tally.tries("L-REPEAT"):
            for again in self.reseeded("`partition`", lambda: self.partitioner.partition(self.graph)):
                self.expect("L-REPEAT", again == division, "a second call divides the graph differently.")
        if self.tally.tries("L-NAMES"):
            names, what = other_names(self.graph, self.number)
            graph = renamed(self.graph, names)
            other = self.quietly("`partition`", lambda: self.partitioner.partition(graph))
            same = _nodes(other) == _nodes(tuple(_renamed(cluster, names) for cluster in division))
            self.expect("L-NAMES", same, f"{what} the graph is divided differently.")


def _renamed(cluster: Cluster, names: Mapping[str, str]) -> Cluster:
    return evolve(
        cluster,
        forward=tuple(names[name] for name in cluster.forward),
        backward=tuple(names[name] for name in cluster.backward),
        children=tuple(_renamed(child, names) for child in cluster.children),
    )


def _nodes(division: Sequence[Cluster]) -> list[list[tuple[tuple[str, ...], tuple[str, ...]]]]:
    """The nodes of the clusters, level by level, whatever the clusters are called."""
    return [[(cluster.forward, cluster.backward) for cluster in level] for level in _levels(division)]


def _levels(division: Sequence[Cluster]) -> Iterator[tuple[Cluster, ...]]:
    level = tuple(division)
    while level:
        yield level
        level = tuple(child for cluster in level for child in cluster.children)


__all__ = ["PARTITIONER_LAWS", "check_partitioner"]
