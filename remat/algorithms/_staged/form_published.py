"""The staged formulations as published: rk-Checkmate (Rockmate, App. B) and H-ILP (HiRemate, App. B), all variables binary.

R[t, k, o]: node k runs by option o in stage t. P[t, d]: cell d is resident before stage t. S[t, k, d]: it holds the
contribution of k then. C[t, k, d], D[t, k, d]: it is created, deleted at that run. Where this form departs from the
papers, it follows the rules of the validator:

* S-MEM: a run charges all its outputs, also those already resident (the papers charge a created value alone).
* Phantoms of single options are cells like data: they may be dropped, and a layer may run without saving. H-ILP ties a phantom
  to its backward (its equations 7 to 9): `tied`.
* S-KEEP: kept data are constants from their completion on (the papers ask for them after the last stage only).
* S-ONCE: contributions come in order, once per residency; one after the first creates nothing.
* `tight` adds a reader's half of the rule "alive if computed and not deleted". Integral points are the same with and
  without; with it the relaxation has the value of the production form.
"""

from __future__ import annotations

import numpy as np

from remat.algorithms._milp.linear import Builder, Ints
from remat.algorithms._staged.form_events import Form, Meaning
from remat.algorithms._staged.memory_items import Cell, StagedGraph, Use
from remat.algorithms._staged.slots import Slots, slots_of
from remat.ir import Layer

Terms = list[tuple[int, int]]
"""A linear expression: (column, coefficient)."""


def published_form(
    stage: StagedGraph, slots: Slots | None = None, *, tight: bool = True, tied: bool = False, save: bool = False
) -> Form:
    """Build the formulation over the whole triangle of slots (or the given ones). See the module for `tight` and `tied`."""
    slots = slots_of(stage, every=True) if slots is None else slots
    return _Published(stage, slots, tight, tied).build(save)


def times(value: int, terms: Terms) -> Terms:
    """A multiple of an expression."""
    return [(column, value * coefficient) for column, coefficient in terms]


