"""Orders in which backward nodes run after a heavy node that need not wait for them: what they keep is not there yet then."""

from __future__ import annotations

import numpy as np

from remat.algorithms._arrays.graph_arrays import BACKWARD, Flags, Flat, Ints, Longs
from remat.algorithms._arrays.kept_data import kept_by_node, working_sets
from remat.algorithms._arrays.reachability import reached

_HEAVIEST = 64


def kept_before_positions(flat: Flat, order: Ints) -> Longs:
    """Bytes kept by the time each position of an order of first runs is reached."""
    kept = kept_by_node(flat)[order]
    return np.cumsum(kept) - kept


def postponed_order(flat: Flat, order: Ints, room: int, heaviest: int = _HEAVIEST) -> Ints:
    """An order of first runs with its heavy nodes relieved, the heaviest first, at most so many.

    A node is heavy if its working set and the data kept by then take more than `room` bytes. Of the backward nodes before it on
    which it does not depend, the last ones are moved behind it, as many as it takes.
    """
    needs = working_sets(flat)
    relieved: set[int] = set()
    for _ in range(heaviest):
        excess = needs[order] + kept_before_positions(flat, order) - room
        excess[np.isin(order, list(relieved))] = 0
        at = int(np.argmax(excess))
        if excess[at] <= 0:
            break
        relieved.add(int(order[at]))
        order = relieved_order(flat, order, at, int(excess[at]))
    return order


def relieved_order(flat: Flat, order: Ints, at: int, excess: int) -> Ints:
    """The order with the last backward nodes before position `at` that its node does not depend on moved right behind it.

    As many as make `excess` bytes of kept data, or all. Legal: a node that depends on a moved one is behind it in the order, the
    node at `at` does not depend on it, and so it is moved too.
    """
    needed: Flags = reached(flat.predecessors, int(order[at]))
    kept = kept_by_node(flat)
    moved = np.zeros(len(order), np.bool_)
    for position in range(at - 1, -1, -1):
        if excess <= 0:
            break
        v = int(order[position])
        if flat.phase[v] == BACKWARD and not needed[v]:
            moved[position] = True
            excess -= int(kept[v])
    head, tail = order[: at + 1], order[at + 1 :]
    return np.concatenate([head[~moved[: at + 1]], head[moved[: at + 1]], tail])
