"""Instants worth a look: heavy working sets, positions of most memory in the best plan, and where a plan does not fit."""

from __future__ import annotations

from itertools import chain, islice, zip_longest
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from remat.algorithms._arrays.graph_arrays import BACKWARD, LOSS
from remat.algorithms._arrays.kept_data import working_sets
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
_SPREAD = 2  # nodes at equal distances, per heavy working set


def candidates(search: Search, count: int, effort: float) -> tuple[int, ...]:
    """Instants to try: heavy working sets, where the best plan takes most memory, and nodes at equal distances.

    By turns the hardest of them in the captured order, as far as `effort` allows, and heavy ones from each part of the backward.
    """
    heavy = heavy_instants(search, count)
    backward = np.flatnonzero((search.flat.phase == BACKWARD) & search.flat.required)
    spread = backward[:: max(1, len(backward) // (_SPREAD * count))].tolist()
    hard = _hardest_first(search, [*heavy, *tight_instants(search, count // 2), *spread], effort)
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


def _hardest_first(search: Search, instants: list[int], effort: float) -> list[int]:
    """Those that bound something, sorted by the relaxed bound for schedules in the captured order; the first, up to an effort."""
    dependencies = Dependencies(search.flat)
    hardness: dict[int, float] = {}
    for at in dict.fromkeys(instants):
        if search.clock.expired or effort < 0:
            break
        instant = instant_formulation(search.flat, dependencies, at, search.budget, fixed=True)
        answer = None if instant.impossible else solve_relaxed(instant.linear, clock=search.clock)
        hardness[at] = IMPOSSIBLE if answer is None or answer.infeasible else answer.bound
        effort -= 0 if answer is None else answer.effort
    return sorted((at for at in hardness if hardness[at]), key=lambda at: (-hardness[at], at))


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
