"""The state of the runtime, as tables that the kernels change in place."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from remat.algorithms._arrays.graph_arrays import Flags, Ints, Longs
from remat.algorithms._arrays.jit import inner_kernel
from remat.algorithms._dtr.program import Flat, Program, Records, records

Words = NDArray[np.uint64]

EAGER, IGNORE, BANISH = range(3)
"""Deallocation of a released storage: it is evicted; nothing happens; it is removed permanently as soon as possible."""

NO_COST, LOCAL, ANCESTORS, NEIGHBORHOOD, CLASSES = range(5)
"""Measures of cost: one; the storage's own; with evicted ancestors; with descendants too; with classes of evicted neighbors."""

FAMILY, ACCESS, RANDOM, OUTSIDE = range(4)
"""Scores: cost / (size x staleness), either factor optional; the last access; random; an outside score."""

GAP, SEVERAL, DIRTY, LONELY = -4, -3, -2, -1
"""Entries of `cached` that are no class: an empty place; three or more classes; unknown; no evicted neighbor."""

DOWN, DOWN_EDGE, UP, UP_EDGE = range(4)
"""Sets of `State.regions`: evicted storages reached towards readers; resident ones where that ends; the same towards sources."""

STORED = np.dtype(
    [
        ("material", np.bool_),  # in memory
        ("pinned", np.bool_),  # never evicted
        ("banished", np.int32),  # 0, or its number in the order of banishing
        ("locks", np.int32),  # pending runs that need it, and pins
        ("lent", np.int32),  # pending runs that need it
        ("refs", np.int32),  # references of the program
        ("dependents", np.int32),  # evicted tensors made from it (kept for banishing alone)
        ("place", np.int32),  # its place in the pool, -1: none
        ("size", np.int64),  # bytes
        ("part", np.float64),  # 1 / size, infinity for size 0; 1 for a score that leaves size out
        ("cost", np.int64),  # of its operators, each once
        ("access", np.int64),  # when it was last accessed; -1: never
        ("up_pairs", np.int64),  # (tensor, argument) pairs of its tensors
        ("down_pairs", np.int64),  # (tensor, reader) pairs
        ("mark", np.int64),  # of the last walk that came by
        ("node", np.int64),  # of its class while it is evicted, -1: none
        ("slot", np.int64),  # of its neighborhoods, -1: none
        ("down_cost", np.int64),  # cost of DOWN and UP, as of the last time they were changed
        ("up_cost", np.int64),
    ],
    align=True,
)
"""The state of a storage."""

NODE = np.dtype([("parent", np.int64), ("value", np.int64), ("seen", np.int64)])
"""A node of the union-find: the node above, -1 for a root; of roots the cost of the class; a mark."""

FRAME = np.dtype([("tensor", np.int64), ("cursor", np.int64), ("first", np.bool_)], align=True)
"""A pending run: the requested tensor, the number of arguments done, whether it is the first run of its operator."""

PLACE = np.dtype(
    [
        ("cost", np.int64),
        ("access", np.int64),
        ("part", np.float64),
        ("cached", np.int32),  # a class next to it, or GAP, SEVERAL, DIRTY, LONELY
        ("other", np.int32),  # the second class next to it, or LONELY
        ("visits", np.int64),  # accesses that a score takes while `cached` holds
    ]
)
"""A place of the pool: the data of its storage that scores read, so that a search reads memory sequentially."""

MEASURED = np.dtype([("place", np.int64), ("number", np.int64), ("late", np.int64)])
"""A storage that was measured: place in the pool, numerator, staleness."""

NOW = np.dtype(
    [
        (name, np.int64)
        for name in (
            *("memory", "clock", "step", "depth", "created"),  # created: operators that have begun their first run
            *("tail", "count"),  # end and number of the pool
            *("nodes", "slots", "stamp", "banished"),  # nodes and slots in use, last mark, storages banished
            *("victim", "fault"),  # the choice of an outside score; the operator at fault
            *("peak", "remat", "remats", "evictions", "accesses", "scored"),  # results
        )
    ]
)
"""Counters."""


