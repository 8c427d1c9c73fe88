"""Instants worth a look: heavy working sets, positions of most memory in the best plan, and where a plan does not fit."""

from __future__ import annotations

import math
from itertools import chain, islice, zip_longest
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from remat.algorithms._arrays.graph_arrays import BACKWARD, LOSS, Flags, Flat, pairs_of, row_of
from remat.algorithms._arrays.kept_data import permanent, working_sets
from remat.algorithms._arrays.liveness import memory_profile
from remat.algorithms._bounds.floor import kept_before
from remat.algorithms._bounds.instants import Dependencies, instant_formulation
from remat.algorithms._core.outcome import IMPOSSIBLE
from remat.algorithms._milp.direct import solve_relaxed
from remat.algorithms._search.pressure import Pressures
from remat.algorithms._search.run_problem import Sequence
from remat.algorithms._search.state import Search

Longs = NDArray[np.int64]

_EACH = 3  # instants in each part of the backward
_LATE = 3  # instants from the loss on, for each one of the forward
_EARLY = 2  # instants of the forward: more would take the place of others
_PARTS = 24  # of a phase, from each of which one place over the budget comes first
_RELAXED = 12  # instants of which relaxations decide the order
_SPREAD = 2  # nodes at equal distances, per heavy working set


def candidates(search: Search, count: int) -> tuple[int, ...]:
    """Instants to try: heavy working sets, where the best plan takes most memory, and nodes at equal distances.

    By turns the hardest of them in the captured order, and heavy ones from each part of the backward.
    """
    heavy = heavy_instants(search, count)
    backward = np.flatnonzero((search.flat.phase == BACKWARD) & search.flat.required)
    spread = backward[:: max(1, len(backward) // (_SPREAD * count))].tolist()
    hard = _hardest_first(search, [*heavy, *tight_instants(search, count // 2), *spread])
    pairs = zip_longest(hard, heavy)
    return tuple(dict.fromkeys(at for at in chain.from_iterable(pairs) if at is not None))


def heavy_instants(search: Search, count: int) -> list[int]:
    """Backward nodes with heavy working sets, including the data kept by then: the heaviest in each part of the backward."""
    flat = search.flat
    backward = np.flatnonzero((flat.phase == BACKWARD) & flat.required)
    return _largest(backward, working_sets(flat) + kept_before(flat), count)


def tight_instants(search: Search, count: int) -> list[int]:
    """The loss and backward nodes whose first runs in the best plan take most memory, in each part of its backward."""
    if search.best is None:
        return []
    firsts = _first_runs(search, search.best, _profile(search, search.best))
    needed = np.zeros(search.flat.time.size, np.int64)
    needed[firsts.nodes] = firsts.memory
    return _largest(firsts.nodes, needed, count)


def _hardest_first(search: Search, instants: list[int]) -> list[int]:
    """Those that bound something in the captured order, by what must run again if all is kept until then, most of it first.

    The first few are sorted by their relaxed bounds, which take a hundred times as long, and on 19 instances had nearly the same
    order (rank correlation .91 to 1).
    """
    flat = search.flat
    data, readers = pairs_of(flat.users)
    last = np.full(flat.size.size, -1)
    np.maximum.at(last, data, readers)
    kept = flat.producer >= 0
    kept &= ~permanent(flat)
    needed = working_sets(flat) + kept_before(flat)
    freed: dict[int, float] = {}
    for at in dict.fromkeys(instants):
        waits = kept & (flat.producer < at) & (last > at)
        waits[row_of(flat.reads, at)] = False
        excess = int(needed[at] + flat.size[waits].sum()) - search.budget
        if excess > 0:
            freed[at] = _freed(flat, waits, excess)
    hard = sorted(freed, key=lambda at: (-freed[at], at))
    dependencies = Dependencies(flat)
    bounds = {at: _relaxed(search, dependencies, at) for at in hard[:_RELAXED]}
    return [*sorted(bounds, key=lambda at: (-bounds[at], at)), *hard[_RELAXED:]]


def _relaxed(search: Search, dependencies: Dependencies, at: int) -> float:
    """The relaxed bound of an instant for schedules in the captured order [ns]."""
    if search.clock.expired:
        return 0.0
    instant = instant_formulation(search.flat, dependencies, at, search.budget, fixed=True)
    answer = None if instant.impossible else solve_relaxed(instant.linear, clock=search.clock)
    return IMPOSSIBLE if answer is None or answer.infeasible else answer.bound


def _freed(flat: Flat, resident: Flags, excess: int) -> float:
    """The least time of nodes whose data among the resident ones take so many bytes; a share of a node counts (Dantzig 1957)."""
    sizes = np.bincount(flat.producer[resident], flat.size[resident], minlength=flat.time.size)
    again = np.flatnonzero((sizes > 0) & flat.replay)
    again = again[np.argsort(flat.time[again] / sizes[again], kind="stable")]
    freed = np.cumsum(sizes[again])
    many = int(np.searchsorted(freed, excess))
    if many == len(again):
        return math.inf
    share = 1 - (freed[many] - excess) / sizes[again[many]]
    return float(flat.time[again[:many]].sum() + share * flat.time[again[many]])


def _largest(nodes: Longs, measure: Longs, count: int) -> list[int]:
    """Of consecutive parts of the nodes those of the largest measure: the first of each part, then the second of each."""
    parts = [part[np.argsort(-measure[part], kind="stable")] for part in np.array_split(nodes, max(1, count // _EACH))]
    return [int(part[k]) for k in range(_EACH) for part in parts if k < len(part)]


class _FirstRuns(NamedTuple):
    """First runs of some nodes in a sequence: ascending positions, nodes, memory [bytes]."""

    positions: Longs
    nodes: Longs
    memory: Longs


def _first_runs(search: Search, sequence: Sequence, memory: Longs, *, forward: bool = False) -> _FirstRuns:
    """The first runs in a sequence with this memory profile: of the forward nodes, or of the loss and the backward nodes."""
    nodes, positions = np.unique(sequence.astype(np.int64), return_index=True)
    chosen = (search.flat.phase[nodes] < LOSS) == forward
    order = np.argsort(positions[chosen])
    nodes, positions = nodes[chosen][order], positions[chosen][order]
    return _FirstRuns(positions, nodes, memory[positions])


def _profile(search: Search, sequence: Sequence) -> Longs:
    """The memory at each position [bytes]."""
    memory = np.empty(len(sequence), np.int64)
    memory_profile(search.flat, sequence, len(sequence), memory)
    return memory


def worst_instants(search: Search, sequence: Sequence, pressures: Pressures) -> list[int]:
    """First runs that exceed the budget in a sequence, by their excess times their pressure; of the forward the worst few.

    The worst in each part of a phase comes before the others: neighbours bring the same.
    """
    memory = _profile(search, sequence)
    late, early = (
        iter(_worst(search, _first_runs(search, sequence, memory, forward=side), pressures)) for side in (False, True)
    )
    turns = zip_longest(*[late] * _LATE, islice(early, _EARLY))
    return [at for at in chain.from_iterable(turns) if at is not None]


def _worst(search: Search, firsts: _FirstRuns, pressures: Pressures) -> list[int]:
    """Of some first runs those that exceed the budget, the worst of each part first."""
    excess, over = np.zeros(len(firsts.nodes)), np.flatnonzero(firsts.memory > search.budget)
    excess[over] = (firsts.memory[over] - search.budget) * pressures.of(firsts.nodes[over])
    order = np.argsort(-excess, kind="stable")[: np.count_nonzero(excess)]
    part = order * _PARTS // max(1, len(firsts.nodes))
    worst = np.zeros(len(order), np.bool_)
    worst[np.unique(part, return_index=True)[1]] = True
    return [int(at) for at in firsts.nodes[np.concatenate([order[worst], order[~worst]])]]


def worst_instant(search: Search, sequence: Sequence, instants: tuple[int, ...]) -> int | None:
    """The loss or backward node, not yet an instant, whose first run is at or next to the highest position over budget."""
    memory = _profile(search, sequence)
    firsts = _first_runs(search, sequence, memory)
    for i in np.argsort(-memory, kind="stable").tolist():
        if memory[i] <= search.budget:
            return None
        k = int(np.searchsorted(firsts.positions, i))
        for near in (k, k - 1):
            if 0 <= near < len(firsts.nodes) and firsts.nodes[near] not in instants:
                return int(firsts.nodes[near])
    return None
