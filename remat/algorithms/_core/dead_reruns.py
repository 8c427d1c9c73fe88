"""Dead reruns: their results are not read before they are computed again."""

from __future__ import annotations

from collections.abc import Sequence

from remat.ir import Graph, Run


def without_dead_reruns(graph: Graph, runs: Sequence[Run]) -> list[Run]:
    """`runs` without dead reruns. First runs stay, and so do contributions to sums, which have to come in order.

    One pass from the end suffices: a removed run reads nothing, so a second would remove nothing more. `tw_remat.cleaned` does
    this on arrays of a flat graph, and also removes reruns that only recompute kept data.
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
