"""Checkmate as published (Jain et al., 2020): one output per operator, checkpoints S, frees, and memory by recursion.

R[t, k]: operator k runs in stage t; S[t, k]: its output is a checkpoint at the begin of t; F[t, i, k]: output i is
freed after operator k in stage t (k reads it, or makes it); U[t, k]: bytes after k's run. With the row F <= R, which
the form released in CVXPY lacks (without it values are freed that are not resident). Departures, for the validator's
rules: workspaces are charged; kept data are constants; F is tied by both linearised rows of the paper's section 4.5.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from attrs import evolve, frozen

from remat.algorithms._core.clock import Clock
from remat.algorithms._core.problem import Problem
from remat.algorithms._core.solver import refuse_unless_flat
from remat.algorithms._core.transforms import Applied, Transform
from remat.algorithms._milp.linear import Builder, Ints
from remat.algorithms._staged.form_events import Form, Meaning
from remat.algorithms._staged.memory_items import Cell, StagedGraph
from remat.algorithms._staged.slots import Slots, slots_of
from remat.ir import Data, Graph, Layer, Schedule

Terms = list[tuple[int, int]]


def refuse_unless_checkmate(graph: Graph) -> str | None:
    """The refusal of the published form."""
    flat = refuse_unless_flat(graph)
    if flat is not None:
        return flat
    for cell in StagedGraph(graph).cells:
        if len(cell.writers) > 1:
            return f"{cell.name} has several contributions, which Checkmate cannot represent; use HIlp()"
    for node, writes in zip(graph.computes, graph.writes_by_node, strict=True):
        if sum(not graph.data[d].keep for d in writes) > 1:
            return f"{node.name} has several outputs; write OneOutputPerOp() >> ..."
    return None


def checkmate_form(stage: StagedGraph, slots: Slots | None = None) -> Form:
    """Build the formulation (see `refuse_unless_checkmate` for the graphs it can represent)."""
    slots = slots_of(stage, every=True) if slots is None else slots
    return _Checkmate(stage, slots).build()


class _Checkmate:
    def __init__(self, stage: StagedGraph, slots: Slots) -> None:
        self.stage, self.slots, self.b = stage, slots, Builder()
        self.n = len(stage.graph)
        self.cells = [cell for cell in stage.cells if not cell.keep]
        self.made_by: dict[int, Cell] = {cell.writers[0][0]: cell for cell in self.cells}
        self.index = {cell.writers[0][0]: at for at, cell in enumerate(stage.cells) if not cell.keep}
        self.columns: dict[Meaning, int] = {}  # see `Form`; stages in place of slots

    def build(self) -> Form:
        kept_bytes = np.zeros(len(self.slots), np.int64)
        for stage, node in zip(self.slots.stage.tolist(), self.slots.node.tolist(), strict=True):
            column = self.b.new(1, cost=self.stage.graph.computes[node].option.time, integral=True)
            if stage == node:
                self.b.row([(column, 1)], 1, equal=True)
        for cell in self.stage.cells:
            if cell.keep:
                first = int(self.slots.at[cell.writers[0][0], cell.writers[0][0]])
                kept_bytes[first + 1 :] += cell.size
        saved = self._checkpoints()
        freed = self._frees(saved)
        rows = self.b.rows(len(self.slots), budget=1) + np.arange(len(self.slots))
        self.b.add_rhs(rows, -kept_bytes)
        for t in range(self.n):
            self._stage(t, saved, freed, rows)
        return Form(stage=self.stage, slots=self.slots, linear=self.b.build(), memory=rows, columns=self.columns)

    def _r(self, t: int, k: int, value: int = 1) -> Terms:
        slot = self.slots.at[t, k] if t < self.n else -1
        return [] if slot < 0 else [(int(self.slots.column[slot]), value)]

    def _checkpoints(self) -> dict[tuple[int, int], int]:
        saved = {(t, k): self.b.new(1, integral=True) for k in self.made_by for t in range(k + 1, self.n)}
        self.columns.update((("saved", self.index[k], t), column) for (t, k), column in saved.items())
        for (t, k), column in saved.items():
            back = [(saved[t - 1, k], -1)] if (t - 1, k) in saved else []
            self.b.row([(column, 1), *self._r(t - 1, k, -1), *back])
        for k, cell in self.made_by.items():
            for reader, _ in cell.readers:
                for t in range(reader, self.n):
                    if self._r(t, reader):
                        supply = [(saved[t, k], -1)] if (t, k) in saved else []
                        self.b.row([*self._r(t, reader), *self._r(t, k, -1), *supply])
        return saved

    def _frees(self, saved: dict[tuple[int, int], int]) -> dict[tuple[int, int], list[tuple[int, int]]]:
        """For each (stage, node): what may be freed after it, as (column, bytes)."""
        freed: dict[tuple[int, int], list[tuple[int, int]]] = {}
        for k, cell in self.made_by.items():
            related = [k, *(reader for reader, _ in cell.readers)]
            for t in range(k, self.n):
                users = [node for node in related if node <= t and self._r(t, node)]
                stays = [(saved[t + 1, k], 1)] if (t + 1, k) in saved else []
                for place, node in enumerate(users):
                    later = [term for other in users[place + 1 :] for term in self._r(t, other)]
                    column = self._freed(self._r(t, node), [*later, *stays])
                    self.columns["deleted", self.index[k], t, node] = column
                    freed.setdefault((t, node), []).append((column, cell.size))
        return freed

    def _freed(self, run: Terms, rest: Terms) -> int:
        """The column that is 1 exactly where the run is made and none of the `rest` is: nothing uses the datum after it."""
        column, count = self.b.new(1, integral=True), 1 + len(rest)
        self.b.row([(column, 1), *((c, -v) for c, v in run)])
        self.b.row([*run, (column, -1), *((c, -v) for c, v in rest)])
        self.b.row([(column, count), *((c, -v) for c, v in run), *rest], count - 1)
        return column

    def _stage(
        self, t: int, saved: dict[tuple[int, int], int], freed: dict[tuple[int, int], list[tuple[int, int]]], rows: Ints
    ) -> None:
        """Memory rows of stage t: checkpoints, what ran so far, less what was freed."""
        live: Terms = [(saved[t, k], cell.size) for k, cell in self.made_by.items() if (t, k) in saved]
        for node in range(t + 1):
            slot = int(self.slots.at[t, node])
            if slot < 0:
                continue
            terms = [*live, *self._r(t, node, self.stage.charge[node][0])]
            self.b.entries(int(rows[slot]), [c for c, _ in terms], [v for _, v in terms])
            if node in self.made_by:
                live += self._r(t, node, self.made_by[node].size)
            live += [(column, -size) for column, size in freed.get((t, node), [])]


@frozen
class OneOutputPerOp(Transform):
    """Checkmate's view: what an operator makes is one value. Droppable outputs of a node are merged, kept ones stay apart.

    Merging forbids to drop one output and keep another, so the transformed problem is harder: a plan of it lifts to
    one with a peak no larger, a bound of it proves nothing. Data with several contributions stay as they are.
    Schedules lift by their runs, so copies are none of them: a link is left out.
    """

    carries_starts: ClassVar[bool] = True

    def apply(self, problem: Problem, *, clock: Clock | None = None, seed: int = 0) -> Applied:
        """The graph of merged outputs; schedules lift by their runs."""
        graph = problem.graph
        into, data = _merged(graph)
        computes = tuple(
            evolve(
                node,
                reads=tuple(dict.fromkeys(into.get(name, name) for name in node.reads)),
                writes=tuple(dict.fromkeys(into.get(name, name) for name in node.writes)),
            )
            for node in graph.computes
        )
        layers = tuple(_layer(layer, into) for layer in graph.layers)
        merged = Graph(name=graph.name, computes=computes, data=data, layers=layers)
        return Applied(
            problem=evolve(problem, graph=merged, link=None),
            lift=lambda schedule: Schedule.from_runs(graph, schedule.runs),
            carry=lambda schedule: Schedule.from_runs(merged, schedule.runs),
        )


def _merged(graph: Graph) -> tuple[dict[str, str], tuple[Data, ...]]:
    """For each merged datum the one that stands for it, and the data of the merged graph."""
    into: dict[str, str] = {}
    extra: dict[str, int] = {}
    for writes in graph.writes_by_node:
        loose = [graph.data[d] for d in writes if not graph.data[d].keep and len(graph.data[d].writers) == 1]
        for datum in loose[1:]:
            into[datum.name] = loose[0].name
            extra[loose[0].name] = extra.get(loose[0].name, 0) + datum.size
    data = (evolve(datum, size=datum.size + extra.get(datum.name, 0)) for datum in graph.data if datum.name not in into)
    return into, tuple(data)


def _layer(layer: Layer, into: dict[str, str]) -> Layer:
    options = tuple(
        evolve(option, backward_reads=tuple(dict.fromkeys(into.get(name, name) for name in option.backward_reads)))
        for option in layer.options
    )
    return evolve(layer, options=options)
