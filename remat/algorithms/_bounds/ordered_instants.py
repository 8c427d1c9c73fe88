"""The saved-set formulation at several instants, for schedules in which their first runs come in a given order.

Take nodes t1, t2, ... of any phases and all schedules in which they first run in this order; nothing is assumed about any other
node. They cut a schedule into stages. Just before each, per datum: s = it is resident; per node that may have run or not: z = it
has run. Per stage and node: y = it runs again in the stage, having run before the stage. f = z(next) - z is 1 for a node whose
first run is in the stage. With p the producer of d,

* if a reader c runs in the stage, d is resident at its start or p ran in it: s + y(p) + f(p) >= f(c) + y(c);
* if it runs again in the stage, so does p, or d is resident at its start: s + y(p) >= y(c);
* data resident at the next instant were resident at this one, or were made in between: s(next) <= s + y(p) + f(p);
* only nodes that have run can run again or have resident outputs: s <= z, y <= z; z never falls and is closed under
  dependencies;
* at each instant resident data, kept data, the outputs and the workspace of its node fit; the data that it reads are resident.

The smallest data, .01 % of all bytes together, are taken for resident throughout and their bytes for nothing, so that nodes that
make nothing else never run again: often most rows and columns, and next to nothing of the bound.

Every such schedule gives a solution whose cost is at most its recomputation. With one instant this is the formulation of
`instants`. With `coarse` rows, as in `fixed_order`, stages taken together have a y of their own; where a stage that an instant
divides is among them, the bound of the relaxation cannot fall by that instant. The bound holds for every schedule if
dependencies allow one order only; otherwise the least bound over all orders does. Source: this project; see
docs/explanation/bounds.md.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
from attrs import frozen
from numpy.typing import NDArray

from remat.algorithms._arrays.graph_arrays import Flags, Flat, lengths, pairs_of, row_of
from remat.algorithms._arrays.kept_data import permanent
from remat.algorithms._bounds.fixed_order import Span
from remat.algorithms._bounds.instants import AHEAD, DONE, EITHER, Dependencies
from remat.algorithms._bounds.placed_rows import PlacedRows, Terms, add_rows
from remat.algorithms._bounds.rounded_rows import add_rounded
from remat.algorithms._milp.linear import Builder, Ints, Linear

_SMALL = 1e-4  # of all bytes


@frozen
class Chained:
    """The formulation of the stages that begin at `instants`.

    Attributes:
        resident: column of s by instant and datum, -1: none. ran: column of z by instant and node, -1: none.
        spans: columns of y by node, -1: none, for the stages from an instant to another (its number; the last is the end).
        splits: row of y <= y(before) + y(after) by node, -1: none, for a span and the number of an instant that divides it.
        state: DONE, AHEAD or EITHER by instant and node; the last of the len(instants) + 1 rows is the end of the step.
        impossible: the data that must be resident at an instant exceed the budget without any others.
    """

    instants: tuple[int, ...]
    linear: Linear
    resident: NDArray[np.int64]
    ran: NDArray[np.int64]
    spans: dict[Span, NDArray[np.int64]]
    splits: dict[tuple[Span, int], NDArray[np.int64]]
    state: NDArray[np.int8]
    impossible: bool = False

    @property
    def variables(self) -> int:
        """Number of columns, without those of stages taken together."""
        coarse = (again for (start, end), again in self.spans.items() if end > start + 1)
        return self.linear.shape[1] - sum(int((again >= 0).sum()) for again in coarse)

    def stage_of(self, x: NDArray[np.float64]) -> NDArray[np.int64]:
        """The stage of each node's first run in a solution; 0 is before the first instant."""
        done = self.state == DONE
        free = self.ran >= 0
        done[free] = x[self.ran[free]] > 0.5
        return np.asarray(len(self.instants) + 1 - done.sum(axis=0), np.int64)


def ordered_formulation(
    flat: Flat,
    dependencies: Dependencies,
    instants: tuple[int, ...],
    budget: int,
    *,
    coarse: Collection[Span] | None = None,
) -> Chained:
    """The formulation; `instants` are in the order of their first runs, by phase. Integral: s and z.

    Args:
        flat: the graph.
        dependencies: of its nodes.
        instants: where stages begin.
        budget: for each instant [bytes].
        coarse: stages taken together that have rows of their own, each from an instant to another (their numbers; the last is
            the end), in any order; rows of bytes then have rounded ones too. None: for solves with integers.
    """
    build = _Build(flat, dependencies, instants, coarse)
    impossible = False
    for k in range(len(instants)):
        impossible |= build.memory_row(k, budget)
        build.order_rows(k)
        build.stage_rows((k, k + 1))
    for start, end in build.spans:
        if end > start + 1:
            build.stage_rows((start, end))
            build.coarse_rows((start, end))
    return Chained(
        instants=instants,
        linear=build.builder.build(),
        resident=build.resident,
        ran=build.ran,
        spans=build.spans,
        splits=build.splits,
        state=build.state,
        impossible=impossible,
    )


