"""The production form with copies over a link: when each copy starts and ends, run by run, and the time that the lanes have.

A datum that may be copied has a state before each slot k, at the start of its run: readable r, leaving l (its copy to the host
is under way), whole on the host h, or arriving v. All but h take its bytes. Between two slots a copy out begins (o, after the
last use) or is whole (w), a copy back begins (s) or has ended (e, before a reader):

    r(k) + o(k) ≤ r(k-1) + makes(k-1) + e(k)        l(k) = l(k-1) + o(k) - w(k)        v(k) = v(k-1) + s(k) - e(k)
    h(k) ≤ h(k-1) + w(k)        s(k) ≤ h(k) + l(k)        run(k) ≤ r(k) where slot k reads it

The work on a copy is done while time passes: before the run of a slot, when the step waits, and during it. What is done counts
until the copy is whole, so the amount that is pending is P(k) ≤ P(k-1) + work - w(k), and P(k) ≤ l(k); in the other direction
with e and v. In each span a lane does as much work as the span lasts.

Relaxed: a lane may work on several copies in turn, and one that has begun may pause; copies in their order come from the
replay of a point's runs. So the optimum bounds every staged schedule that copies only data of one writer that are not kept:
an offload that begins later than after the last use leaves the bytes where they are until then, and one without a prefetch
is a drop. Integral: runs, s and w; with these, the rest is integral in some optimum but for work and waiting.
"""

from __future__ import annotations

import numpy as np
from attrs import field, frozen
from numpy.typing import NDArray

from remat.algorithms._copies.copy_arrays import Lanes
from remat.algorithms._core.clock import Clock
from remat.algorithms._staged.form_events import Events, Form
from remat.algorithms._staged.memory_items import Cell, StagedGraph
from remat.algorithms._staged.slots import Slots
from remat.units import Ns

_Ints = NDArray[np.int64]


@frozen(kw_only=True)
class CopiesForm:
    """A formulation with copies.

    Attributes:
        form: the formulation. ends: column of e by datum and reader's slot.
        waits: the first column of the waits, one for each slot, in units of `most` [ns].
    """

    form: Form
    ends: dict[tuple[int, int], int] = field(eq=False)
    waits: int
    most: Ns


def copies_form(stage: StagedGraph, slots: Slots, lanes: Lanes, most: Ns, clock: Clock) -> CopiesForm | None:
    """Build the formulation of a flat graph, for schedules that wait at most `most` ns before a run; None: no time is left."""
    events = _EventsWithCopies(stage, slots, lanes, max(1, most), clock)
    try:
        form = events.build(cuts=False, corrections=False, save=False)
    except _OutOfTime:
        return None
    ends = {
        (state.datum, int(state.slots[i])): int(state.column["e"][i])
        for state in events.states
        for i in np.flatnonzero(state.column["e"] >= 0).tolist()
    }
    return CopiesForm(form=form, ends=ends, waits=events.waits, most=events.most)


@frozen
class _State:
    """The columns of one datum: by their letter in the module's docstring, per slot, -1 where there is none.

    `out_idle`, `out_run`, `in_idle`, `in_run`: work as parts of a copy. `out_done`, `in_done`: P.
    """

    datum: int
    size: int
    out: Ns
    back: Ns
    slots: _Ints = field(eq=False)
    column: dict[str, _Ints] = field(eq=False)


class _OutOfTime(Exception):
    """The clock has expired while the formulation was built."""


