"""A bound for every schedule with copies: the saved-set formulation at one instant, with a third choice per datum.

Take τ, the start of the first run of a node t, X the time before it and Y the time after it. Besides s, y and z
(`_bounds/instants.py`) there is o per datum d: nothing of d is charged at τ, and a later read gets a value made before τ. What
arrives or still leaves at τ is charged, so the value of an o was whole on the host by τ and is fetched after it: one copy out
lies within X, one copy in within Y, and each lane makes one at a time:

    Σ o·out ≤ X = time of nodes that have run + w₁,    Σ o·in ≤ Y = time of the others + Σ y·time + w₂.

w₁ and w₂ are all other time that passes: waiting, and reruns that y does not count. The cost is Σ y·time + w₁ + w₂. A copy out
starts after the ancestors of what it copies have run (its head): the sum over the data with a head of at least r is at most
X − r, where r is at most the time that passes before τ in every schedule, or the row would bind without any copy. (What must
follow a copy in, likewise, raised no bound of 64 rows of the benchmark, and is left out.) Relaxed: copies start at any time and
memory counts at τ only.

w has a finite range, W. A schedule with a longer overhead costs more than W by itself: the bound is the smaller of both. Each
row is a fact that proofs name (docs/reference/proofs.md). Source: this project; see docs/explanation/bounds.md.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import count, islice
from typing import Any, NamedTuple

import numpy as np
from attrs import field, frozen
from numpy.typing import NDArray

from remat.algorithms._arrays.graph_arrays import BACKWARD, LOSS, Flat, Longs, row_of
from remat.algorithms._bounds.instants import DONE, Dependencies, Instant, instant_formulation, named_columns
from remat.algorithms._copies.copy_arrays import Lanes
from remat.algorithms._milp.linear import Ints, Linear
from remat.units import Ns

ROWS = 16  # rows of the lane to the host
_TRIED = 4  # nodes looked at for each instant that is examined, at most

_SERVED = ("first", "again", "runs")  # facts of readers, which an o serves as an s does

Terms = tuple[Ints, Ints]
"""Columns and values."""


@frozen
class LinkInstant:
    """The formulation at an instant.

    Attributes:
        instant: the one without copies. linear: with copies.
        off: the column of each datum's o, -1: none. waits: the columns of w₁ and w₂, in units of `most`.
        most: the range of w₁ and of w₂ [ns].
        facts: the meaning of each row, as proofs name it.
    """

    instant: Instant
    linear: Linear = field(eq=False)
    off: NDArray[np.int32] = field(eq=False)
    waits: tuple[int, int]
    most: Ns
    facts: list[list[Any]] = field(eq=False, repr=False)

    @property
    def column_names(self) -> list[tuple[str, int]]:
        """What each column stands for: the same in the formulations of all instants."""
        groups = {"y": self.instant.again, "z": self.instant.ran, "s": self.instant.resident, "o": self.off}
        return named_columns(len(self.linear.cost), {**groups, "w": np.array(self.waits)})

    @property
    def row_names(self) -> list[tuple[Any, ...]]:
        """What each row says; rows of the lane to the host by their number, since r differs between instants."""
        thresholds = count()
        return [("out", next(thresholds)) if fact[0] == "out" else tuple(fact) for fact in self.facts]


class Reach:
    """What must have run before a node's first run.

    Attributes:
        dependencies: of first runs. head: time of the ancestors of each node and of itself; for backward nodes also of
            all forward nodes [ns].
    """

    def __init__(self, flat: Flat) -> None:
        self.dependencies = Dependencies(flat)
        self.head = _heads(flat)


def _heads(flat: Flat) -> Longs:
    """Per node: the time of its ancestors and its own; all forward nodes are ancestors of a backward node."""
    nodes = flat.time.size
    bit = np.packbits(np.eye(8, dtype=np.bool_), axis=1).ravel()
    common = np.packbits((flat.phase != BACKWARD) & flat.required)
    reached = np.zeros((nodes, len(common)), np.uint8)
    total = np.zeros(nodes, np.int64)
    for v in range(nodes):
        if flat.phase[v] == BACKWARD:
            reached[v] = common
        for u in row_of(flat.predecessors, v).tolist():
            reached[v] |= reached[u]
        reached[v, v // 8] |= bit[v % 8]
        total[v] = flat.time[np.unpackbits(reached[v], count=nodes).view(np.bool_)].sum()
    return total


def link_formulation(flat: Flat, lanes: Lanes, reach: Reach, at: int, most: Ns) -> LinkInstant:
    """The formulation of the first run of node `at`, for schedules whose overhead is at most `most` [ns]."""
    instant = instant_formulation(flat, reach.dependencies, at, lanes.budget)
    off = _off_columns(flat, instant)
    waits = int(off.max(initial=len(instant.linear.cost) - 1)) + 1
    rows = _Rows(len(instant.facts))
    undecided = np.flatnonzero((off >= 0) & (instant.ran[flat.producer] >= 0))
    away = [["away", 0, d] for d in undecided.tolist()]
    rows.add_each(away, [(off[undecided], 1), (instant.ran[flat.producer[undecided]], -1)])
    _add_rows_to_host(rows, off, lanes.out, reach.head[flat.producer], _before(flat, instant, (waits, -most)))
    _add_row_to_device(rows, off, lanes.back, _after(flat, instant, (waits + 1, -most)))
    return LinkInstant(
        instant=instant,
        linear=_extended(instant, off, (waits, waits + 1), most, rows),
        off=off,
        waits=(waits, waits + 1),
        most=most,
        facts=[*instant.facts, *rows.facts],
    )


class _Rows:
    """Rows that follow those of an instant: what each says, right-hand sides, and parts of entries as (row, column, value)."""

    def __init__(self, first: int) -> None:
        self.facts: list[list[Any]] = []
        self.rhs: list[int] = []
        self.entries: list[tuple[Ints, Ints, Ints]] = []
        self._first = first

    def add_each(self, facts: list[list[Any]], terms: Iterable[tuple[NDArray[np.int32], int]]) -> None:
        """A row for each fact: the column of each row, with their common value, for each term; at most 0."""
        rows = self._first + len(self.facts) + np.arange(len(facts))
        self.entries += [(rows, columns.astype(np.int64), np.full(len(rows), value)) for columns, value in terms]
        self.facts += facts
        self.rhs += [0] * len(facts)

    def add(self, fact: list[Any], terms: Iterable[Terms], rhs: int) -> None:
        """One row."""
        row = self._first + len(self.facts)
        self.entries += [(np.full(len(columns), row), columns, values) for columns, values in terms]
        self.facts.append(fact)
        self.rhs.append(rhs)


def _off_columns(flat: Flat, instant: Instant) -> NDArray[np.int32]:
    """A column for the data that may be off the device at the instant: those that need not be resident and are not kept."""
    allowed = (instant.resident >= 0) & ~flat.keep
    allowed[row_of(flat.reads, instant.at)] = False
    off = np.full(len(allowed), -1, np.int32)
    off[allowed] = len(instant.linear.cost) + np.arange(int(allowed.sum()))
    return off


class _Side(NamedTuple):
    """The time before or after the instant: `rhs` less the terms [ns]."""

    terms: list[Terms]
    rhs: Ns


def _waited(wait: tuple[int, int]) -> Terms:
    return np.array(wait[:1], np.int64), np.array(wait[1:], np.int64)


def _chosen(columns: NDArray[np.int32], values: Longs) -> Terms:
    """The columns that there are, with their values."""
    given = columns >= 0
    return columns[given].astype(np.int64), values[given]


def _before(flat: Flat, instant: Instant, wait: tuple[int, int]) -> _Side:
    terms = [_waited(wait), _chosen(instant.ran, -flat.time)]
    return _Side(terms, int(flat.time[instant.state == DONE].sum()))


def _after(flat: Flat, instant: Instant, wait: tuple[int, int]) -> _Side:
    terms = [_waited(wait), _chosen(instant.ran, flat.time), _chosen(instant.again, -flat.time)]
    return _Side(terms, int(flat.time[instant.state != DONE].sum()))


def _add_rows_to_host(rows: _Rows, off: NDArray[np.int32], out: Longs, head: Longs, side: _Side) -> None:
    """The rows of the lane to the host; `head`: per datum, the time that passes before it is there [ns]."""
    data = np.flatnonzero(off >= 0)
    for r in _thresholds(np.minimum(head[data], side.rhs), out[data]):
        late = data[(head[data] >= r) & (out[data] != 0)]
        if len(late):
            rows.add(["out", 0, r], [(off[late].astype(np.int64), out[late]), *side.terms], side.rhs - r)


def _add_row_to_device(rows: _Rows, off: NDArray[np.int32], back: Longs, side: _Side) -> None:
    """The row of the lane to the device."""
    data = np.flatnonzero((off >= 0) & (back != 0))
    if len(data):
        rows.add(["back", 0, 0], [(off[data].astype(np.int64), back[data]), *side.terms], side.rhs)


def _thresholds(head: Longs, lane: Longs) -> list[Ns]:
    """Values of r: 0, and others that part the lane's time about evenly."""
    if not len(head):
        return []
    order = np.argsort(head, kind="stable")
    done = np.cumsum(lane[order])
    places = np.searchsorted(done, np.linspace(0, done[-1], ROWS, endpoint=False), side="right")
    return sorted({0, *head[order][np.minimum(places, len(order) - 1)].tolist()})


