"""The formulations of this library's bounds, each with the point of a schedule: tests of `check_bound`, and examples for authors.

| relaxation | bounds | formulation |
|---|---|---|
| `ResidentTogether` | all schedules | the floor |
| `AtInstant` | all schedules | one instant (`_bounds/instants.py`) |
| `AtInstant(fixed=True)` | captured order | the same, with the nodes that have run fixed |
| `AtInstants` | all schedules | several instants in an order (`_bounds/ordered_instants.py`), also with `coarse` rows |
| `InStages` | captured order | several instants (`_bounds/fixed_order.py`), also with `coarse` rows |
| `AtLoss` | all schedules | the knapsacks (`_staged/knapsack.py`) |
| `Staged` | staged schedules | runs and residencies (`_staged/form_events.py`), or a form of the papers |
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from fractions import Fraction
from functools import lru_cache
from random import Random
from typing import Any, Literal, cast

from attrs import frozen

from remat.algorithms._arrays.graph_arrays import flatten
from remat.algorithms._bounds.fixed_order import Stages, spans_of, staged_formulation
from remat.algorithms._bounds.floor import floor_of, node_floor
from remat.algorithms._bounds.instants import Dependencies, Instant, instant_formulation
from remat.algorithms._bounds.ordered_instants import Chained, ordered_formulation
from remat.algorithms._milp.linear import Builder
from remat.algorithms._search.precedence import Precedence
from remat.algorithms._staged.form_checkmate import checkmate_form, refuse_unless_checkmate
from remat.algorithms._staged.form_events import Form, events_form
from remat.algorithms._staged.form_published import published_form
from remat.algorithms._staged.knapsack import Knapsack, ancestors
from remat.algorithms._staged.memory_items import Cell, StagedGraph
from remat.ir import Graph, Schedule
from remat.testing.random_schedules import Among
from remat.testing.relaxation import Formulation, Relaxation
from remat.testing.trace import Trace
from remat.units import Bytes

_ORDERS = 50
"""Largest number of orders of a few instants that are listed."""

_flat = lru_cache(maxsize=8)(flatten)


def _flat_only(graph: Graph) -> str | None:
    return None if graph.flat else "the graph has layers or options"


def _needed(trace: Trace, node: str) -> Bytes:
    """Bytes charged to a node's first run, without data that schedules need not make, which flat formulations leave out."""
    graph, step = trace.graph, trace.first[node]
    required = {graph.computes[i].name for i in graph.required}
    extra = (name for name in trace.before[step] if not required.issuperset(graph.datum(name).writers[:1]))
    return trace.charged(step) - sum(graph.datum(name).size for name in extra)


def _instants(graph: Graph) -> list[str]:
    """The nodes that every schedule runs: the forward, the loss, and of the backward what leads to kept data."""
    return [graph.computes[i].name for i in sorted(graph.required)]


class _FlatBound(Relaxation):
    """A bound for flat graphs, from their arrays."""

    __slots__ = ()

    def refuses(self, graph: Graph) -> str | None:
        """Refuses layers and options."""
        return _flat_only(graph)


@frozen
class ResidentTogether(Relaxation):
    """The floor: no schedule's peak is below it. One row without columns."""

    def formulation(self, graph: Graph, place: Hashable, budget: Bytes) -> Formulation:
        """0 <= budget - floor; for graphs with layers, the floor of single nodes."""
        del place
        floor = max(node_floor(graph), floor_of(_flat(graph))[0] if graph.flat else 0)
        builder = Builder()
        builder.row([], budget - floor)
        return Formulation(linear=builder.build(), base=_base(graph))

    def point(self, formulation: Formulation, trace: Trace, place: Hashable) -> Sequence[int]:
        """There are no columns."""
        del formulation, trace, place
        return ()


def _base(graph: Graph) -> int:
    """The least time of the required nodes [ns]."""
    return sum(min(option.time for option in graph.computes[i].options) for i in graph.required)


