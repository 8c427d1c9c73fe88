"""The saved-set formulation at one instant: what must be resident, and what must run again later, when a node first runs.

Take the moment just before the first run of a backward node t (or the loss). Its ancestors and all forward nodes have
run, its descendants have not; every other backward node v has run or not (z). Per datum d with producer p: s = d is
resident, y = p runs again later. A reader that has not run yet, or that runs again later, needs s or y. Resident data,
kept data, outputs and workspace of t fit the budget. The minimum of the total time of y bounds the recomputation of every
valid schedule, in any order (only the rules S-PHASE, S-KEEP and S-MEM are used). With `fixed` the set of nodes that have run
is the one of the captured order, and the bound holds for that order only; at the loss both are the same. Source: this
project; see docs/explanation/bounds.md.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from attrs import field, frozen
from numpy.typing import NDArray

from remat.algorithms._arrays.graph_arrays import BACKWARD, LOSS, Flags, Flat, Ints, row_of, transpose
from remat.algorithms._arrays.kept_data import permanent
from remat.algorithms._milp.linear import Builder, Linear

DONE, AHEAD, EITHER = 1, 0, 2


@frozen
class Instant:
    """The formulation at the first run of node `at`; column of each datum's s and of each node's y and z, -1: none.

    Attributes:
        state: DONE, AHEAD or EITHER per node.
        impossible: the data that must be resident exceed the budget without any others.
        facts: the meaning of each row, as proofs name it (docs/reference/proofs.md).
    """

    at: int
    linear: Linear
    resident: NDArray[np.int32]
    again: NDArray[np.int32]
    ran: NDArray[np.int32]
    state: NDArray[np.int8]
    impossible: bool = False
    facts: list[list[Any]] = field(factory=list, eq=False, repr=False)


class Dependencies:
    """Which nodes must have run before which: ancestors and descendants of a node."""

    def __init__(self, flat: Flat) -> None:
        self.before = flat.predecessors
        self.after = transpose(flat.predecessors, flat.time.size)

    def reach(self, at: int, table: Ints) -> Flags:
        """Nodes reachable from `at`, without it, by the edges of a table."""
        seen = np.zeros(table[0] - 1, np.bool_)
        stack = [at]
        while stack:
            v = stack.pop()
            for u in row_of(table, v).tolist():
                if not seen[u]:
                    seen[u] = True
                    stack.append(u)
        return seen

    def states(self, flat: Flat, at: int, fixed: bool) -> NDArray[np.int8]:
        """What has run just before the first run of `at`."""
        nodes = flat.time.size
        if fixed or flat.phase[at] == LOSS:
            return np.where(np.arange(nodes) < at, DONE, AHEAD).astype(np.int8)
        state = np.where(flat.required, EITHER, DONE).astype(np.int8)
        state[flat.phase != BACKWARD] = DONE
        state[self.reach(at, self.before)] = DONE
        state[self.reach(at, self.after)] = AHEAD
        state[at] = AHEAD
        return state


def instant_formulation(flat: Flat, dependencies: Dependencies, at: int, budget: int, fixed: bool = False) -> Instant:
    """The formulation of the instant; integral: s and z."""
    state = dependencies.states(flat, at, fixed)
    columns = _Columns(flat, state)
    reads = set(row_of(flat.reads, at).tolist())
    room = _memory_row(flat, columns, reads, budget - int(flat.charge[at]))
    for d in np.flatnonzero(flat.producer >= 0).tolist():
        if not columns.permanent[d] and d not in reads and state[flat.producer[d]] != AHEAD:
            _need_rows(flat, columns, d)
    _order_rows(flat, columns)
    return Instant(
        at=at,
        linear=columns.builder.build(),
        resident=np.array(columns.resident, np.int32),
        again=np.array(columns.again, np.int32),
        ran=np.array(columns.ran, np.int32),
        state=state,
        impossible=room < 0,
        facts=columns.facts,
    )


def _memory_row(flat: Flat, columns: _Columns, reads: set[int], room: int) -> int:
    """The resident data of the instant fit; returns the bytes left by the data that are resident in any case."""
    terms: list[tuple[int, int]] = []
    for d in range(flat.size.size):
        p = int(flat.producer[d])
        if p < 0 or columns.state[p] == AHEAD:
            continue
        if columns.permanent[d] and columns.state[p] != DONE:
            terms.append((columns.ran[p], int(flat.size[d])))
        elif columns.permanent[d] or d in reads:
            room -= int(flat.size[d])
        elif columns.resident[d] >= 0:
            terms.append((columns.resident[d], int(flat.size[d])))
    columns.row(["mem", 0], terms, room)
    return room


class _Columns:
    """Numbers the variables: y per node that may run again, z per undecided node, s per datum that may be resident or not."""

    def __init__(self, flat: Flat, state: NDArray[np.int8]) -> None:
        self.flat, self.state = flat, state
        nodes, data = flat.time.size, flat.size.size
        self.builder = Builder()
        self.facts: list[list[Any]] = []
        self.again = [-1] * nodes
        self.ran = [-1] * nodes
        self.resident = [-1] * data
        # a kept datum is resident from its completion: at its only writer's run
        self.permanent = permanent(flat)
        for v in range(nodes):
            if state[v] != AHEAD and flat.replay[v]:
                self.again[v] = self.builder.new(1, cost=int(flat.time[v]))
            if state[v] == EITHER:
                self.ran[v] = self.builder.new(1, integral=True)
        for d in range(data):
            p = flat.producer[d]
            if p >= 0 and state[p] != AHEAD and not self.permanent[d]:
                self.resident[d] = self.builder.new(1, integral=True)

    def row(self, fact: list[Any], terms: list[tuple[int, int]], rhs: int) -> None:
        """Add a row, and its meaning."""
        self.facts.append(fact)
        self.builder.row(terms, rhs)


def _need_rows(flat: Flat, columns: _Columns, d: int) -> None:
    """If a reader of d runs (again) later, d is resident or its producer runs again."""
    row, p, s = columns.row, int(flat.producer[d]), columns.resident[d]
    y_p, z_p = columns.again[p], columns.ran[p]
    supply = [(s, -1)] + ([(y_p, -1)] if y_p >= 0 else [])
    undecided = [(z_p, 1)] if z_p >= 0 else []
    base = 0 if undecided else -1  # z_p = 1 moves to the right-hand side
    ahead = -1
    for c in row_of(flat.users, d).tolist():
        if columns.state[c] == AHEAD:
            ahead = c
            continue
        if columns.state[c] == EITHER:
            row(["first", 0, d, c], [*supply, *undecided, (columns.ran[c], -1)], base)
        if columns.again[c] >= 0:
            row(["again", 0, d, c], [*supply, *undecided, (columns.again[c], 1)], base + 1)
    if ahead >= 0:
        row(["first", 0, d, ahead], [*supply, *undecided], base)
    if undecided:
        row(["made", 0, d], [(s, 1), (z_p, -1)], 0)


def _order_rows(flat: Flat, columns: _Columns) -> None:
    """An undecided node has run only if what it depends on has; it runs again only if it has run."""
    row = columns.row
    for v, z in enumerate(columns.ran):
        if z < 0:
            continue
        if columns.again[v] >= 0:
            row(["ran", 0, v], [(columns.again[v], 1), (z, -1)], 0)
        for u in row_of(flat.predecessors, v).tolist():
            if columns.ran[u] >= 0:
                row(["order", 0, v, u], [(z, 1), (columns.ran[u], -1)], 0)
