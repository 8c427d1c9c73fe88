"""The state of a valid schedule with copies when each of its runs starts, and random schedules of that kind.

The times of runs and copies are those of the validator's replay; what is charged at a start is computed here, by names.
"""

from __future__ import annotations

from remat.errors import InvalidSchedule
from remat.ir import Cost, Drop, Graph, Link, Offload, Prefetch, Run, Schedule, Step, validate
from remat.ir.cost import Lane
from remat.testing.random_schedules import random_schedule
from remat.testing.trace import Trace
from remat.testing.walks import Choose, Walk
from remat.units import Bytes, Ns

_CUTS = 4
"""How often a smaller budget is tried."""


class LinkTrace(Trace):
    """A valid schedule with copies of a flat graph, step by step.

    `before` has the data that are charged when a run starts: those resident, those that arrive and those that still leave.

    Attributes:
        cost: of the replay.
        starts: when each run starts, by its step [ns].
        serves: steps of the runs that are their node's first, or make something that such a run reads later.
    """

    def __init__(self, graph: Graph, schedule: Schedule, link: Link, budget: Bytes | None = None) -> None:
        """`budget`: of the replay, in which copies wait for room [bytes].

        Raises:
            InvalidSchedule: the schedule breaks a rule.
        """
        self.cost: Cost = validate(graph, schedule, budget, link)
        self._ways = {way.step: way for way in self.cost.intervals}
        self.starts = {way.step: way.start for way in self.cost.intervals if way.lane is Lane.COMPUTE}
        super().__init__(graph, schedule)
        self.serves = self._serving()

    def _follow(self) -> None:
        now: dict[str, int] = {}
        on_host: dict[str, int] = {}
        arrives: dict[str, Ns] = {}
        leaves: dict[str, Ns] = {}
        for at, step in enumerate(self.schedule.steps):
            start = self.starts.get(at, 0)
            away = {name for name, begins in arrives.items() if begins > start}
            leaving = {name: on_host[name] for name, end in leaves.items() if end > start}
            self.before.append(leaving | {name: done for name, done in now.items() if name not in away})
            if isinstance(step, Drop):
                del now[step.datum]
            elif isinstance(step, Offload):
                on_host[step.datum] = now.pop(step.datum)
                leaves[step.datum] = self._ways[at].end
            elif isinstance(step, Prefetch):
                now[step.datum] = on_host[step.datum]
                arrives[step.datum] = self._ways[at].start
            elif isinstance(step, Run):
                self._run(at, step, now)
        self.before.append(now)

    def _serving(self) -> set[int]:
        read: set[str] = set()
        serves: set[int] = set()
        for at in range(len(self.schedule.steps) - 1, -1, -1):
            step = self.schedule.steps[at]
            if not isinstance(step, Run):
                continue
            node = self.graph.node(step.node)
            if self.first[step.node] == at or not read.isdisjoint(node.writes):
                serves.add(at)
                read -= {name for name in node.writes if self.graph.datum(name).writers[0] == node.name}
                read |= {*node.reads, *(name for name in node.writes if self.graph.datum(name).writers[0] != node.name)}
        return serves

    @property
    def time(self) -> Ns:
        """Time of the step, waiting included [ns]."""
        return self.cost.time


def random_link_trace(graph: Graph, choose: Choose, link: Link) -> LinkTrace:
    """A random schedule with copies, in most cases in the smallest of a few budgets that it keeps.

    In half of them all copies back are queued at one moment, and no budget delays them. Of the others, a third are walks,
    which copy anything at any time; in the rest data that wait for a later read are away in between.
    """
    streamed = _streamed(graph, choose, link) if choose(0, 1) else None
    if streamed is not None:
        return streamed
    if choose(0, 2) == 0:
        trace = traced(graph, Walk(graph, choose, copies=True).schedule(), link)
    else:
        trace = _copying(graph, random_schedule(graph, choose), choose, link)
    assert trace is not None
    low, high = 0, trace.cost.peak
    for _ in range(_CUTS):
        budget = choose(low, high)
        tight = traced(graph, trace.schedule, link, budget)
        low, high = (low, budget) if tight is not None else (budget, high)
        trace = trace if tight is None else tight
    return trace


