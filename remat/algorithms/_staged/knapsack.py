"""Bounds as solvers that plan nothing; each states the class of schedules that it bounds.

| solver | holds for | sees |
|---|---|---|
| `SavedSetKnapsack` | every schedule | the instant of the loss: what is saved, and what must run again because it is not |
| `TightenedKnapsack` | every schedule | that, and every backward node's working set with what is kept past it |
| `FullRelaxation` | staged schedules, first runs in the graph's order | the whole formulation, relaxed |

The knapsacks take layers, options and contributions; on flat graphs `SingleInstant` bounds single instants more sharply.
Relaxations are evaluated again from their duals in exact integers; bounds of MILPs are lowered by the tolerance.
"""

from __future__ import annotations

import math

import numpy as np
from attrs import field, frozen

from remat.algorithms._core.clock import Clock
from remat.algorithms._core.outcome import IMPOSSIBLE, ClassBound, Plan
from remat.algorithms._core.problem import Problem
from remat.algorithms._core.solver import Solver
from remat.algorithms._milp.answer import exact_bound, farkas
from remat.algorithms._milp.backend import Hints, Limits
from remat.algorithms._milp.backends import Highs
from remat.algorithms._milp.direct import solve_mixed, solve_relaxed
from remat.algorithms._milp.linear import Builder, Flags
from remat.algorithms._milp.milp_model import model_of
from remat.algorithms._staged.form_events import events_form
from remat.algorithms._staged.memory_items import Cell, StagedGraph
from remat.ir import Graph, Phase
from remat.ir.arguments import A_GRAPH
from remat.settings import takes, whole


@frozen(kw_only=True)
class SavedSetKnapsack(Solver):
    """Any schedule: a forward value that the backward reads is saved across the loss, or recomputed after it.

    Attributes:
        nodes: of branch and bound; 0: the relaxation alone.
    """

    nodes: int = field(default=200, validator=whole(0, "nodes"))

    def plan(self, problem: Problem, clock: Clock, seed: int) -> Plan:
        """The bound."""
        del seed
        return _bound(self, problem, clock, self.nodes, working_sets=False)


@frozen(kw_only=True)
class TightenedKnapsack(Solver):
    """Any schedule: the saved-set knapsack, and for each backward node the bytes kept past its first run.

    At the first run of backward node t everything t depends on has run. A value made before and read by something that depends
    on t is resident then, unless its writer runs again. All rows share the reruns, so the bound is at least the knapsack's.

    Attributes:
        nodes: of branch and bound; 0: the relaxation alone.
    """

    nodes: int = field(default=200, validator=whole(0, "nodes"))

    def plan(self, problem: Problem, clock: Clock, seed: int) -> Plan:
        """The bound."""
        del seed
        return _bound(self, problem, clock, self.nodes, working_sets=True)


def _bound(who: Solver, problem: Problem, clock: Clock, nodes: int, *, working_sets: bool) -> Plan:
    if getattr(problem, "link", None) is not None:
        return Plan(trail=(f"{who!r}: schedules with copies are not bounded",))
    knapsack = Knapsack(StagedGraph(problem.graph), problem.budget)
    if working_sets:
        knapsack.working_sets()
    if knapsack.impossible:
        return Plan(lower=IMPOSSIBLE, trail=(f"{who!r}: {knapsack.impossible}",))
    linear = knapsack.builder.build()
    answer = solve_relaxed(linear, clock=clock)
    if nodes and not answer.infeasible:
        mixed = solve_mixed(linear, nodes=nodes, clock=clock)
        if mixed.infeasible or mixed.bound > answer.bound:
            answer = mixed
    if answer.infeasible:
        return Plan(lower=IMPOSSIBLE, trail=(f"{who!r}: its formulation has no solution",))
    return Plan(lower=answer.bound, trail=(f"{who!r}: {answer.bound} ns",))


