"""The production form of the staged formulation: only runs are integral, residency is a flow between events.

A datum's *events* are the slots of its writers and readers; one variable in [0, 1] per gap between consecutive events
says how much of it is resident there. A gap after a writer's slot is at most the gap before plus the run; after a
reader's at most the gap before; a reader's run is at most the gap before it. With integral runs the least feasible
gaps are 0 or 1 (resident from the last production to the last use), so they need not be declared integral, and no
variables for creation and deletion are needed: a budget can only lower them. Each slot has one memory row, written
over all gaps that cover it: resident bytes, all outputs of the run (also those already resident, S-MEM), its
workspace. Optimum and linear relaxation equal those of `form_published.py` (Rockmate, App. B; HiRemate, App. B).

Gradient contributions (several writers): one residency flow, and per writer and stage boundary one variable "has
contributed", with the order and the once-per-residency of S-ONCE. Kept data are constants from their completion on.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from attrs import field, frozen
from numpy.typing import NDArray

from remat.algorithms._milp.linear import Builder, Linear
from remat.algorithms._staged.memory_items import Cell, StagedGraph, Use
from remat.algorithms._staged.rerun_cuts import again_rows
from remat.algorithms._staged.slots import Slots, slots_of
from remat.ir import Layer, Moment

_Ints = NDArray[np.int64]
Meaning = tuple[str | int, ...]
"""What a column says: a word, then cells, nodes, writers, slots or stages by index."""


@frozen(kw_only=True)
class Form:
    """A formulation and the meaning of its columns.

    Attributes:
        stage: the graph. slots: where each run has its columns. linear: the formulation.
        memory: the memory row of each slot (a slot with correction terms has more, not listed here).
        columns: of what is not a run. `("resident", cell, slot)`: the cell is resident after that event; `("holds", cell, j, t)`:
            it holds the contribution of its writer j before stage t; `("again", node, t)`: the node runs again in stage t or
            later. In the forms of the papers `("saved", cell, t)`: it is resident when stage t begins; `("created", cell, t)` and
            `("deleted", cell, t, node)`: it becomes resident in the stage, it ceases to be after that node's run.
    """

    stage: StagedGraph = field(eq=False)
    slots: Slots = field(eq=False)
    linear: Linear = field(eq=False)
    memory: _Ints = field(eq=False)
    columns: Mapping[Meaning, int] = field(factory=dict, eq=False)


def events_form(
    stage: StagedGraph, slots: Slots | None = None, *, cuts: bool = False, corrections: bool = False, save: bool = False
) -> Form:
    """Build the formulation.

    Args:
        stage: the graph.
        slots: where nodes may run; default: every rerun that can matter.
        cuts: also the rows of `rerun_cuts.py`, which lift the relaxation and leave the integral points as they are.
        corrections: charge layer options moment by moment (H-ILP's correction terms): exact for the *expanded* schedule,
            so a plan may exceed the budget of the condensed graph, whose replay knows only workspaces.
        save: also a row that limits what is resident during the loss, beyond what the loss reads or writes and kept data.
    """
    slots = slots_of(stage) if slots is None else slots
    return Events(stage, slots).build(cuts=cuts, corrections=corrections, save=save)


class _Flow:
    """The residency variables of one cell: its events (slots, ascending) and the first gap's column."""

    def __init__(self, events: _Ints, first: int, end: int) -> None:
        self.events, self.first, self.end = events, first, end

    def before(self, slots: _Ints) -> _Ints:
        """The column of the gap that covers the time just before each slot; -1: no gap does."""
        place = np.searchsorted(self.events, slots, side="left") - 1
        inside = (place >= 0) & (place < len(self.events) - 1)
        return np.where(inside, self.first + place, -1)

    def after(self, slots: _Ints) -> _Ints:
        """The column of the gap that begins at each slot, or covers the time just after it; -1: no gap does."""
        return self.before(slots + 1)


class Events:
    """The builder of the form: columns of runs, then the residency of each cell, then memory."""

    def __init__(self, stage: StagedGraph, slots: Slots) -> None:
        self.stage, self.slots, self.b = stage, slots, Builder()
        self.flows: dict[int, _Flow] = {}
        self.kept_bytes = np.zeros(len(slots), np.int64)  # bytes of kept data resident before each slot
        self.columns: dict[Meaning, int] = {}

    def build(self, *, cuts: bool, corrections: bool, save: bool) -> Form:
        self._runs()
        for at, cell in enumerate(self.stage.cells):
            if len(cell.writers) > 1:
                self._sum(at, cell)
            elif cell.keep:
                first = self.slots.at[cell.writers[0][0], cell.writers[0][0]]
                self.kept_bytes[first + 1 :] += cell.size
            else:
                self._flow(at, cell)
        for layer in range(len(self.stage.graph.layers)):
            self._one_phantom(layer)
        memory = self._memory(corrections)
        if corrections:
            for layer_of_options in self.stage.graph.layers:
                _Moments(self, layer_of_options).add()
        if save:
            self._save()
        again = again_rows(self.stage, self.slots, self.b, self.flows) if cuts else {}
        self.columns.update((("again", node, t), column) for (t, node), column in again.items())
        return Form(stage=self.stage, slots=self.slots, linear=self.b.build(), memory=memory, columns=self.columns)

    # -- runs ----------------------------------------------------------------------------------------------------------

    def _runs(self) -> None:
        b, slots = self.b, self.slots
        for stage, node in zip(slots.stage.tolist(), slots.node.tolist(), strict=True):
            options = self.stage.graph.computes[node].options
            for option in options:
                b.new(1, cost=option.time, integral=True)
            if stage == node or len(options) > 1:
                first = b.columns - len(options)
                b.row(((first + o, 1) for o in range(len(options))), 1, equal=stage == node)

    def activity(self, rows: _Ints | int, slots: _Ints, options: tuple[int, ...], value: int = 1) -> None:
        """Add `value` times the runs at `slots` by `options` to the rows."""
        columns = self.slots.column[slots][:, None] + np.array(options, np.int64)[None, :]
        self.b.entries(np.broadcast_to(np.asarray(rows), slots.shape)[:, None], columns, value)

    # -- residency -----------------------------------------------------------------------------------------------------

    def _events_of(self, uses: tuple[Use, ...]) -> list[tuple[_Ints, tuple[int, ...]]]:
        return [(self.slots.of(node), options) for node, options in uses]

    def _flow(self, at: int, cell: Cell) -> None:
        """A cell of one writer."""
        writes, reads = self._events_of(cell.writers), self._events_of(cell.readers)
        events = np.sort(np.concatenate([slots for slots, _ in (*writes, *reads)]))
        if not reads:
            return  # without a reader, it is dropped after its run
        flow = self._new_flow(at, events)
        slots, options = writes[0]
        slots = slots[slots < events[-1]]
        rows = self._after(flow, slots)
        self.activity(rows, slots, options, -1)
        for slots, options in reads:
            self._read(flow, slots, options)

    def _new_flow(self, at: int, events: _Ints) -> _Flow:
        first = self.b.new(len(events) - 1, implied=True)
        self.flows[at] = flow = _Flow(events, first, first + len(events) - 1)
        self.columns.update((("resident", at, slot), first + i) for i, slot in enumerate(events[:-1].tolist()))
        return flow

    def _after(self, flow: _Flow, slots: _Ints) -> _Ints:
        """Rows `gap after - gap before <= ...` at slots that are events and not the last one."""
        place = np.searchsorted(flow.events, slots)
        rows = self.b.rows(len(slots)) + np.arange(len(slots))
        self.b.entries(rows, flow.first + place, 1)
        inner = place > 0
        self.b.entries(rows[inner], flow.first + place[inner] - 1, -1)
        return rows

    def _read(self, flow: _Flow, slots: _Ints, options: tuple[int, ...]) -> None:
        """Rows of a reader: its run needs the gap before; the gap after is no more than the gap before."""
        rows = self.b.rows(len(slots)) + np.arange(len(slots))
        self.activity(rows, slots, options)
        self.b.entries(rows, flow.before(slots), -1)
        self._after(flow, slots[slots < flow.events[-1]])

    def _one_phantom(self, layer: int) -> None:
        """At most one option's phantom is resident: a run by another option replaces it."""
        mine = [at for at, cell in enumerate(self.stage.cells) if cell.layer == layer and at in self.flows]
        if len(mine) < 2:
            return
        node = self.stage.cells[mine[0]].writers[0][0]
        slots = self.slots.of(node)
        for at in mine:
            flow, option = self.flows[at], self.stage.cells[at].option
            inner = slots[(slots >= flow.events[0]) & (slots < flow.events[-1])]
            rows = self.b.rows(len(inner), 1) + np.arange(len(inner))
            self.b.entries(rows, flow.first + np.searchsorted(flow.events, inner), 1)
            self.activity(
                rows, inner, tuple(self.stage.cells[o].option for o in mine if self.stage.cells[o].option != option)
            )
        together = self.b.rows(len(slots), 1) + np.arange(len(slots))
        for at in mine:
            flow = self.flows[at]
            inner = (slots >= flow.events[0]) & (slots < flow.events[-1])
            self.b.entries(together[inner], flow.first + np.searchsorted(flow.events, slots[inner]), 1)

    # -- gradient contributions ----------------------------------------------------------------------------------------

    def _sum(self, at: int, cell: Cell) -> None:
        """A cell of several writers, each contributing once per residency and in order."""
        b, slots = self.b, self.slots
        writes, reads = self._events_of(cell.writers), self._events_of(cell.readers)
        events = np.sort(np.concatenate([slots_of_use for slots_of_use, _ in (*writes, *reads)]))
        last = cell.writers[-1][0]
        complete = int(slots.at[last, last])
        if cell.keep:
            events = events[events <= complete]
            self.kept_bytes[complete + 1 :] += cell.size
        flow = self._new_flow(at, events)
        end = int(slots.stage[events[-1]])
        done = self._contributed(cell, flow, end)
        self.columns.update(
            (("holds", at, j, t), column) for j, holds in enumerate(done) for t, column in holds.items()
        )
        for j, (mine, options) in enumerate(writes):
            mine = mine[mine <= events[-1]]
            inner = mine[mine < events[-1]]
            rows = self._after(flow, inner)
            if j == 0:
                self.activity(rows, inner, options, -1)
                for slot in mine[mine > events[0]]:
                    row = b.row([(int(flow.before(slot)), 1)], 1)
                    self.activity(row, np.array([slot]), options)
            else:
                rows = b.rows(len(mine)) + np.arange(len(mine))
                self.activity(rows, mine, options)
                b.entries(rows, flow.before(mine), -1)
                for slot in mine.tolist():
                    self._has(slot, options, cell.writers[j - 1], done[j - 1])
                    contributed = done[j].get(int(slots.stage[slot]))
                    if contributed is not None:
                        row = b.row([(contributed, 1)], 1)
                        self.activity(row, np.array([slot]), options)
        for mine, options in reads:
            mine = mine[mine <= events[-1]]
            self._read(flow, mine, options)
            for slot in mine.tolist():
                for j, writer in enumerate(cell.writers):
                    self._has(slot, options, writer, done[j])

    def _has(self, slot: int, options: tuple[int, ...], writer: Use, done: dict[int, int]) -> None:
        """A run at `slot` needs the contribution of `writer`: made before the stage, or in it."""
        stage = int(self.slots.stage[slot])
        row = self.b.row([(done[stage], -1)] if stage in done else [])
        self.activity(row, np.array([slot]), options)
        slot_of_writer = self.slots.at[stage, writer[0]]
        if slot_of_writer >= 0:
            self.activity(row, np.array([slot_of_writer]), writer[1], -1)

    def _contributed(self, cell: Cell, flow: _Flow, end: int) -> list[dict[int, int]]:
        """Columns "has contributed before stage t", for each writer and each stage after its own up to `end`."""
        b, columns = self.b, []
        for node, options in cell.writers:
            done: dict[int, int] = {}
            for t in range(node + 1, end + 1):
                place = int(flow.before(self.slots.begin[t]))
                if place < 0:
                    break
                done[t] = b.new(1, implied=True)
                b.row([(done[t], 1), (place, -1)])
                back = [(done[t - 1], 1)] if t - 1 in done else []
                slot = self.slots.at[t - 1, node]
                grows = b.row([(done[t], 1), *((c, -v) for c, v in back)])
                stays = b.row([(done[t], -1), *back, (place, 1)], 1)
                if slot >= 0:
                    self.activity(grows, np.array([slot]), options, -1)
                    self.activity(stays, np.array([slot]), options)
            columns.append(done)
        return columns

    # -- memory --------------------------------------------------------------------------------------------------------

    def _memory(self, corrections: bool) -> _Ints:
        slots, b = self.slots, self.b
        profiled = _profiled(self.stage) if corrections else set()
        rows = b.rows(len(slots), budget=1) + np.arange(len(slots))
        b.add_rhs(rows, -self.kept_bytes)
        for at, flow in self.flows.items():
            size = self.stage.cells[at].size
            if size:
                covered = np.arange(flow.events[0] + 1, flow.events[-1] + 1)
                b.entries(rows[covered], flow.before(covered), size)
        for node, charges in enumerate(self.stage.charge):
            mine = slots.of(node)
            for o, charge in enumerate(charges):
                if charge and (node, o) not in profiled:
                    b.entries(rows[mine], slots.column[mine] + o, charge)
        return rows

    def _save(self) -> None:
        """The row of what a block keeps for its backward while the rest of the network runs."""
        loss = self.slots.at[self.stage.loss, self.stage.loss]
        row = self.b.rows(1, save=1)
        for at, flow in self.flows.items():
            cell = self.stage.cells[at]
            column = int(flow.before(np.array(loss)))
            if not cell.boundary and column >= 0:
                self.b.entries(row, column, cell.size)


def _profiled(stage: StagedGraph) -> set[tuple[int, int]]:
    """Nodes and options whose memory is given moment by moment."""
    profiled = set()
    for layer in stage.graph.layers:
        for o, option in enumerate(layer.options):
            if option.forward_profile:
                profiled.add((stage.graph.node_index[layer.forward], o))
            if option.backward_profile:
                profiled.add((stage.graph.node_index[layer.backward], o))
    return profiled


class _Moments:
    """Memory rows of the moments of a layer's options, in place of their charge (HiRemate, App. B.3 and B.4).

    In a moment the layer holds `live` bytes. Data of its border that it does not hold then count if they are resident in the
    level above: data that are not read any more, if they stay resident after the run; data not written yet, if they were
    resident before. Other data count as before the run; of the backward's own phantom, what stays resident after it.
    """

    def __init__(self, events: Events, layer: Layer) -> None:
        self.e, self.layer = events, layer
        self.cells = {cell.name: at for at, cell in enumerate(events.stage.cells) if cell.layer < 0}

    def add(self) -> None:
        graph = self.e.stage.graph
        forward, backward = graph.node(self.layer.forward), graph.node(self.layer.backward)
        around_forward = _Around(self.e, graph.node_index[forward.name])
        around_backward = _Around(self.e, graph.node_index[backward.name])
        for o, option in enumerate(self.layer.options):
            border = {*forward.reads, *forward.writes}
            for moment in option.forward_profile:
                self.moment(around_forward, o, moment, border, set(forward.writes))
            border = {*backward.reads, *backward.writes, *option.backward_reads}
            for moment in option.backward_profile:
                self.moment(around_backward, o, moment, border, set(backward.writes), self.layer.phantom)

    def moment(
        self, around: _Around, o: int, moment: Moment, border: set[str], written: set[str], phantom: str = ""
    ) -> None:
        e, slots = self.e, around.slots
        rows = e.b.rows(len(slots), budget=1) + np.arange(len(slots))
        e.b.entries(rows, e.slots.column[slots] + o, moment.live)
        within, absent = border - set(moment.absent), set(moment.absent) - written
        e.b.add_rhs(rows, -e.kept_bytes[slots])
        for name in within:
            cell = e.stage.cells[self.cells[name]] if name in self.cells else None
            if cell is not None and cell.keep:  # counted in `live`, hence not once more
                complete = e.slots.at[cell.writers[-1][0], cell.writers[-1][0]]
                e.b.add_rhs(rows[slots > complete], cell.size)
        later = [cell.name in absent or (cell.name, cell.option) == (phantom, o) for cell in around.cells]
        columns = np.where(np.array(later, np.bool_)[:, None], around.after, around.before)
        columns[[cell.name in within for cell in around.cells]] = -1
        flow, slot = np.nonzero(columns >= 0)
        e.b.flat_entries(rows[slot], columns[flow, slot], around.sizes[flow])


class _Around:
    """What may be resident around each run of a node.

    Attributes:
        slots: of the node. cells: those with a flow. sizes: of these [bytes].
        before, after: by cell and slot, the column of its gap before and after the run, -1: none.
    """

    def __init__(self, events: Events, node: int) -> None:
        self.slots = slots = events.slots.of(node)
        self.cells = [events.stage.cells[at] for at in events.flows]
        self.sizes = np.array([cell.size for cell in self.cells], np.int64)
        empty = np.empty((0, len(slots)), np.int64)
        self.before = np.stack([flow.before(slots) for flow in events.flows.values()]) if events.flows else empty
        self.after = np.stack([flow.after(slots) for flow in events.flows.values()]) if events.flows else empty
