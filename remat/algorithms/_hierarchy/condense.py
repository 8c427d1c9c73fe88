"""`Condense`: a flat graph as the layers that a partitioner finds, each with the options that a lower level offers.

    hierarchical(Intervals(12), lower=HIlp().sweep(peaks=4, saves=4), top=HIlp())

is `Condense(Intervals(12), lower=…) >> HIlp()`. Levels nest: a cluster that has clusters of its own is condensed by them and
planned by `middle`; any solver of a lower level may itself be `Condense(…) >> …`. Reference: HiRemate (2024), section 3.2.
"""

from __future__ import annotations

import math
from typing import Any

from attrs import evolve, field, frozen

from remat.algorithms._core.clock import Clock, lower_clock
from remat.algorithms._core.option_pool import A_SOURCE, Pool
from remat.algorithms._core.options import SHARE, OptionSource, Sweep, selected, undominated
from remat.algorithms._core.problem import Problem
from remat.algorithms._core.solver import Solver
from remat.algorithms._core.transforms import Applied, Transform
from remat.algorithms._hierarchy.partition import Partitioner
from remat.ir import Cluster, Graph, LayerOption, cluster_classes, clusters, condense, part, plain_options, translate
from remat.ir import renaming as renaming_of
from remat.ir.hierarchy import Condensed
from remat.settings import NAME, SECONDS, Setting, either, instance, optional, tuple_of, whole


def _is_group(value: Any) -> bool:
    return type(value) is tuple and len(value) == 2 and NAME.accepts(value[0]) and _members.accepts(value[1])


_members = tuple_of(NAME)
_group = Setting("a name and a tuple of names of nodes", _is_group)
_groups = Setting(
    f"a tuple, each {_group.words}, no name twice",
    lambda value: tuple_of(_group, empty=True).accepts(value) and len(dict(value)) == len(value),
)
_plans = instance(Solver, "HIlp()")
_pool = instance(Pool, "pool(HIlp(), TwRemat().sweep())")


@frozen
class Condense(Transform):
    """Clusters become layers; a schedule of the layers is expanded, no slower and with a peak no larger.

    Proofs are not kept: a schedule of the flat graph may mix the options of a cluster. A link is ignored, since a schedule that
    is expanded makes no copies; `WithCopies(Condense(…) >> top)` plans them on the flat graph, from the expanded plan.

    Attributes:
        partition: what divides the graph.
        lower: offers the options of clusters that have no clusters inside, in addition to the two that need no solver (keep
            all that the backward reads; keep nothing). None: those two only.
        middle: plans clusters that have clusters inside, as layers themselves. A pool: its solvers do, its sources of options are
            asked about the cluster as a flat graph. None: their inner clusters are not used.
        peaks, saves: budgets of the sweep that `middle` makes.
        limit: how many options the clusters of a level have in all (N_o in HiRemate, section 3.2.2): each has a part in
            proportion to its operators, and keeps those whose peaks are farthest apart. None: every undominated one.
        seconds: a deadline for the options of each kind of cluster; None: a share of the time that there is.
    """

    partition: Partitioner = field(validator=instance(Partitioner, "Intervals(12)"))
    lower: OptionSource | None = field(default=None, kw_only=True, validator=optional(A_SOURCE))
    middle: Solver | Pool | None = field(default=None, kw_only=True, validator=optional(either(_plans, _pool)))
    peaks: int = field(default=4, kw_only=True, validator=whole(1, "budgets"))
    saves: int = field(default=4, kw_only=True, validator=whole(1, "budgets"))
    limit: int | None = field(default=None, kw_only=True, validator=optional(whole(1, "options")))
    seconds: float | None = field(default=None, kw_only=True, validator=optional(SECONDS))

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
        by_kind: dict[int, tuple[Cluster, tuple[LayerOption, ...]]] = {}
        options: dict[str, tuple[LayerOption, ...]] = {}
        operators = sum(len(cluster.nodes) for cluster in divided if cluster.backward)
        kinds = cluster_classes(graph, divided)
        lower = lower_clock(clock)
        for cluster, kind in zip(divided, kinds, strict=True):
            if kind not in by_kind:
                mine = self._share(lower, len(set(kinds)) - len(by_kind))
                by_kind[kind] = cluster, self._selected(cluster, self._options(graph, cluster, mine, seed), operators)
            first, offered = by_kind[kind]
            names = renaming_of(graph, first, cluster)
            options[cluster.name] = tuple(translate(option, names) for option in offered)
        level = condense(graph, divided, options)
        count = sum(len(layer.options) for layer in level.graph.layers)
        what = f"{len(divided)} clusters of {len(by_kind)} kinds, {count} options"
        note = f"{what}, {len(level.graph)} nodes instead of {len(graph)}"
        alone = sum(not cluster.backward for cluster in divided)
        if alone:
            note += (
                f"; {alone} of the clusters offer no options, as no backward node is theirs: name the forward node of each "
                "backward node as its `twin`"
            )
        return level, note

    def _share(self, clock: Clock, kinds: int) -> Clock:
        """The clock of one of the kinds of clusters that are left."""
        share = SHARE * clock.remaining / kinds
        limits = [limit for limit in (self.seconds, share) if limit is not None and math.isfinite(limit)]
        return clock.nested(min(limits, default=None))

    def _selected(self, cluster: Cluster, options: tuple[LayerOption, ...], operators: int) -> tuple[LayerOption, ...]:
        """The part of the limit that a cluster has, at least two; all without one. `operators`: of all clusters."""
        if self.limit is None:
            return options
        return selected(options, max(2, self.limit * len(cluster.nodes) // max(1, operators)))

    def _options(self, graph: Graph, cluster: Cluster, clock: Clock, seed: int) -> tuple[LayerOption, ...]:
        """Those that need no solver, and those that the lower levels offer."""
        if not cluster.backward:
            return ()
        block = part(graph, cluster)
        if not cluster.children or self.middle is None:
            offered = () if self.lower is None else self.lower.options(block, clock=clock, seed=seed)
        else:
            offered = self._inner_options(block, cluster, clock, seed)
        return undominated([*plain_options(graph, cluster), *offered])

    def _inner_options(self, block: Graph, cluster: Cluster, clock: Clock, seed: int) -> tuple[LayerOption, ...]:
        """What `middle` offers for a cluster that has clusters inside; these are condensed once."""
        groups = tuple((child.name, child.forward) for child in cluster.children)
        level, _ = evolve(self, partition=Given(groups)).level(block, clock=clock.aside(), seed=seed)
        parts = self.middle.parts if isinstance(self.middle, Pool) else (self.middle,)
        offered: list[LayerOption] = []
        for part_of_pool in parts:
            if isinstance(part_of_pool, OptionSource):
                offered.extend(part_of_pool.options(block, clock=clock.nested(), seed=seed))
            elif part_of_pool is not None and level is not None:
                sweep = Sweep(part_of_pool, peaks=self.peaks, saves=self.saves)
                offered.extend(
                    sweep.options_of_level(block, level.graph, level.expand, clock=clock.nested(), seed=seed)
                )
        return undominated(offered)


@frozen
class Given(Partitioner):
    """Clusters that are given by name.

    Attributes:
        groups: name and forward nodes of each.
    """

    groups: tuple[tuple[str, tuple[str, ...]], ...] = field(validator=_groups)

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
