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

from remat.algorithms._arrays.graph_arrays import Flat, row_of, rows_of
from remat.algorithms._arrays.kept_data import permanent
from remat.algorithms._milp.linear import Builder, Linear


@frozen
class Stages:
    """The formulation over the stages that begin at `instants`.

    Attributes:
        resident: column of s by instant and datum, -1: none.
        spans: columns of y by node, -1: none, for the stages from an instant to another (its number; the last is the end).
    """

    instants: tuple[int, ...]
    linear: Linear
    resident: NDArray[np.int32]
    spans: dict[Span, NDArray[np.int32]]
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


class _Build:
    """Numbers the variables and collects the rows."""

    def __init__(self, flat: Flat, instants: tuple[int, ...], coarse: bool) -> None:
        self.flat, self.instants = flat, instants
        nodes, data, stages = flat.time.size, flat.size.size, len(instants)
        self.builder = Builder()
        self.permanent = permanent(flat)
        self.resident = np.full((stages, data), -1, np.int32)
        lengths = range(1, stages + 1 if coarse else 2)
        self.spans = {(k, k + n): np.full(nodes, -1, np.int32) for n in lengths for k in range(stages + 1 - n)}
        for (k, end), again in self.spans.items():
            for v in range(instants[k]):
                if flat.replay[v]:
                    again[v] = self.builder.new(1, cost=int(flat.time[v]) if end == k + 1 else 0)
        last = self._last_use()
        for k, at in enumerate(instants):
            for d in range(data):
                p = flat.producer[d]
                if 0 <= p < at and not self.permanent[d] and last[d] >= 0:
                    self.resident[k, d] = self.builder.new(1, integral=True)

    def _last_use(self) -> list[int]:
        return [users[-1] if users else -1 for users in rows_of(self.flat.users)]

    def memory_row(self, k: int, budget: int) -> bool:
        """Resident data, kept data and the working set of the instant fit; returns whether that is impossible."""
        flat, at = self.flat, self.instants[k]
        room = budget - int(flat.charge[at])
        terms: list[tuple[int, int]] = []
        reads = set(row_of(flat.reads, at).tolist())
        for d in range(flat.size.size):
            p, column = int(flat.producer[d]), int(self.resident[k, d])
            if p < 0 or p >= at:
                continue
            if self.permanent[d]:
                room -= int(flat.size[d])
            elif d in reads:
                room -= int(flat.size[d])
                self.builder.row([(column, -1)], -1)
            elif column >= 0:
                terms.append((column, int(flat.size[d])))
        self.builder.row(terms, room)
        return room < 0

    def stage_rows(self, span: Span) -> None:
        """Nodes that run in the span have their reads; data resident at its end were resident before or are made in it."""
        start, end = span
        last = end == len(self.instants)
        for v in range(self.flat.time.size if last else self.instants[end]):
            if v >= self.instants[start] or self.spans[span][v] >= 0:
                self._read_rows(span, v)
        if not last:
            self._resident_rows(span)
        for middle in range(start + 1, end):
            self._split_rows(span, middle)

    def _split_rows(self, span: Span, middle: int) -> None:
        """A node that runs again in the span does so before or after an instant in it."""
        parts = [self.spans[span[0], middle], self.spans[middle, span[1]]]
        for v in np.flatnonzero(self.spans[span] >= 0).tolist():
            self.builder.row([(int(self.spans[span][v]), 1), *((int(part[v]), -1) for part in parts)], 0)

    def _read_rows(self, span: Span, v: int) -> None:
        """A run of v in a span needs the data of earlier stages that it reads; in the span of its first run it always runs."""
        flat, at = self.flat, self.instants[span[0]]
        rerun = [] if v >= at else [(int(self.spans[span][v]), 1)]
        for d in row_of(flat.reads, v).tolist():
            p = int(flat.producer[d])
            if not self.permanent[d] and p < at:
                self.builder.row([*self._supply(span, d, p), *rerun], 0 if rerun else -1)

    def _resident_rows(self, span: Span) -> None:
        """Data resident at the end of a span were resident at its start, or are made in it."""
        start, end = span
        for d in range(self.flat.size.size):
            p, column = int(self.flat.producer[d]), int(self.resident[end, d])
            if column >= 0 and p < self.instants[start]:
                self.builder.row([(column, 1), *self._supply(span, d, p)], 0)

    def _supply(self, span: Span, d: int, p: int) -> list[tuple[int, int]]:
        columns = (int(self.resident[span[0], d]), int(self.spans[span][p]))
        return [(column, -1) for column in columns if column >= 0]