def traced(graph: Graph, schedule: Schedule, link: Link, budget: Bytes | None = None) -> LinkTrace | None:
    """The trace of a schedule; None if it breaks a rule or the budget."""
    try:
        return LinkTrace(graph, schedule, link, budget)
    except InvalidSchedule:
        return None


def _copying(graph: Graph, schedule: Schedule, choose: Choose, link: Link) -> LinkTrace | None:
    """The schedule with data copied out after a use and back before the next, as far as the rules allow."""
    trace, often = traced(graph, schedule, link), choose(0, 3)
    for name in [datum.name for datum in graph.data if datum.size and not datum.keep and not datum.outside]:
        while choose(0, often) == 0:
            steps = list(schedule.steps)
            uses = [at for at, step in enumerate(steps) if _touches(graph, step, name)]
            if len(uses) < 2:
                break
            k = choose(0, len(uses) - 2)
            steps.insert(choose(uses[k] + 1, uses[k + 1]), Prefetch(name))
            steps.insert(uses[k] + 1, Offload(name))
            copied = traced(graph, Schedule(tuple(steps)), link)
            if copied is None:
                break
            schedule, trace = copied.schedule, copied
    return trace


def _streamed(graph: Graph, choose: Choose, link: Link) -> LinkTrace | None:
    """A schedule whose copies back are queued after one run, in the order of their readers: the lane is busy from then on.

    What a forward node makes stays, is copied out after its last use up to that run and back after it, or is recomputed for
    its later readers. None: nothing is copied, or the rules do not allow it.
    """
    at = choose(graph.loss, choose(graph.loss, len(graph) - 1))
    free = [name for name in _made_forward(graph) if choose(0, 3)]
    recomputed = {name for name in free if choose(0, 1)}
    runs = [Run(name) for name in _with_reruns(graph, choose, at, recomputed)]
    steps = list(Schedule.from_runs(graph, runs).steps)
    pivot = steps.index(Run(graph.computes[at].name))
    free = [name for name in free if name not in recomputed]
    uses = {name: [k for k, step in enumerate(steps) if _touches(graph, step, name)] for name in free}
    readers = sorted((min(k for k in uses[name] if k > pivot), name) for name in free if uses[name][-1] > pivot)
    behind = next((k for k in range(pivot + 1, len(steps)) if not isinstance(steps[k], Drop)), len(steps))
    steps[behind:behind] = [Prefetch(name) for _, name in readers]
    for last, name in sorted(((max(k for k in uses[name] if k <= pivot), name) for _, name in readers), reverse=True):
        steps.insert(last + 1, Offload(name))
    return traced(graph, Schedule(tuple(steps)), link) if readers else None


def _made_forward(graph: Graph) -> list[str]:
    """Data that a forward node makes alone, and can make again."""
    nodes = [node for node in graph.computes[: graph.loss] if not node.run_once]
    outputs = [graph.datum(name) for node in nodes for name in node.writes]
    return [datum.name for datum in outputs if datum.size and not datum.keep and len(datum.writers) == 1]


def _with_reruns(graph: Graph, choose: Choose, at: int, recomputed: set[str]) -> list[str]:
    """The nodes in order, and after node `at` reruns before readers of what is recomputed, some of which serve several."""
    runs: list[str] = []
    here = {name for name in sorted(recomputed) if not choose(0, 3)}

    def run(name: str) -> None:
        for datum in graph.node(name).reads:
            if datum in recomputed and datum not in here:
                run(graph.datum(datum).writers[0])
        runs.append(name)
        here.update(graph.node(name).writes)

    for i, node in enumerate(graph.computes):
        if i <= at:
            runs.append(node.name)
        else:
            run(node.name)
            here.difference_update([name for name in sorted(here) if choose(0, 1)])
    return runs


def _touches(graph: Graph, step: Step, name: str) -> bool:
    if not isinstance(step, Run):
        return False
    node = graph.node(step.node)
    return name in node.reads or name in node.writes