class _Published:
    def __init__(self, stage: StagedGraph, slots: Slots, tight: bool, tied: bool) -> None:
        self.stage, self.slots, self.tight, self.tied = stage, slots, tight, tied
        self.b = Builder()
        self.n = len(stage.graph)
        self.changes: list[list[tuple[int, Terms]]] = [
            [] for _ in range(self.n)
        ]  # of each stage: (node, bytes after it)
        self.before: list[Terms] = [[] for _ in range(self.n)]  # bytes before each stage
        self.kept_bytes = np.zeros(len(slots), np.int64)
        self.saved: Terms = []
        self.columns: dict[Meaning, int] = {}  # see `Form`; stages in place of slots
        self.alive: dict[
            tuple[int, int], list[tuple[int, Terms]]
        ] = {}  # (layer, stage): (option, alive after the forward)

    def build(self, save: bool) -> Form:
        for stage, node in zip(self.slots.stage.tolist(), self.slots.node.tolist(), strict=True):
            self._new_slot(node, required=stage == node)
        for at, cell in enumerate(self.stage.cells):
            if cell.keep and len(cell.writers) == 1:
                first = self.slots.at[cell.writers[0][0], cell.writers[0][0]]
                self.kept_bytes[first + 1 :] += cell.size
            elif not (self.tied and cell.layer >= 0):
                _OneCell(self, at, cell).add()
        for at, layer in enumerate(self.stage.graph.layers):
            if self.tied:
                self._tied(layer)
            elif len(layer.options) > 1:
                self._one_phantom(at, layer)
        memory = self._memory()
        if save:
            row = self.b.rows(1, save=1)
            for column, value in self.saved:
                self.b.entries(row, column, value)
        return Form(stage=self.stage, slots=self.slots, linear=self.b.build(), memory=memory, columns=self.columns)

    def _new_slot(self, node: int, *, required: bool) -> None:
        """The columns of a run of a node: one per option, of which at most one, or exactly one, is chosen."""
        options = self.stage.graph.computes[node].options
        first = self.b.columns
        for option in options:
            self.b.new(1, cost=option.time, integral=True)
        self.b.row(((first + o, 1) for o in range(len(options))), 1, equal=required)

    def run(self, stage: int, use: Use, value: int = 1) -> Terms:
        """CR of a node and some of its options in a stage, times `value`; empty where it has no slot."""
        slot = self.slots.at[stage, use[0]]
        return [] if slot < 0 else [(int(self.slots.column[slot]) + o, value) for o in use[1]]

    def binary(self, *meaning: str | int) -> int:
        column = self.b.new(1, integral=True)
        if meaning:
            self.columns[meaning] = column
        return column

    def _one_phantom(self, at: int, layer: Layer) -> None:
        """One option's phantom at a time: a run by another option replaces it."""
        node = self.stage.graph.node_index[layer.forward]
        for t in range(node, self.n):
            alive = self.alive.get((at, t), [])
            self.b.row([term for _, terms in alive for term in terms], 1)
            for option, terms in alive:
                others = tuple(o for o in range(len(layer.options)) if o != option)
                self.b.row([*terms, *self.run(t, (node, others))], 1)

    def _tied(self, layer: Layer) -> None:
        """Equations 6 to 9 of H-ILP: a phantom lives from its forward to its backward."""
        graph = self.stage.graph
        forward, backward = graph.node_index[layer.forward], graph.node_index[layer.backward]
        count = len(layer.options)
        saved = {t: [self.binary() for _ in range(count)] for t in range(forward + 1, self.n)}
        for t in range(forward, self.n):
            before, after = saved.get(t), saved.get(t + 1)
            if before is not None:
                self.b.row([(column, 1) for column in before], 1)
            for o, option in enumerate(layer.options):
                resident = [] if before is None else [(before[o], 1)]
                following = [] if after is None else [(after[o], 1)]
                phantom = [*resident, *self.run(t, (forward, (o,)))]
                read = self.run(t, (backward, (o,)))
                if resident:  # a run by another option would replace it
                    others = tuple(other for other in range(count) if other != o)
                    self.b.row([*resident, *self.run(t, (forward, others))], 1)
                self.b.row([*read, *times(-1, phantom)])
                if following:
                    self.b.row([*following, *times(-1, phantom)])
                    self.b.row([*times(-1, following), *phantom, *times(-1, read)])
                self.before[t] += times(option.phantom, resident)
                self.changes[t].append((forward, times(option.phantom, self.run(t, (forward, (o,))))))
                self.changes[t].append((backward, times(-option.phantom, [*phantom, *times(-1, following)])))

    def _memory(self) -> Ints:
        rows = self.b.rows(len(self.slots), budget=1) + np.arange(len(self.slots))
        self.b.add_rhs(rows, -self.kept_bytes)
        for t in range(self.n):
            changes = sorted(self.changes[t], key=lambda change: change[0])
            terms, place = list(self.before[t]), 0
            for node in range(t + 1):
                slot = int(self.slots.at[t, node])
                while place < len(changes) and changes[place][0] < node:
                    terms += changes[place][1]
                    place += 1
                if slot < 0:
                    continue
                if terms:
                    self.b.entries(int(rows[slot]), [c for c, _ in terms], [v for _, v in terms])
                for o, charge in enumerate(self.stage.charge[node]):
                    self.b.entries(int(rows[slot]), int(self.slots.column[slot]) + o, charge)
        return rows


