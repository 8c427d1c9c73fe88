"""Where the dual simplex method begins on the formulation of a chain with one more instant: at the optimum without it.

An instant that divides a stage leaves the columns and rows of the chain as they were, as those of stages taken together (see
`ordered_instants`); what it adds are its data, its memory, and the two parts of the stage. Only reruns in the parts cost anything
now. Let the multiplier of y <= y(before) + y(after) be the time of the node, and those of all other new rows 0: then no column
costs less than it brings, and the multipliers prove what those of the chain did. From there the method repairs the rows that the
instant adds. Where it brings nothing, as most do, that takes a fraction of the iterations from nothing. Source: this project.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from remat.algorithms._bounds.ordered_instants import Chained
from remat.algorithms._milp.basis import BASIC, LOWER, UPPER, Statuses
from remat.algorithms._milp.linear import Flags, Ints, Linear

_MIX = 0x9E3779B97F4A7C15  # odd, so that multiplying by it loses nothing


def inherited(chained: Chained, ended: Statuses, longer: Chained) -> Statuses:
    """The statuses at which the dual method begins on the formulation of a chain with one more instant.

    Args:
        chained: the formulation without it.
        ended: where a solve of that ended.
        longer: the formulation with it; the stages taken together of `chained` are among its own.
    """
    before = _matched(_named(chained), _named(longer))
    columns = np.where(before >= 0, ended.columns[before], LOWER).astype(np.int8)
    row_before = _same_rows(chained.linear, longer.linear, before)
    rows = np.where(row_before >= 0, ended.rows[row_before], BASIC).astype(np.int8)
    _divide(chained, longer, columns, rows)
    return Statuses(columns, rows)


def _divide(chained: Chained, longer: Chained, columns: NDArray[np.int8], rows: NDArray[np.int8]) -> None:
    """Let the reruns of the stage that the new instant divides cost what its parts do; the first of them is basic."""
    k = next(k for k, at in enumerate(longer.instants) if at not in chained.instants)
    row = longer.splits.get(((k - 1, k + 1), k))
    if row is None:
        return
    again, part = longer.spans[k - 1, k + 1], longer.spans[k - 1, k]
    nodes = np.flatnonzero((row >= 0) & (again >= 0) & (part >= 0))
    rows[row[nodes]] = UPPER
    columns[part[nodes]] = BASIC


def _named(chained: Chained) -> Ints:
    """A number for each column, the same in the formulations of all chains: of what it says at which instants."""
    ends, items = (*chained.instants, -1), 1 + max(chained.ran.shape[1], chained.resident.shape[1])
    names: Ints = np.empty(chained.linear.shape[1], np.int64)

    def name(columns: Ints, kind: int, begin: int, end: int) -> None:
        used = np.flatnonzero(columns >= 0)
        names[columns[used]] = ((2 * (begin + 1) + kind) * items + end + 1) * items + used

    for k, at in enumerate(chained.instants):
        name(chained.resident[k], 0, at, at)
        name(chained.ran[k], 1, at, at)
    for (start, end), columns in chained.spans.items():
        name(columns, 0, ends[start], ends[end])
    return names


def _matched(ours: Ints, theirs: Ints) -> Ints:
    """Of each of theirs its place in ours, -1: none; what occurs several times is matched as often."""
    order, their_order = np.argsort(ours, kind="stable"), np.argsort(theirs, kind="stable")
    sorted_ours, sorted_theirs = ours[order], theirs[their_order]
    nth = np.arange(len(theirs)) - np.searchsorted(sorted_theirs, sorted_theirs)
    place = np.searchsorted(sorted_ours, sorted_theirs) + nth
    equal = place < len(ours)
    equal[equal] = sorted_ours[place[equal]] == sorted_theirs[equal]
    matched: Ints = np.full(len(theirs), -1, np.int64)
    matched[their_order[equal]] = order[place[equal]]
    return matched


def _same_rows(ours: Linear, theirs: Linear, before: Ints) -> Ints:
    """Of each of their rows one of ours that says the same of the columns of both, -1: none.

    `before`: our column of each of theirs, -1: none.
    """
    shared: Flags = np.zeros(ours.shape[1], np.bool_)
    shared[before[before >= 0]] = True
    mine = _summed(ours, np.where(shared, np.arange(ours.shape[1]), -1))
    others = _summed(theirs, before)
    new: Flags = np.ones(len(theirs.rhs), np.bool_)
    new[theirs.row[before[theirs.col] < 0]] = False
    kept = np.flatnonzero(new & (others != 0))
    some = np.flatnonzero(mine != 0)
    matched: Ints = np.full(len(theirs.rhs), -1, np.int64)
    place = _matched(mine[some], others[kept])
    matched[kept] = np.where(place >= 0, some[place], -1)
    return matched


def _summed(linear: Linear, name: Ints) -> Ints:
    """A number for each row that stands for its entries in the named columns (-1: left out); 0: it has none."""
    sums = np.zeros(len(linear.rhs), np.uint64)
    used = name[linear.col] >= 0
    weights = (name[linear.col[used]] + 1).astype(np.uint64) * np.uint64(_MIX)
    weights ^= weights >> np.uint64(31)
    weights *= np.uint64(_MIX)
    np.add.at(sums, linear.row[used], weights * linear.val[used].astype(np.uint64))
    return sums.view(np.int64)
