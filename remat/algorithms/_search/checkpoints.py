"""`Checkpoints`: plans that keep what crosses a few cuts of the forward, and run the segments between them again.

The forward is cut where equal parts of its time end, or a little beside, where fewer bytes cross. What crosses the cuts is
kept; the backward of a segment begins with another run of it. Nested, a segment that runs again keeps what crosses cuts of its
own, until its first part is reached. Chains of layers are the usual case, but any graph has such cuts: a datum crosses one if it
is made before and read after it. The plans recompute more than they must or keep too much; deletion and shaving do the rest, and
keep the structure. Sources: Chen et al., Training Deep Nets with Sublinear Memory Cost, 2016 (one level); Griewank and
Walther, Revolve, 2000 (nested levels).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from attrs import field, frozen
from numpy.typing import NDArray

from remat.algorithms._arrays.graph_arrays import BACKWARD, Flags, Flat, Ints, Longs, pairs_of
from remat.algorithms._search.on_demand import recompute_on_demand
from remat.algorithms._search.passes import shaved, variant
from remat.algorithms._search.run_move import RunMove
from remat.algorithms._search.run_problem import Sequence
from remat.algorithms._search.state import Search
from remat.ir import Graph
from remat.settings import tuple_of, whole

_PARTS = ((2, 3, 4, 5, 6, 8, 9, 10, 12, 14, 16, 20, 24, 28, 32, 48), (4, 5, 6, 8, 10), (3, 4, 5))
_ASIDE = 3  # a cut lies within this part of a segment's length beside its end
_LARGE, _FEW = 3000, 4  # nodes above which only so many starts are shaved: each takes tenths of a second


class _Forward(NamedTuple):
    """The forward and the loss, by position in an order.

    Attributes:
        nodes: how many. elapsed: time before each position [ns]. crossing: bytes that cross each, without kept data.
        produced, read: per datum, the positions of its producer and of its last reader; -1: none.
    """

    nodes: int
    elapsed: Longs
    crossing: Longs
    produced: Ints
    read: Ints


class _Segment(NamedTuple):
    """The nodes from a position to the next segment; `cuts`: where data cross that stay while it runs again."""

    begin: int
    cuts: tuple[int, ...]


@frozen
class Checkpoints(RunMove):
    """Shavings of plans that run segments of the forward again from what crosses the cuts between them. Proves nothing.

    Attributes:
        parts: for one level of cuts, for two and so on, into how many parts each level divides: of (…, (4,)) comes a plan of four
            segments, each run again in four.
    """

    parts: tuple[tuple[int, ...], ...] = field(default=_PARTS, validator=tuple_of(tuple_of(whole(2, "parts"))))

    @property
    def _levels(self) -> tuple[tuple[int, ...], ...]:
        """The parts of each level of each plan."""
        return tuple((count,) * (depth + 1) for depth, counts in enumerate(self.parts) for count in counts)

    def outline(self, graph: Graph) -> tuple[str, ...]:
        """The largest number of shavings."""
        count = len(self._levels) if len(graph) <= _LARGE else min(_FEW, len(self._levels))
        return (f"{self!r}: {count} shavings",)

    def improve(self, search: Search) -> None:
        """Shave each plan; on large graphs those whose peaks are nearest to the budget."""
        for number, (parts, start) in enumerate(self._starts(search)):
            if search.over:
                return
            plan = shaved(search, start, variant(0), search.streams.spawn("checkpoints", number), search.budget)
            # slower plans would take the places of those that later searches begin with, which are as good on average
            if plan is not None and search.arrays.time_of(plan) < search.best_time:
                search.offer(plan, f"{'·'.join(map(str, parts))} segments of checkpoints")

    def _starts(self, search: Search) -> list[tuple[tuple[int, ...], Sequence]]:
        """The parts of each level and the plan, of those that are shaved."""
        forward = _forward(search.flat, search.base)
        levels = (parts for parts in self._levels if math.prod(parts) <= forward.nodes)
        starts = [(parts, _checkpointed(search.flat, search.base, forward, parts)) for parts in levels]
        if len(search.base) <= _LARGE:
            return starts

        def distance(start: tuple[tuple[int, ...], Sequence]) -> float:
            peak = search.arrays.peak_of(start[1])
            return max(peak, search.budget) / max(1, min(peak, search.budget))

        return sorted(starts, key=distance)[:_FEW]


def _forward(flat: Flat, base: Sequence) -> _Forward:
    nodes = base[flat.phase[base] != BACKWARD]
    count, data = len(nodes), flat.size.size
    place = np.full(flat.time.size, -1)
    place[nodes] = np.arange(count)
    produced = np.where(flat.producer >= 0, place[flat.producer], -1)
    read = np.full(data, -1)
    d, reader = pairs_of(flat.users)
    np.maximum.at(read, d, place[reader])
    crosses = (produced >= 0) & (read > produced) & ~flat.keep
    change = np.zeros(count + 1, np.int64)
    np.add.at(change, produced[crosses] + 1, flat.size[crosses])
    np.subtract.at(change, read[crosses] + 1, flat.size[crosses])
    elapsed = np.concatenate([[0], np.cumsum(flat.time[nodes])])
    return _Forward(count, elapsed, np.cumsum(change), produced, read)


def _cuts(forward: _Forward, begin: int, end: int, parts: int) -> list[int]:
    """At most parts - 1 positions strictly between two that divide the time between them evenly."""
    total = int(forward.elapsed[end] - forward.elapsed[begin])
    aside = max(1, (end - begin) // (_ASIDE * parts))
    cuts = set()
    for k in range(1, parts):
        even = int(np.searchsorted(forward.elapsed, int(forward.elapsed[begin]) + total * k // parts))
        near = range(max(begin + 1, even - aside), min(end - 1, even + aside) + 1)
        if near:
            cuts.add(min(near, key=lambda at: (int(forward.crossing[at]), abs(at - even))))
    return sorted(cuts)


def _divided(
    forward: _Forward, span: tuple[int, int], levels: tuple[int, ...], cuts: tuple[int, ...]
) -> Iterator[_Segment]:
    """The segments of a span: for each, the cuts before it of its own level and of those around it stay."""
    if not levels:
        yield _Segment(span[0], cuts)
        return
    inner = _cuts(forward, *span, levels[0])
    for k, part in enumerate(pairwise((span[0], *inner, span[1]))):
        yield from _divided(forward, part, levels[1:], (*cuts, *inner[:k]))


def _checkpointed(flat: Flat, base: Sequence, forward: _Forward, levels: tuple[int, ...]) -> Sequence:
    """`base` with each segment run again from what crosses the cuts; the one that the backward begins with is kept whole."""
    segments = list(_divided(forward, (0, forward.nodes), levels, ()))
    begins = np.array([segment.begin for segment in segments])
    inside = np.where(forward.produced >= 0, np.searchsorted(begins, forward.produced, side="right") - 1, -1)
    backward = base[flat.phase[base] == BACKWARD]
    if not len(backward):
        return base
    latest = _latest_read(flat, backward, np.where(flat.keep, -1, inside))
    falls = 1 + np.flatnonzero((latest[1:] < latest[:-1]) & (latest[1:] >= 0))
    first = _kept(forward, segments[latest[0]]) | (inside == latest[0])  # all of its data are resident
    saved = np.stack([first, *(_kept(forward, segments[latest[i]]) for i in falls.tolist())])
    instants = np.concatenate([backward[:1], backward[falls]]).astype(np.int32)
    sequence: Sequence = recompute_on_demand(flat, base, instants, saved)
    return sequence


def _latest_read(flat: Flat, backward: Ints, inside: Ints) -> Ints:
    """For each place in the backward, the latest segment of which any node from there on reads a datum; -1: none."""
    latest = np.full(flat.time.size, -1)
    reader, d = pairs_of(flat.reads)
    np.maximum.at(latest, reader, inside[d])
    return np.maximum.accumulate(latest[backward][::-1])[::-1]


def _kept(forward: _Forward, segment: _Segment) -> Flags:
    """The data that stay while a segment runs again: what crosses its cuts, and all that the forward does not make."""
    kept: NDArray[np.bool_] = forward.produced < 0
    for cut in segment.cuts:
        kept = kept | ((forward.produced < cut) & (forward.read >= cut))
    return kept
