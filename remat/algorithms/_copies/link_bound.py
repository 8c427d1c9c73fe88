"""A bound for every schedule with copies: the saved-set formulation at one instant, with a third choice per datum.

Take τ, the start of the first run of a node t, X the time before it and Y the time after it. Besides s, y and z
(`_bounds/instants.py`) there is o per datum d: nothing of d is charged at τ, and a later read gets a value made before τ. What
arrives or still leaves at τ is charged, so the value of an o was whole on the host by τ and is fetched after it: one copy out
lies within X, one copy in within Y, and each lane makes one at a time:

    Σ o·out ≤ X = time of nodes that have run + w₁,    Σ o·in ≤ Y = time of the others + Σ y·time + w₂.

w₁ and w₂ are all other time that passes: waiting, and reruns that y does not count. The cost is Σ y·time + w₁ + w₂. A copy out
starts after the ancestors of what it copies have run (its head): the sum over the data with a head of at least r is at most
X − r. A copy in is followed by a reader and by all that depends on it (its tail), likewise. r is at most the time that passes
on that side in every schedule, or the row would bind without any copy. Relaxed: copies start at any time and
memory counts at τ only.

w has a finite range, W. A schedule with a longer overhead costs more than W by itself: the bound is the smaller of both. Source:
this project; see docs/explanation/bounds.md.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from attrs import field, frozen
from numpy.typing import NDArray

from remat.algorithms._arrays.graph_arrays import BACKWARD, LOSS, Flat, Ints, Longs, row_of, rows_of
from remat.algorithms._bounds.instants import AHEAD, DONE, EITHER, Dependencies, Instant, instant_formulation
from remat.algorithms._copies.copy_arrays import Lanes
from remat.algorithms._milp.linear import Linear
from remat.units import Ns

ROWS = 16  # rows of heads and of tails, each

Rows = list[tuple[list[tuple[int, int]], int]]
"""Rows as (column, value) terms and a right-hand side."""


@frozen
class LinkInstant:
    """The formulation at an instant.

    Attributes:
        instant: the one without copies. linear: with copies.
        off: the column of each datum's o, -1: none. waits: the columns of w₁ and w₂, in units of `most`.
        most: the range of w₁ and of w₂ [ns].
    """

    instant: Instant
    linear: Linear = field(eq=False)
    off: NDArray[np.int32] = field(eq=False)
    waits: tuple[int, int]
    most: Ns


class Reach:
    """What must have run before a node's first run, and what must follow it.

    Attributes:
        dependencies: of first runs. head: time of the ancestors of each node and of itself; for backward nodes also of
            all forward nodes [ns]. tail: time of each node and of its descendants [ns].
    """

    def __init__(self, flat: Flat) -> None:
        self.dependencies = Dependencies(flat)
        nodes = range(flat.time.size)
        self.head = _sums(flat, flat.predecessors, nodes, (flat.phase != BACKWARD) & flat.required)
        self.tail = _sums(flat, self.dependencies.after, reversed(nodes), np.zeros(len(nodes), np.bool_))


def _sums(flat: Flat, edges: Ints, order: Iterable[int], always: NDArray[np.bool_]) -> Longs:
    """Per node: the time of the nodes that it reaches by edges, and its own; a backward node reaches those of `always` too."""
    nodes = flat.time.size
    bit = np.packbits(np.eye(8, dtype=np.bool_), axis=1).ravel()
    common = np.packbits(always)
    reached = np.zeros((nodes, len(common)), np.uint8)
    total = np.zeros(nodes, np.int64)
    for v in order:
        if flat.phase[v] == BACKWARD:
            reached[v] = common
        for u in row_of(edges, v).tolist():
            reached[v] |= reached[u]
        reached[v, v // 8] |= bit[v % 8]
        total[v] = flat.time[np.unpackbits(reached[v], count=nodes).view(np.bool_)].sum()
    return total


def link_formulation(flat: Flat, lanes: Lanes, reach: Reach, at: int, most: Ns) -> LinkInstant:
    """The formulation of the first run of node `at`, for schedules whose overhead is at most `most` [ns]."""
    instant = instant_formulation(flat, reach.dependencies, at, lanes.budget)
    off = _off_columns(flat, instant)
    waits = int(off.max(initial=len(instant.linear.cost) - 1)) + 1
    rows: Rows = []
    for d in np.flatnonzero(off >= 0).tolist():
        z = int(instant.ran[flat.producer[d]])
        if z >= 0:
            rows.append(([(int(off[d]), 1), (z, -1)], 0))
    rows += _lane_rows(off, lanes.out, reach.head[flat.producer], _before(flat, instant, (waits, -most)))
    rows += _lane_rows(off, lanes.back, _tails(flat, reach, instant.state), _after(flat, instant, (waits + 1, -most)))
    return LinkInstant(instant, _extended(instant, off, (waits, waits + 1), most, rows), off, (waits, waits + 1), most)


def _off_columns(flat: Flat, instant: Instant) -> NDArray[np.int32]:
    """A column for the data that may be off the device at the instant: those that need not be resident and are not kept."""
    allowed = (instant.resident >= 0) & ~flat.keep
    allowed[row_of(flat.reads, instant.at)] = False
    off = np.full(len(allowed), -1, np.int32)
    off[allowed] = len(instant.linear.cost) + np.arange(int(allowed.sum()))
    return off


class _Side(NamedTuple):
    """The time before or after the instant: `rhs` less the terms [ns]; `sure` of it passes in every schedule."""

    terms: list[tuple[int, int]]
    rhs: Ns
    sure: Ns


def _before(flat: Flat, instant: Instant, wait: tuple[int, int]) -> _Side:
    sure = int(flat.time[instant.state == DONE].sum())
    ran = [(int(instant.ran[v]), -int(flat.time[v])) for v in np.flatnonzero(instant.ran >= 0)]
    return _Side([wait, *ran], sure, sure)


def _after(flat: Flat, instant: Instant, wait: tuple[int, int]) -> _Side:
    sure = int(flat.time[instant.state == AHEAD].sum())
    ran = [(int(instant.ran[v]), int(flat.time[v])) for v in np.flatnonzero(instant.ran >= 0)]
    again = [(int(instant.again[v]), -int(flat.time[v])) for v in np.flatnonzero(instant.again >= 0)]
    return _Side([wait, *ran, *again], sure + int(flat.time[instant.state == EITHER].sum()), sure)


def _lane_rows(off: NDArray[np.int32], lane: Longs, far: Longs, side: _Side) -> Rows:
    """The rows of a lane; `far`: per datum, the time that passes between its copy and that end of the step [ns]."""
    data = np.flatnonzero(off >= 0)
    rows: Rows = []
    for r in _thresholds(np.minimum(far[data], side.sure), lane[data]):
        copies = [(int(off[d]), int(lane[d])) for d in data[far[data] >= r] if lane[d]]
        if copies:
            rows.append(([*copies, *side.terms], side.rhs - r))
    return rows


def _thresholds(far: Longs, lane: Longs) -> list[Ns]:
    """Values of r: 0, and others that part the lane's time about evenly."""
    if not len(far):
        return []
    order = np.argsort(far, kind="stable")
    done = np.cumsum(lane[order])
    places = np.searchsorted(done, np.linspace(0, done[-1], ROWS, endpoint=False), side="right")
    return sorted({0, *far[order][np.minimum(places, len(order) - 1)].tolist()})