def _extended(instant: Instant, off: NDArray[np.int32], waits: tuple[int, int], most: Ns, rows: _Rows) -> Linear:
    """The formulation with the columns of o and w and the new rows; o serves readers as s does."""
    old = instant.linear
    served = [(row, fact[2]) for row, fact in enumerate(instant.facts) if fact[0] in _SERVED]
    reader, datum = np.array(served, np.int64).reshape(-1, 2).T
    movable = off[datum] >= 0
    serving = (reader[movable], off[datum[movable]].astype(np.int64), np.full(int(movable.sum()), -1))
    parts = [(old.row, old.col, old.val), serving, *rows.entries]
    row, col, val = (np.concatenate([part[i] for part in parts]) for i in range(3))
    added, more = waits[1] + 1 - len(old.cost), len(rows.facts)
    cost = np.zeros(added, np.int64)
    cost[-2:] = most
    flags = np.zeros(added, np.bool_)
    return Linear(
        cost=np.concatenate([old.cost, cost]),
        integral=np.concatenate([old.integral, flags]),
        implied=np.concatenate([old.implied, flags]),
        row=row,
        col=col,
        val=val,
        rhs=np.concatenate([old.rhs, np.array(rows.rhs, np.int64)]),
        budget=np.concatenate([old.budget, np.zeros(more, np.int64)]),
        save=np.concatenate([old.save, np.zeros(more, np.int64)]),
        equal=np.concatenate([old.equal, np.zeros(more, np.bool_)]),
    )


def instants_of(
    flat: Flat, dependencies: Dependencies, profile: Longs, after_loss: Iterable[int], heaviest: int
) -> list[int]:
    """Instants to examine: the loss, backward nodes at these places after it, and those of most memory, spread out.

    Nodes that may be postponed past most of the backward do not count.
    """
    loss = int(np.flatnonzero(flat.phase == LOSS)[0])
    backward = np.flatnonzero((flat.phase == BACKWARD) & flat.required)
    places = sorted(set(after_loss))
    most = places[-1] + 1 if places else 0
    firm = list(islice((v for v in backward[: _TRIED * most].tolist() if not dependencies.postponable(flat, v)), most))
    chosen = [loss, *(firm[k] for k in places if k < len(firm))]
    spread: list[int] = []
    heavy = backward[np.argsort(-profile[backward], kind="stable")].tolist()
    apart = (v for v in heavy if all(abs(v - u) > 2 for u in (*spread, *chosen)))
    for v in islice(apart, _TRIED * heaviest):
        if len(spread) < heaviest and not dependencies.postponable(flat, v):
            spread.append(v)
    return list(dict.fromkeys([*chosen, *spread]))