class Knapsack:
    """The formulation.

    Columns: `again[k][o]`, node k runs by option o once more (a forward node: after the loss); `early[k][o]`, a layer's
    forward does so before the loss; `first[k][o]`, a required node's first run; `saved[d]`, cell d is resident at the loss.
    """

    def __init__(self, stage: StagedGraph, budget: int) -> None:
        self.stage, self.budget = stage, budget
        self.graph: Graph = stage.graph
        self.builder = Builder()
        self.impossible = ""
        self.required = self.graph.required
        count = range(len(self.graph))
        self.again = [self._runs(i, self._may_rerun(i), integral=True) for i in count]
        self.early = [self._runs(i, len(self.graph.computes[i].options) > 1, integral=False) for i in count]
        self.first = [
            self._runs(i, i in self.required, integral=len(self.graph.computes[i].options) > 1) for i in count
        ]
        for columns in self.first:
            if columns:
                self.builder.row([(column, -1) for column in columns], -1)
        # cells of forward nodes that may be absent at the loss; -1: always resident, or never
        loss = stage.loss
        self.saved = [
            self.builder.new(1, integral=True) if cell.writers[-1][0] < loss and not cell.keep else -1
            for cell in stage.cells
        ]
        self._needs()
        self._loss()

    def _may_rerun(self, i: int) -> bool:
        node = self.graph.computes[i]
        return not node.run_once and node.phase is not Phase.LOSS

    def _runs(self, i: int, wanted: bool, *, integral: bool) -> list[int]:
        options = self.graph.computes[i].options
        return [self.builder.new(1, cost=option.time, integral=integral) for option in options] if wanted else []

    # -- rows ----------------------------------------------------------------------------------------------------------

    def _needs(self) -> None:
        """What a run after the loss reads is saved, or recomputed after the loss."""
        for at, cell in enumerate(self.stage.cells):
            if self.saved[at] < 0:
                continue
            for reader, options in cell.readers:
                runs = [self.again[reader][o] for o in options] if self.again[reader] else []
                if reader > self.stage.loss and self.first[reader]:
                    runs += [self.first[reader][o] for o in options]
                for run in runs:
                    self._supply(at, cell, run)
        self._phantoms()

    def _supply(self, at: int, cell: Cell, run: int) -> None:
        for writer, options in cell.writers:
            makes = [(self.again[writer][o], -1) for o in options] if self.again[writer] else []
            self.builder.row([(run, 1), (self.saved[at], -1), *makes], 0)

    def _phantoms(self) -> None:
        """A saved phantom was left by a run of its option; a layer saves one."""
        by_layer: dict[int, list[int]] = {}
        for at, cell in enumerate(self.stage.cells):
            if cell.layer >= 0:
                writer, (option,) = cell.writers[0]
                makers = [(runs[option], -1) for runs in (self.first[writer], self.early[writer]) if runs]
                self.builder.row([(self.saved[at], 1), *makers], 0)
                by_layer.setdefault(cell.layer, []).append(self.saved[at])
        for columns in by_layer.values():
            self.builder.row([(column, 1) for column in columns], 1)

    def _loss(self) -> None:
        loss = self.stage.loss
        reads = set(self.stage.by_node[loss][1])
        room = self.budget - min(self.stage.charge[loss])
        terms = []
        for at, cell in enumerate(self.stage.cells):
            if self.saved[at] < 0:
                room -= cell.size if cell.keep and cell.writers[-1][0] < loss else 0
            elif at in reads:
                self.builder.row([(self.saved[at], -1)], -1)
                room -= cell.size
            else:
                terms.append((self.saved[at], cell.size))
        self._room(terms, room, loss)

    def _room(self, terms: list[tuple[int, int]], room: int, node: int) -> None:
        if room < 0 and all(value >= 0 for _, value in terms):
            name = self.graph.computes[node].name
            self.impossible = f"at {name} alone {-room} B more than the budget are resident"
        elif terms:
            self.builder.row(terms, room)

    def working_sets(self) -> None:
        """One row per backward node that every schedule runs: its working set, and what is kept past its first run."""
        before = ancestors(self.stage)
        for t in range(self.stage.loss + 1, len(self.graph)):
            if t in self.required:
                self.working_set(t, before)

    def working_set(self, t: int, before: Flags) -> None:
        """The row of one backward node; `before`: who has run when another first runs, see `ancestors`."""
        loss = self.stage.loss
        room, terms = self.budget - min(self.stage.charge[t]), []
        done = [cell for cell in self.stage.cells if all(w <= loss or before[t, w] for w, _ in cell.writers)]
        for cell in done:
            if cell.keep or _always_read(self.stage, t, cell):
                room -= cell.size
            elif len(cell.writers) == 1 and cell.layer < 0 and self._read_past(t, cell, before):
                # resident, unless its writer runs again: size * (1 - again)
                room -= cell.size
                terms += [(column, -cell.size) for column in self.again[cell.writers[0][0]]]
        self._room(terms, room, t)

    def _read_past(self, t: int, cell: Cell, before: Flags) -> bool:
        """Whether a required node that depends on t reads the cell under every option."""
        return any(
            before[reader, t] and reader in self.required and len(options) == len(self.graph.computes[reader].options)
            for reader, options in cell.readers
        )