def _tails(flat: Flat, reach: Reach, state: NDArray[np.int8]) -> Longs:
    """Per datum: the time that passes at least from the end of a copy to the device to the end of the step [ns].

    The reader that it is made for runs after it. If the reader has not run at the instant, it is its first run, and all that
    depends on it follows. A rerun serves some reader of what it makes (one that serves nobody counts as waiting), and so on.
    """
    never = int(flat.time.sum()) + 1
    rerun = [never] * flat.time.size  # the least time from the start of a rerun to the end
    first = np.where(state == DONE, never, reach.tail).tolist()
    uses, time = rows_of(flat.users), flat.time.tolist()
    for v in range(flat.time.size - 1, -1, -1):
        if not flat.replay[v]:
            continue
        outputs = row_of(flat.writes, v).tolist()
        rerun[v] = time[v] + min((min(first[c], rerun[c]) for d in outputs for c in uses[d]), default=never)
    least = [
        min((first[c] if state[c] == AHEAD else min(first[c], rerun[c]) for c in readers), default=0)
        for readers in uses
    ]
    return np.array(least, np.int64)


def _extended(instant: Instant, off: NDArray[np.int32], waits: tuple[int, int], most: Ns, rows: Rows) -> Linear:
    """The formulation with the columns of o and w and the new rows; o serves readers as s does."""
    old = instant.linear
    entries = [
        (row, int(off[fact[2]]), -1)
        for row, fact in enumerate(instant.facts)
        if fact[0] in ("first", "again") and off[fact[2]] >= 0
    ]
    entries += [(len(old.rhs) + k, column, value) for k, (terms, _) in enumerate(rows) for column, value in terms]
    row, col, val = (np.array([entry[i] for entry in entries], np.int64) for i in range(3))
    added, more = waits[1] + 1 - len(old.cost), len(rows)
    cost = np.zeros(added, np.int64)
    cost[-2:] = most
    flags = np.zeros(added, np.bool_)
    return Linear(
        cost=np.concatenate([old.cost, cost]),
        integral=np.concatenate([old.integral, flags]),
        implied=np.concatenate([old.implied, flags]),
        row=np.concatenate([old.row, row]),
        col=np.concatenate([old.col, col]),
        val=np.concatenate([old.val, val]),
        rhs=np.concatenate([old.rhs, np.array([right for _, right in rows], np.int64)]),
        budget=np.concatenate([old.budget, np.zeros(more, np.int64)]),
        save=np.concatenate([old.save, np.zeros(more, np.int64)]),
        equal=np.concatenate([old.equal, np.zeros(more, np.bool_)]),
    )


def instants_of(flat: Flat, profile: Longs, after_loss: Iterable[int], heaviest: int) -> list[int]:
    """Instants to examine: the loss, backward nodes at these places after it, and those of most memory, spread out."""
    loss = int(np.flatnonzero(flat.phase == LOSS)[0])
    backward = np.flatnonzero((flat.phase == BACKWARD) & flat.required)
    chosen = [loss, *(int(backward[k]) for k in after_loss if k < len(backward))]
    spread: list[int] = []
    for v in backward[np.argsort(-profile[backward], kind="stable")].tolist():
        if len(spread) == heaviest:
            break
        if all(abs(v - u) > 2 for u in (*spread, *chosen)):
            spread.append(v)
    return list(dict.fromkeys([*chosen, *spread]))
