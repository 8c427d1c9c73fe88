"""Shift: move runs to other legal positions while the profile near and over the budget falls.

The objective is the sum of the squares of the bytes above a share of the budget, in integers, so that no rounding decides. A
move is judged by the positions at which it changes the profile: those between the run's old and its new place, and those back to
the use before of the data that it reads and makes.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from remat.algorithms._arrays.graph_arrays import LOSS, Flat, Ints, Longs, Seed
from remat.algorithms._arrays.jit import allocating_kernel, inner_kernel, kernel
from remat.algorithms._arrays.liveness import memory_profile
from remat.algorithms._arrays.ordering import earliest_place
from remat.algorithms._arrays.rng import below

FINE = (
    1 << 22
)  # bytes above the level are counted in units of which at most so many occur: their squares cannot overflow


class Runs(NamedTuple):
    """A sequence with what a move needs of it.

    Attributes:
        seq: the node of each run. mem: bytes charged at each run.
        begin: per node, where its entries in `places` begin; one more at the end.
        places: the positions of each node's runs, ascending. slot: where the position of each run is in `places`.
        first: position of each node's first run, -1 if it has none.
    """

    seq: Ints
    mem: Longs
    begin: Ints
    places: Ints
    slot: Ints
    first: Ints


class Effect(NamedTuple):
    """What a move does to the profile of the sequence without the run that moves.

    Attributes:
        spans: the number of spans; then for each its first index, the index after its last, and its change [bytes].
        steps: scratch: by how much the change of the profile rises at each index; all zero between calls.
        moved: scratch for a profile.
    """

    spans: Longs
    steps: Longs
    moved: Longs


class Objective(NamedTuple):
    """Bytes over `level` count, in units of 2 ** `shift`; no position may exceed `ceiling`."""

    level: int
    shift: int
    ceiling: int


@inner_kernel
def link(runs: Runs) -> None:
    """Fill `begin`, `places`, `slot` and `first`."""
    nodes, n = runs.first.size, runs.seq.size
    for v in range(nodes + 1):
        runs.begin[v] = 0
    for i in range(n):
        runs.begin[runs.seq[i] + 1] += 1
    for v in range(nodes):
        runs.begin[v + 1] += runs.begin[v]
        runs.first[v] = runs.begin[v]  # the next free entry, for now
    for i in range(n):
        v = runs.seq[i]
        runs.slot[i] = runs.first[v]
        runs.places[runs.first[v]] = i
        runs.first[v] += 1
    for v in range(nodes):
        runs.first[v] = runs.places[runs.begin[v]] if runs.begin[v] < runs.begin[v + 1] else -1


@allocating_kernel
def successors_of(g: Flat) -> Ints:
    """The transpose of `Flat.predecessors`, as a table."""
    nodes = g.time.size
    table = np.zeros(g.predecessors.size, np.int32)
    for k in range(nodes + 1, g.predecessors.size):
        table[g.predecessors[k] + 1] += 1
    table[0] = nodes + 1
    for v in range(nodes):
        table[v + 1] += table[v]
    free = table[:nodes].copy()
    for v in range(nodes):
        for k in range(g.predecessors[v], g.predecessors[v + 1]):
            u = g.predecessors[k]
            table[free[u]] = v
            free[u] += 1
    return table


@inner_kernel
def latest_of(runs: Runs, successors: Ints, i: int, loss: int) -> int:
    """As `ordering.latest_place`, without visiting the runs in between."""
    v = runs.seq[i]
    last = runs.seq.size - 1
    if runs.first[v] != i:
        return last
    if loss > i:
        last = loss - 1
    if runs.begin[v] + 1 < runs.begin[v + 1]:
        last = min(last, runs.places[runs.begin[v] + 1] - 1)
    for k in range(successors[v], successors[v + 1]):
        if runs.first[successors[k]] >= 0:
            last = min(last, runs.first[successors[k]] - 1)
    return last


@inner_kernel
def uses_around(g: Flat, runs: Runs, d: int, i: int, j: int) -> tuple[int, bool]:
    """The uses of a datum around index j of the sequence without the run at i.

    Returns the index of the last use before j (a run that makes or reads it; -1: none), and whether the next one reads.
    """
    before, after, reads = -1, runs.seq.size, False
    for k in range(g.users[d] - 1, g.users[d + 1]):
        produces = k < g.users[d]
        v = g.producer[d] if produces else g.users[k]
        for entry in range(runs.begin[v], runs.begin[v + 1]):
            position = runs.places[entry]
            index = position - (position > i)
            if position == i:
                continue
            if index < j:
                before = max(before, index)
            else:
                if index < after:
                    after, reads = index, not produces
                break
    return before, reads


@inner_kernel
def add_span(effect: Effect, lo: int, hi: int, change: int) -> None:
    """Change the profile at the indices from `lo` to before `hi`."""
    if lo < hi:
        k = 1 + 3 * effect.spans[0]
        effect.spans[k] = lo
        effect.spans[k + 1] = hi
        effect.spans[k + 2] = change
        effect.spans[0] += 1


@inner_kernel
def put(g: Flat, runs: Runs, i: int, j: int, sign: int, effect: Effect) -> int:
    """Add what the run at i changes at other runs when it is at index j of the sequence without it. `sign` -1: undo that.

    A run that reads a datum keeps it resident from the use before; one that makes it again ends that residency.
    Returns the bytes by which what is resident right before the run differs from what is right before index j without it.
    """
    v = runs.seq[i]
    change: int = 0
    for k in range(g.reads[v], g.reads[v + 1]):
        d = g.reads[k]
        if g.keep[d]:
            continue
        before, reads = uses_around(g, runs, d, i, j)
        if not reads:
            change += g.size[d]
            add_span(effect, before + 1, j, sign * g.size[d])
    for k in range(g.writes[v], g.writes[v + 1]):
        d = g.writes[k]
        if g.keep[d]:
            if runs.first[v] == i:
                change -= g.size[d]
                add_span(effect, 0, j, -sign * g.size[d])
            continue
        before, reads = uses_around(g, runs, d, i, j)
        if reads:
            change -= g.size[d]
            add_span(effect, before + 1, j, -sign * g.size[d])
    return change


@inner_kernel
def effect_of_move(g: Flat, runs: Runs, i: int, j: int, kept: int, effect: Effect) -> int:
    """Fill `effect` for the run at i moved to index j, and return the bytes charged at it there.

    `kept`: the bytes of all kept data, which are resident at the end.
    """
    effect.spans[0] = 0
    put(g, runs, i, i, -1, effect)
    resident: int = kept
    if j < runs.seq.size - 1:
        after = j + (j >= i)
        resident = runs.mem[after] - g.charge[runs.seq[after]]
        for k in range(1, 1 + 3 * effect.spans[0], 3):
            if effect.spans[k] <= j < effect.spans[k + 1]:
                resident += effect.spans[k + 2]
    resident += put(g, runs, i, j, 1, effect) + g.charge[runs.seq[i]]
    return resident


@inner_kernel
def spread(effect: Effect, sign: int) -> int:
    """Add the spans to `steps`; returns the first index at which the profile changes. `sign` -1: take them away again."""
    first, end = effect.steps.size, 1 + 3 * effect.spans[0]
    for k in range(1, end, 3):
        effect.steps[effect.spans[k]] += sign * effect.spans[k + 2]
        effect.steps[effect.spans[k + 1]] -= sign * effect.spans[k + 2]
    for k in range(1, end, 3):
        for x in (effect.spans[k], effect.spans[k + 1]):
            if effect.steps[x] != 0:
                first = min(first, x)
    return first


@inner_kernel
def square(objective: Objective, mem: int) -> int:
    """What a position of so many bytes adds to the objective."""
    over = max(0, mem - objective.level) >> objective.shift
    return over * over


@inner_kernel
def fall_of_move(g: Flat, runs: Runs, objective: Objective, move: tuple[int, int, int], effect: Effect) -> int:
    """By how much the objective falls by a move: the run's position, its new index, the bytes charged at it there.

    -1 if it rises, or if a position exceeds the ceiling.
    """
    i, j, charged = move
    if charged > objective.ceiling:
        return -1
    fall: int = square(objective, runs.mem[i]) - square(objective, charged)
    first, change = spread(effect, 1), np.int64(0)
    for x in range(first, max(i, j)):
        change += effect.steps[x]
        if change != 0:
            old = runs.mem[x + (x >= i)]
            if old + change > objective.ceiling:
                fall = -1
                break
            fall += square(objective, old) - square(objective, old + change)
    g.work[0] += 1 + max(0, max(i, j) - first)
    spread(effect, -1)
    return max(-1, fall)


@inner_kernel
def apply_move(runs: Runs, move: tuple[int, int, int], effect: Effect) -> None:
    """Move a run, given as for `fall_of_move`."""
    i, j, charged = move
    v, entry, step = runs.seq[i], runs.slot[i], 1 if j > i else -1
    first, change = min(i, j, spread(effect, 1)), np.int64(0)
    for x in range(first, max(i, j)):
        change += effect.steps[x]
        effect.moved[x + (x >= j)] = runs.mem[x + (x >= i)] + change
    spread(effect, -1)
    effect.moved[j] = charged
    for x in range(first, max(i, j) + 1):
        runs.mem[x] = effect.moved[x]
    for x in range(i, j, step):
        runs.seq[x], runs.slot[x] = runs.seq[x + step], runs.slot[x + step]
        runs.places[runs.slot[x]] = x
        if runs.slot[x] == runs.begin[runs.seq[x]]:
            runs.first[runs.seq[x]] = x
    runs.seq[j], runs.slot[j], runs.places[entry] = v, entry, j
    while entry > runs.begin[v] and runs.places[entry - 1] > j:
        swap(runs, entry - 1)
        entry -= 1
    while entry + 1 < runs.begin[v + 1] and runs.places[entry + 1] < j:
        swap(runs, entry)
        entry += 1
    runs.first[v] = runs.places[runs.begin[v]]


@inner_kernel
def swap(runs: Runs, entry: int) -> None:
    """Exchange an entry of `places` with the next one."""
    low, high = runs.places[entry], runs.places[entry + 1]
    runs.places[entry], runs.places[entry + 1] = high, low
    runs.slot[low], runs.slot[high] = entry + 1, entry


@allocating_kernel
def effect_of_none(g: Flat, n: int) -> Effect:
    """Scratch for the moves of a sequence of `n` runs."""
    most = 0
    for v in range(g.time.size):
        most = max(most, g.reads[v + 1] - g.reads[v] + g.writes[v + 1] - g.writes[v])
    return Effect(np.zeros(1 + 6 * most, np.int64), np.zeros(n + 1, np.int64), np.empty(n, np.int64))


@allocating_kernel
def linked(g: Flat, base: Ints) -> Runs:
    """A copy of a sequence, with its profile and places."""
    n, nodes = base.size, g.time.size
    begin, first = np.empty(nodes + 1, np.int32), np.empty(nodes, np.int32)
    runs = Runs(base.copy(), np.empty(n, np.int64), begin, np.empty(n, np.int32), np.empty(n, np.int32), first)
    memory_profile(g, runs.seq, n, runs.mem)
    link(runs)
    return runs


@allocating_kernel
def objective_of(mem: Longs, budget: int, level: float) -> Objective:
    """The objective for a profile: bytes above the share `level` of the budget, below the larger of the budget and the peak."""
    ceiling = budget
    for x in range(mem.size):
        ceiling = max(ceiling, mem[x])
    least, shift = budget if level >= 1.0 else int(budget * level), 0  # a float of 2^63 - 1 is 2^63
    while (ceiling - least) >> shift >= FINE:
        shift += 1
    return Objective(least, shift, ceiling)


@kernel
def shift(g: Flat, base: Ints, budget: int, level: float, passes: int, rng: Seed) -> Ints:
    """Move runs to their earliest or latest legal position, or one in between, while the objective falls.

    The peak never rises above the larger of the budget and the start's peak. Bytes above the share `level` of the budget
    count.
    """
    n = base.size
    runs, effect, successors = linked(g, base), effect_of_none(g, n), successors_of(g)
    objective = objective_of(runs.mem, budget, level)
    kept: int = 0
    for d in range(g.size.size):
        kept += g.size[d] if g.keep[d] else 0
    loss_node = -1
    for i in range(n):
        if g.phase[runs.seq[i]] == LOSS:
            loss_node = runs.seq[i]
    for _ in range(passes):
        improved = False
        for k in range(n):
            i = below(rng, n)
            loss = runs.first[loss_node] if loss_node >= 0 else -1
            if i == loss:
                continue
            lo = earliest_place(g, runs.seq, i, runs.first, loss)
            hi = latest_of(runs, successors, i, loss)
            choice = k % 3
            if choice == 0:
                j = lo
            elif choice == 1:
                j = hi
            else:
                j = lo + below(rng, max(1, hi - lo + 1))
            if j == i or lo > hi:
                continue
            move = (i, j, effect_of_move(g, runs, i, j, kept, effect))
            if fall_of_move(g, runs, objective, move, effect) > 0:
                apply_move(runs, move, effect)
                improved = True
        if not improved:
            break
    return runs.seq
