"""The saved-set formulation at several instants, for schedules in which their first runs come in a given order.

Take the loss or backward nodes t1, t2, ... and all schedules in which they first run in this order; nothing is assumed about
any other node. They cut a schedule into stages. Just before each, per datum: s = it is resident; per node that may have
run or not: z = it has run. Per stage and node: y = it runs again in the stage, having run before the stage.
f = z(next) - z is 1 for a node whose first run is in the stage. With p the producer of d,

* if the first run of a reader c is in the stage, d is resident at its start or p ran in it: s + y(p) + f(p) >= f(c);
* if a reader c runs again in the stage, d is resident at its start or p ran again: s + y(p) >= y(c);
* data resident at the next instant were resident at this one, or were made in between: s(next) <= s + y(p) + f(p);
* only nodes that have run can run again or have resident outputs: s <= z, y <= z; z never falls and is closed under
  dependencies;
* at each instant resident data, kept data, the outputs and the workspace of its node fit; the data that it reads are resident.

Every such schedule gives a solution whose cost is at most its recomputation. With one instant this is the formulation of
`instants`. With `coarse` rows, as in `fixed_order`, stages taken together have a y of their own, so that the bound of the
relaxation cannot fall when an instant is added. The bound holds for every schedule if dependencies allow one order only;
otherwise the least bound over all orders does. Source: this project; see docs/explanation/bounds.md.
"""

from __future__ import annotations

import numpy as np
from attrs import frozen
from numpy.typing import NDArray

from remat.algorithms._arrays.graph_arrays import Flat, row_of
from remat.algorithms._arrays.kept_data import permanent
from remat.algorithms._bounds.fixed_order import Span
from remat.algorithms._bounds.instants import AHEAD, DONE, EITHER, Dependencies
from remat.algorithms._milp.linear import Builder, Linear

Terms = list[tuple[int, int]]
"""Column and coefficient."""