class Rules(NamedTuple):
    """The settings of a run.

    Attributes:
        budget: bytes. most_cost, most_runs: recomputation that ends it, by cost and by number.
        dealloc: EAGER, IGNORE or BANISH.
        kind: of the score; cost: its measure of cost; size, staleness: whether it divides by them.
        widest: the largest number of outputs of an operator.
    """

    budget: int
    most_cost: int
    most_runs: int
    dealloc: int
    kind: int
    cost: int
    size: int
    staleness: int
    widest: int


class State(NamedTuple):
    """The runtime.

    Attributes:
        storages: STORED records. defined: tensors computed since their storage came back.
        waits: (tensor, argument) pairs that stand for an evicted dependent (banishing alone).
        locked: arguments locked by a run under way. frames: runs under way, the innermost last.
        pool, places: storages that may be evicted, in order, -1 for a gap; their PLACE records.
        measured: scratch of a search for a victim: MEASURED records.
        stack, arrived: scratch: of a walk over storages; what the last run brought.
        nodes: of classes. regions: sets of storages as bits, one row of words for each slot. free: slots; those from
            `now.slots` on are free. affected: scratch: storages whose DOWN and whose UP change.
        random: the generator (Mersenne Twister, as in CPython). now: one NOW record.
    """

    storages: Records
    defined: Flags
    waits: Flags
    locked: Flags
    frames: Records
    pool: Ints
    places: Records
    measured: Records
    stack: Ints
    arrived: Ints
    nodes: Records
    regions: Words
    free: Longs
    affected: Words
    random: Longs
    now: Records


class Machine(NamedTuple):
    """The arguments of a kernel."""

    g: Flat
    s: State
    q: Rules


def machine(program: Program, rules: Rules, random: Longs) -> Machine:
    """A runtime before its first step; `random` is the state of the generator: 624 words and the place of the next."""
    g = program.flat
    storages, tensors = len(g.storages) - 1, len(g.tensors) - 1
    asked = rules.kind in (FAMILY, OUTSIDE)
    by_class = asked and rules.cost == CLASSES
    by_region = asked and rules.cost in (ANCESTORS, NEIGHBORHOOD) and rules.dealloc != BANISH
    slots, words = (64, (storages + 63) // 64) if by_region else (0, 0)
    s = State(
        storages=records(storages, STORED),
        defined=np.zeros(tensors, np.bool_),
        waits=np.zeros(int(g.tensors[-1].waits) if rules.dealloc == BANISH else 0, np.bool_),
        locked=np.zeros(len(g.args), np.bool_),
        frames=records(tensors + 1, FRAME),
        pool=np.full(2 * storages + 16, -1, np.int32),
        places=records(2 * storages + 16, PLACE),
        measured=records(storages + 1, MEASURED),
        stack=np.zeros(storages + 1, np.int32),
        arrived=np.zeros(max(storages, tensors) + 1, np.int32),
        nodes=records(2 * storages + 64 if by_class else 0, NODE),
        regions=np.zeros((4, slots, words), np.uint64),
        free=np.arange(slots, dtype=np.int64),
        affected=np.zeros((2, words), np.uint64),
        random=random,
        now=records(1, NOW),
    )
    s.storages["size"] = g.storages["size"][:-1]
    for name, value in (("access", -1), ("place", -1), ("node", -1), ("slot", -1)):
        s.storages[name] = value
    with np.errstate(divide="ignore"):
        s.storages["part"] = 1.0 / s.storages["size"] if rules.size else 1.0
    s.now["clock"], s.now["victim"] = 1, -1
    return Machine(g, s, rules)


def grown(m: Machine) -> Machine:
    """The same runtime with more room for classes and regions."""
    s = m.s
    _, slots, words = s.regions.shape
    return m._replace(
        s=s._replace(
            nodes=np.concatenate([s.nodes, records(len(s.nodes), s.nodes.dtype)]).view(np.recarray),
            regions=np.concatenate([s.regions, np.zeros((4, slots, words), np.uint64)], axis=1),
            free=np.concatenate([s.free, np.arange(slots, 2 * slots, dtype=np.int64)]),
        )
    )


@inner_kernel
def linked(s: State, x: int, y: int) -> bool:
    """Whether the storage `x` still lists its neighbor `y`.

    Banishing removes a storage from the lists of others, not others from its own list: that matters for a storage that returns
    because its operator is run again for another output.
    """
    mine, other = s.storages[x].banished, s.storages[y].banished
    return bool(other == 0 or 0 < mine < other)