class _EventsWithCopies(Events):
    """The builder of the production form; what may be copied has states instead of gaps."""

    def __init__(self, stage: StagedGraph, slots: Slots, lanes: Lanes, most: Ns, clock: Clock) -> None:
        super().__init__(stage, slots)
        self.lanes, self.most, self.waits, self.clock = lanes, most, -1, clock
        self.states: list[_State] = []

    def _flow(self, at: int, cell: Cell) -> None:
        if self.clock.expired:
            raise _OutOfTime
        datum = self.stage.graph.data_index[cell.name]
        if not self.lanes.movable[datum] or not cell.readers:
            super()._flow(at, cell)
            return
        (node, _), *_ = cell.writers
        writes = self.slots.of(node)
        reads = np.sort(np.concatenate([self.slots.of(reader) for reader, _ in cell.readers]))
        slots = np.arange(writes[0] + 1, reads[-1] + 1)
        state = self._columns(datum, slots, writes, reads)
        self.states.append(state)
        self._residency(state, writes, reads)
        self._work(state.out, state.column, ("out_idle", "out_run", "out_done", "w", "l"))
        self._work(state.back, state.column, ("in_idle", "in_run", "in_done", "e", "v"))

    def _columns(self, datum: int, slots: _Ints, writes: _Ints, reads: _Ints) -> _State:
        after_use, before_read = np.isin(slots - 1, np.union1d(writes, reads)), np.isin(slots, reads)
        everywhere = np.ones(len(slots), np.bool_)
        out, back = int(self.lanes.out[datum]), int(self.lanes.back[datum])
        where = {"r": everywhere, "l": everywhere, "v": everywhere, "h": everywhere, "o": after_use, "e": before_read}
        column = {letter: self._some(mask, implied=True) for letter, mask in where.items()}
        column |= {letter: self._some(everywhere, integral=True) for letter in ("s", "w")}
        for lane, time in (("out", out), ("in", back)):
            for word in ("idle", "run", "done"):
                column[f"{lane}_{word}"] = self._some(everywhere & (time > 0))
        return _State(datum, int(self.stage.graph.data[datum].size), out, back, slots, column)

    def _some(self, mask: NDArray[np.bool_], *, integral: bool = False, implied: bool = False) -> _Ints:
        """A column for each slot of a mask."""
        first = self.b.new(int(mask.sum()), integral=integral, implied=implied)
        return np.where(mask, first + np.cumsum(mask) - 1, -1)

    def _put(self, rows: _Ints, columns: _Ints, value: int) -> None:
        """Entries where there is a column."""
        present = columns >= 0
        self.b.entries(rows[present], columns[present], value)

    def _rows(self, terms: tuple[tuple[_Ints, int], ...], *, equal: bool = False) -> _Ints:
        """A row for each slot, at most 0 (or 0)."""
        count = len(terms[0][0])
        rows = self.b.rows(count, equal=equal) + np.arange(count)
        for columns, value in terms:
            self._put(rows, columns, value)
        return rows

    def _residency(self, state: _State, writes: _Ints, reads: _Ints) -> None:
        column, slots = state.column, state.slots
        r, v, h, o, e, s, w = (column[letter] for letter in ("r", "v", "h", "o", "e", "s", "w"))
        leaving = column["l"]
        present = self._rows(((r, 1), (o, 1), (_earlier(r), -1), (e, -1)))
        self._runs_at(present, slots - 1, writes, -1)
        self._rows(((leaving, 1), (_earlier(leaving), -1), (o, -1), (w, 1)), equal=True)
        self._rows(((v, 1), (_earlier(v), -1), (s, -1), (e, 1)), equal=True)
        self._rows(((h, 1), (_earlier(h), -1), (w, -1)))
        self._rows(((s, 1), (h, -1), (leaving, -1)))
        self._runs_at(self._rows(((r, -1),)), slots, reads, 1)

    def _runs_at(self, rows: _Ints, slots: _Ints, some: _Ints, value: int) -> None:
        """Add the run at each slot that is among some to the row of it."""
        chosen = np.isin(slots, some)
        self.activity(rows[chosen], slots[chosen], (0,), value)

    def _work(self, time: Ns, column: dict[str, _Ints], names: tuple[str, str, str, str, str]) -> None:
        """The pending part of a copy in one direction, of which none is done while it is not under way."""
        if time == 0:
            return
        idle, run, done, ends, under_way = (column[name] for name in names)
        self._rows(((done, 1), (_earlier(done), -1), (_earlier(run), -1), (idle, -1), (ends, 1)))
        self._rows(((run, 1), (under_way, -1)))
        self._rows(((done, 1), (under_way, -1)))

    def _memory(self, corrections: bool) -> _Ints:
        rows = super()._memory(corrections)
        for state in self.states:
            for letter in ("r", "l", "v"):
                self.b.entries(rows[state.slots], state.column[letter], state.size)
        self._lane_rows()
        return rows

    def _lane_rows(self) -> None:
        """Each lane works no longer than the step waits before the run of a slot, and than the run takes."""
        count = len(self.slots)
        self.waits = self.b.new(count, cost=self.most)
        time = np.array([node.option.time for node in self.stage.graph.computes], np.int64)[self.slots.node]
        for lane in ("out", "in"):
            idle, run = (self.b.rows(count) + np.arange(count) for _ in range(2))
            self.b.entries(idle, self.waits + np.arange(count), -self.most)
            self.b.entries(run, self.slots.column, -time)
            for state in self.states:
                duration = state.out if lane == "out" else state.back
                self._put(idle[state.slots], state.column[f"{lane}_idle"], duration)
                self._put(run[state.slots], state.column[f"{lane}_run"], duration)


def _earlier(columns: _Ints) -> _Ints:
    """The columns of the slots before; none before the first."""
    return np.concatenate([[-1], columns[:-1]])