class _OneCell:
    """P, S, C and D of one cell and their rows."""

    def __init__(self, form: _Published, at: int, cell: Cell) -> None:
        self.form, self.at, self.cell = form, at, cell
        self.several = len(cell.writers) > 1
        self.first, self.last = cell.writers[0][0], cell.writers[-1][0]
        end = self.last if cell.keep else form.n - 1  # a kept sum is a constant once complete
        self.stages = range(self.first, end + 1)
        self.resident = {t: form.binary("saved", at, t) for t in self.stages if t > self.first}
        self.done = [
            {t: form.binary("holds", at, j, t) for t in self.stages if t > node}
            for j, (node, _) in enumerate(cell.writers)
        ]

    def add(self) -> None:
        form, cell = self.form, self.cell
        if cell.keep:
            form.kept_bytes[form.slots.at[self.last, self.last] + 1 :] += cell.size
        for t in self.stages:
            if t in self.resident:
                form.before[t].append((self.resident[t], cell.size))
            self._contributions(t)
            self._readers(t)
            self._alive(t)

    def _p(self, t: int, value: int = 1) -> Terms:
        return [(self.resident[t], value)] if t in self.resident else []

    def _s(self, j: int, t: int, value: int = 1) -> Terms:
        return [(self.done[j][t], value)] if t in self.done[j] else []

    def _contributions(self, t: int) -> None:
        b, cell = self.form.b, self.cell
        for j, writer in enumerate(cell.writers):
            run = self.form.run(t, writer)
            if t in self.done[j]:
                b.row([*self._s(j, t), *self._p(t, -1)])
            if t + 1 in self.done[j]:
                b.row([*self._s(j, t + 1), *self._s(j, t, -1), *times(-1, run)])
            if not self.several:
                continue
            if t + 1 in self.done[j]:  # it stays while the datum stays
                b.row([*self._s(j, t), *run, *self._p(t + 1), *self._s(j, t + 1, -1)], 1)
            if j == 0:
                b.row([*self._p(t), *run], 1)
            else:
                b.row([*run, *times(-1, self.form.run(t, cell.writers[j - 1])), *self._s(j - 1, t, -1)])
                b.row([*self._s(j, t), *run], 1)

    def _readers(self, t: int) -> None:
        for reader in self.cell.readers:
            run = self.form.run(t, reader)
            if run:
                for j, writer in enumerate(self.cell.writers):
                    self.form.b.row([*run, *times(-1, self.form.run(t, writer)), *self._s(j, t, -1)])

    def _alive(self, t: int) -> None:
        """Creation, deletion, and what is alive after each run of stage t."""
        form, cell, b = self.form, self.cell, self.form.b
        related = sorted([(use, True) for use in cell.writers] + [(use, False) for use in cell.readers])
        alive = self._p(t)
        uses = [(use, writes) for use, writes in related if use[0] <= t]
        complete = cell.keep and t == self.last
        for place, (use, writes) in enumerate(uses):
            run = form.run(t, use)
            before = list(alive)
            # a later contribution reads the sum so far
            users = [later_use for later_use, _ in uses[place + 1 :]]
            later = [term for later_use in users for term in form.run(t, later_use)]
            count = 2 + len(users)
            if complete and use[0] == self.last:
                b.row([*run, *times(-1, before)])  # the last contribution; from here on a constant
                # the slot's charge and the constant take over: what was counted until here ends here
                form.changes[t].append((use[0], times(-cell.size, before)))
                return
            delete = self._after_use(t, use[0], writes, run, alive)
            stays = self._p(t + 1)
            b.row([*run, (delete, -1), *times(-1, stays), *times(-1, later)])
            b.row([(delete, count), *times(-1, run), *stays, *later], count - 1)
            if cell.layer >= 0 and writes:
                form.alive.setdefault((cell.layer, t), []).append((cell.option, list(alive)))
        if t + 1 in self.resident:
            b.row([*self._p(t + 1), *times(-1, alive)], equal=True)
        if t == form.stage.loss and not cell.boundary:
            form.saved += times(cell.size, alive)

    def _after_use(self, t: int, node: int, writes: bool, run: Terms, alive: Terms) -> int:
        """What is alive after a use in stage t, added to `alive`: what the first writer creates, less what is deleted.

        Returns the column of the deletion.
        """
        form, b, before, first = self.form, self.form.b, list(alive), writes and node == self.first
        if first:
            create = form.binary("created", self.at, t)
            b.row([(create, 1), *times(-1, run)])
            alive.append((create, 1))
            form.changes[t].append((node, [(create, self.cell.size)]))
        delete = form.binary("deleted", self.at, t, node)
        alive.append((delete, -1))
        form.changes[t].append((node, [(delete, -self.cell.size)]))
        b.row(alive, 1)
        b.row(times(-1, alive))
        if first:
            b.row([*run, (delete, -1), *times(-1, alive)])
        elif writes or form.tight:
            b.row([*run, *times(-1, before)])
        return delete
