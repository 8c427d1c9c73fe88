"""A brute force over staged schedules, by the rules alone: the class of the MILP formulations, without their rows."""

from __future__ import annotations

import heapq

from remat.algorithms._core.problem import Problem
from remat.algorithms._whole.exhaustive import _Search


def staged_optimum(problem: Problem) -> int | None:
    """Least time over staged schedules in the graph's order: at each slot (t, k), k <= t, run by some option or pass; k = t runs.

    The state before a slot is what is resident; drops are made when room is needed, in every inclusion-minimal way. Returns
    None when no staged schedule fits.
    """
    search = _Search(problem)
    graph = problem.graph
    slots = [(t, k) for t in range(len(graph)) for k in range(t + 1)]
    start = tuple([1 if outside else 0 for outside in search.outside] + [0] * len(graph.layers))
    queue = [(0, 0, start)]
    best = {(0, start): 0}
    while queue:
        time, place, held = heapq.heappop(queue)
        if best[place, held] < time:
            continue
        if place == len(slots):
            if all(held[d] == search.complete[d] for d, keep in enumerate(search.kept) if keep):
                return time
            continue
        stage, node = slots[place]
        after = [(0, held)] if node < stage else []
        if search._allowed(node, (1 << stage) - 1):
            for option in range(len(graph.computes[node].options)):
                for before in search._made_to_fit(node, option, held):
                    after.append((graph.computes[node].options[option].time, search._after(node, option, before)))
        for cost, state in after:
            key = (place + 1, state)
            if time + cost < best.get(key, 1 << 62):
                best[key] = time + cost
                heapq.heappush(queue, (time + cost, place + 1, state))
    return None
