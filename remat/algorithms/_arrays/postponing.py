"""Orders in which backward nodes run after a heavy node that need not wait for them: what they keep is not there yet then."""

from __future__ import annotations

import numpy as np

from remat.algorithms._arrays.graph_arrays import BACKWARD, Flags, Flat, Ints, Longs
from remat.algorithms._arrays.kept_data import kept_by_node, working_sets
from remat.algorithms._arrays.reachability import reached

_HEAVIEST = 64


def kept_by_runs(flat: Flat, seq: Ints) -> Longs:
    """Bytes that stay from each run of a sequence: of first runs, what their nodes make and must keep."""
    first = np.zeros(len(seq), np.bool_)
    first[np.unique(seq, return_index=True)[1]] = True
    return np.where(first, kept_by_node(flat)[seq], 0)


def kept_before_positions(flat: Flat, seq: Ints) -> Longs:
    """Bytes kept by the time each position of a sequence is reached."""
    kept = kept_by_runs(flat, seq)
    return np.cumsum(kept) - kept


def postponed_order(flat: Flat, seq: Ints, room: int, heaviest: int = _HEAVIEST) -> Ints:
    """A sequence of runs with its heavy nodes relieved, the heaviest first, at most so many.

    A node is heavy if its working set and the data kept by then take more than `room` bytes. Of the backward nodes before it on
    which it does not depend, the last ones are moved behind it, as many as it takes.
    """
    needs = working_sets(flat)
    relieved: set[int] = set()
    for _ in range(heaviest):
        excess = needs[seq] + kept_before_positions(flat, seq) - room
        excess[np.isin(seq, list(relieved))] = 0
        at = int(np.argmax(excess))
        if excess[at] <= 0:
            break
        relieved.add(int(seq[at]))
        seq = relieved_order(flat, seq, at, int(excess[at]))
    return seq


def relieved_order(flat: Flat, seq: Ints, at: int, excess: int) -> Ints:
    """The sequence with the last backward runs before position `at` that its node does not depend on moved right behind it.

    As many as make `excess` bytes of kept data, or all. Legal: what depends on a moved run is behind it in the sequence, the node
    at `at` does not depend on it, and so it is moved too.
    """
    needed: Flags = reached(flat.predecessors, int(seq[at]))
    kept = kept_by_runs(flat, seq)
    moved = np.zeros(len(seq), np.bool_)
    for position in range(at - 1, -1, -1):
        if excess <= 0:
            break
        v = int(seq[position])
        if flat.phase[v] == BACKWARD and not needed[v]:
            moved[position] = True
            excess -= int(kept[position])
    head, tail = seq[: at + 1], seq[at + 1 :]
    return np.concatenate([head[~moved[: at + 1]], head[moved[: at + 1]], tail])