@frozen
class AtInstant(_FlatBound):
    """One instant: the first run of a node that every schedule runs.

    Attributes:
        fixed: whether the nodes that have run are those of the captured order.
    """

    fixed: bool = False

    @property
    def among(self) -> Among:  # type: ignore[override]
        """All schedules, or those in the captured order."""
        return "captured" if self.fixed else "all"

    def places(self, trace: Trace, random: Random) -> Iterable[Hashable]:
        """Every instant."""
        del random
        return _instants(trace.graph)

    def needs(self, trace: Trace, place: Hashable) -> Bytes:
        """Bytes charged at the instant."""
        return _needed(trace, str(place))

    def formulation(self, graph: Graph, place: Hashable, budget: Bytes) -> Formulation:
        """Of the instant."""
        flat = _flat(graph)
        instant = instant_formulation(flat, Dependencies(flat), graph.node_index[str(place)], budget, self.fixed)
        return Formulation(
            linear=instant.linear, base=int(flat.time.sum()), impossible=instant.impossible, meaning=instant
        )

    def point(self, formulation: Formulation, trace: Trace, place: Hashable) -> Sequence[int | Fraction]:
        """s: resident; z: has run; y: has run and runs again."""
        instant: Instant = formulation.meaning
        graph, step = trace.graph, trace.first[str(place)]
        x: list[int | Fraction] = [0] * len(formulation.linear.cost)
        for datum, column in zip(graph.data, instant.resident.tolist(), strict=True):
            if column >= 0:
                x[column] = datum.name in trace.before[step]
        for node, again, ran in zip(graph.computes, instant.again.tolist(), instant.ran.tolist(), strict=True):
            before = trace.ran_before(node.name, step)
            if ran >= 0:
                x[ran] = before
            if again >= 0:
                x[again] = before and trace.runs_within(node.name, step)
        return x


@frozen
class _Instants(_FlatBound):
    """Several instants.

    Attributes:
        most: largest number of instants.
    """

    most: int = 4

    def ordered(self, trace: Trace) -> Sequence[str]:
        """The instants, in the order in which a set of them stands."""
        return _instants(trace.graph)

    def places(self, trace: Trace, random: Random) -> Iterable[Hashable]:
        """A few sets of instants, each in its order."""
        instants = self.ordered(trace)
        for _ in range(3):
            chosen = set(random.sample(instants, min(len(instants), random.randint(1, self.most))))
            yield tuple(name for name in instants if name in chosen)

    def needs(self, trace: Trace, place: Hashable) -> Bytes:
        """The most that one of the instants is charged."""
        return max(_needed(trace, name) for name in cast("tuple[str, ...]", place))


@frozen
class AtInstants(_Instants):
    """Several instants in the order of their first runs; impossible where that order is not among those listed.

    Attributes:
        coarse: whether stages taken together have rows of their own.
    """

    coarse: bool = False

    def ordered(self, trace: Trace) -> Sequence[str]:
        """In the schedule's order."""
        return sorted(_instants(trace.graph), key=trace.first.__getitem__)

    def formulation(self, graph: Graph, place: Hashable, budget: Bytes) -> Formulation:
        """The formulation of these instants in this order."""
        flat = _flat(graph)
        order = tuple(graph.node_index[name] for name in cast("tuple[str, ...]", place))
        coarse = spans_of(len(order), 2) if self.coarse else None
        chained = ordered_formulation(flat, Dependencies(flat), order, budget, coarse=coarse)
        listed = Precedence(flat).orders(frozenset(order), _ORDERS)
        return Formulation(
            linear=chained.linear,
            base=int(flat.time.sum()),
            impossible=chained.impossible or (listed is not None and order not in listed),
            meaning=chained,
        )

    def point(self, formulation: Formulation, trace: Trace, place: Hashable) -> Sequence[int]:
        """Per instant s and z; per stage, and for stages taken together, y: the node had run before, and runs there."""
        chained: Chained = formulation.meaning
        steps = [trace.first[name] for name in cast("tuple[str, ...]", place)]
        x = [0] * len(formulation.linear.cost)
        for k, start in enumerate(steps):
            for d, datum in enumerate(trace.graph.data):
                if chained.resident[k, d] >= 0:
                    x[chained.resident[k, d]] = datum.name in trace.before[start]
            for v, node in enumerate(trace.graph.computes):
                if chained.ran[k, v] >= 0:
                    x[chained.ran[k, v]] = trace.ran_before(node.name, start)
        for (begin, end), again in chained.spans.items():
            start, until = steps[begin], [*steps, None][end]
            for column, node in zip(again.tolist(), trace.graph.computes, strict=True):
                if column >= 0:
                    x[column] = trace.ran_before(node.name, start) and trace.runs_within(node.name, start, until)
        return x


