"""The saved-set formulation at several instants at once: which data are resident at each, what runs again between them.

Instants cut the captured order into stages. Per instant k and datum d: s = d is resident; per stage and node: y = the
node runs again in the stage. For a node that runs in a stage, the data that it reads are resident at the start of the stage
or are recomputed in it; a datum is resident at an instant if it was resident at the previous one or was made since.
Reruns are counted once per stage and those of the first stage are free, so the optimum bounds every schedule whose
first runs keep the captured order; this assumption is reported together with the bound. With one stage per node this is
Checkmate's formulation (Jain et al., 2020); a few hard instants keep it small.

In the relaxation a rerun may be split between stages, so that its bound can fall when an instant is added. `coarse` rows prevent
that: for stages a to b - 1 taken together, y' = the node runs again in one of them, y'(a, b) <= y'(a, m) + y'(m, b) for each m in
between, and y' satisfies the rows of a single stage from a to b. Hence for any subset of the instants the relaxation contains
that of the subset alone, and its bound is at least as large.
"""

from __future__ import annotations

import numpy as np
from attrs import frozen
from numpy.typing import NDArray

from remat.algorithms._arrays.graph_arrays import Flat, lengths, pairs_of, row_of
from remat.algorithms._arrays.kept_data import permanent
from remat.algorithms._bounds.placed_rows import Terms, add_rows
from remat.algorithms._milp.linear import Builder, Ints, Linear


@frozen
class Stages:
    """The formulation over the stages that begin at `instants`.

    Attributes:
        resident: column of s by instant and datum, -1: none.
        spans: columns of y by node, -1: none, for the stages from an instant to another (its number; the last is the end).
    """

    instants: tuple[int, ...]
    linear: Linear
    resident: NDArray[np.int64]
    spans: dict[Span, NDArray[np.int64]]
    impossible: bool = False


def staged_formulation(flat: Flat, instants: tuple[int, ...], budget: int, *, coarse: bool = False) -> Stages:
    """The formulation; `instants` are node indices, ascending, none before the loss. Integral: s.

    Args:
        flat: the graph.
        instants: where stages begin.
        budget: for each instant [bytes].
        coarse: whether stages taken together have rows of their own.
    """
    build = _Build(flat, instants, coarse)
    impossible = False
    for k in range(len(instants)):
        impossible |= build.memory_row(k, budget)
    for span in build.spans:
        build.stage_rows(span)
    return Stages(
        instants=instants,
        linear=build.builder.build(),
        resident=build.resident,
        spans=build.spans,
        impossible=impossible,
    )


Span = tuple[int, int]
"""Stages taken together: the number of the instant where they begin, and of the one where they end."""


def spans_of(stages: int, least: int = 1) -> list[Span]:
    """All spans of at least so many of the stages, the short ones first."""
    return [(k, k + n) for n in range(least, stages + 1) for k in range(stages + 1 - n)]


class _Build:
    """Numbers the variables and collects the rows."""

    def __init__(self, flat: Flat, instants: tuple[int, ...], coarse: bool) -> None:
        self.flat, self.instants = flat, instants
        nodes, data, stages = flat.time.size, flat.size.size, len(instants)
        self.builder = Builder()
        self.permanent = permanent(flat)
        self.reads = pairs_of(flat.reads)
        spans = spans_of(stages) if coarse else [(k, k + 1) for k in range(stages)]
        self.spans = {span: np.full(nodes, -1) for span in spans}
        for (k, end), again in self.spans.items():
            reruns = np.flatnonzero(flat.replay[: instants[k]])
            cost = flat.time[reruns] if end == k + 1 else 0
            again[reruns] = self.builder.new(len(reruns), cost=cost) + np.arange(len(reruns))
        self.resident = np.full((stages, data), -1)
        read = lengths(flat.users) > 0
        for k, at in enumerate(instants):
            chosen = np.flatnonzero((flat.producer >= 0) & (flat.producer < at) & ~self.permanent & read)
            self.resident[k, chosen] = self.builder.new(len(chosen), integral=True) + np.arange(len(chosen))

    def memory_row(self, k: int, budget: int) -> bool:
        """Resident data, kept data and the working set of the instant fit; returns whether that is impossible."""
        flat, at, columns = self.flat, self.instants[k], self.resident[k]
        present = (flat.producer >= 0) & (flat.producer < at)
        reads = np.zeros(flat.size.size, np.bool_)
        reads[row_of(flat.reads, at)] = True
        reads &= present & ~self.permanent
        add_rows(self.builder, [(columns[reads], -1)], np.full(int(reads.sum()), -1))
        always = reads | (present & self.permanent)
        room: int = budget - int(flat.charge[at]) - sum(flat.size[always].tolist())
        free = (columns >= 0) & ~reads
        self.builder.entries(self.builder.rows(1, room), columns[free], flat.size[free])
        return room < 0

    def stage_rows(self, span: Span) -> None:
        """Nodes that run in the span have their reads; data resident at its end were resident before or are made in it."""
        start, end = span
        self._read_rows(span)
        if end < len(self.instants):
            at, columns = self.instants[start], self.resident[end]
            stays = np.flatnonzero((columns >= 0) & (self.flat.producer < at))
            add_rows(self.builder, [(columns[stays], 1), *self._supply(span, stays)], np.zeros_like(stays))
        for middle in range(start + 1, end):
            self._split_rows(span, middle)

    def _split_rows(self, span: Span, middle: int) -> None:
        """A node that runs again in the span does so before or after an instant in it."""
        again, parts = self.spans[span], [(span[0], middle), (middle, span[1])]
        nodes = np.flatnonzero(again >= 0)
        split = [(self.spans[part][nodes], -1) for part in parts]
        add_rows(self.builder, [(again[nodes], 1), *split], np.zeros_like(nodes))

    def _read_rows(self, span: Span) -> None:
        """A run of v in a span needs the data of earlier stages that it reads; in the span of its first run it always runs."""
        (start, end), again, (v, d) = span, self.spans[span], self.reads
        at, beyond = self.instants[start], self.flat.time.size if end == len(self.instants) else self.instants[end]
        runs = (v < beyond) & ((v >= at) | (again[v] >= 0))
        here = runs & ~self.permanent[d] & (self.flat.producer[d] < at)
        v, d = v[here], d[here]
        rerun = np.where(v < at, again[v], -1)
        add_rows(self.builder, [*self._supply(span, d), (rerun, 1)], np.where(v < at, 0, -1))

    def _supply(self, span: Span, data: Ints) -> Terms:
        """-s - y of data and their producers in a span."""
        return [(self.resident[span[0], data], -1), (self.spans[span][self.flat.producer[data]], -1)]
