"""Schedules from a search in time: steps that issue the copies, and drops."""

from __future__ import annotations

from remat.algorithms._core.problem import Problem
from remat.algorithms._whole.timed_estimate import FETCHED, NODE, ORIGIN, OUT, STAGE
from remat.algorithms._whole.timed_search import COMPUTE, FETCH, Queue
from remat.errors import InvalidSchedule
from remat.ir import Drop, Graph, Offload, Prefetch, Run, Schedule, validate
from remat.ir.step import Step
from remat.units import Bytes, Ns


def fastest_schedule(problem: Problem, queue: Queue, at: int) -> tuple[Schedule, Ns] | None:
    """The steps that lead to a state, less the copies that save no time, and their time [ns].

    None: they break a rule, or the host may not hold their copies.
    """
    steps = _steps_to(problem.graph, queue, at)
    best = _tried(problem, steps)
    for k in range(len(steps) - 1, -1, -1):
        if isinstance(steps[k], Prefetch):
            fewer = steps[:k] + steps[k + 1 :]
            tried = _tried(problem, fewer)
            if tried is not None and (best is None or tried[1] <= best[1]):
                steps, best = fewer, tried
    if best is None or (problem.host_budget is not None and best[2] > problem.host_budget):
        return None
    return best[:2]


def _tried(problem: Problem, steps: list[Step]) -> tuple[Schedule, Ns, Bytes] | None:
    """The schedule of these steps with its time and the bytes that the host holds, if it is valid."""
    schedule = Schedule(tuple(_with_drops(problem.graph, steps)))
    try:
        cost = validate(problem.graph, schedule, problem.budget, problem.link)
    except InvalidSchedule:
        return None
    return schedule, cost.time, cost.host_peak


def _steps_to(graph: Graph, queue: Queue, at: int) -> list[Step]:
    """Runs and copies on the way to a state: a copy that starts during a run is issued before it."""
    names = [datum.name for datum, writers in zip(graph.data, graph.writers_by_data, strict=True) for _ in writers]
    path = []
    row = queue.states[at].tolist()
    while row[ORIGIN] >= 0:
        before = queue.states[row[ORIGIN]].tolist()
        path.append((before, row))
        row = before
    steps: list[Step] = []
    begin = 0  # place of the last run
    for before, row in reversed(path):
        place = begin if before[NODE] >= 0 else len(steps)
        if row[STAGE] == FETCH and row[NODE] != before[NODE]:
            begin = len(steps)
            steps.append(Run(graph.computes[row[NODE]].name))
            continue
        if row[STAGE] == COMPUTE and row[OUT] != before[OUT]:
            steps.insert(place, Offload(names[row[OUT]]))
        elif row[FETCHED] >= 0:
            steps.insert(place, Prefetch(names[row[FETCHED]]))
        else:
            continue
        begin += place == begin
    return steps


def _with_drops(graph: Graph, steps: list[Step]) -> list[Step]:
    """The steps that serve something, each copy to the host issued as early as it may be, and drops."""
    backwards = _Backwards(graph)
    for at in range(len(steps) - 1, -1, -1):
        step = steps[at]
        if isinstance(step, Prefetch):
            backwards.prefetch(step)
        elif isinstance(step, Offload):
            backwards.offload(step)
        elif isinstance(step, Run):
            backwards.run(step, first=step not in steps[:at])
    return backwards.steps[::-1]


class _Backwards:
    """Steps taken from the last one to the first.

    Attributes:
        steps: those that serve something, the last first.
        needed: data that later steps need on the device. fetched: data that are fetched later from the copy that is on the host
            by now. leaving: data that are offloaded later, with no run by then that touches them, the last first.
    """

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.steps: list[Step] = []
        self.needed = {datum.name for datum in graph.data if datum.keep}
        self.fetched: set[str] = set()
        self.leaving: list[str] = []

    def prefetch(self, step: Prefetch) -> None:
        """Keep it if the datum is needed; what comes and goes without use stays on the host."""
        if step.datum in self.leaving:
            self.leaving.remove(step.datum)
            self.fetched.add(step.datum)
        elif step.datum in self.needed:
            self.needed.discard(step.datum)
            self.fetched.add(step.datum)
            self.steps.append(step)

    def offload(self, step: Offload) -> None:
        """Put it off to the last run before it that touches the datum, if it is fetched later."""
        if step.datum in self.fetched:
            self.fetched.discard(step.datum)
            self.leaving.append(step.datum)

    def run(self, step: Run, *, first: bool) -> None:
        """Keep it if it is its node's first or makes what is needed; what it leaves that nothing needs is dropped after it."""
        node = self.graph.node(step.node)
        writes = {name: self.graph.datum(name).writers for name in node.writes}
        if not first and self.needed.union(self.leaving).isdisjoint(writes):
            return
        touched = dict.fromkeys((*node.reads, *writes))
        gone = [name for name in touched if name not in self.needed and name not in self.leaving]
        self.steps += [Offload(name) for name in self.leaving if name in touched]
        self.steps += [Drop(name) for name in gone if not _stays(self.graph, name)]
        self.steps.append(step)
        self.leaving = [name for name in self.leaving if name not in touched]
        self.fetched -= set(writes)
        self.needed -= {name for name, writers in writes.items() if writers[0] == node.name}
        self.needed |= {name for name, writers in writes.items() if writers[0] != node.name} | set(node.reads)


def _stays(graph: Graph, name: str) -> bool:
    """Whether no step may drop a datum: it lives outside, or is kept and has one writer."""
    datum = graph.datum(name)
    return not datum.writers or (datum.keep and len(datum.writers) == 1)