@frozen
class InStages(_Instants):
    """Several instants of the captured order.

    Attributes:
        coarse: whether stages taken together have rows of their own.
    """

    among = "captured"
    coarse: bool = False

    def formulation(self, graph: Graph, place: Hashable, budget: Bytes) -> Formulation:
        """The formulation of these instants."""
        flat = _flat(graph)
        at = tuple(graph.node_index[name] for name in cast("tuple[str, ...]", place))
        stages = staged_formulation(flat, at, budget, coarse=self.coarse)
        return Formulation(
            linear=stages.linear, base=int(flat.time.sum()), impossible=stages.impossible, meaning=stages
        )

    def point(self, formulation: Formulation, trace: Trace, place: Hashable) -> Sequence[int]:
        """Per instant s; per stage, and for stages taken together, y."""
        stages: Stages = formulation.meaning
        steps = [trace.first[name] for name in cast("tuple[str, ...]", place)]
        x = [0] * len(formulation.linear.cost)
        for start, resident in zip(steps, stages.resident.tolist(), strict=True):
            for column, datum in zip(resident, trace.graph.data, strict=True):
                if column >= 0:
                    x[column] = datum.name in trace.before[start]
        for (begin, end), again in stages.spans.items():
            for column, node in zip(again.tolist(), trace.graph.computes, strict=True):
                if column >= 0:
                    x[column] = trace.runs_within(node.name, steps[begin], [*steps, None][end])
        return x


@frozen
class AtLoss(Relaxation):
    """The knapsacks: data saved at the loss.

    Attributes:
        working_sets: also data kept past the first run of each backward node.
    """

    working_sets: bool = False

    def places(self, trace: Trace, random: Random) -> Iterable[Hashable]:
        """The loss, or each working set together with it: in one formulation with all, most rows would be slack."""
        del random
        graph = trace.graph
        return _instants(graph)[graph.loss :] if self.working_sets else [graph.computes[graph.loss].name]

    def needs(self, trace: Trace, place: Hashable) -> Bytes:
        """Bytes charged at the loss, or at the node if that is more."""
        loss = trace.graph.computes[trace.graph.loss].name
        return max(trace.charged(trace.first[name]) for name in (loss, str(place)))

    def formulation(self, graph: Graph, place: Hashable, budget: Bytes) -> Formulation:
        """The formulation; the first runs' times are costs of columns."""
        stage, t = StagedGraph(graph), graph.node_index[str(place)]
        knapsack = Knapsack(stage, budget)
        if t != graph.loss:
            knapsack.working_set(t, ancestors(stage))
        return Formulation(linear=knapsack.builder.build(), impossible=bool(knapsack.impossible), meaning=knapsack)

    def point(self, formulation: Formulation, trace: Trace, place: Hashable) -> Sequence[int]:
        """By option: the first run, reruns before and after the loss; saved: resident at the loss."""
        knapsack: Knapsack = formulation.meaning
        graph, loss = trace.graph, trace.first[trace.graph.computes[trace.graph.loss].name]
        x = [0] * len(formulation.linear.cost)
        for v, node in enumerate(graph.computes):
            for at in trace.runs.get(node.name, ()):
                first = at == trace.first[node.name]
                early = at < loss
                columns = knapsack.first[v] if first else knapsack.early[v] if early else knapsack.again[v]
                if columns:
                    x[columns[trace.option(at)]] = 1
        for cell, column in zip(knapsack.stage.cells, knapsack.saved, strict=True):
            if column >= 0:
                x[column] = _has(trace.before[loss], cell.name, cell.option)
        return x


def _has(resident: dict[str, int], name: str, option: int) -> bool:
    """Whether a datum is resident, or a phantom of an option (-1: a datum)."""
    return name in resident and option in (-1, resident[name])


@frozen
class Staged(Relaxation):
    """A formulation of staged schedules.

    Attributes:
        form: which formulation; `cuts`: the production form with the rows that strengthen its relaxation.
    """

    among = "staged"
    form: Literal["events", "cuts", "published", "tight", "checkmate"] = "events"

    def refuses(self, graph: Graph) -> str | None:
        """Refuses graphs that the form of Checkmate cannot represent."""
        return refuse_unless_checkmate(graph) if self.form == "checkmate" else None

    def formulation(self, graph: Graph, place: Hashable, budget: Bytes) -> Formulation:
        """Over all slots where a rerun can matter."""
        del place, budget
        stage = StagedGraph(graph)
        if self.form == "checkmate":
            form = checkmate_form(stage)
        elif self.form in ("published", "tight"):
            form = published_form(stage, tight=self.form == "tight")
        else:
            form = events_form(stage, cuts=self.form == "cuts")
        return Formulation(linear=form.linear, meaning=form)

    def point(self, formulation: Formulation, trace: Trace, place: Hashable) -> Sequence[int]:
        """The runs by slot, and the values that follow from them; a rerun that cannot matter is left out."""
        del place
        form: Form = formulation.meaning
        return Slotted(form, trace).point()


