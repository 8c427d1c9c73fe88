"""The least room over a link: what an order of runs needs when all that may be copied is away whenever no run uses it."""

from __future__ import annotations

import numpy as np

from remat.algorithms._arrays.graph_arrays import Flat, Ints, Longs, entries, flatten, lengths
from remat.algorithms._arrays.postponing import postponed_order
from remat.algorithms._copies.copy_arrays import NO_LIMIT, Lanes, lanes_of
from remat.algorithms._copies.copy_polish import replayed
from remat.ir import Graph, Link
from remat.units import Bytes

_HALVINGS = 14


def needed_bytes(flat: Flat, lanes: Lanes, order: Ints) -> Bytes:
    """The most that a run of an order needs at once: what it uses, what is kept by then, and what may not be copied."""
    return int(replayed(flat, lanes, order, _all_copied(flat, lanes)[order], NO_LIMIT)[2].max(initial=0))


def least_room(graph: Graph, link: Link, floor: Bytes) -> Bytes:
    """The least room, from `floor` on, that is enough for the captured order in which the heavy nodes are relieved to it.

    What is needed does not fall steadily with the room, so this is the least of those that are tried, by halves.
    """
    flat = flatten(graph)
    lanes, order = lanes_of(flat, link, floor, None), np.flatnonzero(flat.required).astype(np.int32)
    least, low, room = max(floor, needed_bytes(flat, lanes, order)), floor, floor
    for _ in range(_HALVINGS):
        if low >= least:
            break
        if needed_bytes(flat, lanes, postponed_order(flat, order, room)) <= room:
            least = room
        else:
            low = room + 1
        room = (low + least) // 2
    return least


def _all_copied(flat: Flat, lanes: Lanes) -> Longs:
    """Of each node a mask of all its reads that may come by a copy."""
    counts = lengths(flat.reads)
    reader, datum = np.repeat(np.arange(flat.time.size), counts), entries(flat.reads)
    place = np.arange(len(datum)) - np.repeat(np.cumsum(counts) - counts, counts)
    bits = np.where(lanes.movable[datum], np.int64(1) << np.minimum(place, 62), 0)
    masks = np.zeros(flat.time.size, np.int64)
    np.bitwise_or.at(masks, reader, bits)
    return masks
