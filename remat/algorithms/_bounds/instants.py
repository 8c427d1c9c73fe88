"""The saved-set formulation at one instant: what must be resident, and what must run again later, when a node first runs.

Take the moment just before the first run of a node t. Its ancestors have run, and all nodes of the phases before its own; its
descendants have not, nor has any node of the phases after its own; every other node v of its phase has run or not (z). Per datum
d with producer p: s = d is resident, y = p runs again later. A reader that has not run yet, or that runs again later, needs s or
y: both in one row, since what runs again has run (two rows say less where z is a fraction). Resident data, kept data, outputs and
workspace of t fit the budget. The minimum of the total time of y bounds the recomputation of every
valid schedule, in any order (only the rules S-PHASE, S-KEEP and S-MEM are used). With `fixed` the set of nodes that have run
is the one of the captured order, and the bound holds for that order only; at the loss both are the same. Source: this
project; see docs/explanation/bounds.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from attrs import field, frozen
from numpy.typing import NDArray

from remat.algorithms._arrays.graph_arrays import (
    BACKWARD,
    LOSS,
    Flags,
    Flat,
    lengths,
    pairs_of,
    row_of,
    transpose,
)
from remat.algorithms._arrays.kept_data import permanent
from remat.algorithms._arrays.reachability import reached
from remat.algorithms._bounds.placed_rows import PlacedRows, Terms
from remat.algorithms._milp.linear import Builder, Ints, Linear

DONE, AHEAD, EITHER = 1, 0, 2

_FEW = 0.05  # of the backward


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

    @property
    def column_names(self) -> list[tuple[str, int]]:
        """What each column stands for: the same in the formulations of all instants."""
        return named_columns(len(self.linear.cost), {"y": self.again, "z": self.ran, "s": self.resident})

    @property
    def row_names(self) -> list[tuple[Any, ...]]:
        """What each row says, likewise."""
        return list(map(tuple, self.facts))


def named_columns(count: int, groups: Mapping[str, NDArray[np.integer]]) -> list[tuple[str, int]]:
    """A name for each of so many columns: its group and its place there, given the column (-1: none) of each place."""
    names = [("", 0)] * count
    for group, columns in groups.items():
        for place in np.flatnonzero(columns >= 0).tolist():
            names[columns[place]] = group, place
    return names


class Dependencies:
    """Which nodes must have run before which: ancestors and descendants of a node."""

    def __init__(self, flat: Flat) -> None:
        self._before = flat.predecessors
        self._after = transpose(flat.predecessors, flat.time.size)

    def ancestors(self, at: int) -> Flags:
        """Nodes that have run before any run of `at`."""
        return reached(self._before, at)

    def descendants(self, at: int) -> Flags:
        """Nodes that run only after a run of `at`."""
        return reached(self._after, at)

    def postponable(self, flat: Flat, at: int) -> bool:
        """Whether hardly anything follows a backward node, and most of the backward may run before it or after it.

        Then the bound of its instant is next to nothing: all else may have run.
        """
        late = (flat.phase == BACKWARD) & flat.required
        backward, following = int(late.sum()), int(self.descendants(at)[late].sum())
        if following > _FEW * backward:
            return False
        return int(self.ancestors(at)[late].sum()) + following + 1 < backward / 2

    def states(self, flat: Flat, at: int, fixed: bool) -> NDArray[np.int8]:
        """What has run just before the first run of `at`; the loss runs between forward and backward (S-PHASE)."""
        nodes, phase = flat.time.size, flat.phase[at]
        if fixed or phase == LOSS:
            return np.where(np.arange(nodes) < at, DONE, AHEAD).astype(np.int8)
        state = np.where(flat.required, EITHER, DONE).astype(np.int8)
        state[flat.phase < phase] = DONE
        state[flat.required & (flat.phase > phase)] = AHEAD
        state[self.ancestors(at)] = DONE
        state[self.descendants(at)] = AHEAD
        state[at] = AHEAD
        return state


def instant_formulation(flat: Flat, dependencies: Dependencies, at: int, budget: int, fixed: bool = False) -> Instant:
    """The formulation of the instant; integral: s and z."""
    state = dependencies.states(flat, at, fixed)
    columns = _Columns(flat, state)
    reads = np.zeros(flat.size.size, np.bool_)
    reads[row_of(flat.reads, at)] = True
    room = _memory_row(flat, columns, reads, budget - int(flat.charge[at]))
    _need_rows(flat, columns, reads)
    _order_rows(flat, columns)
    return Instant(
        at=at,
        linear=columns.builder.build(),
        resident=columns.resident.astype(np.int32),
        again=columns.again.astype(np.int32),
        ran=columns.ran.astype(np.int32),
        state=state,
        impossible=room < 0,
        facts=columns.facts,
    )


class _Columns:
    """Numbers the variables: y per node that may run again, z per undecided node, s per datum that may be resident or not."""

    def __init__(self, flat: Flat, state: NDArray[np.int8]) -> None:
        self.state = state
        self.builder = Builder()
        self.facts: list[list[Any]] = []
        # a kept datum is resident from its completion: at its only writer's run
        self.permanent = permanent(flat)
        reruns, undecided = (state != AHEAD) & flat.replay, state == EITHER
        width = reruns.astype(np.int64) + undecided
        first, count = np.cumsum(width) - width, int(width.sum())
        self.again = np.where(reruns, first, -1)
        self.ran = np.where(undecided, first + reruns, -1)
        self.produced = (flat.producer >= 0) & (state[flat.producer] != AHEAD)
        free = self.produced & ~self.permanent
        self.resident = np.where(free, count + np.cumsum(free) - 1, -1)
        cost, integral = np.zeros(count, np.int64), np.zeros(count, np.bool_)
        cost[self.again[reruns]], integral[self.ran[undecided]] = flat.time[reruns], True
        self.builder.new(count, cost=cost, integral=integral)
        self.builder.new(int(free.sum()), integral=True)


class _Rows:
    """Rows of one part of the formulation, with their meaning."""

    def __init__(self) -> None:
        self._placed = PlacedRows()
        self._meanings: list[tuple[str, tuple[Ints, ...]]] = []

    def add(self, fact: str, places: Ints, about: tuple[Ints, ...], terms: Terms, rhs: Ints) -> None:
        """Add a row at each place: its meaning and what this is about, terms as columns and their coefficient."""
        self._placed.add(places, terms, rhs)
        self._meanings.append((fact, about))

    def add_to(self, columns: _Columns) -> None:
        """Add them to the formulation."""
        columns.facts += self.facts(self._placed.add_to(columns.builder))

    def facts(self, order: Ints) -> list[list[Any]]:
        """The meaning of each row."""
        named = [
            [fact, 0, *items]
            for fact, about in self._meanings
            for items in zip(*(part.tolist() for part in about), strict=True)
        ]
        return [named[i] for i in order.tolist()]


def _memory_row(flat: Flat, columns: _Columns, reads: Flags, room: int) -> int:
    """The resident data of the instant fit; returns the bytes left by the data that are resident in any case."""
    grown = columns.produced & columns.permanent & (columns.state[flat.producer] != DONE)
    always = columns.produced & ~grown & (columns.permanent | reads)
    either = columns.produced & ~grown & ~always
    room -= sum(flat.size[always].tolist())
    at = columns.builder.rows(1, room)
    columns.builder.entries(at, columns.ran[flat.producer[grown]], flat.size[grown])
    columns.builder.entries(at, columns.resident[either], flat.size[either])
    columns.facts.append(["mem", 0])
    return room


def _need_rows(flat: Flat, columns: _Columns, reads: Flags) -> None:
    """If a reader of d runs (again) later, d is resident or its producer runs again."""
    state, ran, again, resident = columns.state, columns.ran, columns.again, columns.resident
    counted = (resident >= 0) & ~reads
    end = np.cumsum(lengths(flat.users))
    d, c = pairs_of(flat.users)
    here = counted[d]
    place = np.arange(len(d)) + 2 * d  # rows of d: of each reader, of one that is ahead, and of d itself
    base = np.where(ran[flat.producer] >= 0, 0, -1)  # z = 1 of a producer that has run moves to the right-hand side
    rows = _Rows()

    def supply(data: Ints) -> Terms:
        """Resident, or made again, or, where its producer is undecided, not made yet."""
        p = flat.producer[data]
        return [(resident[data], -1), (again[p], -1), (ran[p], 1)]

    undecided, repeats = here & (state[c] == EITHER), here & (again[c] >= 0)
    for fact, readers in (
        ("first", undecided & ~repeats),
        ("again", repeats & ~undecided),
        ("runs", undecided & repeats),
    ):
        data, reader = d[readers], c[readers]
        needed = [(ran[reader], -1), (again[reader], 1)]
        rows.add(fact, place[readers], (data, reader), [*supply(data), *needed], base[data] + (state[reader] == DONE))
    ahead, last = here & (state[c] == AHEAD), np.full(len(resident), -1)
    last[d[ahead]] = c[ahead]  # one of them for all: their rows are equal
    due = np.flatnonzero(last >= 0)
    rows.add("first", end[due] + 2 * due, (due, last[due]), supply(due), base[due])
    maybe = np.flatnonzero(counted & (base == 0))
    not_before = [(resident[maybe], 1), (ran[flat.producer[maybe]], -1)]
    rows.add("made", end[maybe] + 2 * maybe + 1, (maybe,), not_before, np.zeros_like(maybe))
    rows.add_to(columns)


def _order_rows(flat: Flat, columns: _Columns) -> None:
    """An undecided node has run only if what it depends on has; it runs again only if it has run."""
    ran, again = columns.ran, columns.again
    v, u = pairs_of(flat.predecessors)
    begin = np.cumsum(lengths(flat.predecessors)) - lengths(flat.predecessors)
    rows = _Rows()
    both = np.flatnonzero((ran >= 0) & (again >= 0))
    rows.add("ran", begin[both] + both, (both,), [(again[both], 1), (ran[both], -1)], np.zeros_like(both))
    here = (ran[v] >= 0) & (ran[u] >= 0)
    place = (np.arange(len(v)) + v + 1)[here]
    rows.add("order", place, (v[here], u[here]), [(ran[v[here]], 1), (ran[u[here]], -1)], np.zeros_like(place))
    rows.add_to(columns)
