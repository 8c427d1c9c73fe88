"""`Condense`: a flat graph as the layers that a partitioner finds, each with the options that a lower level offers.

    hierarchical(Intervals(12), lower=HIlp().sweep(peaks=4, saves=4), top=HIlp())

is `Condense(Intervals(12), lower=…) >> HIlp()`. Levels nest: a cluster that has clusters of its own is condensed by them and
planned by `middle`; any solver of a lower level may itself be `Condense(…) >> …`. Reference: HiRemate (2024), section 3.2.
"""

from __future__ import annotations

from typing import Any

from attrs import evolve, field, frozen

from remat.algorithms._core.clock import Clock, lower_clock
from remat.algorithms._core.option_pool import Pool
from remat.algorithms._core.options import OptionSource, undominated
from remat.algorithms._core.problem import Problem
from remat.algorithms._core.solver import Solver
from remat.algorithms._core.transforms import Applied, Transform
from remat.algorithms._hierarchy.partition import Partitioner
from remat.ir import Cluster, Graph, LayerOption, cluster_classes, clusters, condense, part, plain_options, translate
from remat.ir import renaming as renaming_of
from remat.ir.hierarchy import Condensed
from remat.settings import NAME, Setting, either, instance, optional, tuple_of, whole


def _is_group(value: Any) -> bool:
    return type(value) is tuple and len(value) == 2 and NAME.accepts(value[0]) and _members.accepts(value[1])


_members = tuple_of(NAME)
_group = Setting("a name and a tuple of names of nodes", _is_group)
_offers = optional(instance(OptionSource, "quick.sweep(peaks=4, saves=4)"))
_plans = instance(Solver, "HIlp()")
_pool = instance(Pool, "pool(HIlp(), TwRemat().sweep())")


@frozen
class Condense(Transform):
    """Clusters become layers; a schedule of the layers is expanded, no slower and with a peak no larger.

    Proofs are not kept: a schedule of the flat graph may mix the options of a cluster. Copies to the host are not planned on
    layers: a link is ignored.

    Attributes:
        partition: what divides the graph.
        lower: offers the options of clusters that have no clusters inside, in addition to the two that need no solver (keep
            all that the backward reads; keep nothing). None: those two only.
        middle: plans clusters that have clusters inside, as layers themselves. A pool: its solvers do, its sources of options are
            asked about the cluster as a flat graph. None: their inner clusters are not used.
        peaks, saves: budgets of the sweep that `middle` makes.
    """

    partition: Partitioner = field(validator=instance(Partitioner, "Intervals(12)"))
    lower: OptionSource | None = field(default=None, kw_only=True, validator=_offers)
    middle: Solver | Pool | None = field(default=None, kw_only=True, validator=optional(either(_plans, _pool)))
    peaks: int = field(default=4, kw_only=True, validator=whole(1, "budgets"))
    saves: int = field(default=4, kw_only=True, validator=whole(1, "budgets"))

    def refuses(self, graph: Graph) -> str | None:
        """Why a graph is refused: the partitioner refuses it."""
        return self.partition.refuses(graph)

    def apply(self, problem: Problem, *, clock: Clock | None = None, seed: int = 0) -> Applied:
        """The graph of layers; equal clusters are planned once. Without clusters it remains the flat graph."""
        level, note = self.level(problem.graph, clock=clock, seed=seed)
        if level is None:
            return Applied(problem=problem, lift=lambda schedule: schedule, note=note)
        return Applied(problem=evolve(problem, graph=level.graph, link=None), lift=level.expand, note=note)

    def level(self, graph: Graph, *, clock: Clock | None = None, seed: int = 0) -> tuple[Condensed | None, str]:
        """The graph of layers with the way back, and what was divided in words; None without clusters."""
        divided = self.partition.partition(graph)
        if not divided:
            return None, "undivided"
        lower = lower_clock(clock)
        by_kind: dict[int, tuple[Cluster, tuple[LayerOption, ...]]] = {}
        options: dict[str, tuple[LayerOption, ...]] = {}
        for cluster, kind in zip(divided, cluster_classes(graph, divided), strict=True):
            if kind not in by_kind:
                by_kind[kind] = (cluster, self._options(graph, cluster, lower, seed))
            first, offered = by_kind[kind]
            names = renaming_of(graph, first, cluster)
            options[cluster.name] = tuple(translate(option, names) for option in offered)
        level = condense(graph, divided, options)
        count = sum(len(layer.options) for layer in level.graph.layers)
        kinds = f"{len(divided)} clusters of {len(by_kind)} kinds, {count} options"
        note = f"{kinds}, {len(level.graph)} nodes instead of {len(graph)}"
        alone = sum(not cluster.backward for cluster in divided)
        if alone:
            note += (
                f"; {alone} of the clusters offer no options, as no backward node is theirs: name the forward node of each "
                "backward node as its `twin`"
            )
        return level, note

    def _options(self, graph: Graph, cluster: Cluster, clock: Clock, seed: int) -> tuple[LayerOption, ...]:
        """Those that need no solver, and those that the lower levels offer."""
        if not cluster.backward:
            return ()
        source = self._source(cluster)
        offered = () if source is None else source.options(part(graph, cluster), clock=clock, seed=seed)
        return undominated([*plain_options(graph, cluster), *offered])

    def _source(self, cluster: Cluster) -> OptionSource | None:
        """What offers the options of a cluster."""
        if not cluster.children or self.middle is None:
            return self.lower
        inside = evolve(self, partition=Given(tuple((child.name, child.forward) for child in cluster.children)))
        parts = self.middle.parts if isinstance(self.middle, Pool) else (self.middle,)
        planned = Pool(tuple(inside >> part if isinstance(part, Solver) else part for part in parts))
        return planned.sweep(peaks=self.peaks, saves=self.saves)


@frozen
class Given(Partitioner):
    """Clusters that are given by name.

    Attributes:
        groups: name and forward nodes of each.
    """

    groups: tuple[tuple[str, tuple[str, ...]], ...] = field(validator=tuple_of(_group, empty=True))

    def partition(self, graph: Graph) -> tuple[Cluster, ...]:
        """The groups, each with its part of this graph's backward."""
        return clusters(graph, dict(self.groups))


def hierarchical(
    partition: Partitioner, *, lower: OptionSource | None = None, top: Solver, middle: Solver | Pool | None = None
) -> Solver:
    """`Condense(partition, lower=lower, middle=middle) >> top`."""
    _plans.check(top, "hierarchical: top")
    return Condense(partition, lower=lower, middle=middle) >> top


__all__ = ["Condense", "Given", "hierarchical"]
