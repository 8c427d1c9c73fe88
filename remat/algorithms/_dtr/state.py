"""What the runtime knows at one instant, as arrays that the kernels change in place."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from remat.algorithms._arrays.graph_arrays import Flags, Floats, Ints, Longs
from remat.algorithms._arrays.jit import inner_kernel
from remat.algorithms._dtr.program import Flat, Program

Words = NDArray[np.uint64]

MEMORY, CLOCK, STEP, DEPTH, CREATED, TAIL, COUNT, NODES, STAMP, SLOTS, VICTIM, FAULT, BANISHED = range(13)
"""Places in `State.now`: bytes resident, the clock, the next step, operators under way, operators created, end and number
of the pool, union-find nodes, the last mark, slots in use, the victim of an outside score, the operator at fault, storages
banished."""

PEAK, REMAT, REMATS, EVICTIONS, ACCESSES, SCORED = range(6)
"""Places in `State.tally`: the largest memory, cost and number of recomputations, evictions, storage accesses, scores."""

EAGER, IGNORE, BANISH = range(3)
"""Deallocation: a storage that is let go of is evicted; nothing happens; it is removed for good as soon as it can be."""

NO_COST, LOCAL, ANCESTORS, NEIGHBORHOOD, CLASSES = range(5)
"""Measures of cost: one; the storage's own; with evicted ancestors; with descendants too; with classes of evicted neighbors."""

FAMILY, ACCESS, RANDOM, OUTSIDE = range(4)
"""Scores: cost / (size x staleness), either left out where it is not asked for; the last access; chance; asked outside."""

DIRTY, LONELY, SEVERAL = -4, -1, -3
"""Entries of `Classes.cached` that are no class: unknown; no evicted neighbor; neighbors of more than one class."""


