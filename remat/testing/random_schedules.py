"""Random valid schedules of a graph, from all schedules or from a class to which a bound may be restricted.

The walks of `walks.py` keep data longer than needed and drop sums that are not complete; edits of run sequences insert reruns
anywhere, of forward and backward nodes, and move runs. Edits that break a rule are rejected: the validator decides.
"""

from __future__ import annotations

from typing import Final, Literal

from remat.errors import IllFormed, InvalidSchedule
from remat.ir import Graph, Layer, Phase, Run, Schedule, validate
from remat.testing.walks import Choose, Walk

Among = Literal["all", "captured", "staged"]

AMONG: Final = ("all", "captured", "staged")
"""All schedules; those with first runs in the captured order; or staged ones: in addition every node runs, and between two first
runs nodes run again in the graph's order, each at most once."""

_EDITS = 6


def random_schedule(graph: Graph, choose: Choose, among: Among = "all") -> Schedule:
    """A valid schedule without copies.

    Args:
        graph: any graph.
        choose: makes every choice; a seeded generator's `randint` repeats it.
        among: the class of schedules.
    """
    if among == "staged":
        return _staged(graph, choose)
    walk = Walk(graph, choose, captured=among == "captured").schedule()
    if choose(0, 2) == 2:
        return walk  # with data that stay longer than needed
    runs = list(walk.runs) if choose(0, 1) else [Run(node.name) for node in graph.computes]
    return _edited(graph, runs, choose, captured=among == "captured")


def _edited(graph: Graph, runs: list[Run], choose: Choose, *, captured: bool) -> Schedule:
    """A run sequence with runs inserted, removed or moved, as far as the rules allow."""
    schedule = Schedule.from_runs(graph, runs)
    for _ in range(choose(1, _EDITS)):
        edited = list(runs)
        kind = choose(0, 4)
        if kind == 0 and len(edited) > 1:
            del edited[choose(0, len(edited) - 1)]
        elif kind == 1 and len(edited) > 1:
            run = edited.pop(choose(0, len(edited) - 1))
            edited.insert(choose(0, len(edited)), run)
        else:
            run = edited[choose(0, len(edited) - 1)]
            edited.insert(choose(0, len(edited)), run)
        candidate = _valid(graph, edited)
        if candidate is not None and (not captured or in_captured_order(graph, candidate)):
            runs, schedule = edited, candidate
    return schedule


def _valid(graph: Graph, runs: list[Run]) -> Schedule | None:
    schedule = Schedule.from_runs(graph, runs)
    try:
        validate(graph, schedule)
    except (InvalidSchedule, IllFormed):
        return None
    return schedule


def in_captured_order(graph: Graph, schedule: Schedule) -> bool:
    """Whether the first runs keep the graph's order."""
    first = list(dict.fromkeys(run.node for run in schedule.runs))
    return first == sorted(first, key=graph.node_index.__getitem__)


def _staged(graph: Graph, choose: Choose) -> Schedule:
    """A staged schedule: reruns are tried stage by stage, in the graph's order; options of layers match their phantoms."""
    options = [choose(0, len(node.options) - 1) for node in graph.computes]
    for layer in graph.layers:
        k = choose(0, len(layer.options) - 1)
        options[graph.node_index[layer.forward]] = options[graph.node_index[layer.backward]] = k
    stages = [[Run(node.name, options[i])] for i, node in enumerate(graph.computes)]
    schedule = Schedule.from_runs(graph, [run for stage in stages for run in stage])
    for layer in graph.layers:
        schedule = _without_phantom(graph, layer, stages, schedule, choose)
    often = choose(1, 4)
    for at in range(1, len(stages)):
        for i in range(at):
            node = graph.computes[i]
            if choose(0, often) or any(run.node == node.name for run in stages[at]):
                continue
            if node.phase is Phase.LOSS or node.run_once:
                continue
            option = options[i] if choose(0, 2) else choose(0, len(node.options) - 1)
            before = list(stages[at])
            stages[at] = sorted([*before, Run(node.name, option)], key=lambda run: graph.node_index[run.node])
            candidate = _valid(graph, [run for stage in stages for run in stage])
            if candidate is None:
                stages[at] = before
            else:
                schedule = candidate
    return schedule


def _without_phantom(
    graph: Graph, layer: Layer, stages: list[list[Run]], schedule: Schedule, choose: Choose
) -> Schedule:
    """Sometimes the first run of a layer's forward leaves another phantom or none, and it is rerun in its backward's stage."""
    forward, backward = stages[graph.node_index[layer.forward]], stages[graph.node_index[layer.backward]]
    other = Run(layer.forward, choose(0, len(graph.node(layer.forward).options) - 1))
    if choose(0, 2) == 0 or other == forward[-1]:
        return schedule
    backward.insert(0, forward[-1])
    kept, forward[-1] = forward[-1], other
    candidate = _valid(graph, [run for stage in stages for run in stage])
    if candidate is None:
        forward[-1] = kept
        backward.pop(0)
        return schedule
    return candidate
