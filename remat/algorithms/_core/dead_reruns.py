"""Reruns for nothing: what they make is not read before it is made again."""

from __future__ import annotations

from collections.abc import Sequence

from remat.ir import Graph, Run


def without_dead_reruns(graph: Graph, runs: Sequence[Run]) -> list[Run]:
    """`runs` without the reruns for nothing; first runs stay, and so do contributions to sums, which come in turns.

    One pass from the end: a run that is left out reads nothing, so a second pass would find no more. `tw_remat.cleaned` does
    this on arrays of a flat graph, and also leaves out reruns that only make kept data again.
    """
    sums = {datum.name for datum in graph.data if len(datum.writers) > 1}
    first: dict[str, int] = {}
    for at, run in enumerate(runs):
        first.setdefault(run.node, at)
    wanted: set[str] = set()
    alive: list[Run] = []
    for at in reversed(range(len(runs))):
        run = runs[at]
        reads, makes = graph.touched(run)
        if first[run.node] != at and wanted.isdisjoint(makes) and sums.isdisjoint(makes):
            continue
        wanted.difference_update(name for name in makes if name not in sums)
        wanted.update(reads)
        alive.append(run)
    alive.reverse()
    return alive
