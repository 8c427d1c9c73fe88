"""Schedules with copies for the suites of execution: of any captured graph, drawn or as many copies as there can be."""

from attrs import frozen

import remat.exec
from remat.algorithms import Plan, Solver
from remat.errors import BudgetExceeded
from remat.exec._copy.copies import Copier
from remat.exec._copy.cpu import CpuDevice
from remat.exec._run.lowering import Copying
from remat.ir import Drop, Link, Offload, Prefetch, Run, Schedule, validate
from tests.exec.support import Rig

FAST = Link.symmetric(gb_per_s=1000)
SLOW = Link.symmetric(gb_per_s=1)


def copied(graph, runs=None, least=1, chosen=None):
    """A schedule that copies each datum out after its last read before the loss, and back before its first read after it.

    Args:
        graph: captured. runs: run sequence; None: the captured order. least: smaller data stay.
        chosen: whether a datum is copied, by name; None: all that can be.
    """
    steps = list(Schedule.from_runs(graph, range(len(graph)) if runs is None else runs).steps)
    loss = graph.computes[graph.loss].name
    for datum in graph.data:
        name = datum.name
        if (
            datum.outside
            or datum.keep
            or datum.size < least
            or len(datum.writers) != 1
            or (chosen and not chosen(name))
        ):
            continue
        cut = steps.index(Run(loss))
        uses = [at for at, step in enumerate(steps) if isinstance(step, Run) and name in touched(graph, step.node)]
        before, after = [at for at in uses if at < cut], [at for at in uses if at > cut]
        if (
            not before
            or not after
            or name in graph.node(steps[after[0]].node).writes
            or Drop(name) in steps[: after[0]]
        ):
            continue
        steps.insert(after[0], Prefetch(name))
        steps.insert(before[-1] + 1, Offload(name))
    return Schedule(tuple(steps))


def touched(graph, node):
    return (*graph.node(node).reads, *graph.node(node).writes)


class CopyRig(Rig):
    """A rig whose schedules may make copies.

    Args of a step: the link of the plan, the budget of the replay, and the copier.
    """

    link = FAST
    copier = None

    def lowered(self, schedule, budget=None):
        cost = validate(self.graph, schedule, budget, self.link)
        copier = self.copier or Copier.on(CpuDevice())
        copying = Copying.of(self.graph, schedule, cost, copier)
        return remat.exec.lower(self.program, schedule, copying)


@frozen
class CopyAll(Solver):
    """Copies data, the largest first, until the budget is kept; nothing is recomputed."""

    def plan(self, problem, clock, seed):
        graph = problem.graph
        names = sorted((datum.name for datum in graph.data), key=lambda name: -graph.datum(name).size)
        for count in range(1 if problem.link is None else len(names) + 1):
            schedule = copied(graph, chosen=set(names[:count]).__contains__)
            try:
                validate(graph, schedule, problem.budget, problem.link)
            except BudgetExceeded:
                continue
            return Plan(schedule=schedule)
        return Plan()
