"""Test cases for the laws of a solver: a problem made from a graph and a seed, with schedules that fit it."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Final

from attrs import field, frozen

from remat.algorithms._bounds.floor import node_floor
from remat.algorithms._core.outcome import IMPOSSIBLE
from remat.algorithms._core.problem import Problem
from remat.algorithms._whole.exhaustive import Exhaustive
from remat.errors import BudgetExceeded, InvalidSchedule
from remat.ir import Cost, Graph, Link, Schedule, print_text, validate
from remat.testing.link_trace import LinkTrace, random_link_trace
from remat.testing.random_schedules import random_schedule
from remat.testing.walks import Walk, offloading
from remat.units import LARGEST, Bytes, Ns

_NODES: Final = 13
"""Graphs with more nodes are not searched exhaustively, nor for budgets in which copies are faster."""
_STATES: Final = 1500
_POINTS: Final = 12
_EVERY: Final = 7  # number of nodes up to which every optimum is computed
_STEPS: Final = 5
_TRACES: Final = 20
_SEEDS: Final = (0, 0, 1, 2, 7, 2**32 + 1)


@frozen
class Witness:
    """A valid schedule, its time and its peak."""

    schedule: Schedule
    time: Ns
    peak: Bytes


@frozen(kw_only=True)
class Case:
    """One example of a check of solvers.

    Attributes:
        problem: what to solve. linked: the same graph with a link.
        witnesses: valid schedules of the graph without copies; those of an exhaustive search are the fastest of their peaks.
        linked_witnesses: valid schedules with the link, some of them with copies.
        seed: for the solver. number: from which the example was made.
    """

    problem: Problem
    witnesses: tuple[Witness, ...]
    linked: Problem
    linked_witnesses: tuple[Schedule, ...]
    seed: int = field(default=0)
    number: int = field(default=0)

    @property
    def text(self) -> str:
        """Budget and graph in text form."""
        return f"# budget {self.problem.budget}\n{print_text(self.problem.graph)}"

    def best(self) -> tuple[float, Schedule | None]:
        """Time of the fastest known schedule that fits, and the schedule; infinite and None if none is known."""
        fitting = [witness for witness in self.witnesses if witness.peak <= self.problem.budget]
        fastest = min(fitting, key=lambda witness: witness.time, default=None)
        return (IMPOSSIBLE, None) if fastest is None else (fastest.time, fastest.schedule)

    def best_linked(self, host: Bytes | None = None) -> tuple[float, Schedule | None]:
        """The same for the problem with a link, among schedules that hold at most `host` bytes on the host."""
        fitting = [
            (cost.time, schedule) for schedule, cost in self.linked_costs() if host is None or cost.host_peak <= host
        ]
        return min(fitting, key=lambda pair: pair[0], default=(IMPOSSIBLE, None))

    def linked_costs(self) -> list[tuple[Schedule, Cost]]:
        """Those of `linked_witnesses` that fit, with their costs."""
        problem, costs = self.linked, []
        for schedule in self.linked_witnesses:
            try:
                costs.append((schedule, validate(problem.graph, schedule, problem.budget, problem.link)))
            except BudgetExceeded:
                continue
        return costs


def case_of(graph: Graph, number: int) -> Case:
    """The case of a graph and a number: often with exactly the bytes that some optimum needs, or one byte less."""
    random = Random(number)
    optima, complete = optima_of(graph)
    walks = [_witness(graph, random_schedule(graph, random.randint)) for _ in range(2)]
    walks.append(_witness(graph, Schedule.from_runs(graph, range(len(graph)))))
    budget = _budget(random, optima, complete, walks)
    witnesses = (*optima, *walks)
    link = _link(random)
    copied = _valid([offloading(graph), Walk(graph, random.randint, copies=True).schedule()], graph, link)
    plain = [witness.schedule for witness in witnesses]
    linked = budget
    if copied and random.random() < 0.7:
        linked = _need(graph, random.choice(copied), link, budget)
    better = _better_with_copies(graph, link, witnesses, number)
    if better:
        linked = min(better, key=lambda trace: trace.cost.peak).cost.peak
        copied += [trace.schedule for trace in better]
    return Case(
        problem=Problem(graph=graph, budget=budget),
        witnesses=witnesses,
        linked=Problem(graph=graph, budget=linked, link=link),
        linked_witnesses=(*copied, *plain),
        seed=random.choice(_SEEDS),
        number=number,
    )


def optima_of(graph: Graph) -> tuple[list[Witness], bool]:
    """The fastest schedule for every budget (for some, on larger graphs), largest first; and whether none fits below them."""
    optima: list[Witness] = []
    budget, least = LARGEST, node_floor(graph)
    while len(graph) <= _NODES and len(optima) < _POINTS:
        plan = Exhaustive(max_nodes=_NODES, max_states=_STATES).solve(Problem(graph=graph, budget=budget))
        if plan.schedule is None or plan.cost is None:
            return optima, plan.lower == IMPOSSIBLE and bool(optima) and budget == optima[-1].peak - 1
        optima.append(Witness(plan.schedule, plan.cost.time, plan.cost.peak))
        step = 1 if len(graph) <= _EVERY else max(1, (plan.cost.peak - least) // _STEPS)
        budget = plan.cost.peak - step
        if budget < 0:
            return optima, step == 1
    return optima, False


def _witness(graph: Graph, schedule: Schedule) -> Witness:
    cost = validate(graph, schedule)
    return Witness(schedule, cost.time, cost.peak)


def _budget(random: Random, optima: Sequence[Witness], complete: bool, walks: Sequence[Witness]) -> Bytes:
    """Most often exactly the bytes that an optimum needs, in particular the slowest one."""
    peaks = [witness.peak for witness in (optima or walks)]
    low, high = min(peaks), max(witness.peak for witness in (*optima, *walks))
    kind = random.random()
    if kind < 0.4:
        return low
    if kind < 0.65:
        return random.choice(peaks)
    if kind < 0.75:
        return max(0, random.choice(peaks[:-1] or peaks) - 1)
    if kind < 0.82 and complete:
        return max(0, low - 1)
    if kind < 0.9:
        return random.choice([walk.peak for walk in walks])
    return random.randint(low, high + 1)


def _link(random: Random) -> Link:
    """One way faster than the other, latencies, sometimes unbounded: a few nanoseconds per byte."""
    speeds = [None, *(count * 10**9 // 2 for count in range(1, 5))]
    if random.random() < 0.4:
        return Link()
    return Link(
        to_host=random.choice(speeds),
        to_device=random.choice(speeds),
        to_host_latency=random.randint(0, 2),
        to_device_latency=random.randint(0, 2),
    )


def _better_with_copies(graph: Graph, link: Link, witnesses: Sequence[Witness], number: int) -> list[LinkTrace]:
    """Schedules with copies that are faster, in the bytes that they need, than every known schedule without.

    In such a budget a bound of schedules without copies is false. Only small flat graphs are searched.
    """
    if not graph.flat or len(graph) > _NODES:
        return []
    choose = Random(number).randint
    traces = [random_link_trace(graph, choose, link) for _ in range(_TRACES)]
    return [
        trace
        for trace in traces
        if all(trace.time < other.time for other in witnesses if other.peak <= trace.cost.peak)
    ]


def _valid(schedules: list[Schedule], graph: Graph, link: Link) -> list[Schedule]:
    valid = []
    for schedule in schedules:
        try:
            validate(graph, schedule, None, link)
        except InvalidSchedule:
            continue
        valid.append(schedule)
    return valid


def _need(graph: Graph, schedule: Schedule, link: Link, budget: Bytes) -> Bytes:
    """The budget, or the bytes that the schedule with copies needs if fewer: this tests bounds of problems with a link."""
    peak = validate(graph, schedule, None, link).peak
    try:
        validate(graph, schedule, budget, link)
    except BudgetExceeded:
        return peak
    return min(peak, budget)