@frozen
class Chained:
    """The formulation of the stages that begin at `instants`.

    Attributes:
        resident: column of s by instant and datum, -1: none. ran: column of z by instant and node, -1: none.
        spans: columns of y by node, -1: none, for the stages from an instant to another (its number; the last is the end).
        state: DONE, AHEAD or EITHER by instant and node; the last of the len(instants) + 1 rows is the end of the step.
        impossible: the data that must be resident at an instant exceed the budget without any others.
    """

    instants: tuple[int, ...]
    linear: Linear
    resident: NDArray[np.int32]
    ran: NDArray[np.int32]
    spans: dict[Span, NDArray[np.int32]]
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
    flat: Flat, dependencies: Dependencies, instants: tuple[int, ...], budget: int, *, coarse: bool = False
) -> Chained:
    """The formulation; `instants` are in the order of their first runs, the loss (if included) first. Integral: s and z.

    Args:
        flat: the graph.
        dependencies: of its nodes.
        instants: where stages begin.
        budget: for each instant [bytes].
        coarse: whether stages taken together have rows of their own.
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
        state=build.state,
        impossible=impossible,
    )


class _Build:
    """Numbers the variables and collects the rows."""

    def __init__(self, flat: Flat, dependencies: Dependencies, instants: tuple[int, ...], coarse: bool) -> None:
        self.flat, self.instants = flat, instants
        nodes, data, stages = flat.time.size, flat.size.size, len(instants)
        self.builder = Builder()
        self.permanent = permanent(flat)
        self.droppable = np.flatnonzero((flat.producer >= 0) & ~self.permanent).tolist()
        self.state = np.full((stages + 1, nodes), DONE, np.int8)
        for k, at in enumerate(instants):
            self.state[k] = dependencies.states(flat, at, fixed=False)
        for k in range(1, stages):  # ancestors of an earlier instant have run; descendants of a later one have not
            self.state[k, (self.state[k - 1] == DONE) & (self.state[k] == EITHER)] = DONE
            self.state[k, instants[k - 1]] = DONE
        for k in range(stages - 1, 0, -1):
            self.state[k - 1, (self.state[k] == AHEAD) & (self.state[k - 1] == EITHER)] = AHEAD
        self.ran = np.full((stages + 1, nodes), -1, np.int32)
        lengths = range(1, stages + 1 if coarse else 2)
        self.spans = {(k, k + n): np.full(nodes, -1, np.int32) for n in lengths for k in range(stages + 1 - n)}
        self.resident = np.full((stages, data), -1, np.int32)
        for k in range(stages):
            for v in np.flatnonzero(self.state[k] == EITHER).tolist():
                self.ran[k, v] = self.builder.new(1, integral=True)
            self._number_reruns((k, k + 1))
            for d in self.droppable:
                if self.state[k, flat.producer[d]] != AHEAD and self._may_be_read(k, d):
                    self.resident[k, d] = self.builder.new(1, integral=True)
        for start, end in self.spans:
            if end > start + 1:
                self._number_reruns((start, end))

    def _number_reruns(self, span: Span) -> None:
        """Columns of y of a span; only reruns in a single stage cost anything."""
        start, end = span
        for v in np.flatnonzero((self.state[start] != AHEAD) & self.flat.replay).tolist():
            self.spans[span][v] = self.builder.new(1, cost=int(self.flat.time[v]) if end == start + 1 else 0)

    def _may_be_read(self, k: int, d: int) -> bool:
        """Whether any node may read the datum from instant k on."""
        users = row_of(self.flat.users, d)
        return bool((self.state[k, users] != DONE).any() or self.flat.replay[users].any())

    def _z(self, k: int, v: int, sign: int) -> tuple[Terms, int]:
        """`sign` times z of node v at instant k: terms and a constant."""
        if self.state[k, v] == EITHER:
            return [(int(self.ran[k, v]), sign)], 0
        return [], sign if self.state[k, v] == DONE else 0

    def _first_run(self, span: Span, v: int, sign: int) -> tuple[Terms, int]:
        """`sign` times f of node v in a span, which is 1 if its first run is in the span: terms and a constant."""
        end_terms, end_constant = self._z(span[1], v, sign)
        start_terms, start_constant = self._z(span[0], v, -sign)
        return end_terms + start_terms, end_constant + start_constant

    def _supply(self, span: Span, d: int) -> Terms:
        """-s - y of a datum and its producer in a span."""
        columns = (int(self.resident[span[0], d]), int(self.spans[span][self.flat.producer[d]]))
        return [(column, -1) for column in columns if column >= 0]

    def memory_row(self, k: int, budget: int) -> bool:
        """Resident data, kept data and the working set of the instant fit; returns whether that is impossible."""
        flat, at = self.flat, self.instants[k]
        room, terms = budget - int(flat.charge[at]), []
        reads = set(row_of(flat.reads, at).tolist())
        for d in np.flatnonzero(flat.producer >= 0).tolist():
            p, size, column = int(flat.producer[d]), int(flat.size[d]), int(self.resident[k, d])
            if self.permanent[d]:
                kept, constant = self._z(k, p, size)
                terms += kept
                room -= constant
            elif d in reads:
                room -= size
                self.builder.row([(column, -1)], -1)
            elif column >= 0 and size:
                terms.append((column, size))
        self.builder.row(terms, room)
        return room < 0

    def order_rows(self, k: int) -> None:
        """Closes z under dependencies, and lets it never fall; only nodes that have run run again or have resident outputs."""
        flat = self.flat
        for v in np.flatnonzero(self.ran[k] >= 0).tolist():
            z = int(self.ran[k, v])
            again = self.spans[k, k + 1][v]
            if again >= 0:
                self.builder.row([(int(again), 1), (z, -1)], 0)
            for u in row_of(flat.predecessors, v).tolist():
                if self.ran[k, u] >= 0:
                    self.builder.row([(z, 1), (int(self.ran[k, u]), -1)], 0)
            if self.ran[k + 1, v] >= 0:
                self.builder.row([(z, 1), (int(self.ran[k + 1, v]), -1)], 0)
        for d in np.flatnonzero(self.resident[k] >= 0).tolist():
            z = int(self.ran[k, flat.producer[d]])
            if z >= 0:
                self.builder.row([(int(self.resident[k, d]), 1), (z, -1)], 0)

    def stage_rows(self, span: Span) -> None:
        """Nodes that run in the span have their reads; data resident at its end were resident before or are made in it."""
        flat, again, (start, end) = self.flat, self.spans[span], span
        for d in self.droppable:
            p = int(flat.producer[d])
            if self.state[start, p] == AHEAD:
                continue  # p first runs in this span or later: readers in this span follow it by the closure of z
            supply = self._supply(span, d)
            production, produced = self._first_run(span, p, -1)
            for c in row_of(flat.users, d).tolist():
                first, needed = self._first_run(span, c, 1)
                if first or needed:
                    self.builder.row([*supply, *production, *first], -produced - needed)
                if again[c] >= 0:
                    self.builder.row([*supply, (int(again[c]), 1)], 0)
            if end < len(self.instants) and self.resident[end, d] >= 0:
                self.builder.row([*supply, *production, (int(self.resident[end, d]), 1)], -produced)

    def coarse_rows(self, span: Span) -> None:
        """A node that runs again in a span has run before it, and runs before or after each instant in it."""
        again, (start, end) = self.spans[span], span
        for v in np.flatnonzero((again >= 0) & (self.ran[start] >= 0)).tolist():
            self.builder.row([(int(again[v]), 1), (int(self.ran[start, v]), -1)], 0)
        for middle in range(start + 1, end):
            parts = [self.spans[start, middle], self.spans[middle, end]]
            for v in np.flatnonzero(again >= 0).tolist():
                self.builder.row([(int(again[v]), 1), *((int(part[v]), -1) for part in parts if part[v] >= 0)], 0)
