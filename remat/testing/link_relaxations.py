"""The formulation of a bound with copies as `check_bound` sees it, with the schedules on which it is tested."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from fractions import Fraction
from typing import ClassVar

import numpy as np
from attrs import field, frozen

from remat.algorithms._arrays.graph_arrays import flatten
from remat.algorithms._bounds.floor import first_run_floor
from remat.algorithms._copies.copy_arrays import lanes_of
from remat.algorithms._copies.copy_moves import BOTH, Prices
from remat.algorithms._copies.copy_search import CopySearch
from remat.algorithms._copies.link_bound import LinkInstant, Reach, link_formulation
from remat.algorithms._core.clock import Clock
from remat.algorithms._core.problem import Problem
from remat.algorithms._whole.baselines import store_all_peak
from remat.ir import Graph, Link, Run
from remat.testing.families import Family, branching, chain, late, legal_flat, parallel, uneven
from remat.testing.library_relaxations import AtInstant
from remat.testing.link_trace import LinkTrace, random_link_trace, traced
from remat.testing.relaxation import Formulation, Relaxation
from remat.testing.trace import Trace
from remat.testing.walks import Choose
from remat.units import Bytes, Ns

_MOST_WAITING: Ns = 1 << 60
"""More than any schedule waits."""

_LARGEST: Bytes = 1 << 50
"""Peaks of graphs that are planned on: their sums stay within the words of the kernels."""


@frozen
class AtInstantWithLink(AtInstant):
    """One instant of a problem with a link, on schedules with copies.

    Attributes:
        link: for copies.
    """

    families: ClassVar[tuple[Family, ...]] = (
        uneven,
        branching,
        legal_flat,
        uneven,
        chain,
        parallel,
        uneven,
        legal_flat,
        late,
    )
    link: Link = field(default=Link.symmetric(gb_per_s=1), kw_only=True)

    def trace(self, graph: Graph, choose: Choose) -> Trace:
        """A schedule with copies, a third of them planned: planned ones keep the lanes busy and leave no time unused."""
        planned = _planned_trace(graph, choose, self.link) if choose(0, 2) == 0 else None
        return random_link_trace(graph, choose, self.link) if planned is None else planned

    def formulation(self, graph: Graph, place: Hashable, budget: Bytes) -> Formulation:
        """Of the instant, with copies."""
        flat = flatten(graph)
        lanes = lanes_of(flat, self.link, budget, None)
        at, base = graph.node_index[str(place)], int(flat.time.sum())
        formulation = link_formulation(flat, lanes, Reach(flat), at, _MOST_WAITING)
        impossible = formulation.instant.impossible
        return Formulation(linear=formulation.linear, base=base, impossible=impossible, meaning=formulation)

    def point(self, formulation: Formulation, trace: Trace, place: Hashable) -> Sequence[int | Fraction]:
        """s: charged; z: has run; y: has run and runs again; o: not charged, and read before it is made again; w: all other time.

        Reruns that serve nobody count as waiting.
        """
        assert isinstance(trace, LinkTrace)
        meaning: LinkInstant = formulation.meaning
        graph, step = trace.graph, trace.first[str(place)]
        served = Formulation(linear=formulation.linear, meaning=meaning.instant)
        x: list[int | Fraction] = list(super().point(served, trace, place))
        for node, again in zip(graph.computes, meaning.instant.again.tolist(), strict=True):
            if again >= 0:
                later = any(at >= step and at in trace.serves for at in trace.runs.get(node.name, ()))
                x[again] = trace.ran_before(node.name, step) and later
        for name in _fetched_after(trace, step):
            if meaning.off[graph.data_index[name]] >= 0:
                x[meaning.off[graph.data_index[name]]] = 1
        flat, start = flatten(graph), trace.starts[step]
        ran = [i for i, node in enumerate(graph.computes) if trace.ran_before(node.name, step)]
        passed = int(flat.time[ran].sum())
        again_time = sum(int(flat.time[i]) * x[k] for i, k in enumerate(meaning.instant.again.tolist()) if k >= 0)
        x[meaning.waits[0]] = Fraction(start - passed, _MOST_WAITING)
        x[meaning.waits[1]] = Fraction(trace.time - start - (formulation.base - passed) - again_time, _MOST_WAITING)
        return x


def _planned_trace(graph: Graph, choose: Choose, link: Link) -> LinkTrace | None:
    """A greedy plan with copies within a budget between the floor and the peak; None: there is none, or data are large."""
    flat = flatten(graph)
    floor, peak = first_run_floor(flat)[0], store_all_peak(graph)
    if peak >= _LARGEST or floor >= peak:
        return None
    budget = choose(floor, peak - 1)
    search = CopySearch(Problem(graph=graph, budget=budget, link=link), Clock(), 0, "a trial")
    prices = Prices(search.time_prices, choose(1, 20) / 10, 1.0, choose(0, 5) / 10, 0.0, BOTH)
    shaved = search.shaved(search.base, search.bare(search.base), prices, np.array([choose(0, 1 << 30)], np.uint64))
    plan = None if shaved is None else search.replayed(*shaved)
    return traced(graph, search.schedule_of(plan), link, budget) if plan is not None and plan.fits else None


def _fetched_after(trace: LinkTrace, step: int) -> set[str]:
    """Data that are not charged at a run and that a run that serves reads, from it on, before they are made again."""
    produced: set[str] = set()
    fetched: set[str] = set()
    for at in sorted(trace.serves):
        if at >= step:
            run = trace.schedule.steps[at]
            assert isinstance(run, Run)
            node = trace.graph.node(run.node)
            begun = {name for name in node.writes if trace.graph.datum(name).writers[0] == node.name}
            reads = {*node.reads, *node.writes} - begun
            fetched |= reads - produced - trace.before[step].keys()
            produced |= begun
    return fetched


LINK_RELAXATIONS: tuple[Relaxation, ...] = (
    AtInstantWithLink(),
    AtInstantWithLink(link=Link(to_host=4 * 10**9, to_device=10**9 // 4, to_host_latency=1, to_device_latency=2)),
)
"""The formulation with a link as fast as the graphs of the tests, and with a slow one back."""

__all__ = ["LINK_RELAXATIONS", "AtInstantWithLink"]