def smallest_data(flat: Flat) -> Flags:
    """The smallest data, as many as take a given small share of all bytes together."""
    sizes = np.sort(flat.size).astype(float)
    many = int((np.cumsum(sizes) <= _SMALL * sizes.sum()).sum())
    small: Flags = np.zeros(flat.size.size, np.bool_)
    small[np.argsort(flat.size, kind="stable")[:many]] = True
    return small


class _Build:
    """Numbers the variables and collects the rows."""

    def __init__(
        self, flat: Flat, dependencies: Dependencies, instants: tuple[int, ...], coarse: Collection[Span] | None
    ) -> None:
        self.flat, self.instants, self.rounded = flat, instants, coarse is not None
        nodes, data, stages = flat.time.size, flat.size.size, len(instants)
        self.builder = Builder()
        self.permanent = permanent(flat)
        self.droppable = (flat.producer >= 0) & ~self.permanent & ~smallest_data(flat)
        self.again = flat.replay.copy()
        self.again[np.setdiff1d(np.arange(nodes), flat.producer[self.droppable])] = False
        self.data, self.readers = pairs_of(flat.users)
        self.state = np.full((stages + 1, nodes), DONE, np.int8)
        for k, at in enumerate(instants):
            self.state[k] = dependencies.states(flat, at, fixed=False)
        for k in range(1, stages):  # ancestors of an earlier instant have run; descendants of a later one have not
            self.state[k, (self.state[k - 1] == DONE) & (self.state[k] == EITHER)] = DONE
            self.state[k, instants[k - 1]] = DONE
        for k in range(stages - 1, 0, -1):
            self.state[k - 1, (self.state[k] == AHEAD) & (self.state[k - 1] == EITHER)] = AHEAD
        self.ran = np.full((stages + 1, nodes), -1, np.int64)
        together = sorted(coarse or (), key=lambda span: (span[1] - span[0], span))
        spans = [*((k, k + 1) for k in range(stages)), *together]
        self.spans = {span: np.full(nodes, -1, np.int64) for span in spans}
        self.splits: dict[tuple[Span, int], NDArray[np.int64]] = {}
        self.resident = np.full((stages, data), -1, np.int64)
        for k in range(stages):
            self.ran[k] = self._new(self.state[k] == EITHER, integral=True)
            self._number_reruns((k, k + 1))
            present = self.droppable & (self.state[k, flat.producer] != AHEAD)
            self.resident[k] = self._new(present & self._may_be_read(k), integral=True)
        for start, end in self.spans:
            if end > start + 1:
                self._number_reruns((start, end))

    def _new(self, chosen: Flags, cost: int | Ints = 0, *, integral: bool = False) -> Ints:
        """A column for each chosen item; -1 for the others."""
        columns: Ints = np.full(chosen.shape, -1, np.int64)
        count = int(chosen.sum())
        columns[chosen] = self.builder.new(count, cost=cost, integral=integral) + np.arange(count)
        return columns

    def _number_reruns(self, span: Span) -> None:
        """Columns of y of a span; only reruns in a single stage cost anything."""
        start, end = span
        again = (self.state[start] != AHEAD) & self.again
        self.spans[span] = self._new(again, self.flat.time[again] if end == start + 1 else 0)

    def _may_be_read(self, k: int) -> Flags:
        """Of each datum, whether any node may read it from instant k on."""
        flags = np.zeros(self.flat.size.size, np.bool_)
        flags[self.data[(self.state[k, self.readers] != DONE) | self.again[self.readers]]] = True
        return flags

    def _done(self, k: int) -> Ints:
        """Of each node, 1 if it has run by instant k, 0 if not or if that is a variable."""
        return np.where(self.state[k] == DONE, 1, 0)

    def _first_run(self, span: Span, nodes: Ints, sign: int) -> Terms:
        """`sign` times f of nodes in a span, which is 1 if a node's first run is in the span, without its constant."""
        return [(self.ran[span[1], nodes], sign), (self.ran[span[0], nodes], -sign)]

    def _supply(self, span: Span, data: Ints) -> Terms:
        """-s - y of data and their producers in a span."""
        return [(self.resident[span[0], data], -1), (self.spans[span][self.flat.producer[data]], -1)]

    def memory_row(self, k: int, budget: int) -> bool:
        """Resident data, kept data and the working set of the instant fit; returns whether that is impossible."""
        flat, at = self.flat, self.instants[k]
        reads = np.zeros(flat.size.size, np.bool_)
        reads[row_of(flat.reads, at)] = True
        reads &= self.droppable
        add_rows(self.builder, [(self.resident[k, reads], -1)], np.full(int(reads.sum()), -1))
        kept = (flat.producer >= 0) & self.permanent
        always = reads | (kept & (self.state[k, flat.producer] == DONE))
        room: int = budget - int(flat.charge[at]) - sum(flat.size[always].tolist())
        parts = (np.where(kept, self.ran[k, flat.producer], -1), np.where(reads, -1, self.resident[k]))
        columns = np.concatenate([part[part >= 0] for part in parts])
        sizes = np.concatenate([flat.size[part >= 0] for part in parts])
        self.builder.entries(self.builder.rows(1, room), columns, sizes)
        if self.rounded:
            add_rounded(self.builder, columns, sizes, room)
        return room < 0

    def order_rows(self, k: int) -> None:
        """Closes z under dependencies, and lets it never fall; only nodes that have run run again or have resident outputs."""
        flat, ran, again = self.flat, self.ran[k], self.spans[k, k + 1]
        v, u = pairs_of(flat.predecessors)
        end = np.cumsum(lengths(flat.predecessors))
        begin = end - lengths(flat.predecessors)
        rows = PlacedRows()
        both = np.flatnonzero((ran >= 0) & (again >= 0))
        rows.add(begin[both] + 2 * both, [(again[both], 1), (ran[both], -1)], np.zeros_like(both))
        here = np.flatnonzero((ran[v] >= 0) & (ran[u] >= 0))
        rows.add(here + 2 * v[here] + 1, [(ran[v[here]], 1), (ran[u[here]], -1)], np.zeros_like(here))
        stays = np.flatnonzero((ran >= 0) & (self.ran[k + 1] >= 0))
        rows.add(end[stays] + 2 * stays + 1, [(ran[stays], 1), (self.ran[k + 1, stays], -1)], np.zeros_like(stays))
        rows.add_to(self.builder)
        undecided = np.flatnonzero((self.resident[k] >= 0) & (ran[flat.producer] >= 0))
        add_rows(
            self.builder,
            [(self.resident[k, undecided], 1), (ran[flat.producer[undecided]], -1)],
            np.zeros_like(undecided),
        )

    def stage_rows(self, span: Span) -> None:
        """Nodes that run in the span have their reads; data resident at its end were resident before or are made in it."""
        (start, end), again, producer = span, self.spans[span], self.flat.producer.astype(np.int64)
        # where p first runs in this span or later, readers in this span follow it by the closure of z
        counted = self.droppable & (self.state[start, producer] != AHEAD)
        runs = self._done(end) - self._done(start)  # the constants of f
        d, c = self.data, self.readers
        undecided = (self.ran[end, c] >= 0) | (self.ran[start, c] >= 0)
        place = 2 * np.arange(len(d)) + d  # rows of d: two of each reader, and of d itself
        rows = PlacedRows()
        may_run = counted[d] & (undecided | (runs[c] != 0))
        first = np.flatnonzero(may_run)
        supply = [*self._supply(span, d[first]), *self._first_run(span, producer[d[first]], -1)]
        needed = [*self._first_run(span, c[first], 1), (again[c[first]], 1)]
        rows.add(place[first], [*supply, *needed], runs[producer[d[first]]] - runs[c[first]])
        # these rows imply the next ones where f(c) >= f(p)
        implied = may_run & ((self.state[start, producer[d]] == DONE) | (end == len(self.instants)))
        later = np.flatnonzero(counted[d] & (again[c] >= 0) & ~implied)
        rows.add(place[later] + 1, [*self._supply(span, d[later]), (again[c[later]], 1)], np.zeros_like(later))
        if end < len(self.instants):
            stays = np.flatnonzero(counted & (self.resident[end] >= 0))
            supply = [*self._supply(span, stays), *self._first_run(span, producer[stays], -1)]
            place = 2 * np.cumsum(lengths(self.flat.users))[stays] + stays
            rows.add(place, [*supply, (self.resident[end, stays], 1)], runs[producer[stays]])
        rows.add_to(self.builder)

    def coarse_rows(self, span: Span) -> None:
        """A node that runs again in a span has run before it, and runs before or after each instant in it."""
        again, (start, end) = self.spans[span], span
        ran = np.flatnonzero((again >= 0) & (self.ran[start] >= 0))
        add_rows(self.builder, [(again[ran], 1), (self.ran[start, ran], -1)], np.zeros_like(ran))
        nodes = np.flatnonzero(again >= 0)
        for middle in range(start + 1, end):
            parts = ((start, middle), (middle, end))
            if all(part in self.spans for part in parts):
                terms = [(self.spans[part][nodes], -1) for part in parts]
                rows = self.splits[span, middle] = np.full(len(again), -1, np.int64)
                rows[nodes] = add_rows(self.builder, [(again[nodes], 1), *terms], np.zeros_like(nodes))
