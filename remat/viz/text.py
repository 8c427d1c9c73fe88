"""Graphs, schedules, plans and costs as lines of text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise

from remat.ir import Cost, Graph, Phase, PlanFile, Schedule
from remat.ir.arguments import A_COST, A_GRAPH, A_THING
from remat.settings import takes
from remat.units import Bytes, Ns, format_bytes, format_ns

_BARS = " ▁▂▃▄▅▆▇█"


@takes(thing=A_THING)
def summary(thing: Graph | Schedule) -> Iterator[str]:
    """The contents of a graph or schedule."""
    yield repr(thing)
    yield from _schedule_lines(thing) if isinstance(thing, Schedule) else _graph_lines(thing)


def _schedule_lines(schedule: Schedule) -> Iterator[str]:
    kinds = Counter(type(step).__name__.lower() for step in schedule.steps)
    yield from (f"{kind:10} {count}" for kind, count in sorted(kinds.items()))
    reruns = len(schedule.runs) - len({run.node for run in schedule.runs})
    yield f"{'reruns':10} {reruns}"


def _least_times(graph: Graph, phase: Phase) -> list[Ns]:
    """The time of the fastest option of each node of a phase."""
    return [min(option.time for option in node.options) for node in graph.computes if node.phase is phase]


def _graph_lines(graph: Graph) -> Iterator[str]:
    for phase in Phase:
        times = _least_times(graph, phase)
        yield f"{phase.value:10} {len(times)} nodes, {format_ns(sum(times))}"
    sizes: Counter[str] = Counter()
    for datum in graph.data:
        sizes[datum.kind.value] += 0 if datum.outside else datum.size
    yield from (f"{kind:14} {format_bytes(size)}" for kind, size in sizes.items() if size)
    yield from (f"{what:14} {count}" for what, count in _flags(graph).items() if count)


def _flags(graph: Graph) -> dict[str, int]:
    return {
        "draws": sum(node.draws for node in graph.computes),
        "run once": sum(node.run_once for node in graph.computes),
        "sums": sum(len(datum.writers) > 1 for datum in graph.data),
        "options": sum(len(layer.options) for layer in graph.layers),
    }


def plan_lines(file: PlanFile) -> Iterator[str]:
    """What the plans of a file are for, and what each costs by replay on the machine it was made on."""
    yield f"<plans of {file.model}: {len(file.plans)}, remat {file.remat}, torch {file.torch}>"
    yield f"{'machine':10} {file.machine}"
    yield f"{'costs':10} {len(file.costs)} operations ({file.costs_by})"
    for place, plan in enumerate(file.plans):
        inputs = [
            line.removeprefix("input ").removesuffix(", no gradient")
            for line in plan.tensors
            if line.startswith("input ")
        ]
        yield f"plan {place}: {plan.fingerprint[:12]}, inputs {'; '.join(inputs) or 'none'}"
        yield f"{'budget':10} {plan.budget} B ({format_bytes(plan.budget)})"
        yield from cost_lines(plan.graph, plan.cost)
        bound = f"{plan.lower} ns, gap {plan.cost.time / plan.lower - 1:.2%}" if plan.lower else "none"
        yield f"{'bound':10} {bound}"
        yield f"{'planner':10} {plan.planner}"


@takes(graph=A_GRAPH, cost=A_COST)
def cost_lines(graph: Graph, cost: Cost) -> Iterator[str]:
    """A replay's cost, and its memory over the steps as one line of bars."""
    once = graph.time
    more = f", {cost.time / once - 1:+.2%} on every node once" if once else ""
    yield f"time       {cost.time} ns ({format_ns(cost.time)}){more}"
    yield f"recomputed {cost.recomputation} ns in {cost.reruns} reruns"
    if cost.idle:
        yield f"idle       {cost.idle} ns waiting for copies"
    yield f"peak       {cost.peak} B ({format_bytes(cost.peak)}) at step {cost.peak_step}"
    if cost.host_peak:
        yield f"host       {cost.host_peak} B ({format_bytes(cost.host_peak)})"
    yield f"memory     {bars(cost.timeline)}"


def bars(levels: Sequence[Bytes], width: int = 64) -> str:
    """Bytes over the steps as a line of bars, the largest of each interval; the highest bar is the peak."""
    if not levels:
        return ""
    count = min(width, len(levels))
    edges = [i * len(levels) // count for i in range(count + 1)]
    tops = [max(levels[low:high]) for low, high in pairwise(edges)]
    peak = max(tops) or 1
    return "".join(_BARS[-(-top * 8 // peak)] for top in tops)