class Rules(NamedTuple):
    """What a run is asked for.

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


class Classes(NamedTuple):
    """Classes of evicted storages (union-find), for h_DTR_eq.

    Attributes:
        parent, value: of each node: the node above, -1 for a root; of roots: cost of the class.
        node: the node of each evicted storage, -1 for the others.
        seen: mark of each node. cached: the one class next to each storage, or DIRTY, LONELY, SEVERAL.
        visits: accesses that a score takes while `cached` holds.
    """

    parent: Ints
    value: Longs
    node: Ints
    seen: Longs
    cached: Ints
    visits: Longs


class Regions(NamedTuple):
    """Evicted neighborhoods of resident storages, as bit sets over storages, one slot each, for h_DTR and MSPS.

    Attributes:
        slot: of each storage, -1 where it has none. free: slots; those from `State.now[SLOTS]` on are free.
        down, down_edge: evicted storages reached towards readers; resident storages where that ends.
        up, up_edge: the same towards what they are made from.
        down_cost, up_cost: cost of `down` and `up`, as of the last time they were changed.
        affected: scratch: storages whose `down` and whose `up` changes.
    """

    slot: Ints
    free: Ints
    down: Words
    down_edge: Words
    up: Words
    up_edge: Words
    down_cost: Longs
    up_cost: Longs
    affected: Words


class State(NamedTuple):
    """The runtime.

    Attributes:
        material, pinned, banished, locks, refs, access, cost: of each storage: in memory; never evicted; removed for good (0, or
            its number in the order of banishing); runs under way that need it; references of the program; when it was last accessed; cost of its operators.
        up_edges, down_edges: of each storage: how many (tensor, argument) and (tensor, reader) pairs its tensors have.
        dependents, waits, lent: banishing: evicted dependents of each storage, by number; the (tensor, argument) pairs
            they stand for; runs under way that hold it.
        defined: of each tensor: computed since its storage came back.
        locked: arguments (places in `arg_idx`) locked by a run under way.
        frame, cursor, first: runs under way, the innermost last: tensor asked for, arguments seen to, whether for the first time.
        pool, place: storages that may be evicted, in order, -1 for a gap; where each storage stands in it.
        number, late, value: scratch of a search for a victim, by place in the pool.
        mark, stack: scratch of a walk over storages. arrived: storages that the last run brought into memory. random: state of the generator (Mersenne Twister, as in CPython).
        now, tally: counters.
    """

    material: Flags
    pinned: Flags
    banished: Ints
    locks: Ints
    refs: Ints
    access: Longs
    cost: Longs
    up_edges: Longs
    down_edges: Longs
    dependents: Ints
    waits: Flags
    lent: Ints
    defined: Flags
    locked: Flags
    frame: Ints
    cursor: Ints
    first: Flags
    pool: Ints
    place: Ints
    number: Longs
    late: Longs
    value: Floats
    mark: Longs
    stack: Ints
    arrived: Ints
    random: Longs
    now: Longs
    tally: Longs


class Machine(NamedTuple):
    """All that a kernel needs."""

    g: Flat
    s: State
    c: Classes
    r: Regions
    q: Rules


def machine(program: Program, rules: Rules, random: Longs) -> Machine:
    """A runtime before its first step; `random` is the state of the generator: 624 words and the place of the next."""
    g = program.flat
    storages, tensors = len(g.storage_size), len(g.tensor_op)
    by_class = rules.cost == CLASSES and rules.kind in (FAMILY, OUTSIDE)
    by_region = rules.cost in (ANCESTORS, NEIGHBORHOOD) and rules.kind in (FAMILY, OUTSIDE) and rules.dealloc != BANISH
    slots, words = (64, (storages + 63) // 64) if by_region else (0, 1)
    nodes = 2 * storages + 64 if by_class else 0
    banish = rules.dealloc == BANISH

    def longs(size: int) -> Longs:
        return np.zeros(size, np.int64)

    s = State(
        material=np.zeros(storages, np.bool_),
        pinned=np.zeros(storages, np.bool_),
        banished=np.zeros(storages, np.int32),
        locks=np.zeros(storages, np.int32),
        refs=np.zeros(storages, np.int32),
        access=np.full(storages, -1, np.int64),
        cost=longs(storages),
        up_edges=longs(storages),
        down_edges=longs(storages),
        dependents=np.zeros(storages, np.int32),
        waits=np.zeros(int(g.wait_ptr[-1]) if banish else 0, np.bool_),
        lent=np.zeros(storages, np.int32),
        defined=np.zeros(tensors, np.bool_),
        locked=np.zeros(len(g.arg_idx), np.bool_),
        frame=np.zeros(tensors + 1, np.int32),
        cursor=np.zeros(tensors + 1, np.int32),
        first=np.zeros(tensors + 1, np.bool_),
        pool=np.full(2 * storages + 16, -1, np.int32),
        place=np.full(storages, -1, np.int32),
        number=longs(storages + 1),
        late=longs(storages + 1),
        value=np.zeros(storages + 1, np.float64),
        mark=longs(storages),
        stack=np.zeros(storages + 1, np.int32),
        arrived=np.zeros(storages + 1, np.int32),
        random=random,
        now=longs(13),
        tally=longs(6),
    )
    s.now[CLOCK], s.now[VICTIM] = 1, -1
    c = Classes(
        parent=np.full(nodes, -1, np.int32),
        value=longs(nodes),
        node=np.full(storages, -1, np.int32),
        seen=longs(nodes),
        cached=np.full(storages if by_class else 0, DIRTY, np.int32),
        visits=longs(storages if by_class else 0),
    )
    return Machine(g, s, c, _regions(storages if by_region else 0, slots, words), rules)


def _regions(storages: int, slots: int, words: int) -> Regions:
    def bits() -> Words:
        return np.zeros((slots, words), np.uint64)

    return Regions(
        slot=np.full(storages, -1, np.int32),
        free=np.arange(slots, dtype=np.int32),
        down=bits(),
        down_edge=bits(),
        up=bits(),
        up_edge=bits(),
        down_cost=np.zeros(storages, np.int64),
        up_cost=np.zeros(storages, np.int64),
        affected=np.zeros((2, words), np.uint64),
    )


def grown(m: Machine) -> Machine:
    """The same runtime with more room for classes and regions."""
    return m._replace(c=_more_nodes(m.c), r=_more_slots(m.r))


def _more_nodes(c: Classes) -> Classes:
    more = len(c.parent)
    return c._replace(
        parent=np.concatenate([c.parent, np.full(more, -1, np.int32)]),
        value=np.concatenate([c.value, np.zeros(more, np.int64)]),
        seen=np.concatenate([c.seen, np.zeros(more, np.int64)]),
    )


def _more_slots(r: Regions) -> Regions:
    slots = len(r.free)

    def longer(bits: Words) -> Words:
        return np.concatenate([bits, np.zeros((slots, bits.shape[1]), np.uint64)])

    return r._replace(
        free=np.concatenate([r.free, np.arange(slots, 2 * slots, dtype=np.int32)]),
        down=longer(r.down),
        down_edge=longer(r.down_edge),
        up=longer(r.up),
        up_edge=longer(r.up_edge),
    )


@inner_kernel
def linked(s: State, x: int, y: int) -> bool:
    """Whether the storage `x` still knows its neighbor `y`: banishing cuts a storage out of the lists of the others, not out of
    its own, which matters for one that comes back because an operator that made it too is run again.
    """
    return s.banished[y] == 0 or (s.banished[x] > 0 and s.banished[x] < s.banished[y])