def ancestors(stage: StagedGraph) -> Flags:
    """before[t, v]: v has run when t first runs, whatever the order: t depends on it, by data or by the order of a sum."""
    n = len(stage.graph)
    before = np.zeros((n, n), np.bool_)
    for t in range(n):
        written, read = ([stage.cells[at] for at in cells] for cells in stage.by_node[t])
        sources = {writer for cell in read if _always_read(stage, t, cell) for writer, _ in cell.writers}
        sources |= {writer for cell in written for writer, _ in cell.writers if writer < t}
        for v in sources:
            before[t] |= before[v]
            before[t, v] = True
    return before


def _always_read(stage: StagedGraph, t: int, cell: Cell) -> bool:
    """Whether a node reads a cell under every one of its options."""
    count = len(stage.graph.computes[t].options)
    return any(reader == t and len(options) == count for reader, options in cell.readers)


# -- the full relaxation -----------------------------------------------------------------------------------------------


@frozen(kw_only=True)
class FullRelaxation(Solver):
    """Staged schedules: the linear relaxation of the production form, evaluated exactly. A bound of its class, not of all.

    Attributes:
        entries: refuse formulations of more matrix entries than this.
    """

    entries: int = field(default=5_000_000, validator=whole(1, "entries"))

    @takes(graph=A_GRAPH)
    def refuses(self, graph: Graph) -> str | None:
        """Refuses formulations that would not fit in memory."""
        size = len(graph) * len(graph) * len(graph.data) / 4
        if size <= self.entries:
            return None
        return f"a formulation of about {size:.0e} entries; bound single instants instead (TightenedKnapsack, SingleInstant)"

    def plan(self, problem: Problem, clock: Clock, seed: int) -> Plan:
        """The bound of the class."""
        del seed
        if getattr(problem, "link", None) is not None:
            return Plan(trail=(f"{self!r}: schedules with copies are not bounded",))
        linear = events_form(StagedGraph(problem.graph)).linear
        model = model_of(linear, relaxed=True)
        model.set(problem.budget)
        limits = Limits(seconds=clock.remaining)
        assumes = "staged schedules, first runs in the graph's order"
        answer = Highs().solve(model, limits)
        if answer.infeasible:
            again = Highs().solve(model, limits, Hints(second=True))
            if again.infeasible and farkas(linear, again.duals, problem.budget):
                return Plan(
                    class_bounds=(ClassBound(value=math.inf, assumes=assumes),), trail=(f"{self!r}: no solution",)
                )
            return Plan(trail=(f"{self!r}: infeasible, without a proof",))
        if answer.duals is None:
            return Plan(trail=(f"{self!r}: stopped ({answer.note})",))
        bound = max(
            0, exact_bound(linear, answer.duals, problem.budget)
        )  # rounded multipliers may prove less than nothing
        return Plan(class_bounds=(ClassBound(value=bound, assumes=assumes),), trail=(f"{self!r}: {bound} ns",))