class Slotted:
    """A staged schedule in the slots of a form."""

    def __init__(self, form: Form, trace: Trace) -> None:
        self.form, self.graph = form, trace.graph
        runs = [run for run, slot in self._placed(trace.schedule) if slot >= 0]
        self.trace = Trace(self.graph, Schedule.from_runs(self.graph, runs))
        self.slots = [slot for _, slot in self._placed(self.trace.schedule)]
        steps = sorted(at for ran in self.trace.runs.values() for at in ran)
        self.steps = dict(zip(self.slots, steps, strict=True))

    def _placed(self, schedule: Schedule) -> list[tuple[Any, int]]:
        """Each run with its slot; -1 if it has none."""
        placed, stage, started = [], 0, set()
        for run in schedule.runs:
            placed.append((run, int(self.form.slots.at[stage, self.graph.node_index[run.node]])))
            if run.node not in started:
                started.add(run.node)
                stage = min(stage + 1, len(self.graph) - 1)
        return placed

    def before(self, slot: int) -> dict[str, int]:
        """The data resident just before a slot, whether or not its node runs."""
        later = [step for at, step in self.steps.items() if at >= slot]
        return self.trace.before[min(later, default=len(self.trace.before) - 1)]

    def point(self) -> list[int]:
        """Every column's value."""
        form, x = self.form, [0] * len(self.form.linear.cost)
        for slot, step in self.steps.items():
            x[int(form.slots.column[slot]) + self.trace.option(step)] = 1
        for meaning, column in form.columns.items():
            x[column] = int(self.value(*meaning))
        return x

    def value(self, kind: Any, *at: Any) -> bool:
        """The value of a column for the schedule."""
        slots = self.form.slots
        if kind == "again":
            node, stage = at
            return any(int(slots.stage[s]) >= stage and int(slots.node[s]) == node for s in self.slots)
        cell = self.form.stage.cells[at[0]]
        if kind == "resident":
            return _has(self.before(at[1] + 1), cell.name, cell.option)
        if kind == "holds":
            resident = self.before(int(slots.begin[at[2]]))
            return resident.get(cell.name, 0) > at[1] if cell.layer < 0 else _has(resident, cell.name, cell.option)
        if kind == "saved":
            return _has(self.before(int(slots.begin[at[1]])), cell.name, cell.option)
        if kind == "created":
            return bool(self.runs(at[1], *cell.writers[0]))
        if kind == "deleted":
            return self.deleted(cell, *at[1:])
        raise KeyError(kind)

    def runs(self, stage: int, node: int, options: Sequence[int]) -> bool:
        """Whether a node runs in a stage by one of some options."""
        step = self.steps.get(int(self.form.slots.at[stage, node]))
        return step is not None and self.trace.option(step) in options

    def deleted(self, cell: Cell, stage: int, node: int) -> bool:
        """Whether the cell's last use in a stage is that of the node, and it is not resident afterwards."""
        uses = [(user, options) for user, options in (*cell.writers, *cell.readers) if user <= stage]
        used = [user for user, options in uses if self.runs(stage, user, options)]
        if not used or max(used) != node:
            return False
        last = stage + 1 == len(self.graph)
        return last or not _has(self.before(int(self.form.slots.begin[stage + 1])), cell.name, cell.option)


RELAXATIONS: tuple[Relaxation, ...] = (
    ResidentTogether(),
    AtInstant(),
    AtInstant(fixed=True),
    AtInstants(),
    AtInstants(coarse=True),
    InStages(),
    InStages(coarse=True),
    AtLoss(),
    AtLoss(working_sets=True),
    Staged(),
    Staged("cuts"),
    Staged("published"),
    Staged("tight"),
    Staged("checkmate"),
)
"""All of them."""

__all__ = [
    "RELAXATIONS",
    "AtInstant",
    "AtInstants",
    "AtLoss",
    "InStages",
    "ResidentTogether",
    "Staged",
]
