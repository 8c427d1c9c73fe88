"""From a point of a formulation to a schedule, and from a schedule to a point.

Only the runs of a point are read; drops are placed as early as possible, by `Schedule.from_runs`. Runs whose results are
not used are left out. Only the validator decides what the schedule costs, and whether it fits.
"""

from __future__ import annotations

import numpy as np

from remat.algorithms._core.dead_reruns import without_dead_reruns
from remat.algorithms._milp.answer import Floats
from remat.algorithms._staged.form_events import Form
from remat.ir import Graph, Run, Schedule


def runs_of(form: Form, point: Floats) -> list[Run]:
    """The runs of a point, in the order of the slots, each by the option that has most of it."""
    computes, slots = form.stage.graph.computes, form.slots
    runs = []
    for slot, node in enumerate(slots.node.tolist()):
        first = int(slots.column[slot])
        shares = point[first : first + len(computes[node].options)]
        best = int(np.argmax(shares))
        if slots.stage[slot] == node or shares[best] > 0.5:
            runs.append(Run(computes[node].name, best))
    return runs


def schedule_of(form: Form, point: Floats) -> Schedule:
    """The schedule of a point."""
    graph = form.stage.graph
    return Schedule.from_runs(graph, without_dead_reruns(graph, runs_of(form, point)))


def point_of(form: Form, schedule: Schedule) -> Floats | None:
    """The point of a schedule whose first runs keep the order of the form's graph; None where the slots cannot hold it.

    Several runs of a node in one stage are not represented; runs of a stage are put in topological order. The schedule of
    the point may therefore differ from the given one: replay it first.
    """
    graph, slots = form.stage.graph, form.slots
    point = np.zeros(form.linear.shape[1])
    stage = 0
    started: set[int] = set()
    for run in schedule.runs:
        node = graph.node_index[run.node]
        if node not in started:
            if node != stage:
                return None
            started.add(node)
            slot = slots.at[node, node]
            stage += 1
        elif stage >= len(graph) or slots.at[stage, node] < 0:
            return None
        else:
            slot = slots.at[stage, node]
        first = int(slots.column[slot])
        point[first : first + len(graph.computes[node].options)] = 0.0
        point[first + run.option] = 1.0
    return point if len(started) == len(graph) else None


def reordered(graph: Graph, schedule: Schedule) -> Graph:
    """The graph with its nodes in the order of their first runs in `schedule`; nodes it never runs come last of their phase."""
    place: dict[str, int] = {}
    for run in schedule.runs:
        place.setdefault(run.node, len(place))
    phases = {phase: i for i, phase in enumerate(dict.fromkeys(node.phase for node in graph.computes))}
    order = sorted(
        range(len(graph)),
        key=lambda i: (phases[graph.computes[i].phase], place.get(graph.computes[i].name, len(graph) + i)),
    )
    if order == list(range(len(graph))):
        return graph
    return _permuted(graph, order)


def _permuted(graph: Graph, order: list[int]) -> Graph:
    computes = tuple(graph.computes[i] for i in order)
    return Graph(name=graph.name, computes=computes, data=graph.data, layers=graph.layers)
